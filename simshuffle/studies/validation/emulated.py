"""Predictions of MLPerf Storage: accelerators that only pause, and wait for what hosts read."""

from __future__ import annotations

from collections.abc import Mapping

from simshuffle.errors import InputError, Problem
from simshuffle.sim.simulate import simulate
from simshuffle.studies.validation.runs import load

QUANTITIES = ("utilisation", "largest count")
STEPS = 400
"""Steps of a run, of which the second half counts: what loaders read ahead at the start is used up
by then."""


def predict(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """The share of the time for which accelerators pause, as if they computed, or how many pass.

    A number of accelerators passes if they pause for ``share`` of the time at least. Every host has
    equally many.

    Args:
        scenario: its name below ``scenarios/``.
        values: ``hosts``; ``accelerators`` in all for the utilisation, ``share`` for the largest
            count; all others are set in the scenario.
        quantity: one of `QUANTITIES`.

    Raises:
        InputError: there is no such quantity, or a count or share is missing or not valid, or a
            value of the scenario is not valid.
    """
    if quantity not in QUANTITIES:
        rule = f"must be one of {', '.join(QUANTITIES)}"
        raise InputError(Problem("quantity", rule, repr(quantity), "Choose one."))
    chosen = dict(values)
    hosts = _whole("hosts", chosen.pop("hosts", ""))
    if quantity == "largest count":
        share = _share(chosen.pop("share", ""))
        return float(hosts * _largest(scenario, chosen, hosts, share))
    count = _whole("accelerators", chosen.pop("accelerators", ""))
    if count % hosts:
        rule = f"must be as many on each of {hosts} hosts"
        raise InputError(Problem("values", rule, f"accelerators={count}", "Change one of them."))
    return utilisation(scenario, chosen, hosts, count // hosts)


def utilisation(scenario: str, values: Mapping[str, str], hosts: int, each: int) -> float:
    """Share of the time for which accelerators pause, ``each`` of them on every one of ``hosts``.

    Args:
        scenario, values: as of `predict`, without its own keys.
        hosts, each: counts.
    """
    count = hosts * each
    sized = {**values, "cluster.host.gpus": str(each), "world_size": str(count)}
    batch = load(scenario, sized).workload.local_batch_size
    resolved = load(scenario, {**sized, "workload.dataset.num_samples": f"{STEPS * count * batch}"})
    phases = simulate(resolved).phases
    ends = phases[phases["phase"] == "backward"].groupby("iteration")["end_s"].max()
    seconds = (ends[STEPS] - ends[STEPS // 2]) / (STEPS - STEPS // 2)
    step = resolved.workload.model.accelerators[resolved.cluster.host.accelerator]
    return float(batch * step.per_sample / seconds)


def _largest(scenario: str, values: Mapping[str, str], hosts: int, share: float) -> int:
    """Of a host; 0 if not even one passes. More accelerators never pause for a larger share."""

    def of(each: int) -> float:
        return utilisation(scenario, values, hosts, each)

    above = 1
    while (reached := of(above)) >= share:
        above *= 2
    below = above // 2
    guess = int(reached * above / share)  # where a bandwidth binds, n of them get 1/n of it each
    while above - below > 1:
        middle = min(max(guess, below + 1), above - 1)
        below, above = (middle, above) if of(middle) >= share else (below, middle)
    return below


def _whole(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        rule = f"of emulated accelerators must have a count of {name}"
        raise InputError(Problem("values", rule, repr(text), f"Add for example {name}=2."))
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.0 < share < 1.0:
        rule = "of a largest count must say which share of the time passes"
        raise InputError(Problem("values", rule, repr(text), "Add for example share=0.9."))
    return share
