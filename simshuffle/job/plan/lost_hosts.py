"""Follow the hosts of a job that loses hosts, and check that it can go on without
them. No clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simshuffle.errors import refuse
from simshuffle.job.plan.wiring import names_of, wiring
from simshuffle.job.scenario.recovery import Recovery
from simshuffle.job.scenario.scenario import Scenario


def spare_hosts(scenario: Scenario, hosts: Sequence[str]) -> list[str]:
    """Return the ``recovery.spares`` first hosts of the topology not in ``hosts``.

    Raises:
        TopologyError: as `simshuffle.job.plan.wiring.wiring`.
    """
    names = names_of(wiring(scenario.cluster).fabric, "host")
    free = [name for name in names if name not in set(hosts)]
    return free[: (scenario.recovery or Recovery()).spares]


def check_losses(scenario: Scenario, hosts: Sequence[str]) -> None:
    """Check that a run on ``hosts`` can go on without the hosts that its faults take
    away.

    Raises:
        TopologyError: as `spare_hosts`.
        InputError: more hosts than there are spares are lost for ever, spares among
            them; an elastic job loses all its hosts; a spare host would train on
            samples that it does not read; or ranks would change in number that may not.
    """
    recovery = scenario.recovery or Recovery()
    exchange = scenario.workload.exchange
    losses = sorted(scenario.lost_hosts, key=lambda loss: loss.at or 0.0)
    lost = [loss for loss in losses if loss.what in hosts]
    if recovery.policy == "spare":
        # repaired hosts are spares again, so that only those lost for ever are lacking
        spares = spare_hosts(scenario, hosts)
        usable = {*hosts, *spares}
        lost_for_ever = dict.fromkeys(
            loss.what for loss in losses if loss.what in usable and loss.lasts is None
        )
        for host in list(lost_for_ever)[len(spares) :]:
            rule = "must be enough for the hosts that are lost and do not return"
            spares_and_loss = f"{recovery.spares}, and {host} is lost for ever"
            remedy = (
                "Add spares, say how long it is away (for), or set policy: elastic."
            )
            refuse("recovery.spares", rule, spares_and_loss, remedy, scenario.name)
    if recovery.policy == "elastic" and {loss.what for loss in lost} >= set(hosts):
        rule = "must leave a host to go on with: an elastic run takes none in again"
        remedy = "Lose fewer hosts, or set policy: spare."
        refuse("recovery.policy", rule, "all hosts are lost", remedy, scenario.name)
    if (
        lost
        and recovery.policy == "spare"
        and not recovery.reread
        and exchange.tier == "ssd"
    ):
        rule = "must be true where a spare host takes over samples on an SSD"
        remedy = "Set it to true, or policy: elastic."
        refuse("recovery.reread", rule, "false", remedy, scenario.name)
    elastic = lost and recovery.policy == "elastic" and recovery.resume is None
    if elastic and exchange.whole_because:
        rule = f"must not be elastic where {exchange.whole_because}"
        remedy = (
            "Set policy: spare, or recovery.resume, or take another workload.exchange."
        )
        refuse("recovery.policy", rule, exchange.kind, remedy, scenario.name)


@dataclass(frozen=True)
class HostLoss:
    """The loss of a host that a job had."""

    host: str
    place: int  # of the host among those of the job
    at_s: float


class HostPool:
    """The hosts of a job that loses hosts, and those that are free to take a place.

    A job has all its hosts until `next_loss`, and again after `settle`. Moments of
    successive calls must ascend.

    Attributes:
        losses: losses of hosts of the job since it last had all of them.
    """

    def __init__(self, scenario: Scenario, hosts: Sequence[str]) -> None:
        """Begin with all ``hosts`` of the job (H,), and its spares."""
        self.losses: list[HostLoss] = []
        self._is_elastic = (scenario.recovery or Recovery()).policy == "elastic"
        self._hosts = list(hosts)
        self._vacant: set[int] = set()  # places
        self._spares = spare_hosts(scenario, hosts)  # that were never in the job
        self._left_hosts: list[str] = []  # that were in the job, in the order of losses
        self._faults = sorted(scenario.lost_hosts, key=lambda fault: fault.at or 0.0)
        self._usable_from: dict[str, float] = {}  # s, of hosts that had a fault

    @property
    def present_hosts(self) -> list[str]:
        """Return the hosts that the job has, in the order of their places."""
        return list(self._place_by_host)

    @property
    def _place_by_host(self) -> dict[str, int]:
        """Return {host: place} of the hosts that the job has, by ascending place."""
        return {
            host: place
            for place, host in enumerate(self._hosts)
            if place not in self._vacant
        }

    @property
    def next_loss_s(self) -> float:
        """Return when a job that has all its hosts loses the next one (s); inf if it
        loses none.
        """
        losses = (
            fault.at or 0.0 for fault in self._faults if fault.what in self._hosts
        )
        return next(losses, math.inf)

    def next_loss(self, deadline: float) -> HostLoss | None:
        """Take away the next host that the job loses before ``deadline`` (s); None if
        it loses none by then. Faults of other hosts up to that moment take effect.
        """
        while self._faults and (self._faults[0].at or 0.0) < deadline:
            fault = self._faults.pop(0)
            host = fault.what
            begin = fault.at or 0.0
            end = math.inf if fault.lasts is None else begin + fault.lasts
            self._usable_from[host] = max(self._usable_from.get(host, 0.0), end)
            place = self._place_by_host.get(host)
            if place is not None:
                loss = HostLoss(host, place, begin)
                self.losses.append(loss)
                self._vacant.add(place)
                self._left_hosts.append(host)
                return loss
        return None

    def gather(self, noticed: float) -> float:
        """Return when the job has its hosts, if it looks for them from ``noticed`` (s)
        on, when all earlier losses have been taken.

        An elastic job goes on with those that it has. Otherwise each place is taken by
        a spare, or, if none is usable, by the first host that is repaired. Losses
        meanwhile are taken.
        """
        now = noticed
        if self._is_elastic:
            return now
        self._fill_places(now)
        while self._vacant:
            free_hosts = [*self._spares, *self._left_hosts]
            repaired = min(self._usable_from.get(host, 0.0) for host in free_hosts)
            loss = self.next_loss(repaired)
            now = repaired if loss is None else loss.at_s
            self._fill_places(now)
        return now

    def settle(self) -> None:
        """Go on with the present hosts: vacant places are gone."""
        self._hosts = self.present_hosts
        self._vacant.clear()
        self.losses.clear()

    def _fill_places(self, now: float) -> None:
        """Fill vacant places with hosts that are usable at ``now`` (s), spares first,
        then the place's own host.
        """
        for place in sorted(self._vacant):
            own_host = self._hosts[place]
            repaired_hosts = sorted(self._left_hosts, key=lambda host: host != own_host)
            for host in [*self._spares, *repaired_hosts]:
                if self._usable_from.get(host, 0.0) <= now:
                    self._join(place, host)
                    break

    def _join(self, place: int, host: str) -> None:
        """Put a free host at a vacant place."""
        free_hosts = self._spares if host in self._spares else self._left_hosts
        free_hosts.remove(host)
        self._hosts[place] = host
        self._vacant.remove(place)
