"""Descriptor sets of protobuf messages, of this project's tests and of other projects, and files of messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, duration_pb2, text_format, timestamp_pb2
from oracle import write_oracle
from oracle.message_columns import Unrolled
from oracle.message_types import message_class

PROTOS = Path(__file__).parents[1] / "data" / "protos"
# Messages of other projects, and their files in `PROTOS`.
REAL = {
    "tensorflow.Event": "event",
    "tensorflow.Summary": "event",
    "tensorflow.GraphDef": "event",
    "nucleus.genomics.v1.Variant": "variant",
    "waymo.open_dataset.Scenario": "scenario",
}


def real_type(name: str) -> tuple[str, type[Any], Unrolled]:
    """Return the type of a message of another project: by its file, as a class, and unrolled."""
    path = PROTOS / f"{REAL[name]}.desc"
    files = descriptor_pb2.FileDescriptorSet.FromString(path.read_bytes())
    return f"{path}:{name}", message_class(files, name), Unrolled(files, name, 1)


def descriptors(text: str, *modules: Any) -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptors of a file, given as text, and of the modules that it imports."""
    imported = [descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in modules]
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    return descriptor_pb2.FileDescriptorSet(file=[*imported, file])


TIMES = """
name: "times.proto" package: "demo" syntax: "proto3"
dependency: ["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"]
message_type { name: "Times"
  field { name: "at" number: 1 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "took" number: 2 type: TYPE_MESSAGE type_name: ".google.protobuf.Duration" label: LABEL_OPTIONAL }
  field { name: "ats" number: 3 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_REPEATED } }
"""


def write_times(folder: Path, nanoseconds: Sequence[int]) -> tuple[Path, str]:
    """Write rows with a moment, a duration, and the moments of the rows before; return the file and its message."""
    files = descriptors(TIMES, timestamp_pb2, duration_pb2)
    cls = message_class(files, "demo.Times")
    payloads = []
    for row, value in enumerate(nanoseconds):
        made = cls()
        made.at.FromNanoseconds(value)
        made.took.FromNanoseconds(value)
        for earlier in nanoseconds[:row]:
            made.ats.add().FromNanoseconds(earlier)
        payloads.append(made.SerializeToString())
    write_oracle(folder / "times.tfrecord", payloads)
    (folder / "times.desc").write_bytes(files.SerializeToString())
    return folder / "times.tfrecord", f"{folder / 'times.desc'}:demo.Times"
