"""The section on images of docs/tensorflow.md: each of its rows names what `test_images` shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import test_images as images

from dask_tfrecord.columns.images import ImageError, decode_image

PAGE = Path(__file__).parents[1] / "docs" / "tensorflow.md"


@pytest.mark.parametrize("name", ["jpeg", "png_2_8", "png_3_4_interlaced", "gif", "webp", "webp_alpha"])
def test_bytes_behind_the_image_are_ignored(name: str) -> None:
    file = images.FILES[name]
    assert (decode_image(file + b"more of something") == decode_image(file)).all()


def test_a_bmp_is_as_long_as_it_says() -> None:
    with pytest.raises(ImageError):
        decode_image(images.FILES["bmp24"] + b"\0")


def test_a_gif_needs_no_trailer_but_whole_frames() -> None:
    frame = images.gif_frame((0, 0, 2, 3), [0, 1, 2, 3, 2, 1])
    whole = images.gif((2, 3), frame, frame)
    one = decode_image(images.gif((2, 3), frame))
    assert (decode_image(whole[:-1]) == one).all()
    for end in range(len(whole) - len(frame), len(whole) - 1):
        with pytest.raises(ImageError):
            decode_image(whole[:end])


# What shows it, for each row of the page.
SHOWN: dict[str, Callable[..., None]] = {
    "image-jpeg": images.test_jpeg_is_within_two_levels_of_tensorflow,
    "image-jpeg-gray": images.test_jpeg_gray_is_the_luma_plane,
    "image-jpeg-inks": images.test_jpeg_inks_become_rgb_as_in_tensorflow,
    "image-exif": images.test_jpeg_orientation_is_left_alone,
    "image-channels": images.test_png_gives_every_number_of_channels,
    "image-channels-refused": images.test_channels_that_tensorflow_does_not_make_are_refused,
    "image-png": images.test_png_gives_its_samples,
    "image-png-palette": images.test_png_palette_gives_its_colours,
    "image-png-past-palette": images.test_png_colours_past_the_palette_are_black,
    "image-png-transparent": images.test_png_transparent_colour_is_alpha_where_alpha_is_asked_for,
    "image-png-gray": images.test_png_colours_become_gray_as_in_libpng,
    "image-png-16": images.test_dtypes_scale_to_their_range,
    "image-png-16-gray": images.test_png_of_16_bits_becomes_gray_before_it_loses_its_low_bytes,
    "image-png-rows": images.test_a_png_with_rows_missing_is_refused,
    "image-png-chunks": images.test_png_chunks_that_can_be_missed_are_missed,
    "image-png-crc": images.test_every_changed_byte_of_a_png_is_found,
    "image-gif": images.test_gif_gives_the_first_frame_on_the_canvas_that_all_need,
    "image-gif-trailer": test_a_gif_needs_no_trailer_but_whole_frames,
    "image-bmp": images.test_bmp_rows_run_upwards_unless_the_height_is_negative,
    "image-bmp-8": images.test_bmp_of_8_bits_gives_what_is_stored,
    "image-bmp-masks": images.test_bmp_with_masks_is_read_if_they_are_the_usual_ones,
    "image-bmp-size": test_a_bmp_is_as_long_as_it_says,
    "image-webp": images.test_webp_gives_its_own_channels,
    "image-webp-animation": images.test_webp_animation_gives_its_first_frame,
    "image-cut": images.test_every_file_that_is_cut_short_is_refused,
    "image-behind": test_bytes_behind_the_image_are_ignored,
    "image-dtype": images.test_dtypes_scale_to_their_range,
    "image-size": images.test_resizing_is_bilinear,
    "image-shape": images.test_a_shape_that_was_not_promised_is_told_before_pixels_are_decoded,
    "image-none": images.test_what_is_no_image_says_what_it_is,
    "image-bomb": images.test_bombs_are_refused_where_pillow_refuses_them,
}


def test_the_page_has_these_rows_and_no_others() -> None:
    assert re.findall(r"^\| `(image-[a-z0-9-]+)` \|", PAGE.read_text("utf-8"), re.MULTILINE) == list(SHOWN)
    assert all(shown.__name__.startswith("test_") for shown in SHOWN.values())
