"""Batches of direct reads; what is asked of us is asked of nats-server's JetStream, too."""

import contextlib
import json

import nats
import pytest

API = "$JS.API."
NAMES = ("Nats-Sequence", "Nats-Num-Pending", "Nats-Last-Sequence")
TAIL = ("Status", "Description", "Nats-Num-Pending", "Nats-Last-Sequence", "Nats-UpTo-Sequence")


@pytest.fixture
async def batch(nc, request):
    """A function that asks for a batch of nine messages' stream; returns messages and the end."""
    name = "batch_" + "".join(c if c.isalnum() else "_" for c in request.node.name)
    js = nc.jetstream()
    await js.add_stream(name=name, subjects=[f"{name}.>"], allow_direct=True)
    for number in range(9):
        headers = {"number": str(number)} if number == 3 else None
        await js.publish(f"{name}.{'abc'[number % 3]}", b"%d" % number, headers=headers)

    async def ask(**body):
        text = json.dumps(body).replace("S.", f"{name}.")
        inbox = nc.new_inbox()
        receiving = await nc.subscribe(inbox)
        await nc.publish(f"{API}DIRECT.GET.{name}", text.encode(), reply=inbox)
        found = []
        with contextlib.suppress(nats.errors.TimeoutError):
            while not found or "Status" not in found[-1].headers:
                found.append(await receiving.next_msg(timeout=2))
        await receiving.unsubscribe()
        *messages, end = found
        shown = [(m.data, *(int(m.headers[each]) for each in NAMES)) for m in messages]
        return shown, tuple(end.headers[each] for each in TAIL if each in end.headers), messages

    yield ask
    await js.delete_stream(name)


async def test_a_batch_begins_at_a_sequence(batch):
    """So many messages, each with how many are left; the end says where the batch stopped."""
    messages, end, _ = await batch(seq=7, batch=10)
    assert messages == [(b"6", 7, 2, 0), (b"7", 8, 1, 7), (b"8", 9, 0, 8)]
    assert end == ("204", "EOB", "0", "9")
    messages, end, raw = await batch(seq=4, batch=2)
    assert messages == [(b"3", 4, 5, 0), (b"4", 5, 4, 4)]
    assert end == ("204", "EOB", "4", "5")
    assert raw[0].headers["number"] == "3"
    assert raw[0].headers["Nats-Subject"].endswith(".a")
    _, end, _ = await batch(seq=77, batch=10)
    assert end == ("404", "Message Not Found")


async def test_a_batch_of_one_subject(batch):
    """Only its messages count."""
    messages, end, _ = await batch(seq=2, batch=10, next_by_subj="S.b")
    assert messages == [(b"1", 2, 2, 0), (b"4", 5, 1, 2), (b"7", 8, 0, 5)]
    assert end == ("204", "EOB", "0", "8")


async def test_a_batch_ends_at_its_bytes(batch):
    """The first message comes in any case."""
    messages, end, _ = await batch(seq=1, batch=10, max_bytes=1)
    assert [message[0] for message in messages] == [b"0"]
    assert end[:2] == ("204", "EOB")


async def test_the_last_of_several_subjects(batch):
    """In the order of their sequences, up to one if that is asked for."""
    messages, end, _ = await batch(multi_last=["S.c", "S.a"])
    assert messages == [(b"6", 7, 1, 0), (b"8", 9, 0, 7)]
    assert end == ("204", "EOB", "0", "9", "9")
    messages, end, _ = await batch(multi_last=["S.*"], up_to_seq=5)
    assert [message[:2] for message in messages] == [(b"2", 3), (b"3", 4), (b"4", 5)]
    assert end[-1] == "5"
    messages, end, _ = await batch(multi_last=["S.*"], batch=2)
    assert [message[0] for message in messages] == [b"6", b"7"]
    _, end, _ = await batch(multi_last=["S.none"])
    assert end == ("404", "No Results")


async def test_a_request_that_contradicts_itself(batch):
    """Two ways to begin."""
    _, end, _ = await batch(seq=1, last_by_subj="S.a", batch=2)
    assert end[0] == "408"
