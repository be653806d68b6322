"""Documents and JSON Schema.

The validator is imported by the tests that check a document, not by all that are collected with
them: it parses the grammars of its formats first, which takes 2 s of CPU.
"""


def check_document(document, schema):
    """Fail if a document is not as its schema says; that of each command is valid itself."""
    from jsonschema import Draft202012Validator

    Draft202012Validator(schema).validate(document)
