"""Times of the parts of a task, for the fine performance metrics on the dashboard of distributed.

distributed keeps them by the name of the task and of the activity, and shows what remains as other time:
https://distributed.dask.org/en/stable/fine-performance-metrics.html
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Literal


def activity(name: Literal["read", "decode", "encode", "write"]) -> AbstractContextManager[object]:
    """Measure an activity of the task that runs in this thread; the time of an activity within it is not counted.

    Reading a local shard is a part of decoding it, which the native core does in one pass.
    """
    # Tasks of a cluster have imported it; others pay for a lookup alone.
    metrics = sys.modules.get("distributed.metrics")
    measured: AbstractContextManager[object] = nullcontext() if metrics is None else metrics.context_meter.meter(name)
    return measured
