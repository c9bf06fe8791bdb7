"""Types of protobuf messages: a name and the descriptors it needs, from a class, a descriptor set or a .proto file.

A type is hashable and pickles as a few kilobytes, wherever it came from. Its descriptors are in a private pool, so it
never meets another message of the same name. Records are decoded by the native core; protobuf only describes them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from dask_tfrecord.errors import SchemaError, near_misses


@dataclass(frozen=True, slots=True, repr=False)
class MessageType:
    """A protobuf message type.

    Parameters
    ----------
    name : str
        Full name, for example ``"package.Message"``.
    descriptors : bytes
        Serialized FileDescriptorSet of the files that the message needs, imports first.
    """

    name: str
    descriptors: bytes

    def __repr__(self) -> str:
        return f"MessageType({self.name!r})"

    @classmethod
    def of(cls, given: Any, owner: str = "message") -> MessageType:
        """Return the type of a message class, a descriptor, or the name of a message in a file."""
        if isinstance(given, MessageType):
            return given
        descriptor = getattr(given, "DESCRIPTOR", given)
        if isinstance(given, str):
            descriptor = _message_of_file(given, owner)
        if not hasattr(descriptor, "fields_by_number"):
            raise SchemaError(
                f'{owner} must be a generated message class, its DESCRIPTOR, "file.desc:package.Message" or '
                f'"file.proto:package.Message"; got {given!r:.100}'
            )
        return cls(descriptor.full_name, _needed_files(descriptor))

    @property
    def pool(self) -> Any:
        """Private pool of the descriptors."""
        return _pool(self.descriptors)

    @property
    def descriptor(self) -> Descriptor:
        """Descriptor of the message."""
        return _find(self.descriptors, self.name)


@lru_cache(64)
def _pool(descriptors: bytes) -> Any:
    """Return the one private pool of the files of a serialized FileDescriptorSet, which may be in any order."""
    pool = descriptor_pool.DescriptorPool()
    try:
        waiting = {file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file}

        def add(name: str) -> None:
            if (file := waiting.pop(name, None)) is not None:
                for imported in file.dependency:
                    add(imported)
                pool.AddSerializedFile(file.SerializeToString())

        for name in list(waiting):
            add(name)
    except (DecodeError, TypeError, KeyError) as error:
        raise SchemaError(
            f"not a FileDescriptorSet with all imports, which protoc --include_imports --descriptor_set_out=file.desc "
            f"writes ({error})"
        ) from error
    return pool


def _find(descriptors: bytes, name: str, owner: str = "the descriptors") -> Descriptor:
    """Find a message by its full name in serialized descriptors; an error lists similar names."""
    try:
        descriptor: Descriptor = _pool(descriptors).FindMessageTypeByName(name)
    except SchemaError as error:
        raise SchemaError(f"{owner}: {error.message}") from error
    except KeyError:
        # Imported files come first.
        files = reversed(descriptor_pb2.FileDescriptorSet.FromString(descriptors).file)
        names = [f"{file.package}.{message.name}".lstrip(".") for file in files for message in file.message_type]
        told = f"no message {name!r}" if name else 'no name of a message, as in "file.desc:package.Message"'
        raise SchemaError(f"{owner}: {told}{near_misses(name, names)}") from None
    return descriptor


def _message_of_file(given: str, owner: str) -> Descriptor:
    """Return the descriptor of ``"file.desc:package.Message"`` or ``"file.proto:package.Message"``."""
    path, _, name = given.rpartition(":")
    owner = f"{owner} {given!r:.200}"
    if not path or not name:
        path, name = given.rstrip(":"), ""
    return _find(_compiled_proto(path, owner) if path.endswith(".proto") else _load(path, owner), name, owner)


def _load(path: str, owner: str) -> bytes:
    """Read a file of descriptors."""
    if "://" in path:
        # Errors of `Path` would name the URL with its credentials.
        raise SchemaError(f"{owner}: the file of a message has a local path; download it first")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise SchemaError(
            f'{owner}: cannot read the file ({error}); "file.desc:package.Message" names a file and its message'
        ) from error


def _compiled_proto(path: str, owner: str) -> bytes:
    """Compile a .proto file; imports are searched in its directory, and in those above."""
    _load(path, owner)
    errors = []
    source = Path(os.path.abspath(path))  # noqa: PTH100 - a resolved link has other neighbours
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "set"
        for root in source.parents:
            # -P: no module of the current directory takes the place of one that is installed.
            command = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{root}", f"--descriptor_set_out={out}"]
            # The module adds the directory of the well-known types.
            done = subprocess.run([*command, "--include_imports", str(source)], capture_output=True, check=False)
            if done.returncode == 0:
                return out.read_bytes()
            errors.append(done.stderr.decode(errors="replace").strip())
            if "No module named" in errors[0]:
                raise SchemaError(
                    f"{owner}: compiling a .proto file needs grpcio-tools: pip install 'dask-tfrecord[proto]'"
                )
    raise SchemaError(f"{owner}: protoc refuses the file: {errors[0]:.1000}")


def _needed_files(root: Descriptor) -> bytes:
    """Return the serialized set of the files that a message, and the extensions of what it contains, are defined in."""
    pool = root.file.pool
    files: dict[str, Any] = {}

    def add(file: Any) -> None:
        if file.name in files:
            return
        for imported in sorted(file.dependencies, key=lambda each: each.name):
            add(imported)
        proto = descriptor_pb2.FileDescriptorProto.FromString(file.serialized_pb)
        # Comments and positions in the source.
        proto.ClearField("source_code_info")
        files.setdefault(file.name, proto)

    add(root.file)
    seen, waiting = {root.full_name}, [root]
    while waiting:
        message = waiting.pop()
        extensions: list[Any] = sorted(pool.FindAllExtensions(message), key=lambda each: each.full_name)
        for extension in extensions:
            add(extension.file)
        for each in [*message.fields, *extensions]:
            if each.message_type is not None and each.message_type.full_name not in seen:
                seen.add(each.message_type.full_name)
                waiting.append(each.message_type)
    made = descriptor_pb2.FileDescriptorSet(file=files.values())
    return made.SerializeToString(deterministic=True)


def is_repeated(field: Any) -> bool:
    """Return whether a field has any number of values; maps are repeated."""
    found = getattr(field, "is_repeated", None)  # since protobuf 6
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def is_required(field: Any) -> bool:
    """Return whether every message has the field."""
    found = getattr(field, "is_required", None)  # since protobuf 6
    return bool(field.label == field.LABEL_REQUIRED if found is None else found)


def is_packed(field: Any) -> bool:
    """Return whether the values of a repeated field are written as one."""
    found = getattr(field, "is_packed", None)  # since protobuf 5
    if found is not None:
        return bool(found)
    options = field.GetOptions()
    packable = is_repeated(field) and field.cpp_type not in (field.CPPTYPE_STRING, field.CPPTYPE_MESSAGE)
    return packable and bool(
        options.packed if options.HasField("packed") else _file_of(field.file.serialized_pb).syntax == "proto3"
    )


def is_map(field: FieldDescriptor) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def is_utf8(field: Any) -> bool:
    """Return whether protobuf refuses a record with other bytes in a text field."""
    if field.type != field.TYPE_STRING:
        return False
    file = _file_of(field.file.serialized_pb)
    if file.syntax != "editions":
        return str(file.syntax) == "proto3"
    none = descriptor_pb2.FeatureSet.NONE
    for options in (field.GetOptions(), file.options):
        if options.features.HasField("utf8_validation"):
            return bool(options.features.utf8_validation != none)
    return True


@lru_cache(64)
def _file_of(serialized: bytes) -> Any:
    return descriptor_pb2.FileDescriptorProto.FromString(serialized)


def fields_of(pool: Any, message: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Return the fields of a message in order of their numbers, and its extensions as ``[package.name]``."""
    fields = {field.name: field for field in sorted(message.fields, key=lambda field: field.number)}
    extensions = sorted(pool.FindAllExtensions(message), key=lambda field: field.number)
    return fields | {f"[{field.full_name}]": field for field in extensions}


def oneofs_of(message: Descriptor) -> Iterator[Any]:
    """Yield the oneofs, without those that protoc makes of `optional` fields of proto3."""
    for oneof in message.oneofs:
        if len(oneof.fields) > 1 or not _is_optional(oneof.fields[0]):
            yield oneof


def _is_optional(field: Any) -> bool:
    message = descriptor_pb2.DescriptorProto()
    field.containing_type.CopyToProto(message)
    return bool(next(each.proto3_optional for each in message.field if each.number == field.number))


def enum_names(field: Any) -> dict[int, str]:
    """Return the first name of each number of an enum field, by ascending number."""
    names: dict[int, str] = {}
    for value in field.enum_type.values:
        names.setdefault(value.number, value.name)
    return dict(sorted(names.items()))


def split_path(path: str) -> tuple[str, ...]:
    """Split the path of a field at its dots; an extension is one part, in brackets."""
    return tuple(re.split(r"\.(?![^\[]*\])", path)) if path else ()
