"""The links and ranks that the faults of a scenario hit, and when."""

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
from simshuffle.job.plan.jobs import place_jobs, share_machine
from simshuffle.job.plan.lost_hosts import check_losses
from simshuffle.job.plan.resources import Resources
from simshuffle.job.plan.wiring import check_machine
from simshuffle.job.scenario.faults import Fault
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.arrays import Ints32

DRAWN_TOGETHER = 1 << 16
"""Faults of a process that are drawn together, in the mean: as long the same hosts have
most.
"""


@dataclass(frozen=True)
class Hit:
    """The links, ranks and cables that one fault hits."""

    links: Ints32  # the links of the run that are slower
    ranks: Ints32  # those whose GPUs are
    cables: Ints32  # links of the network: the cables among them, both directions


@dataclass(frozen=True)
class TimedFault:
    """A fault that begins at a given time."""

    what: str
    begin: float  # s
    end: float  # s; inf if it lasts to the end
    reroutes_at: float  # s: when new routes are known; inf if none are made
    rate: float  # share of its rate that what is hit keeps; 0 if it has failed
    hit: Hit


class Targets:
    """The names that faults may have on the machine of a run, and what each name hits."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._fabric = resources.forwarding.fabric
        self._hosts = {name: number for number, name in enumerate(resources.hosts)}
        links = resources.links
        self._devices = {
            name: k for k, name in enumerate(links.names) if not links.cable[k]
        }
        first = f"{resources.hosts[0]}."
        self._device_names = [
            name.removeprefix(first) for name in self._devices if name.startswith(first)
        ]
        gpus = resources.cluster.host.gpus
        self._gpus: dict[str, int] = {
            "gpus": -1,
            **{f"gpu{gpu}": gpu for gpu in range(gpus)},
        }

    @cached_property
    def _nodes(self) -> dict[str, int]:
        """The number of each host and switch of the machine, by its name."""
        return {name: number for number, name in enumerate(self._fabric.cabling.names)}

    @cached_property
    def _cables(self) -> dict[str, list[int]]:
        """The links of each cable, both directions, by the name of either direction.

        A name without '#k' stands for all parallel cables.
        """
        links: defaultdict[str, list[int]] = defaultdict(list)
        for link, name in enumerate(self._fabric.links.names):
            directions = [link & ~1, link | 1]
            links[name] += directions
            if "#" in name:
                links[name.partition("#")[0]] += directions
        return dict(links)

    def find_hit(self, what: str) -> Hit | None:
        """Return what a fault of that name hits; None if nothing has the name.

        Its links and ranks are empty if the run uses none, as of a GPU without a rank.
        """
        host, _, part = what.rpartition(".")
        if what in self._cables:
            return self._make_hit(cables=self._cables[what])
        if what == "pfs":
            return self._make_hit(
                [self._resources.pfs_bandwidth, self._resources.pfs_open]
            )
        if what in self._devices:
            return self._make_hit([self._devices[what]])
        if what in self._nodes:
            return self._node(what)
        if (
            host not in self._nodes
            or self._fabric.cabling.kinds[self._nodes[host]] != "host"
        ):
            return None
        if part in self._gpus:
            return self._make_hit(ranks=self._ranks(host, self._gpus[part]))
        # of a host without ranks, whatever it is makes no difference
        return self._make_hit() if part in self._device_names else None

    def _node(self, what: str) -> Hit:
        """Return what a fault of a host or switch hits: its cables, devices and ranks.

        Of a host without ranks, its cables alone.
        """
        links = self._fabric.links
        node = self._nodes[what]
        cables = np.flatnonzero(
            (links.src_node == node) | (links.dst_node == node)
        ).tolist()
        if what not in self._hosts:
            return self._make_hit(cables=cables)
        devices = [self._devices[f"{what}.{part}"] for part in self._device_names]
        return self._make_hit(devices, self._ranks(what, -1), cables)

    def _ranks(self, host: str, gpu: int) -> list[int]:
        """Return the ranks on GPU ``gpu`` of a host, or, for -1, on any of its GPUs."""
        is_on_host = self._resources.host_of == self._hosts.get(host, -1)
        return np.flatnonzero(
            is_on_host & ((self._resources.gpu_of == gpu) | (gpu < 0))
        ).tolist()

    def _make_hit(
        self,
        devices: Sequence[int] = (),
        ranks: Sequence[int] = (),
        cables: Sequence[int] = (),
    ) -> Hit:
        """Return a hit of devices, ranks and cables; links that the run does not use
        are left out.
        """
        cable_links = np.unique(np.array(cables, np.int32))
        run_links = self._resources.to_run_links(cable_links)
        links = np.append(
            run_links[run_links >= 0], np.array(devices, np.int32)
        ).astype(np.int32)
        return Hit(links, np.array(ranks, np.int32), cable_links)

    def similar_names(self, what: str) -> list[str]:
        """Return up to 3 names of the machine like ``what``, the most alike first: of
        cables if there is a '>' in it, else of anything else.
        """
        # a file system that was added to the network is a node called pfs, too
        names = {
            "pfs": None,
            **dict.fromkeys(self._nodes),
            **dict.fromkeys(self._devices),
            **{f"{host}.gpus": None for host in self._hosts},
        }
        return get_close_matches(what, [*self._cables] if ">" in what else [*names], 3)

    def drawn_from(self, kind: str) -> list[str]:
        """Return the names among which faults of a kind are drawn: 'cables', 'gpus',
        'ssds', or else hosts.

        Only cables that messages may take, by one direction, GPUs with a rank, and
        hosts of the run. Cables may be none.
        """
        if kind == "cables":
            used = (
                np.flatnonzero(
                    reachable_links(
                        self._resources.forwarding, self._resources.every_port
                    )
                )
                // 2
            )
            return self._fabric.links.names_of(2 * np.unique(used))
        if kind == "gpus":
            hosts = self._resources.host_of.tolist()
            gpus = self._resources.gpu_of.tolist()
            return [
                f"{self._resources.hosts[h]}.gpu{gpu}"
                for h, gpu in zip(hosts, gpus, strict=True)
            ]
        return [
            f"{host}.ssd" if kind == "ssds" else host for host in self._resources.hosts
        ]


class RunFaults:
    """The faults of a run: those ``planned`` at a time, in the order of the scenario,
    and those that `draw_faults` draws. Hosts that are lost are in neither.

    Raises:
        ScenarioError: one is at something that does not exist, what has failed for ever
            is needed, or the network is not fluid.
    """

    def __init__(self, scenario: Scenario, resources: Resources) -> None:
        self._scenario, self._targets = scenario, Targets(resources)
        lost = {id(fault) for fault in scenario.lost_hosts}
        self.planned: list[TimedFault] = []
        self._drawn_entries: list[tuple[int, Fault]] = []
        problems = []
        if not isinstance(scenario.network, Fluid):
            rule = "need a network whose links are shared as fluid"
            remedy = "Set network: fluid."
            problems.append(Problem("faults", rule, scenario.network.kind, remedy))
        for number, fault in enumerate(scenario.faults or ()):
            if fault.at is None:
                self._drawn_entries.append((number, fault))
            elif id(fault) not in lost:
                problems += self._add_fault(f"faults.{number}", fault)
        if not problems:
            problems += self._permanent_problems(resources)
        if problems:
            raise ScenarioError(problems, scenario.name)

    def _add_fault(self, path: str, fault: Fault) -> Iterator[Problem]:
        """Plan a fault at its time; yield the problems with its name and length."""
        assert fault.at is not None  # noqa: S101 - as the record sees to
        hit = self._targets.find_hit(fault.what)
        if hit is None:
            rule = "must name a host, switch, cable (FROM>TO) or device of the machine"
            close = self._targets.similar_names(fault.what)
            remedy = f"There are {', '.join(close)}. " if close else ""
            remedy += "simshuffle machine show MACHINE --route FROM TO names cables."
            yield Problem(f"{path}.what", rule, f"none called {fault.what}", remedy)
            return
        if not fault.rate and fault.lasts is None and not len(hit.cables):
            rule = "must be given for a device that has failed"
            remedy = "Say how long it lasts."
            yield Problem(f"{path}.for", rule, fault.what, remedy)
        self.planned.append(_make_fault(fault, fault.what, fault.at, fault.lasts, hit))

    def _permanent_problems(self, resources: Resources) -> Iterator[Problem]:
        """Yield a problem if faults that never end leave hosts without a route."""
        permanent = [
            fault for fault in self.planned if fault.rate == 0 and fault.end == inf
        ]
        if not permanent:
            return
        fabric = resources.forwarding.fabric
        cut_off = Detours(
            fabric, np.concatenate([fault.hit.cables for fault in permanent])
        ).find_unreachable(resources.every_port)
        if cut_off is not None:
            name = fabric.cabling.names[
                fabric.links.src_node[fabric.inject_link[cut_off]]
            ]
            rule = "must leave a route between all hosts of the run and the file system"
            names = ", ".join(fault.what for fault in permanent[:3])
            remedy = "Write how long each fault lasts (for), or a rate above 0."
            yield Problem("faults", rule, f"{names} cut off {name}", remedy)

    def draw_faults(self) -> list[Iterator[TimedFault]]:
        """Return, for every entry of faults that are drawn, an endless iterator of its
        faults, by ascending begin. Every call begins again with the same faults.

        The iterator of faults with ``every`` is empty if there is nothing to draw from.
        """
        return [
            self._draw(index, fault)
            if fault.process is None
            else self._replay(index, fault)
            for index, fault in self._drawn_entries
        ]

    def _draw(self, index: int, fault: Fault) -> Iterator[TimedFault]:
        """Yield faults at exponential intervals, of random things, without end; none if
        there is nothing to draw from.
        """
        rng = self._scenario.rng("faults", index)
        names = self._targets.drawn_from(fault.what)
        begin = 0.0
        mean_interval = fault.every or inf
        while names:
            begin += rng.exponential(mean_interval)
            what = names[int(rng.integers(len(names)))]
            lasts = None if fault.lasts is None else float(rng.exponential(fault.lasts))
            hit = self._targets.find_hit(what)
            assert hit is not None  # noqa: S101 - it was drawn from what there is
            yield _make_fault(fault, what, begin, lasts, hit)

    def _replay(self, index: int, fault: Fault) -> Iterator[TimedFault]:
        """Yield the faults of a process, drawn for so long a time at once that there
        are about `DRAWN_TOGETHER`; a trace is replayed again and again.
        """
        process = fault.process
        names = self._targets.drawn_from(fault.what)
        assert process is not None  # noqa: S101 - as `draw_faults` sees to
        rng = self._scenario.rng("faults", index)
        begin = 0.0
        fault_rate = process.expected_faults(len(names), 1.0)
        if not fault_rate:
            return
        span = DRAWN_TOGETHER / fault_rate
        if process.kind == "trace":
            span = process.read_file().length  # and then from its beginning again
        while True:
            faults = process.draw(rng, len(names), span)
            starts = faults.start_s.tolist()
            ends = faults.end_s.tolist()
            for host, start, end in zip(
                faults.host.tolist(), starts, ends, strict=True
            ):
                hit = self._targets.find_hit(names[host])
                assert hit is not None  # noqa: S101 - it was drawn from what there is
                yield _make_fault(fault, names[host], begin + start, end - start, hit)
            begin += span


def _make_fault(
    fault: Fault, what: str, begin: float, lasts: float | None, hit: Hit
) -> TimedFault:
    """Return a fault; new routes are made only for failed cables, before its end.

    ``lasts`` is in s; None lasts to the end of the run.
    """
    rerouted = fault.rate == 0 and fault.on_failure == "reroute" and len(hit.cables) > 0
    end = inf if lasts is None else begin + lasts
    reroutes_at = begin + fault.reroute_after if rerouted else inf
    return TimedFault(
        what, begin, end, reroutes_at if reroutes_at < end else inf, fault.rate, hit
    )


def check_run(scenario: Scenario) -> None:
    """See that a run can be simulated: its size, its routing and hosts, and what its
    faults hit.

    Raises:
        ScenarioError: as `simshuffle.job.plan.effort.check_size` and `RunFaults`.
        InputError: as `simshuffle.job.plan.lost_hosts.check_losses`.
        TopologyError: as `simshuffle.job.plan.wiring.check_machine`.
    """
    check_size(scenario)
    check_machine(scenario.cluster)
    check_faults(scenario)


def check_faults(scenario: Scenario) -> None:
    """See that what the faults of a scenario hit is on its machine, and that it can go
    on; nothing is looked at without faults.

    Raises:
        ScenarioError: as `RunFaults`, or one of several jobs loses a host.
        InputError: as `simshuffle.job.plan.lost_hosts.check_losses`.
    """
    if not scenario.faults:
        return
    if scenario.jobs is not None:
        if scenario.lost_hosts:
            rule = "must not be lost where there are several jobs"
            lost_host = scenario.lost_hosts[0]
            remedy = "Give it a rate above 0, or simulate the job that has it alone."
            raise ScenarioError(
                Problem("faults", rule, lost_host.what, remedy), scenario.name
            )
        RunFaults(scenario, share_machine(place_jobs(scenario)).resources)
        return
    resources = Resources(
        scenario.cluster, scenario.world_size, scenario.rng("placement")
    )
    RunFaults(scenario, resources)
    check_losses(scenario, resources.hosts)
