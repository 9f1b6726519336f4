"""What a record says of a training, as laws: steps over their batch, what loading a batch takes of a
core and where it waits, and what readers of one server share.

A step of b samples takes c0 + c1 b. A batch of n bytes and k samples, whose worker reads beside o
others in the mean, waits k A + n o / B: a reader alone waits A for a sample, and B is what all
readers share, each of them equally (processor sharing). So A holds the time n / B in which the
server is its own, and what is left of A is latency.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.records.record import Record
from simshuffle.spec.arrays import Floats
from simshuffle.studies.calibrate.fit import relative_fit

KEY = ["rank", "epoch", "batch"]
IN_SAMPLES = ("open", "read", "decode", "transform", "lock", "collate")
IN_STEPS = ("copy", "forward", "backward", "optimizer", "allreduce")
BLOCKS, LEAST_BLOCKS, RESAMPLES = 20, 4, 100
"""Blocks of batches that follow one another, of which the bootstrap draws as many again, since
neighbours are alike; the fewest for an interval; and how often."""
CONFIDENCE = 0.9
UNSEEN = 100.0
"""How many times the highest rate that was seen a limit is taken to be that was not."""


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its 90 % interval; nan where there is none."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


def main_loader(record: Record) -> int:
    """The loader of which most steps are. Raises an InputError if the record has no steps."""
    steps = record.of("step")
    steps = steps[steps["seconds"] > 0]
    if steps.empty:
        rule = "must have steps of a training"
        remedy = "Record a loop that goes through its loader."
        refuse("RECORD", rule, "none", remedy, record.source)
    return int(steps["loader"].value_counts().idxmax())


def loads(record: Record) -> pd.DataFrame:
    """The batches that workers made, in the order of time: rank, epoch, batch, start_s, seconds,
    samples, nbytes, opens, decoded (bytes of it, 0 if not known), core_s (that a core took),
    waited_s (without one that it wanted)."""
    own = record.rows[record.rows["loader"] == main_loader(record)]
    made = own[own["operation"] == "fetch"].drop_duplicates(KEY).set_index(KEY)
    seconds = _sums(own, IN_SAMPLES, "seconds").reindex(made.index, fill_value=0.0)
    counts = _sums(own, ("sample", "open", "read"), "count").reindex(made.index, fill_value=0.0)
    nbytes = _sums(own, ("open", "read", "copy", "collate", "send"), "nbytes")
    nbytes = nbytes.reindex(made.index, fill_value=0.0)
    samples = made["count"].where(made["count"] > 0, counts["sample"])
    computing = seconds[["decode", "transform", "collate"]].sum(axis=1)
    unknown = seconds[["open", "read", "lock"]].sum(axis=1)
    idle = (made["seconds"] - made["cpu_s"] - made["queued_s"].fillna(0.0)).clip(lower=0.0)
    table = pd.DataFrame(
        {
            "start_s": made["start_s"],
            "seconds": made["seconds"],
            "samples": samples.where(samples > 0, _batch_size(record) or 0),
            "nbytes": nbytes["read"].where(nbytes["read"] > 0, made["nbytes"]),
            "opens": counts["open"],
            "decoded": nbytes[["copy", "collate", "send"]].max(axis=1),
            "core_s": made["cpu_s"].fillna(computing),
            "waited_s": idle.fillna(unknown),
        }
    )
    return table[table["seconds"] > 0].reset_index().sort_values("start_s", ignore_index=True)


def steps(record: Record, made: pd.DataFrame) -> pd.DataFrame:
    """The steps, in the order of time: rank, epoch, batch, seconds, samples, core_s, queued_s, and
    a column for each of `IN_STEPS` (s; nan if not known); ``made`` are its `loads`. Raises an
    InputError if it has none, or the size of no batch is known."""
    own = record.rows[record.rows["loader"] == main_loader(record)]
    table = own[own["operation"] == "step"].drop_duplicates(KEY).set_index(KEY)
    parts = _sums(own, IN_STEPS, "seconds", np.nan).reindex(table.index)
    counts = made.set_index(KEY)["samples"].reindex(table.index)
    samples = counts.fillna(table["count"]).to_numpy(float)
    samples = np.where(samples > 0, samples, _batch_size(record) or 0)
    if not samples.any():
        rule, remedy = "must say of how many samples a batch is", "Record the loader too."
        refuse("RECORD", rule, "no batch size", remedy, record.source)
    known = table[["start_s", "seconds", "queued_s"]].assign(samples=samples, core_s=table["cpu_s"])
    whole = known.join(parts)[samples > 0].reset_index()
    return whole.sort_values("start_s", ignore_index=True)


def _sums(
    rows: pd.DataFrame, operations: Sequence[str], column: str, absent: float = 0.0
) -> pd.DataFrame:
    """A column for each operation: the sum over a batch."""
    own = rows[rows["operation"].isin(operations)].astype({"operation": str})
    table = own.groupby([*KEY, "operation"])[column].sum().unstack("operation", fill_value=absent)
    return table.reindex(columns=list(operations), fill_value=absent).astype(float)


def _batch_size(record: Record) -> int | None:
    listed, place = record.about.get("loaders") or [], main_loader(record)
    return listed[place].get("batch_size") if place < len(listed) else None


# ----------------------------------------------------------------------------------------- the laws


def bootstrapped(
    table: pd.DataFrame, of: Callable[[pd.DataFrame], Sequence[float]]
) -> list[Estimate]:
    """Numbers of a table in the order of time, and their intervals: the 5 % and 95 % quantiles over
    resampled blocks (Künsch, Annals of Statistics 17, 1989)."""
    values = of(table)
    found = [of(drawn) for drawn in _resampled(table)]
    if not found:
        return [Estimate(float(value)) for value in values]
    tail = 50 * (1 - CONFIDENCE)
    ends = np.percentile(found, [tail, 100 - tail], axis=0).T.tolist()
    return [
        Estimate(float(value), min(low, value), max(high, value))
        for value, (low, high) in zip(values, ends, strict=True)
    ]


def _resampled(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    count = min(BLOCKS, len(table))
    if count < LEAST_BLOCKS:
        return
    rng = np.random.default_rng(0)
    blocks = np.array_split(np.arange(len(table)), count)
    for _ in range(RESAMPLES):
        chosen = rng.integers(0, count, count)
        yield table.iloc[np.concatenate([blocks[place] for place in chosen])]


def step_law(table: pd.DataFrame) -> tuple[Estimate, Estimate, bool]:
    """c0 and c1 (s, s a sample) of steps, in the columns ``own_s`` and ``samples``; and whether
    both are seen, in batches of several sizes. Where they are not, c0 is 0."""
    smallest, largest = table["samples"].min(), table["samples"].max()
    several = bool(smallest < largest)

    def fitted(of: pd.DataFrame) -> Floats:
        samples, seconds = of["samples"].to_numpy(float), of["own_s"].to_numpy(float)
        if not several:
            return np.array([0.0, float(np.median(seconds / samples))])
        if (samples == samples[0]).all():  # a resample without the short batches
            return np.array([0.0, np.nan])
        return relative_fit(np.column_stack([np.ones_like(samples), samples]), seconds).value

    sized = {size: of for size, of in table.groupby("samples")}
    fixed, each = fitted(table)
    if several and not each:  # a short batch that took as long: nothing is known of the slope
        return step_law(sized[largest])
    if not several:
        return *bootstrapped(table, fitted), False
    drawn = [fitted(of) for of in _resampled(table)]
    good = np.array([of for of in drawn if np.isfinite(of).all()]).reshape(-1, 2)
    if len(good) < RESAMPLES // 2:
        return Estimate(float(fixed)), Estimate(float(each)), True
    low, high = np.percentile(good, [5, 95], axis=0)
    ends = np.minimum(low, (fixed, each)), np.maximum(high, (fixed, each))
    first, second = zip((fixed, each), *ends, strict=True)
    return Estimate(*map(float, first)), Estimate(*map(float, second)), True


@dataclass(frozen=True)
class Reading:
    """How samples are read."""

    latency: Estimate  # s of a sample, without what the server itself takes
    bandwidth: Estimate  # bytes/s that all readers share
    seen: bool  # whether readers were in each other's way; else only the lower end is known


def reads(record: Record, made: pd.DataFrame) -> pd.DataFrame:
    """What waited for bytes, in the order of time: start_s, seconds, waited_s, samples, nbytes (one
    for each sample where they are not known). Single samples where the record has them, and else
    whole batches; ``made`` are its `loads`."""
    columns = ["start_s", "seconds", "waited_s", "samples", "nbytes"]
    nbytes = made["nbytes"] if made["nbytes"].any() else made["samples"]
    made = made.assign(nbytes=nbytes.astype(float))
    rows = record.of("sample")
    rows = rows[(rows["loader"] == main_loader(record)) & (rows["sample"] >= 0)]
    rows = rows.merge(made, on=KEY, suffixes=("", "_made")).sort_values("start_s").head(MOST_READS)
    if rows.empty:
        return made[columns]
    idle = rows["seconds"] - rows["cpu_s"] - rows["queued_s"].fillna(0.0)
    idle = idle.fillna(rows["seconds"] - rows["core_s"] / rows["samples"])
    waited = idle.clip(lower=0.0)
    each = rows["nbytes_made"] / rows["samples"]
    return rows.assign(waited_s=waited, nbytes=each, samples=1.0)[columns]


def reading_law(tables: Sequence[pd.DataFrame], limit: float | None = None) -> Reading:
    """The law of reading, from the `reads` of one or several numbers of ranks, the fewest first.

    A server that is never idle while anyone waits for it transfers N bytes in the time N / B in
    which it is busy, whatever its order. It is busy while any reader waits for longer than the
    latency. The latency at which the fewest ranks and the others say the same B is that of all.
    ``limit``: the B that is known.
    """
    first, *others = tables
    most = float(first["waited_s"].sum() / first["samples"].sum())
    rate = max(float(table["nbytes"].sum()) / _busy(table, 0.0).sum() for table in tables)
    tried = np.linspace(0.0, most * (1 - 1e-6), LATENCIES)
    if limit is None and not others:
        return _unseen(first, rate)
    alone = _Blocks.of([first], tried)
    shared = None if limit is not None else _Blocks.of(others, tried)
    found = _crossing(tried, alone.rates(), limit if shared is None else shared.rates())
    if found is None:
        return _unseen(first, rate)
    rng, drawn = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        other = limit if shared is None else shared.rates(rng)
        drawn.append(_crossing(tried, alone.rates(rng), other) or (most, UNSEEN * rate))
    low, high = np.percentile(drawn, [5, 95], axis=0)
    if high[1] >= UNSEEN * rate and limit is None:  # some of what was drawn has no limit
        return _unseen(first, max(rate, float(low[1])))
    ends = np.minimum(low, found), np.maximum(high, found)
    latency, bandwidth = (Estimate(*map(float, of)) for of in zip(found, *ends, strict=True))
    return Reading(latency, bandwidth, True)


MOST_READS, LATENCIES = 20_000, 60


def _unseen(table: pd.DataFrame, rate: float) -> Reading:
    """Readers that were not in each other's way."""
    (latency,) = bootstrapped(table, lambda of: [of["waited_s"].sum() / of["samples"].sum()])
    return Reading(latency, Estimate(UNSEEN * rate, rate, UNSEEN * rate), False)


@dataclass(frozen=True)
class _Blocks:
    """Of blocks of time: bytes that were read, and s in which the server was busy, for each latency
    that is tried."""

    nbytes: Floats  # (blocks,)
    busy: Floats  # (blocks, latencies)

    @classmethod
    def of(cls, tables: Sequence[pd.DataFrame], tried: Floats) -> _Blocks:
        """Those of all tables."""
        busy = [np.column_stack([_busy(table, each) for each in tried]) for table in tables]
        nbytes = [
            np.histogram(
                table["start_s"] + table["seconds"], _edges(table), weights=table["nbytes"]
            )[0]
            for table in tables
        ]
        return cls(np.concatenate(nbytes), np.concatenate(busy))

    def rates(self, rng: np.random.Generator | None = None) -> Floats:
        """(latencies,) bytes/s of a server that is busy for so long, of blocks that are drawn."""
        count = len(self.nbytes)
        chosen = np.arange(count) if rng is None else rng.integers(0, count, count)
        busy = np.maximum(self.busy[chosen].sum(axis=0), 1e-12)
        return np.asarray(self.nbytes[chosen].sum() / busy)


def _crossing(tried: Floats, alone: Floats, other: Floats | float) -> tuple[float, float] | None:
    """The latency at which both rates are the same, and that rate; None if they never are."""
    ahead = np.log(alone) - np.log(other)
    place = int(np.argmax(ahead >= 0))
    if ahead[place] < 0:
        return None
    if place == 0:
        return 0.0, float(np.broadcast_to(other, tried.shape)[0])
    part = -ahead[place - 1] / (ahead[place] - ahead[place - 1])
    log_rate = np.log(np.broadcast_to(other, tried.shape))
    value = np.interp(part, [0, 1], log_rate[place - 1 : place + 1])
    return float(tried[place - 1] + part * (tried[place] - tried[place - 1])), float(np.exp(value))


def _edges(table: pd.DataFrame) -> Floats:
    last = float((table["start_s"] + table["seconds"]).max())
    return np.linspace(float(table["start_s"].min()), last, BLOCKS + 1)


def _busy(table: pd.DataFrame, latency: float) -> Floats:
    """(`BLOCKS`,) s in which any reader waits for more than ``latency`` a sample. Single samples
    wait for it first, and for bytes next; batches now and then all the time that they take, each by
    itself."""
    start = table["start_s"].to_numpy(float)
    waited = table["waited_s"].to_numpy(float)
    own = np.maximum(waited - latency * table["samples"].to_numpy(float), 0.0)
    if (table["samples"] == 1).all():
        begin, end, share = start + waited - own, start + waited, np.ones(len(table))
    else:
        seconds = table["seconds"].to_numpy(float)
        begin, end, share = start, start + seconds, own / seconds
    idle = np.log1p(-np.minimum(share, 1 - 1e-9))  # of the chance that it is not there
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([idle, -idle])[order])[:-1]
    busy = np.concatenate([[0.0], np.cumsum(-np.expm1(level) * np.diff(times[order]))])
    return np.diff(np.interp(_edges(table), times[order], busy))


def spread(ratio: pd.Series[float]) -> float:
    """Standard deviation over mean, from the middle two thirds, so that outliers do not count."""
    low, middle, high = np.quantile(ratio, [0.1587, 0.5, 0.8413])
    return float((high - low) / 2 / middle) if middle > 0 else 0.0
