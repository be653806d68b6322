"""``strandline cluster init``: write the settings of a new cluster, a directory for each broker.

Rules: nothing that exists is overwritten, and what a broker would refuse at its start is refused
here and leaves nothing behind. What all brokers must share (the name of the cluster, the list of
brokers, the secret of their nats-servers) is made once.
"""

import contextlib
import secrets
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from strandline.cli.cluster_config import (
    CLIENT_PORTS,
    PEER_PORTS,
    Member,
    settings_of,
    settings_text,
    with_ports,
)
from strandline.cli.members import is_local, read_members
from strandline.cli.output import (
    OutputFormat,
    OutputOption,
    examples,
    note,
    print_json,
    print_line,
    print_table,
    reports_errors,
)
from strandline.config import bracketed
from strandline.errors import InvalidRequestError
from strandline.storage.private_directory import make_private_directory

SETTINGS_NAME = "strandline.yaml"
SECRET_NAME = "nats-secret"  # noqa: S105 - the name of the file
TITLE = """Broker {number} of cluster {name}, by 'strandline cluster init'.
#
# A cluster is founded by these brokers at their first start. Who belongs to it later is changed by
# orders ('strandline cluster add', 'remove'), see docs/cluster.md. Without the sections tls and
# auth, and the keys cluster.tls_*, whoever reaches its ports may do everything: docs/security.md.
# Every other key is in docs/configuration.md."""


class Written(NamedTuple):
    """The files of one broker.

    Attributes:
        member: the broker.
        directory: where they are.
        there: where they are to be on the broker's machine.
    """

    member: Member
    directory: Path
    there: Path

    @property
    def command(self) -> str:
        """What starts the broker."""
        return shlex.join(["strandline", "serve", "--config", str(self.there / SETTINGS_NAME)])

    @property
    def is_in_place(self) -> bool:
        """Whether the files need no copying: they are for this machine, and where they say."""
        return is_local(self.member.host) and self.directory.absolute() == self.there

    @property
    def flight(self) -> str:
        """Where commands reach it."""
        return f"{bracketed(self.member.host)}:{self.member.ports['flight_port']}"


def add_to(app: typer.Typer) -> None:
    """Make the command part of ``strandline cluster``."""
    epilog = examples(
        "strandline cluster init --broker 1=10.0.0.1 --broker 2=10.0.0.2 --broker 3=10.0.0.3",
        "strandline cluster init --broker 1=h1 --broker 2=h2 --broker 3=h3 --home /srv/strandline",
        "strandline cluster init --broker 1=::1 --broker 2=::1 --broker 3=::1 --port-base 9400",
    )
    app.command("init", epilog=epilog)(reports_errors(init))


def init(
    *,
    broker: Annotated[
        list[str],
        typer.Option(metavar="ID=HOST", help="A broker, where all reach it; repeat for more."),
    ],
    cluster_id: Annotated[
        str | None,
        typer.Option(help="Name of the cluster.", show_default="strandline- and a random number"),
    ] = None,
    rack: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=RACK", help="Where a broker stands; of all brokers or of none."),
    ] = None,
    peer_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=ADDRESS",
            help="Where other brokers reach it, on a network of their own; of all or of none.",
        ),
    ] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            help="First of six ports in a row: Flight, web, NATS, ingest, two for brokers. Each "
            "further broker of a host has them ten higher. 0: free ones, on this machine.",
            show_default="the usual ports",
            min=0,
            max=65_000,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where to write a directory for each broker.")
    ] = Path("strandline-cluster"),
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where these directories will be on the brokers' machines.",
            show_default="the same as --out",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where brokers keep data there, a directory for each.",
            show_default="in their own",
        ),
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Write the settings of a new cluster: a directory for each broker, to copy to its machine.

    Every broker gets the same list of brokers, the same name of the cluster (a random one, so that
    two clusters are never taken for one), and the same secret for their nats-servers. Nothing is
    overwritten, and no broker is started or asked.
    """
    brokers = read_members(broker, rack or [], peer_host or [])
    if port_base == 0 and not all(is_local(each.host) for each in brokers):
        raise InvalidRequestError(
            "--port-base 0 finds ports that are free on this machine, and brokers are on others"
        )
    members = with_ports(brokers, port_base)
    _advise(members)
    name = f"strandline-{secrets.token_hex(4)}" if cluster_id is None else cluster_id
    home = (home or out).absolute()
    written = [
        Written(each, out / f"broker-{each.number}", home / f"broker-{each.number}")
        for each in members
    ]
    _write_all(written, name=name, data_dir=data_dir and data_dir.absolute())
    if output is OutputFormat.json:
        print_json(_as_json(name, written))
    else:
        _print_steps(name, written)


def _advise(members: Sequence[Member]) -> None:
    """Say what an odd number of brokers is good for; others work too."""
    count = len(members)
    lost = (count - 1) // 2
    if count % 2 == 0:
        note(
            f"note: {count} brokers survive the loss of {lost or 'none'}, as {count - 1} would, "
            "for most must be up: an odd number is better"
        )
    elif count == 1:
        note("note: one broker survives no loss; three survive that of one")


def _write_all(written: Sequence[Written], *, name: str, data_dir: Path | None) -> None:
    """Write all files, or none.

    Raises:
        InvalidRequestError: something is there already, or cannot be written.
        InvalidConfigError: a broker would refuse its settings.
    """
    members = [each.member for each in written]
    secret = secrets.token_hex(32)
    with contextlib.ExitStack() as undo:
        for each in written:
            for missing in _missing(each.directory.parent):
                undo.callback(_remove_empty, missing)
            _make_directory(each.directory)
            undo.callback(shutil.rmtree, each.directory, ignore_errors=True)
            data = data_dir / each.there.name if data_dir else each.there / "data"
            settings = settings_of(
                each.member,
                members,
                name=name,
                data_dir=str(data),
                secret_file=str(each.there / SECRET_NAME),
            )
            title = TITLE.format(number=each.member.number, name=name)
            _write(each.directory, settings_text(settings, title), secret)
        undo.pop_all()


def _missing(directory: Path) -> list[Path]:
    """What has to be made for a directory, itself too; from the top down."""
    return [each for each in (*reversed(directory.parents), directory) if not each.exists()]


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # somebody has put something there meanwhile
        directory.rmdir()


def _make_directory(directory: Path) -> None:
    try:
        make_private_directory(directory.parent)
        directory.mkdir(mode=0o700)
    except FileExistsError as error:
        raise InvalidRequestError(
            f"{directory} exists and is left as it is; name another directory with --out, or "
            "remove it"
        ) from error
    except OSError as error:
        raise InvalidRequestError(f"cannot make {directory}: {error.strerror}") from error


def _write(directory: Path, text: str, secret: str) -> None:
    """The files of one broker, as the broker would take them."""
    from strandline.server.settings import load_settings

    path = directory / SETTINGS_NAME
    try:
        hidden = directory / SECRET_NAME
        path.touch(mode=0o600)
        path.write_text(text, "utf-8")
        hidden.touch(mode=0o600)  # before there is anything to see
        hidden.write_text(secret + "\n", "utf-8")
    except OSError as error:
        raise InvalidRequestError(f"cannot write to {directory}: {error.strerror}") from error
    load_settings(path, {}, {})


def _as_json(name: str, written: Sequence[Written]) -> dict[str, Any]:
    return {
        "cluster_id": name,
        "brokers": [
            {
                "broker_id": each.member.number,
                "host": each.member.host,
                "peer_host": each.member.peer_host,
                "rack": each.member.rack,
                "flight": each.flight,
                "ports": each.member.ports,
                "directory": str(each.directory),
                "copy_to": str(each.there),
                "command": each.command,
            }
            for each in written
        ],
        "status_command": _status_command(written),
    }


def _print_steps(name: str, written: Sequence[Written]) -> None:
    """What to copy where, and what to run then."""
    print_line(f"cluster {name}\n")
    print_table(
        ("#broker", "host", "ports for clients", "for brokers", "written to"),
        [
            (
                each.member.number,
                each.member.host,
                _ports(each.member, CLIENT_PORTS),
                _ports(each.member, PEER_PORTS),
                f"{each.directory}/",
            )
            for each in written
        ],
    )
    moved = [each for each in written if not each.is_in_place]
    if moved:
        print_line("\nCopy each directory to its machine; nats-secret in it is for brokers alone:")
    for each in moved:
        print_line(f"  {each.directory}/  to  {each.member.host}:{each.there}/")
    print_line("\nStart each broker on its machine:")
    for each in written:
        print_line(f"  {each.command}")
    print_line("\nAs soon as most of them are up:")
    print_line(f"  {_status_command(written)}")


def _ports(member: Member, names: Sequence[str]) -> str:
    return " ".join(str(member.ports[name]) for name in names)


def _status_command(written: Sequence[Written]) -> str:
    return shlex.join(["strandline", "cluster", "status", "--server", written[0].flight])
