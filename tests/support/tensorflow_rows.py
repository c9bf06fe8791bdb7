"""Cases of docs/tensorflow.md, which lists the ones that differ: features, payloads, results of both libraries.

Results are columns in this library's form, with rows as lists. `REFUSED` means any error of TensorFlow; errors of this
library are given by class. ``EMPTY[kind]`` is an empty list, ``UNSET`` a Feature without a kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from oracle.messages import BytesList, Feature, FloatList, Int64List, TensorProto, TensorShapeProto

from dask_tfrecord.errors import FeatureError, SchemaError
from support.parsing_compare import Description
from support.wire import delimited, example, feature, varint
from support.wire import sequence_example as seq

UNSET = Feature()
EMPTY = {
    "string": Feature(bytes_list=BytesList()),
    "float32": Feature(float_list=FloatList()),
    "int64": Feature(int64_list=Int64List()),
}
REFUSED = "refused"
DIES = "dies"  # the whole process


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table."""

    features: Mapping[str, Any] | None
    payloads: Sequence[bytes]
    tensorflow: Any  # columns, REFUSED or DIES
    ours: Any  # relevant columns, or an error class
    sequences: Mapping[str, Any] | None = None
    steps: Mapping[str, Sequence[int]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Return whether both results agree."""
        if isinstance(self.ours, type):
            return self.tensorflow == REFUSED
        return repr(self.tensorflow) == repr(self.ours)


ROWS: dict[str, Row] = {}


def add(
    name: str, features: Any, payloads: Any, tensorflow: Any, ours: Any = None, *, key: str = "a", **more: Any
) -> None:
    """Add a row: a feature of the key `a`, or several; one payload, or a list; the column of the key, or several.

    `ours` defaults to TensorFlow's result.
    """
    assert name not in ROWS
    if not isinstance(features, Mapping):
        features = {"a": features}
    if ours is None:
        ours = FeatureError if tensorflow == REFUSED else tensorflow
    theirs, ours = ({key: result} if isinstance(result, list) else result for result in (tensorflow, ours))
    ROWS[name] = Row(features, payloads if isinstance(payloads, list) else [payloads], theirs, ours, **more)


# --- features --------------------------------------------------------------------------------------------------------


def fixed(shape: Any, dtype: Any = "int64", **more: Any) -> Description:
    return ("FixedLenFeature", {"shape": shape, "dtype": dtype, **more})


def varlen(dtype: Any = "int64", **more: Any) -> Description:
    return ("VarLenFeature", {"dtype": dtype, **more})


def padded(shape: Any, dtype: Any = "int64", allow_missing: bool = True, **more: Any) -> Description:
    return ("FixedLenSequenceFeature", {"shape": shape, "dtype": dtype, "allow_missing": allow_missing, **more})


def sparse(index_key: Any = "i", size: Any = 5, dtype: Any = "int64", **more: Any) -> Description:
    arguments = {"index_key": index_key, "value_key": "v", "dtype": dtype, "size": size, **more}
    return ("SparseFeature", arguments)


def ragged(*partitions: Any, dtype: Any = "int64", value_key: str | None = "v", **more: Any) -> Description:
    return ("RaggedFeature", {"dtype": dtype, "value_key": value_key, "partitions": list(partitions), **more})


# --- records ---------------------------------------------------------------------------------------------------------


def entry(key: str, content: bytes, swapped: bool = False) -> bytes:
    parts = [delimited(1, key.encode()), delimited(2, content)]
    return delimited(1, b"".join(reversed(parts) if swapped else parts))


def ex(**record: Any) -> bytes:
    """Return a serialized Example, never empty: it has an extra key that specs do not read."""
    return example(**({"other": [1]} | record))


def of_a(*contents: bytes) -> bytes:
    """Return a serialized Example with these Features as successive entries of the key `a`."""
    return delimited(1, b"".join(entry("a", content) for content in contents))


# --- FixedLenFeature -------------------------------------------------------------------------------------------------

FIVE = ex(a=[5])
NONE = ex()

add("fixed-scalar", fixed(()), [FIVE, ex(a=[6])], [5, 6])
add("fixed-shape", fixed((2, 2), "float32"), ex(a=[1.0, 2.0, 3.0, 4.0]), [[[1.0, 2.0], [3.0, 4.0]]])
add("fixed-bytes", fixed((), "string"), ex(a=[b"x\0"]), [b"x\0"])
add("fixed-absent", fixed(()), [FIVE, NONE], REFUSED)
add("fixed-absent-default", fixed((), default_value=7), [FIVE, NONE], [5, 7])
add("fixed-unset", fixed(()), ex(a=UNSET), REFUSED)
add("fixed-unset-default", fixed((), default_value=7), ex(a=UNSET), [7])
add("fixed-empty", fixed(()), ex(a=EMPTY["int64"]), REFUSED)
add("fixed-empty-default", fixed((), default_value=7), ex(a=EMPTY["int64"]), REFUSED, [7])
add("fixed-empty-other-kind", fixed((), default_value=7), ex(a=EMPTY["float32"]), REFUSED, [7])
add("fixed-count", fixed((2,), default_value=[7, 8]), ex(a=[1, 2, 3]), REFUSED)
add("fixed-kind", fixed((), default_value=7), ex(a=[5.0]), REFUSED)
MIXED = [ex(a=[2**53]), ex(a=[0.5])]
add("fixed-mixed", fixed((), "float64", mixed=True), MIXED, REFUSED, [2.0**53, 0.5])
add("fixed-mixed-inexact", fixed((), "float64", mixed=True), ex(a=[2**53 + 1]), REFUSED)
add("fixed-mixed-bytes", fixed((), "float64", mixed=True), ex(a=[b"5"]), REFUSED)
add("fixed-default-array", fixed((2, 2), default_value=[[1, 2], [3, 4]]), NONE, [[[1, 2], [3, 4]]])
add("fixed-default-flat", fixed((2, 2), default_value=[1, 2, 3, 4]), NONE, [[[1, 2], [3, 4]]])
add("fixed-default-one-value", fixed((), default_value=[7]), NONE, [7])
add("fixed-default-spread", fixed((2,), default_value=7), NONE, REFUSED, [[7, 7]])
add("fixed-default-size", fixed((2,), default_value=[7, 8, 9]), ex(a=[1, 2]), REFUSED, SchemaError)
add("fixed-default-fraction", fixed((), default_value=1.5), FIVE, REFUSED, SchemaError)
add("fixed-default-too-large", fixed((), default_value=2**63), FIVE, REFUSED, SchemaError)
add("fixed-default-int", fixed((), "float32", default_value=1), NONE, [1.0])
add("fixed-default-bool", fixed((), default_value=True), NONE, [1])
add("fixed-default-bytes", fixed((), "string", default_value=b"\xff"), NONE, [b"\xff"])
add("fixed-default-text", fixed((), "string", default_value="é"), NONE, [b"\xc3\xa9"])
add("fixed-no-values", fixed((0,)), ex(a=EMPTY["int64"]), [[]])
add("fixed-no-values-absent", fixed((0,)), NONE, REFUSED)
add("fixed-no-values-unset", fixed((0,), "string"), ex(a=UNSET), REFUSED)
add("fixed-no-values-default", fixed((0,), default_value=[]), NONE, REFUSED, [[]])
add("fixed-no-values-unpacked", fixed((0,), "float32"), of_a(delimited(2, b"\x0d\0\0\x80?")), DIES, FeatureError)
add("fixed-shape-int", fixed(2), ex(a=[5, 6]), [[5, 6]])
add("fixed-shape-none", fixed(None), FIVE, REFUSED, SchemaError)
add("fixed-shape-unknown", fixed([None]), FIVE, REFUSED, SchemaError)
add("fixed-shape-partly-unknown", fixed([1, None]), FIVE, REFUSED, SchemaError)
add("fixed-shape-negative", fixed([-1]), FIVE, REFUSED, SchemaError)
add("fixed-shape-text", fixed(["1"]), FIVE, REFUSED, SchemaError)
add("fixed-shape-float", fixed([1.0]), FIVE, REFUSED, SchemaError)
add("fixed-dtype-narrow", fixed((), "uint8"), FIVE, REFUSED, [5])
add("fixed-dtype-narrow-overflow", fixed((), "uint8"), ex(a=[256]), REFUSED)
add("fixed-dtype-double", fixed((), "float64"), ex(a=[0.5]), REFUSED, [0.5])
add("fixed-dtype-bytes", fixed((), "bytes"), ex(a=[b"x"]), REFUSED, [b"x"])
add("fixed-dtype-complex", fixed((), "complex64"), ex(a=[1.0]), REFUSED, SchemaError)
add("fixed-dtype-none", fixed((), None), FIVE, REFUSED, SchemaError)

# --- VarLenFeature ---------------------------------------------------------------------------------------------------

add("varlen-rows", varlen(), [ex(a=[1, 2]), NONE, ex(a=[3])], [[1, 2], [], [3]])
add("varlen-absent", varlen("string"), NONE, [[]])
add("varlen-unset", varlen(), ex(a=UNSET), [[]])
add("varlen-empty", varlen("float32"), ex(a=EMPTY["float32"]), [[]])
add("varlen-mixed", varlen("float32", mixed=True), [ex(a=[1, -2]), ex(a=[0.5])], REFUSED, [[1.0, -2.0], [0.5]])
add("varlen-empty-other-kind", varlen(), ex(a=EMPTY["string"]), REFUSED, [[]])
add("varlen-kind", varlen(), ex(a=[b"x"]), REFUSED)
add("varlen-shape", varlen(shape=(-1, 2)), [ex(a=[1, 2, 3, 4]), NONE], REFUSED, [[[1, 2], [3, 4]], []])
add("varlen-shape-remainder", varlen(shape=(-1, 2)), ex(a=[1, 2, 3]), REFUSED)
add("varlen-dtype-narrow", varlen("int8"), ex(a=[-1]), REFUSED, [[-1]])
add("varlen-dtype-none", varlen(None), FIVE, REFUSED, SchemaError)

# --- FixedLenSequenceFeature of an Example ---------------------------------------------------------------------------

add("padded-rows", padded(()), [ex(a=[1, 2]), ex(a=[3])], [[1, 2], [3, 0]])
add("padded-shape", padded((2,), "float32"), ex(a=[1.0, 2.0, 3.0, 4.0]), [[[1.0, 2.0], [3.0, 4.0]]])
add("padded-bytes", padded((), "string"), [ex(a=[b"x", b"y"]), NONE], [[b"x", b"y"], [b"", b""]])
add("padded-default", padded((2,), default_value=9), [ex(a=[1, 2]), NONE], [[[1, 2]], [[9, 9]]])
add("padded-default-one-value", padded((), default_value=[9]), [FIVE, NONE], [[5], [9]])
add("padded-default-size", padded((2,), default_value=[8, 9]), ex(a=[1, 2]), REFUSED, SchemaError)
add("padded-default-fraction", padded((), default_value=1.5), FIVE, REFUSED, SchemaError)
add("padded-unset", padded(()), [FIVE, ex(a=UNSET)], [[5], [0]])
add("padded-empty", padded(()), [FIVE, ex(a=EMPTY["int64"])], [[5], [0]])
add("padded-mixed", padded((), "float64", mixed=True, length=2), MIXED, REFUSED, [[2.0**53, 0.0], [0.5, 0.0]])
add("padded-empty-other-kind", padded(()), ex(a=EMPTY["float32"]), REFUSED, [[]])
add("padded-kind", padded(()), ex(a=[5.0]), REFUSED)
add("padded-remainder", padded((2,)), ex(a=[1, 2, 3]), REFUSED)
add("padded-nowhere", padded((2,)), [NONE, NONE], [[], []])
add("padded-required", padded((), allow_missing=False), FIVE, REFUSED, SchemaError)
add("padded-length", padded((), length=3), FIVE, REFUSED, [[5, 0, 0]])
add("padded-length-exceeded", padded((), length=1), ex(a=[1, 2]), REFUSED)
add("padded-shape-unknown", padded([None]), FIVE, REFUSED, SchemaError)
add("padded-no-values", padded((0,)), FIVE, DIES, SchemaError)
add("padded-dtype-narrow", padded((), "int16"), FIVE, REFUSED, [[5]])

# --- SparseFeature ---------------------------------------------------------------------------------------------------


def places(indices: Any, values: Any, size: int = 5) -> dict[str, Any]:
    """Return the three columns of a sparse feature with one axis."""
    rows = [[[place] for place in row] for row in indices]
    return {"a.indices": rows, "a.values": values, "a.shape": [[size]] * len(values)}


NOWHERE = places([[]], [[]])
add("sparse-order", sparse(), ex(i=[3, 1], v=[10, 20]), places([[1, 3]], [[20, 10]]))
add("sparse-already-sorted", sparse(already_sorted=True), ex(i=[3, 1], v=[1, 2]), places([[3, 1]], [[1, 2]]))
add("sparse-duplicates", sparse(), ex(i=[3, 1, 3, 1], v=[1, 2, 3, 4]), places([[1, 1, 3, 3]], [[2, 4, 1, 3]]))
SHARED = [ex(i=[1] * 16 + [0], v=list(range(17)))]
SHUFFLED = [16, 8, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1]
add(
    "sparse-duplicates-many",
    sparse(),
    SHARED,
    places([[0] + [1] * 16], [SHUFFLED]),
    places([[0] + [1] * 16], [[16, *range(16)]]),
)
add("sparse-rows", sparse(), [ex(i=[4, 0], v=[1, 2]), NONE], places([[0, 4], []], [[2, 1], []]))
add(
    "sparse-two-axes",
    sparse(["i", "j"], [3, 4], "float32"),
    ex(i=[2, 0, 2], j=[1, 3, 0], v=[1.0, 2.0, 3.0]),
    {"a.indices": [[[0, 3], [2, 0], [2, 1]]], "a.values": [[2.0, 3.0, 1.0]], "a.shape": [[3, 4]]},
)
add("sparse-unset", sparse(), ex(i=UNSET, v=UNSET), NOWHERE)
add("sparse-empty", sparse(), ex(i=EMPTY["int64"]), NOWHERE)
add("sparse-empty-other-kind", sparse(), ex(i=EMPTY["float32"]), REFUSED, NOWHERE)
add("sparse-no-values", sparse(), ex(i=[1]), REFUSED)
add("sparse-no-indices", sparse(), ex(v=[1]), REFUSED)
add("sparse-counts", sparse(), ex(i=[0, 1, 2], v=[1, 2]), REFUSED)
add(
    "sparse-counts-made-good",
    sparse(),
    [ex(i=[0, 1], v=[1]), ex(i=[2], v=[2, 3])],
    places([[0, 1], [2]], [[1, 2], [3]]),
    FeatureError,
)
add("sparse-outside", sparse(), ex(i=[5], v=[1]), places([[5]], [[1]]), FeatureError)
add("sparse-negative", sparse(), ex(i=[-1], v=[1]), places([[-1]], [[1]]), FeatureError)
add("sparse-index-kind", sparse(), ex(i=[1.0], v=[1]), REFUSED)
add("sparse-kind", sparse(), ex(i=[1], v=[1.0]), REFUSED)
add("sparse-size-list", sparse("i", [5]), ex(i=[1], v=[1]), REFUSED, places([[1]], [[1]]))
add("sparse-sizes", sparse(["i", "j"], [3]), ex(i=[1], j=[1], v=[1]), REFUSED, SchemaError)
add("sparse-size-none", sparse(size=None), ex(i=[1], v=[1]), REFUSED, SchemaError)
add("sparse-size-negative", sparse(size=-1), ex(i=[1], v=[1]), places([[1]], [[1]], -1), SchemaError)
add("sparse-no-key", sparse([], []), ex(v=[1]), REFUSED, SchemaError)
add("sparse-one-key", sparse("v"), ex(v=[2, 1]), places([[1, 2]], [[1, 2]]))
add("sparse-dtype-narrow", sparse(dtype="uint8"), ex(i=[1], v=[1]), REFUSED, places([[1]], [[1]]))

# --- RaggedFeature ---------------------------------------------------------------------------------------------------

LENGTHS, SPLITS, IDS = ("RowLengths", "p"), ("RowSplits", "p"), ("ValueRowIds", "p")
LIMITS, STARTS, PAIRS = ("RowLimits", "p"), ("RowStarts", "p"), ("UniformRowLength", 2)
V5 = [1, 2, 3, 4, 5]
CUT = {"a": [[[1, 2], [], [3, 4, 5]]]}
add("ragged-flat", ragged(), [ex(v=[1, 2]), NONE], [[1, 2], []])
add("ragged-own-key", ragged(value_key=None), ex(a=[1, 2]), [[1, 2]])
add("ragged-unset", ragged(), ex(v=UNSET), [[]])
add("ragged-empty-other-kind", ragged(), ex(v=EMPTY["float32"]), REFUSED, [[]])
add("ragged-mixed", ragged(dtype="float32", mixed=True), [ex(v=[1, 2]), ex(v=[0.5])], REFUSED, [[1.0, 2.0], [0.5]])
add("ragged-kind", ragged(), ex(v=[1.0]), REFUSED)
add("ragged-lengths", ragged(LENGTHS), ex(v=V5, p=[2, 0, 3]), CUT)
add("ragged-splits", ragged(SPLITS), ex(v=V5, p=[0, 2, 2, 5]), CUT)
add("ragged-row-ids", ragged(IDS), ex(v=V5, p=[0, 0, 2, 2, 2]), CUT)
add("ragged-limits", ragged(LIMITS), ex(v=V5, p=[2, 2, 5]), CUT)
add("ragged-starts", ragged(STARTS), ex(v=V5, p=[0, 2, 2]), CUT)
add("ragged-uniform", ragged(PAIRS), [ex(v=[1, 2, 3, 4]), NONE], [[[1, 2], [3, 4]], []])
add("ragged-empty-rows", ragged(LENGTHS), ex(p=[0, 0]), [[[], []]])
add("ragged-row-ids-late", ragged(IDS), ex(v=[7], p=[2]), [[[], [], [7]]])
add("ragged-absent", ragged(LENGTHS), NONE, [[]])
add("ragged-absent-splits", ragged(SPLITS), NONE, [[]])
add("ragged-levels", ragged(("RowLengths", "o"), LENGTHS), ex(v=V5, o=[2, 1], p=[1, 1, 3]), [[[[1], [2]], [[3, 4, 5]]]])
add("ragged-uniform-outside", ragged(PAIRS, LENGTHS), ex(v=V5, p=[1, 1, 3, 0]), [[[[1], [2]], [[3, 4, 5], []]]])
add("ragged-uniform-inside", ragged(LENGTHS, PAIRS), ex(v=[1, 2, 3, 4], p=[0, 2]), [[[], [[1, 2], [3, 4]]]])
add("ragged-uniform-twice", ragged(("UniformRowLength", 1), PAIRS), ex(v=[1, 2, 3, 4]), [[[[1, 2]], [[3, 4]]]])
add("ragged-no-partition", ragged(LENGTHS), ex(v=V5), [[]], FeatureError)
add("ragged-no-partition-validated", ragged(LENGTHS, validate=True), ex(v=V5), REFUSED)
add("ragged-too-short", ragged(LENGTHS), ex(v=V5, p=[2, 1]), [[[1, 2], [3]]], FeatureError)
add("ragged-too-long", ragged(LENGTHS), ex(v=V5, p=[2, 9]), [[[1, 2], [3, 4, 5]]], FeatureError)
add("ragged-too-short-validated", ragged(LENGTHS, validate=True), ex(v=V5, p=[2, 1]), REFUSED)
add("ragged-negative-validated", ragged(LENGTHS, validate=True), ex(v=V5, p=[-1, 6]), REFUSED)
add("ragged-descending-validated", ragged(SPLITS, validate=True), ex(v=V5, p=[0, 4, 2, 5]), REFUSED)
add("ragged-limits-short-validated", ragged(LIMITS, validate=True), ex(v=V5, p=[2]), REFUSED)
add("ragged-starts-late-validated", ragged(STARTS, validate=True), ex(v=V5, p=[1, 3]), REFUSED)
add("ragged-starts-none-validated", ragged(STARTS, validate=True), ex(v=V5), [[]], FeatureError)
add(
    "ragged-splits-late-validated",
    ragged(SPLITS, validate=True),
    ex(v=V5, p=[1, 2, 5]),
    [[[1, 2], [3, 4, 5]]],
    FeatureError,
)
add("ragged-row-ids-count", ragged(IDS), ex(v=V5, p=[0, 0]), REFUSED)
add("ragged-row-ids-descending-validated", ragged(IDS, validate=True), ex(v=[1, 2], p=[1, 0]), REFUSED)
add("ragged-remainder", ragged(PAIRS), ex(v=[1, 2, 3]), REFUSED)
add("ragged-remainder-made-good", ragged(PAIRS), [ex(v=[1, 2, 3]), ex(v=[4])], [[[1, 2]], [[3, 4]]], FeatureError)
add(
    "ragged-made-good-validated",
    ragged(LENGTHS, validate=True),
    [ex(v=[1, 2, 3], p=[2]), ex(v=[4], p=[2])],
    [[[1, 2]], [[3, 4]]],
    FeatureError,
)
add(
    "ragged-levels-misfit-validated",
    ragged(("RowLengths", "o"), LENGTHS, validate=True),
    ex(v=V5, o=[4], p=[2, 3]),
    REFUSED,
)
add("ragged-partition-kind", ragged(LENGTHS), ex(v=[1], p=[1.0]), REFUSED)
add("ragged-partition-empty-other-kind", ragged(LENGTHS), ex(p=EMPTY["float32"]), REFUSED, [[]])
add("ragged-row-splits-dtype", ragged(row_splits_dtype="int64"), ex(v=[1]), [[1]])
add("ragged-row-splits-dtype-other", ragged(row_splits_dtype="int16"), ex(v=[1]), REFUSED, SchemaError)
add("ragged-uniform-none", ragged(("UniformRowLength", 0)), ex(v=[1]), REFUSED, SchemaError)
add("ragged-partition-unknown", ragged("p"), ex(v=[1], p=[1]), REFUSED, SchemaError)
add("ragged-dtype-narrow", ragged(dtype="uint8"), ex(v=[1]), REFUSED, [[1]])

# --- bytes that are arrays -------------------------------------------------------------------------------------------


def raw(shape: Any, dtype: str) -> Description:
    return ("RawFeature", {"shape": shape, "dtype": dtype})


def tensor(shape: Any, dtype: str) -> Description:
    return ("TensorFeature", {"shape": shape, "dtype": dtype})


TEXT: Description = ("TextFeature", {})
add("raw-little", raw((2,), "<i2"), ex(a=[b"\1\0\2\0"]), [[1, 2]])
add("raw-big", raw((2,), ">i2"), ex(a=[b"\0\1\0\2"]), [[1, 2]])
add("raw-half", raw((), "float16"), ex(a=[b"\0\x3c"]), [1.0])
add("raw-complex", raw((), "complex64"), ex(a=[b"\0\0\x80?\0\0\0@"]), [1 + 2j])
add("raw-bool", raw((2,), "bool"), ex(a=[b"\0\1"]), [[False, True]])
add("raw-unsigned", raw((), "uint32"), ex(a=[b"\1\0\0\0"]), REFUSED, [1])
add("raw-remainder", raw((1,), "int16"), ex(a=[b"abc"]), REFUSED)
add("raw-count", raw((3,), "int16"), ex(a=[b"abcd"]), REFUSED)
add("raw-lengths", raw((-1,), "uint8"), [ex(a=[b"\1"]), ex(a=[b"\2\3"])], REFUSED, [[1], [2, 3]])
add("raw-absent", raw((), "uint8"), NONE, REFUSED)

INT32, FLOAT, STRING, UINT8, COMPLEX64 = 3, 1, 7, 4, 8  # numbers of these dtypes in a TensorProto


def proto(dtype: int, *sizes: int, **values: Any) -> bytes:
    """Return a serialized TensorProto."""
    shape = TensorShapeProto(dim=[{"size": size} for size in sizes])
    serialized: bytes = TensorProto(dtype=dtype, tensor_shape=shape, **values).SerializeToString()
    return serialized


ONE_TWO = proto(INT32, 2, tensor_content=b"\1\0\0\0\2\0\0\0")
add("tensor-content", tensor((2,), "int32"), ex(a=[ONE_TWO]), [[1, 2]])
add("tensor-values", tensor((2,), "int32"), ex(a=[proto(INT32, 2, int_val=[1, 2])]), [[1, 2]])
add("tensor-repeated", tensor((3,), "float32"), ex(a=[proto(FLOAT, 3, float_val=[1.0, 2.0])]), [[1.0, 2.0, 2.0]])
add("tensor-strings", tensor((2,), "string"), ex(a=[proto(STRING, 2, string_val=[b"x", b""])]), [[b"x", b""]])
add("tensor-dtype", tensor((2,), "int64"), ex(a=[ONE_TWO]), REFUSED)
add("tensor-shape", tensor((3,), "int32"), ex(a=[ONE_TWO]), REFUSED)
add("tensor-cut", tensor((2,), "int32"), ex(a=[ONE_TWO[:-1]]), REFUSED)
add("tensor-short", tensor((3,), "int32"), ex(a=[proto(INT32, 3, tensor_content=b"\1\0\0\0")]), REFUSED)
add("tensor-more", tensor((1,), "int32"), ex(a=[proto(INT32, 1, int_val=[1, 2])]), [[1]], FeatureError)
add("tensor-none", tensor((2,), "int32"), ex(a=[proto(INT32, 2)]), [[0, 0]])
add("tensor-other-list", tensor((2,), "float32"), ex(a=[proto(FLOAT, 2, int_val=[1, 2])]), [[0.0, 0.0]], FeatureError)
add("tensor-beyond", tensor((1,), "uint8"), ex(a=[proto(UINT8, 1, int_val=[300])]), [[44]], FeatureError)
add(
    "tensor-half-complex",
    tensor((1,), "complex64"),
    ex(a=[proto(COMPLEX64, 1, scomplex_val=[1.0, 2.0, 3.0])]),
    [[1 + 2j]],
    FeatureError,
)
add(
    "tensor-unknown-rank",
    tensor((1,), "int32"),
    ex(a=[proto(INT32, 1, int_val=[5]) + b"\x12\x02\x18\x01"]),
    [[5]],
    FeatureError,
)
add("text", TEXT, ex(a=["é".encode()]), ["é".encode()], ["é"])
add("text-not-utf8", TEXT, ex(a=[b"\xff"]), [b"\xff"], FeatureError)

# --- several features ------------------------------------------------------------------------------------------------

BOTH = ex(a=[1, 2], b=[3, 4], i=[0, 1])


OF_A, OF_B = sparse(value_key="a"), sparse(value_key="b")


def two(name: str, values: Any) -> dict[str, Any]:
    return {f"{name}.indices": [[[0], [1]]], f"{name}.values": [values], f"{name}.shape": [[5]]}


add("keys-dense-sparse", {"a": fixed((2,)), "s": OF_A}, BOTH, REFUSED, SchemaError)
add("keys-dense-ragged", {"a": fixed((2,)), "r": ragged(value_key="a")}, BOTH, REFUSED, SchemaError)
add("keys-varlen-ragged", {"a": varlen(), "r": ragged(value_key="a")}, BOTH, REFUSED, {"a": [[1, 2]], "r": [[1, 2]]})
add("keys-varlen-sparse", {"i": varlen(), "s": OF_A}, BOTH, {"i": [[0, 1]]} | two("s", [1, 2]))
add("keys-sparse-sparse", {"s": OF_A, "t": OF_B}, BOTH, two("s", [1, 2]) | two("t", [3, 4]))
add(
    "keys-ragged-ragged", {"r": ragged(value_key="a"), "q": ragged(value_key="a")}, BOTH, {"r": [[1, 2]], "q": [[1, 2]]}
)
add("keys-kinds", {"a": varlen("float32"), "s": OF_A}, BOTH, REFUSED, SchemaError)
add("features-none", {}, BOTH, REFUSED, {})
add("features-unknown-class", {"a": "int64"}, BOTH, REFUSED, SchemaError)
add("features-name", {1: varlen()}, BOTH, REFUSED, SchemaError)
add("features-empty-name", {"": varlen()}, example(**{"": [1]}), {"": [[1]]})

# --- the wire --------------------------------------------------------------------------------------------------------


ONE, TWO, HALF = (feature(values).SerializeToString() for values in ([1], [2], [0.5]))
SEVEN = fixed((), default_value=7)
add("wire-duplicate", varlen(), of_a(ONE, TWO), [[2]])
add("wire-duplicate-unset", SEVEN, of_a(ONE, b""), [1], [7])
add("wire-duplicate-unset-varlen", varlen(), of_a(ONE, b""), [[]])
add("wire-duplicate-kind", varlen(), of_a(HALF, ONE), [[1]])
add("wire-features-twice", varlen(), ex(b=[9]) + ex(a=[1]) + ex(a=[2]), [[2]])
add("wire-two-kinds", varlen(), of_a(ONE + HALF), [[1]], FeatureError)
add("wire-two-kinds-last", varlen(), of_a(HALF + ONE), REFUSED, [[1]])
add("wire-list-twice", varlen(), of_a(ONE + TWO), [[1]], [[1, 2]])
add("wire-packed-twice", varlen(), of_a(delimited(3, delimited(1, b"\1") + delimited(1, b"\2"))), [[1]], [[1, 2]])
add("wire-mixed-packing", varlen(), of_a(delimited(3, delimited(1, b"\1") + b"\x08\2")), [[1]], [[1, 2]])
add("wire-unpacked", varlen(), of_a(delimited(3, b"\x08\1\x08\2")), [[1, 2]])
add("wire-no-value", SEVEN, NONE + delimited(1, delimited(1, delimited(1, b"a"))), REFUSED, [7])
add("wire-no-key", {"": varlen()}, delimited(1, delimited(1, delimited(2, ONE))), REFUSED, {"": [[1]]})
add("wire-value-first", varlen(), delimited(1, entry("a", ONE, swapped=True)), [[1]])
add("wire-unknown", varlen(), varint(15 << 3) + b"\5" + of_a(ONE), [[1]])
add("wire-unknown-in-features", varlen(), delimited(1, delimited(3, b"x") + entry("a", ONE)), REFUSED, [[1]])
add(
    "wire-unknown-in-entry",
    varlen(),
    delimited(1, delimited(1, delimited(1, b"a") + delimited(5, b"x") + delimited(2, ONE))),
    REFUSED,
    [[1]],
)
add("wire-unknown-alone", varlen(), delimited(1, b"") + varint(5 << 3) + b"\1", [[]], FeatureError)
add("wire-unknown-in-feature", varlen(), of_a(delimited(5, b"x") + ONE), REFUSED, [[1]])
add(
    "wire-key-not-utf8",
    varlen(),
    delimited(1, delimited(1, delimited(1, b"\xff") + delimited(2, ONE))),
    [[]],
    FeatureError,
)
add("wire-cut", varlen(), of_a(ONE)[:-1], REFUSED)
add("wire-text", varlen(), b"hello world", REFUSED)
add("wire-empty", varlen(), b"", [[]])
add("wire-empty-required", fixed(()), b"", REFUSED)
add("wire-sequence-example", varlen(), seq({"a": [1]}, s=[[1]]), [[1]], FeatureError)

# --- SequenceExample: the context ------------------------------------------------------------------------------------


def add_seq(name: str, context: Any, lists: Mapping[str, Any], payloads: Any, *results: Any, **steps: Any) -> None:
    """Add a row of SequenceExamples; `steps` has the number of steps of each record by feature list."""
    add(name, context, payloads, *results, sequences=lists, steps=steps)


def add_context(name: str, feature: Any, payloads: Any, *results: Any) -> None:
    add(name, feature, payloads, *results, sequences={})


def add_steps(name: str, feature: Any, payloads: Any, *results: Any, **steps: Any) -> None:
    """Add a row of the feature list `s`."""
    add(name, {}, payloads, *results, sequences={"s": feature}, steps=steps, key="s")


add_context("context-fixed", fixed(()), seq({"a": [5]}), [5])
add_context("context-absent", fixed(()), seq({"other": [1]}), REFUSED)
add_context("context-absent-default", SEVEN, seq({"other": [1]}), [7])
add_context("context-unset-default", SEVEN, seq({"a": UNSET}), REFUSED, [7])
add_context("context-empty-default", SEVEN, seq({"a": EMPTY["int64"]}), REFUSED, [7])
add_context("context-no-values-unset", fixed((0,)), seq({"a": UNSET}), [[]], FeatureError)
add_context("context-twice-default", SEVEN, seq({"a": [1]}) + seq({"a": UNSET}), REFUSED, [7])
PAIR = fixed((2,), default_value=[8, 9])
add_context("context-list-twice", PAIR, of_a(ONE + TWO), REFUSED, [[1, 2]])
add_context("context-none", SEVEN, seq(None, s=[[1]]), [7])
add_context("context-kind", SEVEN, seq({"a": [0.5]}), REFUSED)
add_context("context-varlen", varlen(), [seq({"a": [1, 2]}), seq({"other": [1]})], [[1, 2], []])
add_context("context-ragged", ragged(LENGTHS), seq({"v": [1, 2, 3], "p": [2, 1]}), [[[1, 2], [3]]])
add_context("context-padded", padded(()), seq({"a": [5]}), REFUSED, [[5]])
add_context("context-sparse", sparse(), seq({"i": [1], "v": [2]}), REFUSED, places([[1]], [[2]]))

# --- SequenceExample: the feature lists ------------------------------------------------------------------------------

STEPS = padded((), allow_missing=False)
add_steps(
    "steps-padded", STEPS, [seq(s=[[1], [2]]), seq(s=[[3]])], {"s": [[1, 2], [3, 0]], "s.lengths": [2, 1]}, s=[2, 1]
)
add_steps("steps-shape", padded((2,), "float32"), seq(s=[[1.0, 2.0]]), {"s": [[[1.0, 2.0]]], "s.lengths": [1]}, s=[1])
add_steps("steps-bytes", padded((), "string"), [seq(s=[[b"x"]]), seq(s=[])], [[b"x"], [b""]], s=[1, 0])
add_steps("steps-absent", STEPS, seq(other=[]), REFUSED)
add_steps(
    "steps-absent-allowed", padded(()), [seq(s=[[1]]), seq(other=[])], {"s": [[1], [0]], "s.lengths": [1, 0]}, s=[1, 0]
)
add_steps("steps-none", STEPS, seq(s=[]), {"s": [[]], "s.lengths": [0]}, s=[0])
add_steps("steps-unset", STEPS, seq(s=[[1], UNSET]), REFUSED)
add_steps("steps-empty", STEPS, seq(s=[[1], EMPTY["int64"]]), REFUSED)
add_steps("steps-mixed", STEPS, seq(s=[[1], [0.5]]), REFUSED)
add_steps("steps-count", STEPS, seq(s=[[1], [2, 3]]), REFUSED)
add_steps("steps-count-made-good", padded((2,)), seq(s=[[1], [2, 3, 4]]), REFUSED)
add_steps("steps-default", padded((), default_value=9), [seq(s=[[1]]), seq(s=[])], REFUSED, [[1], [9]])
add_steps("steps-length", padded((), length=2), seq(s=[[1]]), REFUSED, [[1, 0]])
add_steps("steps-length-exceeded", padded((), length=1), seq(s=[[1], [2]]), REFUSED)
add_steps("steps-varlen", varlen(), [seq(s=[[1], [2, 3]]), seq(s=[[4]])], [[[1], [2, 3]], [[4]]], s=[2, 1])
add_steps("steps-varlen-empty", varlen(), seq(s=[UNSET, [1], EMPTY["int64"]]), [[[], [1], []]], s=[3])
add_steps("steps-varlen-absent", varlen(), seq(other=[]), [[]], s=[0])
add_steps("steps-varlen-empty-other-kind", varlen(), seq(s=[[1], EMPTY["float32"]]), REFUSED, {"s": [[[1], []]]})
add_steps(
    "steps-varlen-mixed-numbers", varlen("float32", mixed=True), seq(s=[[1, 2], [0.5]]), REFUSED, [[[1.0, 2.0], [0.5]]]
)
add_steps("steps-varlen-mixed", varlen(), seq(s=[[1], [b"x"]]), REFUSED)
add_steps("steps-ragged", ragged(), [seq(v=[[1], UNSET, [2, 3]]), seq(v=[])], [[[1], [], [2, 3]], []], s=[3, 0])

RV = [[1, 2, 3], [4]]
CUTS = {"s": [[[[1, 2], [3]], [[], [4]]]]}
add_steps("steps-ragged-lengths", ragged(LENGTHS), seq(v=RV, p=[[2, 1], [0, 1]]), CUTS, s=[2])
add_steps("steps-ragged-splits", ragged(SPLITS), seq(v=RV, p=[[0, 2, 3], [0, 0, 1]]), CUTS, s=[2])
add_steps("steps-ragged-row-ids", ragged(IDS), seq(v=RV, p=[[0, 0, 1], [1]]), CUTS, s=[2])
add_steps("steps-ragged-limits", ragged(LIMITS), seq(v=RV, p=[[2, 3], [0, 1]]), CUTS, s=[2])
add_steps("steps-ragged-starts", ragged(STARTS), seq(v=RV, p=[[0, 2], [0, 0]]), CUTS, s=[2])
add_steps("steps-ragged-uniform", ragged(PAIRS), seq(v=[[1, 2], UNSET]), [[[[1, 2]], []]], s=[2])
add_steps(
    "steps-ragged-levels",
    ragged(PAIRS, LENGTHS),
    seq(v=RV, p=[[1, 2], [0, 1]]),
    [[[[[1], [2, 3]]], [[[], [4]]]]],
    s=[2],
)
add_steps("steps-ragged-fewer", ragged(LENGTHS), seq(v=RV, p=[[2, 1]]), [[[[1, 2], [3]]]], FeatureError, s=[1])
add_steps("steps-ragged-fewer-validated", ragged(LENGTHS, validate=True), seq(v=RV, p=[[2, 1]]), REFUSED)
add_steps("steps-ragged-misfit-validated", ragged(LENGTHS, validate=True), seq(v=[[1, 2, 3]], p=[[2]]), REFUSED)
add_steps(
    "steps-ragged-made-good",
    ragged(LENGTHS, validate=True),
    seq(v=[[1, 2, 3], [4]], p=[[2], [2]]),
    [[[[1, 2]], [[3, 4]]]],
    FeatureError,
    s=[2],
)
add_steps("steps-fixed", fixed(()), seq(s=[[1]]), REFUSED, SchemaError)
add_steps("steps-sparse", sparse(), seq(i=[[1]], v=[[1]]), REFUSED, SchemaError)
add_seq(
    "steps-and-context",
    varlen(),
    {"s": STEPS},
    seq({"a": [1]}, s=[[2]]),
    {"a": [[1]], "s": [[2]], "s.lengths": [1]},
    s=[1],
)
add_seq("steps-no-features", {}, {}, seq(s=[[1]]), REFUSED, {})
add_context("sequence-example-given", varlen(), ex(a=[1]), [[1]])
add_steps("sequence-duplicate", varlen(), seq(s=[[1]]) + seq(s=[[2], [3]]), [[[2], [3]]], s=[2])
add_seq(
    "sequence-merged",
    varlen(),
    {"s": varlen()},
    seq({"a": [1]}, s=[[1]]) + seq({"a": [2]}, t=[[3]]),
    {"a": [[2]], "s": [[[1]]]},
    s=[1],
)
add_steps(
    "sequence-list-twice", varlen(), delimited(2, entry("s", delimited(1, ONE + TWO))), REFUSED, [[[1, 2]]], s=[1]
)
add_steps("sequence-value-first", varlen(), delimited(2, entry("s", delimited(1, ONE), swapped=True)), REFUSED, [[[1]]])
add_steps("sequence-two-kinds", varlen(), delimited(2, entry("s", delimited(1, HALF + ONE))), REFUSED, [[[1]]])
