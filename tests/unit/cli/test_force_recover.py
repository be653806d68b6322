"""``strandline cluster force-recover``: loud, and refused where there is nothing to rescue."""

from typer.testing import CliRunner

from strandline.cli.app import app


def test_it_warns_before_it_does_anything(tmp_path):
    """Whoever said --yes reads what it means, and why it is refused here."""
    done = CliRunner().invoke(
        app, ["cluster", "force-recover", "--data-dir", str(tmp_path / "none"), "--yes"]
    )
    assert done.exit_code == 1
    assert "destroy these disks first" in done.stderr
    assert "not the data directory of a broker of a cluster" in done.stderr
    assert not (tmp_path / "none").exists()


def test_it_wants_a_yes(tmp_path):
    """A script that forgot to say it must not decide for the cluster."""
    done = CliRunner().invoke(app, ["cluster", "force-recover", "--data-dir", str(tmp_path)])
    assert done.exit_code == 1
    assert "give --yes" in done.stderr


def test_metadata_is_discarded_of_a_stopped_broker_of_a_cluster_only(tmp_path):
    """Where nobody can be asked it wants a yes, and another directory is refused by name."""
    command = ["cluster", "discard-metadata", "--data-dir", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "replace-disk" in done.output
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert done.exit_code == 1
    assert "is not the data directory of a broker of a cluster" in done.output
