"""Prefixes of feature names: candidates for groups of ragged features."""

from __future__ import annotations

from collections.abc import Mapping

from dask_tfrecord.features.base import Feature


def prefix_groups(features: Mapping[str, Feature]) -> dict[str, tuple[str, ...]]:
    """Return the prefixes of names under which there are several ragged features, and these features.

    Of several prefixes of the same features, the longest is returned. Row lengths are not compared.
    """
    found: dict[tuple[str, ...], str] = {}
    for name in features:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            prefix = "/".join(parts[:depth])
            below = tuple(
                each for each, feature in features.items() if feature.ragged_rank and each.startswith(f"{prefix}/")
            )
            if below[1:]:
                found[below] = max(found.get(below, ""), prefix, key=len)
    return {prefix: below for below, prefix in found.items()}


def prefix_lines(features: Mapping[str, Feature]) -> list[str]:
    """Return a line for each prefix of several ragged features: the prefix and the features."""
    return [f"prefix {prefix!r}: {', '.join(below)}" for prefix, below in prefix_groups(features).items()]
