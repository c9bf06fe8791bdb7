"""What one task has written: added up, it is how far a conversion has come."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WriteReport"]


@dataclass(frozen=True, slots=True)
class WriteReport:
    """What one task has written.

    Attributes
    ----------
    records : int
        Rows; none for a unit of flat values.
    nbytes : int
        Decoded bytes.
    stored : int
        Bytes that came to lie in the store.
    """

    records: int
    nbytes: int
    stored: int = 0
