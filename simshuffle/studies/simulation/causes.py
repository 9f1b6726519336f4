"""What the time of an epoch goes into, what makes one run longer than another, and which resource
or host is waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from simshuffle.report import report
from simshuffle.report.faults import MAX_NAMED_FAULTS, describe_fault
from simshuffle.report.links import links_of_whole_epochs
from simshuffle.studies.simulation.contest import Row, Scale, is_undecided, ties
from simshuffle.studies.simulation.tables import label_column
from simshuffle.study.long_table import get_long
from simshuffle.study.study import Result

NOTABLE = 0.02
"""Share of an epoch from which on a difference is explained rather than the epoch itself."""
SHOWN = 0.1
"""Share of an epoch from which on waiting is said beside the largest part."""
BINDS = 0.8
"""A resource that is busy for this share of an epoch binds it."""
WAITING = "waiting"
"""In the place of a label: waiting for ranks that compute longer, which no resource bounds."""
DOES = {
    "I/O": "reading",
    "FW+BW": "the forward and backward pass",
    "IMPT": "measuring importance",
    "GE+WU": "summing gradients and updating weights",
    "EXCHANGE": "exchanging samples",
    report.SAVING: "saving checkpoints",
    report.LOST: "doing lost work again, and restarting",
    WAITING: "waiting for the slowest rank of each step",
}
"""What a rank does under each label."""
SHORT = DOES | {
    "FW+BW": "computing",
    "GE+WU": "summing gradients",
    WAITING: "waiting for slow ranks",
}
"""The same in fewer words."""
RESOURCES = {
    "pfs.open": "file opens of the file system",
    "pfs.bandwidth": "the bandwidth of the file system",
    "pfs.write": "the bandwidth of the file system for writes",
    "pfs.client": "the file system's client of a host",
    "cache_tier.open": "file opens of the cache tier",
    "cache_tier.bandwidth": "the bandwidth of the cache tier",
    "cache_tier.host": "what a host gets from the cache tier",
    "ssd": "the SSD",
    "cores": "the cores of a host",
    "memory": "the memory of a host",
    "nvlink": "NVLink",
    "pcie_in": "PCIe to the GPUs",
    "pcie_out": "PCIe from the GPUs",
    "scale_up_in": "the scale-up network",
    "scale_up_out": "the scale-up network",
}
"""Kinds of links in words; cables are called by their ends."""
FOR_READING = ("pfs.", "object_store.", "cache_tier.", "ssd", "cores", "memory", "storage>")
"""How kinds of links begin that only reading uses, or reading most of all."""
Seconds = Mapping[str, float]


@dataclass(frozen=True)
class WaitedFor:
    """A host that the other ranks of a run wait for."""

    host: str
    label: str  # that its ranks spend longer in
    seconds: float  # of an epoch, mean over ranks
    faults: Sequence[Mapping[str, Any]] = ()  # of the host, rows as of ``faults`` in ``meta.json``

    def describe(self) -> str:
        """Whom ranks wait for, and what is wrong there."""
        if not self.faults:
            return f"waiting for {self.host} ({DOES[self.label]})"
        each = [describe_fault(fault) for fault in self.faults[:MAX_NAMED_FAULTS]]
        return f"waiting for {self.host}, by the fault of {'; '.join(each)}"


@dataclass(frozen=True)
class Causes:
    """What the epochs of runs go into."""

    # seconds by run, and by label; waiting is with what it is for, but for `WAITING` and hosts
    seconds: Mapping[str, Seconds]
    hosts: Mapping[str, Sequence[WaitedFor]] = field(default_factory=dict)  # by run
    # columns run, tier, and mean: how busy the busiest link of each kind is; None if unknown
    busiest: pd.DataFrame | None = None

    def reason(self, run: str, first: str) -> str:
        """Return what makes a run longer than the fastest, in two or three words; '' if unknown."""
        gaps = self._gaps(run, first)
        if not gaps or max(gaps.values()) <= 0:
            return ""
        label = max(gaps, key=lambda name: gaps[name])
        return SHORT.get(label, f"waiting for {label}")

    def why(self, scales: Sequence[Scale]) -> Iterator[str]:
        """Yield a line on what the slowest run of the largest scale takes longer for, or, where
        none takes notably longer, on what the epoch of the fastest one goes into."""
        for scale in reversed(scales):
            slow, first = _slowest(scale)
            if slow["epoch_s"] > (1 + NOTABLE) * first["epoch_s"] and not _alike(slow, first):
                yield from self._difference(slow, first, scale)
                return
        if scales:
            rows = scales[-1].rows
            row = rows.sort_values("epoch_s", kind="stable").iloc[0].to_dict()
            yield from self._shares(row, len(rows) > 1)

    def _gaps(self, run: str, first: str) -> dict[str, float]:
        own, other = self.seconds.get(run, {}), self.seconds.get(first, {})
        return {label: own.get(label, 0.0) - other.get(label, 0.0) for label in {**own, **other}}

    def _difference(self, slow: Row, first: Row, scale: Scale) -> Iterator[str]:
        gaps = self._gaps(slow["run"], first["run"])
        if not gaps:
            return
        label = max(gaps, key=lambda name: gaps[name])
        share = gaps[label] / max(sum(gaps.values()), 1e-12)
        part = "" if share > 0.99 else f"for {100 * share:.0f} % "
        where = f" at {scale.across} {slow['x_text']}" if scale.across else ""
        yield (
            f"Why: what {slow['name']} takes longer on {scale.title}{where} is"
            f" {part}{self._describe(slow['run'], label)}{self._bound(slow['run'], label)}."
        )

    def _shares(self, row: Row, is_named: bool) -> Iterator[str]:
        parts = self.seconds.get(row["run"], {})
        whole = sum(parts.values())
        if not whole:
            return
        order = sorted(parts, key=lambda name: -parts[name])
        whose = f"an epoch of {row['name']}" if is_named else "an epoch"
        said = [
            f"{100 * parts[label] / whole:.0f} % {'' if place else f'of {whose} is '}"
            f"{self._describe(row['run'], label)}"
            for place, label in enumerate(order)
            if not place or (self._is_waiting(label) and parts[label] >= SHOWN * whole)
        ]
        yield f"Why: {' and '.join(said)}{self._bound(row['run'], order[0])}."

    @staticmethod
    def _is_waiting(label: str) -> bool:
        return label == WAITING or label not in DOES

    def _describe(self, run: str, label: str) -> str:
        if label in DOES:
            return DOES[label]
        return next(each.describe() for each in self.hosts[run] if each.host == label)

    def _bound(self, run: str, label: str) -> str:
        """The resource that a label needs most, and how busy it is; '' for computing."""
        if self.busiest is None or label not in DOES or label in {*report.UNSHARED_LABELS, WAITING}:
            return ""
        used = self.busiest[self.busiest["run"] == run]
        reads = used["tier"].str.startswith(FOR_READING)
        used = used[reads if label == "I/O" else ~reads]
        if used.empty:
            return ""
        most = used.sort_values("mean", kind="stable").iloc[-1]
        name = RESOURCES.get(most["tier"], most["tier"].replace("_", " ").replace(".", ": "))
        if ">" in most["tier"]:
            name = "the busiest cable from {} to {}".format(*most["tier"].split(">"))
        if most["mean"] >= BINDS:
            return f", bound by {name}, in use for {100 * most['mean']:.0f} % of the epoch"
        return f" (its busiest resource, {name}, is in use for {100 * most['mean']:.0f} %)"


def _slowest(scale: Scale) -> tuple[Row, Row]:
    """The run of a scale that takes most times as long as the fastest, and that one: at the same
    swept number where several runs are compared, else over all its values."""
    is_contest = scale.across and len(scale.names) > 1
    groups = scale.rows.groupby("x") if is_contest else [(None, scale.rows)]
    pairs = []
    for _, group in groups:
        by_time = group.sort_values("epoch_s", kind="stable")
        first, slow = by_time.iloc[0], by_time.iloc[-1]
        pairs.append((slow.to_dict(), first.to_dict()))
    return max(pairs, key=lambda pair: pair[0]["epoch_s"] / pair[1]["epoch_s"])


def _alike(slow: Row, first: Row) -> bool:
    return ties(slow, first) or is_undecided(slow, first)


def causes_of_run(result: Result, rows: pd.DataFrame, breakdown: pd.DataFrame) -> Causes:
    """Return the causes of a result of ``run``.

    Args:
        result: its links and ``meta.json`` are read.
        rows: the warm epoch of each run.
        breakdown: means over seeds, as of `simshuffle.report.report.breakdown`.
    """
    parts = report.by_cause(breakdown.astype({"run": str}))
    last = rows.set_index("run")["epoch"]
    parts = parts[parts["epoch"] == parts["run"].map(last)]
    hosts = {run: _hosts(facts) for run, facts in result.meta["runs"].items()}
    seconds: dict[str, dict[str, float]] = {str(run): {} for run in rows["run"]}
    columns = ["run", "label", "waiting", "seconds"]
    for run, label, waits, value in parts[columns].itertuples(index=False, name=None):
        name = WAITING if waits and label in report.UNSHARED_LABELS else str(label)
        seconds[run][name] = seconds[run].get(name, 0.0) + float(value)
    for run, waited_for in hosts.items():
        for each in waited_for if run in seconds else ():
            name = WAITING if each.label in report.UNSHARED_LABELS else each.label
            seconds[run][name] = max(seconds[run].get(name, 0.0) - each.seconds, 0.0)
            seconds[run][each.host] = each.seconds
    return Causes(seconds, hosts, _busiest(result))


def causes_of_sweep(table: pd.DataFrame, rows: pd.DataFrame) -> Causes:
    """Return the causes of a result of ``sweep``.

    Args:
        table: its epochs, with the run in the column ``run``.
        rows: the warm epoch of each run.
    """
    last = rows.set_index("run")["epoch"]
    own = table[table["epoch"] == table["run"].map(last)]
    seconds: dict[str, dict[str, float]] = {}
    means = own.groupby("run", sort=False).mean(numeric_only=True)
    for run, row in means.iterrows():
        parts = {label: float(row[label_column(label)]) for label in report.LABELS}
        for label in report.LABELS:
            name = WAITING if label in report.UNSHARED_LABELS else label
            waited = float(row[label_column(label, waiting=True)])
            parts[name] = parts.get(name, 0.0) + waited
        seconds[str(run)] = parts
    return Causes(seconds)


def _hosts(facts: Mapping[str, Any]) -> list[WaitedFor]:
    """The hosts that a run waits for, with their faults, from what ``meta.json`` says of it."""
    faults = facts.get("faults", ())
    return [
        WaitedFor(
            each["host"],
            each["label"],
            each["seconds"],
            [row for row in faults if str(row["what"]).partition(".")[0] == each["host"]],
        )
        for each in facts.get("waited_for", ())
    ]


def _busiest(result: Result) -> pd.DataFrame:
    """Of the last epoch of each run, how busy the busiest link of each kind is: run, tier, and
    mean (share of its capacity), which is the largest over seeds."""
    names = ["run", "epoch", "tier"]
    epochs = result.tables["epochs"]
    seed = ["seed"] if "seed" in epochs else []
    wanted = [*names, *seed, "nbytes", "capacity", "mean_utilisation"]
    pieces = [
        links_of_whole_epochs(piece, epochs)
        .groupby(names, sort=False, observed=True)["mean_utilisation"]
        .max()
        .reset_index()
        for piece in get_long(result.tables, "links").pieces(wanted)
    ]
    links = pd.concat(pieces, ignore_index=True).astype({"run": str, "tier": str})
    links = links[links["epoch"] == links.groupby("run")["epoch"].transform("max")]
    most = links.groupby(["run", "tier"], sort=False)["mean_utilisation"].max()
    return most.rename("mean").reset_index()
