"""Builds the release's files reproducibly: ``python deploy/dist.py OUT`` writes sdist, wheel, SBOM.

Rules: the same commit gives the same bytes, on any day and in any directory, with the same Python,
compiler and versions of the build's packages. Times come from the commit. The wheel is built from
the sdist, so the sdist has all that a build needs.

The SBOM (CycloneDX) lists what ``pip install 'strandline[server,cli]'`` installs beside the wheel,
in an environment of its own: versions, licenses and hashes as of the day of the build.
"""

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
EARLIEST_S = 315_532_800
"""1980, the first time that a wheel can name; for a tree that is no checkout."""


def build_dist(out: Path) -> tuple[Path, Path]:
    """Build sdist and wheel; return their paths."""
    epoch_s = commit_time_s()
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch_s)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        _build("--sdist", ROOT, made)
        [raw] = made.glob("*.tar.gz")
        sdist = out / raw.name
        normalise(raw, sdist, epoch_s=epoch_s)
        with tarfile.open(sdist) as archive:
            archive.extractall(made, filter="data")
        [source] = [each for each in made.iterdir() if each.is_dir()]
        _build("--wheel", source, made)
        [wheel] = made.glob("*.whl")
        shutil.copy(wheel, out / wheel.name)
    return sdist, out / wheel.name


def commit_time_s() -> int:
    """Return the time of the commit that is built."""
    asked = os.environ.get("SOURCE_DATE_EPOCH")
    if asked:
        return int(asked)
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        return EARLIEST_S
    words = [git, "log", "-1", "--format=%ct"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    return int(done.stdout)


def _build(kind: str, source: Path, out: Path) -> None:
    words = [sys.executable, "-m", "build", kind, "--outdir", str(out), str(source)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def normalise(raw: Path, out: Path, *, epoch_s: int) -> None:
    """Write an archive again, with files in order, one time for all, and nobody's names."""
    packed = io.BytesIO()
    with tarfile.open(raw) as found, tarfile.open(fileobj=packed, mode="w") as archive:
        for member in sorted(found.getmembers(), key=lambda each: each.name):
            member.mtime, member.uid, member.gid = epoch_s, 0, 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            archive.addfile(member, found.extractfile(member) if member.isfile() else None)
    with out.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch_s) as zipped:
        zipped.write(packed.getvalue())


def write_sbom(wheel: Path, out: Path) -> None:
    """Write the SBOM of the wheel with the extras that a broker needs."""
    with tempfile.TemporaryDirectory() as name:
        python = Path(name) / "bin" / "python"
        venv.create(name)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        install = [*pip, "--python", str(python), "install", f"{wheel}[server,cli]"]
        subprocess.run(install, check=True)
        words = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        words += ["--pyproject", str(ROOT / "pyproject.toml"), str(python)]
        made = subprocess.run(words, check=True, capture_output=True, text=True)
    document = json.loads(made.stdout)
    # The version is dynamic in pyproject.toml.
    document["metadata"]["component"]["version"] = wheel.name.split("-")[1]
    out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    out = Path(sys.argv[1])
    _, built = build_dist(out)
    write_sbom(built, out / f"{built.name.rsplit('-', 3)[0]}.cdx.json")
