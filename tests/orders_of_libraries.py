"""What libraries themselves hand out, asked of them here and recorded in `tests/data/orders`.

To record again: ``python -m tests.orders_of_libraries [py1b.py]``, with the libraries on the path;
the argument is streaming/base/shuffle/py1b.py of mosaicml-streaming 0.9.1, the last to have it.
"""

import importlib.util
import json
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).parent / "data" / "orders"
Case = dict[str, Any]
HandedOut = list[list[list[int]]]
"""Of each rank, of each of its workers: samples."""

SHARDS = [
    [12] * 8,
    [7, 1, 19, 3, 30, 11, 2, 5, 16, 9],
    [40, 25],
    [5, 0, 9, 0, 14, 6],
    [1] * 6,
    [83],
    [23, 24, 25, 26, 27],
    [5, 2, 8, 4, 6, 3] * 6,
    [4] * 40,
]
READERS = [  # nodes, ranks, workers, batch size
    (1, 1, 1, 1),
    (1, 2, 3, 4),
    (1, 8, 1, 2),
    (2, 1, 4, 3),
    (2, 4, 2, 2),
    (3, 2, 2, 1),
    (4, 2, 1, 5),
    (4, 8, 1, 2),
]


def cases(settings: list[dict[str, Any]], count: int, seed: int, fewest: int = 1) -> list[Case]:
    """``count`` draws for each of ``settings``, of sets with at least ``fewest`` shards."""
    sets = [samples for samples in SHARDS if len(samples) >= fewest]
    rng = np.random.default_rng(seed)
    drawn = []
    for order in settings:
        shards, readers = rng.permutation(len(sets)), rng.permutation(len(READERS))
        for number in range(count):
            nodes, ranks, workers, batch_size = READERS[readers[number % len(READERS)]]
            drawn.append(
                {
                    "order": order,
                    "samples": sets[shards[number % len(sets)]],
                    "nodes": nodes,
                    "ranks": ranks,
                    "workers": workers,
                    "batch_size": batch_size,
                    "seed": int(rng.choice([0, 7, 42, 9176])),
                    "epoch": number % 4,
                }
            )
    return drawn


# ------------------------------------------------------------------------------------------ PyTorch


def torch_cases() -> list[Case]:
    kind = {"kind": "distributed_sampler"}
    settings = [{}, {"drop_last": True}, {"shuffle": False}, {"shuffle": False, "drop_last": True}]
    return cases([kind | more for more in settings], 12, 1)


def torch_answer(case: Case) -> HandedOut:
    from torch.utils.data import BatchSampler, DistributedSampler

    answer = []
    for rank in range(case["nodes"] * case["ranks"]):
        sampler = DistributedSampler(
            range(sum(case["samples"])),
            case["nodes"] * case["ranks"],
            rank,
            seed=case["seed"],
            **{key: value for key, value in case["order"].items() if key != "kind"},
        )
        sampler.set_epoch(case["epoch"])
        own: list[list[int]] = [[] for _ in range(case["workers"])]
        for number, batch in enumerate(BatchSampler(sampler, case["batch_size"], False)):
            own[number % case["workers"]] += batch
        answer.append(own)
    if not any(any(own) for own in answer):
        raise ValueError("nobody has a sample")
    return answer


# ------------------------------------------------------------------------------- MosaicML Streaming


def mosaicml_cases() -> list[Case]:
    kind = {"kind": "mosaicml_streaming"}
    settings: list[dict[str, Any]] = [
        kind | {"shuffle_algo": algorithm} | more
        for algorithm in ("naive", "py1s", "py2s", "py1b", "py1br", "py1e")
        for more in (
            {},
            {"num_canonical_nodes": 12},
            {"num_canonical_nodes": 1, "shuffle_block_size": 5},
            {"num_canonical_nodes": 2, "shuffle_block_size": 2, "partition_algo": "orig"},
        )
    ]
    settings += [
        kind | {"shuffle_block_size": 6, "initial_nodes": begun, "num_canonical_nodes": parts}
        for begun, parts in ((2, 4), (4, 2), (4, 4), (8, 8), (2, 2))
    ]
    few = [  # as many samples as canonical nodes, or too few to be shared by nodes
        {
            "order": kind | {"shuffle_algo": "py1s", "num_canonical_nodes": parts},
            "samples": samples,
            "nodes": 4,
            "ranks": 2,
            "workers": 2,
            "batch_size": 1,
            "seed": 7,
            "epoch": 1,
        }
        for parts, samples in ((2, [2]), (2, [1, 2]), (1, [2]), (1, [3, 2]), (8, [5, 3]), (8, [5]))
    ]
    return cases(settings, 8, 2) + few


def mosaicml_answer(case: Case) -> HandedOut:
    from streaming.base.batching import generate_work
    from streaming.base.dataset import StreamingDataset
    from streaming.base.world import World

    order, sizes = case["order"], np.array(case["samples"], np.int64)
    dataset: Any = StreamingDataset.__new__(StreamingDataset)
    defaults = {"shuffle_algo": "py1e", "partition_algo": "relaxed"}
    dataset.__dict__.update(
        defaults
        | {
            "batch_size": case["batch_size"],
            "epoch_size": int(sizes.sum()),
            "epoch_seed_change": True,
            "initial_physical_nodes": order.get("initial_nodes"),
            "num_canonical_nodes": order.get("num_canonical_nodes"),
            "num_streams": 1,
            "sample_offset_per_shard": np.cumsum(sizes) - sizes,
            "samples_per_shard": sizes,
            "sampling_granularity": 1,
            "sampling_method": "balanced",
            "shard_offset_per_stream": np.array([0]),
            "shards_per_stream": np.array([len(sizes)]),
            "shuffle": True,
            "shuffle_block_size": order.get("shuffle_block_size"),
            "shuffle_seed": case["seed"],
            "streams": [types.SimpleNamespace(choose=int(sizes.sum()), proportion=1.0)],
            "_shm_prefix_int": 987_654,
        }
        | {key: order[key] for key in defaults if key in order}
    )
    begun = World(order.get("initial_nodes", case["nodes"]), case["ranks"], case["workers"], 0)
    dataset._resume(begun, case["epoch"])  # sets what is left to its defaults, as at the beginning
    world = World(case["nodes"], case["ranks"], case["workers"], 0)
    work = generate_work("random", dataset, world, case["epoch"], 0)
    work = work.reshape(-1, case["workers"], work[0, 0, 0].size)
    return [[own[own >= 0].tolist() for own in rank] for rank in work]


# ------------------------------------------------------------------------------------------ LitData


def litdata_cases() -> list[Case]:
    full, window = {"kind": "litdata_full"}, {"kind": "litdata_window"}
    items = [{}, {"item_shuffle_window": 4}, {"item_shuffle_window": 0}]
    settings: list[dict[str, Any]] = [
        base | drop | item
        for base in (full, window)
        for drop in ({"drop_last": False}, {})
        for item in items
    ]
    settings += [
        full | {"max_cache_size": "30 kB"},
        full | {"max_cache_size": "1 kB", "drop_last": False},
        window | {"window": 2},
        window | {"window": 1, "drop_last": True},
    ]
    return cases(settings, 8, 3, fewest=8)


def litdata_answer(case: Case) -> HandedOut:
    from litdata.streaming.shuffle import FullShuffle, WindowShuffle
    from litdata.utilities.env import _DistributedEnv

    order, sizes = case["order"], case["samples"]
    ends = np.cumsum(sizes).tolist()
    intervals = [(end - size, end - size, end, end) for size, end in zip(sizes, ends, strict=True)]
    nbytes = [{"chunk_bytes": 1000 * size} for size in sizes]
    limit = int(order.get("max_cache_size", "0 kB").split()[0]) * 1000
    reader = types.SimpleNamespace(
        _config=types.SimpleNamespace(_chunks=nbytes), _max_cache_size=limit
    )
    cache: Any = types.SimpleNamespace(get_chunk_intervals=lambda: intervals, _reader=reader)
    world = case["nodes"] * case["ranks"]
    drop_last = order.get("drop_last", world > 1)
    items = order.get("item_shuffle_window", 256)
    shuffler: Any = (
        FullShuffle(cache, case["seed"], drop_last, item_window=items)
        if order["kind"] == "litdata_full"
        else WindowShuffle(cache, case["seed"], drop_last, order.get("window"), items)
    )
    epoch = case["epoch"] + 1
    chunks, parts = shuffler.get_chunks_and_intervals_per_workers(
        _DistributedEnv(world, 0, case["nodes"]), case["workers"], case["batch_size"], epoch
    )
    handed_out = [
        [
            int(sample)
            for chunk, part in zip(own, whose, strict=True)
            for sample in shuffler(np.arange(part[1], part[2]), len(sizes), epoch, chunk)
        ]
        for own, whose in zip(chunks, parts, strict=True)
    ]
    workers = case["workers"]
    answer = [handed_out[rank * workers : (rank + 1) * workers] for rank in range(world)]
    if not all(any(own) for own in answer):
        raise ValueError("a rank has no sample")
    return answer


# ---------------------------------------------------------------------------------------- recording

LIBRARIES: dict[str, Any] = {
    "torch": ("torch", torch_cases, torch_answer),
    "mosaicml-streaming": ("streaming.base.dataset", mosaicml_cases, mosaicml_answer),
    "litdata": ("litdata.streaming.shuffle", litdata_cases, litdata_answer),
}
"""Of each: the module that must be there, what is asked, and who answers."""


def answered(library: str, case: Case) -> HandedOut | str:
    """What the library hands out, or its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            answer: HandedOut = LIBRARIES[library][2](case)
        except ValueError as error:
            return f"{type(error).__name__}: {error}"
    return answer


def record(library: str) -> None:
    from importlib.metadata import version

    asked = [case | {"answer": answered(library, case)} for case in LIBRARIES[library][1]()]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in asked)
    text = f'{{"library": "{library}", "version": "{version(library)}", "cases": [\n{lines}\n]}}\n'
    (RECORDED / f"{library}.json").write_text(text)


if __name__ == "__main__":
    if sys.argv[1:]:
        from streaming.base.shuffle import algos

        spec: Any = importlib.util.spec_from_file_location("py1b", sys.argv[1])
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        algos["py1b"] = module.get_shuffle_py1b
    for name in LIBRARIES:
        record(name)
