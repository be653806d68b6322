"""Who is killed in a crash run, and how: always ``kill -9``, always by process id.

Rules: a victim that is not there at that moment (a worker between two tasks) is looked for again;
who of several dies is the seed's choice.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress

SEARCH_S = 60
COORDINATOR = ("__transactions", 0)
VICTIMS = ("driver", "worker", "broker", "nats-server")
VICTIMS_OF_CLUSTER = (*VICTIMS, "leader", "coordinator")


class Victims:
    """Kills what a word names.

    Args:
        story: streams and brokers.
        moments: random choices.
    """

    def __init__(self, story, moments):
        self.story = story
        self.moments = moments

    def kill(self, word, job):
        """Kill it; returns the broker that has to be started again, if any."""
        brokers = self.story.brokers
        if word == "driver":
            job.kill()
            return None
        if word == "worker":
            self._kill_worker(job.pid)
            return None
        if word == "leader":
            place = self.moments.choice(self.story.partitions)
            server = brokers.leader(self.story.client, *place)
        elif word == "coordinator":
            server = brokers.leader(self.story.client, *COORDINATOR)
        else:
            server = self.moments.choice(brokers.servers)
        if word == "nats-server":
            os.kill(brokers.nats_server(server), signal.SIGKILL)
            return None
        server.kill()
        return server

    def _kill_worker(self, driver):
        deadline = time.monotonic() + SEARCH_S
        while time.monotonic() < deadline:
            with suppress(IndexError, ProcessLookupError):
                os.kill(self.moments.choice(workers(driver)), signal.SIGKILL)
                return
            time.sleep(0.1)
        raise TimeoutError(f"Spark had no Python process to be killed for {SEARCH_S} s")


def processes():
    """Every process: its id, its parent's, and its command."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [(int(pid), int(parent), rest[0] if rest else "") for pid, parent, *rest in rows]


def workers(driver):
    """Spark's Python processes below a driver: those of tasks, of sources and of commits."""
    listed = processes()
    family = {driver}
    # Children may be listed before their parents, so look until nobody is added.
    while grown := {pid for pid, parent, _ in listed if parent in family} - family:
        family |= grown
    return [pid for pid, _, command in listed if pid in family and "-m pyspark" in command]
