"""ShardDataset: a map-style dataset of which this rank holds a shard in local storage; and the
sampler that says what of it the rank trains on."""

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
from simshuffle.train.distributed.group import RankGroup, collectively
from simshuffle.train.distributed.storage import FolderStore, MemoryStore, Store, decode, encode
from simshuffle.train.emulate import records_of
from simshuffle.train.partition import Partition
from simshuffle.train.samples import length_of
from simshuffle.workload.exchange import Shards
from simshuffle.workload.exchange.states import VERSION

Payload = Literal["decoded", "encoded"]


class ShardDataset(Dataset[Any]):
    """A map-style dataset, of which every rank copies its own samples to local storage. Samples
    keep their numbers in the whole set.

    The process group must be there. A `Scheduler` stages the samples, exchanges them, and says by
    its sampler which ones this rank trains on; ``dataset[sample]`` gives the item, from local
    storage if it was staged, else from ``source``.

    Args:
        source: the whole dataset, the same on every rank. Its items are bytes, or tuples of
            tensors, arrays and numbers, such as (input, target). They are read once, when they are
            staged, so random transforms belong into ``transform``.
        storage: folder on the node's local storage; every rank makes a folder of its own in it.
            None keeps the samples in memory.
        partition: who holds which sample before the first epoch; a record or text, such as
            ``"dirichlet:alpha=0.3"``.
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
        self._count = length_of(source, "source", "dataset")
        self.source, self.seed, self.transform = source, seed, transform
        self.partition = records_of(_Chosen, "dataset", partition=partition).partition
        self._encode, self._decode, self._targets = encode, decode, targets
        self._place = None if storage is None else Path(storage) / f"rank-{self.ranks.rank:05d}"
        self.staged = False
        self._store: Store | None = None

    def __len__(self) -> int:
        """N, of the whole set."""
        return self._count

    def __getitem__(self, sample: int) -> Any:
        """The item of that number, or raise InputError if it was not staged on this rank."""
        item = self.item(self.store.get(int(sample))) if self.staged else self.source[int(sample)]
        return item if self.transform is None else self.transform(item)

    @property
    def store(self) -> Store:
        """The local storage of this rank."""
        if self._store is None:
            self._store = MemoryStore() if self._place is None else FolderStore(self._place)
        return self._store

    def owner(self) -> Ints:
        """The rank of each sample before the first epoch: (N,) int32, the same on all ranks."""
        random = self.partition.kind == "random"
        targets = np.zeros(len(self), np.int64) if random else self.targets()
        return self.partition.owner(targets, self.ranks.world_size, stream(self.seed, "partition"))

    def targets(self) -> Ints64:
        """The label of every sample, (N,), or raise InputError."""
        known = getattr(self.source, "targets", None) if self._targets is None else self._targets
        if known is None or np.shape(known) != (len(self),):
            shown = "none" if known is None else f"shape {np.shape(known)}"
            remedy, kind = "Pass targets=, or use the random partition.", self.partition.kind
            rule = f"must be the labels of all {len(self)} samples for the partition '{kind}'"
            refuse("targets", rule, shown, remedy, "dataset")
        return np.asarray(known, np.int64)

    def stage(self, samples: Ints, *, reserve: float = 0.0) -> None:
        """Copy ``samples`` to local storage, and remove all others from there; ``reserve`` is kept
        free beside them, as a part of them: Q for an exchange. Collective. Raises InputError,
        before anything is written, if they do not fit; ExchangeError if a rank could not read or
        write one."""

        def clear() -> None:
            self.store.clear()  # which is made here, so that all ranks hear where it cannot be

        def copy() -> None:
            for sample in samples:
                self.store.put(int(sample), self.read(int(sample)))

        collectively(self.ranks, clear)
        self._check_room(samples, reserve)
        collectively(self.ranks, copy)
        self.staged = True

    def _check_room(self, samples: Ints, reserve: float) -> None:
        """See that what all ranks of a host want to store fits there, by the sizes of `nbytes`."""
        room = self.store.room()
        device, free = room or ("", 0)
        wanted = int(sum(self.nbytes(samples)) * (1.0 + reserve)) if room else 0
        devices = self.ranks.gather_texts(device)
        needs = self.ranks.gather(np.array([wanted, free], np.int64))
        problems = []
        for device in sorted(set(devices) - {""}):
            here = [need for need, name in zip(needs, devices, strict=True) if name == device]
            total, free = sum(int(need[0]) for need in here), min(int(need[1]) for need in here)
            if total > free:
                rule = (
                    f"the shards of {len(here)} ranks must fit on {device}: {total / 1e9:.4g} GB"
                    " with what is exchanged"
                )
                remedy = "Use more hosts, a larger disk, or a smaller fraction."
                problems.append(Problem("storage", rule, f"{free / 1e9:.4g} GB free", remedy))
        if problems:
            raise InputError(problems, "dataset")

    def unstage(self) -> None:
        """Remove this rank's samples from local storage; items come from ``source`` again."""
        if self._store is not None:
            self._store.close()
        self._store, self.staged = None, False

    # ----------------------------------------------------- what other kinds of samples do otherwise

    def read(self, sample: int) -> bytes:
        """A sample as it is stored, read from ``source``."""
        return self._encode(self.source[sample])

    def item(self, content: bytes) -> Any:
        """The item of a stored sample."""
        return self._decode(content)

    def nbytes(self, samples: Ints) -> list[int]:
        """Bytes that each of ``samples`` will take; here as many as the first, which is read for
        it."""
        return [len(self.read(int(samples[0])))] * len(samples) if len(samples) else []

    def to_payload(self, content: bytes, payload: Payload) -> bytes:
        """What is sent of a stored sample: for tensors and arrays the same, 'decoded' or
        'encoded'."""
        return content

    def from_payload(self, received: bytes, payload: Payload) -> bytes:
        """What is stored of a received sample."""
        return received


class ShardSampler(Sampler[int]):
    """Sample numbers, in the ``order`` (n,) in which this rank trains on them, which the scheduler
    sets for every epoch. Its length is the same on all ranks: N/M, rounded up, or down with
    ``drop_last``; a smaller shard repeats its first samples, as torch's DistributedSampler does.
    Where the rest of an epoch was dealt anew it differs by one at most, and batches are as many.

    It has a state of its own, as torchdata's ``StatefulDataLoader`` asks: how far it is in the
    order. Of a loader that reads ahead that is more than what was trained on.

    Attributes:
        order: (n,) of the epoch, or of what was left of it when it was dealt.
        begin: the place in it where this run of the sampler began.
        place: the place in it of the next sample.
    """

    def __init__(self, length: int) -> None:
        self._length, self._next, self._started = length, 0, False
        self.begin, self.place = 0, 0
        self.order: Ints = np.zeros(0, np.int64)

    def start(self, order: Ints, begin: int) -> None:
        """Give ``order`` from that place on."""
        self.order, self._started = order, True
        self._next = self.begin = self.place = begin

    def __len__(self) -> int:
        """Samples of an epoch, or of what is left of it."""
        return len(self.order) - self._next if self._started else self._length

    def __iter__(self) -> Iterator[int]:
        """The numbers, or raise InputError where no epoch is scheduled."""
        order = self._known()
        self.begin = self.place = self._next

        def rest() -> Iterator[int]:
            for sample in order[self.begin :].tolist():
                self.place += 1
                yield sample

        return rest()

    def state_dict(self) -> dict[str, Any]:
        """How far it is, and a mark of its order."""
        return {"version": VERSION, "order": mark(self._known()), "place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, after the same epoch, or rest of one, was scheduled for as many ranks.
        Raises InputError if it is of another version or order."""
        wanted = {"version": VERSION, "order": mark(self._known())}
        for name, value in wanted.items():
            if state.get(name) != value:
                rule = f"must be {value}, of what this rank trains on now"
                remedy = "Load the scheduler's state instead, and make the loader anew."
                refuse(f"state.{name}", rule, str(state.get(name)), remedy, "sampler")
        self._next = int(state["place"])
        self.begin = self.place = self._next

    def _known(self) -> Ints:
        if not self._started:
            remedy = "Call scheduler.scheduling(epoch) first."
            refuse("sampler", "has no order yet", "", remedy, "scheduler")
        return self.order


def mark(*arrays: Ints) -> str:
    """A number that stands for the arrays."""
    found = 0
    for array in arrays:
        found = zlib.crc32(np.ascontiguousarray(array, np.int64).tobytes(), found)
    return f"{found:08x}"


def drawn(shards: Shards, count: int, weights: Floats, rng: np.random.Generator) -> Ints:
    """``count`` samples of each rank's shard, drawn with replacement in proportion to ``weights``
    (N,): (count, M) sample numbers. So a sample of weight w comes count w / W times in an epoch,
    where W is the weight of its shard. Raises InputError if a shard has no weight."""
    columns = []
    for rank, start in enumerate(shards.start[:-1]):
        own = shards.order[start : shards.start[rank + 1]]
        if not (total := weights[own].sum()) > 0:
            rule = f"rank {rank} has no sample with a weight above 0"
            remedy = "Use the random partition, or weights that no class lacks."
            refuse("weights", rule, f"{len(own)} samples", remedy, "scheduler")
        columns.append(rng.choice(own, count, p=weights[own] / total))
    return np.stack(columns, axis=1)


class Manifest:
    """What every rank knows of every sample that was staged: its size on the way, and a checksum of
    it.

    Attributes:
        sizes: (N,) int64, bytes.
        checksums: (N,) uint32, CRC-32.
    """

    def __init__(self, dataset: ShardDataset, owner: Ints, payload: Payload) -> None:
        self.sizes = np.zeros(len(owner), np.int64)
        self.checksums = np.zeros(len(owner), np.uint32)
        mine = np.flatnonzero(owner == dataset.ranks.rank)
        found: list[tuple[int, int]] = []

        def look() -> None:
            for sample in mine:
                content = dataset.to_payload(dataset.store.get(int(sample)), payload)
                found.append((len(content), zlib.crc32(content)))

        collectively(dataset.ranks, look)
        table = np.array(found, np.int64).reshape(len(mine), 2)
        parts = dataset.ranks.gather(table.ravel())
        for rank, part in enumerate(parts):
            of_rank = owner == rank
            self.sizes[of_rank], self.checksums[of_rank] = part.reshape(-1, 2).T

    def fits(self, sample: int, content: bytes) -> bool:
        """Whether ``content`` is that of the sample."""
        known = int(self.sizes[sample]), int(self.checksums[sample])
        return (len(content), zlib.crc32(content)) == known


class _Chosen(Spec):
    partition: Partition


def check_sharded(dataset: object) -> None:
    """See that ``dataset`` is one whose shards can be stored and exchanged, or raise InputError."""
    if not isinstance(dataset, ShardDataset):
        remedy = "Wrap it: ShardDataset(dataset, storage)."
        shown = type(dataset).__name__
        refuse("dataset", "must be a ShardDataset", shown, remedy, "scheduler")


def default_device(module: torch.nn.Module) -> torch.device:
    """Where the weights of ``module`` are."""
    weight = next(module.parameters(), None)
    return torch.device("cpu") if weight is None else weight.device
