"""Transcripts of the protocol: a request, and below it every answer.

A line that begins with ``>`` is a message: its subject and its payload. ``ack`` stands for the
reply subject of the last message. The lines after it are what comes to its reply subject until the
last one is there: the subject if it is not the inbox, the reply subject, headers and payload. A
line that begins with ``<`` subscribes to a subject for a moment; below it is what comes there.
Times are replaced. ``GOLDEN_UPDATE=1`` writes what comes now into the scripts: read the difference
before a commit. What is written there was compared with nats-server's answers.
"""

import asyncio
import os
import re
from pathlib import Path

import nats.errors
import pytest

from strandline.testing.server import Server

from .conftest import connected

SCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.transcript"))
SILENCE_S = 0.6
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z"), "TIME"),
    (re.compile(r"(?<=\.)1\d{18}(?=\.\d+)"), "NS"),
    (re.compile(r'"(storage|bytes|total|api)":\d+'), r'"\1":N'),
    (re.compile(r'"api":\{[^}]*\}'), '"api":API'),
)


def steady(text):
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return text


class Wire:
    """A client that shows what it receives."""

    def __init__(self, client):
        self._client = client
        self._reply = ""

    async def send(self, line):
        """Send a message; return the answers as lines."""
        subject, _, payload = line.partition(" ")
        subject = self._reply if subject == "ack" else subject
        inbox = self._client.new_inbox()
        receiving = await self._client.subscribe(inbox)
        await self._client.publish(subject, payload.encode(), reply=inbox)
        return await self._received(receiving)

    async def receive(self, subject):
        """Return what comes to a subject, as lines."""
        return await self._received(await self._client.subscribe(subject))

    async def _received(self, receiving):
        lines = []
        try:
            while True:
                message = await receiving.next_msg(timeout=SILENCE_S)
                self._reply = message.reply or self._reply
                lines.append(self._shown(message))
        except nats.errors.TimeoutError:
            await receiving.unsubscribe()
        return lines or ["nothing"]

    @staticmethod
    def _shown(message):
        parts = [] if message.subject.startswith("_INBOX") else [message.subject]
        if message.reply:
            parts.append(message.reply)
        parts += [f"{name}: {value}" for name, value in (message.headers or {}).items()]
        parts.append(message.data.decode())
        return steady(" | ".join(parts)).rstrip() or "(empty)"


async def played(text):
    """Return the script with the present answers."""
    lines = []
    with Server(nats=True) as url:
        client = await connected(url.nats_url)
        wire = Wire(client)
        for line in text.splitlines():
            if line.startswith(">"):
                lines += [line, *await wire.send(line[1:].strip())]
            elif line.startswith("<"):
                lines += [line, *await wire.receive(line[1:].strip())]
            elif line.startswith("#") or not line:
                lines.append(line)
        await client.close()
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
async def test_the_wire_is_as_it_was_written(path):
    """Every answer, byte for byte but for times."""
    script = path.read_text("utf-8")
    now = await played(script)
    if os.environ.get("GOLDEN_UPDATE"):
        await asyncio.to_thread(path.write_text, now, "utf-8")
    assert now == script
