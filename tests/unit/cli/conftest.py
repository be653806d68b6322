"""What every command prints as JSON is compared with its documented type."""

import json

import pytest
from typer.testing import CliRunner

from strandline.cli.app import app
from strandline.cli.documents import DOCUMENTS, schema_of
from tests.kit.json_schemas import check_document

_invoke = CliRunner.invoke


def command_of(arguments):
    """The command that arguments begin with; None if they name none."""
    return next(
        (name for count in (2, 1) if (name := " ".join(arguments[:count])) in DOCUMENTS), None
    )


def closed(schema):
    """The schema with objects that may have no other fields than those it names."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(each) for key, each in schema.items()}
    return {**found, "additionalProperties": False} if "properties" in found else found


@pytest.fixture(autouse=True)
def documented(monkeypatch):
    """Fail where a command prints a document, or a field, that its schema does not have."""

    def invoke(self, application, arguments=(), **options):
        result = _invoke(self, application, arguments, **options)
        words = list(arguments or ())
        is_json = "json" in words or "-ojson" in words
        name = command_of(words) if application is app and is_json else None
        if name is not None and result.exit_code == 0:
            schema = schema_of(name)
            strict = schema if name in ("inspect", "cluster status") else closed(schema)
            for line in result.stdout.splitlines():
                check_document(json.loads(line), strict)
        return result

    monkeypatch.setattr(CliRunner, "invoke", invoke)
