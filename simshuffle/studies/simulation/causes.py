"""The causes of the time of an epoch: what its seconds go into, what makes a run longer
than another, and which resource or host the ranks wait for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from simshuffle.report import report
from simshuffle.report.faults import MAX_NAMED_FAULTS, describe_fault
from simshuffle.report.links import links_of_whole_epochs
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.simulation.contest import Row, Scale, overlaps_widely, ties
from simshuffle.studies.simulation.tables import label_column
from simshuffle.study.long_table import get_long
from simshuffle.study.study import Result

NOTABLE_DIFFERENCE = 0.02
"""Share of an epoch from which on a difference is explained rather than the epoch
itself.
"""
NOTABLE_WAIT = 0.1
"""Share of an epoch from which on waiting is reported beside the largest part."""
BINDING_SHARE = 0.8
"""A resource that is busy for this share of an epoch binds it."""
WAITING = "waiting"
"""Stands for a label: waiting for ranks that compute longer, which no resource bounds."""
ACTIVITIES = {
    "I/O": "reading",
    "FW+BW": "the forward and backward pass",
    "IMPT": "measuring importance",
    "GE+WU": "summing gradients and updating weights",
    "EXCHANGE": "exchanging samples",
    report.SAVING: "saving checkpoints",
    report.LOST: "doing lost work again, and restarting",
    WAITING: "waiting for the slowest rank of each step",
}
"""Phrase on what a rank does under each label."""
SHORT_ACTIVITIES = ACTIVITIES | {
    "FW+BW": "computing",
    "GE+WU": "summing gradients",
    WAITING: "waiting for slow ranks",
}
"""`ACTIVITIES` in fewer words."""
RESOURCES = {
    "pfs.open": "file opens of the file system",
    "pfs.bandwidth": "the bandwidth of the file system",
    "pfs.write": "the bandwidth of the file system for writes",
    "pfs.client": "the file system client of a host",
    "cache_tier.open": "file opens of the cache tier",
    "cache_tier.bandwidth": "the bandwidth of the cache tier",
    "cache_tier.host": "the bandwidth of the cache tier for a host",
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
READING_KINDS = (
    "pfs.",
    "object_store.",
    "cache_tier.",
    "ssd",
    "cores",
    "memory",
    "storage>",
)
"""How kinds of links begin that only reading uses, or reading most of all."""
Seconds = Mapping[str, float]
"""Seconds by label, or by the name of a host that ranks wait for."""


@dataclass(frozen=True)
class WaitedFor:
    """A host that the other ranks of a run wait for."""

    host: str
    label: str  # that its ranks spend longer in
    seconds: float  # of an epoch, mean over ranks
    # of the host, rows as of ``faults`` in ``meta.json``
    faults: Sequence[Mapping[str, Any]] = ()

    def describe(self) -> str:
        """Return a phrase on the host that ranks wait for, with its faults, of which at
        most `MAX_NAMED_FAULTS` are named.
        """
        if not self.faults:
            return f"waiting for {self.host} ({ACTIVITIES[self.label]})"
        fault_phrases = [
            describe_fault(fault) for fault in self.faults[:MAX_NAMED_FAULTS]
        ]
        return f"waiting for {self.host}, because of {'; '.join(fault_phrases)}"


@dataclass(frozen=True)
class Causes:
    """The seconds of the epochs of runs by cause, and the busiest resources."""

    # s of an epoch by run, and by label; waiting counts under the label that is waited for, but for
    # `WAITING` and hosts
    seconds: Mapping[str, Seconds]
    # hosts that ranks wait for, by run
    waited_hosts: Mapping[str, Sequence[WaitedFor]] = field(default_factory=dict)
    # columns run, tier, and mean: how busy the busiest link of each kind is; None if unknown
    busiest: pd.DataFrame | None = None

    def name_reason(self, run: str, fastest: str) -> str:
        """Return in two or three words what makes a run longer than the fastest.

        It is the activity with the largest gap, or 'waiting for HOST'; '' if nothing is
        longer or the seconds of both are unknown.
        """
        gaps = self._gaps_by_label(run, fastest)
        if not gaps or max(gaps.values()) <= 0:
            return ""
        label = max(gaps, key=lambda name: gaps[name])
        return SHORT_ACTIVITIES.get(label, f"waiting for {label}")

    def explain_time(self, scales: Sequence[Scale]) -> str:
        """Return a sentence on what a slow run takes longer for than the fastest.

        It is the slowest run of the largest scale at which one takes more than
        `NOTABLE_DIFFERENCE` longer, and does not tie. At none, the sentence says what
        the epoch of the fastest run of the largest scale goes into. '' without scales,
        or where seconds are unknown.

        Args:
            scales: smallest first.
        """
        for scale in reversed(scales):
            slowest, fastest = _find_slowest_pair(scale)
            notable_s = (1 + NOTABLE_DIFFERENCE) * fastest["epoch_s"]
            if slowest["epoch_s"] > notable_s and not _equally_fast(slowest, fastest):
                return self._explain_difference(slowest, fastest, scale)
        if not scales:
            return ""
        rows = scales[-1].rows
        row = rows.sort_values("epoch_s", kind="stable").iloc[0].to_dict()
        return self._explain_shares(row, len(rows) > 1)

    def _gaps_by_label(self, run: str, fastest: str) -> dict[str, float]:
        """Return the seconds by which a run takes longer than the fastest, by label.

        Labels are those of either run; seconds are negative where the run is shorter,
        and a label that one run lacks counts as 0 s.
        """
        run_seconds = self.seconds.get(run, {})
        fastest_seconds = self.seconds.get(fastest, {})
        return {
            label: run_seconds.get(label, 0.0) - fastest_seconds.get(label, 0.0)
            for label in {**run_seconds, **fastest_seconds}
        }

    def _explain_difference(self, slowest: Row, fastest: Row, scale: Scale) -> str:
        """Return the sentence on what the slowest run takes longer for than the fastest;
        '' where seconds are unknown.

        It names the label with the largest gap, and its share of the whole difference.
        """
        gaps = self._gaps_by_label(slowest["run"], fastest["run"])
        if not gaps:
            return ""
        label = max(gaps, key=lambda name: gaps[name])
        share = gaps[label] / max(sum(gaps.values()), 1e-12)
        share_text = "" if share > 0.99 else f"{100 * share:.0f} % of "
        place_text = f" at {scale.across} {slowest['x_text']}" if scale.across else ""
        activity = self._describe(slowest["run"], label)
        bottleneck = self._describe_bottleneck(slowest["run"], label)
        cost = self._reading_cost(slowest["run"]) if label == "I/O" else ""
        return (
            f"{share_text}the extra time of {slowest['name']} on {scale.title}{place_text} is"
            f" {activity}{bottleneck}{cost}."
        )

    def _reading_cost(self, run: str) -> str:
        """Return a clause on the seconds that reading costs an epoch of a run, with the
        waits for ranks that read; waits for a named host are left out.
        """
        seconds = self.seconds.get(run, {})
        reading_s = readable(seconds.get("I/O", 0.0), Dimension.SECONDS, 3)
        epoch_s = readable(sum(seconds.values()), Dimension.SECONDS, 3)
        return (
            f"; with the waits that it causes, reading takes {reading_s} of {epoch_s}"
        )

    def _explain_shares(self, row: Row, is_named: bool) -> str:
        """Return the sentence on what the epoch of a run goes into: its largest part,
        and each waiting from `NOTABLE_WAIT` of the epoch on.

        '' where seconds are unknown. ``is_named`` says whether the sentence
        names the run.
        """
        seconds_by_label = self.seconds.get(row["run"], {})
        total_seconds = sum(seconds_by_label.values())
        if not total_seconds:
            return ""
        labels = sorted(seconds_by_label, key=lambda name: -seconds_by_label[name])
        subject = f"an epoch of {row['name']}" if is_named else "an epoch"
        phrases = []
        for index, label in enumerate(labels):
            percent = 100 * seconds_by_label[label] / total_seconds
            is_notable_wait = (
                self._is_wait(label)
                and seconds_by_label[label] >= NOTABLE_WAIT * total_seconds
            )
            if index == 0 or is_notable_wait:
                part = "" if index else f"of {subject} is "
                phrases.append(
                    f"{percent:.0f} % {part}{self._describe(row['run'], label)}"
                )
        return f"{' and '.join(phrases)}{self._describe_bottleneck(row['run'], labels[0])}."

    @staticmethod
    def _is_wait(label: str) -> bool:
        """Return true if a label is `WAITING`, or the name of a host that is waited for.

        Waiting that counts under another label is no wait here.
        """
        return label == WAITING or label not in ACTIVITIES

    def _describe(self, run: str, label: str) -> str:
        """Return the phrase on what ranks of a run do under a label, or on the host
        that they wait for.
        """
        if label in ACTIVITIES:
            return ACTIVITIES[label]
        return next(
            host.describe() for host in self.waited_hosts[run] if host.host == label
        )

    def _describe_bottleneck(self, run: str, label: str) -> str:
        """Return a phrase on the resource that a label needs most, and how busy it is.

        For I/O it is the busiest of `READING_KINDS`, else the busiest other one. '' for
        labels without a shared resource (`report.UNSHARED_LABELS`), for waiting, and
        where links are unknown; from `BINDING_SHARE` on it binds.
        """
        if (
            self.busiest is None
            or label not in ACTIVITIES
            or label in {*report.UNSHARED_LABELS, WAITING}
        ):
            return ""
        links = self.busiest[self.busiest["run"] == run]
        is_for_reading = links["tier"].str.startswith(READING_KINDS)
        links = links[is_for_reading if label == "I/O" else ~is_for_reading]
        if links.empty:
            return ""
        busiest_link = links.sort_values("mean", kind="stable").iloc[-1]
        link_kind = busiest_link["tier"]
        resource_name = RESOURCES.get(
            link_kind, link_kind.replace("_", " ").replace(".", ": ")
        )
        if ">" in link_kind:
            resource_name = "the busiest cable from {} to {}".format(
                *link_kind.split(">")
            )
        used_percent = f"{100 * busiest_link['mean']:.0f} % of its capacity"
        if busiest_link["mean"] >= BINDING_SHARE:
            return f", bound by {resource_name} ({used_percent} in use)"
        return f" (its busiest resource, {resource_name}, is {used_percent} in use)"


def _find_slowest_pair(scale: Scale) -> tuple[Row, Row]:
    """Return the run of a scale that takes the most times as long as the fastest, and
    that fastest run.

    The two are compared at one swept number where several runs are compared, else over
    all its values. A lone run is both.
    """
    is_contest = scale.across and len(scale.names) > 1
    groups = scale.rows.groupby("x") if is_contest else [(None, scale.rows)]
    pairs = []
    for _, group in groups:
        by_time = group.sort_values("epoch_s", kind="stable")
        fastest = by_time.iloc[0]
        slowest = by_time.iloc[-1]
        pairs.append((slowest.to_dict(), fastest.to_dict()))
    return max(pairs, key=lambda pair: pair[0]["epoch_s"] / pair[1]["epoch_s"])


def _equally_fast(slowest: Row, fastest: Row) -> bool:
    """Return true if two runs tie, or their intervals are too wide to tell."""
    return ties(slowest, fastest) or overlaps_widely(slowest, fastest)


def causes_of_run(
    result: Result, rows: pd.DataFrame, breakdown: pd.DataFrame
) -> Causes:
    """Return the causes of a result of ``run``, of the last epoch of each run.

    Waiting for ranks in `report.UNSHARED_LABELS` is `WAITING`; other waiting counts
    under the label that is waited for. The wait for a named host is taken out of its
    label, which stays at 0 s or more, and stands under the host.

    Args:
        result: its links, epochs and ``meta.json`` are read.
        rows: the last epoch of each run, as of `contest.warm_epochs`.
        breakdown: means over seeds, as of `simshuffle.report.report.breakdown`.
    """
    causes = report.by_cause(breakdown.astype({"run": str}))
    last_epochs = rows.set_index("run")["epoch"]
    causes = causes[causes["epoch"] == causes["run"].map(last_epochs)]
    hosts_by_run = {
        run: _hosts_waited_for(facts) for run, facts in result.meta["runs"].items()
    }
    seconds: dict[str, dict[str, float]] = {str(run): {} for run in rows["run"]}
    columns = ["run", "label", "waiting", "seconds"]
    for run, label, is_waiting, label_seconds in causes[columns].itertuples(
        index=False, name=None
    ):
        name = WAITING if is_waiting and label in report.UNSHARED_LABELS else str(label)
        seconds[run][name] = seconds[run].get(name, 0.0) + float(label_seconds)

    # the time that ranks wait for a host moves from the label of its work to the host
    for run, waited_hosts in hosts_by_run.items():
        for waited_for in waited_hosts if run in seconds else ():
            name = (
                WAITING
                if waited_for.label in report.UNSHARED_LABELS
                else waited_for.label
            )
            seconds[run][name] = max(
                seconds[run].get(name, 0.0) - waited_for.seconds, 0.0
            )
            seconds[run][waited_for.host] = waited_for.seconds
    return Causes(seconds, hosts_by_run, _busiest_links(result))


def causes_of_sweep(table: pd.DataFrame, rows: pd.DataFrame) -> Causes:
    """Return the causes of a result of ``sweep``, means over seeds of the last epochs.

    Hosts that are waited for and busiest links are unknown. Waiting counts as in
    `causes_of_run`.

    Args:
        table: its epochs, with the run in the column ``run``.
        rows: the last epoch of each run, as of `contest.warm_epochs`.
    """
    last_epochs = rows.set_index("run")["epoch"]
    last_rows = table[table["epoch"] == table["run"].map(last_epochs)]
    seconds: dict[str, dict[str, float]] = {}
    means = last_rows.groupby("run", sort=False).mean(numeric_only=True)
    for run, row in means.iterrows():
        seconds_by_label = {
            label: float(row[label_column(label)]) for label in report.LABELS
        }
        for label in report.LABELS:
            name = WAITING if label in report.UNSHARED_LABELS else label
            waiting_seconds = float(row[label_column(label, waiting=True)])
            seconds_by_label[name] = seconds_by_label.get(name, 0.0) + waiting_seconds
        seconds[str(run)] = seconds_by_label
    return Causes(seconds)


def _hosts_waited_for(facts: Mapping[str, Any]) -> list[WaitedFor]:
    """Return the hosts that a run waits for, with their faults, from its facts in
    ``meta.json``; [] without any.

    A fault is of a host if its name up to the first '.' is the host.
    """
    faults = facts.get("faults", ())
    return [
        WaitedFor(
            host_row["host"],
            host_row["label"],
            host_row["seconds"],
            [
                row
                for row in faults
                if str(row["what"]).partition(".")[0] == host_row["host"]
            ],
        )
        for host_row in facts.get("waited_for", ())
    ]


def _busiest_links(result: Result) -> pd.DataFrame:
    """Return how busy the busiest link of each kind is in the last epoch of each run.

    The columns are run, tier, and mean: share of the capacity in use, mean over the
    whole epoch, of the busiest link and the seed with the largest.
    """
    keys = ["run", "epoch", "tier"]
    epochs = result.tables["epochs"]
    seed_columns = ["seed"] if "seed" in epochs else []
    columns = [*keys, *seed_columns, "nbytes", "capacity", "mean_utilisation"]
    pieces = [
        links_of_whole_epochs(piece, epochs)
        .groupby(keys, sort=False, observed=True)["mean_utilisation"]
        .max()
        .reset_index()
        for piece in get_long(result.tables, "links").pieces(columns)
    ]
    links = pd.concat(pieces, ignore_index=True).astype({"run": str, "tier": str})
    links = report.rows_of_last_epoch(links)
    max_utilisation = links.groupby(["run", "tier"], sort=False)[
        "mean_utilisation"
    ].max()
    return max_utilisation.rename("mean").reset_index()
