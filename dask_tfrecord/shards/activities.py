"""Measure parts of a task for the fine performance metrics on the dashboard of distributed.

distributed adds the times up by the names of the task and of the activity, and shows the rest as other time:
https://distributed.dask.org/en/stable/fine-performance-metrics.html
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Literal

from dask_tfrecord.settings import this_worker


def activity(name: Literal["read", "decode", "encode", "write"]) -> AbstractContextManager[object]:
    """Measure an activity of the task that runs in this thread, without the time of activities within it.

    Reading a local shard counts as decoding, because the native core does both in one pass.
    """
    # Other tasks only pay for the lookup.
    if this_worker() is None:
        return nullcontext()
    measured: AbstractContextManager[object] = sys.modules["distributed.metrics"].context_meter.meter(name)
    return measured
