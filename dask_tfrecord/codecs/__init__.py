"""Compressions of shards, and the first bytes of other formats."""
