"""Make the request that counts orders: named ones on a data set, or a recorded one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.options import kinds_of, record_of
from simshuffle.report.folders import INPUTS
from simshuffle.spec.library import suggest_nearest
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

OPTIONS_BESIDE_SHAPE = {
    *("check", "order", "scenario", "set", "tune", "prefetch_factor", "threads"),
    *("resume_at", "epoch", "from_", "to", "loader"),
}
"""Options beside the shape, or that decide it."""
UNITS: tuple[Unit, ...] = get_args(Unit)


def request(options: LoaderOptions) -> Request[list[LoaderCell]]:
    """Return the checked request that counts orders on the shape of a data set.

    The orders are the one that the file of --check recorded, else the named ones, else
    all of `default_orders`. A scenario that names a loader's order has this order,
    unless ``options`` name some. Without --check, what is left out becomes 4 nodes, 4
    GPUs of each, 2 workers of each rank, and 3 epochs.

    Raises:
        InputError: an order or the store is not known, the shape is impossible, the
            file is invalid, an order stands beside --check, or an option needs --tune.
    """
    parse_store(options.store)  # what is wrong with it is said first
    tuning_options = {
        "--prefetch-factor": options.prefetch_factor,
        "--threads": options.threads,
    }
    for flag, values in tuning_options.items():
        if values:
            refuse(flag, "needs --tune", str(values[0]), "Add --tune.", COMMAND_LINE)
    options = fill_from_scenario(options)
    if options.check is not None:
        if options.order:
            rule = "cannot be combined with --check"
            refuse("--order", rule, options.order[0], "Leave one out.", COMMAND_LINE)
        return request_of_file(options.check, options.check.stem, options)
    order_kinds = kinds_of(AnyOrder)
    named_orders = {
        name: record_of("--order", name, order_kinds) for name in options.order
    }
    shape = shape_of(
        fill_options(
            options, nodes=4, gpus=4, workers=2, batch_size=BATCH_SIZE, epochs=3
        )
    )
    orders = named_orders or default_orders(shape)
    cells = [LoaderCell(name, shape, order) for name, order in orders.items()]
    return Request(
        "orders", cells, {}, _stored_options(options, list(options.order), None)
    )


def check_without_resuming(options: LoaderOptions) -> None:
    """Check that no option is given that needs --resume-at.

    They are --epoch, --from, --to and --loader, and a pair (text such as '8:6') for
    --workers or --batch-size.

    Raises:
        InputError: some are given; the error lists all of them.
    """
    resume_options = {"--epoch": options.epoch, "--from": options.from_}
    resume_options |= {
        "--to": ", ".join(options.to),
        "--loader": ", ".join(options.loader),
    }
    problems = [
        Problem(flag, "needs --resume-at", str(value), "Add --resume-at middle.")
        for flag, value in resume_options.items()
        if value not in {None, ""}
    ]
    for flag, value in {
        "--workers": options.workers,
        "--batch-size": options.batch_size,
    }.items():
        if isinstance(value, str):
            rule = "must be a whole number"
            remedy = "A pair such as 8:6 needs --resume-at."
            problems.append(Problem(flag, rule, repr(value), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)


def _stored_options(
    options: LoaderOptions, orders: list[str], order_file: str | None
) -> dict[str, Any]:
    """Return ``{"asked": entry}`` for ``meta.json``: the request, to be repeated.

    The entry has the keys ``orders``, ``order_file`` and ``shape``. ``shape`` maps
    every option of the verb that is not in `OPTIONS_BESIDE_SHAPE` to its value in
    ``options``: None where it was left out.

    Args:
        options: the options of the verb.
        orders: names of the orders.
        order_file: name of the recorded order among the inputs, or None.
    """
    shape = {
        name: value
        for name, value in own_values(options).items()
        if name not in OPTIONS_BESIDE_SHAPE
    }
    return {"asked": {"orders": orders, "order_file": order_file, "shape": shape}}


def request_of_file(
    path: Path, name: str, options: LoaderOptions
) -> Request[list[LoaderCell]]:
    """Return the request of the order that a file recorded.

    Ranks, workers and epochs are those of the file; the samples are at least its own.
    There is 1 node unless ``options`` say how many. The request has the file among its
    inputs, named by the file's digest.

    Args:
        path: the file.
        name: name of the order.
        options: the options of the verb.

    Raises:
        InputError: the unit is unknown, the file is invalid, or options contradict the
            file.
    """
    unit = next(
        (known_unit for known_unit in UNITS if known_unit == options.unit), None
    )
    if unit is None:
        rule = f"must be {' or '.join(UNITS)}"
        remedy = suggest_nearest(options.unit, list(UNITS))
        refuse("--unit", rule, repr(options.unit), remedy, COMMAND_LINE)
    recorded = order_file.read_order(path)
    _check_fit(path, recorded, options)
    nodes = options.nodes or 1
    filled_options = fill_options(
        options,
        nodes=nodes,
        gpus=recorded.ranks // nodes,
        workers=recorded.workers,
        epochs=len(recorded.epochs),
        batch_size=BATCH_SIZE,
    )
    shape = shape_of(filled_options, recorded.samples)
    file_digest = order_file.digest(path)
    cell = LoaderCell(name, shape, FileOrder(path, file_digest, unit, options.block))
    input_name = f"{file_digest}{path.suffix}"
    stored_options = _stored_options(options, [name], input_name)
    return Request(name, [cell], {}, stored_options, {input_name: path})


def repeat(folder: Path, meta: Meta) -> Request[list[LoaderCell]]:
    """Return the request that made a stored result, from its folder and ``meta.json``.

    A recorded order is read again from the folder's inputs; named orders are made anew.
    """
    stored_request = meta["asked"]
    options = LoaderOptions(**stored_request["shape"])
    if stored_request["order_file"] is None:
        return request(replace(options, order=tuple(stored_request["orders"])))
    path = folder / INPUTS / stored_request["order_file"]
    return request_of_file(path, stored_request["orders"][0], options)


def _check_fit(
    path: Path, recorded: order_file.RecordedOrder, options: LoaderOptions
) -> None:
    """Check that the ranks, workers and epochs of a file fit the given options.

    The nodes (1 if left out) must divide the ranks. --gpus is compared with the ranks
    of a node. Options that are left out are not compared.

    Raises:
        InputError: options do not fit; the error lists all of them.
    """
    nodes = options.nodes or 1
    problems = []
    if recorded.ranks % nodes:
        rule = f"must divide the {recorded.ranks} ranks of {path.name}"
        problems.append(
            Problem(
                "--nodes",
                rule,
                str(nodes),
                "Give the number of nodes that recorded it.",
            )
        )
    option_and_recorded = {
        "--gpus": (options.gpus, recorded.ranks // nodes),
        "--workers": (options.workers, recorded.workers),
        "--epochs": (options.epochs, len(recorded.epochs)),
    }
    problems += [
        Problem(
            option,
            f"must be {recorded_number}, as in {path.name}",
            str(requested_number),
            "Leave it out.",
        )
        for option, (requested_number, recorded_number) in option_and_recorded.items()
        if requested_number not in {None, recorded_number}
    ]
    if problems:
        raise InputError(problems, COMMAND_LINE)


def default_orders(shape: DataSetShape) -> dict[str, Order]:
    """Return the orders that are counted if none is named, by a short name.

    They are those of each library, of papers and of this project. Buffers, eras and
    windows of libraries have the library's default size, but hold at most a quarter of
    what a worker, a rank, a node or all together read in an epoch. The blocks of
    CorgiPile and Corgi2 are a quarter of a shard, and their buffers a quarter of a
    rank's blocks. Levanter's blocks are at most a quarter of a shard. With these sizes
    a small data set shows what the orders do on a large one.
    """
    size = shape.samples
    readers = shape.readers
    num_ranks = readers.world_size
    block_size = max(min(shape.samples_per_shard, size) // 4, 1)
    blocks_of_rank = max(size // (block_size * num_ranks), 1)
    corgi_values = {
        "block_size": block_size,
        "buffer_blocks": max(blocks_of_rank // 4, 1),
    }
    node_values = {"shuffle_block_size": _quarter_of_stream(size, readers.nodes, 2**18)}
    num_workers = num_ranks * readers.workers
    worker_values = {"buffer_size": _quarter_of_stream(size, num_workers, 1000)}
    rank_values = {"buffer_size": _quarter_of_stream(size, num_ranks, 1000)}
    levanter_values = _levanter_values(size, block_size)
    mosaicml = {
        "naive": {},
        "py1s": {},
        "py2s": {},
        "py1b": node_values,
        "py1br": node_values,
        "py1e": node_values,
    }
    values_of_order: dict[str, dict[str, Any]] = {
        "global": {"kind": "own", "shuffle": "global"},
        "local": {"kind": "own", "shuffle": "local"},
        "synchronised": {"kind": "synchronised"},
        "distributed_sampler": {"kind": "distributed_sampler"},
        **{
            f"mosaicml {name}": {
                "kind": "mosaicml_streaming",
                "shuffle_algo": name,
                **values,
            }
            for name, values in mosaicml.items()
        },
        "litdata full, kept": {"kind": "litdata_full"},
        "litdata full, not kept": {"kind": "litdata_full", "max_cache_size": "1 B"},
        "litdata window": {"kind": "litdata_window"},
        "webdataset": {"kind": "webdataset", **worker_values},
        "hugging_face": {"kind": "hugging_face", **worker_values},
        "tf_data": {"kind": "tf_data", **rank_values},
        "ray_local": {"kind": "ray_local", **rank_values},
        **{
            f"levanter {name}": {"kind": "levanter", "shuffle": name, **levanter_values}
            for name in ("full", "era", "block")
        },
        "corgipile": {"kind": "corgipile", **corgi_values},
        "corgi2": {"kind": "corgi2", **corgi_values},
    }
    order_kinds = kinds_of(AnyOrder)
    return {
        name: order_kinds[values["kind"]].model_validate(values)
        for name, values in values_of_order.items()
    }


def _quarter_of_stream(num_samples: int, streams: int, max_samples: int) -> int:
    """Return a quarter of the samples of a stream, from 2 to ``max_samples``.

    Args:
        num_samples: samples of an epoch.
        streams: number of streams that share them.
        max_samples: most samples to return.
    """
    return max(2, min(num_samples // (4 * streams), max_samples))


def _levanter_values(num_samples: int, block_size: int) -> dict[str, int]:
    """Return the settings of Levanter's orders, by the setting's name.

    They are ``io_block_size`` (samples; at most 256), ``era_length`` (samples; at most
    1024) and ``window_blocks`` (blocks; at most 512). Era and window hold at most a
    quarter of the epoch, but at least 2 samples and 1 block.

    Args:
        num_samples: samples of an epoch.
        block_size: samples of a quarter of a shard.
    """
    io_block_size = min(block_size, 256)
    quarter_in_blocks = num_samples // (4 * io_block_size)
    return {
        "io_block_size": io_block_size,
        "era_length": _quarter_of_stream(num_samples, 1, 1024),
        "window_blocks": max(min(quarter_in_blocks, 512), 1),
    }
