"""Image files whose samples are known without a decoder: PNG, GIF and BMP by hand, JPEG and WebP by Pillow."""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

GRAY, RGB, PALETTE, GRAY_ALPHA, RGBA = 0, 2, 3, 4, 6
SAMPLES = {GRAY: 1, RGB: 3, PALETTE: 1, GRAY_ALPHA: 2, RGBA: 4}
DEPTHS = {GRAY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GRAY_ALPHA: (8, 16), RGBA: (8, 16)}
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
KINDS = [(colour, depth) for colour in DEPTHS for depth in DEPTHS[colour]]


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def blank_png(width: int, height: int) -> bytes:
    """Return a PNG of black pixels, which takes 1/1000 of their bytes."""
    packed = zlib.compressobj(6)
    row = bytes(1 + width)
    body = b"".join(packed.compress(row) for _ in range(height)) + packed.flush()
    header = struct.pack(">IIBBBBB", width, height, 8, GRAY, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def many_scans_jpeg(side: int, scans: int) -> bytes:
    """Return a progressive JPEG with empty scans: each takes a few bytes, and the time of all pixels."""
    head, _, end = by_pillow(np.zeros((side, side), np.uint8), "jpeg", progressive=True).rpartition(b"\xff\xda")
    return head + (b"\xff\xda" + end.removesuffix(b"\xff\xd9")) * scans + b"\xff\xd9"


def filtered(rows: list[bytes], pixel: int, filters: Sequence[int]) -> bytes:
    """Filter the rows of one pass, row i by filter i, as the PNG specification defines them."""
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
    chunks: int = 1,
) -> bytes:
    """Write a PNG of samples of shape (height, width, samples per pixel)."""
    height, width, count = samples.shape
    if colour is None:
        colour = {1: GRAY, 2: GRAY_ALPHA, 3: RGB, 4: RGBA}[count]
    passes = [samples[top::down, left::across] for left, top, across, down in ADAM7] if interlaced else [samples]
    raw = b"".join(filtered(packed(each, depth), max(depth * count // 8, 1), filters) for each in passes if each.size)
    stream = zlib.compress(raw)
    step = math.ceil(len(stream) / chunks)
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
    """Encode pixels by LZW with a clear code before each, so that codes keep their width."""
    codes = [code for index in indices for code in (1 << bits, index)] + [(1 << bits) + 1]
    number = sum(code << (bits + 1) * i for i, code in enumerate(codes))
    data = number.to_bytes(math.ceil(len(codes) * (bits + 1) / 8), "little")
    blocks = b"".join(bytes([len(data[i : i + 255])]) + data[i : i + 255] for i in range(0, len(data), 255))
    return bytes([bits]) + blocks + b"\0"


def gif_frame(
    area: tuple[int, int, int, int],
    indices: Sequence[int],
    *,
    palette: bytes = b"",
    interlaced: bool = False,
    transparent: int | None = None,
) -> bytes:
    """Write a frame at (left, top) of (width, height), after a graphic control if a colour is transparent."""
    control = b"" if transparent is None else b"!\xf9\x04\x01\0\0" + bytes([transparent]) + b"\0"
    flags = (0x40 if interlaced else 0) | (0x81 if palette else 0)
    return control + b"," + struct.pack("<4HB", *area, flags) + palette + gif_data(indices)


def gif(size: tuple[int, int], *frames: bytes, palette: bytes = bytes(range(1, 13)), tail: bytes = b";") -> bytes:
    return b"GIF89a" + struct.pack("<2HBBB", *size, 0x81 if palette else 0, 0, 0) + palette + b"".join(frames) + tail


def bmp(stored: bytes, width: int, height: int, bits: int, *, compression: int = 0, between: bytes = b"") -> bytes:
    """Write a BMP of stored rows; `between` follows the header: masks or a palette."""
    start = 54 + len(between)
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(stored), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", start + len(stored), 0, 0, start) + header + between + stored


def by_pillow(pixels: NDArray[Any] | Any, format: str, **options: Any) -> bytes:
    from PIL import Image

    image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def noise(*shape: int, high: int = 256, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.uint16 if high > 256 else np.uint8)


def smooth(*shape: int, seed: int = 0) -> NDArray[np.uint8]:
    """Return slow waves with a little noise, similar to photographs."""
    y, x = np.mgrid[: shape[0], : shape[1]]
    waves = [np.sin(x / (7 + 3 * c)) + np.cos(y / (5 + 2 * c)) for c in range(math.prod(shape[2:]))]
    pixels = 128 + 50 * np.stack(waves, -1).reshape(shape) + np.random.default_rng(seed).normal(0, 4, shape)
    return pixels.clip(0, 255).astype(np.uint8)


def files() -> dict[str, bytes]:
    """Return one small file of every format and kind."""
    from PIL import Image

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


def jpegs() -> dict[str, bytes]:
    """Return JPEG files of many qualities, subsamplings and colour spaces: whole, cut, and with bytes after the end."""
    from PIL import Image

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
    made["jpeg rgb"] = file = by_pillow(smooth(33, 65, 3), "jpeg", keep_rgb=True)
    made["jpeg restart"] = by_pillow(smooth(33, 65, 3), "jpeg", restart_marker_blocks=2)
    made["jpeg garbage"] = file + b"garbage"
    return made | {f"jpeg cut {n}": file[:-n] for n in (1, 2, 3, 50)}
