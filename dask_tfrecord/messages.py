"""Protobuf messages of TensorFlow and TensorFlow Metadata, without TensorFlow and without generated modules.

The message classes are built at import from the tables below. They use a private descriptor pool, because TensorFlow
registers the same names in protobuf's default pool. Generated modules would tie the library to one protobuf release.

Code that works on single records uses these classes: schema inference, metadata, and the oracle of the tests. Columns
are decoded by the native core instead. Other modules do not import protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError as DecodeError
from google.protobuf.text_format import ParseError as ParseError
from google.protobuf.unknown_fields import UnknownFieldSet

_Table = dict[str, tuple[tuple[str, str, str] | tuple[str, str, str, int], ...]]
_PACKAGE = "tensorflow"

# Fields of each message: (name, form, type) or (name, form, type, number). Fields without a number are counted on from
# the one before, beginning with 1. Forms are "one", "repeated", "packed", "map" (with string keys) and "oneof". A type
# is a scalar, a message of the table or an enum. Enums of TensorFlow are declared as int32, with the same encoding.
_MESSAGES: _Table = {
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
    "ExampleListWithContext": (("examples", "repeated", "Example"), ("context", "one", "Example")),
    # Fields 14 and 15, resources and variants, are not arrays and stay unknown fields.
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
    # A SequenceExample whose maps are lists of entries.
    "FeatureEntry": (("key", "one", "string"), ("value", "one", "Feature")),
    "FeatureEntries": (("feature", "repeated", "FeatureEntry"),),
    "ListEntry": (("key", "one", "string"), ("value", "one", "FeatureList")),
    "ListEntries": (("feature_list", "repeated", "ListEntry"),),
    "SequenceEntries": (("context", "one", "FeatureEntries"), ("feature_lists", "one", "ListEntries")),
}
# Name of the only oneof, in Feature.
_ONEOF = "kind"

# The fields of TensorFlow Metadata's schema that describe how values are stored; parsing ignores the others. Members of
# oneofs are declared as plain fields, which have the same encoding.
_METADATA_PACKAGE = "tensorflow.metadata.v0"
_METADATA: _Table = {
    "Schema": (
        ("feature", "repeated", "Feature"),
        ("sparse_feature", "repeated", "SparseFeature", 6),
        ("tensor_representation_group", "map", "TensorRepresentationGroup", 13),
    ),
    "Feature": (
        ("name", "one", "string"),
        ("deprecated", "one", "bool"),
        ("value_count", "one", "ValueCount", 5),
        ("type", "one", "FeatureType"),
        ("int_domain", "one", "IntDomain", 9),
        ("bool_domain", "one", "BoolDomain", 13),
        ("presence", "one", "FeaturePresence"),
        ("lifecycle_stage", "one", "LifecycleStage", 22),
        ("shape", "one", "FixedShape"),
        ("natural_language_domain", "one", "NaturalLanguageDomain"),
        ("image_domain", "one", "ImageDomain"),
        ("struct_domain", "one", "StructDomain", 29),
    ),
    "FeaturePresence": (("min_fraction", "one", "double"), ("min_count", "one", "int64")),
    "FixedShape": (("dim", "repeated", "Dim", 2),),
    "Dim": (("size", "one", "int64"), ("name", "one", "string")),
    "ValueCount": (("min", "one", "int64"), ("max", "one", "int64")),
    "IntDomain": (
        ("name", "one", "string"),
        ("min", "one", "int64", 3),
        ("max", "one", "int64"),
        ("is_categorical", "one", "bool"),
    ),
    "BoolDomain": (("name", "one", "string"),),
    "NaturalLanguageDomain": (("vocabulary", "one", "string"),),
    "ImageDomain": (("minimum_supported_image_fraction", "one", "float"),),
    "StructDomain": (("feature", "repeated", "Feature"), ("sparse_feature", "repeated", "SparseFeature")),
    "SparseFeature": (
        ("name", "one", "string"),
        ("deprecated", "one", "bool"),
        ("dense_shape", "one", "FixedShape", 5),
        ("index_feature", "repeated", "NamedFeature"),
        ("lifecycle_stage", "one", "LifecycleStage"),
        ("is_sorted", "one", "bool"),
        ("value_feature", "one", "NamedFeature"),
    ),
    "NamedFeature": (("name", "one", "string"),),
    "TensorRepresentationGroup": (("tensor_representation", "map", "TensorRepresentation"),),
    "TensorRepresentation": (
        ("dense_tensor", "one", "DenseTensor"),
        ("varlen_sparse_tensor", "one", "VarLenSparseTensor"),
        ("sparse_tensor", "one", "SparseTensor"),
        ("ragged_tensor", "one", "RaggedTensor"),
    ),
    "DenseTensor": (
        ("column_name", "one", "string"),
        ("shape", "one", "FixedShape"),
        ("default_value", "one", "DefaultValue"),
    ),
    "DefaultValue": (
        ("float_value", "one", "double"),
        ("int_value", "one", "int64"),
        ("bytes_value", "one", "bytes"),
        ("uint_value", "one", "uint64"),
    ),
    "VarLenSparseTensor": (("column_name", "one", "string"),),
    "SparseTensor": (
        ("dense_shape", "one", "FixedShape"),
        ("index_column_names", "repeated", "string"),
        ("value_column_name", "one", "string"),
        ("already_sorted", "one", "bool"),
    ),
    "RaggedTensor": (("feature_path", "one", "Path"), ("partition", "repeated", "Partition", 3)),
    "Path": (("step", "repeated", "string"),),
    "Partition": (("uniform_row_length", "one", "int64"), ("row_length", "one", "string")),
}

# TensorFlow Metadata's statistics, without weighted, custom and cross statistics. Their package has a name of its own,
# because names of enum values are unique in a package; neither the encoding nor the text format contain it.
_STATISTICS_PACKAGE = f"{_METADATA_PACKAGE}.statistics"
_STATISTICS: _Table = {
    "DatasetFeatureStatisticsList": (("datasets", "repeated", "DatasetFeatureStatistics"),),
    "DatasetFeatureStatistics": (
        ("name", "one", "string"),
        ("num_examples", "one", "uint64"),
        ("features", "repeated", "FeatureNameStatistics"),
    ),
    "FeatureNameStatistics": (
        ("name", "one", "string"),
        ("type", "one", "StatisticsType"),
        ("num_stats", "one", "NumericStatistics"),
        ("string_stats", "one", "StringStatistics"),
        ("bytes_stats", "one", "BytesStatistics"),
        ("path", "one", "Path", 8),
    ),
    "Path": (("step", "repeated", "string"),),
    "CommonStatistics": (
        ("num_non_missing", "one", "uint64"),
        ("num_missing", "one", "uint64"),
        ("min_num_values", "one", "uint64"),
        ("max_num_values", "one", "uint64"),
        ("avg_num_values", "one", "float"),
        ("num_values_histogram", "one", "Histogram"),
        ("tot_num_values", "one", "uint64", 8),
    ),
    "NumericStatistics": (
        ("common_stats", "one", "CommonStatistics"),
        ("mean", "one", "double"),
        ("std_dev", "one", "double"),
        ("num_zeros", "one", "uint64"),
        ("min", "one", "double"),
        ("median", "one", "double"),
        ("max", "one", "double"),
        ("histograms", "repeated", "Histogram"),
    ),
    "StringStatistics": (
        ("common_stats", "one", "CommonStatistics"),
        ("unique", "one", "uint64"),
        ("top_values", "repeated", "FreqAndValue"),
        ("avg_length", "one", "float"),
        ("rank_histogram", "one", "RankHistogram"),
    ),
    "FreqAndValue": (("value", "one", "string", 2), ("frequency", "one", "double")),
    "BytesStatistics": (
        ("common_stats", "one", "CommonStatistics"),
        ("unique", "one", "uint64"),
        ("avg_num_bytes", "one", "float"),
        ("min_num_bytes", "one", "float"),
        ("max_num_bytes", "one", "float"),
        ("max_num_bytes_int", "one", "int64"),
    ),
    "Histogram": (
        ("num_nan", "one", "uint64"),
        ("num_undefined", "one", "uint64"),
        ("buckets", "repeated", "Bucket"),
        ("type", "one", "HistogramType"),
    ),
    "Bucket": (("low_value", "one", "double"), ("high_value", "one", "double"), ("sample_count", "one", "double", 4)),
    "RankHistogram": (("buckets", "repeated", "RankBucket"),),
    "RankBucket": (
        ("low_rank", "one", "uint64"),
        ("high_rank", "one", "uint64"),
        ("label", "one", "string", 4),
        ("sample_count", "one", "double"),
    ),
}
# Value names in order of their numbers; None marks an unused number.
_ENUMS: dict[str, tuple[str | None, ...]] = {
    "StatisticsType": ("INT", "FLOAT", "STRING", "BYTES", "STRUCT"),
    "HistogramType": ("STANDARD", "QUANTILES"),
    "FeatureType": ("TYPE_UNKNOWN", "BYTES", "INT", "FLOAT", "STRUCT"),
    "LifecycleStage": (
        "UNKNOWN_STAGE", "PLANNED", "ALPHA", "BETA", "PRODUCTION", "DEPRECATED", "DEBUG_ONLY", "DISABLED", None,
        "VALIDATION_DERIVED",
    ),
}  # fmt: skip

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


def _set_type(field: descriptor_pb2.FieldDescriptorProto, type_name: str, package: str) -> None:
    if type_name in _SCALARS:
        field.type = _SCALARS[type_name]
    else:
        field.type = _Field.TYPE_ENUM if type_name in _ENUMS else _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{type_name}"


def _add_map_entry(message: descriptor_pb2.DescriptorProto, field_name: str, type_name: str, package: str) -> str:
    """Declare the entry message of a map field, and return its name."""
    entry = message.nested_type.add(name="".join(part.title() for part in field_name.split("_")) + "Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
    _set_type(entry.field.add(name="value", number=2, label=_Field.LABEL_OPTIONAL), type_name, package)
    return f"{message.name}.{entry.name}"


def _describe(name: str, table: _Table, package: str) -> descriptor_pb2.DescriptorProto:
    """Build the descriptor of one message of a table."""
    message = descriptor_pb2.DescriptorProto(name=name)
    number = 0
    for field_name, form, type_name, *given in table[name]:
        number = given[0] if given else number + 1
        repeated = form in ("repeated", "packed", "map")
        label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
        field = message.field.add(name=field_name, number=number, label=label)
        if form == "map":
            type_name = _add_map_entry(message, field_name, type_name, package)
        _set_type(field, type_name, package)
        if form == "packed":
            field.options.packed = True
        if form == "oneof":
            if not message.oneof_decl:
                message.oneof_decl.add(name=_ONEOF)
            field.oneof_index = 0
    return message


def _private_pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    # Schemas distinguish an absent field from a default value, which needs proto2; records do not.
    for package, syntax, table in (
        (_PACKAGE, "proto3", _MESSAGES),
        (_METADATA_PACKAGE, "proto2", _METADATA),
        (_STATISTICS_PACKAGE, "proto3", _STATISTICS),
    ):
        file = descriptor_pb2.FileDescriptorProto(
            name=f"dask_tfrecord/{package}.proto",
            package=package,
            syntax=syntax,
            message_type=[_describe(name, table, package) for name in table],
        )
        used = {type_name for fields in table.values() for _, _, type_name, *_ in fields}
        for name in sorted(used & _ENUMS.keys()):
            enum = file.enum_type.add(name=name)
            for number, value in enumerate(_ENUMS[name]):
                if value is not None:
                    enum.value.add(name=value, number=number)
        pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _private_pool()

if TYPE_CHECKING:
    # Names for type checkers; the other branch builds the classes, with the fields of the table.
    from google.protobuf.message import Message

    class _Message(Message):
        def __getattr__(self, name: str) -> Any: ...

    class BytesList(_Message): ...  # noqa: D101

    class FloatList(_Message): ...  # noqa: D101

    class Int64List(_Message): ...  # noqa: D101

    class Feature(_Message): ...  # noqa: D101

    class Features(_Message): ...  # noqa: D101

    class Example(_Message): ...  # noqa: D101

    class FeatureList(_Message): ...  # noqa: D101

    class FeatureLists(_Message): ...  # noqa: D101

    class SequenceExample(_Message): ...  # noqa: D101

    class ExampleListWithContext(_Message): ...  # noqa: D101

    class Dim(_Message): ...  # noqa: D101

    class TensorShapeProto(_Message): ...  # noqa: D101

    class TensorProto(_Message): ...  # noqa: D101

    class SequenceEntries(_Message): ...  # noqa: D101

else:

    def _message_classes() -> Iterator[type[Any]]:
        """Build the classes, in the order of the table."""
        for name in _MESSAGES:
            cls = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
            # Pickle imports the class from this module; protobuf does not set it.
            cls.__module__ = __name__
            yield cls

    (
        BytesList, FloatList, Int64List, Feature, Features, Example, FeatureList, FeatureLists, SequenceExample,
        ExampleListWithContext, Dim, TensorShapeProto, TensorProto, *_, SequenceEntries,
    ) = _message_classes()  # fmt: skip

# Schema of TensorFlow Metadata; its fields lead to the nested messages.
MetadataSchema: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_METADATA_PACKAGE}.Schema"))
# Statistics of TensorFlow Metadata.
FeatureStatisticsList: Any = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName(f"{_STATISTICS_PACKAGE}.DatasetFeatureStatisticsList")
)


def parse_sequence(payload: bytes) -> SequenceExample:
    """Parse a SequenceExample; entries of its maps may have unknown fields.

    The upb parser of protobuf treats an entry with an unknown field as an unknown entry, so its key is lost. Other
    parsers, and the column decoder, skip the field alone.

    Raises
    ------
    DecodeError
        If protobuf can't parse the payload.
    """
    record = SequenceExample.FromString(payload)
    maps = record.context, record.feature_lists
    if any(field.field_number == 1 for each in maps for field in UnknownFieldSet(each)):  # type: ignore[attr-defined]
        entries = SequenceEntries.FromString(payload)
        entries.DiscardUnknownFields()
        record = SequenceExample.FromString(entries.SerializeToString())
    return record


def unknown_fields(message: Any) -> set[int]:
    """Return the numbers of the fields that a parsed message has and its table lacks."""
    fields: Any = UnknownFieldSet(message)
    return {field.field_number for field in fields}


def parse_metadata(text: str) -> Any:
    """Parse the text of a `schema.pbtxt`; fields that the table does not list are ignored.

    Raises
    ------
    ParseError
        If `text` is not the text format of a schema.
    """
    return text_format.Parse(text, MetadataSchema(), allow_unknown_field=True)


def metadata_text(schema: Any) -> str:
    """Format a `MetadataSchema` or a `FeatureStatisticsList` as text."""
    text = text_format.MessageToString(schema, as_utf8=True)
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    # Escapes of the text format are bytes. Old releases of protobuf write control characters as they are.
    return "\n".join(
        "".join(c if c.isprintable() else "".join(f"\\{byte:03o}" for byte in c.encode()) for c in line)
        for line in text.split("\n")
    )


def varint_bytes(value: int) -> bytes:
    """Encode a varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])
