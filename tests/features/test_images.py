"""Images: every format from bytes made here, TensorFlow's rules, and damage, which is always reported.

`support.images` writes PNG, GIF and BMP, so that the samples are known without a decoder; Pillow writes JPEG and WebP.
If TensorFlow is installed, it decodes the same files.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from oracle import write_oracle
from support.images import (
    GRAY,
    GRAY_ALPHA,
    KINDS,
    PALETTE,
    RGB,
    RGBA,
    SAMPLES,
    bmp,
    by_pillow,
    chunk,
    files,
    gif,
    gif_frame,
    jpegs,
    noise,
    png,
    smooth,
)
from support.paths import REPOSITORY
from support.wire import example

import dask_tfrecord as dtf
from dask_tfrecord.features.image import IMAGE_DTYPES
from dask_tfrecord.features.images import pixels as pixels_module
from dask_tfrecord.features.images import png as png_module
from dask_tfrecord.features.images.codecs import ImageError, simplejpeg_or_none

Image = pytest.importorskip("PIL.Image")
ImageFile = pytest.importorskip("PIL.ImageFile")

FILES = files()


def decode_image(file: bytes | memoryview, out: NDArray[Any] | None = None, **options: Any) -> NDArray[Any]:
    return pixels_module.decode_image(file, dtf.ImageFeature(**options), out)


def image_shape(file: bytes | memoryview, **options: Any) -> tuple[int, int, int]:
    return pixels_module.image_shape(file, dtf.ImageFeature(**options))


def answer(file: bytes, **arguments: Any) -> NDArray[Any] | str:
    """Return the pixels, or the text of the error."""
    try:
        return decode_image(file, **arguments)
    except ImageError as error:
        return str(error)


def black_png(width: int, height: int, more: int = 0) -> bytes:
    """Return a gray PNG of zeros, and some bytes more."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, GRAY, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(bytes((width + 1) * height + more), 1))
    return b"\x89PNG\r\n\x1a\n" + header + data + chunk(b"IEND", b"")


def assert_decodes(file: bytes, pixels: Any, **arguments: Any) -> None:
    assert np.array_equal(decode_image(file, **arguments), pixels)


# -------------------------------------------------------------------------------------------- against what was written


@given(st.data())
def test_png_gives_its_samples(data: st.DataObject) -> None:
    colour, depth = data.draw(st.sampled_from(KINDS))
    height, width = data.draw(st.tuples(st.integers(1, 11), st.integers(1, 11)))
    samples = noise(height, width, SAMPLES[colour], high=1 << depth, seed=data.draw(st.integers(0, 99)))
    palette = noise(1 << depth, 3)
    file = png(
        samples,
        depth,
        colour,
        interlaced=data.draw(st.booleans()),
        filters=data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)),
        chunks=data.draw(st.integers(1, 3)),
        extra=[(b"PLTE", palette.tobytes())] if colour == PALETTE else [],
    )
    if colour == PALETTE:
        whole = palette[samples[..., 0]].astype(int) * 257
    else:
        whole = samples.astype(int) * (65535 // ((1 << depth) - 1))
    assert image_shape(file) == whole.shape
    assert_decodes(file, whole, dtype="uint16")
    assert_decodes(file, whole >> 8)
    assert np.allclose(decode_image(file, dtype="float64"), whole / 65535, rtol=1e-12)
    channels, dtype = data.draw(st.sampled_from([0, 1, 3, 4])), data.draw(st.sampled_from([np.uint8, np.uint16]))
    found = decode_image(file, channels=channels, dtype=dtype)
    strided = np.full((found.shape[1], found.shape[0] * 2, found.shape[2]), 7, dtype)[:, ::2].transpose(1, 0, 2)
    assert decode_image(file, channels=channels, dtype=dtype, out=strided) is strided
    assert np.array_equal(strided, found)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("interlaced", [False, True])
def test_png_palette_gives_its_colours(depth: int, interlaced: bool) -> None:
    indices = noise(9, 13, 1, high=1 << depth)
    colours, alphas = noise(1 << depth, 3, seed=1), noise(2, seed=2)
    palette = (b"PLTE", colours.tobytes())
    file = png(indices, depth, PALETTE, interlaced=interlaced, extra=[palette])
    assert_decodes(file, colours[indices[..., 0]])
    assert (decode_image(file, channels=4)[..., 3] == (1 << depth) - 1).all()
    seen = png(indices, depth, PALETTE, interlaced=interlaced, extra=[palette, (b"tRNS", alphas.tobytes())])
    alpha = np.full(1 << depth, 255)
    alpha[:2] = alphas
    assert_decodes(seen, np.dstack([colours[indices[..., 0]], alpha[indices[..., 0]]]))
    assert_decodes(seen, colours[indices[..., 0]], channels=3)


def test_png_colours_past_the_palette_are_black() -> None:
    file = png(np.array([[[0], [3]]]), 2, PALETTE, extra=[(b"PLTE", bytes([9, 8, 7]))])
    assert_decodes(file, [[[9, 8, 7], [0, 0, 0]]])


@pytest.mark.parametrize(
    ("extra", "gray"),
    [
        ([], [76, 149, 29, 77]),
        ([(b"gAMA", struct.pack(">I", 100000))], [76, 149, 29, 77]),
        ([(b"gAMA", struct.pack(">I", 45455))], [147, 200, 95, 77]),
        ([(b"sRGB", b"\0")], [147, 200, 95, 77]),
    ],
    ids=["none", "linear", "gamma", "srgb"],
)
def test_png_colours_become_gray_as_in_libpng(extra: list[tuple[bytes, bytes]], gray: list[int]) -> None:
    """The numbers are TensorFlow's."""
    primaries = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [77, 77, 77]]])
    palette = (b"PLTE", primaries.astype(np.uint8).tobytes())
    by_palette = png(np.arange(4).reshape(1, 4, 1), 2, PALETTE, extra=[*extra, palette])
    for file in (png(primaries, extra=extra), by_palette):
        assert decode_image(file, channels=1).ravel().tolist() == gray


def test_png_of_16_bits_becomes_gray_before_it_loses_its_low_bytes() -> None:
    """The numbers are TensorFlow's."""
    file = png(np.arange(12, 24, dtype=np.uint8).view(">u2").astype(int).reshape(1, 2, 3), 16)
    assert decode_image(file, channels=1, dtype="uint16").ravel().tolist() == [3504, 5046]
    assert decode_image(file, channels=1).ravel().tolist() == [13, 19]
    colours = [[100, 2000, 300], [5000] * 3, [60000, 3, 40000], [1, 900, 65535], [129] * 3, [700, 650, 12000]]
    srgb, dark, light = (b"sRGB", b"\0"), (b"gAMA", struct.pack(">I", 30_000)), (b"gAMA", struct.pack(">I", 250_000))
    for transfer, expected in [
        (srgb, [0, 19, 144, 95, 0, 16]),
        (dark, [0, 19, 167, 133, 0, 0]),
        (light, [3, 19, 23, 5, 0, 4]),
    ]:
        assert decode_image(png(np.array([colours]), 16, extra=[transfer]), channels=1).ravel().tolist() == expected


@pytest.mark.parametrize(
    ("samples", "depth", "key"),
    [
        ([[3], [4], [5]], 8, (4,)),
        ([[0], [1], [2]], 2, (1,)),
        ([[0x0304], [0x0305], [4]], 16, (0x0305,)),
        ([[1, 2, 3], [4, 5, 6], [4, 5, 7]], 8, (4, 5, 6)),
        ([[1, 2, 3], [0x104, 5, 6], [4, 5, 6]], 16, (0x104, 5, 6)),
    ],
)
def test_png_transparent_colour_is_alpha_where_alpha_is_requested(
    samples: list[list[int]], depth: int, key: tuple[int, ...]
) -> None:
    file = png(np.array([samples]), depth, extra=[(b"tRNS", struct.pack(f">{len(key)}H", *key))])
    assert decode_image(file).shape == (1, *np.shape(samples))
    assert decode_image(file, channels=4)[0, :, 3].tolist() == [255, 0, 255]
    if depth == 16:
        assert decode_image(file, channels=4, dtype="uint16")[0, :, 3].tolist() == [65535, 0, 65535]


@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_png_gives_every_number_of_channels(colour: int, depth: int) -> None:
    file = FILES[f"png_{colour}_{depth}"]
    own, three, four = (decode_image(file, channels=channels, dtype="uint16") for channels in (0, 3, 4))
    assert np.array_equal(four[..., :3], three)
    if colour in (GRAY, GRAY_ALPHA):
        assert np.array_equal(three, np.repeat(own[..., :1], 3, axis=2))
        assert_decodes(file, own[..., :1], channels=1, dtype="uint16")
    else:
        assert np.array_equal(three, own[..., :3])
    if colour in (GRAY_ALPHA, RGBA):
        assert np.array_equal(four[..., 3], own[..., -1])
    else:
        # TensorFlow adds the largest sample of the file as alpha, and does not scale it up from fewer than 8 bits.
        assert (four[..., 3] == ((1 << depth) - 1) * (1 if depth == 16 else 257)).all()


COLOURS = np.arange(1, 13, dtype=np.uint8).reshape(4, 3)
SQUARE, LARGER = gif_frame((0, 0, 2, 2), [0, 1, 2, 3]), gif_frame((0, 0, 3, 4), [1] * 12)


def test_gif_gives_the_first_frame_on_the_canvas_that_all_need() -> None:
    """As in TensorFlow, the canvas has the size of the largest frame, and is black outside of the first frame."""
    square = COLOURS[[[0, 1], [2, 3]]]
    assert_decodes(gif((2, 2), SQUARE), square)
    assert_decodes(gif((9, 9), SQUARE), square)
    assert_decodes(gif((2, 2), SQUARE, gif_frame((0, 0, 1, 1), [0])), square)
    assert_decodes(gif((2, 2), SQUARE, LARGER), np.pad(square, [(0, 2), (0, 1), (0, 0)]))
    shifted = np.zeros((2, 2, 3), int)
    shifted[1, 1] = COLOURS[0]
    assert_decodes(gif((3, 3), gif_frame((1, 1, 2, 2), [0, 1, 2, 3])), shifted)
    square[0, 1] = 0
    assert_decodes(gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1, 2, 3], transparent=1)), square)


def test_gif_rows_and_palettes() -> None:
    own = gif((1, 1), gif_frame((0, 0, 1, 1), [1], palette=bytes(range(100, 112))))
    assert_decodes(own, [[[103, 104, 105]]])
    passes = gif((1, 5), gif_frame((0, 0, 1, 5), [0, 1, 2, 3, 0], interlaced=True))
    assert decode_image(passes)[:, 0, 0].tolist() == [1, 10, 7, 1, 4]
    image = Image.fromarray(smooth(40, 50, 3)).quantize(64)
    assert_decodes(by_pillow(image, "gif"), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("bits", [24, 32])
def test_bmp_rows_run_upwards_unless_the_height_is_negative(bits: int) -> None:
    count = bits // 8
    pixels = noise(3, 5, count)
    rows = pixels[..., [2, 1, 0, 3][:count]].reshape(3, -1)
    stored = np.pad(rows, [(0, 0), (0, -rows.shape[1] % 4)])
    down, up = bmp(stored.tobytes(), 5, -3, bits), bmp(stored[::-1].tobytes(), 5, 3, bits)
    assert_decodes(down, pixels)
    assert_decodes(up, pixels)
    assert_decodes(up, pixels[..., :3], channels=3)
    assert_decodes(up, np.dstack([pixels, np.full((3, 5), 255)])[..., :4], channels=4)


def test_bmp_of_8_bits_gives_what_is_stored() -> None:
    """TensorFlow ignores the palette."""
    file = bmp(bytes([1, 2, 3, 0, 4, 5, 6, 0]), 3, 2, 8, between=noise(1024).tobytes())
    assert_decodes(file, [[[4], [5], [6]], [[1], [2], [3]]])
    assert_decodes(file, np.repeat(decode_image(file), 3, axis=2), channels=3)
    assert decode_image(file, channels=4)[0, 0].tolist() == [4, 4, 4, 255]


USUAL_MASKS = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)


def test_bmp_with_masks_is_read_if_they_are_the_usual_ones() -> None:
    assert_decodes(bmp(bytes([3, 2, 1, 4]), 1, 1, 32, compression=3, between=USUAL_MASKS), [[[1, 2, 3, 4]]])
    other = bmp(bytes(4), 1, 1, 32, compression=3, between=USUAL_MASKS[::-1])
    assert "compression 3; only uncompressed" in answer(other)


def test_webp_gives_its_own_channels() -> None:
    opaque, seen = noise(5, 6, 3), noise(5, 6, 4)
    assert_decodes(FILES["webp"], opaque)
    assert_decodes(FILES["webp_alpha"], seen)
    assert_decodes(FILES["webp_alpha"], seen, channels=4)
    assert decode_image(FILES["webp_lossy"]).shape == (17, 18, 3)
    assert decode_image(FILES["webp_lossy_alpha"]).shape == (5, 6, 4)


@pytest.mark.parametrize("channels", [3, 4])
def test_webp_animation_gives_its_first_frame(channels: int) -> None:
    frames = [Image.fromarray(noise(5, 6, channels, seed=seed)) for seed in (1, 2)]
    file = by_pillow(frames[0], "webp", lossless=True, exact=True, save_all=True, append_images=frames[1:])
    assert_decodes(file, np.asarray(frames[0]))


def test_jpeg_gray_is_the_luma_plane() -> None:
    file = by_pillow(smooth(16, 16, 3), "jpeg", quality=95)
    luma = np.asarray(Image.open(io.BytesIO(file)).convert("YCbCr"))[..., :1]
    assert np.abs(decode_image(file, channels=1).astype(int) - luma).max() <= 1
    gray = decode_image(FILES["jpeg_gray"])
    assert gray.shape == (13, 17, 1)
    assert_decodes(FILES["jpeg_gray"], np.repeat(gray, 3, axis=2), channels=3)


def test_jpeg_inks_become_rgb_as_in_tensorflow() -> None:
    """Inks are inverted if the file has an Adobe marker, which Pillow writes."""
    flat = np.full((8, 8, 4), (200, 100, 0, 51), np.uint8)
    adobe = by_pillow(Image.fromarray(flat, "CMYK"), "jpeg", quality=100, subsampling=0)
    # Pillow stores 255 - ink: 55, 155, 255 and 204 of black.
    assert np.abs(decode_image(adobe).astype(int) - [44, 124, 204]).max() <= 1
    start = adobe.index(b"\xff\xee")
    plain = adobe[:start] + adobe[start + 2 + int.from_bytes(adobe[start + 2 : start + 4], "big") :]
    assert np.abs(decode_image(plain).astype(int) - [200 * 51 // 255, 100 * 51 // 255, 0]).max() <= 1


def test_jpeg_orientation_is_left_alone() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = smooth(8, 24, 3)
    assert_decodes(by_pillow(pixels, "jpeg", exif=exif), decode_image(by_pillow(pixels, "jpeg")))


# ------------------------------------------------------------------------------------------------- JPEG by simplejpeg


@contextmanager
def without_simplejpeg() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "simplejpeg", None)
        simplejpeg_or_none.cache_clear()
        yield
    simplejpeg_or_none.cache_clear()


def test_both_decoders_return_the_same_pixels_and_errors() -> None:
    pytest.importorskip("simplejpeg")
    made = jpegs()
    # Damage within the scan: libjpeg continues with a warning.
    file = bytearray(by_pillow(smooth(40, 56, 3), "jpeg", quality=90))
    for at in range(len(file) // 2, len(file) - 2, 97):
        made[f"damaged {at}"] = bytes(file[:at]) + bytes([file[at] ^ 0x5A]) + bytes(file[at + 1 :])
    refused = 0
    for name, data in made.items():
        for channels in (0, 1, 3):
            found = answer(data, channels=channels)
            with without_simplejpeg():
                assert np.array_equal(found, answer(data, channels=channels)), name
            refused += isinstance(found, str)
    assert refused > 10


def test_jpeg_is_decoded_at_the_smallest_scale_that_covers_the_size(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    pixels = np.asarray(Image.fromarray(noise(6, 8, 3)).resize((323, 181), Image.Resampling.BICUBIC))
    file = by_pillow(pixels, "jpeg", quality=95)
    for size, ratio in {(23, 41): 8, (23, 42): 4, (91, 162): 2, (92, 20): 1, (200, 400): 1}.items():
        whole = Image.open(io.BytesIO(file))
        whole.draft("RGB", (323 // ratio, 181 // ratio))
        assert whole.size == (-(-323 // ratio), -(-181 // ratio))
        wanted = decode_image(png(np.asarray(whole)), size=size)
        found = decode_image(file, size=size, reduced=True)
        assert np.abs(found.astype(int) - wanted).max() <= 2, size
    truncated = file[: len(file) // 2]
    assert (
        answer(truncated, size=(23, 41), reduced=True) == answer(truncated, size=(23, 41)) == "a truncated JPEG image"
    )
    warned = answer(truncated + file[-2:], size=(23, 41), reduced=True)
    assert np.abs(np.asarray(warned, int) - answer(truncated + file[-2:], size=(23, 41))).mean() < 30
    other = png(noise(50, 60, 3))
    assert_decodes(other, decode_image(other, size=(5, 6)), size=(5, 6), reduced=True)
    with pytest.raises(dtf.SchemaError, match="reduced=True needs the size"):
        dtf.ImageFeature((16, 24, 3), reduced=True)
    with without_simplejpeg(), pytest.raises(ImportError, match="reduced=True needs simplejpeg: pip install"):
        decode_image(file, size=(2, 3), reduced=True)
    write_oracle(tmp_path / "a", [example(image=[file])])
    ds = dtf.read_tfrecord(tmp_path / "a", {"image": dtf.ImageFeature(size=(20, 30), channels=3, reduced=True)})
    found = ds["image"].compute()[0]
    assert np.array_equal(found, decode_image(file, size=(20, 30), reduced=True))
    assert not np.array_equal(found, decode_image(file, size=(20, 30)))


def test_filters_reach_the_images_of_steps(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    files = [by_pillow(noise(60, 90, 3, seed=seed), "jpeg", quality=95) for seed in range(5)]
    write_oracle(tmp_path / "a", [example(image=files[:2]), example(image=files[2:])])
    ways: list[dict[str, Any]] = [{}, {"reduced": True}, {"method": "lanczos3", "antialias": True}, {"antialias": True}]
    seen = set()
    for way in ways:
        image = dtf.ImageFeature((-1, 20, 30, 3), size=(20, 30), **way)
        steps = dtf.read_tfrecord(tmp_path / "a", {"image": image}).explode("image")
        with steps.batches(5) as batches:
            found = next(batches)["image"]
        assert np.array_equal(found, [decode_image(file, size=(20, 30), **way) for file in files])
        seen.add(found.tobytes())
    assert len(seen) == len(ways)


def test_a_side_too_long_for_a_filter_is_refused() -> None:
    file = black_png(1, (1 << 20) + 1)
    assert decode_image(file, size=(1, 1)).shape == (1, 1, 1)
    for way in ({"method": "lanczos3"}, {"antialias": True}):
        with pytest.raises(ImageError, match="resize at most 1048576 pixels a side"):
            decode_image(file, size=(1, 1), **way)


def test_the_fast_dct_differs_by_a_few_levels(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    differing = 0
    for name, file in jpegs().items():
        accurate, fast = answer(file), answer(file, fast=True)
        if isinstance(accurate, str):
            assert fast == accurate, name
        else:
            difference = np.abs(accurate.astype(int) - np.asarray(fast))
            # The fast DCT loses most where a file of high quality is noise.
            assert difference.max() <= (64 if "noise" in name else 12), name
            differing += difference.any()
    assert differing > 10
    file = by_pillow(noise(16, 24, 3), "jpeg", quality=60)
    with without_simplejpeg(), pytest.raises(ImportError, match="fast=True needs simplejpeg: pip install"):
        decode_image(file, fast=True)
    write_oracle(tmp_path / "a", [example(image=[file])])
    found = dtf.read_tfrecord(tmp_path / "a", {"image": dtf.ImageFeature((16, 24, 3), fast=True)})["image"].compute()
    assert np.array_equal(found[0], decode_image(file, fast=True))
    assert not np.array_equal(found[0], decode_image(file))


# ----------------------------------------------------------------------------------------------- arguments and dtypes


CHANNELS_REFUSED = [
    ("jpeg", 4, "a JPEG image, which decodes to 1 or 3 channels; channels=4 was requested"),
    ("jpeg_cmyk", 1, "a CMYK JPEG image, which decodes to 3 channels; channels=1 was requested"),
    ("gif", 1, "a GIF image, which decodes to 3 channels"),
    ("gif", 4, "a GIF image, which decodes to 3 channels"),
    ("bmp24", 1, "a BMP image, which decodes to 3 or 4 channels"),
    ("bmp8", 1, "a BMP image, which decodes to 3 or 4 channels"),
    ("webp", 4, "a WebP image, which decodes to 3 channels"),
    ("webp_alpha", 3, "a WebP image, which decodes to 4 channels"),
]


@pytest.mark.parametrize(("name", "channels", "message"), CHANNELS_REFUSED)
def test_channels_that_tensorflow_does_not_make_are_refused(name: str, channels: int, message: str) -> None:
    for function in (decode_image, image_shape):
        with pytest.raises(ImageError, match=message):
            function(FILES[name], channels=channels)


@pytest.mark.parametrize("name", FILES)
def test_dtypes_scale_to_their_range(name: str) -> None:
    file = FILES[name]
    wide = "_16" in name
    whole = decode_image(file, dtype="uint16" if wide else "uint8")
    unit = 1 / 65535 if wide else 1 / 255
    single = whole.astype(np.float32) * np.float32(unit)
    wanted = {
        "uint8": whole >> 8 if wide else whole,
        "uint16": whole.astype(int) * (1 if wide else 257 if name.startswith("png") else 256),
        "float16": single.astype(np.float16),
        "float32": single,
        "float64": whole * unit,
    }
    assert wanted.keys() == set(IMAGE_DTYPES)
    for dtype, pixels in wanted.items():
        found = decode_image(file, dtype=dtype)
        assert (found.shape, found.dtype.name) == (image_shape(memoryview(file)), dtype)
        assert np.array_equal(found, pixels), dtype
        # Slots of any strides; their neighbours stay.
        block = np.full((3, *found.shape[::-1]), 7, dtype).transpose(0, 3, 2, 1)
        decode_image(memoryview(file), dtype=dtype, out=block[1])
        assert np.array_equal(block[1], pixels) and (block[[0, 2]] == 7).all()


SIZES = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(
    SIZES,
    SIZES,
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([8, 16]),
    st.sampled_from(["bilinear", "lanczos3"]),
    st.booleans(),
)
def test_images_are_resized_as_by_resize_images(
    shape: tuple[int, int], size: tuple[int, int], channels: int, depth: int, method: Any, antialias: bool
) -> None:
    """`test_resizing` compares `resize_images` with TensorFlow."""
    pixels = noise(*shape, channels, high=1 << depth)
    file, kind = png(pixels, depth), np.dtype(f"uint{depth}")
    assert image_shape(file, size=size) == (*size, channels)
    if size == shape:
        assert_decodes(file, pixels, dtype=kind, size=size)
        return

    def resized(levels: NDArray[Any]) -> NDArray[Any]:
        return dtf.resize_images(levels[None], size, method, antialias)[0]

    way = {"size": size, "method": method, "antialias": antialias}
    levels = {kind.name: resized(pixels)}
    if depth == 8:
        levels["uint16"] = resized(pixels.astype(np.float32) * np.float32(257))
    for dtype, wanted in levels.items():
        whole = np.rint(wanted).clip(0, np.iinfo(dtype).max)
        assert_decodes(file, whole.astype(dtype), dtype=dtype, **way)
    fractions = resized(pixels.astype(np.float32) * np.float32(1 / np.iinfo(kind).max))
    for dtype in ("float16", "float32", "float64"):
        assert_decodes(file, fractions.astype(dtype), dtype=dtype, **way)


def test_another_shape_is_refused_before_pixels_are_decoded() -> None:
    header = png(noise(1, 1, 3))[16:]
    huge = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">II", 12000, 12000) + header[8:13]) + header[17:]
    with pytest.raises(ImageError, match=r"a PNG image of shape \(12000, 12000, 3\); expected \(4, 4, 3\)"):
        decode_image(huge, out=np.empty((4, 4, 3), np.uint8))


# --------------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("name", FILES)
def test_every_truncated_file_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    file = FILES[name]
    # A GIF without its trailer has all its pixels.
    for end in range(len(file) - (1 if name == "gif" else 0)):
        with pytest.raises(ImageError):
            decode_image(file[:end])


@pytest.mark.parametrize("name", ["png_2_8", "png_0_1", "png_3_4_interlaced", "png_6_16"])
def test_every_changed_byte_of_a_png_is_found(name: str) -> None:
    file = FILES[name]
    for at in range(len(file)):
        with pytest.raises(ImageError):
            decode_image(file[:at] + bytes([file[at] ^ 0x10]) + file[at + 1 :])


@given(st.sampled_from(sorted(FILES)), st.data())
def test_damage_gives_an_image_or_an_image_error(name: str, data: st.DataObject) -> None:
    file = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(2, len(file) - 1))] = data.draw(st.integers(0, 255))
    found = answer(bytes(file), channels=data.draw(st.sampled_from([0, 1, 3, 4])))
    assert found if isinstance(found, str) else found.ndim == 3


def with_stream(file: bytes, stream: bytes) -> bytes:
    """Return a PNG with other compressed rows, and valid CRCs."""
    return file[: file.index(b"IDAT") - 4] + chunk(b"IDAT", stream) + chunk(b"IEND", b"")


def rows_of(file: bytes) -> bytes:
    return zlib.decompress(file[file.index(b"IDAT") + 4 : -16])


@pytest.mark.parametrize("interlaced", [False, True])
def test_a_png_with_rows_missing_is_refused(interlaced: bool) -> None:
    file = png(noise(12, 6, 3), interlaced=interlaced)
    rows = rows_of(file)
    # The last rows are as long with interlacing as without.
    fewer = with_stream(file, zlib.compress(rows[:-19]))
    assert f"truncated PNG image: expected {len(rows)} bytes of pixels, found {len(rows) - 19}" in answer(fewer)


@pytest.mark.parametrize("has_isal", [False, True])
def test_isal_and_zlib_give_the_same_pixels_and_errors(has_isal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inflaters = (pytest.importorskip("isal.isal_zlib"), zlib) if has_isal else (zlib,)
    # As if isal were not installed: it is looked up once in a process.
    monkeypatch.setattr(png_module, "INFLATERS", inflaters)
    pixels = smooth(40, 30, 3)
    file = png(pixels, filters=range(5))
    rows = rows_of(file)
    stream = zlib.compress(rows)
    assert_decodes(file, pixels)
    # Whole rows, then damaged data, which zlib does not reach.
    excess = bytearray(zlib.compress(rows + noise(4000).tobytes()))
    excess[-1000] ^= 0x5A
    assert_decodes(with_stream(file, bytes(excess)), pixels)
    refused = {
        "a damaged PNG image": [stream[:-1] + bytes([stream[-1] ^ 1]), b"\0" + stream[1:], stream[:9] + bytes(30)],
        "a truncated PNG image: expected 3640 bytes": [zlib.compress(rows[:-1]), stream[:-200], stream[:1]],
        "a damaged PNG image: unknown filter 7 of a row": [zlib.compress(rows[:-91] + b"\7" + rows[-90:])],
    }
    for text, streams in refused.items():
        assert all(text in answer(with_stream(file, each)) for each in streams), text


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("black", [False, True])
def test_png_data_past_the_last_row_are_ignored_as_in_tensorflow(interlaced: bool, black: bool) -> None:
    for shape in ((6, 5, 3), (1, 1, 1), (3, 2, 4)):
        pixels = np.zeros(shape, np.uint8) if black else noise(*shape)
        file = png(pixels, interlaced=interlaced)
        for nbytes in (0, 1, 2 << 20):
            assert_decodes(with_stream(file, zlib.compress(rows_of(file) + bytes(nbytes), 1)), pixels)


def test_png_data_past_the_last_row_are_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    file = black_png(1500, 1500, more=64 << 20)
    passed: list[int] = []
    made: list[int] = []

    def counting() -> Any:
        inflate = zlib.decompressobj()

        def decompress(data: bytes, most: int) -> bytes:
            inflated = inflate.decompress(data, most)
            passed.append(len(data))
            made.append(len(inflated))
            return inflated

        return SimpleNamespace(decompress=decompress, eof=False)

    monkeypatch.setattr(png_module, "INFLATERS", (SimpleNamespace(decompressobj=counting, error=zlib.error),))
    assert not decode_image(file).any()
    assert sum(made) == 1500 * 1501
    # zlib receives no bytes repeatedly.
    assert sum(passed) < len(file)


def test_damaged_ancillary_chunks_of_a_png_are_skipped() -> None:
    file = png(noise(2, 2, 3), extra=[(b"teXt", b"hello"), (b"gAMA", b"?")])
    at = file.index(b"teXt")
    assert_decodes(file[:at] + b"teXx" + file[at + 4 :], noise(2, 2, 3))


HEADER_DAMAGED = png(noise(2, 2, 3))[:20] + b"\1" + png(noise(2, 2, 3))[21:]
NO_PALETTE = gif((2, 1), gif_frame((0, 0, 2, 1), [0, 3]), palette=bytes(12))
OTHER_BYTES = [
    (b"", "no bytes; expected an encoded image"),
    (b"II*\0 a TIFF", r"bytes that begin with b'II*\x00 a T', which are not a JPEG, PNG, GIF, BMP or WebP"),
    (b"\xff\x0a jxl", "a JPEG XL image, which Pillow cannot decode"),
    (b"\xff\xd8\xff\xd9 and no more", "a JPEG image without a frame"),
    (b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", b"") + chunk(b"IEND", b""), "a PNG image without a header"),
    (png(noise(1, 1, 1), 8, PALETTE), "a PNG image with a palette of 0 bytes"),
    (png(noise(1, 1, 1), 8, 5), "invalid header: depth 8, colour type 5"),
    (png(noise(2, 2, 3), extra=[(b"TEXT", b"")]), "unknown critical chunk b'TEXT'"),
    (HEADER_DAMAGED, "damaged chunk b'IHDR' at byte 8: its CRC does not match"),
    (NO_PALETTE[:10] + b"\x80" + NO_PALETTE[11:13] + bytes(6) + NO_PALETTE[25:], "colour 3, past its palette of 2"),
    (gif((1, 1), gif_frame((0, 0, 1, 1), [0]), palette=b""), "without a palette"),
    (gif((1, 1)), "without a frame"),
    (gif((1, 1), b"x"), "unknown kind 0x78 at byte 25"),
    (bmp(bytes(8), 2, 2, 16), "16 bits per pixel; only 8, 24 or 32"),
    (bmp(bytes(8), 2, 2, 8, compression=1), "compression 1; only uncompressed"),
    (bmp(b"", 0, 2, 24), "0 x 2 pixels"),
]


@pytest.mark.parametrize(("data", "message"), OTHER_BYTES, ids=[message for _, message in OTHER_BYTES])
def test_other_bytes_are_described_in_the_error(data: bytes, message: str) -> None:
    with pytest.raises(ImageError, match=re.escape(message)) as caught:
        decode_image(data)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("name", ["jpeg", "png_2_8", "png_2_16", "gif", "bmp24", "webp"])
def test_bombs_are_refused_where_pillow_refuses_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = FILES[name]
    height, width, _ = image_shape(file)
    # Pillow accepts up to twice the limit, with a warning.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", height * width // 2 + 1)
    decode_image(file)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", (height * width - 1) // 2)
    message = rf"{width} x {height} pixels, more than \d+ \(twice PIL.Image.MAX_IMAGE_PIXELS\)"
    assert re.search(message, answer(file))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    decode_image(file)


# ------------------------------------------------------------------------- the table of images in docs/tensorflow.md


@pytest.mark.parametrize("name", ["jpeg", "png_2_8", "png_3_4_interlaced", "gif", "webp", "webp_alpha"])
def test_bytes_after_the_image_are_ignored(name: str) -> None:
    assert_decodes(FILES[name] + b"more of something", decode_image(FILES[name]))


def test_a_bmp_has_the_length_that_its_header_announces() -> None:
    assert "of 71 bytes; its header announces 70" in answer(bmp(bytes(16), 2, 2, 24) + b"x")


def test_a_gif_needs_no_trailer_but_whole_frames() -> None:
    frame = gif_frame((0, 0, 2, 3), [0, 1, 2, 3, 2, 1])
    whole = gif((2, 3), frame, frame)
    assert_decodes(whole[:-1], decode_image(gif((2, 3), frame)))
    for end in range(len(whole) - len(frame), len(whole) - 1):
        assert isinstance(answer(whole[:end]), str)


# ----------------------------------------------------------------------------------------------------------- TensorFlow


class Job(NamedTuple):
    """One image, and the arguments to decode it with. TensorFlow makes floats of the integers that the file has."""

    name: str
    data: bytes
    channels: int = 0
    dtype: str = "uint8"
    wide: bool = False  # the file has 16 bits per channel
    size: tuple[int, int] | None = None
    fast: bool = False
    ratio: int = 1  # of `tf.io.decode_jpeg`; this library derives it from `size`


ASK = """
import pickle, sys
import tensorflow as tf

def answer(name, data, channels, dtype, wide, size, fast, ratio):
    whole = dtype if dtype.startswith("uint") else "uint16" if wide else "uint8"
    if name.startswith("jpeg") and whole == "uint8":
        dct = "INTEGER_FAST" if fast else "INTEGER_ACCURATE"
        image = tf.io.decode_jpeg(data, channels=channels, ratio=ratio, dct_method=dct)
    else:
        image = tf.io.decode_image(data, channels=channels, dtype=whole, expand_animations=False)
    if not dtype.startswith("uint"):
        image = tf.image.convert_image_dtype(image, dtype)
    if size is not None:
        image = tf.image.resize(image, size)
    return image.numpy()

answers = []
for job in pickle.load(sys.stdin.buffer):
    try:
        answers.append(answer(*job))
    except tf.errors.InvalidArgumentError as error:
        answers.append(str(error))
with open(sys.argv[1], "wb") as file:
    pickle.dump(answers, file)
"""


@pytest.fixture
def both(tensorflow: str, tmp_path: Path) -> Any:
    """Decode by TensorFlow and by this library; yield pairs of arrays, or error messages."""

    def ask(jobs: Sequence[Job]) -> Iterator[tuple[Job, Any, Any]]:
        quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [tensorflow, "-c", ASK, str(tmp_path / "answers")]
        asked = pickle.dumps([tuple(job) for job in jobs])
        subprocess.run(command, input=asked, env=os.environ | quiet, check=True, capture_output=True)
        for job, said in zip(jobs, pickle.loads((tmp_path / "answers").read_bytes()), strict=True):
            options = {name: getattr(job, name) for name in ("channels", "dtype", "size", "fast")}
            yield job, said, answer(job.data, **options, reduced=job.ratio > 1)

    return ask


def away(job: Job, said: Any, found: Any) -> float:
    """Return the largest difference; both must agree on error, shape and dtype."""
    assert isinstance(said, str) == isinstance(found, str), (job.name, job.channels, job.dtype, said, found)
    if isinstance(said, str):
        return 0.0
    assert said.shape == found.shape, (job.name, job.channels)
    assert said.dtype == found.dtype or job.size is not None
    return float(np.abs(said.astype(np.float64) - found).max())


@pytest.mark.tensorflow
def test_png_equals_tensorflow(both: Any) -> None:
    chance = np.random.default_rng(5)
    jobs = []
    for (colour, depth), number in product(KINDS, range(24)):
        height, width = (int(n) for n in chance.integers(1, 20, 2))
        samples = noise(height, width, SAMPLES[colour], high=1 << min(depth, 3 if number % 3 else 16), seed=number)
        gamma = struct.pack(">I", int(chance.integers(20000, 250000)))
        extra = [[], [(b"gAMA", gamma)], [(b"sRGB", b"\0")]][number % 3]
        if colour == PALETTE:
            # Sometimes fewer colours than indices.
            extra.append((b"PLTE", noise(3 * int(chance.integers(1, (1 << depth) + 1)), seed=number).tobytes()))
        if number % 2 and colour == PALETTE:
            extra.append((b"tRNS", noise(min(len(extra[-1][1]) // 3, 5), seed=number + 1).tobytes()))
        elif number % 2 and colour in (GRAY, RGB):
            extra.append((b"tRNS", samples[0, 0].astype(">u2").tobytes()))
        filters = chance.integers(0, 5, 7).tolist()
        form: dict[str, Any] = {"interlaced": number % 5 > 2, "filters": filters, "chunks": 1 + number % 3}
        file = png(samples, depth, colour, extra=extra, **form)
        name = f"png {colour} {depth} {number} {[kind for kind, _ in extra]}"
        for channels, dtype in product((0, 1, 3, 4), ("uint8", "uint16", "float32", "float64")):
            jobs.append(Job(name, file, channels, dtype, depth == 16))
    for interlaced, nbytes in product((False, True), (1, 100, 2 << 20)):
        file = png(noise(5, 7, 3), interlaced=interlaced)
        jobs.append(Job("png 2 8 excess", with_stream(file, zlib.compress(rows_of(file) + bytes(nbytes), 9))))
    for job, said, found in both(jobs):
        colour, depth = map(int, job.name.split()[1:3])
        curved = "gAMA" in job.name or "sRGB" in job.name
        allowed = 1 if depth == 16 and job.dtype == "uint8" and curved and job.channels == 1 else 0
        assert away(job, said, found) <= allowed, (job.name, job.channels, job.dtype)


@pytest.mark.tensorflow
def test_gif_bmp_and_webp_equal_tensorflow(both: Any) -> None:
    frame = gif_frame((0, 0, 2, 2), [0, 1, 2, 3])
    made = {
        **{name: FILES[name] for name in FILES if not name.startswith(("png", "jpeg"))},
        "gif larger": gif((2, 2), SQUARE, LARGER),
        "gif shifted": gif((4, 4), gif_frame((3, 3, 2, 2), [0, 1, 2, 3]), LARGER),
        "gif transparent": gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1, 2, 3], transparent=2), SQUARE),
        "gif opaque control first": gif((2, 2), b"!\xf9\x04\0\0\0\0\0", gif_frame((0, 0, 1, 1), [0], transparent=0)),
        "gif own palette": gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1, 2, 3], palette=bytes(range(50, 62)))),
        "gif interlaced": gif((3, 11), gif_frame((0, 0, 3, 11), noise(33, high=4).tolist(), interlaced=True)),
        "gif pixels missing": gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1])),
        "gif pixels over": gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1, 2, 3, 0, 1])),
        "gif no trailer": gif((2, 2), frame, tail=b""),
        "gif no frame": gif((2, 2)),
        "bmp top down": bmp(noise(16).tobytes(), 2, -2, 24),
        "bmp garbage": bmp(noise(16).tobytes(), 2, 2, 24) + b"x",
        "bmp 16": bmp(noise(16).tobytes(), 4, 2, 16),
        "webp garbage": FILES["webp"] + b"garbage",
        "webp smooth": by_pillow(smooth(61, 47, 4), "webp", quality=70),
    }
    for job, said, found in both(
        [Job(name, file, channels) for name, file in made.items() for channels in (0, 1, 3, 4)]
    ):
        assert away(job, said, found) == 0, (job.name, job.channels)


@pytest.mark.tensorflow
def test_jpeg_is_within_two_levels_of_tensorflow(both: Any) -> None:
    made = jpegs()
    jobs = [Job(name, file, channels) for name, file in made.items() for channels in (0, 1, 3, 4)]
    # Pillow decodes inks, with the accurate DCT.
    jobs += [job._replace(fast=True) for job in jobs if "cmyk" not in job.name]
    assert max(away(*answers) for answers in both(jobs)) <= 2


@pytest.mark.tensorflow
def test_reduced_jpeg_is_within_two_levels_of_tensorflow(both: Any) -> None:
    jobs = []
    for (height, width), channels, ratio in product(((181, 323), (480, 640), (64, 48)), (1, 3), (2, 4, 8)):
        file = by_pillow(smooth(height, width, channels).squeeze(), "jpeg", quality=90)
        # The smallest and the largest size of which this is the ratio, as long as one is.
        for size in {(-(-height // ratio), -(-width // ratio)), (height // ratio - 1, width // ratio - 1)}:
            jobs.append(Job("jpeg", file, channels, "uint8", False, size, ratio=ratio))
    assert max(away(*answers) for answers in both(jobs)) <= 2.5


# Test of each row of the page.
SHOWN: dict[str, Callable[..., None]] = {
    "image-jpeg": test_jpeg_is_within_two_levels_of_tensorflow,
    "image-jpeg-gray": test_jpeg_gray_is_the_luma_plane,
    "image-jpeg-inks": test_jpeg_inks_become_rgb_as_in_tensorflow,
    "image-exif": test_jpeg_orientation_is_left_alone,
    "image-channels": test_png_gives_every_number_of_channels,
    "image-channels-refused": test_channels_that_tensorflow_does_not_make_are_refused,
    "image-png": test_png_gives_its_samples,
    "image-png-palette": test_png_palette_gives_its_colours,
    "image-png-past-palette": test_png_colours_past_the_palette_are_black,
    "image-png-transparent": test_png_transparent_colour_is_alpha_where_alpha_is_requested,
    "image-png-no-alpha": test_png_gives_every_number_of_channels,
    "image-png-gray": test_png_colours_become_gray_as_in_libpng,
    "image-png-16": test_dtypes_scale_to_their_range,
    "image-png-16-gray": test_png_of_16_bits_becomes_gray_before_it_loses_its_low_bytes,
    "image-png-rows": test_a_png_with_rows_missing_is_refused,
    "image-png-excess": test_png_data_past_the_last_row_are_ignored_as_in_tensorflow,
    "image-png-chunks": test_damaged_ancillary_chunks_of_a_png_are_skipped,
    "image-png-crc": test_every_changed_byte_of_a_png_is_found,
    "image-gif": test_gif_gives_the_first_frame_on_the_canvas_that_all_need,
    "image-gif-trailer": test_a_gif_needs_no_trailer_but_whole_frames,
    "image-bmp": test_bmp_rows_run_upwards_unless_the_height_is_negative,
    "image-bmp-8": test_bmp_of_8_bits_gives_what_is_stored,
    "image-bmp-masks": test_bmp_with_masks_is_read_if_they_are_the_usual_ones,
    "image-bmp-size": test_a_bmp_has_the_length_that_its_header_announces,
    "image-webp": test_webp_gives_its_own_channels,
    "image-webp-animation": test_webp_animation_gives_its_first_frame,
    "image-cut": test_every_truncated_file_is_refused,
    "image-behind": test_bytes_after_the_image_are_ignored,
    "image-dtype": test_dtypes_scale_to_their_range,
    "image-size": test_images_are_resized_as_by_resize_images,
    "image-shape": test_another_shape_is_refused_before_pixels_are_decoded,
    "image-none": test_other_bytes_are_described_in_the_error,
    "image-bomb": test_bombs_are_refused_where_pillow_refuses_them,
}


def test_each_row_of_the_page_has_a_test() -> None:
    page = (REPOSITORY / "docs" / "tensorflow.md").read_text("utf-8")
    found = re.findall(r"^\| `(image-[a-z0-9-]+)` \|", page, re.MULTILINE)
    assert len(found) > 5
    assert found == [name for name in SHOWN if name in found]
    assert all(shown.__name__.startswith("test_") for shown in SHOWN.values())
