"""Decoding of values of several streams in one table, each by the schema of its stream.

Rules: a stream's values have the columns of its own schema, under any of their names, and nulls in
the others of the table. Must not know files.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import UnavailableError
from strandline.values.decode import Decoded, value_decoder
from strandline.values.schema import SchemaVersion, ValueFormat, names_by_column


class StreamDecoder:
    """Decodes records that name their stream.

    Args:
        kind: the format of the values.
        columns: of values in the table.
        schemas: for each stream the versions of its schema, ascending.
    """

    def __init__(
        self,
        kind: ValueFormat,
        columns: pa.Schema,
        schemas: Mapping[str, Sequence[SchemaVersion]],
    ) -> None:
        self._columns = columns
        self._decoders = {
            stream: _decoder(kind, columns, versions) for stream, versions in schemas.items()
        }

    def __call__(self, batch: pa.RecordBatch) -> Decoded:
        """Decode a batch; its rows are in the order of their streams."""
        streams, values = batch.column("stream"), batch.column("value")
        rows, sources, bad = [pa.array([], pa.struct(list(self._columns)))], list[int](), []
        for stream in pc.unique(streams).to_pylist():
            if stream not in self._decoders:
                raise UnavailableError(
                    f"stream {stream!r} was created or deleted meanwhile; run the load again"
                )
            places = pc.indices_nonzero(pc.equal(streams, stream)).to_pylist()
            found = self._decoders[stream](values.take(pa.array(places, pa.int64())))
            rows.append(found.rows)
            sources += [places[source] for source in found.sources]
            bad += [(places[source], reason) for source, reason in found.bad]
        return Decoded(pa.concat_arrays(rows), sources, sorted(bad))


def _decoder(
    kind: ValueFormat, columns: pa.Schema, versions: Sequence[SchemaVersion]
) -> Callable[[pa.Array], Decoded]:
    """Return the function that decodes values of one stream to all columns of the table."""
    known = names_by_column(versions)
    own: dict[str, pa.Field] = {}
    for field in columns:
        if field.name in known:  # of two names of one column, as another stream has them, the first
            own.setdefault(known[field.name][0], field)
    names = [field.name for field in own.values()]
    decode = value_decoder(kind, pa.schema(list(own.values())), versions=versions)

    def whole(values: pa.Array) -> Decoded:
        found = decode(values)
        parts = dict(zip(names, found.rows.flatten(), strict=True))
        arrays = [parts.get(f.name, pa.nulls(len(found.rows), f.type)) for f in columns]
        mask = found.rows.is_null()
        rows = pa.StructArray.from_arrays(arrays, fields=list(columns), mask=mask)
        return Decoded(rows, found.sources, found.bad)

    return whole
