"""What is compared of a task: a training run, simulated or as the closed forms of the oracle have
it, and numbers as benchmarks measure them.

An allreduce or all-to-all with nothing else on the machine, buffers in GPU or host memory; reads
from a parallel file system while nobody computes and nothing is cached; MLPerf Storage, whose
accelerators only pause and wait for what hosts read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from simshuffle.errors import InputError, Problem
from simshuffle.fabric.topology import Custom
from simshuffle.job.lowering.division import communicators_of, job_of
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.exchange_bound import expected_largest
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.spec.library import read_value
from simshuffle.spec.rng import stream
from simshuffle.spec.units import Dimension, parse_quantity
from simshuffle.studies.alltoall import alltoalls_of_scenario, parse_algorithms
from simshuffle.studies.collective import bench_of_scenario

QUANTITIES = ("steady epoch", "first epoch", "staging", "throughput", "run time")
PARTS = (
    *("compute", "communication", "compute and communication", "epoch"),
    *("iteration", "iteration with input"),
)
"""The first four of an epoch, which alone of them has the input; 'iteration' is compute and
communication of one."""
INPUT = "input"
"""What a group does to give its members their part of the samples, which reports of compute and
communication leave out."""
ALLREDUCE = ("time", "bus bandwidth", "algorithm bandwidth")
ALLTOALL = ("time",)
READ = ("read bandwidth", "file rate")
EMULATED = ("utilisation", "throughput", "largest count")
STEPS, FEWEST_STEPS = 400, 200
"""Steps of a run of few accelerators and of many, which vary less together. The second half counts:
what loaders read ahead at the start, 8 batches, is used up by then."""
ALL_STEPS = 25_600
"""Of all accelerators of a run."""
ENOUGH = 128
"""Accelerators of a run: of more, as many hosts as have so many stand for all, with their part of
the servers."""


def load(scenario: str, values: Mapping[str, str]) -> Scenario:
    """A scenario, by its name below ``scenarios/``, with other values, given as text.

    Raises:
        ScenarioError: the scenario or a value is not valid.
    """
    return load_scenario(scenario, {key: read_value(text, key) for key, text in values.items()})


def check_quantity(name: str, known: Sequence[str]) -> None:
    """See that a quantity is known; an InputError if it is not."""
    if name not in known:
        rule = f"must be one of {', '.join(known)}"
        raise InputError(Problem("quantity", rule, repr(name), "Choose one."))


@dataclass(frozen=True)
class RunTimes:
    """What is compared of a simulated run."""

    epochs: Sequence[float]  # (epochs,) s of each epoch, the cold first one included
    staging: float  # s of copying before the first epoch
    samples: int  # samples trained on in the last epoch

    def quantity(self, name: str) -> float:
        """The value of one of `QUANTITIES`: s, or samples/s for the throughput.

        Raises:
            InputError: there is no such quantity, or the run has a single epoch and the steady ones
                are asked for.
        """
        check_quantity(name, QUANTITIES)
        if name == "first epoch":
            return self.epochs[0]
        if name == "staging":
            return self.staging
        if name == "run time":
            return sum(self.epochs)
        if len(self.epochs) < 2:
            rule = f"must be at least 2 for a {name}"
            raise InputError(Problem("epochs", rule, "1", "Set epochs=2."))
        steady = median(self.epochs[1:])
        return steady if name == "steady epoch" else self.samples / steady


def times(scenario: str, values: Mapping[str, str]) -> RunTimes:
    """Simulate a scenario; arguments and errors as of `load`."""
    timeline = simulate(load(scenario, values))
    table = report.epochs(timeline)
    samples = int(timeline.sources["samples"].iloc[-1])
    return RunTimes(table["epoch_s"].tolist(), float(table["staging_s"].iloc[0]), samples)


@dataclass(frozen=True)
class IterationParts:
    """What an iteration takes, in s."""

    iterations: float  # of an epoch, with a part of one at its end
    compute: float  # of the rank that computes longest
    # that nothing hides, with pipeline bubbles and waiting for the slowest, and without the input
    communication: float
    handed: float  # handing round the input within groups
    read: float  # what the slowest resource needs through which the samples come

    def quantity(self, name: str) -> float:
        """One of `PARTS` (s).

        Raises:
            InputError: there is no such quantity.
        """
        check_quantity(name, PARTS)
        both = self.compute + self.communication
        whole = max(both + self.handed, self.read)
        each = (self.compute, self.communication, both, whole)
        return (*(self.iterations * s for s in each), both, whole)[PARTS.index(name)]


def parts_of(scenario: str, values: Mapping[str, str]) -> IterationParts:
    """What an iteration takes as a scenario, whose model lists its layers, divides training, alone
    on the machine; arguments and errors as of `load`."""
    resolved = load(scenario, values)
    workload, world_size = resolved.workload, resolved.world_size
    parallelism, job = workload.parallelism, job_of(resolved)
    resources = Resources(resolved.cluster, world_size, stream(resolved.seed, "placement"))
    costs = parallelism.step(job).costs(communicators_of(resolved, resources).seconds)
    handed = costs.by_label.get(INPUT, 0.0)
    waiting = costs.compute * (expected_largest(world_size, workload.jitter.compute) - 1.0)
    found = bounds(resolved)
    return IterationParts(
        iterations=workload.dataset.num_samples / (world_size * job.batch),
        compute=costs.compute,
        communication=costs.exposed + costs.bubble - handed + waiting,
        handed=handed,
        read=max(found.resources.values()) / found.iterations,
    )


def _take(
    values: dict[str, str], example: str, read: Callable[[str], float], default: str = ""
) -> float:
    """Take out of the values of a row that which ``example`` assigns, a number above 0; an
    InputError if it is none."""
    key = example.partition("=")[0]
    text = values.pop(key, default)
    try:
        value = read(text)
    except ValueError:
        value = 0.0
    if value <= 0:
        rule, remedy = f"must say {key}, above 0", f"Add for example {example}."
        raise InputError(Problem("values", rule, repr(text), remedy))
    return value


def _nbytes(text: str) -> float:
    return parse_quantity(text, Dimension.NBYTES)


def _share(text: str) -> float:
    return value if (value := float(text)) < 1.0 else 0.0


# ---------------------------------------------------------------------------------------- allreduce


def allreduce(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """The time (s) of one allreduce over all ranks of a scenario, or its bandwidth (bytes/s).

    Bandwidths are those that nccl-tests prints: n bytes over the time, and 2 (M-1)/M times that for
    the bus.

    Args:
        scenario: its name below ``scenarios/``; of its workload, only ``allreduce`` is used.
        values: ``nbytes``, the bytes of the buffer; all others are set in the scenario.
        quantity: one of `ALLREDUCE`.

    Raises:
        InputError: there is no such quantity, or a value is missing or not valid.
    """
    check_quantity(quantity, ALLREDUCE)
    chosen = dict(values)
    nbytes = _take(chosen, "nbytes=16 MiB", _nbytes)
    resolved = load(scenario, chosen)
    seconds = bench_of_scenario(resolved).seconds(nbytes)
    if quantity == "time":
        return seconds
    ranks = resolved.world_size
    share = 2 * (ranks - 1) / ranks if quantity == "bus bandwidth" else 1.0
    return share * nbytes / seconds


def alltoall(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """The time (s) of one all-to-all over all ranks of a scenario.

    Args:
        scenario: its name below ``scenarios/``; only its cluster and number of ranks are used.
        values: ``nbytes``, the bytes for each pair of ranks, and ``algorithm``, one of
            `simshuffle.job.lowering.alltoalls.ALGORITHMS`; all others are set in the scenario.
        quantity: one of `ALLTOALL`.

    Raises:
        InputError: there is no such quantity, or a value is missing or not valid.
    """
    check_quantity(quantity, ALLTOALL)
    chosen = dict(values)
    nbytes = _take(chosen, "nbytes=16 B", _nbytes)
    (algorithm,) = parse_algorithms(chosen.pop("algorithm", ""))
    return alltoalls_of_scenario(load(scenario, chosen)).seconds(algorithm, nbytes)


# -------------------------------------------------------------------------------------------- reads


def read(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """Bytes/s that hosts read from large files, or small files/s that processes open and read.

    Args:
        scenario: its name below ``scenarios/``; only its file system and hosts' links are used.
        values: ``clients``, the hosts that read; ``tasks``, their processes in all (default: one
            each), each with one file open at a time; ``file_size`` for the file rate; all others
            are set in the scenario.
        quantity: one of `READ`.

    Raises:
        InputError: there is no such quantity, or a value is missing or not valid.
    """
    check_quantity(quantity, READ)
    chosen = dict(values)
    clients = int(_take(chosen, "clients=10", int))
    tasks = int(_take(chosen, "tasks=10", int, str(clients)))
    size = {"file_size": chosen.pop("file_size", "")}
    resolved = load(scenario, chosen)
    bandwidth = read_bandwidth(resolved, clients)
    if quantity == "read bandwidth":
        return bandwidth
    nbytes = _take(size, "file_size=3901 B", _nbytes)
    # the least of the servers' operations, of the bandwidth, and of the processes, each of which
    # opens and reads one file after the other and waits for the latency of an open
    servers = resolved.cluster.parallel_file_system
    alone = servers.open_cap(1, 1, in_flight=tasks)
    return min(servers.free_open_rate, bandwidth / nbytes, alone)


def read_bandwidth(scenario: Scenario, clients: int) -> float:
    """Bytes/s over all servers that ``clients`` hosts reach together: the least of the servers, the
    clients' software and their links."""
    cluster = scenario.cluster
    servers, topology = cluster.parallel_file_system, cluster.topology
    bounds = [servers.free_bandwidth]
    if servers.client_bandwidth is not None:
        bounds.append(clients * servers.client_bandwidth(clients))
    if not isinstance(topology, Custom):
        bounds.append(clients * cluster.host.hcas * topology.link_bandwidth)
    return min(bounds)


# ---------------------------------------------------------------------------- emulated accelerators


def emulated(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """The share of the time for which accelerators pause, as if they computed; the samples a second
    that they get; or how many pass.

    A number of accelerators passes if they pause for ``share`` of the time at least. Every host has
    equally many.

    Args:
        scenario: its name below ``scenarios/``.
        values: ``hosts``; ``share`` for the largest count, ``accelerators`` in all for the others;
            all else is set in the scenario.
        quantity: one of `EMULATED`.

    Raises:
        InputError: there is no such quantity, or a value is missing or not valid.
    """
    check_quantity(quantity, EMULATED)
    chosen = dict(values)
    hosts = int(_take(chosen, "hosts=2", int))
    if quantity == "largest count":
        return float(hosts * _largest(scenario, chosen, hosts, _take(chosen, "share=0.9", _share)))
    count = int(_take(chosen, "accelerators=2", int))
    if count % hosts:
        rule = f"must be as many on each of {hosts} hosts"
        raise InputError(Problem("values", rule, f"accelerators={count}", "Change one of them."))
    reached = utilisation(scenario, chosen, hosts, count // hosts)
    if quantity == "utilisation":
        return reached
    return reached * count / _pause(load(scenario, chosen))


def utilisation(scenario: str, values: Mapping[str, str], hosts: int, each: int) -> float:
    """Share of the time for which accelerators pause, ``each`` of them on every one of ``hosts``;
    the others as of `emulated`, without its own keys."""
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
    binds: the bytes that a host gets over those that one of them asks for meanwhile. Arguments as
    of `emulated`, without its own keys."""
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
