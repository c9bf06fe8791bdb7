"""Formats of other files by their first bytes, for errors about files that are no shards."""

from __future__ import annotations

# Bytes at an offset, the format with its article, and what to do with the file. ArrayRecord files are Riegeli files.
_SIGNATURES: dict[bytes, tuple[int, str, str]] = {
    b"\x89PNG\r\n\x1a\n": (0, "a PNG image", ""),
    b"\xff\xd8\xff": (0, "a JPEG image", ""),
    b"GIF8": (0, "a GIF image", ""),
    b"RIFF": (0, "a RIFF file (WebP, WAV, AVI)", ""),
    b"PK\x03\x04": (0, "a zip archive", ""),
    b"ustar": (257, "a tar archive, as WebDataset writes", "extract it, or read it with tarfile"),
    b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f": (0, "a Riegeli or ArrayRecord file", "read it with array_record"),
    b"\x0a\x23\xd7\xce": (0, "a RecordIO file of MXNet", ""),
    b"\x1f\x8b": (0, "gzip data", ""),
    b"BZh": (0, "bzip2 data", ""),
    b"\xfd7zXZ\x00": (0, "xz data", ""),
    b"\x28\xb5\x2f\xfd": (0, "zstd data", ""),
    b"\x04\x22\x4d\x18": (0, "lz4 data", "decompress it, or register the compression"),
    b"\xff\x06\x00\x00sNaPpY": (0, "snappy data", "decompress it, or register the compression"),
    b"7z\xbc\xaf\x27\x1c": (0, "a 7z archive", ""),
    b"\xde\xc0\xef\xbe": (16, "an LMDB database", "read it with lmdb"),
    b"\x89HDF\r\n\x1a\n": (0, "an HDF5 file", "read it with h5py"),
    b"CDF\x01": (0, "a NetCDF file", ""),
    b"CDF\x02": (0, "a NetCDF file", ""),
    b"PAR1": (0, "a Parquet file", "read it with pyarrow"),
    b"ORC": (0, "an ORC file", ""),
    b"ARROW1": (0, "an Arrow file", "read it with pyarrow"),
    b"Obj\x01": (0, "an Avro file", ""),
    b"\x93NUMPY": (0, "a NumPy .npy file", ""),
    b"%PDF": (0, "a PDF document", ""),
    b"\x7fELF": (0, "a program", ""),
    b"SQLite format 3\x00": (0, "an SQLite database", ""),
    b"version https://git-lfs": (0, "a Git LFS pointer", "fetch the file with `git lfs pull`"),
}
# Bytes that `foreign_format` needs.
HEAD_NBYTES = 512


def foreign_format(head: bytes) -> tuple[str, str] | None:
    """Return the format that the first bytes of a file belong to, with its article, and an advice, which may be empty.

    None if the format is unknown.
    """
    for magic, (offset, what, advice) in _SIGNATURES.items():
        if head[offset : offset + len(magic)] == magic:
            return what, advice
    return None
