"""The gRPC listeners of a broker: Liftbridge's API and Beam's log.

Each has a port of its own and is off unless asked for.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from strandline.broker.broker import Broker
from strandline.config import BrokerConfig
from strandline.servers.grpc.beam.service import BeamService
from strandline.servers.grpc.liftbridge.service import LiftbridgeService
from strandline.servers.grpc.reading import THREADS
from strandline.servers.metering import Metering

if TYPE_CHECKING:
    # Loads the client, which a broker alone does not need.
    from strandline.servers.forward import Forwarder


class GrpcFrontEnd:
    """The gRPC listeners of one broker; loop thread.

    Args:
        broker: a started broker, stopped after this.
        config: the broker's settings.
        metering: the meters of principals.
        forwarder: forwards to other leaders; only in a cluster.
    """

    def __init__(
        self,
        broker: Broker,
        config: BrokerConfig,
        metering: Metering,
        *,
        forwarder: "Forwarder | None" = None,
    ) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="grpc-read")
        self._liftbridge = self._beam = None
        if config.grpc.port >= 0:
            self._liftbridge = LiftbridgeService(broker, self._pool, metering, forwarder=forwarder)
        if config.grpc.beam_port >= 0:
            self._beam = BeamService(broker, self._pool, metering)

    @property
    def port(self) -> int | None:
        """The port of the Liftbridge API; None when off."""
        return self._liftbridge.port if self._liftbridge is not None else None

    @property
    def address(self) -> str:
        """The address at which Liftbridge clients connect to this broker; empty when off."""
        return self._liftbridge.address if self._liftbridge is not None else ""

    @property
    def beam_address(self) -> str:
        """The address to redirect Beam clients to when this broker leads; empty when off."""
        return self._beam.address if self._beam is not None else ""

    @property
    def beam_port(self) -> int | None:
        """The port of Beam's log; None when off."""
        return self._beam.port if self._beam is not None else None

    async def start(self) -> None:
        """Start listening.

        Raises:
            StrandlineError: a port or a stream is not available; nothing is left running.
        """
        try:
            for service in (self._liftbridge, self._beam):
                if service is not None:
                    await service.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End every call and close."""
        for service in (self._beam, self._liftbridge):
            if service is not None:
                await service.stop()
        self._pool.shutdown(cancel_futures=True)
