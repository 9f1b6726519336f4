"""The samples that the ranks exchange in one epoch: how many, of what size, after which iteration;
and a smaller set of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simshuffle.errors import Problem, ScenarioError
from simshuffle.exchange.schedule import epoch_quota, spread_over_iterations
from simshuffle.plan.host_work import payload_nbytes
from simshuffle.scenario.scenario import Scenario

FEWEST = 4
"""Samples of a rank that a shortened set keeps before it cuts them."""


@dataclass(frozen=True)
class Samples:
    """What each rank sends."""

    scenario: Scenario  # without sweep
    count: int  # samples of each rank
    iteration: NDArray[np.integer]  # (count,) iteration after which each is sent; not decreasing
    share: float = 1.0  # of the bytes of each sample
    # by which share of its size each is larger or smaller at most; see `jittered`
    jitter: float = 0.0
    bytes_set: str = "full"  # 'full' for an epoch's exchange, 'short' for a part of it

    @property
    def key(self) -> tuple[int, float, float]:
        """What distinguishes them from others of the same scenario."""
        return self.count, self.share, self.jitter

    @property
    def mean(self) -> float:
        """Mean bytes of a sample as it is sent: decoded, or as stored, as the scenario's exchange
        says."""
        workload = self.scenario.workload
        schedule = workload.exchange.exchange_schedule
        if schedule is None:
            raise TypeError(f"{workload.exchange.kind} exchanges nothing")
        return payload_nbytes(schedule, workload.dataset) * self.share

    @property
    def alike(self) -> bool:
        """Whether all samples have one size."""
        return self.scenario.workload.dataset.stored.spread == 0 and self.jitter == 0

    def nbytes(self, seed: int) -> NDArray[np.float64]:
        """(count, M) bytes of the samples of each rank, drawn from the data set's law.

        The samples of a shortened set are the first of the full one, or parts of them.
        """
        ranks, stored = self.scenario.world_size, self.scenario.workload.dataset.stored
        drawn = stored.draw(self.scenario.rng("congestion.sizes", seed), self.count * ranks)
        nbytes = drawn.reshape(self.count, ranks) * (self.mean / stored.mean)
        if self.jitter:
            rng = self.scenario.rng("congestion.jitter", seed)
            nbytes *= rng.uniform(1.0 - self.jitter, 1.0 + self.jitter, nbytes.shape)
        return nbytes

    def jittered(self, jitter: float) -> Samples:
        """These samples, each larger or smaller by up to a share ``jitter`` of its size, drawn by
        the seed, where the data set's law has them differ less than that (standard deviation over
        mean).

        The packets of equal messages that begin together go in step and never meet in a queue, as
        on no real machine.
        """
        if self.scenario.workload.dataset.stored.spread >= jitter:
            return self
        return replace(self, jitter=jitter)

    def shortened(self, packets: int, mtu: float) -> Samples:
        """These samples, or so many of the first ones that about ``packets`` packets of ``mtu``
        bytes carry them.

        `FEWEST` samples of a rank and those of two iterations are kept. If they are too many
        packets still, all are cut alike.
        """
        each = self.mean * self.scenario.world_size / mtu
        if self.count * each <= packets:
            return self
        two_iterations = int(np.sum(self.iteration <= np.unique(self.iteration)[:2].max()))
        count = min(self.count, max(int(packets / each), two_iterations, FEWEST))
        share = min(1.0, packets / (count * each))
        return replace(
            self, count=count, iteration=self.iteration[:count], share=share, bytes_set="short"
        )


def samples(scenario: Scenario) -> Samples:
    """What one epoch exchanges: Q N / M samples of each rank, made whole, in the pace of the
    scenario's exchange.

    Raises:
        ScenarioError: nothing is exchanged, or there is nobody to exchange with.
    """
    workload, ranks = scenario.workload, scenario.world_size
    fraction = workload.exchange.fraction or 0.0
    quota = epoch_quota(fraction, workload.dataset.num_samples, ranks, 1)
    problem = None
    if ranks < 2:
        problem = Problem(
            "world_size", "must be at least 2 for an exchange", str(ranks), "Use more ranks."
        )
    elif quota == 0:
        given = (
            f"{workload.exchange.kind}, {fraction * workload.dataset.num_samples / ranks:.2g}"
            " samples of each"
        )
        remedy = (
            "Write for example --set workload.exchange=partial_local_shuffle:exchange_fraction=0.1."
        )
        problem = Problem(
            "workload.exchange", f"must exchange samples between the {ranks} ranks", given, remedy
        )
    if problem:
        raise ScenarioError(problem, scenario.name)
    return Samples(
        scenario,
        quota,
        spread_over_iterations(
            quota, fraction * workload.local_batch_size, workload.iterations(ranks)
        ),
    )
