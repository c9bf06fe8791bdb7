"""Files of protobuf messages with a descriptor set beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from google.protobuf import descriptor_pb2, duration_pb2, timestamp_pb2
from oracle import write_oracle
from oracle.message_types import message_class


def write_times(folder: Path, nanoseconds: Sequence[int]) -> tuple[Path, str]:
    """Write rows with a moment, a duration, and the moments of the rows before; return the file and its message."""
    file = descriptor_pb2.FileDescriptorProto(name="times.proto", package="demo", syntax="proto3")
    declared = file.message_type.add(name="Times")
    for number, (name, kind) in enumerate([("at", "timestamp"), ("took", "duration"), ("ats", "timestamp")], 1):
        type_name, label = f".google.protobuf.{kind.title()}", 3 if name == "ats" else 1
        declared.field.add(name=name, number=number, type=11, label=label, type_name=type_name)
    known = [timestamp_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR]
    file.dependency.extend(each.name for each in known)
    files = [descriptor_pb2.FileDescriptorProto.FromString(each.serialized_pb) for each in known]
    every = descriptor_pb2.FileDescriptorSet(file=[*files, file])
    cls = message_class(every, "demo.Times")
    payloads = []
    for row, value in enumerate(nanoseconds):
        made = cls()
        made.at.FromNanoseconds(value)
        made.took.FromNanoseconds(value)
        for earlier in nanoseconds[:row]:
            made.ats.add().FromNanoseconds(earlier)
        payloads.append(made.SerializeToString())
    write_oracle(folder / "times.tfrecord", payloads)
    (folder / "times.desc").write_bytes(every.SerializeToString())
    return folder / "times.tfrecord", f"{folder / 'times.desc'}:demo.Times"
