"""Images: every format from bytes made here, TensorFlow's rules, and damage that is always told.

PNG, GIF and BMP are written by hand below, so that the samples are known without any decoder; JPEG and WebP by Pillow.
Where TensorFlow is installed, it decodes all of them too.
"""

from __future__ import annotations

import io
import math
import os
import pickle
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dask_tfrecord.columns.images import IMAGE_DTYPES, ImageError, decode_image, image_shape, require_pillow
from dask_tfrecord.messages import Example
from dask_tfrecord.testing import read_payloads

Image = pytest.importorskip("PIL.Image")
ImageFile = pytest.importorskip("PIL.ImageFile")

GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGBA: (8, 16)}
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
KINDS = [(colour, depth) for colour in DEPTHS for depth in DEPTHS[colour]]


# ---------------------------------------------------------------------------------------------------------- writers


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def filtered(rows: list[bytes], pixel: int, filters: Sequence[int]) -> bytes:
    """Rows of one pass, row i by the filter i, each filter as the PNG specification states it."""
    out, above = bytearray(), bytes(len(rows[0]))
    for number, row in enumerate(rows):
        kind = filters[number % len(filters)]
        out.append(kind)
        for i, value in enumerate(row):
            a = row[i - pixel] if i >= pixel else 0
            b, c = above[i], above[i - pixel] if i >= pixel else 0
            nearest = min((abs(a + b - c - a), 0, a), (abs(a + b - c - b), 1, b), (abs(a + b - c - c), 2, c))[2]
            out.append((value - (0, a, b, (a + b) // 2, nearest)[kind]) % 256)
        above = row
    return bytes(out)


def packed(samples: NDArray[Any], depth: int) -> list[bytes]:
    if depth == 16:
        return [row.astype(">u2").tobytes() for row in samples]
    if depth == 8:
        return [row.astype(np.uint8).tobytes() for row in samples]
    shifts = np.arange(depth - 1, -1, -1)
    bits = (samples[..., 0, None] >> shifts & 1).astype(np.uint8).reshape(len(samples), -1)
    return [np.packbits(row).tobytes() for row in bits]


def png(
    samples: NDArray[Any],
    depth: int = 8,
    colour: int | None = None,
    *,
    interlaced: bool = False,
    filters: Sequence[int] = (0,),
    extra: Sequence[tuple[bytes, bytes]] = (),
    pieces: int = 1,
) -> bytes:
    """A PNG with these samples, shape (height, width, samples per pixel)."""
    height, width, count = samples.shape
    if colour is None:
        colour = {1: GRAY, 2: GRAY_ALPHA, 3: RGB, 4: RGBA}[count]
    passes = [samples[top::down, left::across] for left, top, across, down in ADAM7] if interlaced else [samples]
    raw = b"".join(filtered(packed(part, depth), max(depth * count // 8, 1), filters) for part in passes if part.size)
    stream = zlib.compress(raw)
    step = math.ceil(len(stream) / pieces)
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", header),
            *(chunk(*one) for one in extra),
            *(chunk(b"IDAT", stream[at : at + step]) for at in range(0, len(stream), step)),
            chunk(b"IEND", b""),
        ]
    )


def gif_data(indices: Sequence[int], bits: int = 2) -> bytes:
    """Pixels by LZW that begins anew before each, so that codes keep their width."""
    codes = [code for index in indices for code in (1 << bits, index)] + [(1 << bits) + 1]
    number = sum(code << (bits + 1) * i for i, code in enumerate(codes))
    data = number.to_bytes(math.ceil(len(codes) * (bits + 1) / 8), "little")
    blocks = b"".join(bytes([len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255))
    return bytes([bits]) + blocks + b"\0"


def gif_frame(
    place: tuple[int, int, int, int],
    indices: Sequence[int],
    *,
    palette: bytes = b"",
    interlaced: bool = False,
    transparent: int | None = None,
) -> bytes:
    """A frame at (left, top) of (width, height), with the graphic control before it if a colour is transparent."""
    control = b"" if transparent is None else b"!\xf9\x04\x01\0\0" + bytes([transparent]) + b"\0"
    flags = (0x40 if interlaced else 0) | (0x81 if palette else 0)
    return control + b"," + struct.pack("<4HB", *place, flags) + palette + gif_data(indices)


def gif(size: tuple[int, int], *frames: bytes, palette: bytes = bytes(range(1, 13)), tail: bytes = b";") -> bytes:
    return b"GIF89a" + struct.pack("<2HBBB", *size, 0x81 if palette else 0, 0, 0) + palette + b"".join(frames) + tail


def bmp(
    stored: bytes,
    width: int,
    height: int,
    bits: int,
    *,
    compression: int = 0,
    between: bytes = b"",
) -> bytes:
    """A BMP around rows as they are stored; `between` stands after the header: masks or a palette."""
    start = 54 + len(between)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(stored), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", start + len(stored), 0, 0, start) + header + between + stored


def by_pillow(pixels: NDArray[Any] | Any, format: str, **options: Any) -> bytes:
    image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def noise(*shape: int, high: int = 256, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.uint16 if high > 256 else np.uint8)


def smooth(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Slow waves with a little noise, as photographs have."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    waves = [np.sin(x / (7 + 3 * c)) + np.cos(y / (5 + 2 * c)) for c in range(math.prod(shape[2:]))]
    pixels = 128 + 50 * np.stack(waves, -1).reshape(shape) + np.random.default_rng(seed).normal(0, 4, shape)
    return pixels.clip(0, 255).astype(np.uint8)


def files() -> dict[str, bytes]:
    """One small file of every format and kind."""
    made = {
        "jpeg": by_pillow(smooth(13, 17, 3), "jpeg"),
        "jpeg_gray": by_pillow(smooth(13, 17), "jpeg"),
        "jpeg_progressive": by_pillow(smooth(13, 17, 3), "jpeg", progressive=True),
        "jpeg_cmyk": by_pillow(Image.fromarray(noise(8, 8, 4), "CMYK"), "jpeg"),
        "gif": gif((2, 3), gif_frame((0, 0, 2, 3), [0, 1, 2, 3, 2, 1])),
        "bmp8": bmp(bytes(range(8)), 3, 2, 8, between=bytes(1024)),
        "bmp24": bmp(bytes(range(16)), 2, 2, 24),
        "bmp32": bmp(bytes(range(16)), 2, 2, 32),
        "webp": by_pillow(noise(5, 6, 3), "webp", lossless=True),
        "webp_lossy": by_pillow(smooth(17, 18, 3), "webp"),
        "webp_alpha": by_pillow(noise(5, 6, 4), "webp", lossless=True, exact=True),
        "webp_lossy_alpha": by_pillow(noise(5, 6, 4), "webp"),
    }
    for colour, depth in KINDS:
        for interlaced in (False, True):
            samples = noise(5, 7, SAMPLES[colour], high=1 << depth)
            palette = [(b"PLTE", noise(3 << depth).tobytes())] if colour == PALETTE else []
            name = f"png_{colour}_{depth}" + ("_interlaced" if interlaced else "")
            made[name] = png(samples, depth, colour, interlaced=interlaced, filters=range(5), extra=palette)
    return made


FILES = files()


@pytest.fixture
def no_global_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of Pillow that would let damaged data pass."""
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)


# -------------------------------------------------------------------------------------------- against what was written


def test_golden_images_equal_tensorflow(golden: Path) -> None:
    seen = set()
    with np.load(golden / "images.npz") as expected:
        for number, payload in enumerate(read_payloads(golden / "images.tfrecord")):
            feature = Example.FromString(payload).features.feature
            for name in expected:
                [data] = feature[name].bytes_list.value
                found = decode_image(data, dtype=expected[name].dtype)
                away = np.abs(found.astype(int) - expected[name][number].astype(int)).max()
                assert away <= (2 if name == "jpeg" else 0), (name, number)
                seen.add((name, number))
    assert len(seen) == 6 * 12


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_png_gives_its_samples(data: st.DataObject) -> None:
    colour, depth = data.draw(st.sampled_from([kind for kind in KINDS if kind[0] != PALETTE]))
    height, width = data.draw(st.tuples(st.integers(1, 11), st.integers(1, 11)))
    samples = noise(height, width, SAMPLES[colour], high=1 << depth, seed=data.draw(st.integers(0, 99)))
    file = png(
        samples,
        depth,
        colour,
        interlaced=data.draw(st.booleans()),
        filters=data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=5)),
        pieces=data.draw(st.integers(1, 3)),
    )
    assert image_shape(file) == samples.shape
    whole = samples.astype(int) * (65535 // ((1 << depth) - 1))
    assert np.array_equal(decode_image(file, dtype="uint16"), whole)
    assert np.array_equal(decode_image(file), whole >> 8)
    assert np.allclose(decode_image(file, dtype="float64"), whole / 65535, rtol=1e-12)


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
@pytest.mark.parametrize("interlaced", [False, True])
def test_png_palette_gives_its_colours(depth: int, interlaced: bool) -> None:
    indices = noise(9, 13, 1, high=1 << depth)
    colours, alphas = noise(1 << depth, 3, seed=1), noise(2, seed=2)
    palette = (b"PLTE", colours.tobytes())
    file = png(indices, depth, PALETTE, interlaced=interlaced, extra=[palette])
    assert np.array_equal(decode_image(file), colours[indices[..., 0]])
    assert np.array_equal(decode_image(file, channels=4)[..., 3], np.full((9, 13), 255))
    seen = png(indices, depth, PALETTE, interlaced=interlaced, extra=[palette, (b"tRNS", alphas.tobytes())])
    alpha = np.full(1 << depth, 255)
    alpha[:2] = alphas
    assert np.array_equal(decode_image(seen)[..., :3], colours[indices[..., 0]])
    assert np.array_equal(decode_image(seen)[..., 3], alpha[indices[..., 0]])
    assert decode_image(seen, channels=3).shape == (9, 13, 3)


def test_png_colours_past_the_palette_are_black() -> None:
    file = png(np.array([[[0], [3]]]), 2, PALETTE, extra=[(b"PLTE", bytes([9, 8, 7]))])
    assert decode_image(file).tolist() == [[[9, 8, 7], [0, 0, 0]]]


PRIMARIES = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [77, 77, 77]]])


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
    assert decode_image(png(PRIMARIES, extra=extra), channels=1).ravel().tolist() == gray
    by_palette = png(
        np.arange(4).reshape(1, 4, 1), 2, PALETTE, extra=[*extra, (b"PLTE", PRIMARIES.astype(np.uint8).tobytes())]
    )
    assert decode_image(by_palette, channels=1).ravel().tolist() == gray


def test_png_of_16_bits_becomes_gray_before_it_loses_its_low_bytes() -> None:
    """The numbers are TensorFlow's."""
    file = png(np.arange(12, 24, dtype=np.uint8).view(">u2").astype(int).reshape(1, 2, 3), 16)
    assert decode_image(file, channels=1, dtype="uint16").ravel().tolist() == [3504, 5046]
    assert decode_image(file, channels=1).ravel().tolist() == [13, 19]


@pytest.mark.parametrize(
    ("samples", "depth", "key", "alpha"),
    [
        ([[3], [4], [5]], 8, (4,), [255, 0, 255]),
        ([[0], [1], [2]], 2, (1,), [255, 0, 255]),
        ([[0x0304], [0x0305], [4]], 16, (0x0305,), [65535, 0, 65535]),
        ([[1, 2, 3], [4, 5, 6], [4, 5, 7]], 8, (4, 5, 6), [255, 0, 255]),
        ([[1, 2, 3], [0x104, 5, 6], [4, 5, 6]], 16, (0x104, 5, 6), [65535, 0, 65535]),
    ],
)
def test_png_transparent_colour_is_alpha_where_alpha_is_asked_for(
    samples: list[list[int]], depth: int, key: tuple[int, ...], alpha: list[int]
) -> None:
    pixels = np.array([samples])
    file = png(pixels, depth, extra=[(b"tRNS", struct.pack(f">{len(key)}H", *key))])
    assert decode_image(file).shape == pixels.shape
    dtype = "uint16" if depth == 16 else "uint8"
    assert decode_image(file, channels=4, dtype=dtype)[0, :, 3].tolist() == alpha
    assert decode_image(file, channels=4)[0, :, 3].tolist() == [255, 0, 255]


@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_png_gives_every_number_of_channels(colour: int, depth: int) -> None:
    file = FILES[f"png_{colour}_{depth}"]
    own = decode_image(file, dtype="uint16")
    four = decode_image(file, channels=4, dtype="uint16")
    three = decode_image(file, channels=3, dtype="uint16")
    assert np.array_equal(four[..., :3], three)
    if colour in (GRAY, GRAY_ALPHA):
        assert np.array_equal(three, np.repeat(own[..., :1], 3, axis=2))
        assert np.array_equal(decode_image(file, channels=1, dtype="uint16"), own[..., :1])
    else:
        assert np.array_equal(three, own[..., :3])
    if colour in (GRAY_ALPHA, RGBA):
        assert np.array_equal(four[..., 3], own[..., -1])
    else:
        assert (four[..., 3] == 65535).all()


def test_gif_gives_the_first_frame_on_the_canvas_that_all_need() -> None:
    """TensorFlow: as large as the largest frame, black where the first one leaves it free or is transparent."""
    colours = np.arange(1, 13).reshape(4, 3)
    first = gif_frame((0, 0, 2, 2), [0, 1, 2, 3])
    square = colours[[[0, 1], [2, 3]]]
    assert np.array_equal(decode_image(gif((2, 2), first)), square)
    assert np.array_equal(decode_image(gif((9, 9), first)), square)
    assert np.array_equal(decode_image(gif((2, 2), first, gif_frame((0, 0, 1, 1), [0]))), square)
    larger = np.zeros((3, 3, 3), int)
    larger[:2, :2] = square
    assert np.array_equal(decode_image(gif((2, 2), first, gif_frame((0, 0, 3, 3), [0] * 9))), larger)
    shifted = np.zeros((2, 2, 3), int)
    shifted[1, 1] = colours[0]
    assert np.array_equal(decode_image(gif((3, 3), gif_frame((1, 1, 2, 2), [0, 1, 2, 3]))), shifted)
    square[0, 1] = 0
    assert np.array_equal(decode_image(gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1, 2, 3], transparent=1))), square)


def test_gif_rows_and_palettes() -> None:
    own = bytes(range(100, 112))
    assert decode_image(gif((1, 1), gif_frame((0, 0, 1, 1), [1], palette=own))).tolist() == [[[103, 104, 105]]]
    passes = gif((1, 5), gif_frame((0, 0, 1, 5), [0, 1, 2, 3, 0], interlaced=True))
    assert decode_image(passes)[:, 0, 0].tolist() == [1, 10, 7, 1, 4]
    with pytest.raises(ImageError, match="colour 3 of a palette of 2"):
        data = gif((2, 1), gif_frame((0, 0, 2, 1), [0, 3]), palette=bytes(12))
        decode_image(data[:10] + b"\x80" + data[11:13] + bytes(6) + data[25:])
    with pytest.raises(ImageError, match="without a palette"):
        decode_image(gif((1, 1), gif_frame((0, 0, 1, 1), [0]), palette=b""))
    with pytest.raises(ImageError, match="without a frame"):
        decode_image(gif((1, 1)))
    with pytest.raises(ImageError, match="unknown kind 0x78 at byte 25"):
        decode_image(gif((1, 1), b"x"))


def test_gif_pixels_of_a_real_encoder() -> None:
    pixels = smooth(40, 50, 3)
    image = Image.fromarray(pixels).quantize(64)
    assert np.array_equal(decode_image(by_pillow(image, "gif")), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("bits", [24, 32])
def test_bmp_rows_run_upwards_unless_the_height_is_negative(bits: int) -> None:
    count = bits // 8
    pixels = noise(3, 5, count)
    rows = pixels[..., [2, 1, 0, 3][:count]].reshape(3, -1)
    stored = np.pad(rows, [(0, 0), (0, -rows.shape[1] % 4)])
    down, up = bmp(stored.tobytes(), 5, -3, bits), bmp(stored[::-1].tobytes(), 5, 3, bits)
    assert np.array_equal(decode_image(down), pixels)
    assert np.array_equal(decode_image(up), pixels)
    assert np.array_equal(decode_image(up, channels=3), pixels[..., :3])
    four = decode_image(up, channels=4)
    assert np.array_equal(four[..., :count], pixels)
    assert count == 4 or (four[..., 3] == 255).all()
    assert np.array_equal(decode_image(down, dtype="uint16"), pixels.astype(int) * 256)


def test_bmp_of_8_bits_gives_what_is_stored() -> None:
    """TensorFlow does not look at the palette."""
    file = bmp(bytes([1, 2, 3, 0, 4, 5, 6, 0]), 3, 2, 8, between=noise(1024).tobytes())
    assert decode_image(file).tolist() == [[[4], [5], [6]], [[1], [2], [3]]]
    assert decode_image(file, channels=3)[0].tolist() == [[4] * 3, [5] * 3, [6] * 3]
    assert decode_image(file, channels=4)[0, 0].tolist() == [4, 4, 4, 255]


def test_bmp_with_masks_is_read_if_they_are_the_usual_ones() -> None:
    usual = struct.pack("<3I", 0xFF0000, 0xFF00, 0xFF)
    file = bmp(bytes([3, 2, 1, 4]), 1, 1, 32, compression=3, between=usual)
    assert decode_image(file).tolist() == [[[1, 2, 3, 4]]]
    with pytest.raises(ImageError, match="compression 3 where uncompressed"):
        decode_image(bmp(bytes(4), 1, 1, 32, compression=3, between=usual[::-1]))


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (bmp(bytes(16), 2, 2, 24) + b"x", "of 71 bytes where its header says 70"),
        (bmp(bytes(8), 2, 2, 16), "16 bits per pixel where 8, 24 or 32"),
        (bmp(bytes(8), 2, 2, 8, compression=1), "compression 1 where uncompressed"),
        (bmp(b"", 0, 2, 24), "0 x 2 pixels"),
    ],
)
def test_bmp_of_other_kinds_is_refused(file: bytes, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        decode_image(file)


def test_webp_gives_its_own_channels() -> None:
    opaque, seen = noise(5, 6, 3), noise(5, 6, 4)
    assert np.array_equal(decode_image(FILES["webp"]), opaque)
    assert np.array_equal(decode_image(FILES["webp_alpha"]), seen)
    assert np.array_equal(decode_image(FILES["webp_alpha"], channels=4), seen)
    assert decode_image(FILES["webp_lossy"]).shape == (17, 18, 3)
    assert decode_image(FILES["webp_lossy_alpha"]).shape == (5, 6, 4)
    assert np.array_equal(decode_image(FILES["webp"] + b"garbage"), opaque)


@pytest.mark.parametrize("channels", [3, 4])
def test_webp_animation_gives_its_first_frame(channels: int) -> None:
    frames = [Image.fromarray(noise(5, 6, channels, seed=seed)) for seed in (1, 2)]
    file = by_pillow(frames[0], "webp", lossless=True, exact=True, save_all=True, append_images=frames[1:])
    assert np.array_equal(decode_image(file), np.asarray(frames[0]))


def test_jpeg_gray_is_the_luma_plane() -> None:
    colours = smooth(16, 16, 3)
    luma = np.asarray(Image.open(io.BytesIO(by_pillow(colours, "jpeg", quality=95))).convert("YCbCr"))[..., :1]
    found = decode_image(by_pillow(colours, "jpeg", quality=95), channels=1)
    assert found.shape == (16, 16, 1)
    assert np.abs(found.astype(int) - luma).max() <= 1
    gray = decode_image(FILES["jpeg_gray"])
    assert gray.shape == (13, 17, 1)
    assert np.array_equal(decode_image(FILES["jpeg_gray"], channels=3), np.repeat(gray, 3, axis=2))


def test_jpeg_inks_become_rgb_as_in_tensorflow() -> None:
    """Inverted if an Adobe marker stands in the file, as Pillow writes it; as they stand without it."""
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
    turned = by_pillow(pixels, "jpeg", exif=exif)
    assert np.array_equal(decode_image(turned), decode_image(by_pillow(pixels, "jpeg")))


# ---------------------------------------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    ("name", "channels", "says"),
    [
        ("jpeg", 4, "a JPEG image, which gives 1 or 3 channels, where 4 are asked for"),
        ("jpeg_cmyk", 1, "a CMYK JPEG image, which gives 3 channels, where 1 are asked for"),
        ("gif", 1, "a GIF image, which gives 3 channels"),
        ("gif", 4, "a GIF image, which gives 3 channels"),
        ("bmp24", 1, "a BMP image, which gives 3 or 4 channels"),
        ("bmp8", 1, "a BMP image, which gives 3 or 4 channels"),
        ("webp", 4, "a WebP image, which gives 3 channels"),
        ("webp_alpha", 3, "a WebP image, which gives 4 channels"),
    ],
)
def test_channels_that_tensorflow_does_not_make_are_refused(name: str, channels: int, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        decode_image(FILES[name], channels=channels)
    with pytest.raises(ImageError, match=says):
        image_shape(FILES[name], channels=channels)


@pytest.mark.parametrize("name", FILES)
def test_dtypes_scale_to_their_range(name: str) -> None:
    file = FILES[name]
    levels = decode_image(file, dtype="uint16").astype(np.float64)
    eight = not name.startswith("png") or "_16" not in name
    whole = decode_image(file) if eight else decode_image(file, dtype="uint16")
    step = 1 if not eight else 257 if name.startswith("png") else 256
    assert np.array_equal(levels, whole.astype(np.float64) * step)
    largest = 255 if eight else 65535
    assert np.array_equal(decode_image(file, dtype="float32"), whole.astype(np.float32) * np.float32(1 / largest))
    assert np.array_equal(decode_image(file, dtype="float64"), whole * (1 / largest))
    single = whole.astype(np.float32) * np.float32(1 / largest)
    assert np.array_equal(decode_image(file, dtype="float16"), single.astype(np.float16))
    if not eight:
        assert np.array_equal(decode_image(file), whole >> 8)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("dtype", IMAGE_DTYPES)
def test_pixels_go_straight_into_their_slot(name: str, dtype: np.dtype[Any]) -> None:
    file = FILES[name]
    shape = image_shape(memoryview(file))
    alone = decode_image(file, dtype=dtype)
    assert (alone.shape, alone.dtype) == (shape, dtype)
    assert alone.flags.writeable
    block = np.full((3, *shape[::-1]), 7, dtype).transpose(0, 3, 2, 1)
    assert decode_image(memoryview(file), dtype=dtype, out=block[1]) is not None
    assert np.array_equal(block[1], alone)
    assert (block[[0, 2]] == 7).all()


def resized(image: NDArray[Any], height: int, width: int) -> NDArray[np.float64]:
    """Bilinear, half-pixel centres, edges repeated, pixel by pixel in double precision."""
    out = np.empty((height, width, image.shape[2]))
    for i in range(height):
        for j in range(width):
            y = min(max((i + 0.5) * image.shape[0] / height - 0.5, 0), image.shape[0] - 1)
            x = min(max((j + 0.5) * image.shape[1] / width - 0.5, 0), image.shape[1] - 1)
            below, right = min(int(y) + 1, image.shape[0] - 1), min(int(x) + 1, image.shape[1] - 1)
            corners = image[[int(y), int(y), below, below], [int(x), right, int(x), right]].astype(float)
            weights = [(1 - y % 1) * (1 - x % 1), (1 - y % 1) * (x % 1), (y % 1) * (1 - x % 1), (y % 1) * (x % 1)]
            out[i, j] = np.tensordot(weights, corners, 1)
    return out


@pytest.mark.parametrize("size", [(1, 1), (3, 4), (5, 7), (10, 14), (13, 5), (2, 29)])
def test_resizing_is_bilinear(size: tuple[int, int]) -> None:
    for colour, depth in KINDS:
        file = FILES[f"png_{colour}_{depth}"]
        assert image_shape(file, size=size)[:2] == size
        for dtype in ("uint8", "uint16", "float32"):
            expected = resized(decode_image(file, dtype=dtype), *size)
            found = decode_image(file, dtype=dtype, size=size)
            assert found.dtype == dtype
            if dtype == "float32":
                assert np.allclose(found, expected, rtol=0, atol=2e-6)
            else:
                assert np.abs(found - expected).max() <= 0.51
        narrow = decode_image(file, dtype="float16", size=size)
        assert np.array_equal(narrow, decode_image(file, dtype="float32", size=size).astype(np.float16))


def test_a_size_that_the_image_has_changes_nothing() -> None:
    file = FILES["png_2_16"]
    assert np.array_equal(decode_image(file, dtype="uint16", size=(5, 7)), decode_image(file, dtype="uint16"))


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="channels is 0, 1, 3 or 4, not 2"):
        decode_image(FILES["jpeg"], channels=2)
    with pytest.raises(ValueError, match="not int32"):
        decode_image(FILES["jpeg"], dtype="int32")
    with pytest.raises(ValueError, match="at least 1, not"):
        decode_image(FILES["jpeg"], size=(0, 3))
    with pytest.raises(ValueError, match="float32 cannot take an image of uint8"):
        decode_image(FILES["jpeg"], out=np.empty((13, 17, 3), np.float32))


def test_a_shape_that_was_not_promised_is_told_before_pixels_are_decoded() -> None:
    header = png(noise(1, 1, 3))[16:]
    huge = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">II", 12000, 12000) + header[8:13]) + header[17:]
    with pytest.raises(ImageError, match=r"a PNG image of shape \(12000, 12000, 3\) where \(4, 4, 3\) is promised"):
        decode_image(huge, out=np.empty((4, 4, 3), np.uint8))


# --------------------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("name", FILES)
@pytest.mark.usefixtures("no_global_settings")
def test_every_file_that_is_cut_short_is_refused(name: str) -> None:
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


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(FILES)), st.data())
def test_damage_gives_an_image_or_an_image_error(name: str, data: st.DataObject) -> None:
    file = bytearray(FILES[name])
    for _ in range(data.draw(st.integers(1, 4))):
        file[data.draw(st.integers(2, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_image(bytes(file), channels=data.draw(st.sampled_from([0, 1, 3, 4])))
    except ImageError as error:
        assert str(error)
    else:
        assert found.ndim == 3


@pytest.mark.parametrize("interlaced", [False, True])
@pytest.mark.parametrize("missing", [1, 2, 5])
@pytest.mark.usefixtures("no_global_settings")
def test_a_png_with_rows_missing_is_refused(interlaced: bool, missing: int) -> None:
    file = png(noise(12, 6, 3), interlaced=interlaced)
    start = file.index(b"IDAT") + 4
    rows = zlib.decompress(file[start:-16])
    # The last rows are as long with interlacing as without.
    fewer = file[: start - 8] + chunk(b"IDAT", zlib.compress(rows[: -19 * missing])) + chunk(b"IEND", b"")
    with pytest.raises(ImageError, match=f"cut short: {len(rows) - 19 * missing} bytes of pixels where {len(rows)}"):
        decode_image(fewer)
    assert np.array_equal(decode_image(file), noise(12, 6, 3))


def test_a_png_whose_last_rows_are_black_is_whole() -> None:
    pixels = np.zeros((6, 5, 3), np.uint8)
    assert np.array_equal(decode_image(png(pixels)), pixels)
    assert np.array_equal(decode_image(png(pixels, interlaced=True)), pixels)


def test_png_chunks_that_can_be_missed_are_missed() -> None:
    file = png(noise(2, 2, 3), extra=[(b"teXt", b"hello"), (b"gAMA", b"?")])
    at = file.index(b"teXt")
    assert np.array_equal(decode_image(file[:at] + b"teXx" + file[at + 4 :]), noise(2, 2, 3))
    assert np.array_equal(decode_image(file + b"garbage"), noise(2, 2, 3))
    with pytest.raises(ImageError, match="unknown critical chunk b'TEXT'"):
        decode_image(png(noise(2, 2, 3), extra=[(b"TEXT", b"")]))
    with pytest.raises(ImageError, match=r"damaged chunk b'IHDR' at byte 8: its CRC does not hold"):
        decode_image(file[:20] + b"\1" + file[21:])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no bytes where an encoded image is expected"),
        (b"II*\0 a TIFF", r"bytes that begin with b'II\*\\x00 a T' where a JPEG, PNG, GIF, BMP or WebP"),
        (b"\xff\x0a jxl", "a JPEG XL image, which Pillow cannot decode"),
        (b"\xff\xd8\xff\xd9 and no more", "a JPEG image without a frame"),
        (b"\x89PNG\r\n\x1a\n" + chunk(b"IDAT", b"") + chunk(b"IEND", b""), "a PNG image without a header"),
        (png(noise(1, 1, 1), 8, PALETTE), "a PNG image with a palette of 0 bytes"),
        (png(noise(1, 1, 1), 8, 5), "header that no PNG may have: depth 8, colour type 5"),
    ],
)
def test_what_is_no_image_says_what_it_is(data: bytes, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        decode_image(data)


def test_errors_travel() -> None:
    with pytest.raises(ImageError) as caught:
        decode_image(b"x")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("name", ["jpeg", "png_2_8", "png_2_16", "gif", "bmp24", "webp"])
def test_bombs_are_refused_where_pillow_refuses_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file = FILES[name]
    height, width, _ = image_shape(file)
    # Twice the limit is the last that Pillow lets pass, with a warning that nobody reads.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", height * width // 2 + 1)
    decode_image(file)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", (height * width - 1) // 2)
    with pytest.raises(ImageError, match=f"{width} x {height} pixels where .* PIL.Image.MAX_IMAGE_PIXELS says"):
        decode_image(file)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    decode_image(file)


def test_without_pillow_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require_pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    try:
        with pytest.raises(ImportError, match=r"^decoding images needs Pillow: pip install 'dask-tfrecord\[image\]'$"):
            decode_image(FILES["jpeg"])
    finally:
        require_pillow.cache_clear()


def test_importing_the_library_does_not_import_pillow(tmp_path: Path) -> None:
    code = "import sys, dask_tfrecord.columns.images; sys.exit('PIL' in sys.modules)"
    # Away from the sources, which are not what is installed.
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=found, check=False).returncode == 0


def test_threads_decode_side_by_side() -> None:
    made = [by_pillow(smooth(64, 64, 3, seed=seed), "jpeg") for seed in range(8)]
    expected = [decode_image(file) for file in made]
    block = np.zeros((len(made), 64, 64, 3), np.uint8)

    def work(first: int) -> None:
        for _ in range(5):
            for i in range(first, len(made), 2):
                decode_image(made[i], out=block[i])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(block, expected)


# ----------------------------------------------------------------------------------------------------------- TensorFlow


@dataclass(frozen=True, slots=True)
class Job:
    """One image as both sides are asked for it.

    Attributes
    ----------
    name : str
        For the text of failures.
    data : bytes
        The file.
    channels : int
        As in `decode_image`.
    dtype : str
        Of the result. A float is made by `tf.image.convert_image_dtype` from the integers that the file has.
    wide : bool
        The file has 16 bits per channel.
    size : tuple of int or None
        To resize to.
    """

    name: str
    data: bytes
    channels: int = 0
    dtype: str = "uint8"
    wide: bool = False
    size: tuple[int, int] | None = None


ASK = """
import pickle, sys
import tensorflow as tf

def answer(name, data, channels, dtype, wide, size):
    whole = dtype if dtype.startswith("uint") else "uint16" if wide else "uint8"
    if name.startswith("jpeg") and whole == "uint8":
        image = tf.io.decode_jpeg(data, channels=channels, dct_method="INTEGER_ACCURATE")
    else:
        image = tf.io.decode_image(data, channels=channels, dtype=whole, expand_animations=False)
    if not dtype.startswith("uint"):
        image = tf.image.convert_image_dtype(image, dtype)
    if size is not None:
        image = tf.image.resize(image, size, method="bilinear", antialias=False)
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
def both(tmp_path: Path) -> Any:
    """Ask TensorFlow and this library; pairs of arrays, or of texts where one side raised."""
    interpreter = os.environ.get("DASK_TFRECORD_TENSORFLOW")
    if not interpreter:
        pytest.skip("DASK_TFRECORD_TENSORFLOW names no interpreter")

    def ask(jobs: Sequence[Job]) -> Iterator[tuple[Job, Any, Any]]:
        asked = pickle.dumps([(j.name, j.data, j.channels, j.dtype, j.wide, j.size) for j in jobs])
        quiet = {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [interpreter, "-c", ASK, str(tmp_path / "answers")]
        subprocess.run(command, input=asked, env=os.environ | quiet, check=True, capture_output=True)
        answers = pickle.loads((tmp_path / "answers").read_bytes())
        assert len(answers) == len(jobs)
        for job, said in zip(jobs, answers, strict=True):
            try:
                found = decode_image(job.data, channels=job.channels, dtype=job.dtype, size=job.size)
            except ImageError as error:
                yield job, said, str(error)
            else:
                yield job, said, found

    return ask


def away(job: Job, said: Any, found: Any) -> float:
    """How far the two are from each other; they have to agree whether there is an image, and on its shape."""
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
    for colour, depth in KINDS:
        for number in range(24):
            height, width = (int(n) for n in chance.integers(1, 20, 2))
            samples = noise(height, width, SAMPLES[colour], high=1 << min(depth, 3 if number % 3 else 16), seed=number)
            extra = []
            if number % 4 == 1:
                extra.append((b"gAMA", struct.pack(">I", int(chance.integers(20000, 250000)))))
            if number % 8 == 6:
                extra.append((b"sRGB", b"\0"))
            if colour == PALETTE:
                # Too few colours now and then.
                extra.append((b"PLTE", noise(3 * int(chance.integers(1, (1 << depth) + 1)), seed=number).tobytes()))
            keys = {GRAY: 1, RGB: 3}.get(colour)
            if keys and number % 2:
                extra.append((b"tRNS", samples[0, 0].astype(">u2").tobytes()))
            elif colour == PALETTE and number % 2:
                extra.append((b"tRNS", noise(min(len(extra[-1][1]) // 3, 5), seed=number + 1).tobytes()))
            file = png(
                samples,
                depth,
                colour,
                interlaced=number % 5 > 2,
                filters=chance.integers(0, 5, 7).tolist(),
                extra=extra,
                pieces=1 + number % 3,
            )
            for channels in (0, 1, 3, 4):
                for dtype in ("uint8", "uint16", "float32", "float64"):
                    name = f"png {colour} {depth} {number} {[kind for kind, _ in extra]}"
                    jobs.append(Job(name, file, channels, dtype, depth == 16))
    for job, said, found in both(jobs):
        colour, depth = map(int, job.name.split()[1:3])
        if depth < 8 and job.channels == 4 and "tRNS" not in job.name:
            # libpng fills alpha with the largest sample of the file, before it scales samples up: here it is opaque.
            assert said[0, 0, 3] < found[0, 0, 3]
            said = np.concatenate([said[..., :3], found[..., 3:]], axis=2)
        curved = "gAMA" in job.name or "sRGB" in job.name
        allowed = 1 if depth == 16 and job.dtype == "uint8" and curved and job.channels == 1 else 0
        assert away(job, said, found) <= allowed, (job.name, job.channels, job.dtype)


@pytest.mark.tensorflow
def test_gif_bmp_and_webp_equal_tensorflow(both: Any) -> None:
    square, larger = gif_frame((0, 0, 2, 2), [0, 1, 2, 3]), gif_frame((0, 0, 3, 4), [1] * 12)
    made = {
        **{name: FILES[name] for name in FILES if not name.startswith(("png", "jpeg"))},
        "gif screen": gif((7, 5), square),
        "gif larger": gif((2, 2), square, larger),
        "gif smaller": gif((3, 4), larger, square),
        "gif shifted": gif((4, 4), gif_frame((1, 2, 2, 2), [0, 1, 2, 3])),
        "gif shifted more": gif((4, 4), gif_frame((3, 3, 2, 2), [0, 1, 2, 3]), larger),
        "gif transparent": gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1, 2, 3], transparent=2), square),
        "gif transparent later": gif((2, 2), square, gif_frame((0, 0, 2, 2), [0, 1, 2, 3], transparent=2)),
        "gif opaque control first": gif((2, 2), b"!\xf9\x04\0\0\0\0\0", gif_frame((0, 0, 1, 1), [0], transparent=0)),
        "gif own palette": gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1, 2, 3], palette=bytes(range(50, 62)))),
        "gif no palette": gif((2, 2), square, palette=b""),
        "gif interlaced": gif((3, 11), gif_frame((0, 0, 3, 11), noise(33, high=4).tolist(), interlaced=True)),
        "gif pixels missing": gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1])),
        "gif pixels over": gif((2, 2), gif_frame((0, 0, 2, 2), [0, 1, 2, 3, 0, 1])),
        "gif no trailer": gif((2, 2), square, tail=b""),
        "gif garbage": gif((2, 2), square, tail=b";garbage"),
        "gif comment": gif((2, 2), b"!\xfe\5hello\0", square),
        "gif no frame": gif((2, 2)),
        "gif encoder": by_pillow(Image.fromarray(smooth(40, 50, 3)).quantize(200), "gif"),
        "bmp top down": bmp(noise(16).tobytes(), 2, -2, 24),
        "bmp garbage": bmp(noise(16).tobytes(), 2, 2, 24) + b"x",
        "bmp short": bmp(noise(16).tobytes(), 2, 2, 24)[:-1],
        "bmp 16": bmp(noise(16).tobytes(), 4, 2, 16),
        "bmp palette": bmp(noise(16).tobytes(), 6, 2, 8, between=noise(1024).tobytes()),
        "webp garbage": FILES["webp"] + b"garbage",
        "webp short": FILES["webp"][:-3],
        "webp animation": by_pillow(
            Image.fromarray(noise(5, 6, 4)),
            "webp",
            lossless=True,
            save_all=True,
            append_images=[Image.fromarray(noise(5, 6, 4, seed=1))],
        ),
        "webp smooth": by_pillow(smooth(61, 47, 3), "webp", quality=70),
        "webp smooth alpha": by_pillow(smooth(61, 47, 4), "webp", quality=70),
    }
    jobs = []
    for name, file in made.items():
        for channels in (0, 1, 3, 4):
            jobs.append(Job(name, file, channels))
            jobs.append(Job(name, file, channels, "float32"))
            # Of WebP TensorFlow makes no 16 bits, and of a BMP from the top a length below zero.
            if not name.startswith("webp") and name != "bmp top down":
                jobs.append(Job(name, file, channels, "uint16"))
    for job, said, found in both(jobs):
        assert away(job, said, found) == 0, (job.name, job.channels, job.dtype)


@pytest.mark.tensorflow
def test_jpeg_is_within_two_levels_of_tensorflow(both: Any) -> None:
    made = {}
    for quality in (30, 75, 95, 100):
        for subsampling in (0, 1, 2):
            for height, width in ((64, 64), (37, 51), (1, 9)):
                name = f"jpeg {quality} {subsampling} {height}"
                pixels = smooth(height, width, 3, seed=quality)
                made[name] = by_pillow(pixels, "jpeg", quality=quality, subsampling=subsampling)
        made[f"jpeg progressive {quality}"] = by_pillow(smooth(33, 65, 3), "jpeg", quality=quality, progressive=True)
        made[f"jpeg gray {quality}"] = by_pillow(smooth(33, 65), "jpeg", quality=quality)
        made[f"jpeg noise {quality}"] = by_pillow(noise(33, 65, 3), "jpeg", quality=quality)
        inks = Image.fromarray(smooth(33, 65, 4), "CMYK")
        made[f"jpeg cmyk {quality}"] = adobe = by_pillow(inks, "jpeg", quality=quality)
        start = adobe.index(b"\xff\xee")
        made[f"jpeg plain cmyk {quality}"] = adobe[:start] + adobe[start + 16 :]
    made["jpeg rgb"] = by_pillow(smooth(33, 65, 3), "jpeg", keep_rgb=True)
    made["jpeg restart"] = by_pillow(smooth(33, 65, 3), "jpeg", restart_marker_blocks=2)
    file = made["jpeg rgb"]
    made["jpeg garbage"] = file + b"garbage"
    made |= {f"jpeg cut {n}": file[:-n] for n in (1, 2, 3, 50)}
    jobs = [Job(name, file, channels) for name, file in made.items() for channels in (0, 1, 3, 4)]
    worst = max(away(*answers) for answers in both(jobs))
    print(f"JPEG: {len(jobs)} decodes, {worst:.0f} levels away at most")
    assert worst <= 2


@pytest.mark.tensorflow
def test_resizing_equals_tensorflow(both: Any) -> None:
    jobs = []
    for shape in ((5, 7), (37, 53), (64, 64), (1, 30)):
        for size in ((1, 1), (8, 8), (37, 53), (20, 90), (128, 96)):
            for channels in (1, 3):
                file = png(noise(*shape, channels))
                jobs += [Job(f"{shape} {size}", file, 0, dtype, False, size) for dtype in ("float32", "uint8")]
                deep = png(noise(*shape, channels, high=65536), 16)
                jobs += [Job(f"{shape} {size} 16", deep, 0, dtype, True, size) for dtype in ("float32", "uint16")]
    worst = 0.0
    for job, said, found in both(jobs):
        if job.dtype == "float32":
            worst = max(worst, away(job, said, found))
        else:
            assert found.dtype == job.dtype
            assert away(job, np.rint(said), found) <= 1, job.name
            assert np.abs(said - found).max() < 0.51, job.name
    print(f"resizing: {len(jobs)} images, {worst:.1e} away at most")
    assert worst < 1e-6
