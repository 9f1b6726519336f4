"""The flows of a variant: messages over routes, in steps, with barriers or without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simshuffle.network import Flows
from simshuffle.studies.congestion.patterns.fabric import Fabric, Floats, Ints
from simshuffle.studies.congestion.patterns.partners import partners
from simshuffle.studies.congestion.patterns.variant import Batching, Variant


@dataclass(frozen=True)
class Traffic:
    """One exchange, ready for a network model.

    Attributes:
        flows: the messages, step by step and by sender, and behind them the barriers: without links
            and without bytes.
        messages: how many of the flows are messages.
    """

    flows: Flows
    messages: int

    @property
    def barriers(self) -> int:
        """How many of the flows are barriers."""
        return len(self.flows) - self.messages


def exchange(
    variant: Variant,
    fabric: Fabric,
    nbytes: Floats,
    iteration: NDArray[np.integer],
    rng: np.random.Generator,
    importance: Floats,
) -> Traffic:
    """The flows of a variant.

    Args:
        variant: the pattern and how it is carried out.
        fabric: the network and the ranks on it.
        nbytes: (samples, M) bytes of the samples that each rank sends, in this order.
        iteration: (samples,) iteration of each of them; not decreasing.
        rng: draws permutations and pairings.
        importance: (M,) importance of each rank.

    Raises:
        ValueError: the pattern cannot be made for that many ranks.
    """
    if variant.pattern == "all_to_all":
        src, _, routes = fabric.all_pairs
        share = (nbytes.sum(axis=0) / (fabric.world_size - 1))[src]
        return Traffic(Flows(routes, share, np.zeros(len(src))), len(src))
    first = first_samples(variant.batching, iteration)
    partner = partners(variant.pattern, len(first), fabric, rng, importance)
    ranks = np.flatnonzero(partner[0] != np.arange(fabric.world_size)).astype(np.int32)
    sizes = np.add.reduceat(nbytes, first, axis=0)[:, ranks]
    routes = fabric.routes(np.tile(ranks, len(first)), partner[:, ranks].ravel())
    return _in_steps(routes, sizes, variant.barrier)


def first_samples(batching: Batching, iteration: NDArray[np.integer]) -> NDArray[np.int64]:
    """Number of the first sample of each message, (messages,), given the iteration (samples,) of
    each sample."""
    if batching == "sample":
        return np.arange(len(iteration))
    if batching == "iteration":
        return np.flatnonzero(np.diff(iteration, prepend=-1))
    return np.zeros(1, np.int64)


def _in_steps(routes: Ints, sizes: Floats, barrier: bool) -> Traffic:
    """Messages of ``sizes`` (steps, senders) bytes, one after the other on each sender, and with
    barriers on all of them."""
    steps, senders = sizes.shape
    messages = steps * senders
    number = np.arange(messages, dtype=np.int32)
    if not barrier or steps == 1:
        return Traffic(
            Flows(routes, sizes.ravel(), np.zeros(messages), number[:-senders], number[senders:]),
            messages,
        )
    gates = np.arange(messages, messages + steps - 1, dtype=np.int32)
    gate = np.repeat(gates, senders)
    return Traffic(
        Flows(
            np.concatenate([routes, np.full((steps - 1, routes.shape[1]), -1, np.int32)]),
            np.concatenate([sizes.ravel(), np.zeros(steps - 1)]),
            np.zeros(messages + steps - 1),
            np.concatenate([number[:-senders], gate]),
            np.concatenate([gate, number[senders:]]),
        ),
        messages,
    )
