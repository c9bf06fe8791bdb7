"""Bytes of shards: listing, ranges, compressions, decompressed streams, and objects of stores."""
