"""Bytes of shards: which there are, and streams of what they hold, decompressed."""
