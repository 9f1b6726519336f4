"""What part of a pass a layer takes, from its multiplications."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BY_WORK = 0.65
"""Share of a pass that is in proportion to the multiplications of a layer; the rest is in
proportion to their root, as small layers leave much of an accelerator idle (estimate)."""
DIGITS = 6
"""Of the shares by which gradients are ready."""


def shares_of_work(work: Sequence[float]) -> list[float]:
    """The part of a pass that each layer takes, from the multiplications of each."""
    roots = [each**0.5 for each in work]
    whole, root = sum(work) or 1.0, sum(roots) or 1.0
    return [
        BY_WORK * each / whole + (1 - BY_WORK) * small / root
        for each, small in zip(work, roots, strict=True)
    ]


def parts_of_gradient(layers: Iterable[tuple[int, float]]) -> tuple[list[int], list[float]]:
    """What of the gradient is ready when: parameters of groups of ``layers``, of which each has
    parameters and multiplications, first to last; and the share of the backward pass that each
    group takes.

    What has no multiplications, such as a norm, is a group with what is before it; so is what has
    no parameters.
    """
    parameters, shares = [0], [0.0]
    given = list(layers)
    for (count, work), share in zip(
        given, shares_of_work([work for _, work in given]), strict=True
    ):
        if count and work:
            parameters.append(count)
            shares.append(share)
        else:
            parameters[-1] += count
            shares[-1] += share
    kept = [place for place, count in enumerate(parameters) if count]
    return [parameters[place] for place in kept], [
        round(shares[place] or 10**-DIGITS, DIGITS) for place in kept
    ]
