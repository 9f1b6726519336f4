"""What a record says of a training, as laws: steps over their batch, what a batch takes of a core,
and what readers of one server share.

A step of b samples takes c0 + c1 b. A sample takes its time of a core, waits for a latency, and for
its bytes: B bytes/s are shared by all who wait for theirs at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.calibrate.fit import relative_fit
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.spec.arrays import Floats, Ints

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
class ValueWithInterval:
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
    return int(steps["loader"].mode().iloc[0])


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
    sending = _sums(own, ("send",), "seconds")["send"].reindex(made.index, fill_value=0.0)
    idle = (made["seconds"] - made["cpu_s"] - made["queued_s"].fillna(0.0)).clip(lower=0.0)
    table = pd.DataFrame(
        {
            "start_s": made["start_s"],
            "seconds": made["seconds"],
            "samples": samples.where(samples > 0, settings(record).get("batch_size") or 0),
            "nbytes": nbytes["read"].where(nbytes["read"] > 0, made["nbytes"]),
            "opens": counts["open"],
            "decoded": nbytes[["copy", "collate", "send"]].max(axis=1),
            "core_s": made["cpu_s"].fillna(computing) + sending,
            "waited_s": idle.fillna(unknown),
        }
    )
    return table.reset_index().sort_values("start_s", ignore_index=True)


def steps(record: Record, made: pd.DataFrame) -> pd.DataFrame:
    """The steps, in the order of time: rank, epoch, batch, seconds, samples, core_s, queued_s, and
    a column for each of `IN_STEPS` (s; nan if not known); ``made`` are its `loads`. Raises an
    InputError if it has none, or the size of no batch is known."""
    own = record.rows[record.rows["loader"] == main_loader(record)]
    table = own[own["operation"] == "step"].drop_duplicates(KEY).set_index(KEY)
    parts = _of_steps(record, table.reset_index())
    counts = made.set_index(KEY)["samples"].reindex(table.index)
    samples = counts.fillna(table["count"]).to_numpy(float)
    samples = np.where(samples > 0, samples, settings(record).get("batch_size") or 0)
    if not samples.any():
        rule, remedy = "must say of how many samples a batch is", "Record the loader too."
        refuse("RECORD", rule, "no batch size", remedy, record.source)
    known = table[["start_s", "seconds", "queued_s"]].assign(samples=samples, core_s=table["cpu_s"])
    whole = known.join(parts)[samples > 0].reset_index()
    return whole.sort_values("start_s", ignore_index=True)


def _of_steps(record: Record, table: pd.DataFrame) -> pd.DataFrame:
    """What `IN_STEPS` took in each step, by `KEY`: rows know no batch, but when they began."""
    starts = table[["start_s", *KEY]].sort_values("start_s").astype({"rank": "int32"})
    rows = record.of(*IN_STEPS)[["start_s", "rank", "operation", "seconds"]]
    placed = pd.merge_asof(rows, starts, on="start_s", by="rank").dropna()
    parts = _sums(placed, IN_STEPS, "seconds")
    missing = [name for name in IN_STEPS if name not in set(rows["operation"])]
    return parts.reindex(pd.MultiIndex.from_frame(table[KEY]), fill_value=0.0).assign(
        **dict.fromkeys(missing, np.nan)
    )


def _sums(rows: pd.DataFrame, operations: Sequence[str], column: str) -> pd.DataFrame:
    """A column for each operation: the sum over a batch, by `KEY`."""
    own = rows[rows["operation"].isin(operations)].astype({"operation": str})
    table = own.groupby([*KEY, "operation"])[column].sum().unstack("operation", fill_value=0)
    return table.reindex(columns=list(operations), fill_value=0).astype(float)


def settings(record: Record) -> Mapping[str, Any]:
    """What is known of the `main_loader`."""
    listed, place = record.about.get("loaders") or [], main_loader(record)
    return listed[place] if 0 <= place < len(listed) else {}


# ----------------------------------------------------------------------------------------- the laws


def bootstrapped(
    table: pd.DataFrame, of: Callable[[pd.DataFrame], Sequence[float]]
) -> list[ValueWithInterval]:
    """Numbers of a table in the order of time, and their intervals: the 5 % and 95 % quantiles over
    resampled blocks (Künsch, Annals of Statistics 17, 1989)."""
    values = of(table)
    found = [of(drawn) for drawn in _resampled(table)]
    if not found:
        return [ValueWithInterval(float(value)) for value in values]
    tail = 50 * (1 - CONFIDENCE)
    ends = np.percentile(found, [tail, 100 - tail], axis=0).T.tolist()
    return [
        ValueWithInterval(float(value), min(low, value), max(high, value))
        for value, (low, high) in zip(values, ends, strict=True)
    ]


def _resampled(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Of batches of each size as many as there are; all where they are too few."""
    strata = [np.flatnonzero(table["samples"] == size) for size in table["samples"].unique()]
    if max(map(len, strata)) < LEAST_BLOCKS:
        return
    rng = np.random.default_rng(0)
    for _ in range(RESAMPLES):
        drawn = [each if len(each) < LEAST_BLOCKS else _drawn(each, rng) for each in strata]
        yield table.iloc[np.concatenate(drawn)]


def _drawn(places: Ints, rng: np.random.Generator) -> Ints:
    blocks = np.array_split(places, min(BLOCKS, len(places)))
    return np.concatenate([blocks[number] for number in rng.integers(0, len(blocks), len(blocks))])


def step_law(table: pd.DataFrame) -> tuple[ValueWithInterval, ValueWithInterval, bool]:
    """c0 (s) and c1 (s a sample) of steps, in the columns ``own_s`` and ``samples``; and whether
    both are seen, in batches of several sizes. Where they are not, c0 is 0."""

    def fitted(of: pd.DataFrame) -> list[float]:
        samples, seconds = of["samples"].to_numpy(float), of["own_s"].to_numpy(float)
        law = np.column_stack([np.ones_like(samples), samples])
        return [float(each) for each in relative_fit(law, seconds).value]

    if table["samples"].nunique() > 1 and fitted(table)[1] > 0:
        fixed, each = bootstrapped(table, fitted)
        return fixed, each, True
    whole = table[table["samples"] == table["samples"].max()]
    (each,) = bootstrapped(whole, lambda of: [float((of["own_s"] / of["samples"]).median())])
    return ValueWithInterval(0.0, 0.0, 0.0), each, False


@dataclass(frozen=True)
class ReadingLaw:
    """How samples are read: each waits for its latency, and then gets its bytes."""

    latency: ValueWithInterval  # s of a sample
    own_rate: ValueWithInterval  # bytes/s that a reader gets at most
    bandwidth: ValueWithInterval  # bytes/s that all readers share
    seen: bool = True  # whether it binds in the record; else only its lower end is known


def reads(record: Record, made: pd.DataFrame) -> pd.DataFrame:
    """What waited for bytes, in the order of time: start_s, seconds, waited_s, samples, nbytes (one
    for each sample where they are not known). Single samples where the record has them, and else
    whole batches; ``made`` are its `loads`."""
    columns = ["start_s", "seconds", "waited_s", "samples", "nbytes"]
    nbytes = made["nbytes"] if made["nbytes"].any() else made["samples"]
    made = made.assign(nbytes=nbytes.astype(float))[made["seconds"] > 0]
    rows = record.of("sample")
    rows = rows[rows["loader"] == main_loader(record)].merge(made, on=KEY, suffixes=("", "_made"))
    if rows["count"].sum() < ALMOST_ALL * made["samples"].sum():  # maybe only the slowest ones
        return made[columns]
    rows = rows.sort_values("start_s").head(MOST_READS)
    each = rows["count"] / rows["samples"]
    busy = (rows["seconds_made"] - rows["waited_s"]) * each
    waited = (rows["seconds"] - busy).clip(lower=0.0)
    known = rows["nbytes"].where(rows["nbytes"] > 0, rows["nbytes_made"] * each)
    return rows.assign(waited_s=waited, nbytes=known, samples=rows["count"])[columns]


def reading_law(tables: Sequence[pd.DataFrame], limit: float | None = None) -> ReadingLaw:
    """The law of reading, from the `reads` of one or several numbers of ranks, the fewest first.

    A server that is never idle while anyone waits for it transfers N bytes in the time N / B in
    which it is busy, whatever its order. It is busy while any reader waits for longer than the
    latency. The least latency at which the fewest ranks and the others say the same B is that of
    all: they may wait longer where they meet at the server, or, where it serves one after the
    other, never meet. Readers that do not share it say the same only where nobody would meet by
    chance either, which says nothing. ``limit``: the B that is known.
    """
    first, *others = tables
    most = float(first["waited_s"].sum() / first["samples"].sum())
    rate = max(
        float(table["nbytes"].sum())
        / max(_busy(table, 0.0).sum(), NOTHING * float(table["seconds"].sum()))
        for table in tables
    )
    tried = np.linspace(0.0, most * (1 - 1e-6), LATENCIES)
    if limit is None and (not others or not most):
        return _unseen(first, rate)
    alone = _Blocks.of([first], tried)
    shared = _Blocks.of(others, tried) if limit is None else None

    def found(rng: np.random.Generator | None = None) -> tuple[float, float] | None:
        other = np.full(len(tried), limit) if shared is None else shared.rates(rng)
        return _crossing(tried, alone.rates(rng), other)

    value = found()
    if value is None and limit is not None:
        return ReadingLaw(
            ValueWithInterval(most), ValueWithInterval(limit), ValueWithInterval(limit)
        )
    if value is None or (limit is None and _met_by_chance(others, value[0]) < CLEARLY * SAME):
        return _unseen(first, rate)
    rng = np.random.default_rng(0)
    drawn = [found(rng) or (most, UNSEEN * rate) for _ in range(RESAMPLES)]
    low, high = np.percentile(drawn, [5, 95], axis=0)
    if high[1] >= UNSEEN * rate and limit is None:  # some of what was drawn has no limit
        return _unseen(first, max(rate, float(low[1])))
    ends = np.minimum(low, value), np.maximum(high, value)
    latency, bandwidth = (
        ValueWithInterval(*map(float, of)) for of in zip(value, *ends, strict=True)
    )
    return _in_the_way([first, *others], latency, bandwidth)


def _in_the_way(
    tables: Sequence[pd.DataFrame], latency: ValueWithInterval, bandwidth: ValueWithInterval
) -> ReadingLaw:
    """The same, as a batch is simulated: it waits for its latencies first, and gets its bytes next.

    Whether k readers meet at the server while none is late, always or never, is not in its rate,
    but in what they wait, A_k: A_1 = a + n / c and A_k = a + n k / B, with a from 0, where they
    never meet, to the latency of the server, where they always do.
    """
    first, *others = tables
    alone, nbytes = first["waited_s"].sum(), first["nbytes"].sum()
    found = [
        (of["waited_s"].sum() - _readers(of) * of["nbytes"].sum() / bandwidth.value)
        / of["samples"].sum()
        for of in others
    ]
    waits = np.clip(found, 0.0, latency.value).mean() if found else latency.value
    ends = [max(waits + end - latency.value, 0.0) for end in (latency.low, latency.high)]
    each = [float(of) for of in (waits, *ends)]
    own = [float(nbytes / max(alone - of * first["samples"].sum(), 1e-12)) for of in each]
    return ReadingLaw(ValueWithInterval(*each), ValueWithInterval(*own), bandwidth)


def _readers(table: pd.DataFrame) -> float:
    """Readers that are at work at once, in the mean over the time in which any is."""
    everything = table.assign(waited_s=table["seconds"])
    return float(table["seconds"].sum() / _busy(everything, 0.0).sum())


MOST_READS, ALMOST_ALL, LATENCIES, NOTHING = 20_000, 0.95, 60, 1e-3
"""Samples that are looked at; share of all that must be recorded one by one; latencies that are
tried; share of the time of workers below which waiting says nothing of a rate."""
SAME, CLEARLY = 0.03, 3.0
"""Rates that differ by less than this share are the same, and clearly not by so many times as
much."""


def _unseen(table: pd.DataFrame, rate: float) -> ReadingLaw:
    """Readers that were not in each other's way."""
    (latency,) = bootstrapped(table, lambda of: [of["waited_s"].sum() / of["samples"].sum()])
    limit = ValueWithInterval(UNSEEN * rate, rate, UNSEEN * rate)
    return ReadingLaw(latency, ValueWithInterval(limit.value), limit, seen=False)


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


def _crossing(tried: Floats, alone: Floats, other: Floats) -> tuple[float, float] | None:
    """The least latency at which both rates are the same, and the ``other``; None if they never
    are. Where they stay the same from then on, their difference ends in noise: so the line on which
    it falls is followed to 0."""
    ahead = np.log(alone) - np.log(other)

    def reached(level: float) -> float | None:
        place = int(np.argmax(ahead >= level))
        if place == 0:
            return 0.0 if ahead[0] >= level else None
        around = slice(place - 1, place + 1)
        return float(np.interp(level, ahead[around], tried[around]))

    same = reached(-SAME)
    if same is None:
        return None
    before, exactly = reached(-CLEARLY * SAME) or 0.0, reached(0.0)
    latency = same + (same - before) / (CLEARLY - 1)
    latency = min(latency, tried[-1] if exactly is None else exactly)
    return float(latency), float(np.exp(np.interp(latency, tried, np.log(other))))


def _met_by_chance(tables: Sequence[pd.DataFrame], latency: float) -> float:
    """Share of the time of transfers in which readers would find others at it by chance: k of them
    that transfer for a share p each have the server busy for 1 - (1 - p)^k."""
    met = []
    for table in tables:
        start, end = table["start_s"].to_numpy(float), (table["start_s"] + table["seconds"])
        times = np.concatenate([start, end])
        level = np.cumsum(np.repeat([1, -1], len(table))[np.argsort(times, kind="stable")])
        readers, lasting = level.max(), float(end.max() - start.min())
        own = (table["waited_s"] - latency * table["samples"]).clip(lower=0.0).sum() / lasting
        met.append(1 - (1 - (1 - min(own / readers, 1.0)) ** readers) / max(own, 1e-12))
    return float(np.mean(met))


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
    if (table["samples"] <= 1).all():
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


def deviation(made: pd.DataFrame, mean: float) -> float:
    """Standard deviation of the bytes of a sample: those of batches vary by the square root of
    their samples less."""
    samples, nbytes = made["samples"].to_numpy(float), made["nbytes"].to_numpy(float)
    if not nbytes.any():
        return 0.0
    return float(np.sqrt(np.mean((nbytes / samples - mean) ** 2 * samples)))
