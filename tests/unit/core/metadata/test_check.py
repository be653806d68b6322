"""The checks of images: each finds the one violation in an invalid image."""

import msgspec
import pytest

from strandline.core.metadata.check import check_image, check_settled, check_step
from strandline.types import PartitionName


def changed(image, **fields):
    """The image with fields of its only partition set."""
    name = PartitionName("s", 0)
    return image.with_partitions({name: msgspec.structs.replace(image.partition(*name), **fields)})


@pytest.fixture
def image(cluster):
    made = cluster(4)
    made.create("s", (1, 2, 3), min_isr=2)
    return made.image


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"isr": ()}, "ISR is empty"),
        ({"isr": (1, 2, 4)}, "not all replicas"),
        ({"isr": (1, 1, 2)}, "twice"),
        ({"leader": 4}, "not in the ISR"),
        ({"isr": (2, 3)}, "leader 1 is not in the ISR"),
        ({"last_known_safe": (3,)}, "in the ISR and outside"),
        ({"isr": (1, 2), "last_known_safe": (3,)}, "while commits go on"),
        ({"replicas": (1, 2, 3, 9)}, "replica 9 is no broker"),
        ({"filling": (2,)}, "relied on"),
        ({"filling": (4,)}, "not all replicas"),
        ({"adding": (1,), "removing": (1,)}, "comes and goes"),
        ({"removing": (1, 2, 3)}, "no replica is to stay"),
        ({"log_id": 2}, "not below the next one"),
    ],
)
def test_a_wrong_partition_is_found(image, fields, what):
    """The check names the violation; the original image passes."""
    assert check_image(image) == []
    assert any(what in sentence for sentence in check_image(changed(image, **fields)))


def test_a_fenced_member_of_a_led_isr_is_found(image):
    """Commits would wait for it."""
    fenced = msgspec.structs.replace(image.brokers[2], is_fenced=True)
    assert any("fenced and in the ISR" in what for what in check_image(image.with_broker(fenced)))


def test_two_owners_of_a_number_are_found(image):
    """A directory of two brokers, a log of two partitions, a broker under a wrong id."""
    twin = msgspec.structs.replace(image.brokers[2], directory_id="d1")
    assert any("directory d1" in what for what in check_image(image.with_broker(twin)))
    twice = {**image.streams, "t": image.streams["s"]}
    wrong = check_image(msgspec.structs.replace(image, streams=twice))
    assert any("log id 1 was given out 2 times" in what for what in wrong)
    assert any("not what its settings say" in what for what in wrong)
    moved = msgspec.structs.replace(image, brokers={**image.brokers, 4: image.brokers[3]})
    assert any("kept as 4" in what for what in check_image(moved))


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ({}, {"isr": (1, 2)}, "version is 0 after 0"),
        ({"version": 3}, {"version": 2}, "version is 2 after 3"),
        ({"leader_epoch": 3}, {"version": 1, "leader_epoch": 2}, "epoch 2 after 3"),
        ({}, {"version": 1, "leader": 2}, "share an epoch"),
    ],
)
def test_a_step_back_is_found(image, before, after, what):
    """Versions and epochs only grow, and a new leader has a new one."""
    old, new = changed(image, **before), changed(image, **{**before, **after})
    assert any(what in sentence for sentence in check_step(old, new))


@pytest.mark.parametrize(
    "counter", ["next_log_id", "next_producer_id", "next_client_id", "proposals"]
)
def test_a_counter_that_falls_is_found(image, counter):
    """A falling counter would allocate ids again."""
    fuller = msgspec.structs.replace(image, **{counter: 9})
    assert any(counter in what for what in check_step(fuller, image))
    assert check_step(image, fuller) == []


def test_an_owner_that_changes_is_found(image):
    """Producer ids would pass to another principal."""
    fuller = msgspec.structs.replace(image, producer_owners={"ann": 1, "bob": 2})
    swapped = msgspec.structs.replace(image, producer_owners={"ann": 2, "bob": 1})
    shared = msgspec.structs.replace(image, producer_owners={"ann": 1, "bob": 1})
    assert check_image(fuller) == check_step(image, fuller) == []
    for later in (image, swapped):
        assert any("owner of producer ids" in what for what in check_step(fuller, later))
    assert any("share a number" in what for what in check_image(shared))


def test_a_number_given_out_again_is_found(image):
    """A log id below the next one that no partition had a step ago."""
    later = msgspec.structs.replace(image, next_log_id=9)
    again = changed(later, log_id=5)
    assert any("log id 5 was given out before" in what for what in check_step(later, again))


def test_work_left_undone_is_found(image):
    """A partition that could be led and is not, and one led by a broker that stops."""
    assert check_settled(image) == []
    assert "no leader" in check_settled(changed(image, leader=None))[0]
    stopping = msgspec.structs.replace(image.brokers[1], is_stopping=True)
    assert "which stops" in check_settled(image.with_broker(stopping))[0]
