"""An epoch of several stretches, since hosts were lost in it, put together to one
timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.job.plan.epochs import EpochPlan
from simshuffle.job.plan.recovery import trained_samples
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.machine import SimulatedEpoch
from simshuffle.report.timeline import HIDDEN, PHASES, Timeline, WindowRow
from simshuffle.spec.arrays import Flags, Floats, Ints64

Rows = dict[str, NDArray[Any]]
OF_THE_WHOLE = ("strategy", "world_size", "exchange_fraction", "epoch")
OF_THE_BEGIN = ("staging_s", "nbytes_staged", "read_requests_staged")
"""Columns of the sources that are not added up: of the epoch, and of its first stretch
alone.
"""


@dataclass(frozen=True)
class Loss:
    """A host that a run lost, and what that cost it. Of a job that does not go on the
    seconds are 0, but those before a later loss.

    Seconds until training goes on are those of the loss that is noticed first. A loss
    noticed with it, or while the job waits for hosts, has none. If the job loses a host
    after that, they end there, and the later loss has the seconds from there on.
    """

    host: str
    epoch: int  # in which it was lost
    at_s: float  # s since the run began
    policy: str  # of recovery: "spare", "elastic" or "stop"
    ranks: int = 0  # that go on
    redone_s: float = (
        0.0  # s of training since the last checkpoint, mean over ranks: lost
    )
    redone_samples: int = 0  # samples of the whole iterations among them
    # detect_s, restart_s, restore_s, reread_s: s until it is noticed, to start all processes, to
    # read the checkpoint, and to read the samples of new hosts again
    detect_s: float = 0.0
    restart_s: float = 0.0
    restore_s: float = 0.0
    reread_s: float = 0.0
    reread_nbytes: float = 0.0  # bytes of these samples
    # s between detection and restart, until hosts are repaired where no spare was left
    waited_s: float = 0.0
    loader: str = ""  # which law of a loader decides what is read on; '' without one
    refused: str = (
        ""  # the error with which that loader ends the job; '' if it does not
    )

    @property
    def absent_s(self) -> float:
        """Return the time (s) from the loss until training goes on."""
        spent = self.detect_s + self.restart_s + self.restore_s + self.reread_s
        return spent + self.waited_s

    def cut_off(self, seconds: float) -> Loss:
        """Return the loss with what happens in the first ``seconds`` s after it."""
        parts = {}
        for name in ("detect_s", "waited_s", "restart_s", "restore_s", "reread_s"):
            parts[name] = min(getattr(self, name), seconds)
            seconds -= parts[name]
        share = parts["reread_s"] / self.reread_s if self.reread_s else 0.0
        return replace(self, **parts, reread_nbytes=share * self.reread_nbytes)


class EpochParts:
    """The simulated stretches of epoch ``epoch`` of run ``run``, which begins with
    ``world_size`` ranks.

    Attributes:
        epoch: from 1.
        kept_iterations: iterations of the epoch that no loss has undone.
        reached_iterations: iterations that were done when its last stretch ended.
    """

    def __init__(
        self, run: str, epoch: int, world_size: int, scenario: Scenario
    ) -> None:
        self.epoch = epoch
        self.kept_iterations = 0
        self.reached_iterations = 0
        self._samples = scenario.workload.dataset.num_samples
        recovery = scenario.recovery
        # (N,) whether the epoch has seen each sample, where a loader decides which come
        self._seen_samples: Flags | None = None
        if recovery is not None and recovery.resume is not None:
            self._seen_samples = np.zeros(self._samples, np.bool_)
        self._run = run
        # of the ranks that go on their numbers as the epoch began
        self._ranks = np.arange(world_size)
        self._parts: list[SimulatedEpoch] = []
        self._rows: list[Rows] = []
        self._losses: list[Loss] = []
        self._seen = self._twice = self._planned = 0
        self._redone = (0.0, 0)
        # rank, and from when on it takes no part any more (s)
        self._departed: list[tuple[Ints64, float]] = []

    def add(self, plan: EpochPlan, first: int, simulated: SimulatedEpoch) -> None:
        """Add a stretch of an epoch, from iteration ``first`` (from 0) on.

        Of one that was broken off only what a checkpoint holds is kept; the rest is
        lost time, as is a stretch of an earlier epoch, which was done before. Stretches
        come in the order of time; their ranks are those that still take part.
        """
        self._parts.append(simulated)
        is_repeated = plan.epoch < self.epoch
        samples = plan.training.samples
        kept = simulated.iterations_done if simulated.over else max(simulated.saved, 0)
        newly_seen = 0
        rows: list[Rows] = []
        if not is_repeated:
            newly_seen = self._newly_seen(plan, kept)
            if first == 0:
                self._planned = max(self._planned, int(samples.sum()))
            self.kept_iterations = first + kept
            self.reached_iterations = first + simulated.iterations_done
            if kept or simulated.over:
                rows = [_select_first(part, kept, first) for part in simulated.rows]
        twice = int(samples[: simulated.iterations_done].sum()) - newly_seen
        ends = _ends(rows, len(self._ranks), simulated.begin)
        self._rows += [{**part, "rank": self._ranks[part["rank"]]} for part in rows]
        self._redone = (0.0, 0)
        if is_repeated or not simulated.over:
            self._rows.append(self._span("lost", self._ranks, ends, simulated.end))
            self._redone = (float((simulated.end - ends).mean()), twice)
        self._seen += newly_seen
        self._twice += twice

    def _newly_seen(self, plan: EpochPlan, kept: int) -> int:
        """Count the samples first seen in the first ``kept`` iterations of a plan.

        All of them count where no loader decides what comes. Else samples are marked as
        seen, and those marked before do not count.
        """
        if self._seen_samples is None:
            return int(plan.training.samples[:kept].sum())
        seen_before = int(self._seen_samples.sum())
        self._seen_samples[trained_samples(plan, kept)] = True
        return int(self._seen_samples.sum()) - seen_before

    def lose(self, losses: Sequence[Loss], is_gone: Flags, resumed: float) -> None:
        """Add losses, after which training goes on at ``resumed`` (s).

        Fills in ``redone_s`` and ``redone_samples`` of the first from the stretch added
        last; nothing is trained between the losses. Until ``resumed`` all ranks are in
        phase ``restart``. The ranks of which ``is_gone``, (M,), is true take no part
        from then on; M are the ranks that still do.
        """
        seconds, samples = self._redone
        first, *later = losses
        first = replace(first, redone_s=seconds, redone_samples=samples)
        self._losses += [first, *later]
        begin = np.full(len(self._ranks), first.at_s)
        self._rows.append(self._span("restart", self._ranks, begin, resumed))
        if is_gone.any():
            self._departed.append((self._ranks[is_gone], resumed))
            self._ranks = self._ranks[~is_gone]

    def timeline(self) -> Timeline:
        """Return the timeline of the epoch, with all its stretches; only once.

        Ranks are numbered as when the epoch began. Those that left are in phase
        ``lost`` to the end of the epoch. Its facts are those of `_facts`, and ``killed``
        if a watchdog ended the job.
        """
        first = self._parts[0]
        last = self._parts[-1]
        end = max(last.end, *(part["end_s"].max(initial=0.0) for part in self._rows))
        for ranks, since in self._departed:
            begin = np.full(len(ranks), since)
            self._rows.append(self._span("lost", ranks, begin, end))
        epoch = replace(
            first,
            rows=[part for part in self._rows if len(part["rank"])],
            links=_links(self._parts, end - first.begin),
            sources=self._sources(),
            end=end,
            killed=last.killed,
        )
        timeline = epoch.timeline(self._run, WindowRow(self.kept_iterations))
        return replace(timeline, facts={**timeline.facts, **self._facts()})

    def _facts(self) -> dict[str, Any]:
        """Return the facts ``completeness`` and ``losses`` of the epoch.

        ``completeness`` is one row: the samples planned, seen, and seen twice, as
        shares of the data set. What was done and lost again counts as seen twice.
        ``losses`` has a row for each `Loss`.
        """
        completeness = {
            "epoch": self.epoch,
            "planned": self._planned / self._samples,
            "seen": self._seen / self._samples,
            "twice": self._twice / self._samples,
        }
        return {
            "completeness": [completeness],
            "losses": [asdict(loss) for loss in self._losses],
        }

    def _sources(self) -> dict[str, Any]:
        """Return the row of sources: sums over stretches but for what is of the epoch.

        Lost stretches count in the sums. ``iterations`` and ``samples`` are those kept.
        """
        first, *later_sources = (part.sources for part in self._parts)
        sums = dict(first)
        for name in set(sums).difference(OF_THE_WHOLE, OF_THE_BEGIN):
            sums[name] += sum(sources[name] for sources in later_sources)
        return {**sums, "iterations": self.kept_iterations, "samples": self._seen}

    def _span(self, phase: str, ranks: Ints64, begin: Floats, end: float) -> Rows:
        """Return the rows of a phase of some ranks, in no iteration.

        It lasts from ``begin``, (ranks,), to ``end`` (s); a rank where that is no time
        has no row.
        """
        lasts = begin < end
        count = int(lasts.sum())
        return {
            "epoch": np.full(count, self.epoch, np.int16),
            "iteration": np.zeros(count, np.int32),
            "rank": ranks[lasts],
            "phase": np.full(count, PHASES.index(phase), np.int8),
            "start_s": begin[lasts],
            "end_s": np.full(count, end),
            "nbytes": np.zeros(count),
        }


def _select_first(part: Rows, iterations: int, first: int) -> Rows:
    """Return the rows of the first ``iterations`` iterations, whose numbers (from 1)
    are moved by ``first``, and those in no iteration, which have number 0.
    """
    is_kept = part["iteration"] <= iterations
    rows = {name: values[is_kept] for name, values in part.items()}
    rows["iteration"][rows["iteration"] > 0] += first
    return rows


def _ends(rows: Sequence[Rows], world_size: int, begin: float) -> Floats:
    """Return (M,) s at which the last exclusive phase of each rank ends; ``begin`` (s)
    for a rank without rows.
    """
    ends = np.full(world_size, begin)
    for part in rows:
        is_exclusive = part["phase"] < len(PHASES) - len(HIDDEN)
        np.maximum.at(ends, part["rank"][is_exclusive], part["end_s"][is_exclusive])
    return ends


def _links(parts: Sequence[SimulatedEpoch], seconds: float) -> pd.DataFrame:
    """Return the links table of all parts together, which last ``seconds``.

    Bytes and busy seconds are sums over parts, the peak is the highest, and the mean
    utilisation is of ``seconds``. The epoch is that of the first part.
    """
    tables = [
        part.links.assign(used=part.links["mean_utilisation"] * (part.end - part.begin))
        for part in parts
    ]
    # a link that only an earlier epoch used, which was done again, is one of this epoch
    rows = pd.concat(tables, ignore_index=True).assign(
        epoch=parts[0].links["epoch"].iloc[0]
    )
    aggregations = {
        **dict.fromkeys(("epoch", "tier", "capacity", "unit"), "first"),
        **dict.fromkeys(("nbytes", "used", "busy_s"), "sum"),
        "peak_utilisation": "max",
    }
    table = rows.groupby("link", sort=False).agg(aggregations).reset_index()
    table["mean_utilisation"] = table.pop("used") / max(seconds, np.finfo(float).tiny)
    return table[list(parts[0].links.columns)]
