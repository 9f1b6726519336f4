"""The rows of the tables: what is expected of a scenario as it is, and with each remedy.

What is lost is counted against global shuffle of the scenario as it is, so that remedies can be put
beside one another. A larger batch or a slower momentum lets global shuffle rest on more as well:
``own_points`` is what is lost against that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simshuffle.extensions.learning.accuracy.asked import AccuracyRequest, Sized
from simshuffle.extensions.learning.accuracy.cells import ranks_of_host
from simshuffle.extensions.learning.accuracy.sensitivity import Sensitivity
from simshuffle.extensions.learning.accuracy.tables import TIMED, figure
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.report import WHOLE
from simshuffle.study.study import Outcomes

AS_IS = "as it is"
SLOW = 0.01
"""The slower momentum that is tried."""
FOLLOWS = 3.0
"""Over the momentum: iterations after which statistics have forgotten 95 % of older weights."""
LAST = 0.1
"""Share of a training, whose learning rate is low by then, that they may reach back (estimate)."""
RECOMPUTED = 16_384
"""Samples on which statistics are recomputed before an evaluation: n at least that of 27 batches of
32 at momentum 0.1."""
ANOTHER = "another network: its own accuracy is not in this"


def run_name(sized: Sized, change: str) -> str:
    """The name of the simulation of a change."""
    return f"{change or AS_IS}, {sized.name}"


def rests_name(sized: Sized, change: str) -> str:
    """The name of the cell that says on how many samples it rests."""
    return f"n of {change or AS_IS}, {sized.name}"


def sums_name(sized: Sized) -> str:
    """The name of the cell with what summing statistics takes."""
    return f"sums @{sized.world_size}"


def epoch_by_forms(scenario: Scenario) -> float:
    """s of a warm epoch, by closed forms."""
    found = bounds(scenario)
    return found.epoch + found.passes.slowed


SLOWER = f"momentum {SLOW:g}"


@dataclass(frozen=True)
class _Row:
    """A remedy before it is compared with others."""

    name: str
    kind: str
    n: float | None
    lost: tuple[float, float, float] | None  # points, with their interval
    own: float | None = None  # points
    added_s: float | None = None  # None where it is not known
    note: str = ""
    outside: str = ""
    able: bool = True  # whether it may be chosen


class Compared:
    """All remedies of a run."""

    def __init__(self, asked: AccuracyRequest, sized: Sized, outcomes: Outcomes) -> None:
        self._asked, self._sized, self._outcomes = asked, sized, outcomes
        self._base = self._rests("")
        self._epoch_s = self._seconds("", sized.base)

    @property
    def is_simulated(self) -> bool:
        """Whether the epoch as it is was simulated."""
        return run_name(self._sized, "") in self._outcomes

    def _seconds(self, change: str, scenario: Scenario) -> float:
        """s of a warm epoch with a change: simulated, or else by closed forms, in proportion to the
        simulated epoch without it."""
        outcome = self._outcomes.get(run_name(self._sized, change))
        if outcome is not None:
            return float(outcome.values[WHOLE])
        if not change:
            return epoch_by_forms(scenario)
        return self._epoch_s * epoch_by_forms(scenario) / epoch_by_forms(self._sized.base)

    def _rests(self, change: str) -> Mapping[str, Any]:
        return self._outcomes[rests_name(self._sized, change)].values

    @property
    def _of(self) -> Sensitivity:
        return self._asked.of

    @property
    def _without(self) -> bool:
        return self._of.norm != "batch"

    def setting(self) -> dict[str, Any]:
        """The row of `settings`."""
        base, workload, found = self._sized.base, self._sized.base.workload, self._base
        row = self._as_it_is()
        lost = row.lost or (0.0, 0.0, 0.0)
        none = self._without
        return {
            "world_size": base.world_size,
            "strategy": self._sized.strategy,
            "samples": -(-workload.dataset.num_samples // base.world_size),
            "local_batch": workload.local_batch_size,
            "iterations": found["iterations"],
            "n": None if none else found["n"],
            "n_low": None if none else found["low"],
            "n_high": None if none else found["high"],
            "n_global": None if none else found["global"],
            "emulated": found["emulated"],
            **_lost(lost),
            "enough": lost[2] <= self._asked.tolerance,
            "outside": row.outside,
            "epoch_s": self._epoch_s,
            "timed": TIMED[0] if self.is_simulated else TIMED[1],
        }

    def rows(self) -> list[dict[str, Any]]:
        """The rows of `remedies`."""
        found = [self._as_it_is(), *(self._remedies() if self.are_compared else ())]
        front = _front(found)
        enough = {row.name for row in found if row.lost and row.lost[2] <= self._asked.tolerance}
        able = [r for r in found if r.able and r.added_s is not None and r.name in enough]
        chosen = min(able, key=lambda r: (r.name != AS_IS, r.added_s), default=None)
        if AS_IS not in enough:
            chosen = min(able, key=lambda r: (r.added_s, r.name), default=None)
        return [
            {
                "world_size": self._sized.world_size,
                "strategy": self._sized.strategy,
                "remedy": row.name,
                "kind": row.kind,
                "n": row.n,
                **_lost(row.lost),
                "own_points": row.own,
                "epoch_s": None if row.added_s is None else self._epoch_s + row.added_s,
                "added_s": row.added_s,
                "outside": row.outside,
                "note": row.note,
                "enough": row.name in enough,
                "front": row.name in front,
                "chosen": row is chosen,
            }
            for row in found
        ]

    @property
    def are_compared(self) -> bool:
        """Whether remedies are looked at: where something is lost, and more than may be, unless all
        are asked for."""
        if self._without or not self._sized.changes:
            return False
        lost = self._as_it_is().lost
        return self._asked.exact or lost is None or lost[2] > self._asked.tolerance

    def _as_it_is(self) -> _Row:
        if self._without:
            points = self._of.lost(0.0)
            return _Row(AS_IS, AS_IS, None, points, points[0], 0.0, outside=self._outside(None))
        if not self._sized.changes:  # global shuffle itself
            return _Row(AS_IS, AS_IS, self._base["n"], (0.0, 0.0, 0.0), 0.0, 0.0)
        return self._row(AS_IS, AS_IS, self._base, "", 0.0)

    def _row(
        self,
        name: str,
        kind: str,
        found: Mapping[str, Any],
        group: str,
        added_s: float | None,
        **more: Any,
    ) -> _Row:
        """The row of what rests on ``found``, of the statistics of a ``group`` of ranks."""
        n, of = float(found[f"n{group}"]), 1.0 / float(self._base["global"])
        less = 1.0 / n - of
        scale = float(found["n"]) / n  # that of the interval is the same share of n
        ends = (scale / found["high"] - of, scale / found["low"] - of)
        own = self._of.c * (1.0 / n - 1.0 / float(found[f"global{group}"]))
        batch = more.pop("batch", None)
        outside = self._outside(n, batch, more.pop("momentum", None))
        lost = self._of.lost(less, *ends)
        return _Row(name, kind, n, lost, own, added_s, outside=outside, **more)

    def _remedies(self) -> Iterator[_Row]:
        yield from self._of_batches()
        yield from self._of_statistics()
        yield from self._of_exchanges()
        lost = self._asked.without.lost(0.0)
        yield _Row("group norm", "group norm", None, lost, lost[0], 0.0, ANOTHER, able=False)

    def _changed(self, kinds: set[str]) -> Iterator[tuple[Any, Mapping[str, Any], float]]:
        """Changes that can be had: what each rests on, and the seconds that it adds."""
        for change in self._sized.changes:
            if change.kind in kinds and change.scenario is not None:
                seconds = self._seconds(change.name, change.scenario)
                yield change, self._rests(change.name), seconds - self._epoch_s

    def _impossible(self, kinds: set[str]) -> Iterator[_Row]:
        for change in self._sized.changes:
            if change.kind in kinds and change.scenario is None:
                yield _Row(change.name, change.kind, None, None, note=change.why, able=False)

    def _of_batches(self) -> Iterator[_Row]:
        note = "if memory allows; the learning rate must be found anew"
        for change, found, added in self._changed({"local batch"}):
            batch = change.scenario.workload.local_batch_size
            yield self._row(change.name, change.kind, found, "", added, note=note, batch=batch)
        yield from self._impossible({"local batch"})

    def _of_statistics(self) -> Iterator[_Row]:
        """What is done to the statistics of the same training."""
        if self._asked.momentum > SLOW:
            back = FOLLOWS / SLOW / self._base["iterations"]
            slow = back > LAST * self._asked.epochs
            note = f"too slow: statistics reach back {back:.2g} epochs of other weights" * slow
            yield self._row(
                SLOWER,
                "momentum",
                self._rests(SLOWER),
                "",
                0.0,
                note=note,
                able=not slow,
                momentum=SLOW,
            )
        sums = self._outcomes[sums_name(self._sized)].values if self._asked.channels else None
        unknown = "" if sums else "; its layers are not known, so neither are costs"
        yield self._recomputed(sums)
        all_ranks, iterations = self._sized.world_size, self._base["iterations"]
        buffers = None if sums is None else sums["buffers"]
        note = f"at the end of an epoch{unknown}; a point remained lost at 8 samples a rank"
        yield self._row("pooled", "pooled", self._base, "all", buffers, note=note)
        groups = {"host": ranks_of_host(self._sized.base), "all": all_ranks}
        for name, ranks in groups.items():
            if name == "host" and ranks in (1, all_ranks):
                continue
            added = None if sums is None else iterations * sums[name]
            batch = ranks * self._sized.base.workload.local_batch_size
            title = f"sync batch norm, {name}"
            note = f"summed layer by layer by the scenario's allreduce{unknown}"
            yield self._row(
                title, "sync batch norm", self._base, name, added, note=note, batch=batch
            )

    def _recomputed(self, sums: Mapping[str, Any] | None) -> _Row:
        """Statistics of samples of the whole set under the weights that are evaluated (as after
        stochastic weight averaging, arXiv 1803.05407): every sample once, so that n is their
        number; all ranks share them."""
        workload, world_size = self._sized.base.workload, self._sized.world_size
        count = min(RECOMPUTED, workload.dataset.num_samples)
        each, batch = -(-count // world_size), workload.local_batch_size
        whole = [batch] * (each // batch) + [each % batch] * bool(each % batch)
        sizes = np.asarray([count * workload.mean_work for count in whole])
        forward = float(self._sized.base.step_times.forward_of(sizes).sum())
        found = dict.fromkeys(("n", "low", "high", "global"), float(count))
        return self._row(
            f"recomputed on {count:,} samples",
            "recomputed",
            found,
            "",
            forward + (0.0 if sums is None else sums["buffers"]),
            note="before every evaluation; reading the samples is not in it",
        )

    def _of_exchanges(self) -> Iterator[_Row]:
        for change, found, added in self._changed({"partial", "oldest", "global"}):
            if change.kind == "global":
                n = float(found["n"])
                yield _Row(change.name, change.kind, n, (0.0, 0.0, 0.0), 0.0, added)
            else:
                yield self._row(change.name, change.kind, found, "", added)
        yield from self._impossible({"partial", "oldest", "global"})

    def _outside(
        self, n: float | None, batch: int | None = None, momentum: float | None = None
    ) -> str:
        """What was never tried when the sensitivity was measured."""
        base, of = self._sized.base, self._of
        here: dict[str, float | None] = {
            "ranks": base.world_size,
            "samples a rank": -(-base.workload.dataset.num_samples // base.world_size),
            "n": n,
            "local batch": batch or base.workload.local_batch_size,
        }
        found = [] if of.known else [f"network {of.model}"]
        for name, value in here.items():
            low, high = of.tried.get(name, (-math.inf, math.inf))
            if value is not None and not 0.99 * low <= value <= 1.01 * high:
                span = figure(low) if low == high else f"{figure(low)} to {figure(high)}"
                found.append(f"{name} {figure(value)} (tried: {span})")
        m = momentum or self._asked.momentum
        if n is not None and not math.isclose(m, of.momentum):
            found.append(f"momentum {m:g} (tried: {of.momentum:g})")
        return "; ".join(found)


def _lost(points: tuple[float, float, float] | None) -> dict[str, Any]:
    return dict(
        zip(("loss_points", "low_points", "high_points"), points or (None,) * 3, strict=True)
    )


def _front(rows: list[_Row]) -> set[str]:
    """Those of the same network than which no other loses less in no more time, or as little in
    less."""
    of = {
        row.name: (row.added_s, row.lost[0])
        for row in rows
        if row.able and row.added_s is not None and row.lost is not None
    }

    def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return a != b and a[0] <= b[0] and a[1] <= b[1]

    return {name for name, at in of.items() if not any(beats(other, at) for other in of.values())}
