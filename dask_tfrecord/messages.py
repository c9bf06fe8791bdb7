"""TensorFlow's record messages, without TensorFlow and without generated modules.

The few message classes are built from the table below at import, in a descriptor pool of their own: TensorFlow
registers the same names in protobuf's default pool, and generated code would tie the library to one protobuf release.
They serve whatever works on single records (inference, metadata, the test oracle); columns never go through them.

This module imports protobuf and nothing else, and protobuf is imported nowhere else in the library.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

__all__ = [
    "BytesList",
    "DecodeError",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
]

_PACKAGE = "tensorflow"
_FILE = "dask_tfrecord/messages.proto"

# Message: its fields, numbered from 1, as (name, form, type). The forms are "one", "repeated", "packed", "map" (with
# string keys) and "oneof"; what is no scalar type names another message of the table.
_MESSAGES: dict[str, tuple[tuple[str, str, str], ...]] = {
    "BytesList": (("value", "repeated", "bytes"),),
    "FloatList": (("value", "packed", "float"),),
    "Int64List": (("value", "packed", "int64"),),
    "Feature": (
        ("bytes_list", "oneof", "BytesList"),
        ("float_list", "oneof", "FloatList"),
        ("int64_list", "oneof", "Int64List"),
    ),
    "Features": (("feature", "map", "Feature"),),
    "Example": (("features", "one", "Features"),),
    "FeatureList": (("feature", "repeated", "Feature"),),
    "FeatureLists": (("feature_list", "map", "FeatureList"),),
    "SequenceExample": (("context", "one", "Features"), ("feature_lists", "one", "FeatureLists")),
}
# The name of the only oneof there is, in Feature.
_ONEOF = "kind"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"bytes": _Field.TYPE_BYTES, "float": _Field.TYPE_FLOAT, "int64": _Field.TYPE_INT64}


def _set_type(field: descriptor_pb2.FieldDescriptorProto, type_name: str) -> None:
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    else:
        field.type = _Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{type_name}"


def _add_map_entry(message: descriptor_pb2.DescriptorProto, field_name: str, type_name: str) -> str:
    """Declare the entry message that stands behind a map field, and return its name."""
    entry = message.nested_type.add(name="".join(part.title() for part in field_name.split("_")) + "Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    _set_type(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), type_name)
    return f"{message.name}.{entry.name}"


def _describe(name: str) -> descriptor_pb2.DescriptorProto:
    """Descriptor of one message of the table."""
    message = descriptor_pb2.DescriptorProto(name=name)
    for number, (field_name, form, type_name) in enumerate(_MESSAGES[name], start=1):
        repeated = form in ("repeated", "packed", "map")
        label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        field = message.field.add(name=field_name, number=number, label=label)
        if form == "map":
            type_name = _add_map_entry(message, field_name, type_name)
        _set_type(field, type_name)
        if form == "packed":
            field.options.packed = True
        if form == "oneof":
            if not message.oneof_decl:
                message.oneof_decl.add(name=_ONEOF)
            field.oneof_index = 0
    return message


def _private_pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name=_FILE, package=_PACKAGE, syntax="proto3", message_type=[_describe(name) for name in _MESSAGES]
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


if TYPE_CHECKING:
    # What a type checker can't see: the classes that the other branch makes.
    from google.protobuf.internal.containers import MessageMap, RepeatedCompositeFieldContainer
    from google.protobuf.internal.containers import RepeatedScalarFieldContainer as _Scalars
    from google.protobuf.message import Message

    class BytesList(Message):  # noqa: D101
        value: _Scalars[bytes]

    class FloatList(Message):  # noqa: D101
        value: _Scalars[float]

    class Int64List(Message):  # noqa: D101
        value: _Scalars[int]

    class Feature(Message):  # noqa: D101
        bytes_list: BytesList
        float_list: FloatList
        int64_list: Int64List

    class Features(Message):  # noqa: D101
        feature: MessageMap[str, Feature]

    class Example(Message):  # noqa: D101
        features: Features

    class FeatureList(Message):  # noqa: D101
        feature: RepeatedCompositeFieldContainer[Feature]

    class FeatureLists(Message):  # noqa: D101
        feature_list: MessageMap[str, FeatureList]

    class SequenceExample(Message):  # noqa: D101
        context: Features
        feature_lists: FeatureLists

else:

    def _message_classes() -> Iterator[type[Any]]:
        """Make the classes, in the order of the table."""
        pool = _private_pool()
        for name in _MESSAGES:
            cls = message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
            # Where pickle finds it again; protobuf leaves this open.
            cls.__module__ = __name__
            yield cls

    (
        BytesList, FloatList, Int64List, Feature, Features, Example, FeatureList, FeatureLists, SequenceExample,
    ) = _message_classes()  # fmt: skip
