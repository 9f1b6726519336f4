"""Decide which rank trains on which samples, epoch after epoch, and on the rest of a
broken epoch.

The rest of an epoch that broke off is trained on by the same ranks or by others.
Samples are dealt here alone. Pure numpy.
"""

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
from simshuffle.workload.exchange.dealing import Redistribution, deal_samples


@dataclass(frozen=True)
class EpochState:
    """The state of a run before an epoch or in the middle of one. All else follows from
    the seed.

    A part of an epoch is what the same ranks do of it. The strategy deals the first
    part, and `Epochs.resume` each part that follows.
    """

    epochs_done: int  # epochs that were finished
    world_size: int  # M
    batch_size: int  # b
    drop_last: bool  # whether samples that fill no batch are left out
    steps: int  # iterations of the part that are done
    owner: Ints  # (N,) the rank that has each sample as the part begins
    # (N,) samples that are trained on in the part; None for a whole epoch
    remaining: Flags | None
    epochs_held: Ints | None = None  # (N,) `Epochs.epochs_held` as the part begins
    importance: Floats | None = (
        None  # (N,) of the epoch's plan, in the middle of an epoch
    )
    ranks_per_host: int | None = None  # None where none is known


class Epochs:
    """The owner of every sample, epoch after epoch, and the samples that each rank
    trains on.

    Args:
        strategy: which rank trains on which samples, and which are exchanged.
        num_samples: N.
        world_size: M.
        batch_size: b.
        drop_last: whether samples that fill no batch are left out.
        seed: of all that is drawn.
        places: host, leaf switch and rack of the ranks, for strategies with partners of
            the same one; None will do for others.

    Attributes:
        num_samples: N.
        batch_sizes: of the iterations of a whole epoch.
        owner: the rank of each sample as the next epoch, or part of one, begins, (N,);
            to be set before the first.
        epochs_held: epochs that each sample has been with its rank by then, (N,); None
            if the strategy does not need them.
        epochs_done: epochs that were finished.
        remaining: samples that are trained on in the next part of an epoch that broke
            off, (N,) bool; None for a whole epoch.
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
        self.strategy = strategy
        self.num_samples = num_samples
        self.world_size = world_size
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.places = places
        self.ranks_per_host = None if places is None else places.ranks_per_host
        self.batch_sizes = batch_sizes(
            num_samples, world_size, batch_size, drop_last=drop_last
        )
        self.epochs_held = strategy.first_held(num_samples)
        self.epochs_done = 0
        self.steps_done = 0
        self.remaining: Flags | None = None

    def rng(self, name: str, *numbers: int) -> np.random.Generator:
        """Return a new generator at the start of the random stream of ``name`` and
        ``numbers``, as `simshuffle.train.run.Run.rng` does.
        """
        return stream(self.seed, name, *numbers)

    # ------------------------------------------------------------------------------------- an epoch

    def shards_context(self) -> ShardsContext:
        """Return the facts that decide which rank trains on which samples in the coming
        epoch; workers and bytes of a sample are not known here.
        """
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
        """Divide the samples of the coming epoch, or of its remaining part, among the
        ranks.

        In a remaining part each rank trains on the remaining samples that it has, in a
        new order; where every epoch is drawn anew, on any of them. Equal calls give
        equal shards.

        Raises:
            InputError: as of `Strategy.epoch_shards`.
        """
        if self.remaining is None:
            return self.strategy.epoch_shards(self.shards_context())
        samples = np.flatnonzero(self.remaining)
        order = self.rng("rest", self.epochs_done + 1, len(samples)).permutation(
            samples
        )
        if self.strategy.redraws:
            start = np.arange(self.world_size + 1) * len(samples) // self.world_size
            return Shards(order, start)
        # the drawn order, sorted by rank and otherwise kept
        sizes = np.bincount(self.owner[samples], minlength=self.world_size)
        by_rank = np.argsort(self.owner[order], kind="stable")
        return Shards(order[by_rank], np.concatenate([[0], np.cumsum(sizes)]))

    def next_plan(self, shards: Shards, importance: Floats | None) -> ExchangePlan:
        """Plan the exchange of the coming epoch; nothing moves after the remaining part
        of a broken one.

        Args:
            shards: of the epoch, from `next_shards`.
            importance: (N,) of the samples; None will do for strategies that need none.

        Raises:
            InputError: as of `Strategy.plan`.
        """
        if self.remaining is not None:
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
                held=self.epochs_held,
            )
        )

    def training_rows(self, shards: Shards) -> Ints:
        """Return the samples that the ranks train on in the epoch or its part: (n, M),
        in order.

        With ``drop_last``, rows that fill no batch are left out.

        Ranks with a sample less repeat their first one; those with none repeat one that
        they own, or, where nobody owns any, one of another rank. In a remaining part
        they do so only if they had a batch less otherwise; else they get -1 at the end.
        """
        # row k is the k-th sample of each rank, column r is rank r
        rows = epoch_samples(shards, drop_last=self.drop_last)
        if self.drop_last:
            return rows[: len(rows) - len(rows) % self.batch_size]
        if self.remaining is not None and len(rows):
            lacks_last = shards.sizes < len(rows)
            if (len(rows) - 1) % self.batch_size:
                rows[-1, lacks_last] = -1
            elif len(rows) == 1 and not self.strategy.redraws:
                # each rank without a remaining sample trains on the first one that it owns
                ranks, first_owned = np.unique(self.owner, return_index=True)
                rows[0, ranks[lacks_last]] = first_owned[lacks_last]
        return rows

    def finish_epoch(self, plan: ExchangePlan) -> None:
        """End the epoch: count it, and move the samples as its ``plan`` says.

        The next epoch is a whole one: ``remaining`` and ``steps_done`` are reset.
        """
        self.owner = plan.apply(self.owner)
        self.epochs_held = plan.held_after(self.epochs_held)
        self.epochs_done += 1
        self.remaining = None
        self.steps_done = 0

    # --------------------------------------------------------------------------------------- states

    def state(self, steps: int, importance: Floats | None = None) -> EpochState:
        """Return the state of the run after ``steps`` iterations of the epoch or its
        part; the state has the arrays of the run, not copies.

        Args:
            steps: iterations that are done.
            importance: (N,) from which the plan of the epoch was made; None if it
                needed none.
        """
        return EpochState(
            self.epochs_done,
            self.world_size,
            self.batch_size,
            self.drop_last,
            steps,
            self.owner,
            self.remaining,
            self.epochs_held,
            importance,
            self.ranks_per_host,
        )

    def resume(
        self, state: EpochState, state_rank: Ints | None = None
    ) -> Redistribution:
        """Go on from a state of an equal strategy, set and seed.

        With equal numbers of ranks and of ranks of a host, equal batches and an equal
        ``drop_last``, all is as it would have been. Else the remaining samples of the
        epoch are dealt anew (`deal_samples`), and nothing more is exchanged in it.
        Before the first iteration only the number of ranks counts.

        Samples that had been sent by then are where `ExchangePlan.owners_at` says.

        Args:
            state: of any number of ranks.
            state_rank: (M,) the rank of the state that each rank was, -1 for a new one.
                By default rank 0 was rank 0, and so on.

        Returns:
            The owner of each sample before and after, in today's ranks; no samples
            where nobody owns any (`Strategy.redraws`).
        """
        if state_rank is None:
            state_rank = np.arange(self.world_size)
            state_rank[state_rank >= state.world_size] = -1
        self._take_state(state)
        # (ranks of the state,) the rank that each of them is now, -1 where it is gone
        current_rank = np.full(state.world_size, -1, np.int32)
        current_rank[state_rank[state_rank >= 0]] = np.flatnonzero(state_rank >= 0)

        division = self.batch_size, self.drop_last, self.ranks_per_host
        state_division = state.batch_size, state.drop_last, state.ranks_per_host
        is_divided_alike = division == state_division or not state.steps
        holder = self.owner
        if state.world_size != self.world_size or not is_divided_alike:
            holder = self._deal_remaining_samples(state, current_rank)
        if self.strategy.redraws:
            return Redistribution(np.zeros(0, np.int32), np.zeros(0, np.int32))
        return Redistribution(current_rank[holder], self.owner)

    def _deal_remaining_samples(self, state: EpochState, current_rank: Ints) -> Ints:
        """Deal all samples to the ranks anew, and set ``owner`` and ``remaining``.

        ``steps_done`` is set to 0, and ``epochs_held`` to nothing for samples that
        change their rank. Where nobody owns samples, only ``remaining`` is set.

        Args:
            state: that the run goes on from.
            current_rank: (ranks of the state,) the rank that each of them is now, -1
                where it is gone.

        Returns:
            (N,) the rank of the state that had each sample.
        """
        holder = self.owner
        self.steps_done = 0
        if state.steps:
            self.remaining, holder = _replay_broken_epoch(self, state, current_rank < 0)
        if self.strategy.redraws:
            return holder
        remaining = self.remaining
        if remaining is None:
            remaining = np.ones(len(holder), np.bool_)
        rng = self.rng("dealt", self.epochs_done + 1, int(remaining.sum()))
        self.owner = deal_samples(current_rank[holder], remaining, self.world_size, rng)
        if self.epochs_held is not None:
            # an epoch that is under way is counted when it ends
            changes_rank = self.owner != current_rank[state.owner]
            newly_held = 0 if self.remaining is None else -1
            self.epochs_held = np.where(changes_rank, newly_held, self.epochs_held)
        return holder

    def _take_state(self, state: EpochState) -> None:
        """Set the attributes that change during a run to the values in ``state``."""
        self.owner = state.owner
        self.epochs_held = state.epochs_held
        self.remaining = state.remaining
        self.epochs_done = state.epochs_done
        self.steps_done = state.steps


def _replay_broken_epoch(
    epochs: Epochs, state: EpochState, is_gone: Flags
) -> tuple[Flags, Ints]:
    """Replay an epoch that broke off, up to where it did; ``epochs`` stays as it is.

    What was sent counts as being with its sender where the ranks' places decide who
    sends to whom.

    Args:
        epochs: of the run that goes on.
        state: in the middle of the epoch.
        is_gone: (ranks of the state,) True for ranks that do not go on.

    Returns:
        (N,) True for samples that remain to be trained on, and (N,) the rank of the
        state that has each sample.
    """
    num_samples = len(state.owner)
    broken = Epochs(
        epochs.strategy,
        num_samples,
        state.world_size,
        state.batch_size,
        epochs.seed,
        drop_last=state.drop_last,
    )
    broken._take_state(state)
    broken.ranks_per_host = state.ranks_per_host

    shards = broken.next_shards()
    remaining = np.zeros(num_samples, np.bool_)
    remaining[shards.order] = True
    trained_rows = broken.training_rows(shards)[: state.steps * state.batch_size]
    remaining[trained_rows[trained_rows >= 0]] = False

    holder = state.owner
    # where the places of the ranks decide, what was sent is counted as being with its sender still
    if not epochs.strategy.needs_places:
        plan = broken.next_plan(shards, state.importance)
        holder = plan.owners_at(holder, state.steps, is_gone)
    return remaining, holder


# ----------------------------------------------------------------------------- samples of an epoch


def samples_per_rank(num_samples: int, world_size: int, *, drop_last: bool) -> int:
    """Return n, the samples of a rank in an epoch: N/M, rounded down if ``drop_last``,
    else up.
    """
    return num_samples // world_size if drop_last else -(-num_samples // world_size)


def batch_sizes(
    num_samples: int, world_size: int, batch_size: int, *, drop_last: bool
) -> list[int]:
    """Return the local batch size of each of the I iterations of an epoch.

    It is b, but the last may be smaller, unless ``drop_last``.

    Args:
        num_samples: N.
        world_size: M.
        batch_size: b.
        drop_last: whether samples that fill no batch are left out.

    Raises:
        InputError: if there is no rank, or a rank has no sample, or with ``drop_last``
            too few to fill a batch.
    """
    if not 1 <= world_size <= num_samples:
        rule = f"must not be more than the {num_samples} samples of the data set"
        if world_size < 1:
            rule = "must be at least 1"
        refuse(
            "world_size",
            rule,
            str(world_size),
            "Use fewer ranks or more data.",
            "training",
        )
    shard_size = samples_per_rank(num_samples, world_size, drop_last=drop_last)
    full_batches, last_batch_size = divmod(shard_size, batch_size)
    sizes = [batch_size] * full_batches
    if last_batch_size and not drop_last:
        sizes.append(last_batch_size)
    if not sizes:
        rule = f"with drop_last, must not be more than the {shard_size} samples that a rank has"
        remedy = "Use a smaller one, or drop_last: false."
        refuse("training.local_batch_size", rule, str(batch_size), remedy, "training")
    return sizes


def epoch_samples(shards: Shards, *, drop_last: bool) -> Ints:
    """Return the samples that every rank trains on, in order: (n, M) sample indices.

    n is N/M, rounded down if ``drop_last``, else up, with N the length of
    ``shards.order``. Ranks with fewer samples repeat their first ones, and a rank
    without any repeats one of another rank. What a rank has beyond n is left out.
    """
    n = samples_per_rank(len(shards.order), len(shards.sizes), drop_last=drop_last)
    # (n, M) positions in ``shards.order``: row k is the k-th sample of each rank
    position = np.arange(n)[:, None] % np.maximum(shards.sizes, 1)[None, :]
    position = np.minimum(shards.start[:-1][None, :] + position, len(shards.order) - 1)
    return np.asarray(shards.order[position])
