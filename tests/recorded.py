"""Records of trainings that never were: ranks whose workers read from one file server, worked out
event by event, which shares no code with what is tested."""

import heapq
import itertools

import simpy

from simshuffle.records.record import Record, framed


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


def trained(
    ranks,
    *,
    samples,  # of the data set, which the ranks share
    batch,
    step,  # (seconds each batch, seconds each sample)
    latency=0.0,  # s of a request, one for each sample
    nbytes=0,  # of a sample
    bandwidth=1e18,
    cpu=0.0,  # s of a core for each sample
    workers=1,
    prefetch=2,
    epochs=1,
    rng=None,  # draws latencies, exponential ones
    by_sample=True,  # whether single samples are recorded
    about=None,
):
    """The record of that many ranks, which wait for each other after every step."""
    env, rows = simpy.Environment(), []
    server = Server(env, bandwidth)
    shard = samples // ranks
    sizes = [min(batch, shard - first) for first in range(0, shard, batch)]

    def put(rank, epoch, number, worker, operation, start, seconds, **more):
        key = {"rank": rank, "epoch": epoch, "batch": number, "worker": worker}
        rows.append({**key, "operation": operation, "start_s": start, "seconds": seconds, **more})

    def worker_of(rank, epoch, worker, asked, ready):
        for number in range(worker, len(sizes), workers):
            yield asked[number]
            start, count, opening, reading = env.now, sizes[number], 0.0, 0.0
            for sample in range(count):
                begin = env.now
                wait = latency if rng is None else rng.exponential(latency)
                yield env.timeout(wait)
                opening += wait
                before = env.now
                if nbytes:
                    yield server.transfer(nbytes)
                reading += env.now - before
                yield env.timeout(cpu)
                if by_sample:
                    known = {"cpu_s": cpu, "queued_s": 0.0, "sample": sample, "count": 1}
                    put(rank, epoch, number, worker, "sample", begin, env.now - begin, **known)
            key = rank, epoch, number, worker
            whole = count * nbytes
            put(*key, "fetch", start, env.now - start, count=count, cpu_s=count * cpu, queued_s=0.0)
            put(*key, "open", start, opening, count=count)
            put(*key, "read", start, reading, count=count, nbytes=whole)
            put(*key, "decode", start, count * cpu, count=count, cpu_s=count * cpu)
            ready[number].succeed()

    meeting = {}

    def rank_of(rank):
        for epoch in range(epochs):
            asked, ready = ([env.event() for _ in sizes] for _ in range(2))
            for worker in range(workers):
                env.process(worker_of(rank, epoch, worker, asked, ready))
            for number in range(min(workers * prefetch, len(sizes))):
                asked[number].succeed()
            for number, count in enumerate(sizes):
                start = env.now
                yield ready[number]
                put(rank, epoch, number, -1, "wait", start, env.now - start)
                if number + workers * prefetch < len(sizes):
                    asked[number + workers * prefetch].succeed()
                start, seconds = env.now, step[0] + step[1] * count
                yield env.timeout(seconds)
                put(rank, epoch, number, -1, "step", start, seconds, cpu_s=0.0, queued_s=0.0)
                place = epoch, number
                here, all_here = meeting.setdefault(place, ([], env.event()))
                here.append(rank)
                if len(here) == ranks:
                    all_here.succeed()
                yield all_here

    for rank in range(ranks):
        env.process(rank_of(rank))
    env.run()
    loader = {
        "batch_size": batch,
        "num_workers": workers,
        "prefetch_factor": prefetch,
        "samples": samples,
    }
    known = {
        "made_by": "simshuffle",
        "command": ["python", "train.py"],
        "ranks": ranks,
        "loaders": [loader],
        "host": {"name": "here", "cores": 64, "memory_nbytes": 64e9},
        "threads": 1,
        "device": "cpu",
        **(about or {}),
    }
    columns = {name: [row.get(name) for row in rows] for name in rows[0] | {"count": 0}}
    columns |= {
        name: [row.get(name, empty) for row in rows]
        for name, empty in {
            "count": 0,
            "nbytes": 0,
            "cpu_s": float("nan"),
            "queued_s": float("nan"),
            "sample": -1,
        }.items()
    }
    return Record(framed(columns), known, "made"), epoch_seconds(rows)


def epoch_seconds(rows):
    """s of the last epoch, of the slowest rank: from asking for its first batch to the end of its
    last step."""
    last = max(row["epoch"] for row in rows)
    own = [row for row in rows if row["epoch"] == last and row["worker"] == -1]
    ends = [row["start_s"] + row["seconds"] for row in own]
    return max(ends) - min(row["start_s"] for row in own)
