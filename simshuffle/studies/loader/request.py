"""The request of loaders, checked: which orders, on what data and readers; or a recorded order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.options import kinds_of, nbytes_of, record_of, scenario_of
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.swept import EXCHANGE, runs_followed, single_run
from simshuffle.job.scenario.workload import Dataset
from simshuffle.spec.library import catalog_entry, nearest
from simshuffle.spec.validation import validated
from simshuffle.studies.loader import order_file
from simshuffle.studies.loader.cell import MOST_ROWS, DataSetShape, FileOrder, LoaderCell
from simshuffle.studies.loader.study import store_of
from simshuffle.study.options import COMMAND_LINE, own_values
from simshuffle.study.study import Request
from simshuffle.workload.exchange import LoaderShuffle
from simshuffle.workload.orders import AnyOrder
from simshuffle.workload.orders.order import Order, Unit

if TYPE_CHECKING:
    from simshuffle.studies.loader.verb import LoaderOptions

VERB = "simshuffle study loader"
SAMPLES, SHARDS, SAMPLE_NBYTES, BATCH_SIZE = 16_384, 64, 100_000, 16
"""By default: samples, shards, bytes of a sample, and samples of a batch."""
NOT_OF_SHAPE = {
    *("check", "order", "scenario", "set", "tune", "prefetch_factor", "threads"),
    *("resume_at", "epoch", "from_", "to", "loader"),
}
"""Options beside the shape, or that decide it."""
ROOM = 1.25
"""A node keeps so many times what it reads in an epoch, by default: where it were just that, a
single shard that two nodes share would drive out all others in turn."""
UNITS: tuple[Unit, ...] = get_args(Unit)


def request(options: LoaderOptions) -> Request[list[LoaderCell]]:
    """What is asked for: the orders that are named, or all, or that of a file, on a shape.

    Raises:
        InputError: an order is not known, the shape cannot be had, or the file is not valid.
    """
    store_of(options.store)  # what is wrong with it is said first
    of_tuning = {"--prefetch-factor": options.prefetch_factor, "--threads": options.threads}
    for flag, given in of_tuning.items():
        if given:
            refuse(flag, "must be with --tune", str(given[0]), "Add --tune.", COMMAND_LINE)
    options = of_scenario(options)
    if options.check is not None:
        if options.order:
            rule = "cannot be combined with --check"
            refuse("--order", rule, options.order[0], "Leave one out.", COMMAND_LINE)
        return of_file(options.check, options.check.stem, options)
    known = kinds_of(AnyOrder)
    named = {name: record_of("--order", name, known) for name in options.order}
    shape = shape_of(with_(options, nodes=4, gpus=4, workers=2, batch_size=BATCH_SIZE, epochs=3))
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


def of_file(path: Path, name: str, options: LoaderOptions) -> Request[list[LoaderCell]]:
    """What is asked for: the order of a file, under that name."""
    unit = next((each for each in UNITS if each == options.unit), None)
    if unit is None:
        rule = f"must be {' or '.join(UNITS)}"
        refuse("--unit", rule, repr(options.unit), nearest(options.unit, list(UNITS)), COMMAND_LINE)
    found = order_file.read(path)
    _check_fits(path, found, options)
    nodes = options.nodes or 1
    ranks, epochs = found.ranks // nodes, len(found.epochs)
    own = {"workers": found.workers, "epochs": epochs, "batch_size": BATCH_SIZE}
    whole = with_(options, nodes=nodes, gpus=ranks, **own)
    shape = shape_of(whole, found.samples)
    stands = order_file.digest(path)
    cell = LoaderCell(name, shape, FileOrder(path, stands, unit, options.block))
    kept = f"{stands}{path.suffix}"
    return Request(name, [cell], {}, _kept(options, [name], kept), {kept: path})


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


def with_(options: LoaderOptions, **readers: Any) -> LoaderOptions:
    """The options with these values where they leave them out."""
    left_out = {name: of for name, of in readers.items() if getattr(options, name) is None}
    return replace(options, **left_out)


def shape_of(options: LoaderOptions, least: int = 0) -> DataSetShape:
    """The shape, whose readers are all named; a recorded order speaks of ``least`` samples."""
    if options.shards is not None and options.samples_per_shard is not None:
        rule, remedy = "cannot be combined with --samples-per-shard", "Leave one out."
        refuse("--shards", rule, str(options.shards), remedy, COMMAND_LINE)
    samples, sample_nbytes = _of_dataset(options.dataset)
    if options.samples is not None or samples is None:
        samples = options.samples or least or SAMPLES
    if least > samples:
        rule = f"must be at least {least}, for the file has a sample {least - 1}"
        remedy = "Give the size of the data set that was recorded."
        refuse("--samples", rule, str(samples), remedy, COMMAND_LINE)
    each = options.samples_per_shard or -(-samples // (options.shards or min(SHARDS, samples)))
    shard_nbytes = sample_nbytes * min(each, samples)
    if options.shard_size is not None:
        shard_nbytes = nbytes_of("--shard-size", options.shard_size)
    share = shard_nbytes * samples / min(each, samples) / (options.nodes or 1)
    cache: int | None = round(ROOM * share)
    if options.cache is not None:
        given = f"{options.cache} B" if options.cache.strip() == "0" else options.cache
        cache = None if given == "none" else round(nbytes_of("--cache", given))
    own = ("nodes", "gpus", "workers", "batch_size", "epochs", "seed")
    values = {
        **{name: getattr(options, name) for name in own},
        "samples": samples,
        "samples_per_shard": each,
        "shard_nbytes": round(shard_nbytes),
        "cache_nbytes": cache,
        "classes": min(options.classes, samples),
    }
    shape, problems = validated(values, DataSetShape)
    if shape is None or problems:
        for place, of in enumerate(problems):
            flag = of.path.removesuffix("_nbytes").replace("_", "-")
            problems[place] = replace(of, path=f"--{flag}")
        raise InputError(problems, COMMAND_LINE)
    if shape.rows > MOST_ROWS:
        rule = f"samples times epochs must be at most {MOST_ROWS}"
        remedy = "Use fewer samples, or fewer --epochs."
        problems.append(Problem("--samples", rule, str(shape.rows), remedy))
    if samples < (ranks := shape.readers.world_size):
        remedy = "Use more samples, or fewer --nodes or --gpus."
        rule = f"each of the {ranks} ranks needs a sample"
        problems.append(Problem("--samples", rule, str(samples), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    return shape


def _written(order: Order) -> str:
    """An order as the command line has it."""
    values = order.model_dump(mode="json", exclude_defaults=True, exclude={"source"})
    kind = values.pop("kind")
    return f"{kind}:{','.join(f'{name}={value}' for name, value in values.items())}".rstrip(":")


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


def of_scenario(options: LoaderOptions) -> LoaderOptions:
    """The options with what a scenario says where they leave it out, and without the scenario.

    Raises:
        InputError: it is not valid, or values are set and none is named.
    """
    if options.scenario is None:
        if options.set:
            rule, remedy = "needs a scenario", "Name one: simshuffle study loader SCENARIO."
            refuse("--set", rule, ", ".join(options.set), remedy, COMMAND_LINE)
        return options
    scenario = shaping_run(scenario_of(options.scenario, options.set))
    workload = scenario.workload
    strategy, dataset = workload.exchange, workload.dataset
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    if ranks * scenario.hosts != scenario.world_size:
        rule, given = f"must be a multiple of {ranks}, to fill all hosts", str(scenario.world_size)
        refuse("world_size", rule, given, "Use --set world_size=.", scenario.name)
    own: dict[str, Any] = {
        "nodes": scenario.hosts,
        "gpus": ranks,
        "workers": workload.loader.workers,
        "batch_size": workload.local_batch_size,
    }
    if options.dataset is None and options.samples is None:
        own["samples"] = dataset.num_samples
    each = dataset.samples_per_file if dataset.samples_per_file > 1 else None
    if isinstance(strategy, LoaderShuffle):
        each = strategy.samples_per_shard or each
        limit = strategy.cache_limit
        own["cache"] = "none" if limit is None else f"{limit:.0f} B"
        options = replace(options, order=options.order or (_written(strategy.order),))
    if options.shards is None and each is not None:
        own["samples_per_shard"] = each
    if options.shard_size is None and options.dataset is None:
        shards = options.shards or SHARDS
        each = options.samples_per_shard or each or -(-dataset.num_samples // shards)
        own["shard_size"] = f"{round(each * dataset.stored.mean)} B"
    return with_(replace(options, scenario=None, set={}), **own)


def shaping_run(scenario: Scenario) -> Scenario:
    """The run of a scenario that says who reads, and in which order if that is of a loader.

    Raises:
        ScenarioError: its sweep makes several.
    """
    runs = [*runs_followed(scenario, VERB, (EXCHANGE,)).values()]
    ordered = any(isinstance(single.workload.exchange, LoaderShuffle) for single in runs)
    return single_run(scenario, VERB) if ordered else runs[0]


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
