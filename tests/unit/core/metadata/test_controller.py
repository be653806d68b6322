"""The controller's proposals: fencing, elections, hand-overs and moves, and when there are none."""

import time

import pytest

from strandline.config import StreamConfig
from strandline.core.metadata.apply import apply, apply_entry
from strandline.core.metadata.commands import (
    BeginShutdown,
    BrokerRun,
    CreateStream,
    Drain,
    ElectLeader,
    Fence,
    FinishReassignment,
    ForgetDirectory,
    Move,
    ReassignReplicas,
    ReportStorage,
    Unfence,
)
from strandline.core.metadata.controller import Controller, ControllerLimits
from strandline.core.metadata.image import MetadataImage
from strandline.core.metadata.placement import place

LIMITS = ControllerLimits(session_ms=2_000, reshare_delay_ms=10_000, moves_max=2)


class Office:
    """A controller at work on a cluster."""

    def __init__(self, made, *, now_ms=0):
        self.made = made
        self.now_ms = now_ms
        self.controller = Controller(now_ms, LIMITS)

    def hear(self, *brokers):
        for broker in brokers:
            self.controller.heartbeat(self.made.run(broker), self.now_ms)

    def pass_time(self, ms):
        """Time passes in which the controller is awake, and does as it decides."""
        end = self.now_ms + ms
        while self.now_ms < end - LIMITS.session_ms / 4:
            self.now_ms += LIMITS.session_ms / 4
            assert self.decide() == []
        self.now_ms = end

    def decide(self, **more):
        """Decide and apply; the kinds of the commands. Decided again there is nothing to do."""
        commands = self.controller.decide(self.made.image, self.now_ms, **more)
        for command in commands:
            self.made.must(command)
        assert self.controller.decide(self.made.image, self.now_ms, **more) == ()
        return [
            f"{type(c).__name__} {c.reason}" if isinstance(c, ElectLeader) else type(c).__name__
            for c in commands
        ]

    def wait(self, ms, *brokers):
        """Let time pass with heartbeats, and nothing to decide."""
        end = self.now_ms + ms
        while self.now_ms < end:
            self.now_ms += 500
            self.hear(*brokers)
            self.decide()


@pytest.fixture
def office(cluster):
    def make(brokers=3, *assignment, **settings):
        made = cluster(brokers)
        if assignment:
            made.create("s", *assignment, **settings)
        return Office(made)

    return make


def test_a_silent_broker_is_fenced_and_its_partitions_get_leaders(office):
    """Two commands, however many partitions; each survivor leads its share."""
    work = office(3, *[(1, 2, 3)] * 10)
    work.pass_time(1_500)
    work.hear(2, 3)
    work.pass_time(501)
    assert work.decide() == ["Fence", "ElectLeader leader_lost"]
    leaders = [p.leader for _, p in work.made.image.partitions()]
    assert (leaders.count(2), leaders.count(3)) == (5, 5)


def test_an_idle_cluster_looks_at_no_partition(office, monkeypatch):
    """They are looked at when the image is new or leaders may be shared, not as time passes."""
    work = office(3, *[(1, 2, 3)] * 10)
    work.wait(LIMITS.reshare_delay_ms + 1_000, 1, 2, 3)
    looks = []
    look = MetadataImage.unsettled
    monkeypatch.setattr(MetadataImage, "unsettled", lambda image: looks.append(1) or look(image))
    work.wait(20_000, 1, 2, 3)
    assert looks == []
    work.made.must(BeginShutdown(work.made.run(1)))
    assert work.decide() == ["ElectLeader handover", "Fence"]
    assert looks != []


@pytest.mark.parametrize("is_draining", [False, True])
def test_a_creation_costs_the_same_however_many_streams_there_are(cluster, opcodes, is_draining):
    """Placing, applying and deciding after a creation examine no other stream."""

    def work_beside(streams):
        made = cluster(4)
        made.edit(4, is_draining=is_draining)
        for number in range(streams):
            made.image = created(made.image, f"s{number}")
        office = Office(made)
        office.wait(LIMITS.reshare_delay_ms + 1_000, 1, 2, 3, 4)

        def create():
            made.image = created(made.image, "one-more")
            office.decide()

        return opcodes(create)

    few, many = work_beside(20), work_beside(400)
    assert many < 1.2 * few


def created(image, name):
    """The image with one more stream, placed by rule."""
    config = StreamConfig(name=name, subject=name, replicas=3, min_isr=2)
    return apply(image, CreateStream(config, 1, place(image, partitions=1, replicas=3)))


def test_a_new_controller_gives_everybody_time(office):
    """It has received no heartbeats yet, which proves nothing about the brokers."""
    work = office(3, (1, 2, 3))
    later = Office(work.made, now_ms=50_000)
    later.pass_time(2_000)
    assert later.decide() == []
    later.pass_time(1)
    assert later.decide() == ["Fence"], "all are silent, so there is nobody to elect"


def test_a_controller_that_slept_takes_nobody_for_dead(office):
    """It did not listen; heartbeats of that time are not missed but late."""
    work = office(3, (1, 2, 3))
    work.hear(1, 2, 3)
    work.now_ms += 60_000
    assert work.decide() == []
    work.pass_time(1_000)
    work.hear(2, 3)
    work.pass_time(1_001)
    assert work.decide() == ["Fence", "ElectLeader leader_lost"]


def test_a_broker_that_is_heard_again_serves_and_leads_what_has_no_leader(office):
    """The last member of the ISR comes back, and its partition with it."""
    work = office(3, (1, 2, 3))
    work.made.isr(1)
    work.made.fence(1)
    work.hear(1, 2, 3)
    assert work.decide() == ["Unfence", "ElectLeader leader_lost"]
    assert work.made.partition().leader == 1


def test_an_earlier_run_is_not_heard(office):
    """A heartbeat of a broker's earlier run does not count."""
    work = office(3)
    work.hear(1, 2, 3)
    work.made.register(1, run="r2")
    assert work.decide() == []
    assert work.made.image.brokers[1].is_fenced
    work.hear(1)
    assert work.decide() == ["Unfence"]


def test_a_forgotten_broker_is_not_back_before_it_registers(office):
    """It has no run then, and a heartbeat that names none is not taken for it."""
    work = office(3)
    work.hear(1, 2, 3)
    work.made.fence(2)
    work.made.must(ForgetDirectory(2))
    work.hear(2)
    assert work.decide() == []


def test_no_leader_is_better_than_one_that_lacks_records(office):
    """The controller orders no unclean election, however long it has to wait."""
    work = office(3, (1, 2, 3))
    work.made.isr(1)
    work.wait(60_000, 2, 3)
    assert work.made.partition().leader is None
    assert work.made.partition().isr == (1,)


def test_the_most_up_to_date_replica_is_elected(office):
    """If the ends of the logs are known when the leader is lost."""
    work = office(3, (1, 2, 3))
    work.hear(2, 3)
    work.made.fence(1)
    ends = {work.made.partition().log_id: {2: (0, 7), 3: (0, 8)}}
    assert work.decide(log_ends=ends) == ["ElectLeader leader_lost"]
    assert work.made.partition().leader == 3


def test_a_stopping_broker_hands_over_and_may_go(office):
    """It leads nothing and is in no ISR before it stops, so clients are not affected."""
    work = office(3, (1, 2, 3), (2, 1, 3))
    work.hear(1, 2, 3)
    work.made.must(BeginShutdown(work.made.run(1)))
    assert work.decide() == ["ElectLeader handover", "Fence"]
    assert [work.made.partition(n).leader for n in (0, 1)] == [3, 2]
    assert [work.made.partition(n).isr for n in (0, 1)] == [(2, 3), (2, 3)]
    work.hear(1)
    assert work.decide() == [], "it is heard, and yet not taken back"


def test_a_stopping_broker_keeps_what_nobody_else_can_lead(office):
    """It serves that to the end; then its partition waits for it."""
    work = office(3, (1, 2, 3))
    work.made.isr(1)
    work.hear(1, 2, 3)
    work.made.must(BeginShutdown(work.made.run(1)))
    assert work.decide() == []
    assert work.made.partition().leader == 1


def test_a_draining_broker_is_emptied(office):
    """Leaderships first, then replicas, a few at a time, until it can be removed."""
    work = office(4, *[(1, 2, 3)] * 5)
    work.hear(1, 2, 3, 4)
    work.made.must(Drain(1))
    assert work.decide() == ["ElectLeader handover", "ReassignReplicas"]
    rounds = 0
    while any(1 in p.replicas for _, p in work.made.image.partitions()):
        moving = [n for n in range(5) if work.made.partition(n).is_moving]
        assert len(moving) <= LIMITS.moves_max
        for number in moving:
            work.made.isr(*work.made.partition(number).replicas, number=number)
        commands = work.decide()
        assert commands[0] == "FinishReassignment"
        rounds += 1
    assert rounds == 3
    assert {4} <= set(work.made.partition(0).isr)


def test_a_leader_that_leaves_a_partition_hands_it_over_first(office):
    """To one that stays, once that is in sync; then the move ends."""
    work = office(4, (1, 2, 3))
    work.hear(1, 2, 3, 4)
    work.made.must(ReassignReplicas((Move(work.made.at(), (4, 2)),)))
    assert work.decide() == ["ElectLeader reassignment"]
    assert work.made.partition().leader == 2
    work.made.isr(1, 2, 3, 4)
    assert work.decide() == ["FinishReassignment"]
    assert work.made.partition().replicas == (4, 2)


def test_leaders_are_shared_again_when_brokers_have_stayed_for_a_while(office):
    """The preferred leader returns, and leads again only after the delay."""
    work = office(3, (1, 2, 3), (2, 3, 1), (3, 1, 2))
    work.wait(3_000, 2, 3)
    assert work.made.partition(0).leader != 1
    work.wait(500, 1, 2, 3)
    work.made.isr(1, 2, 3, number=0)
    work.wait(9_000, 1, 2, 3)
    assert work.made.partition(0).leader != 1
    work.wait(1_500, 1, 2, 3)
    assert [work.made.partition(n).leader for n in range(3)] == [1, 2, 3]


def test_a_broker_that_comes_and_goes_moves_no_leaders_back(office):
    """Each arrival and departure restarts the delay."""
    work = office(3, (1, 2, 3))
    for _ in range(10):
        work.wait(3_000, 2, 3)
        work.wait(4_000, 1, 2, 3)
        if 1 not in work.made.partition().isr:
            work.made.isr(1, 2, 3)
        assert work.made.partition().leader != 1
    assert work.made.partition().leader_epoch == 2, "it was lost once"


def test_a_thousand_partitions_move_in_two_commands(office):
    """All leaders of a dead broker; deciding and applying costs in proportion to the partitions."""
    commands, costs_s = dead_broker(office, 1_000)
    assert [type(c).__name__ for c in commands] == ["Fence", "ElectLeader"]
    assert len(commands[1].changes) == 334
    _, small_s = dead_broker(office, 100)
    for step, cost_s in costs_s.items():
        assert cost_s < 40 * small_s[step], step


def dead_broker(office, partitions):
    """The commands for a broker that died, and the CPU seconds of each step, the best of five."""
    layout = [((1, 2, 3), (2, 3, 1), (3, 1, 2))[n % 3] for n in range(partitions)]
    work = office(3, *layout, min_isr=2)
    work.pass_time(1_000)
    work.hear(2, 3)
    work.pass_time(1_001)
    best = dict.fromkeys(("decide", "Fence", "ElectLeader"), 1e9)
    for _ in range(5):
        begin = time.thread_time()
        commands = work.controller.decide(work.made.image, work.now_ms)
        best["decide"] = min(best["decide"], time.thread_time() - begin)
        image = work.made.image
        for command in commands:
            begin = time.thread_time()
            image = applied(image, command)
            name = type(command).__name__
            best[name] = min(best[name], time.thread_time() - begin)
    return commands, best


def applied(image, command):
    after, outcome = apply_entry(image, command)
    assert outcome.is_applied
    return after


def test_commands_are_small_values(office):
    """Proposals name runs and partitions, and can be compared."""
    work = office(2)
    work.pass_time(2_001)
    assert work.controller.decide(work.made.image, work.now_ms) == (
        Fence((work.made.run(1), work.made.run(2))),
    )
    work.made.fence(1, 2)
    work.hear(1)
    assert work.controller.decide(work.made.image, work.now_ms) == (Unfence((work.made.run(1),)),)
    assert FinishReassignment(()) != Unfence(())


def test_what_a_broker_has_on_its_disk_is_noted_of_the_run_that_reported_it(office):
    """A newer run, which follows the log before it registers, proves nothing of the one before."""
    work = office(2)
    work.controller.heartbeat(work.made.run(1), 0, 7)
    work.controller.heartbeat(BrokerRun(2, "newer"), 0, 9)
    work.pass_time(2_001)
    runs = work.made.run(1), work.made.run(2)
    assert work.controller.decide(work.made.image, work.now_ms) == (Fence(runs, (7, 0)),)


def test_a_broker_whose_connections_broke_is_fenced_sooner(office):
    """Its process has ended, most likely; one that is only silent may be busy."""
    work = office(3, *[(1, 2, 3)] * 10)
    work.hear(1, 2, 3)
    work.controller.lost(1, work.now_ms)
    work.now_ms += LIMITS.disconnected_ms
    assert work.decide() == []
    work.now_ms += 1
    assert work.decide() == ["Fence", "ElectLeader leader_lost"]
    work.hear(1)
    assert work.decide() == [], "heard, but there is no connection to it"
    work.controller.found(1)
    assert work.decide()[0] == "Unfence"


def test_connections_that_come_back_at_once_change_nothing(office):
    """A reset is no death."""
    work = office(3, (1, 2, 3))
    work.hear(1, 2, 3)
    work.controller.lost(1, 0)
    work.controller.found(1)
    work.now_ms += LIMITS.disconnected_ms + 1
    assert work.decide() == []


def test_a_new_controller_knows_who_went_before_its_time(cluster):
    """A broker that took the controller's office down with it is not waited for again."""
    made = cluster(3)
    made.create("s", (1, 2, 3))
    work = Office(made, now_ms=5_000)
    work.controller = Controller(work.now_ms, LIMITS, {1: 4_000})
    assert work.decide() == ["Fence", "ElectLeader leader_lost"]


def test_after_a_pause_connections_have_time_to_come_back(office):
    """Connections lost before the controller's own pause do not count yet."""
    work = office(3, (1, 2, 3))
    work.hear(1, 2, 3)
    assert work.decide() == []
    work.controller.lost(1, work.now_ms)
    work.now_ms += 60_000
    work.hear(1, 2, 3)
    assert work.decide() == []
    work.controller.found(1)
    work.now_ms += LIMITS.disconnected_ms + 1
    assert work.decide() == []


def impair(work, broker, *, is_on=True):
    work.made.must(ReportStorage(work.made.run(broker), is_on))


def test_a_broker_whose_disk_is_impaired_leads_what_only_it_can(office):
    """Its leaderships pass to others in sync, and it leaves the ISR; one alone keeps its own."""
    work = office(3, (1, 2, 3), (2, 1, 3))
    work.made.create("t", (1,))
    impair(work, 1)
    assert work.decide() == ["ElectLeader leader_failed"]
    first, second, alone = (p for _, p in work.made.image.partitions())
    assert (first.leader, first.isr) == (3, (2, 3)), "who leads less"
    assert (second.leader, second.isr) == (2, (1, 2, 3))
    assert alone.leader == 1
    assert work.made.image.brokers[1].state == "impaired"


def test_an_impaired_broker_keeps_what_others_could_not_write_either(office):
    """With too few other replicas in sync, a new leader would accept no records."""
    work = office(3, (1, 2), min_isr=2)
    impair(work, 1)
    assert work.decide() == []
    assert work.made.partition().leader == 1


def test_leaderships_do_not_return_to_an_impaired_broker(office):
    """In sync again and preferred, it leads when it has reported that its disk works."""
    work = office(3, (1, 2, 3))
    impair(work, 1)
    work.decide()
    work.made.isr(1, 2, 3)
    work.wait(LIMITS.reshare_delay_ms + 1_000, 1, 2, 3)
    assert work.made.partition().leader == 2
    impair(work, 1, is_on=False)
    assert work.decide() == ["ElectLeader preferred"]
    assert work.made.partition().leader == 1


def test_a_lost_leader_is_replaced_by_an_impaired_broker_only_if_nobody_else_can(office):
    """A healthy copy leads before one that is further; the last one leads all the same."""
    work = office(3, (1, 2, 3))
    impair(work, 2)
    assert work.decide() == []
    work.pass_time(1_500)
    work.hear(2, 3)
    work.pass_time(501)
    ends = {work.made.partition().log_id: {2: (1, 9), 3: (1, 5)}}
    assert work.decide(log_ends=ends) == ["Fence", "ElectLeader leader_lost"]
    assert work.made.partition().leader == 3
    work.wait(2_500, 2)
    assert work.made.partition().leader == 2


def test_a_new_partition_is_led_and_committed_without_an_impaired_broker(office):
    """It keeps its copy, and comes into sync when it can."""
    work = office(3)
    impair(work, 1)
    work.made.create("s", (1, 2, 3))
    assert (work.made.partition().leader, work.made.partition().isr) == (2, (2, 3))


def test_a_drained_broker_and_an_impaired_one_do_not_pass_a_leadership_to_and_fro(office):
    """It stays where records can be taken."""
    work = office(2, (1, 2))
    work.made.must(Drain(1))
    impair(work, 2)
    assert work.decide() == []
    assert work.made.partition().leader == 1


def test_a_partition_that_stays_does_not_keep_those_after_it(office):
    """One without another replica in sync, in the middle, is passed over."""
    work = office(3, (1, 2, 3), (1, 2, 3), (1, 2, 3))
    for number in (0, 1):
        work.made.isr(1, number=number)
    work.hear(1, 2, 3)
    work.made.must(BeginShutdown(work.made.run(1)))
    assert work.decide() == ["ElectLeader handover"]
    leaders = [work.made.partition(number).leader for number in range(3)]
    assert leaders[:2] == [1, 1]
    assert leaders[2] in (2, 3)
