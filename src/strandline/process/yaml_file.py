"""Reading of a YAML file of keys and values: a broker's settings, Liftbridge's, a pipeline.

Rules: a key given twice is an error, where YAML itself would keep the last. What the keys mean is
the caller's affair.
"""

from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from strandline.errors import InvalidConfigError

FILE_BYTES_MAX: Final = 1 << 20


def read_yaml(file: Path) -> dict[str, Any]:
    """Return the unchecked values of a YAML file.

    Raises:
        InvalidConfigError: the file is unreadable, or not a YAML mapping.
    """
    try:
        size_bytes = file.stat().st_size
        text = file.read_text("utf-8") if size_bytes <= FILE_BYTES_MAX else None
    except OSError as error:
        raise InvalidConfigError(f"cannot read {file}: {error.strerror}; name another") from error
    except UnicodeDecodeError as error:
        raise InvalidConfigError(
            f"cannot read {file}: it is no text in UTF-8 ({error.reason} at byte {error.start})"
        ) from error
    if text is None:
        raise InvalidConfigError(
            f"{file} has {size_bytes} bytes; settings have at most {FILE_BYTES_MAX}"
        )
    try:
        values = yaml.load(text, _Loader)  # noqa: S506 - _Loader is a SafeLoader
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidConfigError(f"{file} is not valid YAML: {_one_line(error)}") from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise InvalidConfigError(
            f"{file} must hold keys and values, such as 'key: value', got {str(values)[:100]!r}"
        )
    return values


class _Loader(yaml.SafeLoader):
    """A YAML loader that rejects a key given twice; YAML itself would use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - the signature is PyYAML's
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                if key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    raise yaml.YAMLError(f"'{key_node.value}' is given twice, again on line {line}")
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1}: {error.reason}"
    return str(error)
