"""Findings about a scenario before it is simulated: values that are valid and probably
not meant, far from those that simshuffle brings along or odd together, each as a
problem that stops nothing; and measured values that are used outside the range they
were measured on.
"""

from __future__ import annotations

import warnings as warnings_
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from simshuffle.errors import Problem, SimshuffleWarning
from simshuffle.fabric.routing.router import uniform_loads
from simshuffle.job.plan.checkpoint_findings import checkpoint_warnings
from simshuffle.job.plan.holding import held_in
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.wiring import wiring
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.job.scenario.host_work import payload_nbytes
from simshuffle.job.scenario.model import NOTED
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.units import Dimension, readable

if TYPE_CHECKING:
    import pandas as pd


LONG_STEP = 3.0
"""s of an iteration's forward and backward passes beyond which they are asked about;
the shipped scenarios have at most 1.3 s.
"""


@dataclass(frozen=True)
class UsualRange:
    """The range of one quantity in the catalog's entries and the shipped machines, from
    lowest to highest (SI), without placeholders that are so high that they do not bind.

    A value is far from it below ``low`` / ``factor`` and above ``high`` x ``factor``:
    10 where machines and data differ much; 3 for links, where bits and bytes differ by
    8.
    """

    low: float
    high: float
    dimension: Dimension
    factor: float = 10.0

    def is_near(self, value: float) -> bool:
        """Return whether a value is not far from the range."""
        return self.low / self.factor <= value <= self.high * self.factor


_B, _S, _RATE, _FREQUENCY = Dimension
USUAL = {
    "workload.model.accelerators.NAME.forward": UsualRange(118.4e-6, 1.437, _S),
    "workload.model.accelerators.NAME.backward": UsualRange(236.9e-6, 2.874, _S),
    "workload.model.accelerators.NAME.update": UsualRange(72e-6, 400e-3, _S),
    "workload.model.gradient_size": UsualRange(22390416, 25716428800, _B),
    "workload.model.input_size": UsualRange(12288, 56623104, _B),
    "workload.dataset.sample_size.mean": UsualRange(3074, 60.1e6, _B),
    "workload.dataset.decoded_size.mean": UsualRange(3072, 63700992, _B),
    "workload.dataset.decode": UsualRange(0.4e-6, 4.7e-3, _S),
    "workload.dataset.encode": UsualRange(0.4e-6, 4.9e-3, _S),
    "cluster.topology.link_bandwidth": UsualRange(9.7e9, 50e9, _RATE, 3.0),
    "cluster.topology.cable_latency": UsualRange(26e-9, 26e-9, _S, 1000.0),
    "cluster.topology.switch_latency": UsualRange(75e-9, 400e-9, _S, 100.0),
    "cluster.host.pcie_bandwidth": UsualRange(16e9, 64e9, _RATE, 3.0),
    "cluster.host.nvlink_bandwidth": UsualRange(50e9, 900e9, _RATE),
    "cluster.ssd.read_bandwidth": UsualRange(190e6, 50e9, _RATE),
    "cluster.ssd.write_bandwidth": UsualRange(95e6, 25e9, _RATE),
    "cluster.ssd.latency": UsualRange(1e-6, 100e-6, _S),
    "cluster.memory.bandwidth": UsualRange(60e9, 2e12, _RATE),
    "cluster.memory.capacity": UsualRange(34.4e9, 2e12, _B),
    "cluster.parallel_file_system.read_bandwidth": UsualRange(10e9, 30e12, _RATE),
    # servers of metadata in parallel reach a million
    "cluster.parallel_file_system.open_rate": UsualRange(20e3, 43e3, _FREQUENCY, 230.0),
    "cluster.parallel_file_system.latency": UsualRange(217e-6, 1e-3, _S),
    "cluster.message_passing.latency": UsualRange(0.5e-6, 2e-6, _S, 100.0),
}
"""Usual ranges by dotted key; NAME is the cluster's accelerator."""
SLIPS = (1e-3, 1e3, 1e-6, 1e6, 8.0, 1 / 8)
"""Factors by which a unit is mistaken: prefixes, and bits for bytes."""


def warnings(scenario: Scenario) -> list[Problem]:
    """Return the warnings about a scenario: values that belong to another kind, values
    far from the usual, in the order of `USUAL`, warnings of the routing, and values
    that are odd together. Only values that the run uses are looked at.

    Values of 0 are never far. What is odd together is left out if its key has another
    warning.
    """
    problems = [*scenario.notes]
    for key, usual in USUAL.items():
        if key.startswith(_unused_keys(scenario)):
            continue
        path = key.replace("NAME", scenario.cluster.host.accelerator)
        value = _value(scenario, path)
        if value and not usual.is_near(value):
            problems.append(_far_problem(path, value, usual))
    routing = scenario.cluster.routing
    if routing is not None and scenario.hosts > 1:
        problems += routing.warnings(wiring(scenario.cluster).fabric)
    known_paths = {problem.path for problem in problems}
    return problems + [
        problem
        for problem in _odd_problems(scenario)
        if problem.path not in known_paths
    ]


def _unused_keys(scenario: Scenario) -> tuple[str, ...]:
    """Return the beginnings of the keys that the run does not use."""
    workload = scenario.workload
    cluster = scenario.cluster
    from_pfs = workload.source == "pfs"
    staged = scenario.storage_per_host > 0.0 and workload.staging.source == "pfs"
    opened = from_pfs or (staged and workload.staging.format == "files")
    unused = {
        "cluster.parallel_file_system.": not (from_pfs or staged),
        "cluster.parallel_file_system.open_rate": not opened,
        "cluster.parallel_file_system.latency": not opened,
        "cluster.ssd.": held_in(scenario) != "ssd",
        "cluster.topology.": scenario.hosts == 1,
        "cluster.host.nvlink_bandwidth": (
            cluster.ranks_per_host(scenario.world_size) == 1
            and cluster.topology.domains is None
        ),
        "cluster.message_passing.": not workload.exchange.fraction,
        "workload.dataset.encode": not workload.exchange.fraction,
        "workload.dataset.decoded_size.": not workload.exchange.fraction,
    }
    return tuple(key for key, is_unused in unused.items() if is_unused)


def _value(scenario: Scenario, path: str) -> float | None:
    """Return the number at a dotted key; None if there is none, or it is no float."""

    def inside(node: Any, part: str) -> Any:
        """Return the item or attribute ``part`` of ``node``; None if there is none."""
        return node.get(part) if isinstance(node, dict) else getattr(node, part, None)

    value = reduce(inside, path.split("."), scenario)
    return value if isinstance(value, float) else None


def _far_problem(path: str, value: float, usual: UsualRange) -> Problem:
    """Return the problem of a value far from the usual; names the value that is likely
    meant if one of `SLIPS` brings it near.
    """
    dimension = usual.dimension
    ends = [readable(end, dimension) for end in dict.fromkeys((usual.low, usual.high))]
    rule = f"is far from what is shipped, {' to '.join(ends)}"
    slips = [value * slip for slip in SLIPS if usual.is_near(value * slip)]
    likely = sorted(slips, key=lambda slip: not usual.low <= slip <= usual.high)
    remedy = (
        f"Write {readable(likely[0], dimension)} if that is meant." if likely else ""
    )
    if path.endswith((".forward", ".backward")):
        remedy = f"{remedy} It is the time of one sample, not of a batch.".lstrip()
    return Problem(path, rule, readable(value, dimension), remedy or "Check its unit.")


def _odd_problems(scenario: Scenario) -> list[Problem]:
    """Return the problems of values that are fine one by one: odd together.

    No full batch, long steps, gradients unlike the layers, sizes that spread much, and
    checkpoints.
    """
    workload = scenario.workload
    batch = scenario.workload.local_batch_size
    shard = workload.dataset.num_samples / scenario.world_size
    no_full_batch = partial_batch(*batch_sizes(scenario))
    problems = [] if no_full_batch is None else [no_full_batch]
    times = scenario.step_times
    step = min(batch, shard) * times.per_sample + times.fixed_seconds
    if step > LONG_STEP:
        rule = f"makes steps of {readable(step, _S)}; those of shipped scenarios take at most 1.3 s"
        remedy = (
            "Write the time of one sample: the time of a batch divided by"
            f" its {batch} samples."
        )
        path = (
            f"workload.model.accelerators.{scenario.cluster.host.accelerator}.forward"
        )
        problems.append(Problem(path, rule, readable(times.forward, _S), remedy))
    model = workload.model
    exact = model.exact_gradient_size
    if abs(model.gradient_size - exact) > NOTED * exact:
        miss = model.gradient_size / exact - 1.0
        rule = f"misses the {readable(exact, _B)} of its layers by {miss:+.1%}"
        remedy = f"Write {readable(exact, _B)}, or the layers of this model."
        written = readable(model.gradient_size, _B)
        problems.append(Problem("workload.model.gradient_size", rule, written, remedy))
    size = workload.dataset.stored
    if size.spread > 10.0 * size.mean:
        rule = f"is more than 10 times the mean, {readable(size.mean, _B)}; shipped: at most 1.7"
        remedy = "Check its unit. With 0 B all samples have equal size."
        path = "workload.dataset.sample_size.std"
        problems.append(Problem(path, rule, readable(size.spread, _B), remedy))
    return [*problems, *checkpoint_warnings(scenario)]


def partial_batch(samples: int, ranks: int, batch: int) -> Problem | None:
    """Return the problem that no batch is full: each rank has fewer samples than
    ``batch``. None if a batch is full.

    Args:
        samples: of the data set.
        ranks: over which they are divided.
        batch: samples of a batch of one rank.
    """
    if samples >= batch * ranks:
        return None
    rule = f"is larger than the shard of a rank, {samples / ranks:.4g} samples: no batch is full"
    remedy = (
        f"A full batch needs at least {batch * ranks} samples, at most {max(samples // batch, 1)}"
        f" ranks, or a smaller batch, of at most {max(samples // ranks, 1)}."
    )
    return Problem("workload.local_batch_size", rule, str(batch), remedy)


def warn_of_partial_batches(runs: Mapping[str, tuple[int, int, int]]) -> None:
    """Issue one SimshuffleWarning if no batch of some runs is full: samples, ranks and
    batch by the name of a run.

    It describes the first such run, and counts the others.
    """
    partial = {
        name: found for name, sizes in runs.items() if (found := partial_batch(*sizes))
    }
    if not partial:
        return
    name, problem = next(iter(partial.items()))
    others = f" and {len(partial) - 1} more" * (len(partial) > 1)
    warnings_.warn(f"{problem} ({name}{others})", SimshuffleWarning, stacklevel=2)


def batch_sizes(scenario: Scenario | Mapping[str, Any]) -> tuple[int, int, int]:
    """Return samples, ranks and samples of a batch, which `partial_batch` looks at, of
    a scenario or of its plain values.
    """
    document = scenario if isinstance(scenario, Mapping) else None
    if document is not None:
        workload = document["workload"]
        samples = workload["dataset"]["num_samples"]
        return samples, document["world_size"], workload["local_batch_size"]
    run: Any = scenario
    return (
        run.workload.dataset.num_samples,
        run.world_size,
        run.workload.local_batch_size,
    )


def extrapolation_sentences(scenario: Scenario) -> list[str]:
    """Return a sentence for each measured value that the scenario uses outside the
    range it was measured on (see `simshuffle.job.scenario.calibrated`); [] if there is
    none.
    """
    sentences = (
        record.beyond(_used_at(scenario, record.key)) for record in scenario.calibrated
    )
    return [sentence for sentence in sentences if sentence]


def _used_at(scenario: Scenario, key: str) -> dict[str, float]:
    """Return at what the scenario uses the value of ``key``, by the names in
    `simshuffle.job.scenario.calibrated.QUANTITIES`.

    Empty for values of the allreduce, of messages and of accelerators that it does not
    use. Values of the SSD and the parallel file system always count as used.
    """
    workload = scenario.workload
    ranks = scenario.world_size
    hosts = scenario.hosts
    last = key.rsplit(".", 1)[-1]
    if key.startswith("workload.allreduce."):
        domains = scenario.cluster.domains_for(ranks)
        idle = (
            ranks == 1
            or ("inter_host" in last and domains == 1)
            or (last == "intra_host_bus_bandwidth" and domains > 1)
        )
        size = workload.model.gradient_size
        return (
            {} if idle else {"world_size": ranks, "hosts": hosts, "message_size": size}
        )
    if key.startswith("cluster.message_passing."):
        message = _message_nbytes(scenario)
        return {"message_size": message} if message else {}
    files = {"clients": ranks, "file_size": workload.dataset.stored.mean}
    if key.startswith("cluster.parallel_file_system."):
        return files if last != "latency" else {"file_size": files["file_size"]}
    if key.startswith("cluster.ssd."):
        return {
            "clients": scenario.cluster.ranks_per_host(ranks),
            "file_size": files["file_size"],
        }
    of_others = f".{scenario.cluster.host.accelerator}." not in key
    if key.startswith("workload.model.accelerators.") and of_others:
        return {}
    return {
        "world_size": ranks,
        "hosts": hosts,
        "local_batch_size": workload.local_batch_size,
    }


def _message_nbytes(scenario: Scenario) -> float:
    """Return the expected bytes of a message of the exchange; 0 if there is none."""
    exchange = scenario.workload.exchange
    schedule = exchange.exchange_schedule
    fraction = exchange.fraction
    if schedule is None or not fraction:
        return 0.0
    samples = fraction * scenario.workload.local_batch_size
    if schedule.samples_per_message != "iteration":
        samples = min(schedule.samples_per_message, max(samples, 1.0))
    return samples * exchange_nbytes(scenario) / exchange_samples(scenario)


def exchange_samples(scenario: Scenario) -> float:
    """Return the samples that a rank sends in an epoch, Q N / M, with those that stay
    with it by chance; 0 without an exchange.
    """
    fraction = scenario.workload.exchange.fraction or 0.0
    return fraction * scenario.workload.dataset.num_samples / scenario.world_size


def exchange_nbytes(scenario: Scenario) -> float:
    """Return the expected bytes that a rank sends in an epoch, in the form in which
    they are sent; 0 without an exchange. Samples that stay with their rank count, too.
    """
    schedule = scenario.workload.exchange.exchange_schedule
    if schedule is None:
        return 0.0
    return exchange_samples(scenario) * payload_nbytes(
        schedule, scenario.workload.dataset
    )


NAMED = 3
"""Cables in use that are named, at most."""


class SlowCables:
    """Cables of a cluster with less capacity than most cables between their two levels,
    and the slow cables that carried flows.

    A network that a rule makes and that has no faults has none: nothing is noted then.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cable_of: dict[str, int] = {}  # by link: both directions of each cable
        self._used: dict[int, str] = {}
        self._peak = self._mean = 0.0
        if not (cluster.faults or cluster.topology.uneven):
            return
        wires = wiring(cluster)
        slow = np.flatnonzero(
            wires.fabric.cabling.bandwidth < wires.fabric.cabling.usual_bandwidth
        ).tolist()
        links = wires.fabric.links.names
        storage = np.array([tier == "storage" for tier in wires.fabric.cabling.tiers])
        self._cables = int((~storage[wires.fabric.cabling.ends].any(axis=1)).sum())
        self._cable_of = {
            links[2 * cable + direction]: cable
            for cable in slow
            for direction in (0, 1)
        }

    def use(self, links: Iterable[str]) -> None:
        """Note links, by name, that are in use; those that are not slow are ignored."""
        for link in links:
            if (cable := self._cable_of.get(link)) is not None:
                self._used.setdefault(cable, link)

    def note_carried(self, links: pd.DataFrame) -> None:
        """Note what links carried, from the links table of an epoch: every slow link in
        it is in use. Columns 'link', 'peak_utilisation', 'mean_utilisation'.
        """
        if not self._cable_of:
            return
        of_slow = links[links["link"].isin(self._cable_of)]
        if len(of_slow):
            self.use(of_slow["link"])
            self._peak = max(self._peak, float(of_slow["peak_utilisation"].max()))
            self._mean = max(self._mean, float(of_slow["mean_utilisation"].max()))

    def facts(self) -> dict[str, Any]:
        """Return the facts on slow cables as plain values that JSON can hold, in one
        mapping under the key 'slow_cables'; {} if no cable is slow.

        ``cables``, ``slow`` and ``used`` count cables, ``cables`` without those of the
        storage; ``names`` has up to `NAMED` slow cables in use, each by a link. Of slow
        cables, ``peak`` is the largest utilisation (0 to 1) at a moment, ``mean`` over
        an epoch: 0 if nothing was noted.
        """
        if not self._cable_of:
            return {}
        return {
            "slow_cables": {
                "cables": self._cables,
                "slow": len(self._cable_of) // 2,
                "used": len(self._used),
                "names": [self._used[cable] for cable in sorted(self._used)[:NAMED]],
                "peak": self._peak,
                "mean": self._mean,
            }
        }


def slow_cable_facts(scenario: Scenario) -> dict[str, Any]:
    """Return the facts of the slow cables that a run may use, under 'slow_cables' as
    `SlowCables.facts` has them; {} if the cluster has none.

    Used ones lie on routes between its hosts, and from the file system if its epochs
    read from there. Nothing is simulated: ``peak`` and ``mean`` are 0.
    """
    slow_cables = SlowCables(scenario.cluster)
    if not slow_cables.facts():
        return {}
    resources = Resources(
        scenario.cluster, scenario.world_size, scenario.rng("placement")
    )
    router = resources.forwarding
    links = np.array(router.links.names, object)
    used = np.zeros(len(links), bool)
    if resources.num_domains > 1:
        used |= uniform_loads(router, resources.host_ports) > 0
    if scenario.workload.source == "pfs":
        routes = resources.pfs_read()[0]
        is_cable = (routes >= 0) & (routes < len(resources.cables))
        used[resources.cables[routes[is_cable]]] = True
    slow_cables.use(links[used])
    return slow_cables.facts()
