"""The exchange of one epoch as it is carried out; and the check that all shards are the data
set."""

from __future__ import annotations

import numpy as np

from simshuffle.errors import SimshuffleError, refuse
from simshuffle.spec.arrays import Ints, Ints64
from simshuffle.train.distributed.dataset import Manifest, Payload, ShardDataset
from simshuffle.train.distributed.group import SHOWN, ExchangeError, collectively, named, reason_of
from simshuffle.train.distributed.transport import (
    Pair,
    Transfer,
    Transport,
    messages_of,
    split,
    wait,
)
from simshuffle.workload.exchange import ExchangePlan, MessageSchedule


class EpochExchange:
    """Carries a plan out, iteration by iteration from ``first`` on: ``begun`` of them so far. What
    was received before is read from the source again. Nothing is removed before all ranks have said
    that all has arrived. What goes wrong with this rank's own storage is noted and told at the end,
    so that no other rank waits for messages in vain."""

    def __init__(
        self,
        dataset: ShardDataset,
        manifest: Manifest,
        plan: ExchangePlan,
        schedule: MessageSchedule,
        transport: Transport,
        iterations: int,
        first: int = 0,
    ) -> None:
        self.dataset, self.manifest, self.plan = dataset, manifest, plan
        self.schedule, self.transport = schedule, transport
        self.ranks = dataset.ranks
        self.iterations, self.next, self.begun = iterations, first, 0
        self._under_way: list[Pair] = []
        self._received: list[int] = []
        self._problems: list[str] = []
        self._read_again(first)

    def begin(self) -> Pair:
        """Begin the messages of the next iteration; nothing if there is none."""
        self.begun += 1
        if self.next >= self.iterations:
            return [], []
        messages = messages_of(self.plan, self.next, self.ranks.rank)
        self.next += 1
        pair = self.transport.begin(messages, self._payload)
        if messages:
            self._under_way.append(pair)
        return pair

    def finish(self, out: list[Transfer], coming: list[Transfer]) -> None:
        """Wait for what `begin` returned, and store what was received.

        Raises:
            ExchangeError: a peer is gone.
            InputError: these are not requests of the epoch.
        """
        places = [
            place
            for place, (one, other) in enumerate(self._under_way)
            if one is out and other is coming
        ]
        if not places:
            if out or coming:
                remedy, count = "Pass what communicate() returned, once.", len(out) + len(coming)
                refuse("requests", "are not under way", f"{count} requests", remedy, "scheduler")
            return
        del self._under_way[places[0]]
        wait(coming, self.ranks)
        for request in coming:
            for sample, content in split(request, self.manifest.sizes):
                self._keep(sample, content)
        wait(out, self.ranks)
        if self.schedule.barriers != "none":
            self.ranks.barrier()

    def finish_under_way(self) -> None:
        """As `finish`, of all that was begun."""
        while self._under_way:
            self.finish(*self._under_way[0])

    def finish_all(self) -> None:
        """Carry out what is left of the plan, iteration by iteration, and wait for all of it."""
        self.finish_under_way()
        while self.next < self.iterations:
            self.begin()
            self.finish_under_way()

    def settle(self) -> None:
        """After `finish_all`: see that all has arrived everywhere; then remove what was sent.
        Otherwise remove what was received and raise ExchangeError on all ranks; the shards are
        those before the epoch. Where a peer is gone nothing is removed, as the others may have gone
        on."""
        more = len(self._problems) - 3
        text = "; ".join(self._problems[:3]) + (f" and {more} more" if more > 0 else "")
        problems = self.ranks.gather_texts(text)
        if any(problems):
            for sample in self._received:
                self.dataset.store.remove(sample)
            found = "\n".join(f"rank {rank}: {each}" for rank, each in enumerate(problems) if each)
            rest = (
                "Every rank has its shard as before the epoch; when the cause is removed, the epoch"
                " can be scheduled again."
            )
            raise ExchangeError(f"{found}\n{rest}")
        collectively(self.ranks, self._remove_sent)

    def _read_again(self, first: int) -> None:
        to_me = self.plan.moving & (self.plan.target == self.ranks.rank)
        for sample in self.plan.sample[to_me & (self.plan.iteration < first)[:, None]]:
            try:
                content = self.dataset.read(int(sample))
                content = self.dataset.to_payload(content, self.schedule.payload)
            except (OSError, SimshuffleError) as error:
                self._problems.append(f"sample {sample} could not be read: {reason_of(error)}")
            else:
                self._keep(int(sample), content)

    def _remove_sent(self) -> None:
        rank = self.ranks.rank
        for sample in self.plan.sample[self.plan.moving[:, rank], rank]:
            self.dataset.store.remove(int(sample))

    def _payload(self, sample: int) -> bytes:
        """What is sent of a sample; of one that cannot be read zeros, which the receiver
        refuses."""
        try:
            content = self.dataset.to_payload(self.dataset.store.get(sample), self.schedule.payload)
            if self.manifest.fits(sample, content):
                return content
            self._problems.append(f"sample {sample} is not what it was when it was staged")
        except (OSError, SimshuffleError) as error:
            self._problems.append(f"sample {sample} could not be read: {reason_of(error)}")
        return bytes(int(self.manifest.sizes[sample]))

    def _keep(self, sample: int, content: bytes) -> None:
        if not self.manifest.fits(sample, content):
            self._problems.append(f"sample {sample} arrived damaged")
            return
        try:
            stored = self.dataset.from_payload(content, self.schedule.payload)
            self.dataset.store.put(sample, stored)
            self._received.append(sample)
        except (OSError, SimshuffleError) as error:
            self._problems.append(f"sample {sample} could not be stored: {reason_of(error)}")


# ---------------------------------------------------------------------------------------- the check


def check_shards(dataset: ShardDataset, owner: Ints, manifest: Manifest, payload: Payload) -> None:
    """See that rank r holds the samples of ``owner`` (N,) r, these alone, with the content of
    ``manifest``, or raise ExchangeError on all ranks, naming samples and ranks. Collective."""
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
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ExchangeError(f"the shards are not the data set:\n{listed}")


def faults(on: list[Ints64], owner: Ints) -> list[str]:
    """What is wrong, by the samples ``on`` each rank and the ``owner`` (N,) that each should
    have."""
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
        texts = [f"should be on rank {owner[sample]}" for sample in missing[:SHOWN]]
        out.append("missing: " + named(missing, texts))
    if ranks_of:
        texts = [f"on ranks {', '.join(map(str, ranks))}" for ranks in ranks_of.values()]
        out.append("more than once: " + named(np.flatnonzero(copies > 1), texts))
    if len(misplaced):
        texts = [
            f"on rank {where[sample]} instead of {owner[sample]}" for sample in misplaced[:SHOWN]
        ]
        out.append("misplaced: " + named(misplaced, texts))
    return out


def _intact(dataset: ShardDataset, sample: int, manifest: Manifest, payload: Payload) -> bool:
    if sample >= len(manifest.sizes):
        return True
    try:
        return manifest.fits(sample, dataset.to_payload(dataset.store.get(sample), payload))
    except (OSError, SimshuffleError):
        return False
