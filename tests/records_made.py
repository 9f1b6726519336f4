"""Records of trainings that never were: a loader as PyTorch makes them, played in plain Python,
with a cause put in."""

from collections import deque
from dataclasses import dataclass, field, replace

import numpy as np

from simshuffle.extensions.doctor.records.record import Record, make_rows

CPU = {"open": 0.1, "read": 0.1, "decode": 1.0, "transform": 1.0, "lock": 0.0, "collate": 1.0}
"""Share of what a worker does in which it computes."""


@dataclass(frozen=True)
class Training:
    """Seconds are means; those of a sample where nothing else is said. The default one is healthy:
    four workers make a batch every 20 ms, a step takes 30 ms."""

    batches: int = 96
    epochs: int = 2
    ranks: int = 1
    size: int = 8  # samples of a batch
    workers: int = 4
    prefetch: int = 2
    in_order: bool = True
    persistent: bool = True
    cores: int = 4
    seed: int = 0
    noise: float = 0.1  # standard deviation of the logarithm of everything
    open: float = 1e-3
    request: float = 0.2e-3
    nbytes: float = 100e3
    per_byte: float = 8e-9
    per_disk_byte: float = 0.0  # more, for bytes from the device
    disk: tuple[float, float] = (1.0, 0.0)  # of the samples, in the first epoch and later
    counted: bool = True  # whether the file system says what comes from there
    decode: float = 4e-3
    transform: float = 2e-3
    lock: float = 0.0
    collate: float = 4e-3  # of a batch
    send: float = 0.5e-3  # of a batch
    queued: float = 0.0  # of a batch
    # of a step
    copy: float = 0.5e-3
    forward: float = 10e-3
    backward: float = 15e-3
    optimizer: float = 3e-3
    allreduce: float = 1e-3
    summed: int = 1  # every which step it is seen
    gil: float = 0.0
    begin: float = 0.0  # of a worker, in a new process
    slow_worker: tuple[int, float] = (0, 1.0)
    slow_rank: tuple[int, float] = (0, 1.0)  # its steps
    slow_samples: tuple[float, float] = (0.0, 0.0)  # share of all, and s more in their decoding
    shard: tuple[int, float] = (0, 0.0)  # batches of one, and s more for the first
    checkpoint: tuple[int, float] = (0, 0.0)  # steps between them, and s more for one
    read_in_c: bool = False  # so that only what is read of them first is seen
    timed: int = 1  # every which fetch has parts
    files: int = 1000  # that are opened; 0 where samples are of a server
    known: frozenset[str] = field(default_factory=frozenset)  # operations seen; all if none

    def without(self, **changes: object) -> float:
        """By how many seconds the loop is shorter with these."""
        return play(self)[1] - play(replace(self, **changes))[1]

    def record(self) -> Record:
        """Its record."""
        rows, _ = play(self)
        if self.known:
            rows = [row for row in rows if row["operation"] in self.known]
        names = sorted({name for row in rows for name in row})
        empty = {"worker": -1, "count": 0, "nbytes": 0, "sample": -1}
        table = make_rows({n: [row.get(n, empty.get(n, np.nan)) for row in rows] for n in names})
        loader = {
            "batch_size": self.size,
            "num_workers": self.workers,
            "prefetch_factor": self.prefetch if self.workers else None,
            "in_order": self.in_order,
            "persistent_workers": self.persistent,
        }
        host = {"cores": self.cores * self.ranks, "memory_nbytes": 64e9}
        about = {"made_by": "simshuffle", "loaders": [loader], "host": host, "files_nbytes": 2e9}
        about["files"] = self.files
        return Record(table, about, "made")


class _Rank:
    """Its workers and what they have been asked for."""

    def __init__(self, of: Training, number: int, at: float) -> None:
        self.of, self.number = of, number
        begin = 0.0 if of.persistent and at else of.begin
        self.free = [at + begin for _ in range(max(of.workers, 1))]
        self.sent = [0.0] * max(of.workers, 1)
        self.ready: dict[int, float] = {}


def _draw(of: Training) -> dict[str, np.ndarray]:
    """What everything takes: of samples (rank, epoch, batch, sample), of batches without the last.
    Draws are the same whatever the means are."""
    rng = np.random.default_rng(of.seed)
    batches = (of.ranks, of.epochs, of.batches)
    samples = (*batches, of.size)

    def noise(shape: tuple[int, ...]) -> np.ndarray:
        return np.exp(of.noise * rng.standard_normal(shape))

    nbytes = of.nbytes * np.exp(0.5 * rng.standard_normal(samples))
    share = np.where(np.arange(of.epochs) == 0, *of.disk)[:, None, None]
    disk = nbytes * (rng.random(samples) < share)
    read = (of.request + nbytes * of.per_byte + disk * of.per_disk_byte) * noise(samples)
    out = {"nbytes": nbytes, "disk": disk, "read": read}
    for name in ("open", "decode", "transform", "lock"):
        out[name] = getattr(of, name) * noise(samples)
    many, more = of.slow_samples
    out["decode"] += more * (rng.random(samples[2:]) < many)  # the same in each epoch
    for name in ("collate", "send", "queued", "copy", "forward", "backward", "optimizer", "gil"):
        out[name] = getattr(of, name) * noise(batches)
    number = np.arange(of.batches)
    for (turn, late), name in ((of.shard, "open"), (of.checkpoint, "optimizer")):
        if turn:
            out[name][(*3 * (slice(None),), *[0] * (name == "open"))] += late * (
                number % turn == turn - 1
            )
    worker = number % max(of.workers, 1) == of.slow_worker[0]
    for name in ("open", "read", "decode", "transform", "collate"):
        factor = np.where(worker, of.slow_worker[1], 1.0)
        out[name] = out[name] * (factor if out[name].ndim == 3 else factor[:, None])
    slow = np.where(np.arange(of.ranks) == of.slow_rank[0], of.slow_rank[1], 1.0)[:, None, None]
    for name in ("forward", "backward"):
        out[name] = out[name] * slow
    return out


def play(of: Training) -> tuple[list[dict[str, object]], float]:
    """The rows, and s that its loops take from the end of the first batch on."""
    took = _draw(of)
    rows: list[dict[str, object]] = []
    now = begun = 0.0
    for epoch in range(of.epochs):
        ranks = [_Rank(of, number, now) for number in range(of.ranks)]
        queue = {rank.number: deque(range(of.batches)) for rank in ranks}
        now_of = [now] * of.ranks
        for rank in ranks:
            for _ in range(of.workers * of.prefetch):
                _make(rank, took, rows, epoch, queue[rank.number], now)
        for batch in range(of.batches):
            there = []
            for rank in ranks:
                asked = now_of[rank.number]
                if not of.workers:
                    rank.free = [asked]
                    _make(rank, took, rows, epoch, queue[rank.number], asked)
                there.append(max(asked, rank.ready[batch]))
                waited = there[-1] - asked
                cpu = 0.0 if of.workers else waited * 0.9
                rows.append(_row(rank, epoch, batch, "wait", asked, waited, cpu_s=cpu))
                if of.workers:
                    _make(rank, took, rows, epoch, queue[rank.number], there[-1])
            now_of = _step(of, took, rows, epoch, batch, there)
            begun = begun or max(now_of)
        for rank in ranks:  # workers end
            ended = of.begin / 10 * (not of.persistent)
            rows.append(_row(rank, epoch, -1, "wait", max(now_of), ended, cpu_s=0.0))
        now = max(now_of) + ended
    return rows, now - begun


def _row(
    rank: _Rank, epoch: int, batch: int, name: str, start: float, seconds: float, **more: object
) -> dict[str, object]:
    return {
        **{"rank": rank.number, "loader": 0, "epoch": epoch, "batch": batch},
        **{"operation": name, "start_s": start, "seconds": seconds, "queued_s": 0.0},
        **more,
    }


def _make(
    rank: _Rank, took: dict[str, np.ndarray], rows: list, epoch: int, queue: deque, at: float
) -> None:
    """Have the next batch made by the worker whose turn it is, from when it is asked for."""
    if not queue:
        return
    batch, of = queue.popleft(), rank.of
    worker = batch % max(of.workers, 1)
    place = (rank.number, epoch, batch)
    start = max(rank.free[worker], at)
    who = {"worker": worker if of.workers else -1}
    sums = {name: took[name][place].sum() for name in ("open", "read", "decode", "transform")}
    sums["lock"], sums["collate"] = took["lock"][place].sum(), took["collate"][place]
    queued = took["queued"][place]
    cpu = sum(CPU[name] * seconds for name, seconds in sums.items())
    sums["decode"] += queued
    fetch = sum(sums.values())
    fetched = {"cpu_s": cpu, "queued_s": queued, "count": of.size}
    rows.append(_row(rank, epoch, batch, "fetch", start, fetch, **who, **fetched))
    for name, seconds in sums.items():
        if seconds and (name == "collate" or batch % of.timed == 0):
            more: dict[str, object] = {"count": of.size}
            if name == "read":
                more["nbytes"] = int(took["nbytes"][place].sum())
                more["nbytes"] = 4096 * of.size if of.read_in_c else more["nbytes"]
                more["disk_nbytes"] = took["disk"][place].sum() if of.counted else 0.0
            rows.append(_row(rank, epoch, batch, name, start, seconds, **who, **more))
    parts = [took[name][place] for name in ("open", "read", "decode", "transform", "lock")]
    if batch % of.timed:
        whole = {"sample": -1, "count": of.size}
        seconds = float(np.sum(parts))
        rows.append(_row(rank, epoch, batch, "sample", start, seconds, **who, **whole))
    for sample, seconds in enumerate(np.sum(parts, axis=0) if batch % of.timed == 0 else ()):
        index = {"sample": batch * of.size + sample}
        rows.append(_row(rank, epoch, batch, "sample", start, seconds, **who, **index))
    rank.free[worker] = rank.ready[batch] = end = start + fetch
    if of.workers:  # beside the next fetch
        begun, sending = max(end, rank.sent[worker]), took["send"][place]
        rows.append(_row(rank, epoch, batch, "send", end, begun + sending - end, **who, count=1))
        rank.sent[worker] = rank.ready[batch] = begun + sending


def _step(
    of: Training, took: dict[str, np.ndarray], rows: list, epoch: int, batch: int, there: list
) -> list[float]:
    """Of all ranks; those that are done wait for the last, and sum their gradients."""
    names = ("copy", "forward", "backward", "optimizer", "gil")
    late = 3e-3 if of.gil else 0.1e-3
    parts = [{name: took[name][r, epoch, batch] for name in names} for r in range(of.ranks)]
    done = [at + sum(own.values()) for at, own in zip(there, parts, strict=True)]
    over = max(done) + of.allreduce
    for number, (at, own) in enumerate(zip(there, parts, strict=True)):
        rank = _Rank(of, number, 0.0)
        waited = own["copy"] + own["gil"] + over - done[number]
        computed = {"cpu_s": over - at - waited}
        rows.append(_row(rank, epoch, batch, "step", at, over - at, **computed))
        begun = at
        for name, seconds in own.items():
            if seconds and name != "gil":
                rows.append(_row(rank, epoch, batch, name, begun, seconds, count=1))
            begun += seconds
        if batch % of.summed == 0:
            rows.append(_row(rank, epoch, batch, "allreduce", begun, over - begun, count=1))
        asked = _row(rank, 0, -1, "gil", at, 20 * late, count=20)
        rows.append(asked | {"loader": -1})
    return [over] * of.ranks
