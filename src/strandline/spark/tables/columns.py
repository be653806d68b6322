"""The columns of a table that follows the versions of its stream's schema.

Rules: a table keeps its columns and their order. A version adds columns at the end, and fields at
the end of structs; it widens types and renames columns if the format can. The versions are applied
one after another, so that the columns do not depend on which versions a load has seen. A column
that a format cannot change stays unchanged. Pure: values and decisions, no files.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from strandline.errors import InvalidConfigError
from strandline.spark.options import TableFormat
from strandline.values.columns import arrow_schema, column_text, type_text
from strandline.values.evolution import is_wider
from strandline.values.schema import SchemaVersion, names_by_column

_NONE: Mapping[str, str] = MappingProxyType({})


class FollowingColumns(NamedTuple):
    """The columns of values in a table, after the versions of a schema."""

    schema: pa.Schema
    names: dict[str, str]
    """Maps each earlier name of a column to the new one, if the format renames."""
    kept: list[str]
    """Descriptions of columns that stay narrower than in the schema, for the log."""


def following_columns(
    columns: pa.Schema,
    versions: Sequence[SchemaVersion],
    *,
    table_format: TableFormat,
    primary_key: Sequence[str] = (),
) -> FollowingColumns:
    """Return the columns of values that a table has after all versions.

    Args:
        columns: the table's present columns.
        versions: the versions of the schema of its stream, ascending.
        table_format: Iceberg identifies columns by ids, and renames and widens them; plain Parquet
            widens them; Delta Lake, as its library writes it, does neither.
        primary_key: columns that keep their names.
    """
    widens, renames = table_format != "delta", table_format == "iceberg"
    known = names_by_column(versions)
    fields = list(columns)
    for version in versions:
        for new in arrow_schema(version.columns):
            of_column = known[new.name]
            place = next((i for i, each in enumerate(fields) if each.name in of_column), None)
            if place is None:
                fields.append(new.with_name(of_column[0]))
                continue
            old = fields[place]
            kind = followed_type(old.type, new.type, widens=widens)
            name = of_column[0] if renames and old.name not in primary_key else old.name
            fields[place] = pa.field(name, kind, old.nullable)
    newest = {each.name: each.type for each in arrow_schema(versions[-1].columns)}
    kept = []
    names: dict[str, str] = {}
    for field in fields:
        of_column = known.get(field.name, ())
        names |= {older: field.name for older in of_column if older != field.name}
        wanted = newest[of_column[0]] if of_column else field.type
        if followed_type(field.type, wanted, widens=True) != field.type:
            kept.append(column_text(field.with_nullable(True)))
    return FollowingColumns(pa.schema(fields), names if renames else {}, kept)


def columns_of_streams(
    columns: pa.Schema,
    schemas: Mapping[str, Sequence[SchemaVersion]],
    *,
    table_format: TableFormat,
) -> FollowingColumns:
    """Return the columns of values that a table of several streams has: the union of theirs.

    A column that a stream renames keeps its name, since other streams have it, too.

    Args:
        columns: those that the table has.
        schemas: for each stream the versions of its schema, ascending.
        table_format: plain Parquet and Iceberg widen types; Delta Lake does not.

    Raises:
        InvalidConfigError: of two streams a column has types that one column cannot have.
    """
    _check_agreement(schemas)
    keeping: TableFormat = "delta" if table_format == "delta" else "parquet"
    kept: list[str] = []
    for versions in schemas.values():
        found = following_columns(columns, versions, table_format=keeping)
        columns = found.schema
        kept += found.kept
    return FollowingColumns(columns, {}, list(dict.fromkeys(kept)))


def _check_agreement(schemas: Mapping[str, Sequence[SchemaVersion]]) -> None:
    seen: dict[str, tuple[pa.DataType, str]] = {}
    wrong = []
    for stream, versions in schemas.items():
        for field in arrow_schema(versions[-1].columns):
            kind, other = seen.setdefault(field.name, (field.type, stream))
            if not _agree(kind, field.type):
                wrong.append(
                    f"column {field.name!r} is {type_text(kind)} in {other!r} and "
                    f"{type_text(field.type)} in {stream!r}"
                )
    if wrong:
        raise InvalidConfigError(
            f"the schemas of the streams do not agree: {'; '.join(wrong)}; set versions that do, "
            "or load them into a table each, with {stream} in 'into'"
        )


def _agree(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether one of two types holds the values of both."""
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        theirs = {field.name: field.type for field in other}
        return all(_agree(f.type, theirs[f.name]) for f in one if f.name in theirs)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _agree(one.value_type, other.value_type)
    if pa.types.is_nested(one) or pa.types.is_nested(other):
        return bool(one == other)
    texts = type_text(one), type_text(other)
    return bool(one == other) or is_wider(*texts) or is_wider(*reversed(texts))


def followed_type(old: pa.DataType, new: pa.DataType, *, widens: bool) -> pa.DataType:
    """Return the type of a table's column after a version of the schema changed its type.

    A column keeps its type unless the new one is wider or has more fields.

    Args:
        old: the column's present type.
        new: the type in the schema.
        widens: whether types may become wider; fields may be added in any case.
    """
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        theirs = {field.name: field.type for field in new}
        fields = [
            field.with_type(
                followed_type(field.type, theirs.pop(field.name, field.type), widens=widens)
            )
            for field in old
        ]
        return pa.struct([*fields, *theirs.items()])
    if pa.types.is_list(old) and pa.types.is_list(new):
        item = followed_type(old.value_type, new.value_type, widens=widens)
        return pa.list_(old.value_field.with_type(item))
    if pa.types.is_map(old) and pa.types.is_map(new):
        return pa.map_(old.key_type, followed_type(old.item_type, new.item_type, widens=widens))
    if not widens or pa.types.is_nested(old) or pa.types.is_nested(new):
        return old
    return new if is_wider(type_text(old), type_text(new)) else old


def is_part(part: pa.DataType, whole: pa.DataType, *, widens: bool) -> bool:
    """Return whether a column of type ``part`` may change to type ``whole``."""
    return bool(followed_type(part, whole, widens=widens) == whole)


def follows(columns: pa.Schema, earlier: pa.Schema, names: Mapping[str, str]) -> bool:
    """Return whether columns are the earlier ones, perhaps widened or renamed, and new ones after.

    Args:
        columns: the columns of a table.
        earlier: the columns that it had before.
        names: the new names of columns, by their earlier names.
    """
    return len(columns) >= len(earlier) and all(
        names.get(old.name, old.name) == new.name and is_part(old.type, new.type, widens=True)
        for old, new in zip(earlier, columns, strict=False)
    )


def conformed(
    batch: pa.RecordBatch, schema: pa.Schema, names: Mapping[str, str] = _NONE
) -> pa.RecordBatch:
    """Return rows with the columns of a schema; arguments as ``with_columns``."""
    return with_columns(batch, schema, names).cast(schema)


def with_columns(
    batch: pa.RecordBatch, schema: pa.Schema, names: Mapping[str, str] = _NONE
) -> pa.RecordBatch:
    """Return rows with the columns of a schema; columns that the rows lack are null.

    Columns keep the types that they have in the rows.

    Args:
        batch: the rows.
        schema: the columns.
        names: the present names of columns, by their names in the rows.
    """
    found = {
        names.get(field.name, field.name): column
        for field, column in zip(batch.schema, batch.columns, strict=True)
    }
    columns = [found.get(field.name) for field in schema]
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(batch.num_rows, field.type) if column is None else column
            for field, column in zip(schema, columns, strict=True)
        ],
        names=schema.names,
    )
