"""Random message types of protobuf, and random messages of them.

A type is drawn as a FileDescriptorSet: two files, the second imports the first, with all types and labels of fields.
Its classes live in a pool of their own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from google import protobuf
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

Field = descriptor_pb2.FieldDescriptorProto
WIDTHS = {
    **dict.fromkeys((Field.TYPE_INT32, Field.TYPE_SINT32, Field.TYPE_SFIXED32), (-(2**31), 2**31 - 1)),
    **dict.fromkeys((Field.TYPE_INT64, Field.TYPE_SINT64, Field.TYPE_SFIXED64), (-(2**63), 2**63 - 1)),
    **dict.fromkeys((Field.TYPE_UINT32, Field.TYPE_FIXED32), (0, 2**32 - 1)),
    **dict.fromkeys((Field.TYPE_UINT64, Field.TYPE_FIXED64), (0, 2**64 - 1)),
}
FLOATS = {Field.TYPE_FLOAT: 3.4028234663852886e38, Field.TYPE_DOUBLE: 1.7976931348623157e308}
SCALARS = [*WIDTHS, *FLOATS, Field.TYPE_BOOL, Field.TYPE_STRING, Field.TYPE_BYTES]
KEYS = [*WIDTHS, Field.TYPE_BOOL, Field.TYPE_STRING]
PACKABLE = [*WIDTHS, *FLOATS, Field.TYPE_BOOL]
_WELL_KNOWN = [
    timestamp_pb2.Timestamp,
    duration_pb2.Duration,
    any_pb2.Any,
    struct_pb2.ListValue,
    *(getattr(wrappers_pb2, f"{name}Value") for name in ("Double", "Int64", "UInt32", "Bool", "String", "Bytes")),
]
_IMPORTS = [timestamp_pb2, duration_pb2, any_pb2, struct_pb2, wrappers_pb2]
PACKAGE = "random.types"
ROOT = f"{PACKAGE}.Root"
# Earlier releases of protobuf know the name of the first edition, but not its features.
_HAS_EDITIONS = tuple(map(int, protobuf.__version__.split(".")[:2])) >= (5, 27)
SYNTAXES = ["proto2", "proto3", *(["editions"] if _HAS_EDITIONS else [])]
_MAX_NUMBER = 2**29 - 1
_TEXTS = ["", "a", "zero\0byte", "ä", "漢字", "🦆", "\U0010ffff", "long " * 40, "~" * 127, "~" * 128]


def random_type(seed: object) -> descriptor_pb2.FileDescriptorSet:
    """Draw a message type: its root is `ROOT`, the last file holds it."""
    return _TypeDraw(random.Random(f"type {seed}")).drawn()


def message_class(files: descriptor_pb2.FileDescriptorSet, name: str = ROOT) -> type[Any]:
    """Make the class of a message type, in a pool of its own."""
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


class _TypeDraw:
    """Draws of one type. Messages refer to those drawn before; some to themselves or to later ones."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.messages: list[str] = []
        # Full name, values and whether it is closed.
        self.enums: list[tuple[str, dict[str, int], bool]] = []
        self.names = 0

    def drawn(self) -> descriptor_pb2.FileDescriptorSet:
        files = descriptor_pb2.FileDescriptorSet()
        for module in _IMPORTS:
            module.DESCRIPTOR.CopyToProto(files.file.add())
        base = self.file("base.proto", [file.name for file in files.file], [f"B{i}" for i in range(self.upto(3))])
        files.file.add().CopyFrom(base)
        imports = [file.name for file in files.file]
        names = [f"M{i}" for i in range(self.upto(3))]
        files.file.add().CopyFrom(self.file("root.proto", imports, [*names, "Root"]))
        return files

    def upto(self, limit: int) -> int:
        return self.rng.randint(1, limit)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def name(self) -> str:
        """Return a new name, in one of several spellings."""
        self.names += 1
        return self.rng.choice(["f{}", "snake_case_{}", "camelCase{}", "class_{}", "Upper{}", "_{}x"]).format(
            self.names
        )

    def file(self, path: str, imports: list[str], messages: list[str]) -> descriptor_pb2.FileDescriptorProto:
        syntax = self.rng.choice(SYNTAXES)
        file = descriptor_pb2.FileDescriptorProto(name=path, package=PACKAGE, syntax=syntax, dependency=imports)
        if syntax == "editions":
            file.edition = descriptor_pb2.EDITION_2023
            features = file.options.features
            features.enum_type = self.rng.choice([features.OPEN, features.CLOSED])
            features.repeated_field_encoding = self.rng.choice([features.PACKED, features.EXPANDED])
            features.utf8_validation = self.rng.choice([features.VERIFY, features.NONE])
        for number in range(self.upto(2)):
            self.enum(file.enum_type.add(name=f"E{path[0]}{number}"), PACKAGE, syntax)
        ahead = [f"{PACKAGE}.{name}" for name in messages]
        for name in messages:
            message = file.message_type.add(name=name)
            self.message(message, f"{PACKAGE}.{name}", syntax, ahead, root=name == "Root")
            self.messages.append(f"{PACKAGE}.{name}")
        if syntax != "proto3":
            self.extensions(file)
        return file

    def enum(self, enum: descriptor_pb2.EnumDescriptorProto, scope: str, syntax: str) -> None:
        """Draw an enum: the first value is 0 in proto3, others are sparse, negative, or aliases."""
        closed = syntax == "proto2"
        if syntax == "editions":
            closed, features = self.chance(0.5), enum.options.features
            features.enum_type = features.CLOSED if closed else features.OPEN
        numbers = [] if closed and self.chance(0.5) else [0]
        pool = [1, 2, 3, -1, -7, 127, 128, 300, 70_000, 2**31 - 1, -(2**31)]
        numbers += self.rng.sample(pool, self.upto(5))
        if self.chance(0.3):
            numbers.append(self.rng.choice(numbers))
            enum.options.allow_alias = True
        for place, number in enumerate(numbers):
            enum.value.add(name=f"{enum.name.upper()}_{place}", number=number)
        self.enums.append((f"{scope}.{enum.name}", {value.name: value.number for value in enum.value}, closed))

    def message(
        self, message: descriptor_pb2.DescriptorProto, path: str, syntax: str, ahead: list[str], *, root: bool
    ) -> None:
        if self.chance(0.1) and not root:
            return
        if self.chance(0.2):
            self.enum(message.enum_type.add(name="Inner"), path, syntax)
        extendable = syntax != "proto3" and self.chance(0.5)
        taken: set[int] = set()
        if extendable:
            low = self.rng.choice([100, 1000, 5_000_000])
            message.extension_range.add(start=low, end=low + 50)
            taken.update(range(low, low + 50))
        for _ in range(self.upto(12 if root else 5)):
            self.field(message, path, syntax, ahead, taken)
        # A field with explicit presence has a oneof of its own, after the others.
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_synthetic_{field.name}")

    def number(self, taken: set[int]) -> int:
        while True:
            low, high = self.rng.choice([(1, 15), (1, 15), (16, 2047), (2048, 200_000), (_MAX_NUMBER - 3, _MAX_NUMBER)])
            number = self.rng.randint(low, high)
            if number not in taken and not 19_000 <= number < 20_000:
                taken.add(number)
                return number

    def field(
        self, message: descriptor_pb2.DescriptorProto, path: str, syntax: str, ahead: list[str], taken: set[int]
    ) -> None:
        form = self.rng.choices(
            ["one", "repeated", "map", "oneof", "optional", "group"], [40, 25, 10, 10, 10, 5 * (syntax == "proto2")]
        )[0]
        if form == "map":
            self.map(message, path, syntax, ahead, taken)
        elif form == "oneof":
            place = len(message.oneof_decl)
            message.oneof_decl.add(name=self.name())
            for _ in range(self.upto(4)):
                field = self.scalar_or_message(message, path, syntax, ahead, taken)
                field.label, field.oneof_index = Field.LABEL_OPTIONAL, place
                field.ClearField("default_value")
        elif form == "group":
            self.names += 1
            nested = message.nested_type.add(name=f"Group{self.names}")
            inner: set[int] = set()
            for _ in range(self.upto(3)):
                self.field(nested, f"{path}.{nested.name}", syntax, [], inner)
            label = self.rng.choice([Field.LABEL_OPTIONAL, Field.LABEL_REPEATED])
            message.field.add(
                name=nested.name.lower(),
                number=self.number(taken),
                label=label,
                type=Field.TYPE_GROUP,
                type_name=f".{path}.{nested.name}",
            )
        else:
            field = self.scalar_or_message(message, path, syntax, ahead, taken)
            if form == "repeated":
                field.label = Field.LABEL_REPEATED
                field.ClearField("default_value")
                if (field.type in PACKABLE or field.type == Field.TYPE_ENUM) and self.chance(0.6):
                    self.pack(field, syntax)
            elif syntax == "proto2" and self.chance(0.2):
                field.label = Field.LABEL_REQUIRED
            elif syntax == "editions" and self.chance(0.4):
                self.presence(field)
            elif syntax == "proto3" and form == "optional":
                field.proto3_optional = True

    def scalar_or_message(
        self, message: descriptor_pb2.DescriptorProto, path: str, syntax: str, ahead: list[str], taken: set[int]
    ) -> descriptor_pb2.FieldDescriptorProto:
        field = message.field.add(name=self.name(), number=self.number(taken), label=Field.LABEL_OPTIONAL)
        self.type(field, syntax, ahead)
        if syntax != "proto3" and self.chance(0.4):
            self.default(field)
        if syntax == "editions" and field.type == Field.TYPE_MESSAGE and self.chance(0.3):
            field.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
        return field

    def pack(self, field: descriptor_pb2.FieldDescriptorProto, syntax: str) -> None:
        packed = self.chance(0.5)
        if syntax == "editions":
            features = field.options.features
            features.repeated_field_encoding = features.PACKED if packed else features.EXPANDED
        else:
            field.options.packed = packed

    def presence(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        """Make a singular field of an edition required, or one without presence if it may be."""
        features = field.options.features
        closed = {f".{name}" for name, _, closed in self.enums if closed}
        if self.chance(0.3):
            features.field_presence = features.LEGACY_REQUIRED
        elif not (field.type == Field.TYPE_MESSAGE or field.HasField("default_value") or field.type_name in closed):
            features.field_presence = features.IMPLICIT

    def type(
        self, field: descriptor_pb2.FieldDescriptorProto, syntax: str, ahead: list[str], *, of_map: bool = False
    ) -> None:
        # The values of a map have the default value 0.
        enums = [
            name
            for name, values, closed in self.enums
            if (syntax != "proto3" or not closed) and (not of_map or next(iter(values.values())) == 0)
        ]
        kind = self.rng.choices(["scalar", "enum", "message", "well known", "recursive"], [55, 10, 20, 8, 4])[0]
        if kind == "enum" and enums:
            field.type, field.type_name = Field.TYPE_ENUM, "." + self.rng.choice(enums)
        elif kind == "message" and self.messages:
            field.type, field.type_name = Field.TYPE_MESSAGE, "." + self.rng.choice(self.messages)
        elif kind == "well known":
            field.type = Field.TYPE_MESSAGE
            field.type_name = "." + self.rng.choice(_WELL_KNOWN).DESCRIPTOR.full_name
        elif kind == "recursive" and ahead:
            field.type, field.type_name = Field.TYPE_MESSAGE, "." + self.rng.choice(ahead)
        else:
            field.type = self.rng.choice(SCALARS)

    def default(self, field: descriptor_pb2.FieldDescriptorProto) -> None:
        """Declare a default value, in the text of descriptor.proto."""
        rng = self.rng
        if field.type in WIDTHS:
            low, high = WIDTHS[field.type]
            field.default_value = str(rng.choice([low, high, min(7, high), max(-7, low)]))
        elif field.type in FLOATS:
            field.default_value = rng.choice(["inf", "-inf", "nan", "-0", "1.5", "-2.5e-3", "1e30"])
        elif field.type == Field.TYPE_BOOL:
            field.default_value = rng.choice(["true", "false"])
        elif field.type == Field.TYPE_STRING:
            field.default_value = rng.choice(["text", "ä 漢", "quoted \" ' \\"])
        elif field.type == Field.TYPE_BYTES:
            field.default_value = rng.choice(["bytes", r"\000\377", r"\n\"\\"])
        elif field.type == Field.TYPE_ENUM:
            values = {f".{name}": values for name, values, _ in self.enums}[field.type_name]
            field.default_value = rng.choice([*values])

    def map(
        self, message: descriptor_pb2.DescriptorProto, path: str, syntax: str, ahead: list[str], taken: set[int]
    ) -> None:
        self.names += 1
        name = f"map{self.names}"
        entry = message.nested_type.add(name=f"Map{self.names}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=Field.LABEL_OPTIONAL, type=self.rng.choice(KEYS))
        self.type(entry.field.add(name="value", number=2, label=Field.LABEL_OPTIONAL), syntax, ahead, of_map=True)
        message.field.add(
            name=name,
            number=self.number(taken),
            label=Field.LABEL_REPEATED,
            type=Field.TYPE_MESSAGE,
            type_name=f".{path}.{entry.name}",
        )

    def extensions(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        """Extend messages of the file."""
        for message in file.message_type:
            for extended in message.extension_range:
                for number in self.rng.sample(range(extended.start, extended.end), self.upto(3)):
                    field = file.extension.add(
                        name=f"ext_{self.name()}",
                        number=number,
                        label=self.rng.choice([Field.LABEL_OPTIONAL, Field.LABEL_REPEATED]),
                        extendee=f".{PACKAGE}.{message.name}",
                    )
                    self.type(field, file.syntax, [])
                    if field.label == Field.LABEL_OPTIONAL and self.chance(0.4):
                        self.default(field)


def is_repeated(field: Any) -> bool:
    """Return whether a field is repeated; a map is."""
    # The attribute replaces the label in new releases of protobuf.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == Field.LABEL_REPEATED)


def is_map(field: Any) -> bool:
    """Return whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def random_message(cls: type[Any], rng: random.Random, *, fill: float | None = None) -> Any:
    """Draw a message: each field is set with a probability, which is low deep inside recursive types."""
    message = cls()
    _fill(message, rng, rng.choice([0.2, 0.7, 0.95]) if fill is None else fill, 0)
    return message


def _fill(message: Any, rng: random.Random, fill: float, depth: int) -> None:
    descriptor = message.DESCRIPTOR
    extensions = sorted(descriptor.file.pool.FindAllExtensions(descriptor), key=lambda field: field.number)
    for field in [*descriptor.fields, *extensions]:
        if rng.random() >= (fill if depth < 3 or field.message_type is None else fill / depth):
            continue
        if field.is_extension:
            held = message.Extensions[field] if is_repeated(field) or field.message_type is not None else None
        else:
            held = getattr(message, field.name)
        if is_map(field):
            _fill_map(held, field, rng, fill, depth)
        elif is_repeated(field):
            for _ in range(_count(rng, field, depth)):
                if field.message_type is not None:
                    _fill_one(held.add(), rng, fill, depth)
                else:
                    held.append(random_value(field, rng))
        elif field.message_type is not None:
            held.SetInParent()
            _fill_one(held, rng, fill, depth)
        elif field.is_extension:
            message.Extensions[field] = random_value(field, rng)
        else:
            setattr(message, field.name, random_value(field, rng))


def _count(rng: random.Random, field: Any, depth: int) -> int:
    if field.message_type is not None:
        return rng.choice([0, 1, 1, 2, 3] if depth < 2 else [0, 1, 2])
    return rng.choice([0, 1, 2, 3, 5, 17, 40] if depth < 2 else [0, 1, 2, 3])


def _fill_map(held: Any, field: Any, rng: random.Random, fill: float, depth: int) -> None:
    key, value = (field.message_type.fields_by_number[number] for number in (1, 2))
    for _ in range(rng.choice([0, 1, 2, 4])):
        drawn = random_value(key, rng)
        if value.message_type is not None:
            _fill_one(held[drawn], rng, fill, depth)
        else:
            held[drawn] = random_value(value, rng)


def _fill_one(message: Any, rng: random.Random, fill: float, depth: int) -> None:
    name = message.DESCRIPTOR.full_name
    if name in ("google.protobuf.Timestamp", "google.protobuf.Duration"):
        sign = rng.choice([0, 1, 1, -1])
        message.seconds = sign * rng.choice([0, 1, 1_700_000_000, 9_223_372_035, rng.randrange(10**9)])
        nanos = rng.choice([0, 1, 999_999_999, rng.randrange(10**9)])
        message.nanos = -nanos if sign < 0 and name.endswith("Duration") else nanos
    else:
        _fill(message, rng, fill, depth + 1)


def random_value(field: Any, rng: random.Random) -> Any:
    """Draw a value of a scalar field, often one at the end of its range."""
    kind = field.type
    draw: Callable[[], Any]
    if kind in WIDTHS:
        low, high = WIDTHS[kind]
        bits = rng.randrange(high.bit_length() + 1)
        return rng.choice([0, low, high, min(1, high), max(-1, low), max(low, min(high, rng.randrange(1 << bits)))])
    if kind in FLOATS:
        draw = rng.choice(
            [
                lambda: rng.choice([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan, FLOATS[kind], -FLOATS[kind]]),
                lambda: rng.choice([5e-324, 1e-45, 1.1754943508222875e-38, 0.1]),
                lambda: rng.gauss(0, 1000),
            ]
        )
        return draw()
    if kind == Field.TYPE_BOOL:
        return rng.random() < 0.5
    if kind == Field.TYPE_STRING:
        return rng.choice([*_TEXTS, "".join(chr(rng.randrange(32, 0x2FF)) for _ in range(rng.randrange(20)))])
    if kind == Field.TYPE_BYTES:
        return rng.choice([b"", b"\0", b"\xff\xfe", b"x" * 300, rng.randbytes(rng.randrange(30))])
    numbers = [value.number for value in field.enum_type.values]
    if not field.enum_type.is_closed and rng.random() < 0.2:
        return rng.choice([-1, 5, 2**31 - 1, -(2**31), 77])
    return rng.choice(numbers)
