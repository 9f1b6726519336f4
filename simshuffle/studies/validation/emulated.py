"""Predictions of MLPerf Storage: accelerators that only pause, and wait for what hosts read."""

from __future__ import annotations

from collections.abc import Mapping

from simshuffle.errors import InputError, Problem
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.simulate import simulate
from simshuffle.studies.validation.runs import load

QUANTITIES = ("utilisation", "throughput", "largest count")
STEPS, FEWEST_STEPS = 400, 200
"""Steps of a run of few accelerators and of many, which vary less together. The second half counts:
what loaders read ahead at the start, 8 batches, is used up by then."""
ALL_STEPS = 25_600
"""Of all accelerators of a run."""
ENOUGH = 128
"""Accelerators of a run: of more, as many hosts as have so many stand for all, with their part of
the servers."""


def predict(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """The share of the time for which accelerators pause, as if they computed; the samples a second
    that they get; or how many pass.

    A number of accelerators passes if they pause for ``share`` of the time at least. Every host has
    equally many.

    Args:
        scenario: its name below ``scenarios/``.
        values: ``hosts``; ``share`` for the largest count, ``accelerators`` in all for the others;
            all else is set in the scenario.
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
    reached = utilisation(scenario, chosen, hosts, count // hosts)
    if quantity == "utilisation":
        return reached
    return reached * count / _pause(load(scenario, chosen))


def utilisation(scenario: str, values: Mapping[str, str], hosts: int, each: int) -> float:
    """Share of the time for which accelerators pause, ``each`` of them on every one of ``hosts``.

    Args:
        scenario, values: as of `predict`, without its own keys.
        hosts, each: counts.
    """
    servers = load(scenario, values).cluster.parallel_file_system
    part = max(1, min(hosts, ENOUGH // each))
    count = part * each
    sized = {**values, "cluster.host.gpus": str(each), "world_size": str(count)}
    if part < hosts:
        at = "cluster.parallel_file_system"
        sized[f"{at}.read_bandwidth"] = f"{servers.read_bandwidth * part / hosts} B/s"
        sized[f"{at}.open_rate"] = f"{servers.open_rate * part / hosts} /s"
        if servers.client_bandwidth is not None:
            sized[f"{at}.client_bandwidth"] = f"{servers.client_bandwidth(hosts)} B/s"
    batch = load(scenario, sized).workload.local_batch_size
    steps = min(STEPS, max(FEWEST_STEPS, ALL_STEPS // count))
    resolved = load(scenario, {**sized, "workload.dataset.num_samples": f"{steps * count * batch}"})
    phases = simulate(resolved).phases
    ends = phases[phases["phase"] == "backward"].groupby("iteration")["end_s"].max()
    seconds = (ends[steps] - ends[steps // 2]) / (steps - steps // 2)
    return float(batch * _pause(resolved) / seconds)


def fed(scenario: str, values: Mapping[str, str], hosts: int, share: float) -> int:
    """How many accelerators of a host pause for ``share`` of the time if nothing but bandwidth
    binds: the bytes that a host gets over those that one of them asks for meanwhile.

    Args:
        scenario, values: as of `predict`, without its own keys.
        hosts, share: as of `predict`.
    """
    resolved = load(scenario, values)
    servers = resolved.cluster.parallel_file_system
    bandwidth = servers.free_bandwidth / hosts
    if servers.client_bandwidth is not None:
        bandwidth = min(bandwidth, servers.client_bandwidth(hosts))
    size = resolved.workload.dataset.stored.mean
    return int(bandwidth * _pause(resolved) / (size * share))


def _pause(scenario: Scenario) -> float:
    """Seconds of a pause for each sample."""
    accelerator = scenario.cluster.host.accelerator
    return scenario.workload.model.accelerators[accelerator].per_sample


def _largest(scenario: str, values: Mapping[str, str], hosts: int, share: float) -> int:
    """Of a host; 0 if not even one passes. More accelerators never pause for a larger share.

    Searched from what bandwidth alone would feed, in growing steps, then by halves.
    """
    guess = max(1, fed(scenario, values, hosts, share))
    passing, failing, trial = 0, 0, guess
    while failing - passing != 1:
        if utilisation(scenario, values, hosts, trial) >= share:
            passing = trial
        else:
            failing = trial
        if not failing:
            trial = passing + (passing - guess + 1)
        elif not passing:
            trial = max(1, failing - (guess - failing + 1))
        else:
            trial = (passing + failing) // 2
    return passing


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
