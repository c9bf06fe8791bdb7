"""A shard's records as bytes: their map, one record's fields, and what a repair would keep."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from dask_tfrecord.errors import TFRecordError, joined, plural, printable, redact_url
from dask_tfrecord.extras.view.opened import Opened
from dask_tfrecord.features.inference.payload_type import detect_payload_type, is_probably_text, parse_record
from dask_tfrecord.records.shard_check import (
    RecordState,
    ShardReport,
    StoredRecord,
    check_shard,
    record_at,
    walk_states,
)
from dask_tfrecord.records.window import FOOTER, HEADER, Window
from dask_tfrecord.shards.shard import Shard

# Bytes of records whose CRCs one map checks; bytes of a record that are shown, and whose fields are parsed.
_MAP_NBYTES = 32 << 20
_HEX_NBYTES = 4 << 10
_PARSED_NBYTES = 1 << 20
# Values of a feature, steps of a feature list, and letters of a text that the fields of a record show.
_SHOWN_VALUES = 6
_SHOWN_LETTERS = 60
# Shards of the overview.
_LISTED = 10_000


def shown_path(path: str) -> str:
    """Return a path or URL as text, without credentials."""
    return printable(redact_url(path))


def shard_of(data: Opened, number: int) -> Shard:
    """Return a shard of records."""
    assert data.shards is not None
    return data.shards[number]


def damage_of(data: Opened, number: int) -> ShardReport:
    """Check all records of a shard, once."""
    if number not in data.damage:
        data.damage[number] = check_shard(shard_of(data, number))
    return data.damage[number]


def shard_list(data: Opened) -> list[dict[str, Any]]:
    """Return size, records and compression of shards, and their known damage."""
    listed = []
    shards = data.shards
    for place in range(min(len(shards), _LISTED) if shards is not None else 0):
        shard, (report, is_counted) = shard_of(data, place), data.known.report(place)
        damage = data.damage.get(place, report if is_counted else None)
        listed.append(
            {
                "name": shown_path(shard.path),
                "size": shard.size,
                "records": report.records if report is not None and is_counted else None,
                "compression": None if report is None else report.compression,
                "damage": None if damage is None else "; ".join(map(str, damage.lost[:5])) or None,
            }
        )
    return listed


def locate(data: Opened, row: int) -> dict[str, Any] | None:
    """Return file, record and byte of a row, if they are known."""
    try:
        place = None if data.known.source is None else data.known.source.locate(row, "")
    except (TFRecordError, OSError):
        place = None
    return None if place is None else {"file": printable(place.file), "record": place.record, "offset": place.offset}


def shard_map(data: Opened, number: int, start: int, stop: int) -> dict[str, Any]:
    """Return offset, length and state of the records `start` to `stop`, or of fewer if they are large."""
    shard, (known, is_counted) = shard_of(data, number), data.known.report(number)
    record, offset = 0, 0
    if known is not None and len(known.entry_records) and (known.compression is None or shard.access):
        at = max(0, int(np.searchsorted(known.entry_records, start, side="right")) - 1)
        if not known.lost:
            record, offset = int(known.entry_records[at]), int(known.entry_offsets[at])
    cells: list[StoredRecord] = []
    nbytes = 0
    for cell in walk_states(shard, offset, start - record, partial(damage_of, data, number)):
        if record >= stop or (nbytes > _MAP_NBYTES and cells):
            break
        if record >= start:
            cells.append(cell)
            nbytes += cell.nbytes
        record += 1
    report = data.damage.get(number)
    if report is None and any(cell.state for cell in cells):
        report = damage_of(data, number)
    offsets, lengths, states = (list(column) for column in zip(*cells, strict=True)) if cells else ([], [], [])
    return {
        "size": shard.size,
        "records": known.records if known is not None and is_counted else None,
        "start": start,
        "stop": max(start, record),
        "offsets": offsets,
        "lengths": lengths,
        "states": states,
        "damaged": [] if report is None else _ranges(report),
    }


def _ranges(report: ShardReport) -> list[dict[str, Any]]:
    return [{"start": each.start, "stop": each.stop, "what": each.reason} for each in report.lost]


def record_bytes(data: Opened, number: int, offset: int) -> dict[str, Any]:
    """Return the first bytes of the record at an offset, and the fields of its payload by the wire format."""
    shard = shard_of(data, number)
    with Window(shard, offset, stop=shard.size) as window:
        if not window.ensure(1):
            raise IndexError(f"the shard has no record at byte {offset:,}")
        window.ensure(HEADER)
        length = int.from_bytes(window.view(0, 8), "little")
        window.ensure(HEADER + min(length, _PARSED_NBYTES) + FOOTER)
        left = window.end - window.begin
        text = bytes(window.view(0, min(left, _HEX_NBYTES, HEADER + length + FOOTER))).hex()
        is_parsed = length <= min(_PARSED_NBYTES, left - HEADER)
        payload = bytes(window.view(HEADER, HEADER + length)) if is_parsed else b""
        stored = record_at(window)
    assert stored is not None
    fields = _record_fields(payload) if stored.state in (RecordState.INTACT, RecordState.PAYLOAD) else []
    return {"offset": offset, "length": stored.nbytes or None, "state": stored.state, "hex": text, "fields": fields}


def _record_fields(payload: bytes) -> list[dict[str, Any]]:
    """Return the features of an Example or SequenceExample, or the fields of another message by its wire format."""
    from dask_tfrecord.features.inference.wire import WireField, wire_fields

    is_example = detect_payload_type(payload) in ("an Example", "a SequenceExample")
    record = parse_record(payload) if is_example else None
    if record is not None:
        contexts = [_feature_line(name, 0, feature) for name, feature in sorted(record.context.feature.items())]
        lists = [line for each in sorted(record.feature_lists.feature_list.items()) for line in _list_lines(*each)]
        return contexts + lists

    def listed(field: WireField) -> Iterator[dict[str, Any]]:
        value = field.candidates[0][1] if field.candidates else None
        yield {"name": field.path, "depth": field.path.count("."), "kind": field.wire_type, "value": value}
        for child in field.children:
            yield from listed(child)

    root = wire_fields(payload)
    return [field for child in (() if root is None else root.children) for field in listed(child)]


def _feature_line(name: str, depth: int, feature: Any) -> dict[str, Any]:
    """Describe a feature of a record: its key, its kind, and its first values."""
    kind = feature.WhichOneof("kind")
    values = [] if kind is None else getattr(feature, kind).value
    shown = joined([_field_text(value) for value in values[: _SHOWN_VALUES + 1]], _SHOWN_VALUES)
    number = plural(len(values), "value")
    return {"name": name, "depth": depth, "kind": f"{kind or 'no list'}, {number}", "value": shown}


def _list_lines(name: str, steps: Any) -> Iterator[dict[str, Any]]:
    number = plural(len(steps.feature), "step")
    yield {"name": name, "depth": 0, "kind": f"feature list, {number}", "value": None}
    for step, feature in enumerate(steps.feature[:_SHOWN_VALUES]):
        yield _feature_line(f"step {step}", 1, feature)


def _field_text(value: Any) -> str:
    """Write the value of a field as short text."""
    if not isinstance(value, bytes):
        return f"{value:.9g}" if isinstance(value, float) else str(value)
    if is_probably_text(value):
        return repr(value[:_SHOWN_LETTERS].decode(errors="replace")) + ("…" if len(value) > _SHOWN_LETTERS else "")
    return f"{plural(len(value), 'byte')}: {value[:8].hex(' ')}{' …' if len(value) > 8 else ''}"


def repair_plan(data: Opened, number: int) -> dict[str, Any]:
    """Return what `dask-tfrecord repair` would keep of a shard."""
    report = damage_of(data, number)
    paths = shlex.join([report.path, f"{report.path}.repaired"])
    return {
        "kept": report.records,
        "kept_bytes": report.nbytes - sum((each.stop or report.nbytes) - each.start for each in report.lost),
        "dropped": report.lost_records,
        "ranges": _ranges(report),
        "command": f"dask-tfrecord repair {paths}",
    }
