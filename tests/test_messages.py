"""Messages of the private pool: the same bytes as TensorFlow's, independent of protobuf's default pool."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dask_tfrecord import messages
from dask_tfrecord.messages import (
    BytesList,
    DecodeError,
    Example,
    Feature,
    FeatureList,
    FeatureLists,
    Features,
    FloatList,
    Int64List,
    SequenceExample,
    TensorProto,
)

# Written by hand from the wire format: features { feature { key: "a", value { int64_list { value: [1, -2] } } } }
HANDMADE = b"\x0a\x16\x0a\x14\x0a\x01a\x12\x0f\x1a\x0d\x0a\x0b\x01" + b"\xfe" + b"\xff" * 8 + b"\x01"

# Loads messages.py by its path: the interpreter may lack every other dependency of the package.
LOAD = f"""
import importlib.util, sys
def load():
    spec = importlib.util.spec_from_file_location("private_messages", {str(Path(messages.__file__))!r})
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""


def run(code: str, python: str = sys.executable, **environment: str) -> str:
    """Run `code` after `LOAD` in a fresh interpreter; its standard output."""
    done = subprocess.run(
        [python, "-c", LOAD + code], env=os.environ | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_reads_and_writes_the_wire_format() -> None:
    example = Example(features=Features(feature={"a": Feature(int64_list=Int64List(value=[1, -2]))}))
    assert example.SerializeToString() == HANDMADE
    assert Example.FromString(HANDMADE) == example


def test_every_kind_and_none() -> None:
    features = Features(
        feature={
            "bytes": Feature(bytes_list=BytesList(value=[b"", b"\x00\xff"])),
            "float": Feature(float_list=FloatList(value=[0.5, -0.0])),
            "int64": Feature(int64_list=Int64List(value=[-(2**63), 2**63 - 1])),
            "empty": Feature(float_list=FloatList()),
            "unset": Feature(),
        }
    )
    read = Example.FromString(Example(features=features).SerializeToString()).features.feature
    kinds = {name: feature.WhichOneof("kind") for name, feature in read.items()}
    assert kinds == {
        "bytes": "bytes_list", "float": "float_list", "int64": "int64_list", "empty": "float_list", "unset": None,
    }  # fmt: skip
    assert list(read["bytes"].bytes_list.value) == [b"", b"\x00\xff"]
    assert [str(value) for value in read["float"].float_list.value] == ["0.5", "-0.0"]
    assert list(read["int64"].int64_list.value) == [-(2**63), 2**63 - 1]


def test_sequence_example() -> None:
    steps = FeatureList(feature=[Feature(int64_list=Int64List(value=[step])) for step in range(3)])
    context = Features(feature={"id": Feature(bytes_list=BytesList(value=[b"x"]))})
    message = SequenceExample(context=context, feature_lists=FeatureLists(feature_list={"s": steps}))
    read = SequenceExample.FromString(message.SerializeToString())
    assert [list(step.int64_list.value) for step in read.feature_lists.feature_list["s"].feature] == [[0], [1], [2]]
    assert list(read.context.feature["id"].bytes_list.value) == [b"x"]
    # protobuf parses a SequenceExample as an Example, so schema inference has to detect the message type first.
    assert list(Example.FromString(message.SerializeToString()).features.feature) == ["id"]


def test_tensor() -> None:
    # dtype: 1, tensor_shape { dim { size: 2 } unknown_rank: true }, float_val: [1], uint32_val: [300]
    handmade = b"\x08\x01\x12\x06\x12\x02\x08\x02\x18\x01\x2a\x04\x00\x00\x80\x3f\x82\x01\x02\xac\x02"
    tensor = TensorProto(dtype=1, float_val=[1], uint32_val=[300])
    tensor.tensor_shape.dim.add(size=2)
    tensor.tensor_shape.unknown_rank = True
    assert tensor.SerializeToString() == handmade
    assert TensorProto.FromString(handmade) == tensor


def test_messages_pickle() -> None:
    example = Example.FromString(HANDMADE)
    assert pickle.loads(pickle.dumps(example)) == example
    assert pickle.loads(pickle.dumps(example.features.feature["a"])) == example.features.feature["a"]
    assert pickle.loads(pickle.dumps(TensorProto(dtype=1))) == TensorProto(dtype=1)


def test_a_broken_message_is_a_decode_error() -> None:
    with pytest.raises(DecodeError):
        Example.FromString(HANDMADE[:-1])


@pytest.mark.integration
@pytest.mark.parametrize("implementation", ["upb", "python"])
def test_both_implementations_of_protobuf(implementation: str) -> None:
    code = f"""
from google.protobuf.internal import api_implementation
assert api_implementation.Type() == {implementation!r}, api_implementation.Type()
m = load()
example = m.Example.FromString({HANDMADE!r})
assert list(example.features.feature["a"].int64_list.value) == [1, -2]
print(example.SerializeToString().hex())
"""
    assert run(code, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=implementation).strip() == HANDMADE.hex()


def test_loads_twice_and_independently_of_the_default_pool() -> None:
    # Another library registers the same names in the default pool, with other fields.
    code = """
from google.protobuf import descriptor_pb2, descriptor_pool
first = load()
file = descriptor_pb2.FileDescriptorProto(name="x/example.proto", package="tensorflow", syntax="proto3")
file.message_type.add(name="Example").field.add(name="other", number=1, label=1, type=5)
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())
second = load()
print([field.name for m in (first, second) for field in m.Example.DESCRIPTOR.fields])
print([field.name for field in descriptor_pool.Default().FindMessageTypeByName("tensorflow.Example").fields])
"""
    assert run(code).splitlines() == ["['features', 'features']", "['other']"]


@pytest.mark.tensorflow
@pytest.mark.parametrize("order", ["before", "after"])
def test_with_tensorflow_in_one_process(order: str) -> None:
    python = os.environ.get("DASK_TFRECORD_TENSORFLOW")
    if not python:
        pytest.skip("DASK_TFRECORD_TENSORFLOW names no interpreter with TensorFlow")
    imports = (
        ["import tensorflow as tf", "m = load()"] if order == "before" else ["m = load()", "import tensorflow as tf"]
    )
    code = f"""
import json
theirs = tf.train.Example.FromString({HANDMADE!r})
ours = m.Example.FromString(theirs.SerializeToString())
ours.features.feature["f"].float_list.value.extend([0.5, -1.0])
back = tf.train.Example.FromString(ours.SerializeToString())
parsed = tf.io.parse_single_example(
    ours.SerializeToString(), {{"a": tf.io.FixedLenFeature([2], tf.int64), "f": tf.io.VarLenFeature(tf.float32)}}
)
print(json.dumps([
    type(theirs) is type(ours),
    list(back.features.feature["f"].float_list.value),
    parsed["a"].numpy().tolist(),
    parsed["f"].values.numpy().tolist(),
]))
"""
    assert json.loads(run("\n".join([*imports, code]), python).splitlines()[-1]) == [
        False,
        [0.5, -1.0],
        [1, -2],
        [0.5, -1.0],
    ]


@pytest.mark.tensorflow
def test_fields_are_those_of_tensorflow() -> None:
    python = os.environ.get("DASK_TFRECORD_TENSORFLOW")
    if not python:
        pytest.skip("DASK_TFRECORD_TENSORFLOW names no interpreter with TensorFlow")
    code = """
from tensorflow.core.framework import tensor_pb2, tensor_shape_pb2
m = load()
def fields(message):
    return [(f.name, f.number, f.type, f.is_repeated) for f in message.DESCRIPTOR.fields]
def known(message, *left_out):
    return sorted((n, i, 5 if t == 14 else t, r) for n, i, t, r in fields(message) if n not in left_out)
assert sorted(fields(m.TensorProto)) == known(
    tensor_pb2.TensorProto, "resource_handle_val", "variant_val", "float8_val"
)
assert sorted(fields(m.TensorShapeProto)) == known(tensor_shape_pb2.TensorShapeProto)
assert sorted(fields(m.Dim)) == known(tensor_shape_pb2.TensorShapeProto.Dim)
"""
    run(code, python)
