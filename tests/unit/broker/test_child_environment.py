"""The environment of child processes has only variables that are known to be harmless."""

from strandline.broker.child_environment import child_environment


def test_only_known_variables_are_handed_on(monkeypatch):
    """An unknown variable may be a secret."""
    for name in ("STRANDLINE_AUTH__ADMIN_TOKEN", "STRANDLINE_TOKEN", "DATABASE_URL", "GITHUB_PAT"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    found = child_environment()
    assert (found["TZ"], found["LC_ALL"]) == ("UTC", "C.UTF-8")
    assert "secret" not in found.values()
    assert "PATH" in found
