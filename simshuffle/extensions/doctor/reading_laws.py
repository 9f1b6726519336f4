"""Fit the law by which workers read samples from a server, to the records of a
training.

A sample waits for a latency, and then for its bytes: B bytes/s are shared by all
readers that wait for theirs at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from simshuffle.extensions.doctor.laws import (
    BLOCKS,
    KEY,
    RESAMPLES,
    ValueWithInterval,
    bootstrap_intervals,
    main_loader,
)
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.spec.arrays import Floats

UNSEEN = 100.0
"""Times the highest rate that was seen: the limit taken where none was reached."""
MAX_READS = 20_000
"""Single samples that are looked at, the first ones of the record."""
ALMOST_ALL = 0.95
"""Share of all samples that must be recorded one by one."""
LATENCIES = 60
"""Latencies that are tried."""
MIN_BUSY_SHARE = 1e-3
"""Share of the workers' time below which waiting says nothing of a rate."""
SAME = 0.03
"""Relative difference below which rates are the same."""
CLEARLY = 3.0
"""Times `SAME` from which rates clearly differ."""


@dataclass(frozen=True)
class ReadingLaw:
    """The law of reading: a sample waits for its latency, and then gets its bytes.

    Where no bytes are known, rates are in samples/s.
    """

    latency: ValueWithInterval  # s of a sample
    own_rate: ValueWithInterval  # bytes/s that a reader gets at most
    bandwidth: ValueWithInterval  # bytes/s that all readers share
    binds: bool = True  # whether the bandwidth binds in the record; else only its low end is known
    is_recorded: bool = True  # whether any fetch was recorded; else nothing is measured

    @property
    def rate(self) -> float:
        """Bytes/s that a reader gets where no other reads."""
        return min(self.own_rate.value, self.bandwidth.value)


def sample_reads(record: Record, loads: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each wait for bytes, in the order of time.

    The columns are start_s, seconds, waited_s (the part of ``seconds`` that went into
    waiting), samples (of the row) and nbytes (the number of samples if bytes are not
    known). The rows are the first `MAX_READS` single samples where the record has at
    least `ALMOST_ALL` of them, and whole batches otherwise. A sample computes for an
    equal share of its batch's computing, waits for the rest, and has an equal share of
    the batch's bytes where its own are not known. Samples of other loaders than the
    main one, and batches of 0 s, are left out; no row is left without fetches.

    Args:
        record: of a training.
        loads: its `batch_loads`.
    """
    columns = ["start_s", "seconds", "waited_s", "samples", "nbytes"]
    nbytes = loads["nbytes"] if loads["nbytes"].any() else loads["samples"]
    loads = loads.assign(nbytes=nbytes.astype(float))[loads["seconds"] > 0]
    samples = record.rows_of("sample")
    samples = samples[samples["loader"] == main_loader(record)]
    rows = samples.merge(loads, on=KEY, suffixes=("", "_of_batch"))
    if (
        rows["count"].sum() < ALMOST_ALL * loads["samples"].sum()
    ):  # maybe only the slowest ones
        return loads[columns]
    rows = rows.sort_values("start_s").head(MAX_READS)
    # a row gets its share of its batch's computing, and of its bytes
    share = rows["count"] / rows["samples"]
    busy_s = (rows["seconds_of_batch"] - rows["waited_s"]) * share
    waited_s = (rows["seconds"] - busy_s).clip(lower=0.0)
    nbytes = rows["nbytes"].where(rows["nbytes"] > 0, rows["nbytes_of_batch"] * share)
    return rows.assign(waited_s=waited_s, nbytes=nbytes, samples=rows["count"])[columns]


def fit_reading_law(
    tables: Sequence[pd.DataFrame], known_bandwidth: float | None = None
) -> ReadingLaw:
    """Fit the law of reading to records of one or several numbers of ranks.

    A server that is never idle while anyone waits for it transfers N bytes in the time
    N / B in which it is busy, whatever its order. It is busy while any reader waits for
    longer than the latency. The least latency at which the fewest ranks and the others
    say the same B is that of all: they may wait longer where they meet at the server,
    or, where it serves one after the other, never meet. Readers that do not share it
    say the same only where nobody would meet by chance either, which says nothing.

    Where no limit shows, as with one number of ranks and no known bandwidth, ``binds``
    is False, the bandwidth is `UNSEEN` times the highest rate, and the latency is all
    that a sample waits. A known bandwidth always binds. Intervals are the same in every
    call.

    Args:
        tables: `sample_reads` for each number of ranks, the fewest first, none empty.
        known_bandwidth: B, bytes/s, if it was measured otherwise; None if not known.
    """
    fewest, *larger = tables
    max_latency = float(fewest["waited_s"].sum() / fewest["samples"].sum())
    max_rate = _highest_rate(tables)
    latencies = np.linspace(0.0, max_latency * (1 - 1e-6), LATENCIES)
    if known_bandwidth is None and (not larger or not max_latency):
        return _law_without_limit(fewest, max_rate)
    fewest_blocks = _TimeBlocks.from_tables([fewest], latencies)
    larger_blocks = None
    if known_bandwidth is None:
        larger_blocks = _TimeBlocks.from_tables(larger, latencies)

    def find_law(rng: np.random.Generator | None = None) -> tuple[float, float] | None:
        """Return latency and bandwidth of the record, or with ``rng`` of a resample;
        None if the rates never agree.
        """
        if larger_blocks is None:
            shared_rates = np.full(len(latencies), known_bandwidth)
        else:
            shared_rates = larger_blocks.rates(rng)
        return _find_latency(latencies, fewest_blocks.rates(rng), shared_rates)

    law = find_law()
    if law is None and known_bandwidth is not None:
        bandwidth = ValueWithInterval(known_bandwidth)
        return ReadingLaw(ValueWithInterval(max_latency), bandwidth, bandwidth)
    if law is None or (
        known_bandwidth is None
        and _share_met_by_chance(larger, law[0]) < CLEARLY * SAME
    ):
        return _law_without_limit(fewest, max_rate)

    # (RESAMPLES, 2): latency and bandwidth
    rng = np.random.default_rng(0)
    resampled = [
        find_law(rng) or (max_latency, UNSEEN * max_rate) for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(resampled, [5, 95], axis=0)
    if (
        high[1] >= UNSEEN * max_rate and known_bandwidth is None
    ):  # some resamples have no limit
        return _law_without_limit(fewest, max(max_rate, float(low[1])))
    low = np.minimum(low, law)
    high = np.maximum(high, law)
    latency, bandwidth = (
        ValueWithInterval(float(law[index]), float(low[index]), float(high[index]))
        for index in range(2)
    )
    return _split_latency(tables, latency, bandwidth)


def _highest_rate(tables: Sequence[pd.DataFrame]) -> float:
    """Return the highest of the tables' mean rates while any reader waited, bytes/s.

    Waits count as at least `MIN_BUSY_SHARE` of the readers' time.
    """
    rates: list[float] = []
    for table in tables:
        min_busy_s = MIN_BUSY_SHARE * float(table["seconds"].sum())
        busy_s = max(_busy_seconds(table, 0.0).sum(), min_busy_s)
        rates.append(float(table["nbytes"].sum()) / busy_s)
    return max(rates)


def _split_latency(
    tables: Sequence[pd.DataFrame],
    latency: ValueWithInterval,
    bandwidth: ValueWithInterval,
) -> ReadingLaw:
    """Return the law of a simulated batch, which waits for its latencies first and gets
    its bytes next.

    Whether k readers meet at the server while none is late, always or never, is not in
    its rate, but in what they wait, A_k: A_1 = a + n / c and A_k = a + n k / B, with a
    from 0, where they never meet, to the latency of the server, where they always do.
    a, the latency of the law, is the mean over the tables of more ranks; with one table
    it is the latency of the server. c, the own rate, is from the fewest ranks.

    Args:
        tables: `sample_reads` for each number of ranks, the fewest first.
        latency: of the server, s.
        bandwidth: B of the server, bytes/s.
    """
    fewest, *larger = tables
    # a of each table with more ranks: A_k - n k / B
    latencies = [
        (
            table["waited_s"].sum()
            - _mean_readers(table) * table["nbytes"].sum() / bandwidth.value
        )
        / table["samples"].sum()
        for table in larger
    ]
    mean_latency = latency.value
    if latencies:
        mean_latency = np.clip(latencies, 0.0, latency.value).mean()
    ends = [
        max(mean_latency + end - latency.value, 0.0)
        for end in (latency.low, latency.high)
    ]
    values = [float(value) for value in (mean_latency, *ends)]

    # c = n / (A_1 - a), for the value and both ends of a
    waited_s = fewest["waited_s"].sum()
    nbytes = fewest["nbytes"].sum()
    samples = fewest["samples"].sum()
    own_rates = [
        float(nbytes / max(waited_s - value * samples, 1e-12)) for value in values
    ]
    return ReadingLaw(
        ValueWithInterval(*values), ValueWithInterval(*own_rates), bandwidth
    )


def _mean_readers(table: pd.DataFrame) -> float:
    """Return the mean number of readers at work at once, over the time in which any is."""
    always_waiting = table.assign(waited_s=table["seconds"])
    return float(table["seconds"].sum() / _busy_seconds(always_waiting, 0.0).sum())


def _law_without_limit(table: pd.DataFrame, max_rate: float) -> ReadingLaw:
    """Return the law of readers that were not in each other's way: a sample waits for
    its mean wait alone, and ``binds`` is False.

    The own rate and the bandwidth are `UNSEEN` times ``max_rate``.

    Args:
        table: `sample_reads` of the fewest ranks.
        max_rate: bytes/s that readers reached; the bandwidth is at least that.
    """

    def mean_wait(rows: pd.DataFrame) -> list[float]:
        """Return the mean s that a sample waits."""
        return [rows["waited_s"].sum() / rows["samples"].sum()]

    (latency,) = bootstrap_intervals(table, mean_wait)
    bandwidth = ValueWithInterval(UNSEEN * max_rate, max_rate, UNSEEN * max_rate)
    return ReadingLaw(
        latency, ValueWithInterval(bandwidth.value), bandwidth, binds=False
    )


@dataclass(frozen=True)
class _TimeBlocks:
    """Blocks of time of records, from which the rate of a server is resampled."""

    nbytes: Floats  # (blocks,) bytes of reads that ended in the block
    busy_s: Floats  # (blocks, latencies) s in which a server of that latency was busy

    @classmethod
    def from_tables(
        cls, tables: Sequence[pd.DataFrame], latencies: Floats
    ) -> _TimeBlocks:
        """Return the blocks of all tables of `sample_reads`.

        Args:
            tables: one for each number of ranks.
            latencies: (latencies,) s that are tried.
        """
        busy_s = []
        nbytes = []
        for table in tables:
            columns = [_busy_seconds(table, latency) for latency in latencies]
            busy_s.append(np.column_stack(columns))
            end = table["start_s"] + table["seconds"]
            nbytes.append(
                np.histogram(end, _block_edges(table), weights=table["nbytes"])[0]
            )
        return cls(np.concatenate(nbytes), np.concatenate(busy_s))

    def rates(self, rng: np.random.Generator | None = None) -> Floats:
        """Return the bytes/s of a server of each latency while it is busy,
        (latencies,).

        Args:
            rng: draws the blocks with replacement; all count once if there is none.
        """
        count = len(self.nbytes)
        blocks = np.arange(count) if rng is None else rng.integers(0, count, count)
        busy_s = np.maximum(self.busy_s[blocks].sum(axis=0), 1e-12)
        return np.asarray(self.nbytes[blocks].sum() / busy_s)


def _find_latency(
    latencies: Floats, own_rates: Floats, shared_rates: Floats
) -> tuple[float, float] | None:
    """Return the least latency, s, at which two rates are equal, and the shared rate
    there.

    None if they never are. The own rate rises with the latency, relative to the shared
    one, and is below it at first. Where the rates stay equal from then on, their
    difference ends in noise: the line on which it shrinks is followed to 0.

    Args:
        latencies: (latencies,) s, ascending.
        own_rates: (latencies,) bytes/s that the fewest ranks say the server has.
        shared_rates: (latencies,) bytes/s that the larger numbers of ranks say.
    """
    log_ratio = np.log(own_rates) - np.log(shared_rates)

    def latency_at(level: float) -> float | None:
        """Return the least latency, s, at which the logarithm of own over shared rate
        rises to a level; 0 if it starts there or above, None if it stays below.
        """
        index = int(np.argmax(log_ratio >= level))
        if index == 0:
            return 0.0 if log_ratio[0] >= level else None
        around = slice(index - 1, index + 1)
        return float(np.interp(level, log_ratio[around], latencies[around]))

    nearly_same = latency_at(-SAME)
    if nearly_same is None:
        return None
    clearly_below = latency_at(-CLEARLY * SAME) or 0.0
    exactly_same = latency_at(0.0)
    latency = nearly_same + (nearly_same - clearly_below) / (CLEARLY - 1)
    latency = min(latency, latencies[-1] if exactly_same is None else exactly_same)
    return float(latency), float(
        np.exp(np.interp(latency, latencies, np.log(shared_rates)))
    )


def _share_met_by_chance(tables: Sequence[pd.DataFrame], latency: float) -> float:
    """Return the share of the time of transfers in which readers would meet others by
    chance, mean over the tables.

    k readers that transfer for a share p of the time each have the server busy for 1 -
    (1 - p)^k.

    Args:
        tables: `sample_reads` for each larger number of ranks.
        latency: of the server, s.
    """
    shares = []
    for table in tables:
        start = table["start_s"].to_numpy(float)
        end = table["start_s"] + table["seconds"]
        moments = np.concatenate([start, end])
        # +1 where a reader begins, -1 where one ends: the sum is how many are at work
        changes = np.repeat([1, -1], len(table))[np.argsort(moments, kind="stable")]
        num_readers = np.cumsum(changes).max()
        duration = float(end.max() - start.min())
        transfer_s = (
            (table["waited_s"] - latency * table["samples"]).clip(lower=0.0).sum()
        )
        transferring = transfer_s / duration  # mean readers that transfer at once
        share_of_reader = min(transferring / num_readers, 1.0)
        busy_share = 1 - (1 - share_of_reader) ** num_readers
        shares.append(1 - busy_share / max(transferring, 1e-12))
    return float(np.mean(shares))


def _block_edges(table: pd.DataFrame) -> Floats:
    """Return the edges of `BLOCKS` equal blocks of time, (BLOCKS + 1,) s."""
    end = float((table["start_s"] + table["seconds"]).max())
    return np.linspace(float(table["start_s"].min()), end, BLOCKS + 1)


def _busy_seconds(table: pd.DataFrame, latency: float) -> Floats:
    """Return the s of each block in which any reader waits for bytes, (BLOCKS,).

    A single sample waits for its latency first, and for bytes next. A batch waits for
    bytes now and then during all the time that it takes, independently of the others.

    Args:
        table: `sample_reads`.
        latency: of the server, s a sample; what a reader waits longer is for bytes.
    """
    start = table["start_s"].to_numpy(float)
    waited_s = table["waited_s"].to_numpy(float)
    transfer_s = np.maximum(waited_s - latency * table["samples"].to_numpy(float), 0.0)
    if (table["samples"] <= 1).all():
        begin = start + waited_s - transfer_s
        end = start + waited_s
        share = np.ones(len(table))
    else:
        seconds = table["seconds"].to_numpy(float)
        begin = start
        end = start + seconds
        share = transfer_s / seconds

    # the logarithm of the chance that nobody waits for bytes changes at each begin and end
    log_absence = np.log1p(-np.minimum(share, 1 - 1e-9))
    moments = np.concatenate([begin, end])
    order = np.argsort(moments, kind="stable")
    level = np.cumsum(np.concatenate([log_absence, -log_absence])[order])[:-1]
    busy_until = np.cumsum(-np.expm1(level) * np.diff(moments[order]))
    busy_until = np.concatenate([[0.0], busy_until])
    return np.diff(np.interp(_block_edges(table), moments[order], busy_until))
