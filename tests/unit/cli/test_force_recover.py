"""``strandline cluster force-recover``: warns first; rejected if there is nothing to recover."""

from typer.testing import CliRunner

from strandline.cli.app import app


def test_it_warns_before_it_does_anything(tmp_path):
    """Even with --yes it prints the consequences, and the reason for a rejection."""
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
    """Without a terminal it needs --yes, and another directory is rejected by name."""
    command = ["cluster", "discard-metadata", "--data-dir", str(tmp_path)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 1
    assert "replace-disk" in done.output
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert done.exit_code == 1
    assert "is not the data directory of a broker of a cluster" in done.output
