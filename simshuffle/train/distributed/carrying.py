"""Carrying out the exchange of one epoch; checking that all shards together are the
data set.
"""

from __future__ import annotations

import numpy as np

from simshuffle.errors import SimshuffleError, refuse
from simshuffle.spec.arrays import Ints, Ints64
from simshuffle.train.distributed.dataset import Manifest, Payload, ShardDataset
from simshuffle.train.distributed.group import (
    SHOWN,
    ExchangeError,
    list_samples,
    reason_of,
    run_collectively,
)
from simshuffle.train.distributed.transport import (
    Pair,
    Transfer,
    Transport,
    messages_of,
    split,
    wait,
)
from simshuffle.workload.exchange import ExchangePlan, MessageSchedule, Strategy


class EpochExchange:
    """Carries out a plan, iteration by iteration.

    Nothing is removed before all ranks have said that everything has arrived. Problems
    of this rank's own storage are noted and raised at the end, so that no other rank
    waits for messages in vain.

    Args:
        dataset: whose local storage samples are sent from and stored in.
        manifest: sizes and checksums of all samples.
        plan: of the epoch.
        schedule: of the messages: payload and barriers.
        transport: carries the messages.
        iterations: of the epoch.
        first: the first iteration to carry out; samples that were received before it
            are read from the source again, at once.

    Attributes:
        next: the iteration whose messages are begun next.
        num_begun: calls of `begin` so far.
    """

    def __init__(
        self,
        dataset: ShardDataset,
        manifest: Manifest,
        plan: ExchangePlan,
        *,
        schedule: MessageSchedule,
        transport: Transport,
        iterations: int,
        first: int = 0,
    ) -> None:
        self.dataset = dataset
        self.manifest = manifest
        self.plan = plan
        self.schedule = schedule
        self.transport = transport
        self.ranks = dataset.ranks
        self.iterations = iterations
        self.next = first
        self.num_begun = 0
        self._under_way: list[Pair] = []
        self._received: list[int] = []
        self._problems: list[str] = []
        self._read_from_source(first)

    def begin(self) -> Pair:
        """Begin the messages of the next iteration, without waiting; return their
        requests, none after the last iteration.

        With barriers, all ranks wait for each other here.

        Raises:
            ExchangeError: the backend failed, as where a peer is gone.
        """
        self.num_begun += 1
        if self.next >= self.iterations:
            return [], []
        messages = messages_of(self.plan, self.next, self.ranks.rank)
        self.next += 1
        pair = self.transport.begin(messages, self._payload)
        if messages:
            self._under_way.append(pair)
        return pair

    def finish(self, sends: list[Transfer], receives: list[Transfer]) -> None:
        """Wait for the requests that `begin` returned, and store the received samples.

        With barriers, all ranks wait for each other at the end. Empty lists are nothing
        to wait for. A sample that is damaged or cannot be stored is noted only.

        Raises:
            ExchangeError: a peer is gone.
            InputError: these are not requests of the epoch.
        """
        matches = [
            index
            for index, pair in enumerate(self._under_way)
            if pair[0] is sends and pair[1] is receives
        ]
        if not matches:
            if sends or receives:
                remedy = "Pass the requests that communicate() returned, only once."
                value = f"{len(sends) + len(receives)} requests"
                refuse("requests", "are not under way", value, remedy, "scheduler")
            return
        del self._under_way[matches[0]]
        wait(receives, self.ranks)
        for request in receives:
            for sample, content in split(request, self.manifest.sizes):
                self._store(sample, content)
        wait(sends, self.ranks)
        if self.schedule.barriers != "none":
            self.ranks.barrier()

    def finish_under_way(self) -> None:
        """Finish all messages that were begun; errors as of `finish`."""
        while self._under_way:
            self.finish(*self._under_way[0])

    def finish_all(self) -> None:
        """Carry out the remaining iterations of the plan, and wait for all messages.

        Each is counted in ``num_begun``. Errors as of `begin` and `finish`.
        """
        self.finish_under_way()
        while self.next < self.iterations:
            self.begin()
            self.finish_under_way()

    def settle(self) -> None:
        """After `finish_all`: remove the sent samples if everything has arrived on all
        ranks.

        Otherwise remove the received samples; the shards are then those before the
        epoch. Where a peer is gone nothing is removed, as the others may have gone on.

        Raises:
            ExchangeError: on all ranks, if something has not arrived on one, with the
                first three problems of each; or if a sent sample cannot be removed.
        """
        text = "; ".join(self._problems[:3])
        unnamed = len(self._problems) - 3
        if unnamed > 0:
            text += f" and {unnamed} more"
        problems = self.ranks.gather_texts(text)
        if any(problems):
            for sample in self._received:
                self.dataset.store.remove(sample)
            listed = "\n".join(
                f"rank {rank}: {problem}"
                for rank, problem in enumerate(problems)
                if problem
            )
            remedy = (
                "Every rank still has its shard from before the epoch. Remove the cause, and"
                " schedule"
                " the epoch again."
            )
            raise ExchangeError(f"{listed}\n{remedy}")
        run_collectively(self.ranks, self._remove_sent)

    def _read_from_source(self, first: int) -> None:
        """Read from the source and store the samples that this rank received in
        iterations before ``first``; note a problem of each that fails.
        """
        to_this_rank = self.plan.moving & (self.plan.target == self.ranks.rank)
        is_earlier = (self.plan.iteration < first)[:, None]
        for sample in self.plan.sample[to_this_rank & is_earlier]:
            try:
                content = self.dataset.read(int(sample))
                content = self.dataset.to_payload(content, self.schedule.payload)
            except (OSError, SimshuffleError) as error:
                self._problems.append(
                    f"sample {sample} could not be read: {reason_of(error)}"
                )
            else:
                self._store(int(sample), content)

    def _remove_sent(self) -> None:
        """Remove the samples that this rank has sent in the epoch."""
        rank = self.ranks.rank
        for sample in self.plan.sample[self.plan.moving[:, rank], rank]:
            self.dataset.store.remove(int(sample))

    def _payload(self, sample: int) -> bytes:
        """Return the bytes to send of a sample; if it cannot be read or has changed,
        note a problem, and return as many zeros, which the receiver refuses.
        """
        try:
            content = self.dataset.to_payload(
                self.dataset.store.get(sample), self.schedule.payload
            )
            if self.manifest.fits(sample, content):
                return content
            self._problems.append(f"sample {sample} has changed since it was staged")
        except (OSError, SimshuffleError) as error:
            self._problems.append(
                f"sample {sample} could not be read: {reason_of(error)}"
            )
        return bytes(int(self.manifest.sizes[sample]))

    def _store(self, sample: int, content: bytes) -> None:
        """Store a received sample; note a problem if it is damaged or cannot be stored."""
        if not self.manifest.fits(sample, content):
            self._problems.append(f"sample {sample} arrived damaged")
            return
        try:
            stored = self.dataset.from_payload(content, self.schedule.payload)
            self.dataset.store.write(sample, stored)
            self._received.append(sample)
        except (OSError, SimshuffleError) as error:
            self._problems.append(
                f"sample {sample} could not be stored: {reason_of(error)}"
            )


# -------------------------------------------------------------------------- staging, and the check


def stage_shard(
    dataset: ShardDataset, strategy: Strategy, owner: Ints, payload: Payload
) -> Manifest | None:
    """Copy to local storage the samples that a ``strategy`` keeps there. Collective.

    Nothing is copied for a strategy that keeps none on an SSD.

    Args:
        dataset: of this rank.
        strategy: keeps on an SSD its rank's samples, all samples, or none.
        owner: (N,) the rank of each sample.
        payload: form in which samples are sent.

    Returns:
        Sizes and checksums of all samples; None unless every rank keeps its own.

    Raises:
        InputError: the samples do not fit.
        ExchangeError: a rank could not read or store a sample.
    """
    if strategy.tier != "ssd":
        return None
    if strategy.fraction is None:  # all on every rank
        dataset.stage(np.arange(len(dataset)))
        return None
    rank_samples = np.flatnonzero(owner == dataset.ranks.rank)
    dataset.stage(rank_samples, reserve=strategy.fraction)
    return Manifest(dataset, owner, payload)


def check_shards(
    dataset: ShardDataset, owner: Ints, manifest: Manifest, payload: Payload
) -> None:
    """Check that every rank holds its samples, these alone, with their content.
    Collective.

    Args:
        dataset: of this rank.
        owner: (N,) the rank that should hold each sample.
        manifest: sizes and checksums of all samples.
        payload: form of which the manifest has checksums.

    Raises:
        ExchangeError: on all ranks, naming samples and ranks.
    """
    stored = dataset.store.samples()
    damaged = np.array(
        [
            sample
            for sample in stored
            if not _intact(dataset, int(sample), manifest, payload)
        ],
        np.int64,
    )
    samples_on = [np.asarray(part, np.int64) for part in dataset.ranks.gather(stored)]
    damaged_on = dataset.ranks.gather(damaged)
    problems = faults(samples_on, owner)
    problems += [
        f"damaged on rank {rank}: {list_samples(np.asarray(part, np.int64))}"
        for rank, part in enumerate(damaged_on)
        if len(part)
    ]
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ExchangeError(f"the shards together are not the data set:\n{listed}")


def faults(samples_on: list[Ints64], owner: Ints) -> list[str]:
    """Return what is wrong with the shards, as texts: foreign, missing, repeated and
    misplaced samples; an empty list if nothing is.

    Args:
        samples_on: samples that each rank holds.
        owner: (N,) the rank that should hold each sample.
    """
    count = len(owner)
    foreign = [part[part >= count] for part in samples_on]
    valid = [part[part < count] for part in samples_on]
    # (N,) ranks that hold each sample, and the last of them
    copies = np.bincount(np.concatenate(valid), minlength=count)
    repeated = np.flatnonzero(copies > 1)
    holder = np.full(count, -1)
    for rank, part in enumerate(valid):
        holder[part] = rank
    misplaced = np.flatnonzero((copies == 1) & (holder != owner))
    missing = np.flatnonzero(copies == 0)
    problems = [
        f"not in the data set, but on rank {rank}: {list_samples(part)}"
        for rank, part in enumerate(foreign)
        if len(part)
    ]
    if len(missing):
        texts = [f"should be on rank {owner[sample]}" for sample in missing[:SHOWN]]
        problems.append("missing: " + list_samples(missing, texts))
    if len(repeated):
        texts = []
        for sample in repeated[:SHOWN]:
            holders = [str(rank) for rank, part in enumerate(valid) if sample in part]
            texts.append(f"on ranks {', '.join(holders)}")
        problems.append("more than once: " + list_samples(repeated, texts))
    if len(misplaced):
        texts = [
            f"on rank {holder[sample]} instead of {owner[sample]}"
            for sample in misplaced[:SHOWN]
        ]
        problems.append("misplaced: " + list_samples(misplaced, texts))
    return problems


def _intact(
    dataset: ShardDataset, sample: int, manifest: Manifest, payload: Payload
) -> bool:
    """Return whether a stored sample can be read and is as it was when it was staged;
    true of a number that is not of the set.
    """
    if sample >= len(manifest.sizes):
        return True
    try:
        return manifest.fits(
            sample, dataset.to_payload(dataset.store.get(sample), payload)
        )
    except (OSError, SimshuffleError):
        return False
