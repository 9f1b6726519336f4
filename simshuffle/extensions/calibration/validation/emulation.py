"""Compute the quantities of MLPerf Storage: emulated accelerators pause and wait for
samples.
"""

from __future__ import annotations

from collections.abc import Mapping

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.calibration.validation.answers import (
    check_quantity,
    load_with_values,
    parse_share,
    take_number,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.simulate import simulate

EMULATION = ("utilisation", "throughput", "largest count")
MAX_STEPS, MIN_STEPS = 400, 200
"""Steps of a run of few accelerators and of many, which vary less together. The second
half counts: what loaders read ahead at the start, 8 batches, is used up by then.
"""
TOTAL_STEPS = 25_600
"""Of all accelerators of a run."""
MAX_ACCELERATORS = 128
"""Accelerators of a run: of more, as many hosts as have so many stand for all, with
their part of the servers.
"""


def emulate_accelerators(
    scenario: str, values: Mapping[str, str], quantity: str
) -> float:
    """Compute one quantity of emulated accelerators, which pause as if they computed.

    'utilisation' is the share of the time for which they pause, 'throughput' the
    samples/s of all together, and 'largest count' how many pass on all hosts, 0 if
    none. A number of accelerators passes if they pause for ``share`` of the time at
    least. Every host has equally many.

    Args:
        scenario: its name below ``scenarios/``.
        values: ``hosts``; ``share``, below 1, for the largest count; ``accelerators``
            in all for the others; all else is set in the scenario.
        quantity: one of `EMULATION`.

    Raises:
        InputError: there is no such quantity, a value is missing or not valid, or
            ``accelerators`` is no multiple of ``hosts``.
    """
    check_quantity(quantity, EMULATION)
    scenario_values = dict(values)
    hosts = int(take_number(scenario_values, "hosts=2", int))
    if quantity == "largest count":
        share = take_number(scenario_values, "share=0.9", parse_share)
        return float(
            hosts * largest_passing_count(scenario, scenario_values, hosts, share)
        )
    count = int(take_number(scenario_values, "accelerators=2", int))
    if count % hosts:
        rule = f"must put equally many accelerators on each of {hosts} hosts"
        raise InputError(
            Problem("values", rule, f"accelerators={count}", "Change one number.")
        )
    pausing_share = utilisation(scenario, scenario_values, hosts, count // hosts)
    if quantity == "utilisation":
        return pausing_share
    return (
        pausing_share
        * count
        / seconds_of_pause(load_with_values(scenario, scenario_values))
    )


def utilisation(
    scenario: str, values: Mapping[str, str], hosts: int, accelerators_per_host: int
) -> float:
    """Compute the share (0 to 1) of the time for which accelerators pause, in the
    second half of a run.

    Of more than `MAX_ACCELERATORS` fewer hosts are simulated, with their part of the
    servers. The data set is as large as the run needs.

    Args:
        scenario: its name below ``scenarios/``.
        values: set in the scenario, without ``hosts``, ``share`` and ``accelerators``.
        hosts: hosts that read.
        accelerators_per_host: accelerators of every host.
    """
    servers = load_with_values(scenario, values).cluster.parallel_file_system
    simulated_hosts = max(1, min(hosts, MAX_ACCELERATORS // accelerators_per_host))
    count = simulated_hosts * accelerators_per_host
    sized_values = {
        **values,
        "cluster.host.gpus": str(accelerators_per_host),
        "world_size": str(count),
    }
    if simulated_hosts < hosts:
        storage_key = "cluster.parallel_file_system"
        read_bandwidth = servers.read_bandwidth * simulated_hosts / hosts
        open_rate = servers.open_rate * simulated_hosts / hosts
        sized_values[f"{storage_key}.read_bandwidth"] = f"{read_bandwidth} B/s"
        sized_values[f"{storage_key}.open_rate"] = f"{open_rate} /s"
        if servers.client_bandwidth is not None:
            client_bandwidth = servers.client_bandwidth(hosts)
            sized_values[f"{storage_key}.client_bandwidth"] = f"{client_bandwidth} B/s"
    batch = load_with_values(scenario, sized_values).workload.local_batch_size
    steps = min(MAX_STEPS, max(MIN_STEPS, TOTAL_STEPS // count))
    resolved = load_with_values(
        scenario,
        {**sized_values, "workload.dataset.num_samples": f"{steps * count * batch}"},
    )
    phases = simulate(resolved).phases
    step_ends = (
        phases[phases["phase"] == "backward"].groupby("iteration")["end_s"].max()
    )
    seconds = (step_ends[steps] - step_ends[steps // 2]) / (steps - steps // 2)
    return float(batch * seconds_of_pause(resolved) / seconds)


def bandwidth_bound_count(
    scenario: str, values: Mapping[str, str], hosts: int, share: float
) -> int:
    """Return how many accelerators of a host can be fed if only bandwidth binds,
    rounded down, maybe to 0.

    Fed accelerators pause for ``share`` of the time. The number is the bytes that a
    host gets over the bytes that one accelerator asks for meanwhile. ``hosts`` read at
    once; ``values`` are set in the scenario.
    """
    resolved = load_with_values(scenario, values)
    servers = resolved.cluster.parallel_file_system
    bandwidth = servers.free_bandwidth / hosts
    if servers.client_bandwidth is not None:
        bandwidth = min(bandwidth, servers.client_bandwidth(hosts))
    sample_nbytes = resolved.workload.dataset.stored.mean
    return int(bandwidth * seconds_of_pause(resolved) / (sample_nbytes * share))


def seconds_of_pause(scenario: Scenario) -> float:
    """Return the seconds that the scenario's accelerator pauses for each sample."""
    accelerator = scenario.cluster.host.accelerator
    return scenario.workload.model.accelerators[accelerator].per_sample


def largest_passing_count(
    scenario: str, values: Mapping[str, str], hosts: int, share: float
) -> int:
    """Find the largest number of accelerators of a host that pass; 0 if not even one
    passes.

    More accelerators never pause for a larger share. The search begins at what
    bandwidth alone would feed, goes on in growing steps, then by halves.
    """
    guess = max(1, bandwidth_bound_count(scenario, values, hosts, share))
    passing = 0
    failing = 0  # 0 while no count has failed
    trial = guess
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
