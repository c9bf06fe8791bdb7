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
    "Dim",
    "Example",
    "Feature",
    "FeatureList",
    "FeatureLists",
    "Features",
    "FloatList",
    "Int64List",
    "SequenceExample",
    "TensorProto",
    "TensorShapeProto",
]

_PACKAGE = "tensorflow"
_FILE = "dask_tfrecord/messages.proto"

# Message: its fields, as (name, form, type) or (name, form, type, number); without a number it is the next one, from 1
# on. The forms are "one", "repeated", "packed", "map" (with string keys) and "oneof"; what is no scalar type names
# another message of the table, and enums are int32, which is how they are written.
_MESSAGES: dict[str, tuple[tuple[str, str, str] | tuple[str, str, str, int], ...]] = {
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
    # Resources and variants (14 and 15), which are no arrays, are left among the unknown fields.
    "Dim": (("size", "one", "int64"), ("name", "one", "string")),
    "TensorShapeProto": (("dim", "repeated", "Dim", 2), ("unknown_rank", "one", "bool")),
    "TensorProto": (
        ("dtype", "one", "int32"),
        ("tensor_shape", "one", "TensorShapeProto"),
        ("version_number", "one", "int32"),
        ("tensor_content", "one", "bytes"),
        ("float_val", "packed", "float"),
        ("double_val", "packed", "double"),
        ("int_val", "packed", "int32"),
        ("string_val", "repeated", "bytes"),
        ("scomplex_val", "packed", "float"),
        ("int64_val", "packed", "int64"),
        ("bool_val", "packed", "bool"),
        ("dcomplex_val", "packed", "double"),
        ("half_val", "packed", "int32"),
        ("uint32_val", "packed", "uint32", 16),
        ("uint64_val", "packed", "uint64"),
    ),
}
# The name of the only oneof there is, in Feature.
_ONEOF = "kind"

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL,
    "bytes": _Field.TYPE_BYTES,
    "double": _Field.TYPE_DOUBLE,
    "float": _Field.TYPE_FLOAT,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "string": _Field.TYPE_STRING,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


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
    number = 0
    for field_name, form, type_name, *given in _MESSAGES[name]:
        number = given[0] if given else number + 1
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

    class Dim(Message):  # noqa: D101
        size: int
        name: str

    class TensorShapeProto(Message):  # noqa: D101
        dim: RepeatedCompositeFieldContainer[Dim]
        unknown_rank: bool

    class TensorProto(Message):  # noqa: D101
        dtype: int
        tensor_shape: TensorShapeProto
        version_number: int
        tensor_content: bytes
        float_val: _Scalars[float]
        double_val: _Scalars[float]
        int_val: _Scalars[int]
        string_val: _Scalars[bytes]
        scomplex_val: _Scalars[float]
        int64_val: _Scalars[int]
        bool_val: _Scalars[bool]
        dcomplex_val: _Scalars[float]
        half_val: _Scalars[int]
        uint32_val: _Scalars[int]
        uint64_val: _Scalars[int]

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
        Dim, TensorShapeProto, TensorProto,
    ) = _message_classes()  # fmt: skip
