"""Messages as TensorFlow declares them, from descriptors that TensorFlow 2.21 printed.

``tests/data/protos/tensorflow.desc`` holds the files of `tf.train.Example`, `tf.train.SequenceExample` and
`TensorProto`. They are in a pool of their own, so that neither the library nor TensorFlow can replace them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError as DecodeError

_FILE = Path(__file__).parents[1] / "data" / "protos" / "tensorflow.desc"


def _lists_of_examples() -> descriptor_pb2.FileDescriptorProto:
    """Return the file of ExampleListWithContext, as tensorflow_serving/apis/input.proto declares its fields."""
    file = descriptor_pb2.FileDescriptorProto(name="input.proto", package="tensorflow.serving", syntax="proto3")
    file.dependency.append("tensorflow/core/example/example.proto")
    message = file.message_type.add(name="ExampleListWithContext")
    for number, (name, label) in enumerate({"examples": "LABEL_REPEATED", "context": "LABEL_OPTIONAL"}.items(), 1):
        message.field.add(name=name, number=number, type="TYPE_MESSAGE", label=label, type_name=".tensorflow.Example")
    return file


def _messages() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for file in [*descriptor_pb2.FileDescriptorSet.FromString(_FILE.read_bytes()).file, _lists_of_examples()]:
        pool.Add(file)  # type: ignore[no-untyped-call]
    return pool


_POOL = _messages()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


BytesList = _message("tensorflow.BytesList")
FloatList = _message("tensorflow.FloatList")
Int64List = _message("tensorflow.Int64List")
Feature = _message("tensorflow.Feature")
Features = _message("tensorflow.Features")
FeatureList = _message("tensorflow.FeatureList")
FeatureLists = _message("tensorflow.FeatureLists")
Example = _message("tensorflow.Example")
SequenceExample = _message("tensorflow.SequenceExample")
ExampleListWithContext = _message("tensorflow.serving.ExampleListWithContext")
TensorProto = _message("tensorflow.TensorProto")
TensorShapeProto = _message("tensorflow.TensorShapeProto")
