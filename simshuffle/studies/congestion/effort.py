"""How much of a comparison is simulated, so that it answers within a minute; and its first answer,
from closed forms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.fabric.network import Analytic
from simshuffle.studies.congestion.answer import answer, contenders
from simshuffle.studies.congestion.cell import TrafficCell, fabric_of, traffic_of
from simshuffle.studies.congestion.messages import seconds_with_messages

if TYPE_CHECKING:
    from simshuffle.studies.congestion.study import CongestionJob
    from simshuffle.studies.congestion.verb import CongestionOptions

BUDGET = 75.0
"""Seconds of a core by the costs of the cells: two cores answer within a minute."""
WORTH_FIRST_ANSWER = 20.0
"""Seconds of a core from which on closed forms answer first."""


@dataclass(frozen=True)
class EffortLimit:
    """How much is simulated at most."""

    most_messages: int  # of one exchange, roughly; 0 for all
    packets: int  # in one run of the packet model
    seeds: int  # for analytic and fluid
    packet_seeds: int  # for packet


def efforts(options: CongestionOptions) -> Iterator[EffortLimit]:
    """Yield how much may be simulated, from all that was asked for down to the least."""
    asked = EffortLimit(0, options.packets, options.seeds, options.packet_seeds)
    yield asked
    if options.exact:
        return
    for most_messages, packets, seeds in (
        (131_072, 1_000_000, 5),
        (131_072, 500_000, 5),
        (131_072, 500_000, 3),
        (131_072, 500_000, 2),
        (131_072, 500_000, 1),
        (65_536, 500_000, 1),
        (65_536, 250_000, 1),
    ):
        yield EffortLimit(
            most_messages,
            min(packets, asked.packets),
            min(seeds, asked.seeds),
            min(seeds, asked.packet_seeds),
        )


def effort_said(effort: EffortLimit, options: CongestionOptions) -> dict[str, Any]:
    """Return what ``meta.json`` says of the effort; nothing where all is simulated."""
    if effort == next(efforts(options)):
        return {}
    return {"effort": {**asdict(effort), "seeds_asked": options.seeds}}


def first_answer(jobs: Iterable[CongestionJob]) -> Iterator[str]:
    """Yield the answer for each number of ranks and routing from closed forms: lower bounds."""
    for job in jobs:
        if job.samples.bytes_set != "full":
            continue
        runs = {run.variant: run for run, _ in job.runs() if run.seed == 1}
        table = pd.DataFrame([asdict(variant) for variant in runs])
        rows = [_bounded(runs[variant]) for variant in contenders(table) if variant is not None]
        ranks = job.samples.scenario.world_size
        times = pd.DataFrame(rows).assign(world_size=ranks, routing=job.routing)
        yield answer(times, [job.routing])


def _bounded(run: TrafficCell) -> dict[str, Any]:
    """Return a row of `times` by the analytic model, with what the answer needs."""
    fabric, traffic = fabric_of(run.place), traffic_of(run)
    wire_s = Analytic().finish_times(fabric.links, traffic.flows).makespan
    seconds = wire_s
    if not run.wire_only:
        cluster = run.place.scenario.cluster
        seconds = seconds_with_messages(fabric, traffic, cluster, Analytic(), wire_s)
    times = dict.fromkeys(("time_s", "low_s", "high_s"), seconds)
    return {**asdict(run.variant), "model": "analytic", "bytes_set": "full", "seed": 1, **times}
