"""The command line with all its commands."""

from strandline.cli.root import application

app = application()
