"""ShardDataset: a map-style dataset of which this rank holds a shard in local storage;
and ShardSampler, which yields the samples that the rank trains on.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset, Sampler

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.spec.arrays import Floats, Ints, Ints64
from simshuffle.spec.record import Spec
from simshuffle.spec.rng import stream
from simshuffle.train.distributed.group import RankGroup, run_collectively
from simshuffle.train.distributed.storage import (
    FolderStore,
    MemoryStore,
    Store,
    decode,
    encode,
)
from simshuffle.train.emulate import read_records
from simshuffle.train.partition import Partition
from simshuffle.train.sources import dataset_length
from simshuffle.workload.exchange import Shards
from simshuffle.workload.exchange.states import VERSION

Payload = Literal["decoded", "encoded"]


class ShardDataset(Dataset[Any]):
    """A map-style dataset, of which every rank copies its own samples to local storage.
    Samples keep their numbers in the whole set.

    The process group must be there. A `Scheduler` stages the samples, exchanges them,
    and says by its sampler which ones this rank trains on; ``dataset[sample]`` gives
    the item, from local storage if it was staged, else from ``source``.

    Args:
        source: the whole dataset, the same on every rank. Its items are bytes, or
            tuples of tensors, arrays and numbers, such as (input, target). They are
            read once, when they are staged, so random transforms belong into
            ``transform``.
        storage: folder on the node's local storage; every rank makes a folder of its
            own in it. None keeps the samples in memory.
        partition: who holds which sample before the first epoch; a record or text, such
            as ``"dirichlet:alpha=0.3"``.
        seed: of all that is drawn: partition, shuffling, exchange.
        targets: (N,) labels, which all partitions but the random one need. By default
            ``source.targets``.
        transform: makes of a stored item what training gets; applied at every access.
        encode, decode: an item to bytes and back, where it is made of something else.

    Attributes:
        staged: whether items come from local storage.

    Raises:
        InputError: no process group, or an argument is not valid.
    """

    def __init__(
        self,
        source: Dataset[Any],
        storage: str | Path | None = None,
        *,
        partition: str | Partition = "random",
        seed: int = 0,
        targets: Ints | None = None,
        transform: Callable[[Any], Any] | None = None,
        encode: Callable[[Any], bytes] = encode,
        decode: Callable[[bytes], Any] = decode,
    ) -> None:
        self.ranks = RankGroup.current()
        self._count = dataset_length(source, "source", "dataset")
        self.source = source
        self.seed = seed
        self.transform = transform
        self.partition = read_records(
            _Arguments, "dataset", partition=partition
        ).partition
        self._encode = encode
        self._decode = decode
        self._targets = targets
        self._folder = (
            None if storage is None else Path(storage) / f"rank-{self.ranks.rank:05d}"
        )
        self.staged = False
        self._store: Store | None = None

    def __len__(self) -> int:
        """Return N, the samples of the whole set."""
        return self._count

    def __getitem__(self, sample: int) -> Any:
        """Return the item with the number ``sample``, transformed.

        It comes from ``source`` as long as nothing is staged.

        Raises:
            InputError: others are staged on this rank, and not this one.
        """
        item = (
            self.item(self.store.get(int(sample)))
            if self.staged
            else self.source[int(sample)]
        )
        return item if self.transform is None else self.transform(item)

    @property
    def store(self) -> Store:
        """The local storage of this rank, made, with its folder, at the first use.

        Raises:
            InputError: the folder holds something else, or cannot be made.
        """
        if self._store is None:
            self._store = (
                MemoryStore() if self._folder is None else FolderStore(self._folder)
            )
        return self._store

    def owner(self) -> Ints:
        """Return (N,) int32, the rank of each sample before the first epoch; equal on
        all ranks.

        Raises:
            InputError: the partition needs labels, and there are none; or the samples
                cannot be divided so.
        """
        random = self.partition.kind == "random"
        targets = np.zeros(len(self), np.int64) if random else self.targets()
        return self.partition.owner(
            targets, self.ranks.world_size, stream(self.seed, "partition")
        )

    def targets(self) -> Ints64:
        """Return the label of every sample, (N,), or raise InputError if there are
        none.
        """
        labels = (
            getattr(self.source, "targets", None)
            if self._targets is None
            else self._targets
        )
        if labels is None or np.shape(labels) != (len(self),):
            value = "none" if labels is None else f"shape {np.shape(labels)}"
            remedy = "Pass targets=, or use the random partition."
            kind = self.partition.kind
            rule = f"must be the labels of all {len(self)} samples for the partition '{kind}'"
            refuse("targets", rule, value, remedy, "dataset")
        return np.asarray(labels, np.int64)

    def stage(self, samples: Ints, *, reserve: float = 0.0) -> None:
        """Empty local storage, and read ``samples`` anew from ``source`` into it.
        Collective.

        Args:
            samples: of this rank.
            reserve: space to leave free, as a fraction of the samples' bytes: Q for an
                exchange.

        Raises:
            InputError: they do not fit; the storage is then empty.
            ExchangeError: a rank could not make its storage, or read or write a sample.
        """

        def clear() -> None:
            self.store.clear()  # which is made here, so that all ranks hear where it cannot be

        def copy() -> None:
            for sample in samples:
                self.store.write(int(sample), self.read(int(sample)))

        run_collectively(self.ranks, clear)
        self._check_space(samples, reserve)
        run_collectively(self.ranks, copy)
        self.staged = True

    def _check_space(self, samples: Ints, reserve: float) -> None:
        """Raise InputError if the shards of all ranks that share a device do not fit on
        it. Collective.

        Sizes are those of `nbytes`, an estimate; ``reserve`` is a fraction of them.
        Ranks that store in memory are not checked.
        """
        space = self.store.free_space()
        # all ranks gather, also those that store in memory
        device, free_nbytes = space or ("", 0)
        nbytes = int(sum(self.nbytes(samples)) * (1.0 + reserve)) if space else 0
        devices = self.ranks.gather_texts(device)
        parts = self.ranks.gather(np.array([nbytes, free_nbytes], np.int64))
        problems = []
        for device in sorted(set(devices) - {""}):
            sharing = [
                part
                for part, name in zip(parts, devices, strict=True)
                if name == device
            ]
            total = sum(int(part[0]) for part in sharing)
            # asked at different moments: the smallest answer counts
            free_nbytes = min(int(part[1]) for part in sharing)
            if total > free_nbytes:
                rule = (
                    f"the shards of {len(sharing)} ranks must fit on {device}: {total / 1e9:.4g} GB"
                    " with the samples that arrive"
                )
                remedy = "Use more hosts, a larger disk, or a smaller fraction."
                value = f"{free_nbytes / 1e9:.4g} GB free"
                problems.append(Problem("storage", rule, value, remedy))
        if problems:
            raise InputError(problems, "dataset")

    def unstage(self) -> None:
        """Remove this rank's samples, and its folder, from local storage; items come
        from ``source`` again. Not collective.
        """
        if self._store is not None:
            self._store.close()
        self._store = None
        self.staged = False

    # ----------------------------------------------------- what other kinds of samples do otherwise

    def read(self, sample: int) -> bytes:
        """Read a sample from ``source``, and return it as it is stored."""
        return self._encode(self.source[sample])

    def item(self, content: bytes) -> Any:
        """Return the item of a stored sample."""
        return self._decode(content)

    def nbytes(self, samples: Ints) -> list[int]:
        """Return the bytes that each of ``samples`` will take in local storage.

        Here all are taken to be as large as the first one, which is read.
        """
        return [len(self.read(int(samples[0])))] * len(samples) if len(samples) else []

    def to_payload(self, content: bytes, payload: Payload) -> bytes:
        """Return the bytes to send of a stored sample: here its stored bytes, for both
        payloads.
        """
        return content

    def from_payload(self, received: bytes, payload: Payload) -> bytes:
        """Return the bytes to store of a received sample: here as they came."""
        return received


class ShardSampler(Sampler[int]):
    """Yields the samples that this rank trains on, in the order that the scheduler sets
    for every epoch.

    Its length is the same on all ranks: N/M, rounded up, or down with ``drop_last``; a
    smaller shard repeats its first samples, as torch's DistributedSampler does. Where
    the rest of an epoch was dealt anew, lengths differ by one at most, and the numbers
    of batches not at all.

    It has a state of its own, as torchdata's ``StatefulDataLoader`` asks: its position
    in the order. Under a loader that reads ahead, that is beyond the samples that were
    trained on.

    Attributes:
        order: (n,) sample numbers of the epoch, or of its rest when it was dealt.
        begin: position in the order where this run of the sampler began.
        place: position in the order of the next sample.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._next = 0
        self._has_order = False
        self.begin = 0
        self.place = 0
        self.order: Ints = np.zeros(0, np.int64)

    def start(self, order: Ints, begin: int) -> None:
        """Set the ``order`` of an epoch, to be yielded from position ``begin`` on."""
        self.order = order
        self._has_order = True
        self._next = self.begin = self.place = begin

    def __len__(self) -> int:
        """Return how many samples of the epoch, or of its rest, the next iterator
        yields; before the first epoch, how many samples a whole epoch has.
        """
        return len(self.order) - self._next if self._has_order else self._length

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over sample numbers, or raise InputError if no epoch is
        scheduled.

        A second iterator of the epoch begins where the first one began.
        """
        order = self._current_order()
        self.begin = self.place = self._next

        def count_samples() -> Iterator[int]:
            """Yield samples; `place` is then behind each."""
            for sample in order[self.begin :].tolist():
                self.place += 1
                yield sample

        return count_samples()

    def state_dict(self) -> dict[str, Any]:
        """Return 'version', 'order' as a checksum, and 'place', the position; raise
        InputError if no epoch was scheduled.
        """
        return {
            "version": VERSION,
            "order": checksum(self._current_order()),
            "place": self.place,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position in an epoch that is scheduled again, for as many
        ranks.

        Raises:
            InputError: the state is of another version or order, or no epoch was
                scheduled.
        """
        expected = {"version": VERSION, "order": checksum(self._current_order())}
        for name, value in expected.items():
            if state.get(name) != value:
                rule = f"must be {value}, that of this rank's current epoch"
                remedy = (
                    "Load the state of the scheduler instead, and make a new loader."
                )
                refuse(f"state.{name}", rule, str(state.get(name)), remedy, "sampler")
        self._next = int(state["place"])
        self.begin = self.place = self._next

    def _current_order(self) -> Ints:
        """Return the order, or raise InputError if no epoch was scheduled."""
        if not self._has_order:
            remedy = "Call scheduler.scheduling(epoch) first."
            refuse("sampler", "has no order yet", "", remedy, "scheduler")
        return self.order


def checksum(*arrays: Ints) -> str:
    """Return the CRC-32 of all ``arrays``, as int64, together: 8 hexadecimal digits."""
    crc = 0
    for array in arrays:
        crc = zlib.crc32(np.ascontiguousarray(array, np.int64).tobytes(), crc)
    return f"{crc:08x}"


def draw_by_weight(
    shards: Shards, count: int, weights: Floats, rng: np.random.Generator
) -> Ints:
    """Draw ``count`` samples of each rank's shard, with replacement, in proportion to
    ``weights``.

    A sample of weight w comes count w / W times in an epoch on average, where W is the
    weight of its shard.

    Args:
        shards: samples of each rank.
        count: samples that a rank trains on.
        weights: (N,), of each sample.
        rng: draws.

    Returns:
        (count, M) sample numbers, a column for each rank.

    Raises:
        InputError: a shard has no weight.
    """
    columns = []
    for rank, start in enumerate(shards.start[:-1]):
        shard = shards.order[start : shards.start[rank + 1]]
        if not (total := weights[shard].sum()) > 0:
            rule = f"rank {rank} has no sample with a weight above 0"
            remedy = "Use the random partition, or weights above 0 for each class."
            refuse("weights", rule, f"{len(shard)} samples", remedy, "scheduler")
        columns.append(rng.choice(shard, count, p=weights[shard] / total))
    return np.stack(columns, axis=1)


class Manifest:
    """Sizes and checksums of all samples that were staged, in the form in which samples
    are sent; equal on every rank.

    Making one is collective. It reads all samples of this rank from local storage, and
    raises ExchangeError on all ranks if one cannot.

    Attributes:
        sizes: (N,) int64, bytes.
        checksums: (N,) uint32, CRC-32.
    """

    def __init__(self, dataset: ShardDataset, owner: Ints, payload: Payload) -> None:
        self.sizes = np.zeros(len(owner), np.int64)
        self.checksums = np.zeros(len(owner), np.uint32)
        samples = np.flatnonzero(owner == dataset.ranks.rank)
        entries: list[tuple[int, int]] = []  # size and checksum of this rank's samples

        def add_entries() -> None:
            for sample in samples:
                content = dataset.to_payload(dataset.store.get(int(sample)), payload)
                entries.append((len(content), zlib.crc32(content)))

        run_collectively(dataset.ranks, add_entries)
        # (n, 2) size and checksum; flat on the network
        table = np.array(entries, np.int64).reshape(len(samples), 2)
        for rank, part in enumerate(dataset.ranks.gather(table.ravel())):
            is_owned = owner == rank
            self.sizes[is_owned], self.checksums[is_owned] = part.reshape(-1, 2).T

    def fits(self, sample: int, content: bytes) -> bool:
        """Return whether ``content`` is that of the sample, by size and checksum."""
        entry = int(self.sizes[sample]), int(self.checksums[sample])
        return (len(content), zlib.crc32(content)) == entry


class _Arguments(Spec):
    """Arguments of `ShardDataset` that are records."""

    partition: Partition


def require_shard_dataset(dataset: object) -> None:
    """Raise InputError unless ``dataset`` is one whose shards can be stored and
    exchanged.
    """
    if not isinstance(dataset, ShardDataset):
        remedy = "Wrap the dataset: ShardDataset(dataset, storage)."
        value = type(dataset).__name__
        refuse("dataset", "must be a ShardDataset", value, remedy, "scheduler")


def default_device(module: torch.nn.Module) -> torch.device:
    """Return the device of the first weight of ``module``; the CPU if it has none."""
    weight = next(module.parameters(), None)
    return torch.device("cpu") if weight is None else weight.device
