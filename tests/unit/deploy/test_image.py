"""The recipe of the container image."""

from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_image_is_built_from_all_that_a_build_reads():
    """Without MANIFEST.in the console's pages are missing, without setup.py what is compiled."""
    lines = (ROOT / "deploy" / "Containerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    assert copied == {"LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py", "src"}
    assert all((ROOT / name).exists() for name in copied)
