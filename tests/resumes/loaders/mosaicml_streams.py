"""Several streams of MosaicML Streaming 0.13.0: what the library works out for each rank and worker
(`Stream.apply_weights`, `StreamingDataset.resample_streams`, `generate_work`), handed out here.

Its shared memory and the processes of its workers, which take half a minute a case, have no part in
this; with them, cases of every way of batching came to the same.
"""

import types

import numpy as np
from files import without_torchvision

without_torchvision()

from streaming import Stream, StreamingDataset  # noqa: E402
from streaming.base.batching import generate_work  # noqa: E402
from streaming.base.world import World  # noqa: E402

KIND = "mosaicml_streams"
SETTINGS = [
    {"of": {}},
    {"of": {"weighing": "repeat", "weights": [0.5, 1.75]}},
    {"of": {"batching_method": "stratified"}},
    {"of": {"batching_method": "per_stream"}},
    {"of": {"batching_method": "device_per_stream"}},
    {"of": {"weights": [0.2, 0.5, 0.3], "sampling_granularity": 4, "sampling_method": "fixed"}},
    {
        "of": {
            "weights": [0.4, 0.6],
            "batching_method": "stratified",
            "sampling_method": "fixed",
            "of": {"kind": "mosaicml_streaming", "shuffle_algo": "py1s", "num_canonical_nodes": 12},
        }
    },
    {
        "of": {
            "weighing": "choose",
            "weights": [60.0, 50.0],
            "batching_method": "per_stream",
            "of": {
                "kind": "mosaicml_streaming",
                "shuffle_algo": "py1br",
                "num_canonical_nodes": 6,
                "shuffle_block_size": 17,
            },
        }
    },
    {
        "of": {
            "batching_method": "device_per_stream",
            "sampling_granularity": 3,
            "of": {
                "kind": "mosaicml_streaming",
                "num_canonical_nodes": 12,
                "shuffle_algo": "naive",
            },
        }
    },
]


class Streams(types.SimpleNamespace):
    """What `generate_work` asks of a data set."""

    resample_streams = StreamingDataset.resample_streams

    def __init__(self, run, nodes=None, canonical=None):
        """As `StreamingDataset.__init__` and `_resume`."""
        given = run.law["of"]
        weights, weighing = given.get("weights", [0.7, 0.3]), given.get("weighing", "proportion")
        kind = int if weighing == "choose" else float
        shards = np.array_split(run.samples, len(weights))
        of = given.get("of", {})
        algorithm = of.get("shuffle_algo", "py1e")
        default = run.nodes * (64 if algorithm in {"py1s", "py2s"} else 1)
        canonical = canonical or of.get("num_canonical_nodes", default)
        block = of.get("shuffle_block_size", max(4_000_000 // canonical, 1 << 18))
        super().__init__(
            streams=[Stream(local="none", **{weighing: kind(weight)}) for weight in weights],
            num_streams=len(weights),
            shards_per_stream=np.array([len(own) for own in shards]),
            shard_offset_per_stream=np.cumsum([0, *map(len, shards[:-1])]),
            samples_per_shard=np.array(run.samples),
            sample_offset_per_shard=np.cumsum([0, *run.samples[:-1]]),
            partition_algo="relaxed",
            shuffle=True,
            shuffle_algo=algorithm,
            shuffle_seed=run.seed,
            shuffle_block_size=block,
            num_canonical_nodes=canonical,
            initial_physical_nodes=nodes,
            batch_size=run.batch_size,
            sampling_method=given.get("sampling_method", "balanced"),
            sampling_granularity=given.get("sampling_granularity", 1),
        )
        self.epoch_seed_change = self.sampling_method == "balanced"
        sizes = np.array([own.sum() for own in shards])
        self.epoch_size = Stream.apply_weights(self.streams, sizes, None, run.seed)


class Loader:
    """Batches of workers in turn, as a `DataLoader` has them."""

    def __init__(self, run, saved=None):
        self.run, self.epoch, self.first = run, 0, 0
        more = {}
        if saved:
            self.epoch, self.first, more["nodes"], more["canonical"] = saved
        self.data = Streams(run, **more)

    def __iter__(self):
        run, yielded = self.run, 0
        world = World(run.nodes, run.ranks, run.workers, run.rank * run.workers)
        method = run.law["of"].get("batching_method", "random")
        work = generate_work(method, self.data, world, self.epoch, self.first)
        own = [worker[worker >= 0] for worker in work[run.rank // run.ranks, run.rank % run.ranks]]
        count = max(len(worker) for worker in own)
        for begin in range(0, count, run.batch_size):
            for worker in own:
                batch = worker[begin : begin + run.batch_size]
                if len(batch):
                    yielded += len(batch) * run.world_size
                    nodes = self.data.initial_physical_nodes or run.nodes
                    had = self.first + yielded
                    self.saved = self.epoch, had, nodes, self.data.num_canonical_nodes
                    yield batch
        # workers of the next epoch are forked from a rank that has not gone on
        self.data, self.epoch, self.first = Streams(run), self.epoch + 1, 0


make = Loader


def state(loader):
    return loader.saved


def resume(run, states):
    return Loader(run, states[0])
