"""What the libraries themselves hand out, for the cases that are recorded in tests/data/orders.

`python -m tests.order_libraries NAME` records a library's answers again, where it is installed.
"""

import asyncio
import json
import os
import random
import sys
import tarfile
from contextlib import nullcontext
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from unittest.mock import patch

import numpy as np

FOLDER = Path(__file__).parent / "data" / "orders"

SHARDS = [7, 5, 9, 6, 8, 4, 10, 3, 7, 6, 5, 8]
"""Samples of each shard of every case."""

CASES = {
    "webdataset": [
        {"readers": readers, "order": {"buffer_size": 12, "initial": initial, **det}}
        for readers in ([1, 1, 1], [2, 2, 1], [1, 3, 2])
        for initial in (4, 30)
        for det in ({"detshuffle": True, "shard_shuffle": 4}, {"shard_shuffle": 100})
    ],
    "datasets": [
        {"readers": readers, "order": order}
        for readers in ([1, 1, 1], [2, 2, 1], [5, 1, 1], [1, 3, 2], [1, 5, 2])
        for order in (
            {"buffer_size": 12},
            {"buffer_size": 9, "max_buffer_input_shards": 1},
            {"buffer_size": 20, "max_buffer_input_shards": 3, "formatted": True},
        )
    ],
    "ray": [
        {"readers": readers, "order": {"buffer_size": size}}
        for readers in ([1, 1, 1], [2, 2, 1])
        for size in (1, 12, 30)
    ],
    "marin-levanter": [
        {"readers": [1, 1, 1], "order": order}
        for order in (
            {"shuffle": "full"},
            {"shuffle": "block", "io_block_size": 6, "window_blocks": 3},
            {"shuffle": "block", "io_block_size": 13, "window_blocks": 6},
            {"shuffle": "block", "io_block_size": 10, "window_blocks": 7},
        )
    ],
    "levanter": [
        {"readers": [1, 1, 1], "order": {"shuffle": "era", "era_length": length}}
        for length in (1, 20, 39)
    ],
}
SEEDS_AND_EPOCHS = [(0, 0), (42, 0), (42, 2)]


def samples_of(shard):
    """The numbers of the samples of a shard."""
    first = sum(SHARDS[:shard])
    return range(first, first + SHARDS[shard])


def streams(case, answer):
    """The answer for each rank and worker in turn."""
    nodes, ranks, workers = case["readers"]
    return [
        [int(sample) for sample in answer(nodes * ranks, workers, rank, worker)]
        for rank in range(nodes * ranks)
        for worker in range(workers)
    ]


def webdataset(case, seed, epoch):
    import webdataset as wds

    order = case["order"]
    det = order.get("detshuffle", False)

    def answer(ranks, workers, rank, worker):
        names = {"RANK": rank, "WORLD_SIZE": ranks, "WORKER": worker, "NUM_WORKERS": workers}
        with (
            TemporaryDirectory() as folder,
            patch.dict(os.environ, {key: str(value) for key, value in names.items()}),
        ):
            loader = wds.WebDataset(
                [tar_file(Path(folder), shard) for shard in range(len(SHARDS))],
                shardshuffle=order["shard_shuffle"],
                detshuffle=det,
                nodesplitter=wds.split_by_node,
                seed=seed,
            )
            if det:
                stage = wds.detshuffle(order["buffer_size"], order["initial"], seed=seed)
                loader = loader.compose(stage)
                for _ in range(epoch):
                    list(loader)
            else:
                clock = random.Random(f"webdataset {seed} {epoch} {rank} {worker}")
                loader = loader.shuffle(order["buffer_size"], initial=order["initial"], rng=clock)
            return [int(sample["__key__"]) for sample in loader]

    return streams(case, answer)


def tar_file(folder, shard):
    """A shard as WebDataset has it: a file of nothing for each sample, named after it."""
    path = folder / f"{shard}.tar"
    with tarfile.open(path, "w") as tar:
        for sample in samples_of(shard):
            tar.addfile(tarfile.TarInfo(f"{sample}.txt"), BytesIO())
    return str(path)


def datasets(case, seed, epoch):
    from datasets import IterableDataset
    from datasets.distributed import split_dataset_by_node
    from datasets.iterable_dataset import (
        ArrowExamplesIterable,
        ExamplesIterable,
        shift_ex_examples_rngs,
    )
    from pyarrow import table

    order = dict(case["order"])
    formatted = order.pop("formatted", False)

    def examples(shards):
        for shard in shards:
            yield from ((sample, {"sample": sample}) for sample in samples_of(shard))

    def tables(shards):
        for shard in shards:
            yield shard, table({"sample": list(samples_of(shard))})

    def answer(ranks, workers, rank, worker):
        shards = {"shards": list(range(len(SHARDS)))}
        source = (ArrowExamplesIterable if formatted else ExamplesIterable)(
            tables if formatted else examples, shards
        )
        loader = IterableDataset(source).shuffle(seed=seed, **order)
        loader = loader.with_format("numpy") if formatted else loader
        loader = split_dataset_by_node(loader, rank=rank, world_size=ranks)
        loader.set_epoch(epoch)
        if workers == 1:
            return [sample["sample"] for sample in loader]
        # what the library does in a worker process of torch
        part = loader._prepare_ex_iterable_for_iteration()
        part = part.shard_data_sources(num_shards=workers, index=worker, contiguous=False)
        part = shift_ex_examples_rngs(part, worker)
        if formatted:
            pieces = [piece["sample"].to_numpy() for _, piece in part.iter_arrow()]
            return np.concatenate(pieces)
        return [sample["sample"] for _, sample in part]

    return streams(case, answer)


def ray(case, seed, epoch):
    from pyarrow import table
    from ray.data._internal import batcher

    def answer(ranks, workers, rank, worker):
        loader = batcher.ShufflingBatcher(BATCH, case["order"]["buffer_size"], seed + epoch)
        out = []
        for shard in range(rank, len(SHARDS), ranks):
            loader.add(table({"sample": list(samples_of(shard))}))
            while loader.has_batch():
                out += loader.next_batch()["sample"].to_pylist()
        loader.done_adding()
        while loader.has_any():
            out += loader.next_batch()["sample"].to_pylist()
        return out

    with patch.object(batcher, "get_total_obj_store_mem_on_node", lambda: 1 << 30):
        return streams(case, answer)


def levanter(case, seed, epoch):
    """Both: the packages marin-levanter and levanter share the name of their module."""
    jax = import_module("jax")
    with patch.dict(sys.modules, parts_of_levanter()):
        data = import_module("levanter.data.dataset")
        sys.modules["levanter.data"].AsyncDataset = data.AsyncDataset
        handed_out = asyncio.run(in_levanter(data, jax.random.PRNGKey(seed), **case["order"]))
    return streams(case, lambda *_: handed_out)


async def in_levanter(data, key, shuffle, **order):
    """The samples in the order of that shuffle."""
    source = data.ListAsyncDataset(list(range(sum(SHARDS))))
    if hasattr(source, "finalize"):
        source.finalize()
    if shuffle == "era":
        loader = source.era_shuffle(order["era_length"], key=key)
    elif shuffle == "block":
        loader = source.block_shuffle(**order, key=key)
    else:
        loader = source.shuffle(key)
    return await loader.get_batch(list(range(sum(SHARDS))))


def parts_of_levanter():
    """Empty packages in place of Levanter's, which import the whole training; and a device context
    that does nothing, where there is only a processor."""
    (home,) = find_spec("levanter").submodule_search_locations
    parts = {name: ModuleType(name) for name in ("levanter", "levanter.data", "levanter.utils")}
    for name, package in parts.items():
        package.__path__ = [str(Path(home, *name.split(".")[1:]))]
    device = ModuleType("levanter.utils.jax_utils")
    device.local_cpu_mesh = nullcontext
    return {**parts, "levanter.utils.jax_utils": device}


BATCH = 4
"""Samples of a batch in every case."""


def version_of(name):
    """The library whose answers are recorded."""
    return f"{name} {version(name)}"


LIBRARIES = {
    "webdataset": webdataset,
    "datasets": datasets,
    "ray": ray,
    "marin-levanter": levanter,
    "levanter": levanter,
}


def answers(name):
    """What a library hands out in each of its cases, seeds and epochs: by rank and worker."""
    return [
        {**case, "seed": seed, "epoch": epoch, "streams": LIBRARIES[name](case, seed, epoch)}
        for case in CASES[name]
        for seed, epoch in SEEDS_AND_EPOCHS
    ]


if __name__ == "__main__":
    name = sys.argv[1]
    record = {"library": version_of(name), "answers": answers(name)}
    (FOLDER / f"{name}.json").write_text(json.dumps(record, separators=(",", ":")) + "\n")
