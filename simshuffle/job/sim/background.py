"""The traffic of others on the clock: none of it keeps a run from ending."""

from __future__ import annotations

import numpy as np

from simshuffle.job.lowering.background import bursts, steady, writes
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.background import OnOff, PeriodicWrites
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.clock import NetworkClock, Steps


def send(scenario: Scenario, resources: Resources, clock: NetworkClock) -> None:
    """Let the others on the machine of a scenario send from now on, which names their hosts
    (`simshuffle.job.plan.jobs.settled`)."""
    for number, record in enumerate(scenario.background or []):
        if isinstance(record, PeriodicWrites):
            clock.env.process(_writing(record, resources, clock))
        elif isinstance(record, OnOff):
            for host in range(len(record.named or ())):
                rng = scenario.rng("background", number, host)
                clock.env.process(_bursting(record, resources, clock, host, rng))
        elif record.load:
            clock.post(steady(record, resources, scenario.rng("background", number)))


def _writing(record: PeriodicWrites, resources: Resources, clock: NetworkClock) -> Steps:
    """Writes of all hosts, each at its time or when the one before has ended."""
    env, batch, due = clock.env, writes(record, resources), record.start
    while True:
        yield env.timeout(max(due - env.now, 0.0))
        group = batch.tasks["group"] = clock.open(len(batch))
        clock.post(batch)
        yield from clock.ended(group)
        due += record.period


def _bursting(
    record: OnOff, resources: Resources, clock: NetworkClock, host: int, rng: np.random.Generator
) -> Steps:
    """The bursts of one host."""
    while record.load:
        batch = bursts(record, resources, host, rng)
        group = batch.tasks["group"] = clock.open(len(batch))
        clock.post(batch)
        yield from clock.ended(group)
