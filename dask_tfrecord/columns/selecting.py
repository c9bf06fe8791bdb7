"""Records with fewer features: the others are dropped from a payload, and what stays is not decoded."""

from __future__ import annotations

from collections.abc import Collection

from dask_tfrecord.columns.recognise import parse_record, refusal
from dask_tfrecord.errors import Place

__all__ = ["selected"]


def selected(payload: bytes, keys: Collection[str], place: Place) -> bytes:
    """Keep some features, or feature lists, of a record.

    Parameters
    ----------
    payload : bytes
        An Example or a SequenceExample.
    keys : collection of str
        What to keep, where it is there.
    place : Place
        The record, for errors.

    Returns
    -------
    bytes
        The record, its keys in order.

    Raises
    ------
    FeatureError
        If it is neither.
    """
    record = parse_record(payload)
    if record is None:
        raise refusal(payload, place, "Example")
    # The features of an Example are where the context of a SequenceExample is.
    for found in (record.context.feature, record.feature_lists.feature_list):
        for key in [key for key in found if key not in keys]:
            del found[key]
    kept: bytes = record.SerializeToString(deterministic=True)
    return kept
