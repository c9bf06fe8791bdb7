"""Formats of other files and of bytes in features, by their first bytes: one table for errors and for suggestions."""

from __future__ import annotations

from dataclasses import dataclass

from dask_tfrecord.shards.deflate import GZIP_MAGIC


@dataclass(frozen=True, slots=True)
class Format:
    """Another format than TFRecord, and the remedy."""

    what: str  # with its article
    advice: str = ""  # for a file
    several: str = ""  # name of many values; by default the name of one without its article
    # Expression that makes an array of one value, or None. Loading a pickle runs its code.
    decoded: str | None = None

    @property
    def contents(self) -> str:
        """Name of many values."""
        return self.several or self.what.removeprefix("a ").removeprefix("an ")


_PIL = "np.asarray(Image.open(io.BytesIO(value)))"
_SOUND = "soundfile.read(io.BytesIO(value))[0]"
_VIDEO = "np.stack([each.to_ndarray(format='rgb24') for each in av.open(io.BytesIO(value)).decode(video=0)])"
_ZLIB = "compression_type='ZLIB' of RawFeature and ProtoFeature inflates it"
_MP3 = Format("an MP3 file", several="MP3 sound", decoded=_SOUND)
NPY = Format("a NumPy .npy file", several="NumPy .npy files", decoded="np.load(io.BytesIO(value))")
NPZ = Format("a NumPy .npz file", several="NumPy .npz files", decoded='np.load(io.BytesIO(value))["arr_0"]')
WAV = Format("a WAV file", several="WAV sound", decoded="scipy.io.wavfile.read(io.BytesIO(value))[1]")
PICKLE = Format("a pickle", several="pickles")
ZLIB = Format("zlib data", several=f"zlib data: {_ZLIB}")
BASE64 = Format(
    "a picture in base64",
    several="pictures in base64",
    decoded="np.asarray(Image.open(io.BytesIO(base64.b64decode(value))))",
)
URL_SAFE_BASE64 = Format(
    "a picture in URL-safe base64",
    several="pictures in URL-safe base64",
    decoded="np.asarray(Image.open(io.BytesIO(base64.urlsafe_b64decode(value))))",
)
# Bytes at an offset, and the format; the first entry that fits is found. ArrayRecord files are Riegeli files.
_SIGNATURES: tuple[tuple[int, bytes, Format], ...] = (
    (0, b"\x89PNG\r\n\x1a\n", Format("a PNG image")),
    (0, b"\xff\xd8\xff", Format("a JPEG image")),
    (0, b"GIF8", Format("a GIF image")),
    (8, b"WAVE", WAV),
    (8, b"AVI ", Format("an AVI file", several="AVI video", decoded=_VIDEO)),
    (0, b"RIFF", Format("a RIFF file (WebP, WAV, AVI)")),
    (0, b"PK\x03\x04", Format("a zip archive", several="zip archives")),
    (
        257,
        b"ustar",
        Format("a tar archive, as WebDataset writes", "extract it, or read it with tarfile", "tar archives"),
    ),
    (0, b"\x83\xaf\x70\xd1\x0d\x88\x4a\x3f", Format("a Riegeli or ArrayRecord file", "read it with array_record")),
    (0, b"\x0a\x23\xd7\xce", Format("a RecordIO file of MXNet")),
    (0, GZIP_MAGIC, Format("gzip data", several=f"gzip data: {_ZLIB.replace('ZLIB', 'GZIP')}")),
    (0, b"BZh", Format("bzip2 data")),
    (0, b"\xfd7zXZ\x00", Format("xz data")),
    (0, b"\x28\xb5\x2f\xfd", Format("zstd data")),
    (0, b"\x04\x22\x4d\x18", Format("lz4 data", "decompress it, or register the compression")),
    (0, b"\xff\x06\x00\x00sNaPpY", Format("snappy data", "decompress it, or register the compression")),
    (0, b"7z\xbc\xaf\x27\x1c", Format("a 7z archive", several="7z archives")),
    (16, b"\xde\xc0\xef\xbe", Format("an LMDB database", "read it with lmdb")),
    (0, b"\x89HDF\r\n\x1a\n", Format("an HDF5 file", "read it with h5py", "HDF5 files")),
    (0, b"CDF\x01", Format("a NetCDF file", several="NetCDF files")),
    (0, b"CDF\x02", Format("a NetCDF file", several="NetCDF files")),
    (0, b"PAR1", Format("a Parquet file", "read it with pyarrow", "Parquet files")),
    (0, b"ORC", Format("an ORC file", several="ORC files")),
    (0, b"ARROW1", Format("an Arrow file", "read it with pyarrow", "Arrow files")),
    (0, b"Obj\x01", Format("an Avro file", several="Avro files")),
    (0, b"\x93NUMPY", NPY),
    (0, b"II*\0", Format("a TIFF image", several="TIFF images", decoded=_PIL)),
    (0, b"MM\0*", Format("a TIFF image", several="TIFF images", decoded=_PIL)),
    (
        128,
        b"DICM",
        Format("a DICOM image", several="DICOM images", decoded="pydicom.dcmread(io.BytesIO(value)).pixel_array"),
    ),
    (4, b"ftyp", Format("an MP4 or MOV file", several="MP4 or MOV video", decoded=_VIDEO)),
    (0, b"\x1aE\xdf\xa3", Format("a Matroska or WebM file", several="Matroska or WebM video", decoded=_VIDEO)),
    (0, b"fLaC", Format("a FLAC file", several="FLAC sound", decoded=_SOUND)),
    (0, b"OggS", Format("an Ogg file", several="Ogg sound", decoded=_SOUND)),
    (0, b"ID3", _MP3),
    *((0, sync, _MP3) for sync in (b"\xff\xfb", b"\xff\xf3", b"\xff\xf2")),
    (0, b"%PDF", Format("a PDF document", several="PDF documents")),
    (0, b"\x7fELF", Format("a program")),
    (0, b"SQLite format 3\x00", Format("an SQLite database", several="SQLite databases")),
    (0, b"version https://git-lfs", Format("a Git LFS pointer", "fetch the file with `git lfs pull`")),
)
# Bytes that `foreign_format` needs.
HEAD_NBYTES = 512
_EXAMPLE = Format(
    "a serialized Example without the frame of a record",
    "parse it with dask_tfrecord.messages.Example.FromString(data), or write it by dask_tfrecord.RecordWriter(path)",
)


def foreign_format(head: bytes) -> Format | None:
    """Return the format that the first bytes of a file or of a value belong to; None if it is unknown."""
    for offset, magic, format in _SIGNATURES:
        # A record may have a length that begins like the frames of MP3, with zeros after it.
        is_length = format is _MP3 and magic[0] == 0xFF and head[2:3] in (b"", b"\0")
        if head[offset : offset + len(magic)] == magic and not is_length:
            # Numbers and names of arrays in an archive: numpy.savez.
            is_npz = magic == b"PK\x03\x04" and b".npy" in head[30:HEAD_NBYTES]
            return NPZ if is_npz else format
    return _EXAMPLE if _begins_like_example(head) else None


def _begins_like_example(head: bytes) -> bool:
    """Return whether bytes begin like an Example: Features, an entry, and its key, each with its length before it."""
    at = 0
    for _ in range(3):
        if head[at : at + 1] != b"\x0a":
            return False
        at += 1
        length = shift = 0
        while at < len(head):
            length |= (head[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if head[at - 1] < 0x80:
                break
    key = head[at : at + length]
    return 0 < len(key) == length and head[at + length : at + length + 1] == b"\x12" and min(key) >= 0x20
