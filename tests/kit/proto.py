"""Messages of Protocol Buffers for tests: compiled from their text, and their classes."""

import base64
import functools
import tempfile
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

KNOWN = Path(grpc_tools.__file__).parent / "_proto"


@functools.cache
def compiled(text, name="test.proto"):
    """The descriptor set of a file of this text, in bytes."""
    with tempfile.TemporaryDirectory() as directory:
        file, out = Path(directory) / name, Path(directory) / "out"
        file.write_text(text)
        words = [f"-I{directory}", f"-I{KNOWN}", "--include_imports", f"--descriptor_set_out={out}"]
        assert protoc.main(["protoc", *words, str(file)]) == 0, text
        return out.read_bytes()


def in_base64(text):
    """The descriptor set of a file, as a schema has it."""
    return base64.b64encode(compiled(text)).decode()


@functools.cache
def message_class(text, name):
    """The Python class of a message."""
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(compiled(text)).file:
        pool.AddSerializedFile(each.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
