"""What the faults of a scenario hit: which links, which ranks, and when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from math import inf

import numpy as np

from simshuffle.errors import Problem, ScenarioError
from simshuffle.fabric.network import Fluid
from simshuffle.fabric.routing.detour import Detours
from simshuffle.fabric.routing.router import reachable_links
from simshuffle.job.plan.effort import check_size
from simshuffle.job.plan.jobs import settled, shared
from simshuffle.job.plan.recovery import check_losses, spare_hosts
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.wiring import check_machine
from simshuffle.job.scenario.faults import Fault
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Ints32

TOGETHER = 1 << 16
"""Faults of a process that are drawn together, in the mean: as long the same hosts have most."""


@dataclass(frozen=True)
class Hit:
    """What one fault is at."""

    links: Ints32  # the links of the run that are slower
    ranks: Ints32  # those whose GPUs are
    cables: Ints32  # links of the network: the cables among them, both directions


@dataclass(frozen=True)
class Struck:
    """A fault, begun at a moment."""

    what: str
    at: float  # s
    until: float  # s; inf if it lasts to the end
    reroutes_at: float  # s: when new routes are known; inf if none are made
    rate: float
    hit: Hit


class Targets:
    """What faults may name on the machine of a run, and what that is."""

    def __init__(self, resources: Resources) -> None:
        self._of = resources
        self._fabric = resources.forwarding.fabric
        self._hosts = {name: number for number, name in enumerate(resources.hosts)}
        links = resources.links
        self._devices = {name: k for k, name in enumerate(links.names) if not links.cable[k]}
        first = f"{resources.hosts[0]}."
        self._own = [name.removeprefix(first) for name in self._devices if name.startswith(first)]
        gpus = resources.cluster.host.gpus
        self._gpus: dict[str, int] = {"gpus": -1, **{f"gpu{gpu}": gpu for gpu in range(gpus)}}

    @cached_property
    def _nodes(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._fabric.cabling.names)}

    @cached_property
    def _cables(self) -> dict[str, list[int]]:
        """The links of each cable by its names."""
        out: defaultdict[str, list[int]] = defaultdict(list)
        for link, name in enumerate(self._fabric.links.names):
            both = [link & ~1, link | 1]
            out[name] += both
            if "#" in name:
                out[name.partition("#")[0]] += both
        return dict(out)

    def hit(self, what: str) -> Hit | None:
        """What a name means; None if nothing is called so."""
        host, _, part = what.rpartition(".")
        if what in self._cables:
            return self._made(cables=self._cables[what])
        if what == "pfs":
            return self._made([self._of.pfs_bandwidth, self._of.pfs_open])
        if what in self._devices:
            return self._made([self._devices[what]])
        if what in self._nodes:
            return self._node(what)
        if host not in self._nodes or self._fabric.cabling.kinds[self._nodes[host]] != "host":
            return None
        if part in self._gpus:
            return self._made(ranks=self._ranks(host, self._gpus[part]))
        # of a host without ranks, whatever it is makes no difference
        return self._made() if part in self._own else None

    def _node(self, what: str) -> Hit:
        links, node = self._fabric.links, self._nodes[what]
        cables = np.flatnonzero((links.src_node == node) | (links.dst_node == node)).tolist()
        if what not in self._hosts:
            return self._made(cables=cables)
        own = [self._devices[f"{what}.{part}"] for part in self._own]
        return self._made(own, self._ranks(what, -1), cables)

    def _ranks(self, host: str, gpu: int) -> list[int]:
        """Those with a GPU of a host, or, of -1, with any."""
        on = self._of.host_of == self._hosts.get(host, -1)
        return np.flatnonzero(on & ((self._of.gpu_of == gpu) | (gpu < 0))).tolist()

    def _made(
        self, devices: Sequence[int] = (), ranks: Sequence[int] = (), cables: Sequence[int] = ()
    ) -> Hit:
        every = np.unique(np.array(cables, np.int32))
        own = self._of.numbers_of(every)
        links = np.append(own[own >= 0], np.array(devices, np.int32)).astype(np.int32)
        return Hit(links, np.array(ranks, np.int32), every)

    def close(self, what: str) -> list[str]:
        """Names like one that nothing has."""
        known = [*self._nodes, *self._devices, *(f"{host}.gpus" for host in self._hosts), "pfs"]
        return get_close_matches(what, [*self._cables] if ">" in what else known, 3)

    def drawn_from(self, kind: str) -> list[str]:
        """The names among which faults of a kind are drawn."""
        if kind == "cables":
            used = np.flatnonzero(reachable_links(self._of.forwarding, self._of.every_port)) // 2
            return self._fabric.links.names_of(2 * np.unique(used))
        if kind == "gpus":
            hosts, gpus = self._of.host_of.tolist(), self._of.gpu_of.tolist()
            return [f"{self._of.hosts[h]}.gpu{gpu}" for h, gpu in zip(hosts, gpus, strict=True)]
        return [f"{host}.ssd" if kind == "ssds" else host for host in self._of.hosts]


class RunFaults:
    """The faults of a run: ``given`` ones, and those that are `drawn`.

    Raises:
        ScenarioError: one is at something that does not exist, or what has failed for ever is
            needed.
    """

    def __init__(self, scenario: Scenario, resources: Resources) -> None:
        self._scenario, self._targets = scenario, Targets(resources)
        lost = {id(fault) for fault in scenario.lost_hosts}
        self.given: list[Struck] = []
        self._every: list[tuple[int, Fault]] = []
        problems = []
        if not isinstance(scenario.network, Fluid):
            rule, remedy = "need a network whose links are shared as fluid", "Set network: fluid."
            problems.append(Problem("faults", rule, scenario.network.kind, remedy))
        for number, fault in enumerate(scenario.faults or ()):
            if fault.at is None:
                self._every.append((number, fault))
            elif id(fault) not in lost:
                problems += self._give(f"faults.{number}", fault)
        if not problems:
            problems += self._for_ever(resources)
        if problems:
            raise ScenarioError(problems, scenario.name)

    def _give(self, path: str, fault: Fault) -> Iterator[Problem]:
        assert fault.at is not None  # noqa: S101 - as the record sees to
        hit = self._targets.hit(fault.what)
        if hit is None:
            rule = "must name a host, switch, cable (FROM>TO) or device of the machine"
            close = self._targets.close(fault.what)
            remedy = f"There are {', '.join(close)}. " if close else ""
            remedy += "simshuffle machine show MACHINE --route FROM TO names cables."
            yield Problem(f"{path}.what", rule, f"none called {fault.what}", remedy)
            return
        if not fault.rate and fault.lasts is None and not len(hit.cables):
            rule, remedy = "must be given for a device that has failed", "Say how long it lasts."
            yield Problem(f"{path}.for", rule, fault.what, remedy)
        self.given.append(_struck(fault, fault.what, fault.at, fault.lasts, hit))

    def _for_ever(self, resources: Resources) -> Iterator[Problem]:
        """What has failed for ever, and leaves hosts without a way."""
        gone = [of for of in self.given if of.rate == 0 and of.until == inf]
        if not gone:
            return
        fabric = resources.forwarding.fabric
        parted = Detours(fabric, np.concatenate([of.hit.cables for of in gone])).find_unreachable(
            resources.every_port
        )
        if parted is not None:
            name = fabric.cabling.names[fabric.links.src_node[fabric.inject_link[parted]]]
            rule = "must leave a way between all hosts of the run and their file system"
            names = ", ".join(of.what for of in gone[:3])
            remedy = "Say by 'for' how long each lasts, or let one be slow: a rate above 0."
            yield Problem("faults", rule, f"{names} cut off {name}", remedy)

    def drawn(self) -> list[Iterator[Struck]]:
        """Of every entry of faults that are drawn, these faults, one after the other, for ever."""
        return [
            self._draw(number, fault) if fault.process is None else self._replay(number, fault)
            for number, fault in self._every
        ]

    def _draw(self, number: int, fault: Fault) -> Iterator[Struck]:
        rng = self._scenario.rng("faults", number)
        names, at, every = self._targets.drawn_from(fault.what), 0.0, fault.every or inf
        while names:
            at += rng.exponential(every)
            what = names[int(rng.integers(len(names)))]
            lasts = None if fault.lasts is None else float(rng.exponential(fault.lasts))
            hit = self._targets.hit(what)
            assert hit is not None  # noqa: S101 - it was drawn from what there is
            yield _struck(fault, what, at, lasts, hit)

    def _replay(self, number: int, fault: Fault) -> Iterator[Struck]:
        """Those of a process, drawn for so long at a time that there are about `TOGETHER`."""
        process, names = fault.process, self._targets.drawn_from(fault.what)
        assert process is not None  # noqa: S101 - as `drawn` sees to
        rng, begin = self._scenario.rng("faults", number), 0.0
        span = TOGETHER / process.expected_faults(len(names), 1.0)
        if process.kind == "trace":
            span = process.read_file().length  # and then from its beginning again
        while True:
            faults = process.draw(rng, len(names), span)
            starts, ends = faults.start_s.tolist(), faults.end_s.tolist()
            for host, at, end in zip(faults.host.tolist(), starts, ends, strict=True):
                hit = self._targets.hit(names[host])
                assert hit is not None  # noqa: S101 - it was drawn from what there is
                yield _struck(fault, names[host], begin + at, end - at, hit)
            begin += span


def _struck(fault: Fault, what: str, at: float, lasts: float | None, hit: Hit) -> Struck:
    rerouted = fault.rate == 0 and fault.on_failure == "reroute" and len(hit.cables) > 0
    until = inf if lasts is None else at + lasts
    reroutes_at = at + fault.reroute_after if rerouted else inf
    return Struck(what, at, until, reroutes_at if reroutes_at < until else inf, fault.rate, hit)


def check_run(scenario: Scenario) -> None:
    """See that a run can be simulated: its size, its routing and hosts, and what its faults hit.

    Raises:
        ScenarioError: as `simshuffle.job.plan.effort.check_size` and `RunFaults`.
        InputError: as `simshuffle.job.plan.recovery.check_losses`.
        TopologyError: as `simshuffle.job.plan.wiring.check_machine`.
    """
    check_size(scenario)
    check_machine(scenario.cluster)
    check_faults(scenario)


def check_faults(scenario: Scenario) -> None:
    """See that what the faults of a scenario hit is on its machine, and that it can go on; raises
    as `check_run`."""
    if not scenario.faults:
        return
    if scenario.jobs is not None:
        if scenario.lost_hosts:
            rule, found = "must not be lost where there are several jobs", scenario.lost_hosts[0]
            remedy = "Give it a rate above 0, or simulate the job that has it alone."
            raise ScenarioError(Problem("faults", rule, found.what, remedy), scenario.name)
        RunFaults(scenario, shared(settled(scenario)).whole)
        return
    resources = Resources(scenario.cluster, scenario.world_size, scenario.rng("placement"))
    RunFaults(scenario, resources)
    check_losses(scenario, resources.hosts, len(spare_hosts(scenario, resources.hosts)))
