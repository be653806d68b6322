"""Protocol Buffers for tests: compiled from the text of a file, and its message classes."""

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
    """Return the descriptor set of a file with this text, as bytes."""
    with tempfile.TemporaryDirectory() as directory:
        file, out = Path(directory) / name, Path(directory) / "out"
        file.write_text(text)
        words = [f"-I{directory}", f"-I{KNOWN}", "--include_imports", f"--descriptor_set_out={out}"]
        assert protoc.main(["protoc", *words, str(file)]) == 0, text
        return out.read_bytes()


def in_base64(text):
    """Return the descriptor set of a file in Base64, as in a schema."""
    return base64.b64encode(compiled(text)).decode()


@functools.cache
def message_class(text, name):
    """Return the Python class of a message."""
    pool = descriptor_pool.DescriptorPool()
    for each in descriptor_pb2.FileDescriptorSet.FromString(compiled(text)).file:
        pool.AddSerializedFile(each.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
