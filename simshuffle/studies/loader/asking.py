"""What is asked of loaders, checked: which orders, on what data and readers, or one that was
recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from simshuffle.errors import InputError, Problem
from simshuffle.orders import AnyOrder
from simshuffle.orders.order import Order, Unit
from simshuffle.scenario.workload import Dataset
from simshuffle.spec.library import INPUTS, by_kind, catalog_entry, nearest
from simshuffle.spec.units import Dimension, UnitError, parse_quantity
from simshuffle.studies.loader import order_file
from simshuffle.studies.loader.cell import DrawnOrder, FileOrder, LoaderCell
from simshuffle.studies.loader.shape import Shape
from simshuffle.studies.loader.store import S3, store_of
from simshuffle.study.study import Meta, Request

COMMAND_LINE = "command line"
SAMPLES, SHARDS, SAMPLE_NBYTES = 16_384, 64, 100_000
"""By default: samples, shards, and bytes of a sample."""
MOST_NBYTES = 2**53
ROOM = 1.25
"""A node keeps so many times what it reads in an epoch, by default: where it were just that, a
single shard that two nodes share would drive out all others in turn."""
UNITS: tuple[Unit, ...] = get_args(Unit)


@dataclass(frozen=True)
class Asked:
    """What is asked for, as options have it; None for what follows from others.

    Attributes:
        dataset: name in the catalog, which says samples and bytes.
        samples: N.
        shards: files of equally many samples, but for the last.
        samples_per_shard: of each file, in place of their number.
        shard_size: bytes of a file, with a unit.
        nodes, gpus, workers, batch_size: who reads; see `Shape`.
        cache: bytes that a node keeps, with a unit, 'none' for no limit, '0' for no cache; `ROOM`
            times what a node reads in an epoch if it is None.
        epochs: that are looked at.
        seed: of the orders.
        classes: labels.
        unit: what a recorded order fetches at once.
        block: samples of a block, where that is a block.
        store: from which samples are fetched, see `simshuffle.studies.loader.store.store_of`.
    """

    dataset: str | None = None
    samples: int | None = None
    shards: int | None = None
    samples_per_shard: int | None = None
    shard_size: str | None = None
    nodes: int | None = None
    gpus: int | None = None
    workers: int | None = None
    batch_size: int = 16
    cache: str | None = None
    epochs: int | None = None
    seed: int = 0
    classes: int = 10
    unit: str = "shard"
    block: int = 1
    store: str = S3


def request(names: Sequence[str], asked: Asked) -> Request[list[LoaderCell]]:
    """What is asked for: those orders, or all, on a shape.

    Args:
        names: kinds of orders, with values as in 'webdataset:buffer_size=100'; none for
            `defaults`.
        asked: the shape.

    Raises:
        InputError: an order is not known, or the shape cannot be had.
    """
    store_of(asked.store)  # what is wrong with it is said first
    named = {name: order_of(name) for name in names}
    shape = _shape(asked, _Readers(4, 4, 2, 3))
    orders = named or defaults(shape)
    cells = [LoaderCell(name, shape, DrawnOrder(order)) for name, order in orders.items()]
    plain = {"orders": list(names), "order_file": None, "shape": asdict(asked)}
    return Request("orders", cells, {}, {"asked": plain})


def check_request(path: Path, names: Sequence[str], asked: Asked) -> Request[list[LoaderCell]]:
    """What is asked for: the order of a file.

    Args:
        path: see `simshuffle.studies.loader.order_file`.
        names: of other orders: none.
        asked: what the file does not say: nodes, the batch, the shards.

    Raises:
        InputError: the file is not as it should be, or does not fit the shape.
    """
    store_of(asked.store)
    if names:
        problem = Problem("--order", "cannot be combined with --check", names[0], "Leave one out.")
        raise InputError(problem, COMMAND_LINE)
    return _check_request(path, path.stem, asked)


def again(folder: Path, meta: Meta) -> Request[list[LoaderCell]]:
    """The request of a result, from its folder."""
    plain = meta["asked"]
    asked = Asked(**plain["shape"])
    if plain["order_file"] is None:
        return request(plain["orders"], asked)
    return _check_request(folder / INPUTS / plain["order_file"], plain["orders"][0], asked)


def _check_request(path: Path, name: str, asked: Asked) -> Request[list[LoaderCell]]:
    unit = next((each for each in UNITS if each == asked.unit), None)
    if unit is None:
        rule = f"must be {' or '.join(UNITS)}"
        problem = Problem("--unit", rule, repr(asked.unit), nearest(asked.unit, list(UNITS)))
        raise InputError(problem, COMMAND_LINE)
    found = order_file.read(path)
    _check_fits(path, found, asked)
    nodes = asked.nodes or 1
    readers = _Readers(nodes, found.ranks // nodes, found.workers, len(found.epochs))
    shape = _shape(asked, readers, found.samples)
    stands = order_file.digest(path)
    cell = LoaderCell(name, shape, FileOrder(path, stands, unit, asked.block))
    kept = f"{stands}{path.suffix}"
    plain = {"orders": [name], "order_file": kept, "shape": asdict(asked)}
    return Request(name, [cell], {}, {"asked": plain}, {kept: path})


def _check_fits(path: Path, found: order_file.RecordedOrder, asked: Asked) -> None:
    """See that a file has the ranks, workers and epochs that are asked for.

    Raises:
        InputError: with all that differs.
    """
    nodes = asked.nodes or 1
    problems = []
    if found.ranks % nodes:
        rule = f"must divide the {found.ranks} ranks of {path.name}"
        problems.append(Problem("--nodes", rule, str(nodes), "Say how many nodes there were."))
    has = {
        "--gpus": (asked.gpus, found.ranks // nodes),
        "--workers": (asked.workers, found.workers),
        "--epochs": (asked.epochs, len(found.epochs)),
    }
    problems += [
        Problem(option, f"must be {there}, as in {path.name}", str(wanted), "Leave it out.")
        for option, (wanted, there) in has.items()
        if wanted not in {None, there}
    ]
    if problems:
        raise InputError(problems, COMMAND_LINE)


# -------------------------------------------------------------------------------------------- shape


@dataclass(frozen=True)
class _Readers:
    """What is taken where an option is left out."""

    nodes: int
    gpus: int
    workers: int
    epochs: int


def _shape(asked: Asked, readers: _Readers, least: int = 0) -> Shape:
    """The shape.

    Args:
        asked: the options.
        readers: who reads, by default.
        least: samples that a recorded order speaks of.
    """
    if asked.shards is not None and asked.samples_per_shard is not None:
        rule, remedy = "cannot be combined with --samples-per-shard", "Leave one out."
        raise InputError(Problem("--shards", rule, str(asked.shards), remedy), COMMAND_LINE)
    samples, sample_nbytes = _of_dataset(asked.dataset)
    if asked.samples is not None or samples is None:
        samples = asked.samples or least or SAMPLES
    if least > samples:
        rule = f"must be at least {least}, for the file has a sample {least - 1}"
        remedy = "Give the size of the data set that was recorded."
        raise InputError(Problem("--samples", rule, str(samples), remedy), COMMAND_LINE)
    each = asked.samples_per_shard or -(-samples // (asked.shards or min(SHARDS, samples)))
    whole = sample_nbytes * min(each, samples)
    shard_nbytes = whole if asked.shard_size is None else _nbytes(asked.shard_size, "--shard-size")
    nodes = asked.nodes or readers.nodes
    values = {
        "samples": samples,
        "samples_per_shard": each,
        "shard_nbytes": round(shard_nbytes),
        "nodes": nodes,
        "gpus": asked.gpus or readers.gpus,
        "workers": asked.workers or readers.workers,
        "batch_size": asked.batch_size,
        "cache_nbytes": _cache(asked.cache, shard_nbytes * samples / min(each, samples) / nodes),
        "epochs": asked.epochs or readers.epochs,
        "seed": asked.seed,
        "classes": min(asked.classes, samples),
    }
    try:
        shape = Shape.model_validate(values)
    except ValidationError as error:
        raise InputError([_problem(of) for of in error.errors()], COMMAND_LINE) from None
    shape.check()
    return shape


def _problem(detail: Any) -> Problem:
    option = f"--{'.'.join(map(str, detail['loc'])).replace('_', '-').removesuffix('-nbytes')}"
    rule = detail["msg"].removeprefix("Input ")
    return Problem(option, rule, repr(detail["input"])[:60], "Give a value that obeys the rule.")


def _of_dataset(name: str | None) -> tuple[int | None, float]:
    """Samples of a data set, and bytes of each."""
    if name is None:
        return None, SAMPLE_NBYTES
    try:
        entry = catalog_entry("datasets", name)
    except InputError as error:
        raise InputError([of.below("--dataset") for of in error.problems], COMMAND_LINE) from None
    dataset = Dataset.model_validate(entry)
    return dataset.num_samples, dataset.stored.mean


def _nbytes(text: str, option: str) -> float:
    try:
        nbytes = parse_quantity(text, Dimension.NBYTES)
    except UnitError as error:
        problem = Problem(option, str(error), repr(text), f"For example {option} '64 MB'.")
        raise InputError(problem, COMMAND_LINE) from None
    if nbytes > MOST_NBYTES:
        rule = "must be at most 9 PB"
        raise InputError(Problem(option, rule, repr(text), "Give less."), COMMAND_LINE)
    return nbytes


def _cache(text: str | None, share: float) -> int | None:
    if text is None:
        return round(ROOM * share)
    if text == "none":
        return None
    return 0 if text.strip() == "0" else round(_nbytes(text, "--cache"))


# ------------------------------------------------------------------------------------------- orders


def kinds() -> dict[str, type[Order]]:
    """The class of every order that is registered, by its kind."""
    union = get_args(AnyOrder)[0]
    return {get_args(of.model_fields["kind"].annotation)[0]: of for of in get_args(union)}


def defaults(shape: Shape) -> dict[str, Order]:
    """The orders that are looked at if none is named, by a short name: those of each library, of
    papers and of this project.

    Buffers, blocks and windows are those of the library by default, but hold no more than a quarter
    of what a worker, a rank, a node or all together read in an epoch, so that a small set shows
    what they do on a large one.
    """
    size, readers = shape.samples, shape.readers
    ranks, shard = readers.world_size, min(shape.samples_per_shard, size)

    def quarter(streams: int, most: int) -> int:
        return max(2, min(size // (4 * streams), most))

    block = max(shard // 4, 1)
    blocks_of_rank = max(size // (block * ranks), 1)
    piled = {"block_size": block, "buffer_blocks": max(blocks_of_rank // 4, 1)}
    of_node = {"shuffle_block_size": quarter(readers.nodes, 2**18)}
    of_worker = {"buffer_size": quarter(ranks * readers.workers, 1000)}
    of_rank = {"buffer_size": quarter(ranks, 1000)}
    in_blocks = {"io_block_size": min(block, 256), "era_length": quarter(1, 1024)}
    in_blocks["window_blocks"] = max(min(size // (4 * in_blocks["io_block_size"]), 512), 1)
    mosaicml = {"naive": {}, "py1s": {}, "py2s": {}, "py1b": of_node, "py1br": of_node}
    wanted: dict[str, dict[str, Any]] = {
        "global": {"kind": "own", "shuffle": "global"},
        "local": {"kind": "own", "shuffle": "local"},
        "synchronised": {"kind": "synchronised"},
        "distributed_sampler": {"kind": "distributed_sampler"},
        **{
            f"mosaicml {name}": {"kind": "mosaicml_streaming", "shuffle_algo": name, **values}
            for name, values in {**mosaicml, "py1e": of_node}.items()
        },
        "litdata full, kept": {"kind": "litdata_full"},
        "litdata full, not kept": {"kind": "litdata_full", "max_cache_size": "1 B"},
        "litdata window": {"kind": "litdata_window"},
        "webdataset": {"kind": "webdataset", **of_worker},
        "hugging_face": {"kind": "hugging_face", **of_worker},
        "tf_data": {"kind": "tf_data", **of_rank},
        "ray_local": {"kind": "ray_local", **of_rank},
        **{
            f"levanter {name}": {"kind": "levanter", "shuffle": name, **in_blocks}
            for name in ("full", "era", "block")
        },
        "corgipile": {"kind": "corgipile", **piled},
        "corgi2": {"kind": "corgi2", **piled},
    }
    known = kinds()
    return {name: known[of["kind"]].model_validate(of) for name, of in wanted.items()}


def order_of(text: str) -> Order:
    """The order that is written as its kind, with values as in 'webdataset:buffer_size=100'.

    Raises:
        InputError: there is none, or a value is not valid.
    """
    try:
        values: Mapping[str, Any] = by_kind(text)
    except InputError as error:
        raise InputError([of.below("--order") for of in error.problems], COMMAND_LINE) from None
    known = kinds()
    if values["kind"] not in known:
        remedy = nearest(values["kind"], [*known])
        problem = Problem("--order", "no such order", repr(values["kind"]), remedy)
        raise InputError(problem, COMMAND_LINE)
    try:
        return TypeAdapter(known[values["kind"]]).validate_python(values)
    except ValidationError as error:
        problems = [
            Problem(
                f"--order {text.partition(':')[0]}:{'.'.join(map(str, of['loc']))}",
                of["msg"].removeprefix("Input ").removeprefix("Value error, "),
                repr(of["input"])[:60],
                "Give a value that obeys the rule.",
            )
            for of in error.errors()
        ]
        raise InputError(problems, COMMAND_LINE) from None
