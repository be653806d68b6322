"""The gRPC listeners of a broker: Liftbridge's API and Beam's log.

Each listener has a port of its own and is off by default.
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
    # The forwarder imports the client, which a broker alone does not need.
    from strandline.servers.forward import Forwarder


class GrpcFrontEnd:
    """The gRPC listeners of one broker; loop thread.

    Args:
        broker: a started broker; it must be stopped after this front end.
        config: the broker's settings.
        metering: the meters of principals.
        forwarder: forwards publishes to other leaders; None for a broker alone.
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
        """The port of the Liftbridge API; None if it is off."""
        return self._liftbridge.port if self._liftbridge is not None else None

    @property
    def address(self) -> str:
        """The address at which Liftbridge clients connect to this broker; empty if it is off."""
        return self._liftbridge.address if self._liftbridge is not None else ""

    @property
    def beam_address(self) -> str:
        """The address to which Beam clients are redirected if this broker leads; empty if off."""
        return self._beam.address if self._beam is not None else ""

    @property
    def beam_port(self) -> int | None:
        """The port of Beam's log; None if it is off."""
        return self._beam.port if self._beam is not None else None

    async def start(self) -> None:
        """Start listening.

        Raises:
            StrandlineError: a port or a stream is not available; no listener is left running.
        """
        try:
            for service in (self._liftbridge, self._beam):
                if service is not None:
                    await service.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End all calls and close the listeners."""
        for service in (self._beam, self._liftbridge):
            if service is not None:
                await service.stop()
        self._pool.shutdown(cancel_futures=True)
