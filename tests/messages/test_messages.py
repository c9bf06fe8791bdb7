"""Messages of the private pool: the same bytes as TensorFlow's, independent of protobuf's default pool."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from support.programs import run_python

from dask_tfrecord import messages
from dask_tfrecord.messages import (
    DecodeError,
    Example,
    Feature,
    Features,
    Int64List,
    TensorProto,
)

# Written by hand from the wire format: features { feature { key: "a", value { int64_list { value: [1, -2] } } } }
HANDMADE = b"\x0a\x16\x0a\x14\x0a\x01a\x12\x0f\x1a\x0d\x0a\x0b\x01" + b"\xfe" + b"\xff" * 8 + b"\x01"


def test_compiling_a_file_runs_no_code_of_the_current_directory(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools")
    (tmp_path / "a.proto").write_text('syntax = "proto3"; package p; message M { int32 x = 1; }')
    for name in ("grpc_tools", "google", "sitecustomize", "usercustomize", "runpy", "os", "importlib"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write(__name__)\n")
    program = "import dask_tfrecord as dtf, os; os.chdir({!r}); print(dtf.ProtoFeature('a.proto:p.M', 'x').message)"
    done = run_python("-P", "-c", program.format(str(tmp_path)))
    assert done.stdout == "MessageType('p.M')\n"
    assert not (tmp_path / "ran").exists()


def test_the_compiled_messages_are_those_of_the_protos(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc")
    folder, made = Path(messages.__file__).parent / "protos", tmp_path / "messages.desc"
    names = sorted(path.name for path in folder.glob("*.proto"))
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={made}", *names]) == 0
    assert made.read_bytes() == (folder / "messages.desc").read_bytes()


# Loads messages.py by its path: the interpreter may lack every other dependency of the package.
LOAD = f"""
import importlib.util, sys
def load():
    spec = importlib.util.spec_from_file_location("private_messages", {str(Path(messages.__file__))!r})
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""


# dtype: 1, tensor_shape { dim { size: 2 } unknown_rank: true }, float_val: [1], uint32_val: [300]
TENSOR = TensorProto(dtype=1, float_val=[1], uint32_val=[300])
TENSOR.tensor_shape.dim.add(size=2)
TENSOR.tensor_shape.unknown_rank = True


@pytest.mark.parametrize(
    ("message", "written"),
    [
        (Example(features=Features(feature={"a": Feature(int64_list=Int64List(value=[1, -2]))})), HANDMADE),
        (TENSOR, b"\x08\x01\x12\x06\x12\x02\x08\x02\x18\x01\x2a\x04\x00\x00\x80\x3f\x82\x01\x02\xac\x02"),
    ],
)
def test_messages_have_the_wire_format_and_pickle(message: Any, written: bytes) -> None:
    assert message.SerializeToString() == written
    assert type(message).FromString(written) == pickle.loads(pickle.dumps(message)) == message
    with pytest.raises(DecodeError):
        type(message).FromString(written[:-1])


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
    assert (
        run_python("-c", LOAD + code, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=implementation).stdout.strip()
        == HANDMADE.hex()
    )


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
    assert run_python("-c", LOAD + code).stdout.splitlines() == ["['features', 'features']", "['other']"]


@pytest.mark.tensorflow
@pytest.mark.parametrize("imports", ["import tensorflow as tf; m = load()", "m = load(); import tensorflow as tf"])
def test_with_tensorflow_in_one_process(imports: str, tensorflow: str) -> None:
    code = f"""
theirs = tf.train.Example.FromString({HANDMADE!r})
ours = m.Example.FromString(theirs.SerializeToString())
ours.features.feature["f"].float_list.value.extend([0.5, -1.0])
back = tf.train.Example.FromString(ours.SerializeToString())
specs = {{"a": tf.io.FixedLenFeature([2], tf.int64), "f": tf.io.VarLenFeature(tf.float32)}}
parsed = tf.io.parse_single_example(ours.SerializeToString(), specs)
assert type(theirs) is not type(ours)
assert list(back.features.feature["f"].float_list.value) == [0.5, -1.0]
assert parsed["a"].numpy().tolist() == [1, -2]
assert parsed["f"].values.numpy().tolist() == [0.5, -1.0]
"""
    run_python("-c", LOAD + imports + code, python=tensorflow, PYTHONPATH="")


@pytest.mark.tensorflow
def test_fields_are_those_of_tensorflow(tensorflow: str) -> None:
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
    run_python("-c", LOAD + code, python=tensorflow, PYTHONPATH="")
