"""State the accuracy that a shuffle costs before anything is simulated."""

from __future__ import annotations

from collections.abc import Iterator

from simshuffle.extensions.learning.accuracy.asked import AccuracyCase, AccuracyRequest
from simshuffle.extensions.learning.accuracy.cells import EffectiveSamplesCell
from simshuffle.extensions.learning.accuracy.sensitivity import LossEstimate
from simshuffle.extensions.learning.accuracy.tables import format_points


def lines(request: AccuracyRequest) -> Iterator[str]:
    """Yield lines on the most points that are lost, one for each number of ranks.

    Local shuffle loses most, and the samples that its statistics rest on are known in
    closed form. Strategies that lose nothing are named only where no other one is. A
    network without batch norm has one line in all; where the norm is unknown, a line
    says what is assumed.
    """
    model = request.sensitivity.model
    tolerance = request.tolerance
    if request.sensitivity.norm != "batch":
        yield f"{model} has no batch norm, so running statistics lose 0 points."
        return
    if not request.norm_is_known:
        yield f"The norm of {model} is not known; batch norm is assumed."
    for size in dict.fromkeys(case.world_size for case in request.cases):
        cases = [case for case in request.cases if case.world_size == size]
        losing = [case.strategy for case in cases if case.changes]
        if not losing:
            yield f"{size:,} ranks: {', '.join(case.strategy for case in cases)} loses nothing."
            continue
        loss = local_loss(request, cases[0])
        consequence = f"the tolerance is {tolerance:g} points"
        if loss.high <= tolerance:
            consequence = "nothing has to be done"
        yield (
            f"{size:,} ranks: {', '.join(losing)} lose at most {format_points(loss.points)} points"
            f" ({format_points(loss.low)} to {format_points(loss.high)}), the loss of local"
            " shuffle;"
            f" {consequence}."
        )


def local_loss(request: AccuracyRequest, case: AccuracyCase) -> LossEstimate:
    """Return the points that local shuffle loses on as many ranks, with the 90 %
    interval.

    Everything but the strategy is as in ``case``; nothing is simulated.
    """
    scenario = case.base.with_values({"workload.exchange": "local_shuffle"})
    cell = EffectiveSamplesCell(
        scenario.to_dict(), case.name, request.momentum, request.epochs
    )
    samples = cell.run(lambda share: None).values
    return request.sensitivity.expected_loss(
        1.0 / samples["n"] - 1.0 / samples["global"]
    )
