"""The version of Strandline, read by the build, the CLI and the Flight server info."""

__version__ = "0.1.0"
