"""Validation of documents by JSON Schema.

The validator is imported only by the tests that check a document, since its import takes 2 s of
CPU: it parses the grammars of its formats.
"""


def check_document(document, schema):
    """Check a document against a schema, and the schema itself."""
    from jsonschema import Draft202012Validator

    Draft202012Validator(schema).validate(document)
