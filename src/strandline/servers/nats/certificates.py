"""The name in a client's certificate, which nats-server has verified.

Rules: ``servers.tls`` decides which of a certificate's names counts; this module only decodes PEM.
"""

from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from strandline.errors import InvalidRecordError
from strandline.servers.tls import name_of

_KINDS: Final[dict[type[x509.GeneralName], str]] = {
    x509.DNSName: "DNS",
    x509.UniformResourceIdentifier: "URI",
    x509.RFC822Name: "email",
    x509.IPAddress: "IP Address",
}
"""Kind of a name → what Python's ``ssl`` calls it."""


def certificate_name(pem: str) -> str | None:
    """Return the name in a certificate; None if it has none.

    Raises:
        InvalidRecordError: the text is not a certificate.
    """
    try:
        found = x509.load_pem_x509_certificate(pem.encode())
        alternatives = _alternatives(found)
        common = found.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise InvalidRecordError(f"not a certificate: {error}") from error
    subject = [[("commonName", str(each.value))] for each in common]
    return name_of({"subjectAltName": alternatives, "subject": subject})


def _alternatives(certificate: x509.Certificate) -> list[tuple[str, str]]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return [
        (_KINDS[type(each)], str(each.value)) for each in extension.value if type(each) in _KINDS
    ]
