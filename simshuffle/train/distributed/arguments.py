"""What a scheduler is made with: its strategy, batches and transport, checked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from simshuffle.errors import InputError, Problem, ScenarioError
from simshuffle.exchange import TrainedExchange
from simshuffle.spec.library import by_kind
from simshuffle.spec.record import Spec
from simshuffle.spec.validation import validated
from simshuffle.train.distributed.transport import TRANSPORTS, TransportName
from simshuffle.train.training import Training


class Arguments(Spec):
    """The arguments of a scheduler that are records."""

    strategy: TrainedExchange
    training: Training
    transport: TransportName


def read_arguments(
    fraction: float | None, strategy: Any, batch_size: int, drop_last: bool, transport: str
) -> Arguments:
    """The arguments of a scheduler, as it takes them.

    Raises:
        InputError: there is neither a fraction nor a strategy, or both; or one is not valid.
    """
    if (fraction is None) == (strategy is None):
        remedy = "Give fraction=Q for partial local shuffle, or strategy=."
        raise InputError(
            Problem("strategy", "either a fraction or a strategy is needed", "", remedy),
            "scheduler",
        )
    if transport not in TRANSPORTS:
        raise InputError(
            Problem(
                "transport",
                f"must be one of {', '.join(TRANSPORTS)}",
                repr(transport),
                "Use 'isend'.",
            ),
            "scheduler",
        )
    if strategy is None:
        raw: Any = {"kind": "partial_local_shuffle", "exchange_fraction": fraction}
    else:
        try:
            raw = by_kind(strategy) if isinstance(strategy, str) else strategy
        except ScenarioError as error:
            raise InputError(
                [Problem("strategy", p.rule, p.value, p.remedy) for p in error.problems],
                "scheduler",
            ) from None
    training = {"local_batch_size": batch_size, "drop_last": drop_last}
    chosen, problems = validated(
        {"strategy": raw, "training": training, "transport": transport}, Arguments
    )
    if problems or chosen is None:
        named = _NAMES if strategy is not None else {**_NAMES, _FRACTION: "fraction"}
        told = [replace(each, path=named.get(each.path, each.path)) for each in problems]
        raise InputError(told, "scheduler")
    return chosen


_NAMES = {"training.local_batch_size": "batch_size", "training.drop_last": "drop_last"}
_FRACTION = "strategy.exchange_fraction"
"""What a scheduler calls the values of its records."""
