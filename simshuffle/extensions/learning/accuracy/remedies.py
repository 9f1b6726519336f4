"""Compute the rows of the tables: the loss of a scenario as it is, and with each
remedy.

The loss is counted against global shuffle of the scenario as it is, so that remedies
can be put beside one another. A larger batch or a slower momentum lets global shuffle
rest on more as well: ``own_points`` is the loss against that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from simshuffle.extensions.learning.accuracy.asked import AccuracyCase, AccuracyRequest
from simshuffle.extensions.learning.accuracy.cells import ranks_of_host
from simshuffle.extensions.learning.accuracy.remedy import (
    RemedyEstimate,
    front_names,
    loss_columns,
)
from simshuffle.extensions.learning.accuracy.sensitivity import NO_LOSS, Sensitivity
from simshuffle.extensions.learning.accuracy.tables import TIMED, format_number
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report.report import WHOLE
from simshuffle.study.study import Outcomes

AS_IS = "as it is"
SLOW_MOMENTUM = 0.01
"""Slower momentum that is tried as a remedy."""
FORGETTING_SPAN = 3.0
"""Iterations times momentum after which statistics have forgotten 95 % of older
weights.
"""
LATE_SHARE = 0.1
"""Share of a training that statistics may reach back, as its learning rate is low by
then (estimate).
"""
RECOMPUTED_SAMPLES = 16_384
"""Samples on which statistics are recomputed before an evaluation: n at least that of
27 batches of 32 at momentum 0.1.
"""
OTHER_NETWORK_NOTE = "another network: the loss leaves out its own accuracy"


def simulation_name(case: AccuracyCase, change: str) -> str:
    """Return the name of the simulation of a change."""
    return f"{change or AS_IS}, {case.name}"


def samples_cell_name(case: AccuracyCase, change: str) -> str:
    """Return the name of the cell that counts the samples behind statistics with a
    change.
    """
    return f"n of {change or AS_IS}, {case.name}"


def sums_cell_name(case: AccuracyCase) -> str:
    """Return the name of the cell that times the summing of statistics."""
    return f"sums @{case.world_size}"


def closed_form_epoch(scenario: Scenario) -> float:
    """Return the seconds of a warm epoch by closed forms."""
    epoch_bounds = bounds(scenario)
    return epoch_bounds.epoch + epoch_bounds.passes.slowed


SLOW_MOMENTUM_NAME = f"momentum {SLOW_MOMENTUM:g}"


class RemedyComparison:
    """Compares the remedies of a run by loss and time; where ``outcomes`` hold no
    simulation, closed forms stand in. ``outcomes`` must hold the samples of all cells.
    """

    def __init__(
        self, request: AccuracyRequest, case: AccuracyCase, outcomes: Outcomes
    ) -> None:
        self._request = request
        self._case = case
        self._outcomes = outcomes
        self._base_samples = self._samples_with("")
        self._epoch_s = self._seconds("", case.base)

    @property
    def is_simulated(self) -> bool:
        """True if the unchanged epoch was simulated; otherwise it is timed by closed
        forms.
        """
        return simulation_name(self._case, "") in self._outcomes

    def _seconds(self, change: str, scenario: Scenario) -> float:
        """Return the seconds of a warm epoch with a change, '' for none.

        They are simulated, or else by closed forms, in proportion to the epoch without
        the change.
        """
        outcome = self._outcomes.get(simulation_name(self._case, change))
        if outcome is not None:
            return float(outcome.values[WHOLE])
        if not change:
            return closed_form_epoch(scenario)
        return (
            self._epoch_s
            * closed_form_epoch(scenario)
            / closed_form_epoch(self._case.base)
        )

    def _samples_with(self, change: str) -> Mapping[str, Any]:
        """Return the outcome of the `EffectiveSamplesCell` of a change, '' for none."""
        return self._outcomes[samples_cell_name(self._case, change)].values

    @property
    def _sensitivity(self) -> Sensitivity:
        """The sensitivity of the requested network."""
        return self._request.sensitivity

    @property
    def _has_no_statistics(self) -> bool:
        """True for a network without batch norm, which has no running statistics."""
        return self._sensitivity.norm != "batch"

    def setting_row(self) -> dict[str, Any]:
        """Return the run's row of table ``settings``; n is None without batch norm."""
        base = self._case.base
        workload = base.workload
        unchanged = self._unchanged_remedy()
        loss = unchanged.loss or NO_LOSS
        samples = self._base_samples
        names = {"n": "n", "n_low": "low", "n_high": "high", "n_global": "global"}
        return {
            "world_size": base.world_size,
            "strategy": self._case.strategy,
            "samples": -(-workload.dataset.num_samples // base.world_size),
            "local_batch": workload.local_batch_size,
            "iterations": samples["iterations"],
            **{
                column: None if self._has_no_statistics else samples[name]
                for column, name in names.items()
            },
            "emulated": samples["emulated"],
            **loss_columns(loss),
            "enough": loss.high <= self._request.tolerance,
            "outside": unchanged.outside,
            "epoch_s": self._epoch_s,
            "timed": TIMED[0] if self.is_simulated else TIMED[1],
        }

    def remedy_rows(self) -> list[dict[str, Any]]:
        """Return the run's rows of table ``remedies``, 'as it is' first.

        Chosen is 'as it is' if its interval ends within the tolerance, else the
        quickest remedy whose interval does; maybe none.
        """
        remedies = [self._unchanged_remedy()]
        if self.compares_remedies:
            remedies += self._remedies()
        front = front_names(remedies)

        # the quickest of the remedies that are enough; no remedy, if that is enough
        enough = {
            remedy.name
            for remedy in remedies
            if remedy.loss and remedy.loss.high <= self._request.tolerance
        }
        choosable = [
            remedy
            for remedy in remedies
            if remedy.is_choosable
            and remedy.added_s is not None
            and remedy.name in enough
        ]
        chosen = min(
            choosable,
            key=lambda remedy: (remedy.name != AS_IS, remedy.added_s),
            default=None,
        )
        if AS_IS not in enough:
            chosen = min(
                choosable,
                key=lambda remedy: (remedy.added_s, remedy.name),
                default=None,
            )

        return [
            {
                "world_size": self._case.world_size,
                "strategy": self._case.strategy,
                "remedy": remedy.name,
                "kind": remedy.kind,
                "n": remedy.n,
                **loss_columns(remedy.loss),
                "own_points": remedy.own_points,
                "epoch_s": None
                if remedy.added_s is None
                else self._epoch_s + remedy.added_s,
                "added_s": remedy.added_s,
                "outside": remedy.outside,
                "note": remedy.note,
                "enough": remedy.name in enough,
                "front": remedy.name in front,
                "chosen": remedy is chosen,
            }
            for remedy in remedies
        ]

    @property
    def compares_remedies(self) -> bool:
        """True where remedies are looked at: more is lost than may be, or all are asked
        for.

        Where nothing can be lost, none are looked at.
        """
        if self._has_no_statistics or not self._case.changes:
            return False
        loss = self._unchanged_remedy().loss
        return (
            self._request.exact or loss is None or loss.high > self._request.tolerance
        )

    def _unchanged_remedy(self) -> RemedyEstimate:
        """Return the remedy that changes nothing, with the loss of the run as it is.

        Global shuffle loses nothing; a network without statistics has the scatter of
        others.
        """
        if self._has_no_statistics:
            loss = self._sensitivity.expected_loss(0.0)
            outside = self._untried_inputs(None)
            return RemedyEstimate(
                AS_IS, AS_IS, None, loss, loss.points, 0.0, outside=outside
            )
        if not self._case.changes:  # global shuffle itself
            return RemedyEstimate(
                AS_IS, AS_IS, self._base_samples["n"], NO_LOSS, 0.0, 0.0
            )
        return self._remedy(AS_IS, AS_IS, self._base_samples, "", 0.0)

    def _remedy(
        self,
        name: str,
        kind: str,
        samples: Mapping[str, Any],
        group: str,
        added_s: float | None,
        *,
        note: str = "",
        is_choosable: bool = True,
        batch: int | None = None,
        momentum: float | None = None,
    ) -> RemedyEstimate:
        """Return a remedy with the loss that follows from the samples of its
        statistics.

        Args:
            name, kind: of the remedy.
            samples: values of the outcome of an `EffectiveSamplesCell`.
            group: ranks that share statistics: '' for a rank by itself, 'host' or
                'all'.
            added_s: s that an epoch is longer.
            note, is_choosable: fields of the remedy.
            batch, momentum: samples that are normalised together and momentum of the
                remedy; the scenario's by default.
        """
        n = float(samples[f"n{group}"])
        global_inverse = 1.0 / float(self._base_samples["global"])
        extra_inverse = 1.0 / n - global_inverse
        scale = (
            float(samples["n"]) / n
        )  # the interval is an equal share of n for every group
        lowest = scale / samples["high"] - global_inverse
        highest = scale / samples["low"] - global_inverse
        return RemedyEstimate(
            name,
            kind,
            n,
            self._sensitivity.expected_loss(extra_inverse, lowest, highest),
            self._sensitivity.c * (1.0 / n - 1.0 / float(samples[f"global{group}"])),
            added_s,
            note=note,
            outside=self._untried_inputs(n, batch, momentum),
            is_choosable=is_choosable,
        )

    def _remedies(self) -> Iterator[RemedyEstimate]:
        """Yield all remedies of the run but the unchanged one."""
        yield from self._batch_remedies()
        yield from self._statistics_remedies()
        yield from self._exchange_remedies()
        loss = self._request.norm_free_sensitivity.expected_loss(0.0)
        name = "group norm"
        yield RemedyEstimate(
            name,
            name,
            None,
            loss,
            loss.points,
            0.0,
            OTHER_NETWORK_NOTE,
            is_choosable=False,
        )

    def _possible_changes(
        self, kinds: set[str]
    ) -> Iterator[tuple[Any, Mapping[str, Any], float]]:
        """Yield the possible changes, the samples of each, and its added seconds.

        Samples are the values of an `EffectiveSamplesCell`.
        """
        for change in self._case.changes:
            if change.kind in kinds and change.scenario is not None:
                seconds = self._seconds(change.name, change.scenario)
                yield change, self._samples_with(change.name), seconds - self._epoch_s

    def _impossible_changes(self, kinds: set[str]) -> Iterator[RemedyEstimate]:
        """Yield the remedies that cannot be had, with the reason as a note."""
        for change in self._case.changes:
            if change.kind in kinds and change.scenario is None:
                yield RemedyEstimate(
                    change.name,
                    change.kind,
                    None,
                    None,
                    note=change.reason,
                    is_choosable=False,
                )

    def _batch_remedies(self) -> Iterator[RemedyEstimate]:
        """Yield the remedies that enlarge the local batch."""
        note = "needs more memory, and a new learning rate"
        for change, samples, added_s in self._possible_changes({"local batch"}):
            batch = change.scenario.workload.local_batch_size
            yield self._remedy(
                change.name, change.kind, samples, "", added_s, note=note, batch=batch
            )
        yield from self._impossible_changes({"local batch"})

    def _statistics_remedies(self) -> Iterator[RemedyEstimate]:
        """Yield the remedies that change statistics, and leave the training as it is;
        with unknown layers those that sum in training or pool have no cost (None).
        """
        if self._request.momentum > SLOW_MOMENTUM:
            yield self._slow_momentum()

        sums = None
        cost_note = "; costs are not known, as its layers are not known"
        if self._request.channels:
            sums = self._outcomes[sums_cell_name(self._case)].values
            cost_note = ""
        yield self._recomputation(sums)

        world_size = self._case.world_size
        iterations = self._base_samples["iterations"]
        buffers = None if sums is None else sums["buffers"]
        note = f"at the end of an epoch{cost_note}; with 8 samples a rank a point remained lost"
        yield self._remedy(
            "pooled", "pooled", self._base_samples, "all", buffers, note=note
        )
        groups = {"host": ranks_of_host(self._case.base), "all": world_size}
        for name, ranks in groups.items():
            if name == "host" and ranks in (1, world_size):
                continue
            added_s = None if sums is None else iterations * sums[name]
            batch = ranks * self._case.base.workload.local_batch_size
            remedy_name = f"sync batch norm, {name}"
            note = f"summed layer by layer by the scenario's allreduce{cost_note}"
            yield self._remedy(
                remedy_name,
                "sync batch norm",
                self._base_samples,
                name,
                added_s,
                note=note,
                batch=batch,
            )

    def _slow_momentum(self) -> RemedyEstimate:
        """Return the remedy of a slower momentum of the running statistics.

        It may not be chosen where statistics then reach back over more than
        `LATE_SHARE` of the training.
        """
        epochs_back = FORGETTING_SPAN / SLOW_MOMENTUM / self._base_samples["iterations"]
        is_too_slow = epochs_back > LATE_SHARE * self._request.epochs
        note = ""
        if is_too_slow:
            note = f"too slow: statistics reach back {epochs_back:.2g} epochs, to older weights"
        return self._remedy(
            SLOW_MOMENTUM_NAME,
            "momentum",
            self._samples_with(SLOW_MOMENTUM_NAME),
            "",
            0.0,
            note=note,
            is_choosable=not is_too_slow,
            momentum=SLOW_MOMENTUM,
        )

    def _recomputation(self, sums: Mapping[str, Any] | None) -> RemedyEstimate:
        """Return the remedy that recomputes statistics under the weights that are
        evaluated.

        The samples are of the whole set (as after stochastic weight averaging, arXiv
        1803.05407): every sample once, so that n is their number; all ranks share them.
        Without ``sums`` the seconds lack those of summing, and the note says so.
        """
        workload = self._case.base.workload
        batch = workload.local_batch_size
        count = min(RECOMPUTED_SAMPLES, workload.dataset.num_samples)
        rank_samples = -(-count // self._case.world_size)

        # samples of each batch of a rank, of which the last one may be smaller
        batches = [batch] * (rank_samples // batch)
        if remainder := rank_samples % batch:
            batches.append(remainder)
        sizes = np.asarray(
            [num_samples * workload.mean_work for num_samples in batches]
        )
        forward = float(self._case.base.step_times.forward_of(sizes).sum())
        samples = dict.fromkeys(("n", "low", "high", "global"), float(count))
        note = "before every evaluation; the time leaves out reading the samples"
        note += ", and summing, as its layers are not known" * (sums is None)
        return self._remedy(
            f"recomputed on {count:,} samples",
            "recomputed",
            samples,
            "",
            forward + (0.0 if sums is None else sums["buffers"]),
            note=note,
        )

    def _exchange_remedies(self) -> Iterator[RemedyEstimate]:
        """Yield the remedies that change the exchange of samples."""
        for change, samples, added_s in self._possible_changes(
            {"partial", "oldest", "global"}
        ):
            if change.kind == "global":
                n = float(samples["n"])
                yield RemedyEstimate(change.name, change.kind, n, NO_LOSS, 0.0, added_s)
            else:
                yield self._remedy(change.name, change.kind, samples, "", added_s)
        yield from self._impossible_changes({"partial", "oldest", "global"})

    def _untried_inputs(
        self, n: float | None, batch: int | None = None, momentum: float | None = None
    ) -> str:
        """Return in words the inputs that were never tried; '' if there are none.

        They are values more than 1 % outside of what was tried when the sensitivity was
        measured, an unmeasured network, and another momentum. ``n`` is None without
        running statistics.
        """
        base = self._case.base
        sensitivity = self._sensitivity
        inputs: dict[str, float | None] = {
            "ranks": base.world_size,
            "samples a rank": -(-base.workload.dataset.num_samples // base.world_size),
            "n": n,
            "local batch": batch or base.workload.local_batch_size,
        }
        untried = [] if sensitivity.known else [f"network {sensitivity.model}"]
        for name, value in inputs.items():
            low, high = sensitivity.tried.get(name, (-math.inf, math.inf))
            if value is not None and not 0.99 * low <= value <= 1.01 * high:
                tried_range = format_number(low)
                if low != high:
                    tried_range += f" to {format_number(high)}"
                untried.append(f"{name} {format_number(value)} (tried: {tried_range})")
        statistics_momentum = momentum or self._request.momentum
        if n is not None and not math.isclose(
            statistics_momentum, sensitivity.momentum
        ):
            untried.append(
                f"momentum {statistics_momentum:g} (tried: {sensitivity.momentum:g})"
            )
        return "; ".join(untried)
