"""The fenced examples of a Markdown page, run from top to bottom against a real broker.

Rules: the broker listens on free ports; these replace the usual ports in an example. The caller
chooses the Python environment of the examples: this one, or one with only the built wheel.
"""

import json
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FREE_PORTS = {
    "STRANDLINE_NATS__PORT": "0",
    "STRANDLINE_NATS__INGEST_PORT": "0",
    "STRANDLINE_FLIGHT_PORT": "0",
    "STRANDLINE_HTTP_PORT": "0",
}

SPARK_VARIABLES = ("SPARK_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")


def blocks(page, language):
    """Return the fenced blocks of a language, with the lines at which they begin."""
    text = (ROOT / page).read_text("utf-8")
    for found in re.finditer(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, found.start()) + 1, found.group(1)


def examples(page):
    """Return the shell and Python examples of a page in order, as (line, language, text)."""
    return sorted(
        (number, language, text)
        for language in ("sh", "python")
        for number, text in blocks(page, language)
    )


@dataclass
class ExampleBroker:
    """A broker started for the examples: its ready line, directory and Python."""

    ready: dict[str, object]
    directory: Path
    python: Path

    def localise(self, text):
        """Return the text with this broker's ports instead of the usual ones."""
        for name, port in (("nats", 4222), ("ingest", 4223), ("flight", 9293), ("http", 9294)):
            text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{self.ready[f'{name}_port']}")
        return text

    @property
    def environ(self):
        """Return the environment variables for the examples."""
        path = f"{self.python.parent}{os.pathsep}{os.environ['PATH']}"
        server = f"127.0.0.1:{self.ready['flight_port']}"
        # Without the variables that a Spark session of this process sets for its children.
        ours = {name: value for name, value in os.environ.items() if name not in SPARK_VARIABLES}
        return {**ours, **FREE_PORTS, "PATH": path, "STRANDLINE_SERVER": server}

    def run_shell(self, line, *, timeout_s=300):
        """Run one line of a shell example; return its output."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.localise(line)],
            cwd=self.directory,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def run_python(self, text, *, timeout_s=300):
        """Run a Python example as a script of its own; return its output."""
        script = self.directory / "example.py"
        script.write_text(self.localise(text))
        return self.run_shell(f"python {script.name}", timeout_s=timeout_s)

    def check_shell(self, line):
        """Run a line; if it would take too long or change the machine, only check it."""
        words = line.split("#")[0].split()
        if not words:
            return
        if words[0] == "make":
            for target in words[1:]:
                subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)
        elif words[:2] == ["strandline", "serve"]:
            (self.directory / "another").mkdir(exist_ok=True)
            process, _ = start_broker(self.directory / "another", self.python, words[2:])
            stop_broker(process)
        elif words[:2] == ["strandline", "doctor"]:  # not in the broker's directory
            self.run_shell(f"mkdir -p another && cd another && {line}")
        elif words[:2] == ["strandline", "demo"]:
            self.run_shell(f"{line.split('#')[0]} --help")
        else:
            self.run_shell(line)

    def run_page(self, page, *, skip):
        """Run the examples of a page from top to bottom.

        Python examples and shell lines that match ``skip`` are not run.
        """
        found = examples(page)
        assert found, f"{page} has no examples"
        for _, language, text in found:
            if language == "sh":
                for line in text.splitlines():
                    if not re.search(skip, line):
                        self.check_shell(line)
            elif not re.search(skip, text):
                self.run_python(text)


def start_broker(directory, python, arguments=()):
    """Start ``strandline serve`` on free ports; return the process and its ready line."""
    process = subprocess.Popen(
        [python, "-m", "strandline.cli", "serve", "--output", "json", *arguments],
        cwd=directory,
        env={**os.environ, **FREE_PORTS},
        stdout=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert line, "the broker did not start"
    return process, json.loads(line)


def stop_broker(process):
    """Stop the broker as a supervisor would, and check that it exits cleanly."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0
    process.stdout.close()
