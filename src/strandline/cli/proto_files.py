"""``.proto`` files, compiled to the descriptors that brokers store.

Rules: the compiler is protoc from grpcio-tools, in a separate process. A broker never sees the text
of a ``.proto`` file.
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from strandline.errors import InvalidConfigError


def compiled_proto(file: Path, includes: Sequence[Path]) -> bytes:
    """Return a ``FileDescriptorSet`` of a ``.proto`` file and of all files that it imports.

    Args:
        file: the file.
        includes: directories to search for imports, before the file's own.

    Raises:
        InvalidConfigError: there is no compiler, or the compiler reports an error, whose text is
            used.
    """
    found = importlib.util.find_spec("grpc_tools")
    if found is None or found.origin is None:
        raise InvalidConfigError(
            f"no compiler for {file}: pip install 'strandline[protobuf]', or compile it with "
            "'protoc --include_imports --descriptor_set_out=FILE', and give that file"
        )
    known = Path(found.origin).parent / "_proto"  # the files that protoc brings: google/protobuf/*
    paths = [f"-I{path}" for path in (*includes, file.parent, known)]
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "descriptors"
        words = ["--include_imports", f"--descriptor_set_out={out}", str(file)]
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *paths, *words],
            capture_output=True,
            check=False,
        )
        if done.returncode:
            told = done.stderr.decode("utf-8", "replace").strip()
            raise InvalidConfigError(f"cannot compile {file}: {told}")
        return out.read_bytes()
