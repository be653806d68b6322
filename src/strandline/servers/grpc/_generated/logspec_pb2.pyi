from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Entry(_message.Message):
    __slots__ = ("index", "skip", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    skip: bool
    data: bytes
    def __init__(self, index: _Optional[int] = ..., skip: _Optional[bool] = ..., data: _Optional[bytes] = ...) -> None: ...

class Redirect(_message.Message):
    __slots__ = ("host",)
    HOST_FIELD_NUMBER: _ClassVar[int]
    host: str
    def __init__(self, host: _Optional[str] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("sequence", "proposals")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    proposals: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, sequence: _Optional[int] = ..., proposals: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("ok", "redirect", "full")
    class OK(_message.Message):
        __slots__ = ("sequence", "indexes")
        SEQUENCE_FIELD_NUMBER: _ClassVar[int]
        INDEXES_FIELD_NUMBER: _ClassVar[int]
        sequence: int
        indexes: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, sequence: _Optional[int] = ..., indexes: _Optional[_Iterable[int]] = ...) -> None: ...
    OK_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    ok: AppendReply.OK
    redirect: Redirect
    full: bool
    def __init__(self, ok: _Optional[_Union[AppendReply.OK, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ..., full: _Optional[bool] = ...) -> None: ...

class DiscardRequest(_message.Message):
    __slots__ = ("firstIndex",)
    FIRSTINDEX_FIELD_NUMBER: _ClassVar[int]
    firstIndex: int
    def __init__(self, firstIndex: _Optional[int] = ...) -> None: ...

class DiscardReply(_message.Message):
    __slots__ = ("ok", "redirect")
    class OK(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    OK_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    ok: DiscardReply.OK
    redirect: Redirect
    def __init__(self, ok: _Optional[_Union[DiscardReply.OK, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("nextIndex",)
    NEXTINDEX_FIELD_NUMBER: _ClassVar[int]
    nextIndex: int
    def __init__(self, nextIndex: _Optional[int] = ...) -> None: ...

class ReadReply(_message.Message):
    __slots__ = ("ok", "redirect", "truncated")
    class OK(_message.Message):
        __slots__ = ("entries",)
        ENTRIES_FIELD_NUMBER: _ClassVar[int]
        entries: _containers.RepeatedCompositeFieldContainer[Entry]
        def __init__(self, entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...
    OK_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    ok: ReadReply.OK
    redirect: Redirect
    truncated: bool
    def __init__(self, ok: _Optional[_Union[ReadReply.OK, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ..., truncated: _Optional[bool] = ...) -> None: ...

class InfoRequest(_message.Message):
    __slots__ = ("allowStale",)
    ALLOWSTALE_FIELD_NUMBER: _ClassVar[int]
    allowStale: bool
    def __init__(self, allowStale: _Optional[bool] = ...) -> None: ...

class InfoReply(_message.Message):
    __slots__ = ("ok", "redirect")
    class OK(_message.Message):
        __slots__ = ("firstIndex", "lastIndex", "bytesUsed", "bytesTotal")
        FIRSTINDEX_FIELD_NUMBER: _ClassVar[int]
        LASTINDEX_FIELD_NUMBER: _ClassVar[int]
        BYTESUSED_FIELD_NUMBER: _ClassVar[int]
        BYTESTOTAL_FIELD_NUMBER: _ClassVar[int]
        firstIndex: int
        lastIndex: int
        bytesUsed: int
        bytesTotal: int
        def __init__(self, firstIndex: _Optional[int] = ..., lastIndex: _Optional[int] = ..., bytesUsed: _Optional[int] = ..., bytesTotal: _Optional[int] = ...) -> None: ...
    OK_FIELD_NUMBER: _ClassVar[int]
    REDIRECT_FIELD_NUMBER: _ClassVar[int]
    ok: InfoReply.OK
    redirect: Redirect
    def __init__(self, ok: _Optional[_Union[InfoReply.OK, _Mapping]] = ..., redirect: _Optional[_Union[Redirect, _Mapping]] = ...) -> None: ...
