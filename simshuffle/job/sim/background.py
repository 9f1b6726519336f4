"""Background traffic on the clock, which keeps no run from ending."""

from __future__ import annotations

import numpy as np

from simshuffle.job.lowering.background import bursts, steady, writes
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.background import OnOff, PeriodicWrites
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.clock import NetworkClock, Steps


def send(scenario: Scenario, resources: Resources, clock: NetworkClock) -> None:
    """Start the background traffic of a scenario now; the scenario names the hosts of
    that traffic (`simshuffle.job.plan.jobs.place_jobs`). A load of 0 sends nothing.

    The random streams are those of the record, and of the host for bursts.
    """
    for index, record in enumerate(scenario.background or []):
        if isinstance(record, PeriodicWrites):
            clock.env.process(_write_periodically(record, resources, clock))
        elif isinstance(record, OnOff):
            for host in range(len(record.named_hosts or ())):
                rng = scenario.rng("background", index, host)
                clock.env.process(_send_bursts(record, resources, clock, host, rng))
        elif record.load:
            clock.post(steady(record, resources, scenario.rng("background", index)))


def _write_periodically(
    record: PeriodicWrites, resources: Resources, clock: NetworkClock
) -> Steps:
    """Write from all hosts in each period, for ever: at its time, or when the writes of
    the last period have ended, if later. A delay does not move the times after it.
    """
    env = clock.env
    batch = writes(record, resources)
    due = record.start
    while True:
        yield env.timeout(max(due - env.now, 0.0))
        yield from clock.post_and_wait(batch)
        due += record.period


def _send_bursts(
    record: OnOff,
    resources: Resources,
    clock: NetworkClock,
    host: int,
    rng: np.random.Generator,
) -> Steps:
    """Send the bursts of host number ``host``, one after the other, for ever; none with
    a load of 0.
    """
    while record.load:
        yield from clock.post_and_wait(bursts(record, resources, host, rng))
