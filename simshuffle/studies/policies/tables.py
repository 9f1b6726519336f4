"""The tables of a comparison."""

from __future__ import annotations

import math
from typing import Any

from simshuffle.studies.policies.model import Epoch, Outcome
from simshuffle.studies.policies.sources import READY, SOURCES
from simshuffle.study.schema import Schema, amount, count, share, text

_CASE, _POLICY = text("name of the case: the data set"), text("name of the policy")
STORED = {
    "policies": Schema(
        {
            "case": _CASE,
            "policy": _POLICY,
            "problem": text("why the policy cannot be used; empty if it can"),
            "coverage": share(
                "share of the data set that is ever read, by all workers together; below 1 training"
                " learns from less",
                empty=True,
            ),
            "first_s": amount("s of the first epoch, with the staging before it", empty=True),
            "steady_s": amount("s of the last epoch", empty=True),
            "total_s": amount("s of all epochs", empty=True),
            "first_ratio": amount("first_s over that of perfect", empty=True),
            "steady_ratio": amount("steady_s over that of perfect", empty=True),
            "total_ratio": amount("total_s over that of perfect", empty=True),
            "staging_s": amount("s of reading and writing before training", empty=True),
            "memory_nbytes": amount(
                "bytes of memory that a worker fills with samples it keeps, beside the staging"
                " buffer",
                empty=True,
            ),
            "ssd_nbytes": amount("bytes of SSD that a worker fills", empty=True),
            **{
                f"{source}_share": share(
                    f"share of the bytes of all epochs from {source.replace('_', ' ')}", empty=True
                )
                for source in SOURCES
            },
        },
        key=("case", "policy"),
    ),
    "epochs": Schema(
        {
            "case": _CASE,
            "policy": _POLICY,
            "epoch": count(
                "number of the epoch, from 0; epoch 0 includes the staging before training"
            ),
            "time_s": amount(
                "s, from the end of the epoch before to the end of training on its last sample"
            ),
            "compute_s": amount("s of it in training"),
            "stall_s": amount("s of it in which training waited; in epoch 0 with the staging"),
            "readers": amount("workers that read from the file system at a moment; 0 if none does"),
            **{
                f"{source}_nbytes": amount(
                    f"bytes that a worker took from {source.replace('_', ' ')}"
                )
                for source in SOURCES
            },
            **{
                f"{source}_fetch_s": amount(
                    f"s that a worker's threads together fetched from {source.replace('_', ' ')}"
                )
                for source in SOURCES[:READY]
            },
        },
        key=("case", "policy", "epoch"),
    ),
}


def epoch_row(epoch: Epoch) -> list[float]:
    """The columns of `epochs` behind the number of the epoch."""
    stall = max(epoch.seconds - epoch.compute, 0.0)
    return [epoch.seconds, epoch.compute, stall, epoch.readers, *epoch.nbytes, *epoch.fetch[:READY]]


def policy_row(outcome: Outcome) -> list[Any]:
    """The columns of `policies` behind the case; times and shares are empty where a policy cannot
    be used.

    Perfect training takes S_w / c for the same bytes S_w, so that the ratios need no outcome of the
    policy 'perfect'.
    """
    plan, epochs = outcome.plan, outcome.epochs
    if not epochs:
        empty = len(STORED["policies"].columns) - 3
        return [outcome.policy, plan.problem, *[math.nan] * empty]
    seconds = (epochs[0].seconds, epochs[-1].seconds, outcome.seconds)
    least = (epochs[0].compute, epochs[-1].compute, sum(epoch.compute for epoch in epochs))
    ratios = [time / bound for time, bound in zip(seconds, least, strict=True)]
    nbytes = [sum(epoch.nbytes[code] for epoch in epochs) for code in range(len(SOURCES))]
    shares = [value / sum(nbytes) for value in nbytes]
    sizes = (outcome.staging, plan.memory, plan.ssd)
    return [outcome.policy, "", plan.coverage, *seconds, *ratios, *sizes, *shares]
