"""``strandline cluster init``: write the settings of a new cluster, one directory per broker.

Rules: existing files are never overwritten. Settings that a broker would reject are rejected here,
and then no files are left. Values that all brokers share (the cluster's name, the list of brokers,
the secret of their nats-servers) are generated once.
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
    ClusterMember,
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
# These brokers found the cluster at their first start. Later changes are made by 'strandline
# cluster add' and 'remove', see docs/cluster.md. Without the sections tls and auth and the keys
# cluster.tls_*, anyone who reaches the ports has full access: see docs/security.md. All other keys
# are in docs/configuration.md."""


class InitFiles(NamedTuple):
    """The files of one broker of a new cluster.

    Attributes:
        member: the broker.
        directory: the directory in which they are written.
        there: their directory on the broker's machine.
    """

    member: ClusterMember
    directory: Path
    there: Path

    @property
    def command(self) -> str:
        """The command that starts the broker."""
        return shlex.join(["strandline", "serve", "--config", str(self.there / SETTINGS_NAME)])

    @property
    def is_in_place(self) -> bool:
        """Whether the files are already where the broker needs them."""
        return is_local(self.member.host) and self.directory.absolute() == self.there

    @property
    def flight(self) -> str:
        """The broker's address for ``--server``."""
        return f"{bracketed(self.member.host)}:{self.member.ports['flight_port']}"


def add_to(app: typer.Typer) -> None:
    """Add this command to ``strandline cluster``."""
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
        typer.Option(metavar="ID=HOST", help="A broker and its address; repeat for more."),
    ],
    cluster_id: Annotated[
        str | None,
        typer.Option(help="Name of the cluster.", show_default="strandline- and a random number"),
    ] = None,
    rack: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=RACK", help="A broker's rack; for all brokers or none."),
    ] = None,
    peer_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID=ADDRESS",
            help="A broker's address in the brokers' own network; for all brokers or none.",
        ),
    ] = None,
    port_base: Annotated[
        int | None,
        typer.Option(
            help="First of six ports in a row, ten higher for each further broker of a host; 0 for "
            "free ones.",
            show_default="the default ports",
            min=0,
            max=65_000,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Parent of the directories to write.")
    ] = Path("strandline-cluster"),
    home: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Parent of these directories on the brokers' machines.",
            show_default="the same as --out",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Parent of the data directories on the brokers' machines.",
            show_default="in these directories",
        ),
    ] = None,
    output: OutputOption = OutputFormat.text,
) -> None:
    """Write the settings of a new cluster: one directory per broker, to copy to its machine.

    All brokers get the same list of brokers, the same name of the cluster (random, so that clusters
    are not confused), and the same secret for their nats-servers. Nothing is overwritten, and no
    broker is started or contacted.
    """
    brokers = read_members(broker, rack or [], peer_host or [])
    if port_base == 0 and not all(is_local(each.host) for each in brokers):
        raise InvalidRequestError(
            "--port-base 0 finds free ports of this machine, but some brokers are elsewhere; give "
            "a port"
        )
    members = with_ports(brokers, port_base)
    _advise(members)
    name = f"strandline-{secrets.token_hex(4)}" if cluster_id is None else cluster_id
    home = (home or out).absolute()
    written = [
        InitFiles(each, out / f"broker-{each.number}", home / f"broker-{each.number}")
        for each in members
    ]
    _write_all(written, name=name, data_dir=data_dir and data_dir.absolute())
    if output is OutputFormat.json:
        print_json(_as_json(name, written))
    else:
        _print_steps(name, written)


def _advise(members: Sequence[ClusterMember]) -> None:
    """Recommend an odd number of brokers; an even number works, too."""
    count = len(members)
    lost = (count - 1) // 2
    if count % 2 == 0:
        note(
            f"note: {count} brokers tolerate the loss of {lost or 'none'}, as {count - 1} do: "
            "a majority must be up, so an odd number is better"
        )
    elif count == 1:
        note("note: one broker tolerates no loss; three tolerate the loss of one")


def _write_all(written: Sequence[InitFiles], *, name: str, data_dir: Path | None) -> None:
    """Write the files of all brokers, or none.

    Raises:
        InvalidRequestError: a directory exists already, or cannot be written.
        InvalidConfigError: a broker would reject its settings.
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
    """Return the missing directories of a path, including itself, from the top down."""
    return [each for each in (*reversed(directory.parents), directory) if not each.exists()]


def _remove_empty(directory: Path) -> None:
    with contextlib.suppress(OSError):  # it is not empty
        directory.rmdir()


def _make_directory(directory: Path) -> None:
    try:
        make_private_directory(directory.parent)
        directory.mkdir(mode=0o700)
    except FileExistsError as error:
        raise InvalidRequestError(
            f"{directory} exists already; give another directory with --out, or remove it"
        ) from error
    except OSError as error:
        raise InvalidRequestError(f"cannot create {directory}: {error.strerror}") from error


def _write(directory: Path, text: str, secret: str) -> None:
    """Write the files of one broker, and check that the broker will accept them."""
    from strandline.process.settings import load_settings

    path = directory / SETTINGS_NAME
    try:
        hidden = directory / SECRET_NAME
        path.touch(mode=0o600)
        path.write_text(text, "utf-8")
        hidden.touch(mode=0o600)  # private before it has content
        hidden.write_text(secret + "\n", "utf-8")
    except OSError as error:
        raise InvalidRequestError(f"cannot write to {directory}: {error.strerror}") from error
    load_settings(path, {}, {})


def _as_json(name: str, written: Sequence[InitFiles]) -> dict[str, Any]:
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


def _print_steps(name: str, written: Sequence[InitFiles]) -> None:
    """Print which directories to copy and which commands to run."""
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
        print_line("\nCopy each directory to its machine; keep the file nats-secret private:")
    for each in moved:
        print_line(f"  {each.directory}/  to  {each.member.host}:{each.there}/")
    print_line("\nStart each broker on its machine:")
    for each in written:
        print_line(f"  {each.command}")
    print_line("\nOnce most of them are up:")
    print_line(f"  {_status_command(written)}")


def _ports(member: ClusterMember, names: Sequence[str]) -> str:
    return " ".join(str(member.ports[name]) for name in names)


def _status_command(written: Sequence[InitFiles]) -> str:
    return shlex.join(["strandline", "cluster", "status", "--server", written[0].flight])
