"""Native core: record framing, decoding and encoding. Used by `storage`, `records`, `columns` and `images`."""

import enum
from collections.abc import Sequence
from typing import Annotated, Any, overload

import numpy
import numpy.typing
from numpy.typing import NDArray

class Stop(enum.Enum):
    """Reason why a walk over the records of a buffer stopped."""

    MORE = 0
    """The buffer ends within a record."""

    LIMIT = 1
    """The requested number of records was read."""

    FRAMING = 2
    """A CRC does not match."""

    FEATURE = 3
    """The CRCs of a record match, but the columns do not accept its content."""

class Kind(enum.Enum):
    """List of a Feature message that holds the values; the field number of the list."""

    NONE = 0

    BYTES = 1

    FLOATS = 2

    INT64 = 3

class Message(enum.Enum):
    """Message of a record."""

    EXAMPLE = 0

    SEQUENCE_EXAMPLE = 1

    EXAMPLE_LIST = 2
    """ExampleListWithContext of TF-Ranking."""

class ValueLayout(enum.Enum):
    """Layout of the values of one key."""

    FIXED = 0
    """The same number of values in every record or step."""

    RAGGED = 1
    """Any number of values."""

    RAW = 2
    """One bytes value of a known size, copied to its slot."""

    SKIPPED = 3
    """A known key whose values are not decoded."""

    UNSET = 4
    """A key that must not hold values."""

    TENSOR = 5
    """One bytes value that is a TensorProto."""

class Content(enum.Enum):
    """What values must be beyond their kind."""

    ANY = 0

    TEXT = 1
    """Bytes values are UTF-8."""

    BOOLEANS = 2
    """Raw bytes are 0 or 1."""

    MIXED = 3
    """
    Floats that some records list as integers, which the type holds exactly.
    """

class Cast(enum.Enum):
    """Type that int64 or float32 values are cast to, named after the NumPy dtype."""

    NONE = 0

    BOOL = 1

    INT8 = 2

    INT16 = 3

    INT32 = 4

    UINT8 = 5

    UINT16 = 6

    UINT32 = 7

    UINT64 = 8

    FLOAT16 = 9

    BFLOAT16 = 10

    FLOAT64 = 11

class DataType(enum.Enum):
    """Element type of a TensorProto; the numbers of TensorFlow's types.proto."""

    FLOAT32 = 1

    FLOAT64 = 2

    INT32 = 3

    UINT8 = 4

    INT16 = 5

    INT8 = 6

    BYTES = 7

    COMPLEX64 = 8

    INT64 = 9

    BOOL = 10

    BFLOAT16 = 14

    UINT16 = 17

    COMPLEX128 = 18

    FLOAT16 = 19

    UINT32 = 22

    UINT64 = 23

class Fault(enum.Enum):
    """Reason why the decoder refused a record."""

    NONE = 0

    MALFORMED = 1
    """Not a valid protobuf message."""

    NOT_EXAMPLE = 2
    """A valid message of another type."""

    MISSING = 3
    """The record lacks a feature."""

    KIND = 4
    """Values in the list of another kind."""

    COUNT = 5
    """Another number of values."""

    SIZE = 6
    """A raw value of another size."""

    UTF8 = 7
    """Text that is not valid UTF-8."""

    UNKNOWN_KEY = 8
    """A feature that the schema lacks."""

    BOOLEAN = 9
    """A raw bool that is neither 0 nor 1."""

    FULL = 10
    """The output buffer of a column is full, or its memory limit is reached."""

    CAST = 11
    """A value outside the range of the type that it is cast to."""

    TENSOR = 12
    """Not a TensorProto, or one of another dtype, shape or size."""

class Walk:
    """Result of a walk over the records of a buffer."""

    @property
    def records(self) -> int:
        """Number of records passed."""

    @property
    def consumed(self) -> int:
        """Bytes up to the next record; past the end of the buffer if a record was skipped by its header."""

    @property
    def stop(self) -> Stop:
        """Reason why the walk stopped."""

    @property
    def need(self) -> int:
        """After `Stop.MORE`: bytes from the next record on that the next call needs."""

class Origin:
    """Bytes that a decoder reads itself: of a file, or in memory."""

    def __init__(
        self,
        file: int | None,
        memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
        *,
        stop: int,
        size: int,
        most: int,
        first: int,
        block: int,
    ) -> None:
        """
        Read `file`, a descriptor that stays open, or `memory`.

        `stop` is the position where reading will probably stop, and `size` that of the end. A call reads about
        `most` bytes at most: `first` of them at once before the first record, and then twice as many each time, up
        to `block`.
        """

def find_header(
    buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    begin: int,
    end: int,
    available: int,
) -> int:
    """Return the distance to the next valid header, of a record that ends within `available` bytes, or -1."""

def scan(
    buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    begin: int,
    end: int,
    limit: int,
    check_crc: bool,
) -> Walk:
    """Walk the headers in ``buffer[begin:end]``, at most `limit` of them if it is not negative."""

def find_ends(
    buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    begin: int,
    end: int,
    check_crc: bool,
    ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
) -> Walk:
    """Walk the headers in ``buffer[begin:end]`` and write the bytes up to the end of each record to `ends`."""

def record_crcs(
    buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """Copy the stored CRCs of the payloads of records that end at the bytes `ends` to `out`, four bytes each."""

def read_ranges(
    file: int,
    begins: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> int:
    """
    Read ranges of a file, by its descriptor, one after the other to `out`.

    Returns -1, or the size of a file that ends before the last of them.
    """

def publish_files(temporaries: list[bytes], paths: list[bytes], values: list[object]) -> int:
    """
    Write files one after the other: each under a temporary name, which is then renamed to its path.

    Names are bytes, and values are buffers. Returns how many files were written before the first failure.
    """

def file_sizes(paths: list[bytes]) -> list[int]:
    """Return the sizes of files, whose paths are bytes; -1 for one whose size can't be determined."""

def check_records(
    buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    begin: int,
    end: int,
) -> Walk:
    """Walk the whole records in ``buffer[begin:end]`` whose CRCs match."""

class Problem:
    """Content that the decoder refused."""

    @property
    def fault(self) -> Fault:
        """What is wrong."""

    @property
    def column(self) -> int:
        """Index of the column, or -1."""

    @property
    def step(self) -> int:
        """Step of a feature list, item of a list of Examples, or -1."""

    @property
    def found(self) -> int:
        """A Kind, count, size or value, depending on the fault."""

    @property
    def text(self) -> bytes:
        """Key of an unknown feature, or description of a tensor; UTF-8."""

class ColumnOutput:
    """Decoded rows of one column."""

    @property
    def values(self) -> numpy.typing.NDArray[numpy.uint8] | None:
        """Bytes of the values; None if they are in an output buffer of the caller, or only counted."""

    @property
    def value_splits(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """Splits of bytes values."""

    @property
    def step_splits(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """Splits of the values by the steps of a ragged feature list, or by items."""

    @property
    def row_splits(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """Splits of the values, or the steps, by records."""

    @property
    def shapes(self) -> numpy.typing.NDArray[numpy.int64] | None:
        """Shapes of the tensors, flattened."""

class ColumnSpec:
    """One key of the records: kind and layout of its values."""

    def __init__(
        self,
        key: bytes,
        kind: Kind,
        layout: ValueLayout,
        *,
        count: int = 1,
        swap: int = 1,
        content: Content = Content.ANY,
        list: bool = False,
        optional: bool = False,
        counted: bool = False,
        cast: Cast = Cast.NONE,
        default_value: Sequence[bytes] = (),
        tensor_dtype: DataType | None = None,
        tensor_item: int = 0,
        tensor_shape: Sequence[int] = (),
    ) -> None: ...

def read_tensors(
    values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    splits: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    spec: ColumnSpec,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")] | None,
    limit: int,
) -> tuple[ColumnOutput, Problem]:
    """
    Read a TensorProto from each ``values[splits[i]:splits[i + 1]]``, to `out` if it is given.

    `limit` is the maximum memory of the values in bytes. The step of the problem is the number of the tensor.
    """

class Decoder:
    """Decodes records to columns."""

    def __init__(
        self, columns: Sequence[ColumnSpec], check_crc: bool, closed: bool, message: Message = Message.EXAMPLE
    ) -> None: ...
    def set_output(
        self, column: int, memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
    ) -> None:
        """Decode a dense column to `memory`, which holds all rows."""

    def offer_output(
        self, column: int, memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
    ) -> None:
        """Decode the values of a ragged column to `memory`, or to memory of the decoder once they do not fit."""

    def feed(
        self,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        begin: int,
        end: int,
        limit: int,
    ) -> Walk:
        """Decode the records in ``buffer[begin:end]``, at most `limit` of them if it is not negative."""

    def feed_on(
        self,
        origin: Origin,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        begin: int,
        end: int,
        position: int,
        limit: int,
        offset: int,
        last: int | None,
        nbytes: int = 0,
        rows: int = -1,
    ) -> tuple[Walk, int, int, int]:
        """
        Decode the records in ``buffer[begin:end]`` and those that follow in the origin from `position` on.

        Returns a Walk, and begin, end and position of what is in view then. The last record begins at byte `last`
        of the stream at most. `nbytes` and `rows` are those of all records; 0 if memory is allocated for them.
        """

    def feed_selected_on(
        self,
        origin: Origin,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        begin: int,
        end: int,
        position: int,
        first: int,
        selected: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        offset: int,
        nbytes: int = 0,
        rows: int = -1,
        ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")] | None = None,
    ) -> tuple[Walk, int, int, int, int]:
        """
        Decode the records with the ascending numbers `selected`, in view and in the origin; others are skipped.

        Returns the results of `feed_on`, and the number of decoded records. The first record in view has the number
        `first`. The bytes of the stream up to the end of each record from there on are written to `ends`, up to a
        damaged header. If a record ends beyond the origin, so does the position.
        """

    def feed_selected(
        self,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        begin: int,
        end: int,
        first: int,
        selected: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> Walk:
        """
        Decode the records with the ascending numbers `selected`; `first` is the number of the first record.

        Other records are skipped by their headers.
        """

    def preallocate(self, factor: float) -> None:
        """Allocate memory for about `factor` times the values decoded so far."""

    def set_memory_limit(self, nbytes: int) -> None:
        """Refuse tensors and default values that would grow the memory of a column beyond `nbytes`: `Fault.FULL`."""

    def problem(self) -> Problem:
        """Return why the last record was refused, after `Stop.FEATURE`."""

    def take_output(self, column: int) -> ColumnOutput:
        """Return the arrays of a column and give up their memory; records can no longer be fed."""

class Field:
    """Values of one key of the records, in flat arrays."""

    def __init__(
        self,
        key: bytes,
        kind: Kind,
        values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        *,
        list: bool = False,
        count: int = 1,
        prefix: bytes = ...,
        value_splits: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
        step_splits: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
        row_splits: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]
        | None = None,
    ) -> None: ...

class Encoded:
    """Result of encoding records to a buffer."""

    @property
    def records(self) -> int:
        """Number of records written."""

    @property
    def nbytes(self) -> int:
        """Bytes written."""

    @property
    def need(self) -> int:
        """Buffer size that the next record needs; 0 after the last record."""

class Encoder:
    """Encodes fields to framed records."""

    def __init__(self, fields: Sequence[Field], rows: int, message: Message = Message.EXAMPLE) -> None:
        """Validate the fields and copy their splits; the arrays of values are kept, not copied."""

    def encode(
        self, first: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
    ) -> Encoded:
        """
        Write as many records to `out` as fit, from row `first` on.

        Raises RuntimeError if another thread changed the values meanwhile; `out` is then undefined.
        """

class FieldType(enum.Enum):
    """Type of a protobuf field; the numbers of FieldDescriptorProto.Type."""

    DOUBLE = 1

    FLOAT = 2

    INT64 = 3

    UINT64 = 4

    INT32 = 5

    FIXED64 = 6

    FIXED32 = 7

    BOOL = 8

    STRING = 9

    GROUP = 10

    MESSAGE = 11

    BYTES = 12

    UINT32 = 13

    ENUM = 14

    SFIXED32 = 15

    SFIXED64 = 16

    SINT32 = 17

    SINT64 = 18

class MessageField:
    """One field of a message type: where its values go."""

    def __init__(
        self,
        number: int,
        type: FieldType,
        *,
        repeated: bool = False,
        packed: bool = False,
        required: bool = False,
        column: int = -1,
        message: int = -1,
        splits: int = -1,
        presence: int = -1,
        oneof: int = -1,
        default: bytes = ...,
        utf8: bool = False,
        is_map: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """
        Describe a field; indices are -1 where there is none.

        `column` is the output of the values, or of the bytes of a message. `message` is the table
        of a message whose fields are decoded, or, without any outputs, only walked. `splits` is the output of the row
        splits of a repeated field, `presence` of bools, `oneof` an index of the table. `default` holds the bytes of
        the stored number, or of the text; empty means zero or empty. Of a map, the entry table needs the key, field 1,
        with or without a column. `numbers` are the ascending numbers of a closed enum: others are unknown fields.

        A field without indices is skipped by its wire type. A field that the table lacks counts as unknown. All
        members of a oneof have to be in the table, decoded or not. `packed` and `required` matter to the encoder only.
        """

class MessageTable:
    """Fields of one place in the tree of a message type."""

    def __init__(self, fields: Sequence[MessageField], oneofs: Sequence[int] = ()) -> None:
        """Describe a place; `oneofs` are the outputs (int32) of the number of the field that is set (or 0), or -1."""

class MessageProblem:
    """Content that the message decoder refused."""

    @property
    def fault(self) -> Fault:
        """`Fault.MALFORMED`, `Fault.UTF8` or `Fault.FULL`."""

    @property
    def table(self) -> int:
        """Index of the table of the innermost message, or -1."""

    @property
    def field(self) -> int:
        """Index of the field in the table, or -1."""

    @property
    def number(self) -> int:
        """Number of the field on the wire, or 0."""

    @property
    def column(self) -> int:
        """Index of the column that is full, or -1."""

    @property
    def offset(self) -> int:
        """Byte in the record where the field starts."""

    @property
    def expected(self) -> str:
        """What the decoder expected."""

    @property
    def found(self) -> str:
        """What the record has instead."""

class MessageDecoder:
    """Decodes records of any message type to columns."""

    def __init__(
        self, tables: Sequence[MessageTable], ncolumns: int, nsplits: int, check_crc: bool, counted: Sequence[int] = ()
    ) -> None:
        """
        Validate the tables: a tree, the first is the root, each before the tables of its messages.

        Each column and each splits output has one field, oneof or presence. `counted` are columns of bytes values, or
        of repeated numbers, whose values are counted but not kept.
        """

    def set_output(
        self, column: int, memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
    ) -> None:
        """Decode a column of numbers with one value per record to `memory`, which holds all rows."""

    def offer_output(
        self, column: int, memory: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
    ) -> None:
        """Decode the values of any other column to `memory`, or to memory of the decoder once they do not fit."""

    def feed(
        self,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        begin: int,
        end: int,
        limit: int,
    ) -> Walk:
        """Decode the records in ``buffer[begin:end]``, at most `limit` of them if it is not negative."""

    def feed_on(
        self,
        origin: Origin,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        begin: int,
        end: int,
        position: int,
        limit: int,
        offset: int,
        last: int | None,
        nbytes: int = 0,
        rows: int = -1,
    ) -> tuple[Walk, int, int, int]:
        """
        Decode the records in ``buffer[begin:end]`` and those that follow in the origin from `position` on.

        Returns a Walk, and begin, end and position of what is in view then. The last record begins at byte `last`
        of the stream at most. `nbytes` and `rows` are those of all records; 0 if memory is allocated for them.
        """

    def feed_selected_on(
        self,
        origin: Origin,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
        begin: int,
        end: int,
        position: int,
        first: int,
        selected: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
        offset: int,
        nbytes: int = 0,
        rows: int = -1,
        ends: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")] | None = None,
    ) -> tuple[Walk, int, int, int, int]:
        """
        Decode the records with the ascending numbers `selected`, in view and in the origin; others are skipped.

        Returns the results of `feed_on`, and the number of decoded records. The first record in view has the number
        `first`. The bytes of the stream up to the end of each record from there on are written to `ends`, up to a
        damaged header. If a record ends beyond the origin, so does the position.
        """

    def feed_selected(
        self,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        begin: int,
        end: int,
        first: int,
        selected: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> Walk:
        """
        Decode the records with the ascending numbers `selected`; `first` is the number of the first record.

        Other records are skipped by their headers.
        """

    def feed_values(
        self,
        values: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        splits: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    ) -> int:
        """
        Decode the messages ``values[splits[i]:splits[i + 1]]``, which are bytes values of other records.

        Returns the number of messages decoded: all of them, or those before the one that `problem` describes.
        """

    def preallocate(self, factor: float) -> None:
        """Allocate memory for about `factor` times the values decoded so far."""

    def set_memory_limit(self, nbytes: int) -> None:
        """Refuse records that would grow the memory of a column beyond `nbytes`: `Fault.FULL`."""

    def problem(self) -> MessageProblem:
        """Return why the last record was refused, after `Stop.FEATURE`."""

    @property
    def unknown_fields(self) -> int:
        """Number of fields in the decoded records that the tables lack, or whose wire type or number does not fit."""

    def take_output(self, column: int) -> ColumnOutput:
        """Return the arrays of a column and give up their memory; records can no longer be fed."""

    def take_splits(self, splits: int) -> numpy.typing.NDArray[numpy.int64]:
        """Return the row splits of a repeated field by the items of the repeated message around it, or by records."""

class MessageEncoder:
    """Encodes columns of any message type to framed records, as protobuf serialises deterministically."""

    def __init__(
        self,
        tables: Sequence[MessageTable],
        columns: Sequence[
            Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)]
        ],
        value_splits: Sequence[
            Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)] | None
        ],
        splits: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]],
        rows: int,
    ) -> None:
        """
        Validate the arrays, which are those that a decoder of the same tables gives: bytes of values and their splits.

        Fields are written in the order of the table. A field with a presence output is written where it is present,
        a member of a oneof with an output where it is set. Another scalar is written unless it equals its default, or
        if it is required; another message unless it is empty, or holds nothing but defaults of required fields. Map
        entries are sorted by key.
        """

    def encode(
        self, first: int, out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]
    ) -> Encoded:
        """
        Write as many records to `out` as fit, from row `first` on.

        Raises ValueError if a string that has to be UTF-8 is not.
        """

def release_memory() -> None:
    """Return freed memory that the allocator keeps to the system."""

def take_splits(
    splits: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]],
    owners: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """Write the offsets between rows that are taken one after the other to `out`; see `take_rows`."""

def take_rows(
    values: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)]],
    splits: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]],
    item: int,
    owners: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Copy row ``index[i]`` of source ``owners[i]`` one after the other to `out`.

    Rows consist of items of `item` bytes; without splits, of one item. A single source needs no owners.
    """

def pad_rows(
    values: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)]],
    splits: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)]],
    owners: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    index: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)] | None,
    filler: bytes,
    length: int,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")],
) -> None:
    """
    Copy each row to a slot of `length` items of `out` and fill the rest of the slot with `filler`.

    Rows are those of `take_rows`; all rows of the only source without an index.
    """

def sort_rows(
    indices: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    axes: int,
    splits: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu", writable=False)],
    order: Annotated[NDArray[numpy.int64], dict(shape=(None,), order="C", device="cpu")],
    arrays: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)]],
    out: Sequence[Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu")]],
) -> None:
    """
    Write the order that sorts the items of each row by their indices to `order`; the sort is stable.

    Copy `arrays` of bytes of the items to `out` in this order.
    """

def bytes_rows(
    values: numpy.typing.NDArray[numpy.uint8],
    splits: numpy.typing.NDArray[numpy.int64],
    out: numpy.typing.NDArray[numpy.object_] | None = None,
) -> numpy.typing.NDArray[numpy.object_]:
    """Return ``values[splits[i]:splits[i + 1]]`` as an array of bytes objects: `out`, if it is given."""

def array_rows(
    values: numpy.typing.NDArray[Any],
    splits: numpy.typing.NDArray[numpy.int64],
    copies: bool,
    out: numpy.typing.NDArray[numpy.object_] | None = None,
) -> numpy.typing.NDArray[numpy.object_]:
    """
    Return ``values[splits[i]:splits[i + 1]]`` as an array of arrays: views of the values, or copies.

    The array is `out`, if it is given.
    """

def pack_text(
    values: numpy.typing.NDArray[numpy.uint8], splits: numpy.typing.NDArray[numpy.int64], out: numpy.typing.NDArray[Any]
) -> None:
    """Copy ``values[splits[i]:splits[i + 1]]``, which are UTF-8, to the strings of `out`."""

class Stretch:
    """Consecutive intact records of a damaged stream."""

    @property
    def start(self) -> int:
        """Byte of the first header."""

    @property
    def end(self) -> int:
        """Byte after the last record."""

    @property
    def records(self) -> int:
        """Number of records."""

    @property
    def root(self) -> int:
        """End of the preceding stretch that headers or a payload CRC lead from to this one, or -1."""

    @property
    def lost(self) -> int:
        """Number of damaged records between `root` and `start`."""

    @property
    def sealed(self) -> bool:
        """Whether one record with an intact payload lies between them."""

    @property
    def header_end(self) -> int:
        """End of the next record if its header is intact."""

    @property
    def reach(self) -> int:
        """End of the last record that intact headers lead to."""

    @property
    def payload(self) -> bool:
        """Whether the CRC of the whole stretch follows it."""

class Tail:
    """Bytes after the last stretch."""

    @property
    def root(self) -> int:
        """End of the stretch that headers lead from to the end of the stream, or -1."""

    @property
    def lost(self) -> int:
        """Number of damaged records between `root` and the end of the stream."""

class Resync:
    """Finds the stretches of intact records in a damaged stream."""

    def __init__(self, start: int, size: int | None = None) -> None:
        """Start at byte `start`, where a record begins; `size` is that of the stream, or None."""

    def feed(
        self,
        buffer: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
        begin: int,
        end: int,
        last: bool,
    ) -> int:
        """Read the bytes from `position` on and return the number of bytes that are no longer needed."""

    def stretches(self) -> list[Stretch]:
        """Return all stretches found so far."""

    def last_stretch(self) -> Stretch:
        """Return the last stretch found so far."""

    def tail(self) -> Tail:
        """Describe the bytes after the last stretch, once all bytes are read."""

    @property
    def position(self) -> int:
        """Byte of the stream that the next call of `feed` starts at."""

    @property
    def nested(self) -> int:
        """Number of intact records so far whose payload holds records."""

@overload
def scale_pixels(
    pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu")],
) -> None: ...
@overload
def scale_pixels(
    pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu")],
) -> None: ...
@overload
def scale_pixels(
    pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu")],
) -> None: ...
@overload
def scale_pixels(
    pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order="C", device="cpu")],
) -> None: ...
@overload
def scale_pixels(
    pixels: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu")],
) -> None: ...
@overload
def scale_pixels(
    pixels: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu")],
) -> None: ...
@overload
def scale_pixels(
    pixels: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order="C", device="cpu")],
) -> None:
    """Write pixels times `factor` to `out`, in the precision of `out`."""

@overload
def resize_pixels(
    pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu")],
    lanczos: bool = False,
    antialias: bool = False,
) -> None: ...
@overload
def resize_pixels(
    pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu")],
    lanczos: bool = False,
    antialias: bool = False,
) -> None: ...
@overload
def resize_pixels(
    pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu")],
    lanczos: bool = False,
    antialias: bool = False,
) -> None: ...
@overload
def resize_pixels(
    pixels: Annotated[NDArray[numpy.uint8], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order="C", device="cpu")],
    lanczos: bool = False,
    antialias: bool = False,
) -> None: ...
@overload
def resize_pixels(
    pixels: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu")],
    lanczos: bool = False,
    antialias: bool = False,
) -> None: ...
@overload
def resize_pixels(
    pixels: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu")],
    lanczos: bool = False,
    antialias: bool = False,
) -> None: ...
@overload
def resize_pixels(
    pixels: Annotated[NDArray[numpy.uint16], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float64], dict(shape=(None, None, None), order="C", device="cpu")],
    lanczos: bool = False,
    antialias: bool = False,
) -> None: ...
@overload
def resize_pixels(
    pixels: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu", writable=False)],
    factor: float,
    out: Annotated[NDArray[numpy.float32], dict(shape=(None, None, None), order="C", device="cpu")],
    lanczos: bool = False,
    antialias: bool = False,
) -> None:
    """Multiply pixels by `factor` and resize them to the shape of `out`, as `tf.image.resize` does."""

def unfilter_png(
    filtered: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order="C", device="cpu", writable=False)],
    pixel_size: int,
    swap: bool,
    out: Annotated[NDArray[numpy.uint8], dict(shape=(None, None), order="C", device="cpu")],
) -> int:
    """Undo the filters of PNG rows, swap bytes of 16-bit samples, return the rows before an unknown filter."""
