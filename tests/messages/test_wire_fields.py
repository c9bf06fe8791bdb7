"""Fields read from the wire format, compared with `protoc --decode_raw`; what commands show of any message."""

from __future__ import annotations

import random
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import oracle
import pytest
from oracle.message_mutants import DELIMITED, GROUP, Wire, any_wire, join
from support import wire
from support.few import mostly_slow
from support.wire import delimited, example

from dask_tfrecord import inspect_records
from dask_tfrecord.errors import FeatureError
from dask_tfrecord.features.inference.payload_type import parse_example_list, parse_record
from dask_tfrecord.features.inference.wire import WireField, wire_fields

NUCLEUS = "google__nucleus/nucleus/testdata/test_sites.vcf.golden.tfrecord"
# protoc reads and writes the standard streams of its process, which runs it once for each file.
PROTOC = """
import os, pathlib, sys
from grpc_tools import protoc
for path in pathlib.Path(sys.argv[1]).glob("*.payload"):
    text = path.with_suffix(".txt")
    write = os.O_WRONLY | os.O_CREAT
    for number, name, flags in ((0, path, os.O_RDONLY), (1, text, write), (2, os.devnull, os.O_WRONLY)):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    if protoc.main(["protoc", "--decode_raw"]):
        text.unlink()
"""
# Number, wire type, and value or fields.
Tree = list[tuple[int, str, "int | bytes | Tree"]]


def decoded_by_protoc(folder: Path, payloads: Iterable[bytes]) -> list[Tree | None]:
    paths = [folder / f"{number}.payload" for number, _ in enumerate(payloads)]
    for path, payload in zip(paths, payloads, strict=True):
        path.write_bytes(payload)
    subprocess.run([sys.executable, "-c", PROTOC, str(folder)], check=True)
    texts = [path.with_suffix(".txt") for path in paths]
    return [parsed(text.read_text("latin-1").splitlines()) if text.exists() else None for text in texts]


def parsed(lines: list[str]) -> Tree:
    """Parse the output of `protoc --decode_raw`."""
    root: Tree = []
    stack = [root]
    for line in map(str.strip, lines):
        if line == "}":
            stack.pop()
        elif line.endswith(" {"):
            inner: Tree = []
            stack[-1].append((int(line[:-2]), "fields", inner))
            stack.append(inner)
        else:
            number, value = line.split(": ", 1)
            stack[-1].append((int(number), *parsed_value(value)))
    assert stack == [root]
    return root


def parsed_value(text: str) -> tuple[str, int | bytes]:
    if text.startswith('"'):
        escapes = {b"n": b"\n", b"r": b"\r", b"t": b"\t"}
        return "length-delimited", re.sub(
            rb"\\([0-7]{3}|.)",
            lambda found: bytes([int(found[1], 8)]) if len(found[1]) == 3 else escapes.get(found[1], found[1]),
            text[1:-1].encode("latin-1"),
        )
    if text.startswith("0x"):
        return f"fixed{4 * (len(text) - 2)}", int(text, 16)
    return "varint", int(text)


def as_tree(field: WireField, payload: bytes) -> Tree:
    found: Tree = []
    assert field.complete
    for child in field.children:
        assert child.path == f"{field.path}.{child.number}".lstrip(".")
        content = payload[child.offset : child.offset + child.length]
        values = dict(child.candidates)
        if child.children or child.wire_type == "group":
            found.append((child.number, "fields", as_tree(child, payload)))
        elif child.wire_type == "length-delimited":
            size = int(re.search(r"\(([\d,]+) bytes?\)", values["bytes"])[1].replace(",", ""))  # type: ignore[index]
            found.append((child.number, child.wire_type, content[len(content) - size :]))
        else:
            value = int(values.get("int") or values[child.wire_type]) % 2**64
            found.append((child.number, child.wire_type, value))
    return found


def fields(pick: random.Random, depth: int) -> tuple[Wire, ...]:
    """Return random fields of all wire types, nested up to `depth` deep."""
    drawn = []
    for _ in range(pick.choice([0, 1, 1, 2, 3, 5])):
        number = pick.choice([1, 2, 3, 15, 16, 1000, 2**29 - 1])
        if depth and pick.random() < 0.4:
            drawn.append(Wire(number, pick.choice([DELIMITED, GROUP]), inner=fields(pick, depth - 1)))
        elif pick.random() < 0.2:
            texts = [b"chr1", "größe".encode(), struct.pack("<3f", 1, 2.5, 3)]
            drawn.append(Wire(number, DELIMITED, pick.choice(texts)))
        else:
            drawn.append(any_wire(number, pick))
    return tuple(drawn)


@pytest.mark.integration
def test_trees_equal_those_of_protoc(corpus: Path, tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    pick = random.Random(seed)
    payloads = oracle.read_payloads(corpus / NUCLEUS) + [
        join(fields(pick, pick.choice([1, 3, 13])), pick) for _ in range(1000)
    ]
    payloads += [delimited(1, b"\x08\x01"), b""]
    for _ in range(120):
        # 120 levels are more than protoc nests groups, and 12 more than it nests messages.
        payloads[-2:] = [delimited(1, payloads[-2]), b"\x0b" + payloads[-1] + b"\x0c"]
        payloads[-2:-2] = payloads[-2:]
    payloads += [wire.mutate_bytes(*pick.sample(payloads[:1000], 2), pick) for _ in range(1500)]
    trees = decoded_by_protoc(tmp_path, payloads)
    assert 500 < sum(tree is None for tree in trees) < 2000
    for payload, wanted in zip(payloads, trees, strict=True):
        found = wire_fields(payload)
        assert (None if found is None else as_tree(found, payload)) == wanted, payload.hex()


def test_reports_name_the_fields_of_other_messages(corpus: Path) -> None:
    report = inspect_records(corpus / NUCLEUS)
    assert (report.message, report.records, report.features) == ("nucleus Variant", 5, ())
    found = {each.path: (each.wire_type, each.present, each.types[0]) for each in report.paths}
    assert found["14"] == ("length-delimited", 5, "text")
    assert found["8"] == ("fixed64", 5, "double")
    # Some of these texts are messages too, but not all of them.
    assert found["10.1"] == ("length-delimited", 5, "text")
    assert not any(path.startswith("10.1.") for path in found)
    assert 'message="file.desc:nucleus.genomics.v1.Variant"' in str(report)
    with pytest.raises(FeatureError, match=r"record 0 .*expected an Example, found a nucleus Variant"):
        _ = report.schema


def test_messages_among_examples_are_refused(tmp_path: Path) -> None:
    message = delimited(3, b"a name") + b"\x20\x07"
    for number, payloads in enumerate([[message, example(a=[1])], [example(a=[1]), message]]):
        oracle.write_oracle(tmp_path / str(number), payloads)
        with pytest.raises(FeatureError, match="expected an Example, found a protobuf message of another kind"):
            inspect_records(tmp_path / str(number))


def test_the_limit_bounds_the_fields_and_reaches_every_path() -> None:
    payload = delimited(1, delimited(2, b"\x18\x01") * 100) * 1000
    found = wire_fields(payload, 2000)
    assert found is not None and not found.complete
    fields = list(found.descendants())
    assert len(fields) <= 2000
    assert {field.path for field in fields} == {"1", "1.2", "1.2.3"}


def test_values_are_printable_and_short() -> None:
    found = wire_fields(delimited(1, ("\u202eabc" * 1000).encode()) + delimited(2, b"\x1b[31m" * 1000))
    assert found is not None
    values = [value for field in found.descendants() for _, value in field.candidates]
    assert all(value.isprintable() and len(value) < 500 for value in values)


def nested(payload: bytes, levels: int) -> bytes:
    heads, size = [], len(payload)
    for _ in range(levels):
        heads.append(b"\x0a" + wire.varint(size))
        size += len(heads[-1])
    return b"".join([*reversed(heads), payload])


# Payloads of about n bytes, by what they repeat.
HOSTILE: dict[str, Callable[[int], bytes]] = {
    "entries with unknown fields": lambda n: nested(delimited(1, delimited(1, b"a") + b"\x18\x01") * (n // 7), 1),
    "lists with unknown fields": lambda n: delimited(2, delimited(1, b"\x18\x01") * (n // 4)),
    "unknown fields of an entry": lambda n: nested(b"\x18\x01" * (n // 2), 2),
    "empty messages": lambda n: b"\x0a\x00" * (n // 2),
    "numbers": lambda n: b"\x08\x01" * (n // 2),
    "groups": lambda n: (b"\x1b" * 50 + b"\x1c" * 50) * (n // 100),
    "open groups": lambda n: b"\x1b" * n,
    "nested messages": lambda n: nested(b"", n // 4),
    "messages of line feeds": lambda n: b"\n" * (n // 12 * 12),
    "packed numbers in messages": lambda n: nested(delimited(3, b"\0" * 4096) * (n // 4100), 9),
    "features of one name": lambda n: nested(delimited(1, b"a") * (n // 3), 2),
    "brackets": lambda n: b"[" * n,
}


# How payloads are inspected, and the most calls for each byte.
INSPECTED: dict[str, tuple[Callable[[bytes], object], int]] = {
    "record": (parse_record, 3),
    "list of Examples": (parse_example_list, 3),
    "fields": (partial(wire_fields, limit=1000), 12),
}


@pytest.mark.parametrize(("way", "repeated"), mostly_slow(((way, each) for each in HOSTILE for way in INSPECTED), 4))
def test_work_grows_no_faster_than_the_payload(way: str, repeated: str) -> None:
    (inspect, steps), payload_of = INSPECTED[way], HOSTILE[repeated]
    small, large = steps_of(inspect, payload_of(30_000)), steps_of(inspect, payload_of(120_000))
    assert large <= 5 * small
    assert large <= steps * 120_000


def steps_of(call: Callable[[bytes], object], payload: bytes) -> int:
    """Count the calls of functions and methods: unlike seconds, they do not depend on the machine."""
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        call(payload)
    finally:
        sys.setprofile(before)
    return steps
