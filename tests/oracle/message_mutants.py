"""Random changes of the wire format of messages, mostly ones that another writer could make, some that break it.

A payload is split into its fields along the places of its type, changed anywhere in the tree, and joined again with the
right lengths. Changes of bytes follow, sometimes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from support.wire import mutate, mutate_bytes, read_varint, varint

from oracle.message_columns import Place
from oracle.message_types import PACKABLE, Field

VARINT, FIXED64, DELIMITED, GROUP, END, FIXED32 = range(6)
_FIXED = {
    **dict.fromkeys([Field.TYPE_DOUBLE, Field.TYPE_FIXED64, Field.TYPE_SFIXED64], 8),
    **dict.fromkeys([Field.TYPE_FLOAT, Field.TYPE_FIXED32, Field.TYPE_SFIXED32], 4),
}


@dataclass(frozen=True, slots=True)
class Wire:
    """One field on the wire; `inner` replaces the content of a message or group whose place is known."""

    number: int
    wire_type: int
    content: bytes = b""
    inner: tuple[Wire, ...] | None = None
    place: Place | None = None


def mutant(payload: bytes, other: bytes, place: Place, rng: random.Random) -> bytes:
    """Change a payload; `other` is another one of the same type."""
    fields, donors = split(payload, place), split(other, place)
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 2, 5])):
        fields = _changed(fields, donors, place, rng)
    overlong = rng if rng.random() < 0.15 else None
    changed = join(fields, overlong)
    draw = rng.random()
    if draw < 0.2:
        return mutate(changed, other, rng)
    return mutate_bytes(changed, other, rng) if draw < 0.3 else changed


def split(payload: bytes, place: Place | None) -> tuple[Wire, ...]:
    """Split a legal message into its fields."""
    fields, end = _split(payload, 0, place, None)
    assert end == len(payload)
    return fields


def _split(payload: bytes, at: int, place: Place | None, group: int | None) -> tuple[tuple[Wire, ...], int]:
    known = {one.declared.number: one for one in place.fields} if place else {}
    found = []
    while at < len(payload):
        tag, at = read_varint(payload, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == END:
            assert number == group
            return tuple(found), at
        below = known[number].place if number in known else None
        if wire_type == GROUP:
            inner, at = _split(payload, at, below, number)
            found.append(Wire(number, wire_type, inner=inner, place=below))
            continue
        begin = at
        if wire_type == DELIMITED:
            size, begin = read_varint(payload, at)
            at = begin + size
        else:
            at = begin + {FIXED64: 8, FIXED32: 4}[wire_type] if wire_type else read_varint(payload, at)[1]
        wire = Wire(number, wire_type, payload[begin:at], place=below)
        found.append(replace(wire, inner=split(wire.content, below)) if below and wire_type == DELIMITED else wire)
    assert group is None
    return tuple(found), at


def join(fields: tuple[Wire, ...], overlong: random.Random | None = None) -> bytes:
    """Join fields to a message; tags and lengths sometimes have more bytes than they need."""
    joined = bytearray()
    for wire in fields:
        joined += _padded(varint(wire.number << 3 | wire.wire_type), overlong, 5)
        content = wire.content if wire.inner is None else join(wire.inner, overlong)
        if wire.wire_type == DELIMITED:
            joined += _padded(varint(len(content)), overlong, 5)
        joined += _padded(content, overlong, 10) if wire.wire_type == VARINT else content
        if wire.wire_type == GROUP:
            joined += varint(wire.number << 3 | END)
    return bytes(joined)


def _padded(encoded: bytes, overlong: random.Random | None, longest: int) -> bytes:
    """Lengthen a varint without a change of its value, rarely beyond the longest legal one."""
    if overlong is None or overlong.random() < 0.9:
        return encoded
    size = overlong.randint(len(encoded), longest + (overlong.random() < 0.1))
    if size <= len(encoded):
        return encoded
    return encoded[:-1] + bytes([encoded[-1] | 0x80]) + b"\x80" * (size - len(encoded) - 1) + b"\0"


def _changed(
    fields: tuple[Wire, ...], donors: tuple[Wire, ...], place: Place | None, rng: random.Random
) -> tuple[Wire, ...]:
    """Change the fields of a message, or of one within it."""
    nested = [at for at, wire in enumerate(fields) if wire.inner is not None]
    if nested and rng.random() < 0.6:
        at = rng.choice(nested)
        wire = fields[at]
        assert wire.inner is not None
        alike = [one.inner for one in donors if one.number == wire.number and one.inner is not None]
        inner = _changed(wire.inner, rng.choice(alike) if alike else (), wire.place, rng)
        return (*fields[:at], replace(wire, inner=inner), *fields[at + 1 :])
    return tuple(_changed_here(rng.choice(_CHANGES), list(fields), donors, place, rng))


_CHANGES = [
    *("repeat", "drop", "shuffle", "take over", "merge", "unknown", "retype", "pack", "revalue", "unnamed") * 4,
    "nest",
]


def _changed_here(
    change: str, fields: list[Wire], donors: tuple[Wire, ...], place: Place | None, rng: random.Random
) -> list[Wire]:
    """Change the fields of one message in one way."""
    if change == "merge":
        return [*fields, *donors]
    if change == "pack":
        return _packing(fields, place, rng)
    if change == "shuffle":
        rng.shuffle(fields)
    elif change == "drop" and fields:
        del fields[rng.randrange(len(fields))]
    elif change == "revalue" and fields:
        _revalue(fields, rng)
    else:
        for wire in _more_fields(change, fields, donors, place, rng):
            fields.insert(rng.randint(0, len(fields)), wire)
    return fields


def _more_fields(
    change: str, fields: list[Wire], donors: tuple[Wire, ...], place: Place | None, rng: random.Random
) -> list[Wire]:
    """Return fields to insert into a message."""
    if change == "repeat" and fields:
        # Of singular fields the last one counts, singular messages merge, keys recur.
        return [rng.choice(fields)]
    if change == "take over":
        # Other members of oneofs, more items, the same keys.
        return rng.sample(donors, rng.randint(0, min(3, len(donors))))
    if change == "unknown":
        # A field that the type probably lacks, of any wire type.
        numbers = [1, 2, 3, 15, 16, 18_999, 19_000, 2**29 - 1, rng.randint(1, 2**29 - 1)]
        return [any_wire(rng.choice(numbers), rng)]
    if change == "unnamed":
        # A number that the enum probably does not name.
        enums = [one.declared.number for one in place.fields if one.declared.type == Field.TYPE_ENUM] if place else []
        numbers = [4, 99, 2**31 + 5, 2**32 + 1, 2**64 - 9]
        return [Wire(rng.choice(enums), VARINT, varint(rng.choice(numbers)))] if enums else []
    if change == "retype":
        # A known number with any wire type and content.
        numbers = [one.declared.number for one in place.fields] if place else [wire.number for wire in fields]
        return [any_wire(rng.choice(numbers), rng)] if numbers else []
    if change == "nest":
        # An unknown group in many others: protobuf limits the depth.
        wire = any_wire(rng.randint(1, 20), rng)
        for _ in range(rng.choice([2, 95, 98, 99, 100, 101])):
            wire = Wire(rng.choice([77, wire.number]), GROUP, inner=(wire,))
        return [wire]
    return []


def any_wire(number: int, rng: random.Random) -> Wire:
    wire_type = rng.choice([VARINT, FIXED64, DELIMITED, GROUP, FIXED32])
    if wire_type == GROUP:
        return Wire(number, GROUP, inner=tuple(any_wire(rng.randint(1, 20), rng) for _ in range(rng.randint(0, 2))))
    content = {
        VARINT: varint(rng.choice([0, 1, 127, 300, 2**31, 2**32 + 1, 2**63, 2**64 - 1])),
        FIXED64: rng.randbytes(8),
        DELIMITED: rng.choice([b"", b"\x08\x01", rng.randbytes(rng.randint(0, 12)), b"\xc3\xa4"]),
        FIXED32: rng.randbytes(4),
    }
    return Wire(number, wire_type, content[wire_type])


def _packing(fields: list[Wire], place: Place | None, rng: random.Random) -> list[Wire]:
    """Pack the items of a repeated field that are not packed, and the other way round; sometimes only some of them."""
    known = {one.declared.number: one.declared for one in place.fields} if place else {}
    changed: list[Wire] = []
    for wire in fields:
        declared = known.get(wire.number)
        packable = declared is not None and (declared.type in PACKABLE or declared.type == Field.TYPE_ENUM)
        if declared is None or not packable or rng.random() < 0.3:
            changed.append(wire)
        elif wire.wire_type != DELIMITED:
            changed.append(Wire(wire.number, DELIMITED, wire.content * rng.choice([1, 1, 1, 3])))
        else:
            size = _FIXED.get(declared.type, 0)
            kind = {0: VARINT, 4: FIXED32, 8: FIXED64}[size]
            changed += [Wire(wire.number, kind, item) for item in _items(wire.content, size)]
    return changed


def _items(content: bytes, size: int) -> list[bytes]:
    if size:
        return [content[at : at + size] for at in range(0, len(content) - size + 1, size)]
    items, begin = [], 0
    for at, byte in enumerate(content, start=1):
        if byte < 0x80:
            items.append(content[begin:at])
            begin = at
    return items


def _revalue(fields: list[Wire], rng: random.Random) -> None:
    """Give a field another content of its wire type: wide varints for narrow types, unknown enum values, bad UTF-8."""
    at = rng.randrange(len(fields))
    if fields[at].inner is None and fields[at].wire_type != GROUP:
        drawn = any_wire(fields[at].number, rng)
        while drawn.wire_type != fields[at].wire_type:
            drawn = any_wire(fields[at].number, rng)
        fields[at] = drawn
