"""JSON objects that tell no columns: refused before a table is made of them."""

import pyarrow as pa
import pytest

from strandline.errors import InvalidConfigError
from strandline.values.decode import infer_json_schema


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (b'{"a": 1, "a": 2}', "a"),
        (b'{"a": {"b": 1, "b": 2}}', "b"),
        (b'{"a": [{"c": 1}, {"d": 1, "d": 1}]}', "d"),
    ],
)
@pytest.mark.parametrize("others", [[], [b'{"e": 1}'], [b"no JSON", None]])
def test_a_field_twice_in_one_object_is_refused(value, name, others):
    """Which of the two is meant nobody knows, in whichever object it is."""
    with pytest.raises(InvalidConfigError, match=f"{name} is there twice in one object"):
        infer_json_schema(pa.array([*others, value, *others], pa.binary()))


def test_a_name_in_several_objects_is_one_column():
    """Only twice in the same one is a mistake."""
    found = infer_json_schema(pa.array([b'{"a": {"a": 1}}', b'{"a": {"a": 2}}'], pa.binary()))
    assert found == pa.schema([("a", pa.struct([("a", pa.int64())]))])
