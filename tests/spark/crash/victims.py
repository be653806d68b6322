"""The victims of a crash run: always ``kill -9``, always by process id.

Rules: every word has its turn before any has another, in an order of the seed's choice. A kill has
to hit work: pipelines have records before them, an executor runs Python, a nats-server is the one
that records come through. A victim that is not there at that moment (a worker between two tasks)
is looked for again.
"""

import os
import signal
import subprocess

from brokers import until

COORDINATOR = ("__transactions", 0)


def victims_of(*, brokers, executors):
    """The words that runs draw, as far as there are such victims."""
    words = ["driver", "executor" if executors else "worker", "nats-server"]
    return words + (["broker"] if brokers == 1 else ["leader", "coordinator"])


def turns(words, moments):
    """Words without end, each as often as the others."""
    while True:
        yield from moments.sample(words, len(words))


class Victims:
    """Kills the victim that a word names.

    Args:
        story: streams and brokers.
        moments: random choices.
        cluster: of Spark; None if the driver does everything.
    """

    def __init__(self, story, moments, *, cluster=None):
        self.story = story
        self.moments = moments
        self.cluster = cluster

    def kill(self, word, job):
        """Kill it; returns the broker that has to be started again, if any."""
        match word:
            case "driver":
                job.kill()
            case "worker":
                self._kill_one_of(lambda: workers(job.pid), "Spark runs Python")
            case "executor":
                executors = self.cluster.executors
                self._kill_one_of(lambda: filter(workers, executors()), "an executor runs Python")
            case "nats-server":
                self._kill_nats_server()
            case _:
                server = self._broker(word)
                server.kill()
                return server
        return None

    def _broker(self, word):
        brokers = self.story.brokers
        if word == "leader":
            place = self.moments.choice(self.story.partitions)
            return brokers.leader(self.story.client, *place)
        if word == "coordinator":
            return brokers.leader(self.story.client, *COORDINATOR)
        assert word == "broker", word
        return self.moments.choice(brokers.servers)

    def _kill_nats_server(self):
        """The one that the publisher talks to; it has to notice."""
        nats, brokers = self.story.nats, self.story.brokers
        url = until(lambda: nats.server, "records come through a nats-server")
        cuts = nats.cuts
        [server] = [each for each in brokers.servers if each.nats_url == url]
        os.kill(brokers.nats_server(server), signal.SIGKILL)
        until(lambda: nats.cuts > cuts, "the publisher's connection is cut")

    def _kill_one_of(self, find, what):
        def kill():
            pid = self.moments.choice(list(find()))
            os.kill(pid, signal.SIGKILL)
            return pid

        until(kill, what)


def processes():
    """Every process: its id, its parent's, and its command."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    )
    rows = (line.split(None, 2) for line in listed.stdout.splitlines())
    return [(int(pid), int(parent), rest[0] if rest else "") for pid, parent, *rest in rows]


def workers(root):
    """Spark's Python processes below a driver or executor: of tasks, sources and commits."""
    listed = processes()
    family = {root}
    # Children may be listed before their parents, so look until nobody is added.
    while grown := {pid for pid, parent, _ in listed if parent in family} - family:
        family |= grown
    return [pid for pid, _, command in listed if pid in family and "-m pyspark" in command]
