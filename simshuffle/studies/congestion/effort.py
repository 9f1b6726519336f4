"""Limit how much of a comparison is simulated, so that it answers within a minute, and
give a first answer from closed forms.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.fabric.network import Analytic
from simshuffle.studies.congestion.answer import answer, contenders
from simshuffle.studies.congestion.cell import TrafficCell, build_fabric, build_traffic
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
    """The most that is simulated of a comparison."""

    most_messages: int  # of one exchange, roughly; 0 for all
    packets: int  # in one run of the packet model
    seeds: int  # for analytic and fluid
    packet_seeds: int  # for packet


def efforts(options: CongestionOptions) -> Iterator[EffortLimit]:
    """Yield limits of what is simulated, from all that was requested to the smallest.

    With ``exact`` there is only the first. ``most_messages`` of 0 means no limit. No
    limit is above the packets, seeds and packet seeds of ``options``.
    """
    requested = EffortLimit(0, options.packets, options.seeds, options.packet_seeds)
    yield requested
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
            min(packets, requested.packets),
            min(seeds, requested.seeds),
            min(seeds, requested.packet_seeds),
        )


def effort_meta(effort: EffortLimit, options: CongestionOptions) -> dict[str, Any]:
    """Return the entry ``effort`` of ``meta.json``, the limit of what is simulated.

    Its value holds the fields of ``effort``, and ``seeds_asked``. The mapping is empty
    where ``effort`` is all that was requested.
    """
    if effort == next(efforts(options)):
        return {}
    return {"effort": {**asdict(effort), "seeds_asked": options.seeds}}


def first_answer(jobs: Iterable[CongestionJob]) -> Iterator[str]:
    """Yield the answer for each number of ranks and routing from closed forms: lower
    bounds.

    Only the contending variants of seed 1 are computed. Jobs of shortened bytes are
    left out, so that nothing is yielded if there are no others.
    """
    for job in jobs:
        if job.samples.bytes_set != "full":
            continue
        runs = {run.variant: run for run, _ in job.runs() if run.seed == 1}
        table = pd.DataFrame([asdict(variant) for variant in runs])
        rows = [
            _lower_bound_row(runs[variant])
            for variant in contenders(table)
            if variant is not None
        ]
        ranks = job.samples.scenario.world_size
        times = pd.DataFrame(rows).assign(world_size=ranks, routing=job.routing)
        yield answer(times, [job.routing])


def _lower_bound_row(run: TrafficCell) -> dict[str, Any]:
    """Return a row of table `times` by the analytic model, with the columns of an
    answer.

    ``time_s``, ``low_s`` and ``high_s`` are equal, and count what messages cost unless
    the run is of the wire alone.
    """
    fabric = build_fabric(run.place)
    traffic = build_traffic(run)
    wire_s = Analytic().finish_times(fabric.links, traffic.flows).makespan
    seconds = wire_s
    if not run.wire_only:
        cluster = run.place.scenario.cluster
        seconds = seconds_with_messages(fabric, traffic, cluster, Analytic(), wire_s)
    times = dict.fromkeys(("time_s", "low_s", "high_s"), seconds)
    return {
        **asdict(run.variant),
        "model": "analytic",
        "bytes_set": "full",
        "seed": 1,
        **times,
    }
