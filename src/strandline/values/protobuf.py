"""Protocol Buffers: a message of a descriptor set as Arrow columns, and values decoded to them.

Rules: the newest version reads the values of all versions, because fields are identified by their
numbers. A message is a struct; a message that contains itself is rejected. A field without presence
has its default if a value lacks it. The number of an enum without a name becomes text. A time is
truncated to microseconds. Values are parsed one by one, in C, and become columns a batch at a time.
Must not know Spark or streams.
"""

import base64
import binascii
import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from strandline.errors import InvalidConfigError
from strandline.values.columns import COLUMNS_MAX, DEPTH_MAX
from strandline.values.frame import FRAME_BYTES, framed_id
from strandline.values.schema import SchemaVersion
from strandline.values.shape import ShapeField, ValueShape, element
from strandline.values.years import check_days

RowsOf = Callable[[pa.Array], pa.StructArray]
CheckMessage = Callable[[Any], Any]
"""A function that raises ValueError if a parsed message or field cannot become columns."""

_SCALARS: dict[int, tuple[str, pa.DataType]] = {
    FieldDescriptor.TYPE_DOUBLE: ("double of 8 bytes", pa.float64()),
    FieldDescriptor.TYPE_FLOAT: ("float of 4 bytes", pa.float32()),
    FieldDescriptor.TYPE_INT32: ("int32", pa.int32()),
    FieldDescriptor.TYPE_INT64: ("int64", pa.int64()),
    FieldDescriptor.TYPE_UINT32: ("uint32", pa.int64()),
    FieldDescriptor.TYPE_UINT64: ("uint64", pa.decimal128(20, 0)),
    FieldDescriptor.TYPE_SINT32: ("sint32", pa.int32()),
    FieldDescriptor.TYPE_SINT64: ("sint64", pa.int64()),
    FieldDescriptor.TYPE_FIXED32: ("fixed32", pa.int64()),
    FieldDescriptor.TYPE_FIXED64: ("fixed64", pa.decimal128(20, 0)),
    FieldDescriptor.TYPE_SFIXED32: ("sfixed32", pa.int32()),
    FieldDescriptor.TYPE_SFIXED64: ("sfixed64", pa.int64()),
    FieldDescriptor.TYPE_BOOL: ("bool", pa.bool_()),
    FieldDescriptor.TYPE_STRING: ("string", pa.string()),
    FieldDescriptor.TYPE_BYTES: ("bytes", pa.binary()),
}
"""The name and the column type of each field type; types with different bytes differ in name."""
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NANOS = 1_000_000_000
_DAY = 24 * 3600 * 1_000_000
_INDEXES_MAX = 64
_VARINT_BYTES_MAX = 10
_SHOWN_MESSAGES_MAX = 10
_PROTOC = "'protoc --include_imports --descriptor_set_out=FILE'"


class MessageColumns(NamedTuple):
    """The columns of a message."""

    descriptors: str
    """The files that describe the message, without comments, as in ``SchemaVersion.protobuf``."""
    message: str
    """The message's full name."""
    schema: pa.Schema
    numbers: list[int]
    """The field number of each column."""
    shape: ValueShape


class _MessageColumn(NamedTuple):
    kind: pa.DataType
    shape: ValueShape


def columns_of_message(descriptors: str, message: str | None) -> MessageColumns:
    """Return the columns of a message.

    Args:
        descriptors: a ``FileDescriptorSet`` in Base64, as ``protoc --include_imports
            --descriptor_set_out`` writes it.
        message: the message's full name; None: the only message of the last file.

    Raises:
        InvalidConfigError: the text is not such a set, it lacks the message, or a field cannot
            become a column.
    """
    files = _files_of(descriptors)
    with _translated():  # around all calls: each may find a name that is not UTF-8
        found = _named_message(files, message or _only_message(files))
        kind, shape = _FieldWalk().message(found, "", ())
        kept = _reachable(files, found.file.name)
    if not pa.types.is_struct(kind):
        raise InvalidConfigError(
            f"{found.full_name} is one value, and no message with columns; name another message"
        )
    text = base64.b64encode(kept.SerializeToString(deterministic=True)).decode()
    numbers = [field.number for field in shape.fields]
    return MessageColumns(text, found.full_name, pa.schema(list(kind)), numbers, shape)


def message_rows(versions: Sequence[SchemaVersion], schema: pa.Schema, names: list[str]) -> RowsOf:
    """Return a function that decodes values; if one is invalid, it decodes none.

    The function then raises ValueError, or an error of Arrow.

    Args:
        versions: the versions of a stream's schema, ascending.
        schema: the columns.
        names: the name of each column in the newest version.
    """
    parse = _parser(versions)
    fields = _message_of(versions[-1]).fields_by_name
    kind = list(schema)
    wanted = [(fields[name], field.type) for name, field in zip(names, kind, strict=True)]

    def rows(values: pa.Array) -> pa.StructArray:
        messages = [None if value is None else parse(value) for value in values.to_pylist()]
        columns = [_column(field, kind, messages) for field, kind in wanted]
        return pa.StructArray.from_arrays(columns, fields=kind, mask=values.is_null())

    return rows


def message_check(versions: Sequence[SchemaVersion]) -> Callable[[bytes], None]:
    """Return a function that raises ValueError for a value that ``message_rows`` would reject.

    The function takes a few microseconds; decoding a single value to columns takes a millisecond.

    Args:
        versions: the versions of a stream's schema, ascending.
    """
    parse, check = _parser(versions), _check_of(_message_of(versions[-1]))

    def check_value(value: bytes) -> None:
        found = parse(value)
        if check is not None:
            check(found)

    return check_value


def _check_of(message: Descriptor) -> CheckMessage | None:
    """Return a check of a parsed message's times, and of texts that may not be UTF-8.

    None: the message has neither.
    """
    if message.full_name == _TIMESTAMP:
        return _microseconds
    checks = [each for field in message.fields if (each := _check_field(field)) is not None]
    if not checks:
        return None

    def check(found: Any) -> None:
        for each in checks:
            each(found)

    return check


def _check_field(field: FieldDescriptor) -> CheckMessage | None:
    """Return a check of a field of a parsed message; None: every value of it is valid."""
    name, below = field.name, field.message_type
    is_map = below is not None and field.is_repeated and below.GetOptions().map_entry
    check = _check_single(below.fields_by_name["value"] if below and is_map else field)
    if check is None and not is_map:
        return None

    def check_all(message: Any) -> None:
        found = getattr(message, name)
        if not field.is_repeated:
            found = [found] if not field.has_presence or message.HasField(name) else []
        # Reading a map raises an error by itself if a key is not UTF-8.
        for each in found.values() if is_map else found:
            if check is not None:
                check(each)

    return check_all


def _check_single(field: FieldDescriptor) -> CheckMessage | None:
    if field.type == FieldDescriptor.TYPE_STRING:
        return _check_text
    return None if field.message_type is None else _check_of(field.message_type)


def _check_text(text: Any) -> None:
    if type(text) is not str:  # proto2 returns bytes if a text is not UTF-8
        raise ValueError("a text is not UTF-8")


def _message_of(version: SchemaVersion) -> Descriptor:
    with _translated():
        return _pool_of(_files_of(version.protobuf)).FindMessageTypeByName(version.message)


def _parser(versions: Sequence[SchemaVersion]) -> Callable[[bytes], Message]:
    """Return a function that parses a value, with a registry's frame or without."""
    newest = message_factory.GetMessageClass(_message_of(versions[-1]))
    framed = {
        each.registry_id: [
            _indexes_of(_message_of(each), with_maps=with_maps) for with_maps in (True, False)
        ]
        for each in versions
        if each.registry_id is not None
    }

    def parse(value: bytes) -> Message:
        number = framed_id(value)
        if number is not None:  # a message never begins with a zero byte, so this is a frame
            if number not in framed:
                raise ValueError(
                    f"no version of the schema has the registry's id {number} of its frame"
                )
            indexes, start = _read_indexes(value, FRAME_BYTES)
            if indexes not in framed[number]:
                raise ValueError(f"its frame names another message of the file, {indexes}")
            value = value[start:]
        try:
            found: Message = newest.FromString(value)
        except DecodeError as error:
            raise ValueError(f"{error}") from error
        if not found.IsInitialized():
            missing = ", ".join(found.FindInitializationErrors())  # type: ignore[attr-defined]  # not in the stubs
            raise ValueError(f"{missing}, which the message requires, is missing")
        return found

    return parse


def _indexes_of(message: Descriptor, *, with_maps: bool) -> list[int]:
    """Return the path of a message in its file, as indexes from the outermost message down.

    A map is a nested message, too: Confluent's Python client counts it, the Java client does not.
    """
    outer = message.containing_type
    if outer is None:
        return [[*message.file.message_types_by_name].index(message.name)]
    beside = [each for each in outer.nested_types if with_maps or not each.GetOptions().map_entry]
    return [*_indexes_of(outer, with_maps=with_maps), beside.index(message)]


def _read_indexes(value: bytes, start: int) -> tuple[list[int], int]:
    """Read the indexes of a message in a frame; no indexes mean the first message."""
    count, start = _read_varint(value, start)
    if not 0 <= count <= _INDEXES_MAX:
        raise ValueError(f"its frame has {count} indexes of a message")
    indexes = []
    for _ in range(count):
        index, start = _read_varint(value, start)
        indexes.append(index)
    return indexes or [0], start


def _read_varint(value: bytes, start: int) -> tuple[int, int]:
    """Read a signed number; return the number and the position after it."""
    number = 0
    for place in range(_VARINT_BYTES_MAX):
        if start + place >= len(value):
            break
        byte = value[start + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), start + place + 1
    raise ValueError("its frame ends within the indexes of a message")


def _column(field: FieldDescriptor, kind: pa.DataType, messages: Sequence[Any]) -> pa.Array:
    """Return the column of a field of messages; some messages may be None."""
    name = field.name
    if not field.is_repeated:
        if field.has_presence:
            parts = [
                getattr(each, name) if each is not None and each.HasField(name) else None
                for each in messages
            ]
        else:
            parts = [None if each is None else getattr(each, name) for each in messages]
        return _values(field, kind, parts)
    offsets: list[int] = [0]
    found: list[Any] = []
    lists = [() if each is None else getattr(each, name) for each in messages]
    for each in lists:
        found += each.items() if pa.types.is_map(kind) and each else each
        offsets.append(len(found))
    mask = pa.array([each is None for each in messages], pa.bool_())
    places = pa.array(offsets, pa.int32())
    if pa.types.is_map(kind):
        assert field.message_type is not None
        key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        keys = _values(key, kind.key_type, [pair[0] for pair in found])
        items = _values(value, kind.item_type, [pair[1] for pair in found])
        return pa.MapArray.from_arrays(places, keys, items, type=kind, mask=mask)
    items = _values(field, kind.value_type, found)
    return pa.ListArray.from_arrays(places, items, type=kind, mask=mask)


def _values(field: FieldDescriptor, kind: pa.DataType, parts: Sequence[Any]) -> pa.Array:
    """Return the column of a field's values."""
    if field.enum_type is not None:
        names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
        return pa.array([None if p is None else names.get(p, str(p)) for p in parts], kind)
    message = field.message_type
    if message is None:
        return pa.array(parts, kind)
    if message.full_name == _TIMESTAMP:
        return pa.array([_microseconds(each) for each in parts], pa.int64()).cast(kind)
    if message.full_name in _WRAPPERS:
        return pa.array([None if each is None else each.value for each in parts], kind)
    fields = message.fields_by_name
    columns = [
        _column(fields[part.name], part.type, parts)
        if part.name in fields
        else pa.nulls(len(parts), part.type)
        for part in kind
    ]
    mask = pa.array([each is None for each in parts], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def _microseconds(time: Any) -> int | None:
    if time is None:
        return None
    if not 0 <= time.nanos < _NANOS:
        raise ValueError(f"a time has {time.nanos} nanoseconds")
    found: int = time.seconds * 1_000_000 + time.nanos // 1_000
    check_days(found // _DAY, found // _DAY)
    return found


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate errors about descriptors to an InvalidConfigError."""
    try:
        yield
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigError(
            f"these are no descriptors of messages: {error}; write them with {_PROTOC}"
        ) from error


def _files_of(descriptors: str) -> descriptor_pb2.FileDescriptorSet:
    try:
        data = base64.b64decode(descriptors, validate=True)
        found = descriptor_pb2.FileDescriptorSet.FromString(data)
    except (binascii.Error, ValueError, DecodeError) as error:
        raise InvalidConfigError(
            f"these are no descriptors of messages: {error}; write them with {_PROTOC}"
        ) from error
    if not found.file:
        raise InvalidConfigError(f"the descriptor set has no file; write it with {_PROTOC}")
    return found


def _pool_of(files: descriptor_pb2.FileDescriptorSet) -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    for each in files.file:
        pool.AddSerializedFile(each.SerializeToString())
    return pool


def _named_message(files: descriptor_pb2.FileDescriptorSet, name: str) -> Descriptor:
    try:
        return _pool_of(files).FindMessageTypeByName(name)
    except KeyError as error:
        raise InvalidConfigError(
            f"the descriptor set has no message {name[:100]!r}; name one with its package: "
            f"{_shown(_names_of_last(files))}"
        ) from error


def _only_message(files: descriptor_pb2.FileDescriptorSet) -> str:
    names = _names_of_last(files)
    if len(names) != 1:
        raise InvalidConfigError(
            f"name the message that values are: {files.file[-1].name} has {_shown(names)}"
        )
    return names[0]


def _names_of_last(files: descriptor_pb2.FileDescriptorSet) -> list[str]:
    """Return the messages of the last file, which is the one that was compiled."""
    last = files.file[-1]
    prefix = f"{last.package}." if last.package else ""
    return [f"{prefix}{each.name}" for each in last.message_type]


def _shown(names: list[str]) -> str:
    more = ", …" if len(names) > _SHOWN_MESSAGES_MAX else ""
    return (", ".join(names[:_SHOWN_MESSAGES_MAX]) or "none") + more


def without_paths(descriptors: str) -> bytes:
    """Return a schema without the paths of its files: they depend on where it was compiled."""
    files = _files_of(descriptors)
    numbers = {each.name: str(number) for number, each in enumerate(files.file)}
    for each in files.file:
        each.name = numbers[each.name]
        each.dependency[:] = [numbers[name] for name in each.dependency]
    return files.SerializeToString(deterministic=True)


def _reachable(
    files: descriptor_pb2.FileDescriptorSet, name: str
) -> descriptor_pb2.FileDescriptorSet:
    """Return the file of this name and all files that it imports, without comments."""
    imports = {each.name: each.dependency for each in files.file}
    found, waiting = {name}, [name]
    while waiting:
        new = {*imports[waiting.pop()]} - found
        found |= new
        waiting += new
    kept = descriptor_pb2.FileDescriptorSet()
    for each in files.file:
        if each.name in found:
            each.ClearField("source_code_info")
            kept.file.append(each)
    return kept


class _FieldWalk:
    """A walk over the fields of a message and of its nested messages."""

    def __init__(self) -> None:
        self._count = 0

    def message(self, message: Descriptor, path: str, within: tuple[str, ...]) -> _MessageColumn:
        """Return a message as a column.

        Args:
            message: the message's descriptor.
            path: the path of the field, for error messages.
            within: the messages that contain this one.
        """
        if message.full_name == _TIMESTAMP:
            return _MessageColumn(pa.timestamp("us", tz="UTC"), ValueShape("Timestamp"))
        if message.full_name in _WRAPPERS:
            word, kind = _SCALARS[message.fields_by_name["value"].type]
            return _MessageColumn(kind, ValueShape(f"{word} in a message"))
        if message.full_name in within:
            raise InvalidConfigError(
                f"field {path!r}: the message {message.full_name} holds itself, and no column is "
                "as deep; leave the field out"
            )
        if len(within) > DEPTH_MAX:
            raise InvalidConfigError(
                f"field {path[:200]!r}: messages are nested more than {DEPTH_MAX} deep; leave "
                "inner fields out"
            )
        if not message.fields:
            raise InvalidConfigError(
                f"{f'field {path!r}: ' if path else ''}the message {message.full_name} has no "
                "fields, so that no column can be made of it; leave it out, or give it a field"
            )
        kinds, fields = [], []
        for each in sorted(message.fields, key=lambda field: field.index):
            kind, shape = self._field(each, f"{path}.{each.name}".removeprefix("."), within)
            kinds.append(pa.field(each.name, kind))
            fields.append(ShapeField(each.name, shape, number=each.number))
        return _MessageColumn(pa.struct(kinds), ValueShape("struct", fields=tuple(fields)))

    def _field(self, field: FieldDescriptor, path: str, within: tuple[str, ...]) -> _MessageColumn:
        # Each use of a message is counted, since each becomes columns.
        self._count += 1
        if self._count > COLUMNS_MAX:
            raise InvalidConfigError(
                f"the message has more than {COLUMNS_MAX:,} columns, those within columns "
                f"included; leave some out, such as {path[:200]!r}"
            )
        if not _NAME.fullmatch(field.name):
            raise InvalidConfigError(f"{field.name[:100]!r} is no name of a field")
        assert field.containing_type is not None
        within = (*within, field.containing_type.full_name)
        message = field.message_type
        if message is not None and message.GetOptions().map_entry and field.is_repeated:
            key, value = (
                self._single(message.fields_by_name[part], f"{path}.{part}", within)
                for part in ("key", "value")
            )
            parts = (ShapeField("key", key.shape), element(value.shape))
            return _MessageColumn(pa.map_(key.kind, value.kind), ValueShape("map", fields=parts))
        kind, shape = self._single(field, path, within)
        if field.is_repeated:
            return _MessageColumn(pa.list_(kind), ValueShape("array", fields=(element(shape),)))
        limits = {}
        oneof = field.containing_oneof
        if oneof is not None and len(oneof.fields) > 1:
            # A field that joins a oneof later would lose values of records that set both fields.
            limits["oneof"] = oneof.name
        found = ValueShape(
            shape.kind,
            not field.is_required,
            shape.fields,
            symbols=shape.symbols,
            limits=limits,
        )
        return _MessageColumn(kind, found)

    def _single(self, field: FieldDescriptor, path: str, within: tuple[str, ...]) -> _MessageColumn:
        if field.type in _SCALARS:
            word, kind = _SCALARS[field.type]
            return _MessageColumn(kind, ValueShape(word))
        if field.enum_type is not None:
            symbols = {f"{each.name} = {each.number}" for each in field.enum_type.values}
            return _MessageColumn(pa.string(), ValueShape("enum", symbols=frozenset(symbols)))
        if field.message_type is None or field.type == FieldDescriptor.TYPE_GROUP:
            raise InvalidConfigError(
                f"field {path!r} is a group, which has no column: use messages"
            )
        return self.message(field.message_type, path, within)
