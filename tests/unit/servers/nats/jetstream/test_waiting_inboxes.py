"""Which waiting pulls have lost their receivers, and how many are looked at to find them."""

import random

import pytest

from strandline.core.consumers.pulls import Pull, PullQueue
from strandline.servers.nats.jetstream.waiting_inboxes import OUTDATED_MIN, WaitingInboxes
from strandline.servers.nats.leaf_link import LeafClient


class CountingLeaf(LeafClient):
    """A link that counts how often it is asked about an inbox."""

    def __init__(self):
        super().__init__("test", lambda: ("127.0.0.1", 1))
        self.asked = 0

    def has_interest(self, inbox):
        self.asked += 1
        return super().has_interest(inbox)


class Bench:
    """A queue of pulls, and their inboxes."""

    def __init__(self):
        self.leaf, self.pulls = CountingLeaf(), PullQueue()
        self.inboxes = WaitingInboxes(self.leaf, self.pulls)

    def pull(self, inbox):
        self.pulls.append(Pull(inbox))
        self.inboxes.add(inbox)

    def gone(self, *subjects):
        """Let subjects lose their receivers; return the inboxes that are lost, and drop them."""
        for subject in subjects:
            self.leaf.interest_went(subject)
        lost = self.inboxes.lost(set(subjects))
        for inbox in lost:
            self.pulls.drop(inbox)
        return sorted(lost)


def test_an_inbox_without_a_receiver_may_still_get_one():
    """The report of it and the pull come over different connections."""
    bench = Bench()
    bench.pull(b"_INBOX.a.1")
    assert bench.gone(b"_INBOX.b.*") == []
    assert bench.inboxes.lost(None) == []
    bench.leaf.interest_came(b"_INBOX.a.*")
    assert bench.inboxes.lost({b"_INBOX.a.*"}) == []
    assert bench.gone(b"_INBOX.a.*") == [b"_INBOX.a.1"]


@pytest.mark.parametrize("pattern", [b"a.b.c", b"a.b.*", b"a.b.>", b"a.>"])
def test_every_pattern_that_covers_an_inbox_counts(pattern):
    """Clients subscribe to one inbox, or to all that begin alike."""
    bench = Bench()
    bench.leaf.interest_came(pattern)
    others = (b"a.bb.c", b"a.b", b"b.b.c", b"a-b.c", b"a/b.c")
    for inbox in (b"a.b.c", *others):
        bench.pull(inbox)
    assert b"a.b.c" in bench.gone(pattern)


def test_a_receiver_from_before_a_connection_was_lost_is_missed():
    """After a new connection everything is looked at; what was never seen may still come."""
    bench = Bench()
    bench.leaf.interest_came(b"a.*")
    bench.pull(b"a.1")
    bench.pull(b"b.1")
    bench.leaf._interest.clear()
    assert bench.inboxes.lost(None) == [b"a.1"]


def test_only_concerned_inboxes_are_looked_at():
    """Thousands wait, and somebody else subscribes and unsubscribes."""
    bench = Bench()
    for number in range(2_000):
        bench.pull(b"_INBOX.many.%d" % number)
    bench.leaf.asked = 0
    for subject in (b"_INBOX.other.*", b"_INBOX.other", b"_INBOX.many", b"orders.>", b">"):
        bench.leaf.interest_came(subject)
        assert bench.inboxes.lost({subject}) == []
        assert bench.gone(subject) == []
    assert bench.leaf.asked == 0
    bench.leaf.interest_came(b"_INBOX.many.7")
    assert bench.gone(b"_INBOX.many.7") == [b"_INBOX.many.7"]
    assert bench.leaf.asked <= 2


def test_many_changes_at_once_are_looked_up_by_the_few_that_wait():
    """A client with thousands of subscriptions leaves."""
    bench = Bench()
    bench.leaf.interest_came(b"a.1")
    bench.pull(b"a.1")
    bench.leaf.asked = 0
    assert bench.gone(*(b"a.%d" % number for number in range(1_000))) == [b"a.1"]
    assert bench.leaf.asked <= 2


def test_inboxes_of_finished_pulls_are_forgotten():
    """A client may use a new one for every pull."""
    bench = Bench()
    for number in range(3 * OUTDATED_MIN):
        bench.pull(b"a.%d" % number)
        bench.pulls.popleft()
    assert len(bench.inboxes._sorted) <= OUTDATED_MIN + 2


@pytest.mark.parametrize("seed", range(20))
def test_it_finds_what_looking_at_all_would_find(seed):
    """Whatever comes and goes, in any order."""
    rng, bench, other = random.Random(seed), Bench(), Bench()
    other.leaf = other.inboxes._leaf = bench.leaf
    tokens = [b"a", b"b", b"c"]
    for _ in range(300):
        inbox = b".".join(rng.choices(tokens, k=rng.randint(1, 4)))
        subject = b".".join(
            [*rng.choices(tokens, k=rng.randint(0, 3)), rng.choice([b"a", b"*", b">"])]
        )
        subject = inbox if rng.random() < 0.3 else subject
        chance = rng.random()
        if chance < 0.4:
            if not bench.leaf.has_lost(inbox):
                bench.pull(inbox)
                other.pull(inbox)
            continue
        changed = {subject}
        (bench.leaf.interest_came if chance < 0.7 else bench.leaf.interest_went)(subject)
        found = bench.inboxes.lost(changed)
        assert sorted(found) == sorted(other.inboxes.lost(None)), (subject, seed)
        for lost in found:
            bench.pulls.drop(lost)
            other.pulls.drop(lost)
