"""State of modules that threads share: what several of them do at once gives what one of them gives."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.waiting import PATIENCE

import dask_tfrecord as dtf

# Internal, because no public value shows that memory is shared.
from dask_tfrecord.rows.permutation import shuffled

THREADS = 8


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Let threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(call: Callable[[int], Any]) -> list[Any]:
    """Return the results of calls in several threads that begin together."""
    start = threading.Barrier(THREADS)

    def run(number: int) -> Any:
        start.wait(PATIENCE)
        return call(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(run, range(THREADS)))


def test_equal_orders_share_memory() -> None:
    for seed in range(5):
        assert len({id(order) for order in at_once(lambda _, seed=seed: shuffled(20_000, seed))}) == 1


def test_formats_are_registered_while_images_are_detected() -> None:
    from dask_tfrecord.features.images.registry import FORMATS, detect_format

    class Format(dtf.ImageFormat):
        def __init__(self, name: str) -> None:
            self.name = name

        def is_start(self, data: bytes) -> bool:
            return data == self.name.encode()

    def register_and_detect(number: int) -> bool:
        for index in range(20):
            name = f"n{number}i{index}"
            dtf.register_image_format(Format(name))
            found = detect_format(name.encode())
            if found is None or found.name != name:
                return False
        return True

    before = dict(FORMATS.added)
    try:
        assert all(at_once(register_and_detect))
    finally:
        FORMATS.added.clear()
        FORMATS.added.update(before)
