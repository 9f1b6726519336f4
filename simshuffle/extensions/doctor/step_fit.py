"""Fit the times of a training's steps, as the accelerator of a scenario has them."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from simshuffle.extensions.doctor.fitted import SECONDS, MeasuredValues
from simshuffle.extensions.doctor.laws import ValueWithInterval, robust_spread, step_law
from simshuffle.spec.units import readable


@dataclass(frozen=True)
class FittedSteps:
    """The law of the steps of the fewest ranks."""

    # keys of the scenario's accelerator: forward and backward (s of a sample, with unit), update,
    # and either fixed or measured_batch (samples)
    times: dict[str, str | int]
    # `step_rows`, with the column own_s: s of a step without waits, update and collectives
    table: pd.DataFrame
    fixed_s: float  # s of a step beside its samples and update
    per_sample_s: float  # s of a step for each sample
    step_s: float  # s of the step of a full batch with its update, without collectives
    notes: tuple[str, ...]  # on what could not be seen

    def jitter(self) -> float:
        """Return how much steps vary beside their law: standard deviation over mean, of
        the middle two thirds, to four decimals.
        """
        law_s = self.fixed_s + self.per_sample_s * self.table["samples"]
        return round(robust_spread(self.table["own_s"] / law_s), 4)


def fit_steps(
    key: str,
    steps: pd.DataFrame,
    batch_size: int,
    *,
    sums_gradients: bool,
    measured: MeasuredValues,
) -> FittedSteps:
    """Fit the times of a step, without waits for a core or of several ranks for one
    another.

    The fixed part is known only if batches of several sizes tell it apart; else the
    times name the batch size at which they were measured. Passes that were not timed
    are split 1:2. The update is the median of the optimizer's times; 0 if not timed.

    Args:
        key: of the times in the scenario, dotted.
        steps: `step_rows` of the fewest ranks.
        batch_size: samples of a full batch.
        sums_gradients: whether there are several ranks: then their collectives are no
            part of the law.
        measured: is extended by the times, but for the update.
    """
    parts = steps[["forward", "backward", "optimizer", "allreduce"]]
    update_s = parts["optimizer"].median() if parts["optimizer"].notna().any() else 0.0
    collective_s = parts["allreduce"].fillna(0.0) if sums_gradients else 0.0
    own_s = steps["seconds"] - steps["queued_s"].fillna(0.0) - update_s - collective_s
    # a step of which nothing would be left keeps its waits and collectives
    own_s = own_s.where(own_s > 0, steps["seconds"] - update_s).clip(lower=1e-9)
    table = steps.assign(own_s=own_s)
    fixed, per_sample, is_separable = step_law(table)

    passes = parts[["forward", "backward"]].sum()
    forward_share = passes["forward"] / passes.sum() if passes.all() else 1 / 3
    times: dict[str, str | int] = {}
    for name, share in (("forward", forward_share), ("backward", 1 - forward_share)):
        note = (
            f"{share:.0%} of the passes"
            if passes.all()
            else "split 1:2, the usual rule"
        )
        seconds = ValueWithInterval(
            per_sample.value * share, per_sample.low * share, per_sample.high * share
        )
        times[name] = measured.note(f"{key}.{name}", seconds, SECONDS, note)
    times["update"] = readable(update_s, SECONDS, 6)
    notes: tuple[str, ...] = ()
    if is_separable:
        note = (
            "time of a step that does not grow with the batch, from several batch sizes"
        )
        times["fixed"] = measured.note(f"{key}.fixed", fixed, SECONDS, note)
    else:
        times["measured_batch"] = batch_size
        notes = ("All batches have one size: the fixed part of a step is a prior.",)
    return FittedSteps(
        times=times,
        table=table,
        fixed_s=fixed.value,
        per_sample_s=per_sample.value,
        step_s=fixed.value + per_sample.value * batch_size + update_s,
        notes=notes,
    )


def busy_cores(steps: pd.DataFrame, threads: int, on_cpu: bool) -> float:
    """Return the mean number of cores that a rank keeps busy in its step, at most
    ``threads``.

    It is ``threads`` times the share of the step in which its own thread has a core.

    Args:
        steps: `step_rows`.
        threads: that compute a step: 1 where an accelerator does.
        on_cpu: whether steps compute on a CPU. If no step's core time is known, all of
            the time counts on a CPU, and none on an accelerator.
    """
    timed_steps = steps[steps["core_s"].notna()]
    share = float(on_cpu)
    if len(timed_steps):
        share = timed_steps["core_s"].sum() / timed_steps["seconds"].sum()
    return float(min(share, 1.0) * threads)
