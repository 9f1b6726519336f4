"""What a shuffle costs in accuracy, before anything is simulated."""

from __future__ import annotations

from collections.abc import Iterator

from simshuffle.extensions.learning.accuracy.asked import AccuracyRequest, Sized
from simshuffle.extensions.learning.accuracy.cells import RestsCell
from simshuffle.extensions.learning.accuracy.tables import points


def lines(asked: AccuracyRequest) -> Iterator[str]:
    """The points that are lost at most on each number of ranks, in lines: local shuffle loses most,
    and what its statistics rest on is known in closed form."""
    model, tolerance = asked.of.model, asked.tolerance
    if asked.of.norm != "batch":
        yield f"{model} has no batch norm: 0 points are lost by running statistics."
        return
    if not asked.norm_is_known:
        yield f"What {model} normalises by is not known; batch norm is assumed."
    for size in dict.fromkeys(sized.world_size for sized in asked.sized):
        runs = [sized for sized in asked.sized if sized.world_size == size]
        losing = [sized.strategy for sized in runs if sized.changes]
        if not losing:
            yield f"{size:,} ranks: {', '.join(sized.strategy for sized in runs)} loses nothing."
            continue
        middle, low, high = local_loss(asked, runs[0])
        enough = "nothing has to be done" if high <= tolerance else f"{tolerance:g} may be lost"
        yield (
            f"{size:,} ranks: {', '.join(losing)} lose at most {points(middle)} points"
            f" ({points(low)} to {points(high)}), as local shuffle does; {enough}."
        )


def local_loss(asked: AccuracyRequest, sized: Sized) -> tuple[float, float, float]:
    """Points that local shuffle loses on as many ranks, and their 90 % interval."""
    scenario = sized.base.with_values({"workload.exchange": "local_shuffle"})
    cell = RestsCell(scenario.to_dict(), sized.name, asked.momentum, asked.epochs)
    found = cell.run(lambda share: None).values
    return asked.of.lost(1.0 / found["n"] - 1.0 / found["global"])
