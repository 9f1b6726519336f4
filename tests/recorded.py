"""Records of trainings that never were: ranks whose workers read from one file server, worked out
event by event, which shares no code with what is tested."""

import heapq
import itertools
from dataclasses import dataclass, field

import simpy

from simshuffle.extensions.doctor.records.record import Record, make_rows

UNKNOWN = {"loader": 0, "count": 0, "nbytes": 0, "sample": -1}


class Server:
    """``bandwidth`` bytes/s that all transfers under way share equally."""

    def __init__(self, env, bandwidth):
        self.env, self.bandwidth = env, bandwidth
        self.under_way, self.number, self.version = [], itertools.count(), 0
        self.each, self.since = 0.0, 0.0  # bytes that one under way all the time has got

    def transfer(self, nbytes):
        done = self.env.event()
        self._advance()
        heapq.heappush(self.under_way, (self.each + nbytes, next(self.number), done))
        self._plan()
        return done

    def _advance(self):
        if self.under_way:
            self.each += (self.env.now - self.since) * self.bandwidth / len(self.under_way)
        self.since = self.env.now

    def _plan(self):
        self.version += 1
        if self.under_way:
            left = max(self.under_way[0][0] - self.each, 0.0)
            seconds = left * len(self.under_way) / self.bandwidth
            self.env.timeout(seconds, self.version).callbacks.append(self._end)

    def _end(self, event):
        if event.value == self.version:
            self._advance()
            heapq.heappop(self.under_way)[2].succeed()
            self._plan()


@dataclass
class Training:
    """What every rank does; they wait for each other after every step."""

    samples: int  # of the data set, which the ranks share
    batch: int
    step: tuple[float, float]  # s of a batch, and more for each of its samples
    step_cpu: float = 0.0  # share of it in which it computes
    allreduce: float = 0.0  # s of it, at its end
    meet_in_step: bool = False  # whether waiting for others is in the step where nothing is summed
    latency: float = 0.0  # s of a request, one for each sample
    nbytes: int = 0  # of a sample
    bandwidth: float = 1e18
    cpu: float = 0.0  # s of a core for each sample
    workers: int = 1
    prefetch: int = 2
    epochs: int = 1
    rng: object = None  # draws latencies, exponential ones
    by_sample: bool = True  # whether single samples are recorded
    about: dict = field(default_factory=dict)

    def record(self, ranks):
        """The record of that many ranks."""
        played = Played(self, ranks)
        columns = {name for row in played.rows for name in row}
        table = {n: [row.get(n, UNKNOWN.get(n)) for row in played.rows] for n in columns}
        loader = {"batch_size": self.batch, "num_workers": self.workers, "samples": self.samples}
        known = {
            "made_by": "simshuffle",
            "command": ["python", "train.py"],
            "ranks": ranks,
            "loaders": [loader | {"prefetch_factor": self.prefetch}],
            "host": {"name": "here", "cores": 64, "memory_nbytes": 64e9},
            "threads": 1,
            "device": "cpu",
        }
        return Record(make_rows(table), known | self.about, "made")

    def epoch_s(self, ranks):
        """s of its last epoch, from asking for the first batch to the end of the last step."""
        rows = [row for row in Played(self, ranks).rows if row["worker"] == -1]
        rows = [row for row in rows if row["epoch"] == self.epochs - 1]
        ends = [row["start_s"] + row["seconds"] for row in rows]
        return max(ends) - min(row["start_s"] for row in rows)


class Played:
    """A training of that many ranks; ``rows`` are those of its record."""

    def __init__(self, of, ranks):
        self.of, self.ranks = of, ranks
        self.env, self.rows, self.meeting = simpy.Environment(), [], {}
        self.server = Server(self.env, of.bandwidth)
        shard = of.samples // ranks
        self.sizes = [min(of.batch, shard - first) for first in range(0, shard, of.batch)]
        for rank in range(ranks):
            self.env.process(self.rank(rank))
        self.env.run()

    def put(self, key, operation, start, seconds, **more):
        names = ("rank", "epoch", "batch", "worker")
        of = {"operation": operation, "start_s": start, "seconds": seconds}
        self.rows.append({**dict(zip(names, key, strict=True)), **of, **more})

    def worker(self, rank, epoch, worker, asked, ready):
        of = self.of
        for number in range(worker, len(self.sizes), of.workers):
            yield asked[number]
            key, count = (rank, epoch, number, worker), self.sizes[number]
            start, waits = self.env.now, [0.0, 0.0]
            for sample in range(count):
                marks = [self.env.now]
                yield self.env.timeout(of.rng.exponential(of.latency) if of.rng else of.latency)
                marks.append(self.env.now)
                if of.nbytes:
                    yield self.server.transfer(of.nbytes)
                marks.append(self.env.now)
                yield self.env.timeout(of.cpu)
                waits = [waits[k] + marks[k + 1] - marks[k] for k in range(2)]
                if of.by_sample:
                    one = {"sample": sample, "count": 1, "nbytes": of.nbytes}
                    self.put(key, "sample", marks[0], self.env.now - marks[0], **one)
            computed = {"cpu_s": count * of.cpu, "queued_s": 0.0, "count": count}
            self.put(key, "fetch", start, self.env.now - start, **computed)
            self.put(key, "open", start, waits[0], count=count)
            self.put(key, "read", start, waits[1], count=count, nbytes=count * of.nbytes)
            ready[number].succeed()

    def rank(self, rank):
        of = self.of
        ahead = of.workers * of.prefetch
        for epoch in range(of.epochs):
            asked, ready = ([self.env.event() for _ in self.sizes] for _ in range(2))
            for worker in range(of.workers):
                self.env.process(self.worker(rank, epoch, worker, asked, ready))
            for event in asked[:ahead]:
                event.succeed()
            for number, count in enumerate(self.sizes):
                start, key = self.env.now, (rank, epoch, number, -1)
                yield ready[number]
                self.put(key, "wait", start, self.env.now - start)
                for event in asked[number + ahead : number + ahead + 1]:
                    event.succeed()
                start, own = self.env.now, of.step[0] + of.step[1] * count
                yield self.env.timeout(own)
                met = self.env.now
                yield self.met((epoch, number))
                yield self.env.timeout(of.allreduce)
                if of.allreduce:
                    loose = rank, 0, -1, -1
                    self.put(loose, "allreduce", met, self.env.now - met, loader=-1)
                lasted = self.env.now - start if of.allreduce or of.meet_in_step else own
                self.put(key, "step", start, lasted, cpu_s=of.step_cpu * own, queued_s=0.0)

    def met(self, place):
        """The event that all ranks are there."""
        here, everybody = self.meeting.setdefault(place, ([], self.env.event()))
        here.append(place)
        if len(here) == self.ranks:
            everybody.succeed()
        return everybody
