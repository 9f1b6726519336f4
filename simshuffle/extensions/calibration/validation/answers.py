"""Compute the quantities that the rows of the validation compare.

They are a training run, simulated or as the closed forms of the oracle have it, and
numbers as benchmarks measure them: an allreduce or all-to-all with nothing else on the
machine, buffers in GPU or host memory; reads from a parallel file system while nobody
computes and nothing is cached. `simshuffle.extensions.calibration.validation.emulation`
has those of MLPerf Storage.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from simshuffle.errors import InputError, Problem
from simshuffle.fabric.topology import Custom
from simshuffle.job.lowering.alltoalls import Alltoalls
from simshuffle.job.lowering.division import communicators_of, job_of
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.exchange_bound import expected_largest
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.scenario import Scenario, load_scenario
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.spec.library import read_value
from simshuffle.spec.record import CacheArgument
from simshuffle.spec.rng import stream
from simshuffle.spec.units import Dimension, parse_quantity
from simshuffle.studies.alltoall import alltoalls_of_scenario, parse_algorithms
from simshuffle.studies.collective import bench_of_scenario

QUANTITIES = ("steady epoch", "first epoch", "staging", "throughput", "run time")
PARTS = (
    *("compute", "communication", "compute and communication", "epoch"),
    *("iteration", "iteration with input"),
)
"""The first four are of an epoch, the others of an iteration. Only 'epoch' and 'iteration
with input' include the input.
"""
INPUT = "input"
"""What a group does to give its members their part of the samples, which reports of
compute and communication leave out.
"""
ALLREDUCE = ("time", "bus bandwidth", "algorithm bandwidth")
ALLTOALL = ("time",)
READ = ("read bandwidth", "file rate")


def load_with_values(scenario: str, values: Mapping[str, str]) -> Scenario:
    """Load a scenario by its name below ``scenarios/``, with other values, given as
    text.

    Raises:
        ScenarioError: the scenario or a value is not valid.
    """
    return load_scenario(
        scenario, {key: read_value(text, key) for key, text in values.items()}
    )


def check_quantity(name: str, known_names: Sequence[str]) -> None:
    """Check that a quantity is one of ``known_names``.

    Raises:
        InputError: it is not.
    """
    if name not in known_names:
        rule = f"must be one of {', '.join(known_names)}"
        raise InputError(Problem("quantity", rule, repr(name), "Choose one."))


@dataclass(frozen=True)
class RunTimes:
    """The times of a simulated run that rows of the validation compare."""

    epochs: Sequence[float]  # (epochs,) s of each epoch, the cold first one included
    staging: float  # s of copying before the first epoch
    samples: int  # samples trained on in the last epoch

    def quantity(self, name: str) -> float:
        """Return the value of one of `QUANTITIES`: s, or samples/s for the throughput.

        The steady epoch is the median of all epochs after the first; the throughput is
        the samples of the last epoch over the steady epoch. The run time is the sum of
        ``epochs``; ``staging`` is not added.

        Raises:
            InputError: there is no such quantity, or the run has a single epoch and the
                steady ones are asked for.
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
        steady_seconds = median(self.epochs[1:])
        return (
            steady_seconds if name == "steady epoch" else self.samples / steady_seconds
        )


def simulate_run(scenario: str, values: Mapping[str, str]) -> RunTimes:
    """Simulate a scenario; arguments and errors as of `load_with_values`."""
    timeline = simulate(load_with_values(scenario, values))
    table = report.epochs(timeline)
    samples = int(timeline.sources["samples"].iloc[-1])
    return RunTimes(
        table["epoch_s"].tolist(), float(table["staging_s"].iloc[0]), samples
    )


@dataclass(frozen=True)
class IterationParts:
    """The seconds that the parts of an iteration take, and the iterations of an epoch."""

    iterations: float  # of an epoch, with a part of one at its end
    compute: float  # of the rank that computes longest
    # that nothing hides, with pipeline bubbles and waiting for the slowest, and without the input
    communication: float
    handed: float  # handing round the input within groups
    read: float  # what the slowest resource needs through which the samples come

    def quantity(self, name: str) -> float:
        """Return the value (s) of one of `PARTS`.

        Reading overlaps with the rest. With input, an iteration takes the longer of
        ``read`` and the sum of ``compute``, ``communication`` and ``handed``.

        Raises:
            InputError: there is no such quantity.
        """
        check_quantity(name, PARTS)
        compute_and_communication = self.compute + self.communication
        with_input = max(compute_and_communication + self.handed, self.read)
        seconds_of_part = {
            "compute": self.iterations * self.compute,
            "communication": self.iterations * self.communication,
            "compute and communication": self.iterations * compute_and_communication,
            "epoch": self.iterations * with_input,
            "iteration": compute_and_communication,
            "iteration with input": with_input,
        }
        return seconds_of_part[name]


def iteration_parts(scenario: str, values: Mapping[str, str]) -> IterationParts:
    """Compute the parts of an iteration by the closed forms, as a scenario divides
    training, alone on the machine.

    The model of the scenario lists its layers. Arguments and errors as of
    `load_with_values`.
    """
    resolved = load_with_values(scenario, values)
    workload = resolved.workload
    world_size = resolved.world_size
    job = job_of(resolved)
    resources = Resources(
        resolved.cluster, world_size, stream(resolved.seed, "placement")
    )
    costs = workload.parallelism.step(job).costs(
        communicators_of(resolved, resources).seconds
    )
    handed_seconds = costs.by_label.get(INPUT, 0.0)
    waiting_seconds = costs.compute * (
        expected_largest(world_size, workload.jitter.compute) - 1.0
    )
    limits = bounds(resolved)
    return IterationParts(
        iterations=workload.dataset.num_samples / (world_size * job.batch),
        compute=costs.compute,
        communication=costs.exposed + costs.bubble - handed_seconds + waiting_seconds,
        handed=handed_seconds,
        read=max(limits.resources.values()) / limits.iterations,
    )


def take_number(
    values: dict[str, str],
    example: str,
    read: Callable[[str], float],
    default: str = "",
) -> float:
    """Remove the value that ``example`` assigns from the values of a row, and return
    it.

    Args:
        values: texts by key; the key of ``example`` is removed.
        example: such as 'hosts=2', for the error.
        read: parses the text of the value; raises ValueError if it cannot.
        default: text of a value that is not there.

    Raises:
        InputError: the value is no number above 0.
    """
    key = example.partition("=")[0]
    text = values.pop(key, default)
    try:
        value = read(text)
    except ValueError:
        value = 0.0
    if value <= 0:
        rule = f"must have {key}=NUMBER, above 0"
        remedy = f"Add {key}, for example {example}."
        raise InputError(Problem("values", rule, repr(text), remedy))
    return value


def parse_nbytes(text: str) -> float:
    """Return the bytes of a size with its unit, such as '16 MiB'."""
    return parse_quantity(text, Dimension.NBYTES)


def parse_share(text: str) -> float:
    """Return a share below 1; 0 for 1 and more, which `take_number` then refuses."""
    return value if (value := float(text)) < 1.0 else 0.0


# ---------------------------------------------------------------------------------------- allreduce


def measure_allreduce(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """Compute the time (s) of one allreduce over all ranks of a scenario, or its
    bandwidth (bytes/s).

    Bandwidths are those that nccl-tests prints: n bytes over the time, and 2 (M-1)/M
    times that for the bus.

    Args:
        scenario: its name below ``scenarios/``; of its workload, only ``allreduce`` is
            used.
        values: ``nbytes``, the bytes of the buffer; all others are set in the scenario.
        quantity: one of `ALLREDUCE`.

    Raises:
        InputError: there is no such quantity, or a value is missing or not valid.
    """
    check_quantity(quantity, ALLREDUCE)
    scenario_values = dict(values)
    nbytes = take_number(scenario_values, "nbytes=16 MiB", parse_nbytes)
    resolved = load_with_values(scenario, scenario_values)
    seconds = bench_of_scenario(resolved).seconds(nbytes)
    if quantity == "time":
        return seconds
    ranks = resolved.world_size
    share = 2 * (ranks - 1) / ranks if quantity == "bus bandwidth" else 1.0
    return share * nbytes / seconds


def measure_alltoall(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """Compute the time (s) of one all-to-all over all ranks of a scenario.

    Args:
        scenario: its name below ``scenarios/``; only its cluster and number of ranks
            are used.
        values: ``nbytes``, the bytes for each pair of ranks, and ``algorithm``, one of
            `simshuffle.job.lowering.alltoalls.ALGORITHMS`; all others are set in the
            scenario.
        quantity: one of `ALLTOALL`.

    Raises:
        InputError: there is no such quantity, or a value is missing or not valid.
    """
    check_quantity(quantity, ALLTOALL)
    scenario_values = dict(values)
    nbytes = take_number(scenario_values, "nbytes=16 B", parse_nbytes)
    (algorithm,) = parse_algorithms(scenario_values.pop("algorithm", ""))
    resolved = load_with_values(scenario, scenario_values)
    alltoalls = _kept_alltoalls(CacheArgument(resolved.model_dump_json(), resolved))
    return alltoalls.seconds(algorithm, nbytes)


@lru_cache(maxsize=1)
def _kept_alltoalls(scenario: CacheArgument[Scenario]) -> Alltoalls:
    """Return the all-to-alls of a scenario; the last ones are kept in this process, as
    all sizes have their routes in common.
    """
    return alltoalls_of_scenario(scenario.argument)


# -------------------------------------------------------------------------------------------- reads


def measure_reads(scenario: str, values: Mapping[str, str], quantity: str) -> float:
    """Compute bytes/s that hosts read from large files, or small files/s that processes
    open and read.

    Args:
        scenario: its name below ``scenarios/``; only its file system and hosts' links
            are used.
        values: ``clients``, the hosts that read; ``tasks``, their processes in all
            (default: one each), each with one file open at a time; ``file_size`` for
            the file rate; all others are set in the scenario.
        quantity: one of `READ`.

    Raises:
        InputError: there is no such quantity, or a value is missing or not valid.
    """
    check_quantity(quantity, READ)
    scenario_values = dict(values)
    clients = int(take_number(scenario_values, "clients=10", int))
    tasks = int(take_number(scenario_values, "tasks=10", int, str(clients)))
    file_values = {"file_size": scenario_values.pop("file_size", "")}
    resolved = load_with_values(scenario, scenario_values)
    bandwidth = read_bandwidth(resolved, clients)
    if quantity == "read bandwidth":
        return bandwidth
    nbytes = take_number(file_values, "file_size=3901 B", parse_nbytes)
    # the least of the servers' operations, of the bandwidth, and of the processes, each of which
    # opens and reads one file after the other and waits for the latency of an open
    servers = resolved.cluster.parallel_file_system
    process_rate = servers.open_cap(1, 1, in_flight=tasks)
    return min(servers.free_open_rate, bandwidth / nbytes, process_rate)


def read_bandwidth(scenario: Scenario, clients: int) -> float:
    """Return bytes/s over all servers that ``clients`` hosts reach together.

    It is the least of the servers' bandwidth, the clients' software and their links.
    In a custom topology, the links of the clients do not count.
    """
    cluster = scenario.cluster
    servers = cluster.parallel_file_system
    topology = cluster.topology
    bandwidths = [servers.free_bandwidth]
    if servers.client_bandwidth is not None:
        bandwidths.append(clients * servers.client_bandwidth(clients))
    if not isinstance(topology, Custom):
        bandwidths.append(clients * cluster.host.hcas * topology.link_bandwidth)
    return min(bandwidths)
