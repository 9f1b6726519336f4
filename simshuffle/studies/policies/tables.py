"""The tables of a comparison, and what their columns mean."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from simshuffle.studies.policies.model import Epoch, Outcome
from simshuffle.studies.policies.sources import READY, SOURCES

Row = Mapping[Any, Any]
"""A row of a table."""
EPOCH_COLUMNS = {
    "case": "name of the case: the data set",
    "policy": "name of the policy",
    "epoch": "number of the epoch, from 0; epoch 0 includes the staging before training",
    "time_s": "s, from the end of the epoch before to the end of training on its last sample",
    "compute_s": "s of it in training",
    "stall_s": "s of it in which training waited; in epoch 0 with the staging",
    "readers": "workers that read from the file system at a moment; 0 if none does",
    **{
        f"{source}_nbytes": f"bytes that a worker took from {source.replace('_', ' ')}"
        for source in SOURCES
    },
    **{
        f"{source}_fetch_s": (
            f"s that a worker's threads together fetched from {source.replace('_', ' ')}"
        )
        for source in SOURCES[:READY]
    },
}
POLICY_COLUMNS = {
    "case": "name of the case: the data set",
    "policy": "name of the policy",
    "problem": "why the policy cannot be used; empty if it can",
    "coverage": (
        "share of the data set that is ever read, by all workers together; below 1 training learns"
        " from less"
    ),
    "first_s": "s of the first epoch, with the staging before it",
    "steady_s": "s of the last epoch",
    "total_s": "s of all epochs",
    "first_ratio": "first_s over that of perfect",
    "steady_ratio": "steady_s over that of perfect",
    "total_ratio": "total_s over that of perfect",
    "staging_s": "s of reading and writing before training",
    "memory_nbytes": (
        "bytes of memory that a worker fills with samples it keeps, beside the staging buffer"
    ),
    "ssd_nbytes": "bytes of SSD that a worker fills",
    **{
        f"{source}_share": f"share of the bytes of all epochs from {source.replace('_', ' ')}"
        for source in SOURCES
    },
}


def epochs_table(outcomes: Mapping[str, Sequence[Outcome]]) -> pd.DataFrame:
    """A row for each case, policy and epoch; columns `EPOCH_COLUMNS`. ``outcomes``: by case."""
    rows = [
        (case, outcome.policy, number, *_epoch(epoch))
        for case, of in outcomes.items()
        for outcome in of
        for number, epoch in enumerate(outcome.epochs)
    ]
    return pd.DataFrame(rows, columns=list(EPOCH_COLUMNS))


def _epoch(epoch: Epoch) -> tuple[float, ...]:
    stall = max(epoch.seconds - epoch.compute, 0.0)
    return (epoch.seconds, epoch.compute, stall, epoch.readers, *epoch.nbytes, *epoch.fetch[:READY])


def policies_table(outcomes: Mapping[str, Sequence[Outcome]]) -> pd.DataFrame:
    """A row for each case and policy; columns `POLICY_COLUMNS`. Times and shares are empty where a
    policy cannot be used.

    Perfect training takes S_w / c for the same bytes S_w, so that the ratios need no outcome of the
    policy 'perfect'.
    """
    rows = [(case, *_policy(outcome)) for case, of in outcomes.items() for outcome in of]
    return pd.DataFrame(rows, columns=list(POLICY_COLUMNS))


def _policy(outcome: Outcome) -> tuple[Any, ...]:
    plan, epochs = outcome.plan, outcome.epochs
    if not epochs:
        return (outcome.policy, plan.problem, *[math.nan] * (len(POLICY_COLUMNS) - 3))
    seconds = (epochs[0].seconds, epochs[-1].seconds, outcome.seconds)
    least = (epochs[0].compute, epochs[-1].compute, sum(epoch.compute for epoch in epochs))
    ratios = [time / bound for time, bound in zip(seconds, least, strict=True)]
    nbytes = [sum(epoch.nbytes[code] for epoch in epochs) for code in range(len(SOURCES))]
    shares = [value / sum(nbytes) for value in nbytes]
    return (
        outcome.policy,
        "",
        plan.coverage,
        *seconds,
        *ratios,
        outcome.staging,
        plan.memory,
        plan.ssd,
        *shares,
    )
