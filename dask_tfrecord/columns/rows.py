"""What is wrong with a row of a block, told by its number: whoever knows the records says where it is."""

from __future__ import annotations

__all__ = ["RowError"]


class RowError(ValueError):
    """A row that a column can't be made of.

    Parameters
    ----------
    row : int
        Its number in the block.
    message : str
        What is wrong with it, as the rest of a sentence that begins with the feature.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(row, message)
        self.row = row
        self.message = message
