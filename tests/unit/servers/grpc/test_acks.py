"""Outcomes of publishes in Liftbridge's codes."""

from strandline.errors import UnknownStreamError
from strandline.servers.grpc._generated import liftbridge_pb2 as pb
from strandline.servers.grpc.liftbridge.acks import refused
from strandline.servers.grpc.status import GrpcStatus


def test_a_publish_to_what_was_deleted_meanwhile_is_not_found():
    """As a moment later; other streams are not listed."""
    found = refused(UnknownStreamError("no stream 's'; there are: secret"), 0)
    assert found.code == pb.PublishAsyncError.NOT_FOUND
    assert found.status.status is GrpcStatus.NOT_FOUND
    assert "secret" not in found.text
