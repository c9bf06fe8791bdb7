"""A compression of shards that another package adds: frames of lz4."""

from lz4 import frame

import dask_tfrecord as dtf


class Decompressor(frame.LZ4FrameDecompressor):
    """Decompress one frame; damaged data are a ValueError."""

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        try:
            return super().decompress(bytes(data), max_length)
        except RuntimeError as error:
            raise ValueError(str(error)) from error


class Compressor(frame.LZ4FrameCompressor):
    """Compress one frame, whose header comes with its first bytes."""

    def __init__(self) -> None:
        super().__init__(content_checksum=True)
        self._head = self.begin()

    def compress(self, data: bytes) -> bytes:
        head, self._head = self._head, b""
        return head + super().compress(data)

    def flush(self) -> bytes:
        return self.compress(b"") + super().flush() if self._head else super().flush()


LZ4 = dtf.ShardCompression("lz4", lambda head: head.startswith(b"\x04\x22\x4d\x18"), Decompressor, Compressor)
dtf.register_compression(LZ4)
