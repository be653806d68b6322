"""Committed offsets in a table of an SQL database, by SQLAlchemy.

    SqlOffsetStore("postgresql+psycopg://user@host/database")

Rules: a commit is one database transaction. The epoch in each row fences: only the last owner that
claimed a row can change it, which the database checks in the same statement. The table is created
if missing. Needs the extra ``offset-stores`` and the database's driver.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from strandline.client.consumer.offset_store import Offsets, Owner
from strandline.errors import InvalidConfigError, StaleMemberError, UnavailableError
from strandline.optional_dependencies import install_hint
from strandline.types import PartitionName

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(install_hint(error), name=error.name) from error

TABLE = "strandline_positions"


class SqlOffsetStore:
    """An ``OffsetStore`` in a database.

    Args:
        database: an SQLAlchemy URL or engine.
        table: the table's name.

    Raises:
        InvalidConfigError: the URL is invalid, or its driver is not installed.
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
            # Another process may have created the table at the same time: then this finds it.
            with self._transaction() as connection:
                metadata.create_all(connection)

    def claim(
        self, group: str, partitions: Collection[PartitionName], owner: Owner
    ) -> dict[PartitionName, int]:
        """Return the committed offsets for a new owner; see ``OffsetStore``."""
        with self._transaction() as connection:
            for name in sorted(partitions):
                self._put(connection, group, name, owner=owner, values={})
            known = self._known(connection, group)
        return {name: known[name] for name in partitions if name in known}

    def commit(self, group: str, offsets: Offsets, owner: Owner) -> None:
        """Commit offsets; see ``OffsetStore``."""
        with self._transaction() as connection:
            # Sorted, so that concurrent commits cannot deadlock.
            for name, offset in sorted(offsets.items()):
                self._put(connection, group, name, owner=owner, values={"next_offset": offset})

    def read(self, group: str) -> dict[PartitionName, int]:
        """Return all committed offsets; see ``OffsetStore``."""
        with self._transaction() as connection:
            return self._known(connection, group)

    def close(self) -> None:
        """Close the connections."""
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
        """Update a row, or insert it.

        Raises:
            StaleMemberError: another owner has claimed the row.
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
        # Sets a column in any case, so that rowcount tells whether the row exists.
        update = sa.update(table).where(mine).values(**{"epoch": columns.epoch, **values})
        if connection.execute(update).rowcount:
            return
        epoch = connection.execute(sa.select(columns.epoch).where(row)).scalar()
        if epoch is not None:
            raise StaleMemberError(
                f"{name} was claimed under epoch {epoch}, later than {owner.epoch}: another "
                "member owns it now"
            )
        new = {"consumer_group": group, "stream": name.stream, "partition": name.partition}
        connection.execute(sa.insert(table).values(**new, epoch=owner.epoch, **_without(values)))

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        """Run a database transaction; translate its errors.

        Raises:
            UnavailableError: the transaction failed, or its outcome is unknown.
        """
        try:
            with self._engine.begin() as connection:
                yield connection
        except sa.exc.SQLAlchemyError as error:
            reason = str(error).splitlines()[0]
            raise UnavailableError(f"offset store {self._table.name}: {reason}") from error


def _engine(url: str) -> sa.Engine:
    """Return the engine of a database; errors do not show the URL, which may hold a password.

    Raises:
        InvalidConfigError: as for ``SqlOffsetStore``.
    """
    try:
        return sa.create_engine(url)
    except sa.exc.ArgumentError:
        raise InvalidConfigError(
            "offset store: not a database URL; write it as SQLAlchemy does, such as "
            "postgresql+psycopg://user@host/database"
        ) from None
    except ModuleNotFoundError as error:
        raise InvalidConfigError(
            f"offset store: the database driver {error.name!r} is not installed; install it"
        ) from error


def _without(values: dict[str, int]) -> dict[str, int]:
    """Return the values without the epoch."""
    return {key: value for key, value in values.items() if key != "epoch"}
