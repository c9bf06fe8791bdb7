"""CRC-32C as TFRecord stores it."""

from __future__ import annotations


def mask_crc32c(crc: int) -> int:
    """Rotate a CRC-32C and add a constant, as TFRecord does because CRCs of data with embedded CRCs are weak."""
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview) -> int:
    """Return the masked CRC-32C of `data`, as TFRecord stores it."""
    # The package imports argparse, which reading does not need.
    import crc32c

    return mask_crc32c(crc32c.crc32c(data))
