"""What is written of a unit, and by a task: added up, it is how far a conversion has come."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["WriteReport", "peak_memory"]


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What is written of a unit, or by a task.

    Attributes
    ----------
    records : int
        Rows; none of flat values.
    nbytes : int
        Decoded bytes.
    stored : int
        Bytes that came to lie in the store.
    peak : int
        The most memory, in bytes, that the process of the task has held since it began; 0 where the system does not
        tell.
    """

    records: int
    nbytes: int
    stored: int = 0
    peak: int = 0

    @classmethod
    def joined(cls, reports: Sequence[WriteReport]) -> WriteReport:
        """Add reports up."""
        return cls(
            sum(report.records for report in reports),
            sum(report.nbytes for report in reports),
            sum(report.stored for report in reports),
            max((report.peak for report in reports), default=0),
        )


def peak_memory() -> int:
    """Find the most memory, in bytes, that this process has held; 0 where the system does not tell."""
    if sys.platform == "win32":
        return 0
    if sys.platform == "linux":
        # What getrusage tells may be of the process that this one was forked from.
        for line in Path("/proc/self/status").read_text("ascii", "replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, others KiB.
    return peak if sys.platform == "darwin" else peak * 1024
