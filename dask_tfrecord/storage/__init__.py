"""Bytes of shards: listing, decompressed streams, and sinks for new files."""
