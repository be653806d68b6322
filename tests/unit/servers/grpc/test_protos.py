"""The generated code is protoc's output for the protos."""

import sys
from pathlib import Path

import pytest
from grpc_tools import protoc

import strandline.servers.grpc

HERE = Path(strandline.servers.grpc.__file__).parent
PROTOS = sorted(path.name for path in (HERE / "protos").glob("*.proto"))


@pytest.mark.parametrize("name", PROTOS)
def test_generated_code_is_current(name, tmp_path):
    """A changed .proto is committed with protoc's output.

    To make it anew: python -m grpc_tools.protoc -I protos --python_out=_generated
    --pyi_out=_generated protos/*.proto, in src/strandline/servers/grpc.
    """
    arguments = ["-I", str(HERE / "protos"), f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main([sys.executable, *arguments, name]) == 0
    for made in tmp_path.iterdir():
        assert made.read_text() == (HERE / "_generated" / made.name).read_text(), made.name


def test_nothing_else_is_generated():
    """Two files for each proto."""
    found = {path.name for path in (HERE / "_generated").glob("*_pb2*")}
    names = [name.removesuffix(".proto") for name in PROTOS]
    assert found == {f"{name}_pb2{end}" for name in names for end in (".py", ".pyi")}
