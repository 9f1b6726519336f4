"""Check that a job can go on without the hosts that its faults take away. No clock."""

from __future__ import annotations

from collections.abc import Sequence

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
        InputError: a lost host never returns and has no spare, a spare host would train
            on samples that it does not read, or ranks would change in number that may
            not.
    """
    recovery = scenario.recovery or Recovery()
    exchange = scenario.workload.exchange
    lost = [loss for loss in scenario.lost_hosts if loss.what in hosts]
    if recovery.policy == "spare":
        spares = len(spare_hosts(scenario, hosts))
        for loss in sorted(lost, key=lambda loss: loss.at or 0.0)[spares:]:
            if loss.lasts is None:
                rule = "must be enough for the hosts that are lost and do not return"
                spares_and_loss = f"{recovery.spares}, and {loss.what} is lost for ever"
                remedy = (
                    "Add spares, say how long it is away (for), or set policy: elastic."
                )
                refuse("recovery.spares", rule, spares_and_loss, remedy, scenario.name)
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
