"""Who trains on what, epoch after epoch, and on what is left of an epoch that was broken off, by
these and by other ranks. Here alone samples are dealt. Pure numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simshuffle.errors import refuse
from simshuffle.spec.arrays import Flags, Floats, Ints
from simshuffle.spec.rng import stream
from simshuffle.workload.exchange import (
    EpochContext,
    ExchangePlan,
    RankPlaces,
    Shards,
    ShardsContext,
    Strategy,
    empty_plan,
)
from simshuffle.workload.exchange.dealing import Dealt, dealt


@dataclass(frozen=True)
class EpochState:
    """Where a run is, before an epoch or in the middle of one. All else follows from the seed.

    A part of an epoch is what the same ranks do of it: the first one is dealt by the strategy, and
    each that follows by `Epochs.go_on`.
    """

    epochs_done: int
    world_size: int  # M
    batch_size: int  # b
    drop_last: bool
    steps: int  # iterations of the part that are done
    owner: Ints  # (N,) the rank that has each sample as the part begins
    left: Flags | None  # (N,) what is trained on in the part; None for a whole epoch
    held: Ints | None = None  # `Epochs.held` as the part begins
    importance: Floats | None = None  # (N,) of the epoch's plan, in the middle of an epoch
    ranks_per_host: int | None = None  # None where none is known


class Epochs:
    """Who has which sample, epoch after epoch.

    Args:
        strategy: which rank trains on what, and what is exchanged.
        num_samples: N.
        world_size: M.
        batch_size: b.
        drop_last: whether what fills no batch is left out.
        seed: of all that is drawn.
        places: where the ranks are, for strategies with partners of the same host, leaf switch or
            rack.

    Attributes:
        num_samples: N.
        batch_sizes: of the iterations of a whole epoch.
        owner: the rank of each sample as the next epoch, or part of one, begins, (N,); to be set
            before the first.
        held: epochs that each sample has been with it by then, (N,); None where nobody asks.
        epochs_done: epochs.
        left: what is trained on in the rest of the epoch, (N,); None for a whole one.
        steps_done: iterations of the epoch, or of its part, that were done before.

    Raises:
        InputError: as of `batch_sizes`.
    """

    owner: Ints

    def __init__(
        self,
        strategy: Strategy,
        num_samples: int,
        world_size: int,
        batch_size: int,
        seed: int,
        *,
        drop_last: bool = False,
        places: RankPlaces | None = None,
    ) -> None:
        self.strategy, self.num_samples, self.world_size = strategy, num_samples, world_size
        self.batch_size, self.drop_last, self.seed, self.places = (
            batch_size,
            drop_last,
            seed,
            places,
        )
        self.ranks_per_host = None if places is None else places.ranks_per_host
        self.batch_sizes = batch_sizes(num_samples, world_size, batch_size, drop_last=drop_last)
        self.held = strategy.first_held(num_samples)
        self.epochs_done, self.steps_done = 0, 0
        self.left: Flags | None = None

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """The random stream of that name, as `simshuffle.train.run.Run.rng`."""
        return stream(self.seed, name, *numbers)

    # ------------------------------------------------------------------------------------- an epoch

    def shards_context(self) -> ShardsContext:
        """What decides who trains on what in the coming epoch."""
        epoch = self.epochs_done + 1
        return ShardsContext(
            self.owner,
            self.world_size,
            epoch,
            self.rng("shuffle", epoch),
            self.seed,
            self.batch_size,
            ranks_per_host=self.ranks_per_host,
        )

    def next_shards(self) -> Shards:
        """Who trains on what in the coming epoch, or in what is left of it: each rank on what it
        has of that, or, where every epoch is drawn anew, on any of it; in a new order."""
        if self.left is None:
            return self.strategy.epoch_shards(self.shards_context())
        rest = np.flatnonzero(self.left)
        order = self.rng("rest", self.epochs_done + 1, len(rest)).permutation(rest)
        if self.strategy.redraws:
            return Shards(order, np.arange(self.world_size + 1) * len(rest) // self.world_size)
        sizes = np.bincount(self.owner[rest], minlength=self.world_size)
        by_rank = np.argsort(self.owner[order], kind="stable")
        return Shards(order[by_rank], np.concatenate([[0], np.cumsum(sizes)]))

    def next_plan(self, shards: Shards, importance: Floats | None) -> ExchangePlan:
        """What is exchanged after the coming epoch; after the rest of one that was dealt anew
        nothing is."""
        if self.left is not None:
            return empty_plan(self.world_size)
        epoch = self.epochs_done + 1
        return self.strategy.plan(
            EpochContext(
                shards,
                batch_size=self.batch_size,
                iterations=len(self.batch_sizes),
                epoch=epoch,
                rng=self.rng("exchange", epoch),
                importance=importance,
                places=self.places,
                held=self.held,
            )
        )

    def trained(self, shards: Shards) -> Ints:
        """What ranks train on in the epoch, or in the rest of it, in order: (n, M) sample numbers.
        Ranks with a sample less repeat their first one; those with none, one that they have. In the
        rest they do so only if they had a batch less otherwise, and else get -1 at the end."""
        rows = epoch_samples(shards, drop_last=self.drop_last)
        if self.drop_last:
            return rows[: len(rows) - len(rows) % self.batch_size]
        if self.left is not None and len(rows):
            less = shards.sizes < len(rows)
            if (len(rows) - 1) % self.batch_size:
                rows[-1, less] = -1
            elif len(rows) == 1 and not self.strategy.redraws:
                ranks, first = np.unique(self.owner, return_index=True)
                rows[0, ranks[less]] = first[less]
        return rows

    def exchanged(self, plan: ExchangePlan) -> None:
        """The epoch is done, and samples are where its ``plan`` says."""
        self.owner, self.held = plan.apply(self.owner), plan.held_after(self.held)
        self.epochs_done += 1
        self.left, self.steps_done = None, 0

    # ----------------------------------------------------------------------------------- its states

    def state(self, steps: int, importance: Floats | None = None) -> EpochState:
        """Where the run is after so many iterations of the epoch or its part, whose plan was made
        with this ``importance``."""
        return EpochState(
            self.epochs_done,
            self.world_size,
            self.batch_size,
            self.drop_last,
            steps,
            self.owner,
            self.left,
            self.held,
            importance,
            self.ranks_per_host,
        )

    def go_on(self, state: EpochState, came: Ints | None = None) -> Dealt:
        """Go on from a state of the same strategy, set and seed. By as many ranks, with batches of
        the same size, all is as it would have been. Else what is left of the epoch is dealt
        out (`dealt`), and nothing more is exchanged in it.

        What had been sent by then is with its receiver; what a rank had received that is gone is
        still with its sender, who removes it at the end of the epoch only.

        Args:
            state: of any number of ranks.
            came: (M,) which rank of the state each one was, -1 for a new one. By default rank 0
                was rank 0, and so on.

        Returns:
            Who had what, and who has it now; no samples where nobody owns any.
        """
        if came is None:
            came = np.arange(self.world_size)
            came[came >= state.world_size] = -1
        self._take(state)
        now = np.full(state.world_size, -1, np.int32)
        now[came[came >= 0]] = np.flatnonzero(came >= 0)
        cut = self.batch_size, self.drop_last, self.ranks_per_host
        cut_before = state.batch_size, state.drop_last, state.ranks_per_host
        alike = cut == cut_before or not state.steps
        holder = self.owner
        if state.world_size != self.world_size or not alike:
            holder = self._deal(state, now)
        if self.strategy.redraws:
            return Dealt(np.zeros(0, np.int32), np.zeros(0, np.int32))
        return Dealt(now[holder], self.owner)

    def _deal(self, state: EpochState, now: Ints) -> Ints:
        """Deal out what is left; (N,) which rank of the state had each sample. ``now`` is (M,) the
        number that each of them has now, -1 where it is gone."""
        holder, self.steps_done = self.owner, 0
        if state.steps:
            self.left, holder = _broken_off(self, state, now < 0)
        if self.strategy.redraws:
            return holder
        left = np.ones(len(holder), np.bool_) if self.left is None else self.left
        rng = self.rng("dealt", self.epochs_done + 1, int(left.sum()))
        self.owner = dealt(now[holder], left, self.world_size, rng)
        if self.held is not None:
            # an epoch that is under way is counted when it ends
            anew = self.owner != now[state.owner]
            self.held = np.where(anew, 0 if self.left is None else -1, self.held)
        return holder

    def _take(self, state: EpochState) -> None:
        self.owner, self.held, self.left = state.owner, state.held, state.left
        self.epochs_done, self.steps_done = state.epochs_done, state.steps


def _broken_off(of: Epochs, state: EpochState, gone: Flags) -> tuple[Flags, Ints]:
    """Of an epoch that was broken off, (N,) what is left to be trained on, and (N,) who has each
    sample, given which ranks are ``gone``, (M,)."""
    size = len(state.owner)
    old = Epochs(
        of.strategy, size, state.world_size, state.batch_size, of.seed, drop_last=state.drop_last
    )
    old._take(state)
    old.ranks_per_host = state.ranks_per_host
    shards = old.next_shards()
    left = np.zeros(size, np.bool_)
    left[shards.order] = True
    done = old.trained(shards)[: state.steps * state.batch_size]
    left[done[done >= 0]] = False
    holder = state.owner
    # where the places of the ranks decide, what was sent is counted as being with its sender still
    if not of.strategy.needs_places:
        plan = old.next_plan(shards, state.importance)
        sent = plan.moving & (plan.iteration < state.steps)[:, None]
        sent &= ~gone[plan.target] | gone
        holder = holder.copy()
        holder[plan.sample[sent]] = plan.target[sent]
    return left, holder


# ----------------------------------------------------------------------------- samples of an epoch


def samples_per_rank(num_samples: int, world_size: int, *, drop_last: bool) -> int:
    """n, the samples of a rank in an epoch: N/M, rounded down if ``drop_last``, else up."""
    return num_samples // world_size if drop_last else -(-num_samples // world_size)


def batch_sizes(num_samples: int, world_size: int, b: int, *, drop_last: bool) -> list[int]:
    """Local batch size of each of the I iterations of an epoch: b, but the last may be smaller
    (unless ``drop_last``). Raises InputError if a rank has no sample, or none fills a batch."""
    if not 1 <= world_size <= num_samples:
        rule = f"must not be more than the {num_samples} samples of the data set"
        if world_size < 1:
            rule = "must be at least 1"
        refuse("world_size", rule, str(world_size), "Use fewer ranks or more data.", "training")
    n = samples_per_rank(num_samples, world_size, drop_last=drop_last)
    whole, rest = divmod(n, b)
    sizes = [b] * whole + ([rest] if rest and not drop_last else [])
    if not sizes:
        rule = f"with drop_last, must not be more than the {n} samples that a rank has"
        remedy = "Use a smaller one, or drop_last: false."
        refuse("training.local_batch_size", rule, str(b), remedy, "training")
    return sizes


def epoch_samples(shards: Shards, *, drop_last: bool) -> Ints:
    """Who trains on what, in order: (n, M) sample numbers. Smaller shards repeat their first
    ones."""
    n = samples_per_rank(len(shards.order), len(shards.sizes), drop_last=drop_last)
    place = np.arange(n)[:, None] % np.maximum(shards.sizes, 1)[None, :]
    place = np.minimum(shards.start[:-1][None, :] + place, len(shards.order) - 1)
    return np.asarray(shards.order[place])
