"""The collective check that the shards of all ranks together are the data set."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import SimshuffleError
from simshuffle.train.distributed.dataset import Manifest, Payload, ShardDataset
from simshuffle.train.distributed.group import SHOWN, ExchangeError, named

Ints = NDArray[np.integer]


def check_shards(dataset: ShardDataset, owner: Ints, manifest: Manifest, payload: Payload) -> None:
    """See that rank r holds the samples of ``owner`` (N,) r, these alone, with the content of
    ``manifest``. Collective.

    Raises:
        ExchangeError: on all ranks, naming samples and ranks.
    """
    held = dataset.store.samples()
    damaged = np.array(
        [sample for sample in held if not _intact(dataset, int(sample), manifest, payload)],
        np.int64,
    )
    on = [np.asarray(part, np.int64) for part in dataset.ranks.gather(held)]
    broken = dataset.ranks.gather(damaged)
    problems = faults(on, owner)
    problems += [
        f"damaged on rank {rank}: {named(np.asarray(part, np.int64))}"
        for rank, part in enumerate(broken)
        if len(part)
    ]
    if problems:
        raise ExchangeError(
            "the shards are not the data set:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )


def faults(on: list[NDArray[np.int64]], owner: Ints) -> list[str]:
    """What is wrong, given the samples that are ``on`` each rank and the ``owner`` (N,) that each
    should be on."""
    count = len(owner)
    strange = [(rank, part[part >= count]) for rank, part in enumerate(on)]
    known = [part[part < count] for part in on]
    copies = np.bincount(np.concatenate(known), minlength=count)
    ranks_of = {
        int(sample): [rank for rank, part in enumerate(known) if sample in part]
        for sample in np.flatnonzero(copies > 1)[:SHOWN]
    }
    where = np.full(count, -1)
    for rank, part in enumerate(known):
        where[part] = rank
    misplaced = np.flatnonzero((copies == 1) & (where != owner))
    missing = np.flatnonzero(copies == 0)
    out = [
        f"no samples of the data set, on rank {rank}: {named(part)}"
        for rank, part in strange
        if len(part)
    ]
    if len(missing):
        out.append(
            "missing: "
            + _with_ranks(
                missing, [f"should be on rank {owner[sample]}" for sample in missing[:SHOWN]]
            )
        )
    if ranks_of:
        texts = [f"on ranks {', '.join(map(str, ranks))}" for ranks in ranks_of.values()]
        out.append("more than once: " + _with_ranks(np.flatnonzero(copies > 1), texts))
    if len(misplaced):
        texts = [
            f"on rank {where[sample]} instead of {owner[sample]}" for sample in misplaced[:SHOWN]
        ]
        out.append("misplaced: " + _with_ranks(misplaced, texts))
    return out


def _with_ranks(samples: Ints, texts: list[str]) -> str:
    shown = ", ".join(
        f"{sample} ({text})" for sample, text in zip(samples[:SHOWN], texts, strict=True)
    )
    return shown if len(samples) <= SHOWN else f"{shown} and {len(samples) - SHOWN} more"


def _intact(dataset: ShardDataset, sample: int, manifest: Manifest, payload: Payload) -> bool:
    if sample >= len(manifest.sizes):
        return True
    try:
        return manifest.fits(sample, dataset.to_payload(dataset.store.get(sample), payload))
    except (OSError, SimshuffleError):
        return False
