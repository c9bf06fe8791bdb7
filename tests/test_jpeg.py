"""JPEG decoded by simplejpeg and by Pillow, and pixels that the native core scales and resizes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from support.images import by_pillow, jpegs, noise, png, smooth

import dask_tfrecord as dtf
from dask_tfrecord.images.codecs import ImageError, simplejpeg_or_none
from dask_tfrecord.images.pixels import decode_image

pytest.importorskip("PIL")
pytest.importorskip("simplejpeg")


@contextmanager
def without_simplejpeg() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "simplejpeg", None)
        simplejpeg_or_none.cache_clear()
        yield
    simplejpeg_or_none.cache_clear()


def answer(file: bytes, **arguments: Any) -> NDArray[np.uint8] | str:
    """Return the pixels, or the text of the error."""
    try:
        return decode_image(file, **arguments)
    except ImageError as error:
        return str(error)


def test_both_decoders_return_the_same_pixels_and_errors() -> None:
    whole = smooth(40, 56, 3)
    files = jpegs()
    # Damage within the scan: libjpeg continues with a warning.
    file = bytearray(by_pillow(whole, "jpeg", quality=90))
    for at in range(len(file) // 2, len(file) - 2, 97):
        files[f"damaged {at}"] = bytes(file[:at]) + bytes([file[at] ^ 0x5A]) + bytes(file[at + 1 :])
    refused = 0
    for name, file in files.items():
        for channels in (0, 1, 3):
            found = answer(file, channels=channels)
            with without_simplejpeg():
                expected = answer(file, channels=channels)
            assert type(found) is type(expected), name
            assert np.array_equal(found, expected), name
            refused += isinstance(found, str)
    assert refused > 10


def test_the_fast_dct_differs_by_a_few_levels() -> None:
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
    with without_simplejpeg(), pytest.raises(ImportError) as raised:
        decode_image(by_pillow(smooth(8, 8, 3), "jpeg"), fast=True)
    assert str(raised.value) == "fast=True needs simplejpeg: pip install 'dask-tfrecord[image]'"


def test_a_feature_requests_the_fast_dct(tmp_path: Path) -> None:
    file = by_pillow(noise(16, 24, 3), "jpeg", quality=60)
    with dtf.RecordWriter(tmp_path / "a.tfrecord") as writer:
        example = dtf.messages.Example()
        example.features.feature["image"].bytes_list.value.append(file)
        writer.write(example.SerializeToString())
    feature = dtf.ImageFeature((16, 24, 3), fast=True)
    assert repr(feature) == "ImageFeature(shape=(16, 24, 3), fast=True)"
    ds = dtf.read_tfrecord(tmp_path / "a.tfrecord", {"image": feature})
    found = ds["image"].compute()
    assert np.array_equal(found[0], decode_image(file, fast=True))
    assert not np.array_equal(found[0], decode_image(file))
    ds.to_zarr(tmp_path / "a.zarr")
    assert np.array_equal(dtf.from_zarr(tmp_path / "a.zarr")["image"].compute(), found)


def test_pixels_are_written_to_the_slot() -> None:
    file = by_pillow(smooth(9, 7, 3), "jpeg")
    block = np.full((3, 9, 7, 3), 7, np.uint8)
    assert decode_image(file, out=block[1]).base is block
    assert np.array_equal(block[1], decode_image(file))
    assert (block[[0, 2]] == 7).all()


def test_two_threads_decode_at_once() -> None:
    file = by_pillow(smooth(512, 512, 3), "jpeg", quality=95)
    expected = decode_image(file)
    blocks = [np.zeros((8, 512, 512, 3), np.uint8) for _ in range(2)]

    def work(block: NDArray[np.uint8]) -> None:
        for slot in block:
            decode_image(file, out=slot)

    threads = [threading.Thread(target=work, args=(block,)) for block in blocks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((block == expected).all() for block in blocks)


# ----------------------------------------------------------------------------------------------------------- resizing


def neighbours(source: int, target: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Return the pixels left and right of each target pixel, and its distance, in single precision."""
    scale = np.float32(source) / np.float32(target)
    position = (np.arange(target, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5)
    right = np.minimum(np.ceil(position), source - 1).astype(np.intp)
    left = np.minimum(np.maximum(np.floor(position), 0), right).astype(np.intp)
    return left, right, position - np.floor(position)


def resized(levels: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    """Resize whole arrays, each operation in single precision: first columns, then rows."""
    left, right, across = neighbours(levels.shape[1], width)
    wide = levels[:, left] + (levels[:, right] - levels[:, left]) * across[:, None]
    top, bottom, down = neighbours(levels.shape[0], height)
    return wide[top] + (wide[bottom] - wide[top]) * down[:, None, None]


sizes = st.tuples(st.integers(1, 40), st.integers(1, 40))


@given(sizes, sizes, st.sampled_from([1, 2, 3, 4]), st.sampled_from([8, 16]), st.integers(0, 99))
def test_resizing_rounds_once_per_operation(
    shape: tuple[int, int], size: tuple[int, int], channels: int, depth: int, seed: int
) -> None:
    pixels = noise(*shape, channels, high=1 << depth, seed=seed)
    file = png(pixels, depth)
    if size == shape:
        return
    kind = np.uint8 if depth == 8 else np.uint16
    unit = np.float32(1 / np.iinfo(kind).max)
    levels = resized(pixels.astype(np.float32), *size)
    fractions = resized(pixels.astype(np.float32) * unit, *size)
    assert np.array_equal(decode_image(file, dtype=kind, size=size), np.rint(levels).astype(kind))
    for dtype in ("float16", "float32", "float64"):
        found = decode_image(file, dtype=dtype, size=size)
        assert np.array_equal(found, fractions.astype(dtype)), dtype
    if depth == 8:
        wider = resized(pixels.astype(np.float32) * np.float32(257), *size)
        assert np.array_equal(decode_image(file, dtype="uint16", size=size), np.rint(wider).astype(np.uint16))


@given(st.sampled_from([8, 16]), st.integers(0, 99))
def test_floats_are_levels_times_their_unit(depth: int, seed: int) -> None:
    pixels = noise(5, 7, 3, high=1 << depth, seed=seed)
    file = png(pixels, depth)
    top = (1 << depth) - 1
    single = pixels.astype(np.float32) * np.float32(1 / top)
    assert np.array_equal(decode_image(file, dtype="float32"), single)
    assert np.array_equal(decode_image(file, dtype="float16"), single.astype(np.float16))
    assert np.array_equal(decode_image(file, dtype="float64"), pixels * (1 / top))
    strided = np.zeros((3, 7, 5), np.float32).transpose(2, 1, 0)
    assert np.array_equal(decode_image(file, dtype="float32", out=strided), single)
