"""Protocol Buffers as the schema of a stream: columns of a message, its versions, its values."""

import base64
from datetime import UTC, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, json_format
from hypothesis import given
from hypothesis import strategies as st

from strandline.errors import InvalidConfigError
from strandline.values.columns import arrow_schema
from strandline.values.decode import value_by_schema, value_decoder
from strandline.values.evolution import next_version
from strandline.values.fits import misfit_finder
from tests.kit.proto import compiled, in_base64, message_class

HEAD = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
"""
ORDER = """message Order {
  int64 id = 1;
  string customer = 2;
  optional double price = 3;
  google.protobuf.Timestamp at = 4;
  repeated string tags = 5;
  map<string, int32> counts = 6;
  uint64 big = 7;
  enum State { NEW = 0; OLD = 1; }
  State state = 8;
  oneof paid { int32 cash = 9; string card = 10; }
  message Place { string city = 1; repeated google.protobuf.Timestamp seen = 2; }
  Place place = 11;
  repeated Place places = 12;
  google.protobuf.StringValue note = 13;
  map<string, Place> by_name = 14;
  float ratio = 15;
  sint32 less = 16;
  fixed32 more = 17;
  bytes photo = 18;
  bool ok = 19;
  repeated State states = 20;
}
"""
FIRST = HEAD + ORDER


def order(**fields):
    return message_class(FIRST, "shop.Order")(**fields)


def versions_of(*texts, message="shop.Order", **more):
    """The versions that files make, one after the other."""
    found = []
    for text in texts:
        found.append(next_version(found, in_base64(text), kind="protobuf", message=message, **more))
    return found


def proto(body, head='syntax = "proto3"; package shop;'):
    """A file with a message ``Order`` of these fields."""
    return f"{head} message Order {{ {body} }}"


def verdicts(versions, values):
    """The rows of values that fit, and the reasons of the others, of readers and of the check."""
    decode = value_decoder("protobuf", arrow_schema(versions[-1].columns), versions=versions)
    found = decode(pa.array(values, pa.binary()))
    find = misfit_finder(versions)
    refused = [place for place, value in enumerate(values) if find(value) is not None]
    assert refused == sorted(place for place, _ in found.bad)
    found.rows.validate(full=True)
    return found.rows.to_pylist(), [reason for _, reason in found.bad]


def test_fields_become_columns_with_their_numbers():
    """Each as wide as its values; a message is a struct, unless it stands for one value."""
    [version] = versions_of(FIRST)
    assert [f"{each.id} {each.name} {each.type}" for each in version.columns] == [
        "1 id bigint",
        "2 customer string",
        "3 price double",
        "4 at timestamp",
        "5 tags array<string>",
        "6 counts map<string,int>",
        "7 big decimal(20,0)",
        "8 state string",
        "9 cash int",
        "10 card string",
        "11 place struct<city:string,seen:array<timestamp>>",
        "12 places array<struct<city:string,seen:array<timestamp>>>",
        "13 note string",
        "14 by_name map<string,struct<city:string,seen:array<timestamp>>>",
        "15 ratio float",
        "16 less int",
        "17 more bigint",
        "18 photo binary",
        "19 ok boolean",
        "20 states array<string>",
    ]
    assert (version.format, version.message) == ("protobuf", "shop.Order")
    assert all(each.nullable for each in version.columns)


def test_a_value_is_read_as_it_was_written():
    """What is not there is null, or the default of a field that has no presence."""
    read = value_by_schema(versions_of(FIRST))
    place = {"city": "Rome", "seen": [{"seconds": 1, "nanos": 1999}]}
    value = order(
        id=-5,
        customer="ada",
        at={"seconds": 86400},
        tags=["a", ""],
        counts={"x": 1},
        big=(1 << 64) - 1,
        state=7,
        states=[1, 0],
        card="1234",
        place=place,
        places=[place, {}],
        by_name={"home": place},
        note={"value": ""},
        photo=b"\xff",
        more=(1 << 32) - 1,
    ).SerializeToString()
    rome = {"city": "Rome", "seen": [datetime(1970, 1, 1, 0, 0, 1, 1, tzinfo=UTC)]}
    empty = {"city": "", "seen": []}
    assert read(value) == {
        "id": -5,
        "customer": "ada",
        "price": None,
        "tags": ["a", ""],
        "counts": {"x": 1},
        "at": datetime(1970, 1, 2, tzinfo=UTC),
        "big": Decimal((1 << 64) - 1),
        "state": "7",
        "cash": None,
        "card": "1234",
        "place": rome,
        "places": [rome, empty],
        "note": "",
        "by_name": {"home": rome},
        "ratio": 0.0,
        "less": 0,
        "more": (1 << 32) - 1,
        "photo": b"\xff",
        "ok": False,
        "states": ["OLD", "NEW"],
    }
    nothing = read(b"")
    assert (nothing["id"], nothing["state"], nothing["tags"], nothing["counts"]) == (
        0,
        "NEW",
        [],
        {},
    )
    assert [nothing[name] for name in ("price", "at", "cash", "place", "note")] == [None] * 5


def test_a_tombstone_is_a_row_of_nulls():
    """And an empty value is none: all its fields have their defaults."""
    rows, _ = verdicts(versions_of(proto("int32 a = 1; repeated int32 b = 2;")), [None, b""])
    assert rows == [None, {"a": 0, "b": []}]


def test_frames_of_a_registry_are_taken_off():
    """With the place of the message in its file: the first one, another, one within another."""
    text = HEAD + "message Click { int32 x = 1; message In { int32 y = 1; } }" + ORDER
    value = order(id=7).SerializeToString()
    frame = b"\0\0\0\0\x11"
    cases = {
        frame + b"\x02\x02" + value: None,
        frame + b"\0" + value: "its frame names another message of the file, [0]",
        frame + b"\x04\x02\x00" + value: "its frame names another message of the file, [1, 0]",
        b"\0\0\0\0\x12\x02\x02" + value: "no version of the schema has the registry's id 18 of",
        frame: "Error parsing message",
        frame + b"\x80": "its frame ends within",
        frame + b"\xff" * 20: "its frame ends within",
        frame + b"\x01": "its frame has -1 indexes",
        frame + b"\xfe\xff\xff\xff\x0f" + value: "its frame has 2147483647 indexes",
    }
    rows, reasons = verdicts(versions_of(text, registry_id=17), [*cases])
    assert [row["id"] for row in rows] == [7]
    for told, reason in zip([told for told in cases.values() if told], reasons, strict=True):
        assert reason.startswith(told)
    first = versions_of(FIRST, registry_id=17)
    assert verdicts(first, [frame + b"\0" + value])[0][0]["id"] == 7
    nested = versions_of(text, message="shop.Click.In", registry_id=17)
    assert verdicts(nested, [frame + b"\x04\x00\x00\x08\x05"])[0] == [{"y": 5}]
    # Confluent's client for Python counts what stands for the map, the one for Java does not.
    text = proto("map<string, int32> m = 1; message In { int32 y = 1; }")
    nested = versions_of(text, message="shop.Order.In", registry_id=17)
    values = [frame + b"\x04\x00" + index + b"\x08\x05" for index in (b"\0", b"\2", b"\4")]
    rows, [reason] = verdicts(nested, values)
    assert (len(rows), reason) == (2, "its frame names another message of the file, [0, 2]")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"\xff", "Error parsing message with type 'shop.Order'"),
        (b"\x12\x01\xff", "String field had bad UTF-8"),
        (order(at={"seconds": 1 << 60}).SerializeToString(), "a date or time is not in the years"),
        (
            order(at={"seconds": -(1 << 40)}).SerializeToString(),
            "a date or time is not in the years",
        ),
        (order(at={"nanos": -1}).SerializeToString(), "a time has -1 nanoseconds"),
        (
            order(places=[{"seen": [{"seconds": 1 << 60}]}]).SerializeToString(),
            "a date or time is not in",
        ),
        (order(by_name={"a": {"seen": [{"nanos": 1 << 30}]}}).SerializeToString(), "a time has"),
        (b"\x0b" * 200, "Error parsing message"),
    ],
)
def test_what_cannot_be_read_does_not_fit(value, told):
    """With the reason, beside values that do."""
    rows, [reason] = verdicts(versions_of(FIRST), [b"", value, order(id=1).SerializeToString()])
    assert ([row["id"] for row in rows], told in reason) == ([0, 1], True)


def test_proto2_checks_what_it_requires_and_texts():
    """Its parser takes any bytes for a text, and a message without what is required."""
    text = proto(
        "required int32 a = 1; optional string s = 2; repeated string r = 3; "
        "map<string, string> m = 4; optional int32 d = 5 [default = 7];",
        'syntax = "proto2"; package shop;',
    )
    versions = versions_of(text)
    assert [each.nullable for each in versions[0].columns] == [False, True, True, True, True]
    bad = [
        b"\x12\x01\xff",
        b"\x1a\x01\xff",
        b"\x22\x04\x0a\x02\xff\xff",
        b"\x22\x04\x12\x02\xff\xff",
    ]
    rows, reasons = verdicts(versions, [b"\x08\x01", b"", *(b"\x08\x01" + each for each in bad)])
    assert [(row["a"], row["d"]) for row in rows] == [(1, None)]
    assert reasons[0] == "a, which the message requires, is missing"
    assert len(reasons) == 5


@pytest.mark.parametrize(
    ("text", "message", "told"),
    [
        (
            HEAD + ORDER + "message Other { int32 a = 1; }",
            None,
            "test.proto has shop.Order, shop.O",
        ),
        (FIRST, "shop.None", "no message 'shop.None'; name one .*: shop.Order"),
        (FIRST, "google.protobuf.Timestamp", "is one value, and no message with columns"),
        (FIRST, "google.protobuf.StringValue", "is one value, and no message with columns"),
        (proto(""), None, "the message shop.Order has no fields"),
        (proto("int32 a = 1; message B {} B b = 2;"), None, "field 'b': the message shop.Order.B"),
        (
            proto("int32 a = 1; Order b = 2;"),
            None,
            "field 'b': the message shop.Order holds itself",
        ),
        (proto("message B { map<string, Order> c = 1; } B b = 1;"), None, "'b.c.value': the mess"),
        (proto("int32 _offset = 1;"), None, "'_offset', which names a column of the record"),
        (proto("int32 a = 1; int32 A = 2;"), None, "differ by case alone"),
        (
            proto("optional group G = 1 { optional int32 a = 2; }", 'syntax = "proto2";'),
            None,
            "field 'g' is a group",
        ),
    ],
)
def test_what_has_no_columns_is_refused_by_name(text, message, told):
    """With the field."""
    with pytest.raises(InvalidConfigError, match=told):
        versions_of(text, message=message)


def doubling(levels):
    """A message of twice the columns of the one below."""
    parts = ["message M0 { int32 a = 1; }"]
    parts += [f"message M{n} {{ M{n - 1} a = 1; M{n - 1} b = 2; }}" for n in range(1, levels)]
    return 'syntax = "proto3"; ' + " ".join(parts)


def chain(levels):
    """A message of messages within one another."""
    parts = [f"message M{n} {{ M{n - 1} a = 1; }}" for n in range(1, levels)]
    return 'syntax = "proto3"; message M0 { int32 a = 1; } ' + " ".join(parts)


@pytest.mark.parametrize(
    ("text", "message"), [(doubling(30), "M29"), (chain(40), "M39"), (chain(500), "M499")]
)
def test_a_message_that_means_too_much_is_refused(text, message):
    """Before it costs memory or the stack: a message counts wherever it is used."""
    with pytest.raises(InvalidConfigError, match=r"more than|deep"):
        versions_of(text, message=message)


def test_what_is_no_descriptor_set_is_refused():
    """With how to write one."""
    missing = descriptor_pb2.FileDescriptorSet.FromString(compiled(FIRST))
    del missing.file[0]
    lone = base64.b64encode(missing.SerializeToString()).decode()
    for text, told in {
        "???": "are no descriptors of messages.*protoc",
        base64.b64encode(b"\xff").decode(): "are no descriptors of messages.*protoc",
        "": "has no file",
        lone: "--include_imports",
    }.items():
        with pytest.raises(InvalidConfigError, match=told):
            next_version([], text, kind="protobuf")
    with pytest.raises(InvalidConfigError, match=r"a \.proto file is compiled first"):
        next_version([], FIRST)
    with pytest.raises(InvalidConfigError, match=r"'shop\.Order' is named for values in Protocol"):
        next_version([], "id INT", message="shop.Order")


BASE = (
    "int32 id = 1; string customer = 2; E state = 3; P place = 4; "
    "oneof o { int32 x = 5; int32 y = 6; }"
)
INNER = "enum E { NEW = 0; OLD = 1; } message P { string city = 1; }"
ALLOWED = [
    BASE + "string more = 7; repeated int32 list = 8;",
    BASE.replace("int32 id", "int64 id"),
    BASE.replace("customer", "client"),
    BASE.replace("string customer", "optional string customer"),
    BASE.replace("int32 y = 6;", "int32 y = 6; int32 z = 7;"),
    BASE.replace("oneof o { int32 x = 5; int32 y = 6; }", "int32 x = 5; int32 y = 6;"),
    "reserved 9; " + BASE,
]
REFUSED = [
    (BASE.replace("customer = 2", "customer = 9"), "'customer' has the number 9 and had 2"),
    (BASE.replace("string customer = 2;", ""), "'customer' is missing.*keeps its number, 2"),
    (BASE.replace("int32 id", "uint32 id"), "'id' is int32 and cannot become uint32"),
    (BASE.replace("int32 id", "sint32 id"), "'id' is int32 and cannot become sint32"),
    (BASE.replace("int32 id", "string id"), "'id' is int32 and cannot become string"),
    (BASE.replace("string customer", "repeated string customer"), "cannot become array"),
    (BASE.replace("string customer", "bytes customer"), "'customer' is string and cannot"),
    (BASE.replace("E state", "int32 state"), "'state' is enum and cannot become int32"),
    (
        BASE.replace("int32 id = 1;", "").replace("int32 y = 6;", "int32 y = 6; int32 id = 1;"),
        "'id': 'oneof' is",
    ),
]


@pytest.mark.parametrize("body", ALLOWED)
def test_a_version_that_reads_earlier_values_is_allowed(body):
    """Fields are known by their numbers, whatever their names."""
    first, second = proto(BASE + INNER), proto(body + INNER)
    versions = versions_of(first, second)
    old = message_class(first, "shop.Order")
    value = old(id=-7, customer="ada", state=1, place={"city": "Rome"}, y=3).SerializeToString()
    [row], _ = verdicts(versions, [value])
    name = "client" if "client" in body else "customer"
    assert (row["id"], row[name], row["state"], row["place"], row["x"], row["y"]) == (
        *(-7, "ada", "OLD", {"city": "Rome"}),
        *((None, 3) if "oneof" in body else (0, 3)),
    )


@pytest.mark.parametrize(("body", "told"), REFUSED)
def test_a_version_that_would_not_read_them_is_refused(body, told):
    """By the field."""
    with pytest.raises(InvalidConfigError, match=told):
        versions_of(proto(BASE + INNER), proto(body + INNER))


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        ("enum E { NEW = 0; } message P { string city = 1; }", "the enum of 'state' lacks OLD = 1"),
        ("enum E { NEW = 0; OLD = 2; } message P { string city = 1; }", "lacks OLD = 1"),
        ("enum E { NEW = 0; OLD = 1; } message P { string city = 2; }", "'place.city' has the num"),
        ("enum E { NEW = 0; OLD = 1; } message P { string town = 1; }", "'place.city' is missing"),
    ],
)
def test_a_version_with_another_part_is_refused(inner, told):
    """By its path: a struct's fields have names alone in a table."""
    with pytest.raises(InvalidConfigError, match=told):
        versions_of(proto(BASE + INNER), proto(BASE + inner))


def test_a_renamed_column_keeps_its_id_and_all_its_names():
    """A table may have any of them; a name once given is not another field's."""
    texts = [proto("int32 a = 1;"), proto("int32 b = 1;"), proto("int64 c = 1; string d = 2;")]
    versions = versions_of(*texts)
    decode = value_decoder("protobuf", pa.schema([("a", pa.int32())]), versions=versions)
    assert decode(pa.array([b"\x08\x05"], pa.binary())).rows.to_pylist() == [{"a": 5}]
    wide = decode(pa.array([b"\x08\xff\xff\xff\xff\xff\x01"], pa.binary()))
    assert len(wide.bad) == 1
    with pytest.raises(InvalidConfigError, match="'a' was the name of another column, now 'c'"):
        versions_of(*texts, proto("int64 c = 1; string d = 2; int32 a = 3;"))
    with pytest.raises(InvalidConfigError, match=r"no version .* has the column 'x'"):
        value_decoder("protobuf", pa.schema([("x", pa.int32())]), versions=versions)


def test_the_same_again_changes_nothing():
    """Whatever its comments, and other files that come with it."""
    [one] = versions_of(FIRST)
    commented = HEAD + "// an order\n" + ORDER
    assert next_version([one], in_base64(commented), kind="protobuf", message="shop.Order") is one
    assert next_version([one], one.protobuf, kind="protobuf", message="shop.Order") is one
    files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(one.protobuf)).file
    assert [each.name for each in files][-1] == "test.proto"
    with pytest.raises(InvalidConfigError, match="values are protobuf since version 1"):
        next_version([one], "id INT")


def test_a_file_compiled_from_another_directory_says_the_same():
    """Its path, and those of its imports, depend on the directory alone."""
    [one] = versions_of(FIRST)

    def moved(text):
        files = descriptor_pb2.FileDescriptorSet.FromString(compiled(text))
        names = {each.name: f"protos/{each.name}" for each in files.file}
        for each in files.file:
            each.name = names[each.name]
            each.dependency[:] = [names[name] for name in each.dependency]
        return base64.b64encode(files.SerializeToString()).decode()

    more = FIRST.replace("bool ok", "bool fine = 21; bool ok")
    again = next_version([one], moved(FIRST), kind="protobuf", message="shop.Order")
    assert again is one
    assert next_version([one], moved(more), kind="protobuf", message="shop.Order").version == 2


WORDS = st.text(max_size=3)
NUMBERS = st.integers(-(1 << 31), (1 << 31) - 1)
TIMES = st.builds(
    dict, seconds=st.integers(-(10**11), 3 * 10**11), nanos=st.integers(-1, 1_000_000_000)
)
PLACES = st.builds(dict, city=WORDS, seen=st.lists(TIMES, max_size=2))
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.integers(-(1 << 63), (1 << 63) - 1),
        "customer": WORDS,
        "at": TIMES,
        "price": st.floats(allow_nan=False),
        "tags": st.lists(WORDS, max_size=3),
        "counts": st.dictionaries(WORDS, NUMBERS, max_size=2),
        "state": NUMBERS,
        "big": st.integers(0, (1 << 64) - 1),
        "place": PLACES,
        "less": NUMBERS,
        "places": st.lists(PLACES, max_size=2),
        "card": WORDS,
        "photo": st.binary(max_size=3),
        "by_name": st.dictionaries(WORDS, PLACES, max_size=2),
        "note": st.builds(dict, value=WORDS),
    },
)


@given(st.lists(ORDERS, min_size=1, max_size=4))
def test_any_message_is_read_as_the_library_reads_it(orders):
    """Or, for a time that no column holds, by neither of readers and the check."""
    versions = versions_of(FIRST)
    values = [order(**each).SerializeToString() for each in orders]
    verdicts(versions, values)
    decode = value_decoder("protobuf", arrow_schema(versions[-1].columns), versions=versions)
    found = decode(pa.array(values, pa.binary()))
    for row, source in zip(
        found.rows.to_pylist(maps_as_pydicts="strict"), found.sources, strict=True
    ):
        message = order(**orders[source])
        for name in ("id", "customer", "tags", "big", "less", "photo", "ratio", "ok"):
            assert row[name] == getattr(message, name)
        assert row["counts"] == dict(message.counts)
        assert {name: each["city"] for name, each in row["by_name"].items()} == {
            name: each.city for name, each in message.by_name.items()
        }
        assert [each["city"] for each in row["places"]] == [each.city for each in message.places]
        for name in ("price", "at", "place", "card", "note"):
            assert (row[name] is not None) == message.HasField(name)


@given(
    st.binary(max_size=40) | ORDERS.map(lambda each: order(**each).SerializeToString()), st.data()
)
def test_any_bytes_fit_or_do_not(value, data):
    """Cut, changed and framed values too; readers and the check agree, and nothing else fails."""
    changed = bytearray(value)
    for _ in range(data.draw(st.integers(0, 3)) if value else 0):
        changed[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    cut = value[: data.draw(st.integers(0, len(value)))]
    framed = b"\0\0\0\0\x11" + data.draw(st.binary(max_size=3)) + value
    verdicts(versions_of(FIRST, registry_id=17), [bytes(changed), cut, framed])


SET = descriptor_pb2.FileDescriptorSet.FromString(compiled(FIRST))


@given(st.data())
def test_hostile_descriptors_are_a_schema_or_refused(data):
    """With any of their numbers, names and references changed."""
    files = json_format.MessageToDict(SET)
    places = [*_leaves(files)]
    for holder, key in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=4)):
        holder[key] = data.draw(st.sampled_from([*{each[0][each[1]] for each in places}]))
    hostile = descriptor_pb2.FileDescriptorSet()
    try:
        json_format.ParseDict(files, hostile)
    except json_format.ParseError:
        return
    text = base64.b64encode(hostile.SerializeToString()).decode()
    message = data.draw(st.sampled_from(["shop.Order", "shop.Order.Place", None]))
    try:
        version = next_version([], text, kind="protobuf", message=message)
    except InvalidConfigError:
        return
    verdicts([version], [b"", order(id=1, place={"city": "x"}).SerializeToString(), b"\xff"])


def _leaves(part):
    """Where a document has something that is neither an object nor a list."""
    for key, each in part.items() if isinstance(part, dict) else enumerate(part):
        if isinstance(each, dict | list):
            yield from _leaves(each)
        else:
            yield part, key


@given(st.binary(max_size=200), st.integers(0, 2000), st.integers(0, 255))
def test_any_bytes_are_descriptors_or_refused(junk, place, byte):
    """Random ones, and a set with a byte changed."""
    changed = bytearray(SET.SerializeToString())
    changed[place % len(changed)] = byte
    for data in (junk, bytes(changed)):
        try:
            version = next_version([], base64.b64encode(data).decode(), kind="protobuf")
        except InvalidConfigError:
            continue
        verdicts([version], [b"", b"\x08\x01", b"\xff"])
