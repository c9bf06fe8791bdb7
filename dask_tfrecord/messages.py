"""Protobuf messages of TensorFlow and TensorFlow Metadata, without TensorFlow and without generated modules.

The messages are written in ``protos/*.proto``, and compiled to ``protos/messages.desc``, which this module loads into a
private descriptor pool: TensorFlow registers the same names in protobuf's default pool, and generated modules would tie
the library to one protobuf release. After a change, in ``protos``: ``python -m grpc_tools.protoc -I.
--descriptor_set_out=messages.desc *.proto``.

Code that works on single records uses these classes: schema inference, metadata, and the oracle of the tests. Columns
are decoded by the native core instead. Other modules do not import protobuf.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf.message import DecodeError as DecodeError
from google.protobuf.text_format import ParseError as ParseError
from google.protobuf.unknown_fields import UnknownFieldSet

_COMPILED = Path(__file__).parent / "protos" / "messages.desc"
_FILES = descriptor_pb2.FileDescriptorSet.FromString(_COMPILED.read_bytes()).file
_POOL = descriptor_pool.DescriptorPool()
for _file in _FILES:
    _POOL.AddSerializedFile(_file.SerializeToString())

if TYPE_CHECKING:
    # Names for type checkers; the other branch makes the classes.
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
        """Make the classes of ``records.proto``, in its order."""
        for message in _FILES[0].message_type:
            cls = message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"tensorflow.{message.name}"))
            # Pickle imports the class from this module; protobuf does not set it.
            cls.__module__ = __name__
            yield cls

    (
        BytesList, FloatList, Int64List, Feature, Features, Example, FeatureList, FeatureLists, SequenceExample,
        ExampleListWithContext, Dim, TensorShapeProto, TensorProto, *_, SequenceEntries,
    ) = _message_classes()  # fmt: skip

# Schema of TensorFlow Metadata; its fields lead to the nested messages.
MetadataSchema: Any = message_factory.GetMessageClass(_POOL.FindMessageTypeByName("tensorflow.metadata.v0.Schema"))
# Statistics of TensorFlow Metadata.
FeatureStatisticsList: Any = message_factory.GetMessageClass(
    _POOL.FindMessageTypeByName("tensorflow.metadata.v0.statistics.DatasetFeatureStatisticsList")
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
    """Return the numbers of the fields that a parsed message has and its `.proto` lacks."""
    fields: Any = UnknownFieldSet(message)
    return {field.field_number for field in fields}


def parse_metadata(text: str) -> Any:
    """Parse the text of a `schema.pbtxt`; fields that `schema.proto` lacks are ignored.

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
