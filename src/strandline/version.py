"""The version, in one place: the build, the CLI and the Flight server info read it."""

__version__ = "0.1.0"
