"""The request of loaders, checked: which orders, on what data and readers; or a recorded order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.options import kinds_of, record_of
from simshuffle.spec.library import INPUTS, suggest_nearest
from simshuffle.studies.loader import order_file
from simshuffle.studies.loader.cell import FileOrder, LoaderCell
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.shape import (
    BATCH_SIZE,
    DataSetShape,
    fill_from_scenario,
    fill_options,
    shape_of,
)
from simshuffle.studies.loader.storage import parse_store
from simshuffle.study.options import COMMAND_LINE, own_values
from simshuffle.study.study import Meta, Request
from simshuffle.workload.orders import AnyOrder
from simshuffle.workload.orders.order import Order, Unit

NOT_OF_SHAPE = {
    *("check", "order", "scenario", "set", "tune", "prefetch_factor", "threads"),
    *("resume_at", "epoch", "from_", "to", "loader"),
}
"""Options beside the shape, or that decide it."""
UNITS: tuple[Unit, ...] = get_args(Unit)


def request(options: LoaderOptions) -> Request[list[LoaderCell]]:
    """What is asked for: the orders that are named, or all, or that of a file, on a shape.

    Raises:
        InputError: an order is not known, the shape cannot be had, or the file is not valid.
    """
    parse_store(options.store)  # what is wrong with it is said first
    of_tuning = {"--prefetch-factor": options.prefetch_factor, "--threads": options.threads}
    for flag, given in of_tuning.items():
        if given:
            refuse(flag, "must be with --tune", str(given[0]), "Add --tune.", COMMAND_LINE)
    options = fill_from_scenario(options)
    if options.check is not None:
        if options.order:
            rule = "cannot be combined with --check"
            refuse("--order", rule, options.order[0], "Leave one out.", COMMAND_LINE)
        return request_of_file(options.check, options.check.stem, options)
    known = kinds_of(AnyOrder)
    named = {name: record_of("--order", name, known) for name in options.order}
    shape = shape_of(
        fill_options(options, nodes=4, gpus=4, workers=2, batch_size=BATCH_SIZE, epochs=3)
    )
    orders = named or defaults(shape)
    cells = [LoaderCell(name, shape, order) for name, order in orders.items()]
    return Request("orders", cells, {}, _kept(options, list(options.order), None))


def check_whole(options: LoaderOptions) -> None:
    """See that no option needs --resume-at, or raise InputError with all that do."""
    needing = {"--epoch": options.epoch, "--from": options.from_}
    needing |= {"--to": ", ".join(options.to), "--loader": ", ".join(options.loader)}
    problems = [
        Problem(flag, "must be with --resume-at", str(given), "Add --resume-at middle.")
        for flag, given in needing.items()
        if given not in {None, ""}
    ]
    for flag, given in {"--workers": options.workers, "--batch-size": options.batch_size}.items():
        if isinstance(given, str):
            rule, remedy = "must be a whole number", "Two as in 8:6 need --resume-at."
            problems.append(Problem(flag, rule, repr(given), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)


def _kept(options: LoaderOptions, orders: list[str], order_file: str | None) -> dict[str, Any]:
    """What ``meta.json`` keeps of the options."""
    shape = {k: v for k, v in own_values(options).items() if k not in NOT_OF_SHAPE}
    return {"asked": {"orders": orders, "order_file": order_file, "shape": shape}}


def request_of_file(path: Path, name: str, options: LoaderOptions) -> Request[list[LoaderCell]]:
    """Return the request of the order that a file recorded, under that name."""
    unit = next((each for each in UNITS if each == options.unit), None)
    if unit is None:
        rule = f"must be {' or '.join(UNITS)}"
        refuse(
            "--unit",
            rule,
            repr(options.unit),
            suggest_nearest(options.unit, list(UNITS)),
            COMMAND_LINE,
        )
    found = order_file.read(path)
    _check_fits(path, found, options)
    nodes = options.nodes or 1
    ranks, epochs = found.ranks // nodes, len(found.epochs)
    own = {"workers": found.workers, "epochs": epochs, "batch_size": BATCH_SIZE}
    whole = fill_options(options, nodes=nodes, gpus=ranks, **own)
    shape = shape_of(whole, found.samples)
    stands = order_file.digest(path)
    cell = LoaderCell(name, shape, FileOrder(path, stands, unit, options.block))
    kept = f"{stands}{path.suffix}"
    return Request(name, [cell], {}, _kept(options, [name], kept), {kept: path})


def again(folder: Path, meta: Meta) -> Request[list[LoaderCell]]:
    """Return the request of a stored result, from its folder."""
    asked = meta["asked"]
    options = LoaderOptions(**asked["shape"])
    if asked["order_file"] is None:
        return request(replace(options, order=tuple(asked["orders"])))
    return request_of_file(folder / INPUTS / asked["order_file"], asked["orders"][0], options)


def _check_fits(path: Path, found: order_file.RecordedOrder, options: LoaderOptions) -> None:
    """See that a file has the ranks, workers and epochs that are asked for, or raise InputError
    with all that differs."""
    nodes, problems = options.nodes or 1, []
    if found.ranks % nodes:
        rule = f"must divide the {found.ranks} ranks of {path.name}"
        problems.append(Problem("--nodes", rule, str(nodes), "Say how many nodes there were."))
    has = {
        "--gpus": (options.gpus, found.ranks // nodes),
        "--workers": (options.workers, found.workers),
        "--epochs": (options.epochs, len(found.epochs)),
    }
    problems += [
        Problem(option, f"must be {there}, as in {path.name}", str(wanted), "Leave it out.")
        for option, (wanted, there) in has.items()
        if wanted not in {None, there}
    ]
    if problems:
        raise InputError(problems, COMMAND_LINE)


def defaults(shape: DataSetShape) -> dict[str, Order]:
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
    mosaicml["py1e"] = of_node
    wanted: dict[str, dict[str, Any]] = {
        "global": {"kind": "own", "shuffle": "global"},
        "local": {"kind": "own", "shuffle": "local"},
        "synchronised": {"kind": "synchronised"},
        "distributed_sampler": {"kind": "distributed_sampler"},
        **{
            f"mosaicml {name}": {"kind": "mosaicml_streaming", "shuffle_algo": name, **values}
            for name, values in mosaicml.items()
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
    known = kinds_of(AnyOrder)
    return {name: known[of["kind"]].model_validate(of) for name, of in wanted.items()}
