"""Positions in a table of an SQL database, by SQLAlchemy.

    SqlPositions("postgresql+psycopg://user@host/database")

Rules: a commit is one transaction. The epoch in each row fences: a row is changed only by whoever
has claimed it last, which the database checks in the same statement. The table is made if there is
none. Needs the extra ``positions`` and the database's driver.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from strandline.client.positions import Offsets, Owner
from strandline.errors import InvalidConfigError, StaleMemberError, UnavailableError
from strandline.optional_dependencies import missing_package
from strandline.types import PartitionName

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(missing_package(error), name=error.name) from error

TABLE = "strandline_positions"


class SqlPositions:
    """A ``PositionStore`` in a database.

    Args:
        database: an SQLAlchemy URL, or an engine of yours.
        table: its name.

    Raises:
        InvalidConfigError: not a URL of a database, or its driver is not installed.
        UnavailableError: the database cannot be reached.
    """

    def __init__(self, database: str | sa.Engine, *, table: str = TABLE) -> None:
        self._engine = _engine(database) if isinstance(database, str) else database
        metadata = sa.MetaData()
        self._table = sa.Table(
            table,
            metadata,
            sa.Column("consumer_group", sa.String(400), primary_key=True),
            sa.Column("stream", sa.String(200), primary_key=True),
            sa.Column("partition", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("next_offset", sa.BigInteger),
            sa.Column("epoch", sa.BigInteger, nullable=False),
        )
        try:
            with self._transaction() as connection:
                metadata.create_all(connection)
        except UnavailableError:
            # Somebody else may have made it since it was looked for; now it is found, or not made.
            with self._transaction() as connection:
                metadata.create_all(connection)

    def claim(
        self, group: str, partitions: Collection[PartitionName], owner: Owner
    ) -> dict[PartitionName, int]:
        """What was committed, for an owner that begins; as ``PositionStore``."""
        with self._transaction() as connection:
            for name in sorted(partitions):
                self._put(connection, group, name, owner=owner, values={})
            known = self._known(connection, group)
        return {name: known[name] for name in partitions if name in known}

    def commit(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Note offsets; as ``PositionStore``."""
        with self._transaction() as connection:
            # In one order everywhere, so that no two commits wait for each other.
            for name, offset in sorted(offsets.items()):
                self._put(connection, group, name, owner=owner, values={"next_offset": offset})

    def read(self, group: str) -> dict[PartitionName, int]:
        """Everything that was committed; as ``PositionStore``."""
        with self._transaction() as connection:
            return self._known(connection, group)

    def close(self) -> None:
        """Let go of connections."""
        self._engine.dispose()

    def _known(self, connection: sa.Connection, group: str) -> dict[PartitionName, int]:
        columns = self._table.c
        rows = connection.execute(
            sa.select(columns.stream, columns.partition, columns.next_offset).where(
                columns.consumer_group == group, columns.next_offset.is_not(None)
            )
        )
        return {PartitionName(stream, number): offset for stream, number, offset in rows}

    def _put(
        self,
        connection: sa.Connection,
        group: str,
        name: PartitionName,
        *,
        owner: Owner,
        values: dict[str, int],
    ) -> None:
        """Change a row, or make it.

        Raises:
            StaleMemberError: somebody has claimed it since.
        """
        table = self._table
        columns = table.c
        row = sa.and_(
            columns.consumer_group == group,
            columns.stream == name.stream,
            columns.partition == name.partition,
        )
        mine = row
        if owner.member:
            mine = sa.and_(row, columns.epoch <= owner.epoch)
            values = {**values, "epoch": owner.epoch}
        # Something is set in any case, or there were no telling whether the row is there.
        update = sa.update(table).where(mine).values(**{"epoch": columns.epoch, **values})
        if connection.execute(update).rowcount:
            return
        epoch = connection.execute(sa.select(columns.epoch).where(row)).scalar()
        if epoch is not None:
            raise StaleMemberError(
                f"{name} was claimed under epoch {epoch}, after {owner.epoch}: it is another "
                "member's now"
            )
        new = {"consumer_group": group, "stream": name.stream, "partition": name.partition}
        connection.execute(sa.insert(table).values(**new, epoch=owner.epoch, **_without(values)))

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """A transaction; what the database says as an error of ours.

        Raises:
            UnavailableError: it could not be done, or whether it was is unknown.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            said = str(error).splitlines()[0]
            raise UnavailableError(f"positions in {self._table.name}: {said}") from error


def _engine(url: str) -> sa.Engine:
    """The engine of a database; its URL may hold a password, so no message shows it.

    Raises:
        InvalidConfigError: as ``SqlPositions``.
    """
    try:
        return sa.create_engine(url)
    except sa.exc.ArgumentError:
        raise InvalidConfigError(
            "the store of positions: not a URL of a database; write one as SQLAlchemy does, such "
            "as postgresql+psycopg://user@host/database"
        ) from None
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            f"the store of positions: the driver {error.name!r} of the database is not installed"
        ) from error


def _without(values: dict[str, int]) -> dict[str, int]:
    """Values beside the epoch."""
    return {key: value for key, value in values.items() if key != "epoch"}
