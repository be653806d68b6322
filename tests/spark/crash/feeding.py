"""Input that keeps coming during kills, so that a kill interrupts work in progress.

Rules: ``extra`` comes over NATS, from one stock client that sends each record until it is acked, so
that a nats-server that dies is in somebody's way; the other inputs come over Flight. Everything is
in order and once, whoever dies.
"""

import asyncio
import contextlib
import json
import threading

import nats
from nats.errors import Error as NatsError

from strandline.errors import StrandlineError

ACK_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 300
RETRY_S = 0.1
FEED_RECORDS = 10
FEED_PAUSE_S = 0.1
FEED_MAX = 600


class NatsPublisher:
    """Publishes numbered records to one subject, in order; a context that connects.

    Args:
        servers: URLs of the nats-servers.
        subject: where to.
    """

    def __init__(self, servers, subject):
        self._servers = servers
        self._subject = subject
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="nats publisher", daemon=True
        )
        self._client = None
        self.cuts = 0
        """How often a connection broke."""

    @property
    def server(self):
        """URL of the nats-server that it talks to now; None: to none."""
        client = self._client
        return client.connected_url.geturl() if client and client.is_connected else None

    def publish(self, numbers, *, timeout_s):
        """Publish records, each after the ack of the last.

        Raises:
            TimeoutError: not in time.
        """
        self._run(self._publish_all(numbers), timeout_s)

    async def _publish_all(self, numbers):
        for number in numbers:
            while not await self._is_acked(number):  # noqa: ASYNC110 -- it publishes, each time
                await asyncio.sleep(RETRY_S)

    async def _is_acked(self, number):
        headers = {"Nats-Msg-Id": f"{self._subject}-{number}"}
        try:
            answer = await self._client.request(
                self._subject, b'{"n": %d}' % number, timeout=ACK_TIMEOUT_S, headers=headers
            )
        except (NatsError, OSError, TimeoutError):
            return False  # the same id again, which is stored once
        return "seq" in json.loads(answer.data)

    def _run(self, coroutine, timeout_s):
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()

    async def _connect(self):
        async def cut():
            self.cuts += 1

        async def ignore(_error):
            """The publisher notices the errors that matter."""

        self._client = await nats.connect(
            self._servers,
            max_reconnect_attempts=-1,
            reconnect_time_wait=RETRY_S,
            disconnected_cb=cut,
            error_cb=ignore,
        )

    def __enter__(self):
        self._thread.start()
        self._run(self._connect(), CONNECT_TIMEOUT_S)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(NatsError, OSError, TimeoutError):
            self._run(self._client.close(), 10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Feeder:
    """Appends to a story's inputs continuously, in a thread; a context.

    Args:
        story: nobody else appends to it meanwhile.
    """

    def __init__(self, story):
        self._story = story
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._feed, name="feeder", daemon=True)
        self._error = None

    def _feed(self):
        try:
            for _ in range(FEED_MAX // FEED_RECORDS):
                self._story.append(FEED_RECORDS)
                if self._stop.wait(FEED_PAUSE_S):
                    return
        except (StrandlineError, TimeoutError) as error:  # told to who waits
            self._error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error
