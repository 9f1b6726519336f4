"""The shape on which loaders are counted: a data set in shards, and who reads it, from
options.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.options import nbytes_of, scenario_of
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.swept import EXCHANGE, runs_followed, single_run
from simshuffle.job.scenario.workload import Dataset
from simshuffle.spec.library import catalog_entry
from simshuffle.spec.record import Count, Few, Spec
from simshuffle.spec.validation import validate_record
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.study.options import COMMAND_LINE
from simshuffle.workload.exchange import LoaderShuffle
from simshuffle.workload.orders.order import Order, Readers, ShardedSet

VERB = "simshuffle study loader"
SAMPLES, SHARDS, SAMPLE_NBYTES, BATCH_SIZE = 16_384, 64, 100_000, 16
"""By default: samples, shards, bytes of a sample, and samples of a batch."""
READERS = {"nodes": 4, "gpus": 4, "workers": 2, "batch_size": BATCH_SIZE, "epochs": 3}
"""Readers, and epochs, by default."""
CACHE_FACTOR = 1.25
"""A node keeps so many times what it reads in an epoch, by default: where it were just
that, a single shard that two nodes share would drive out all others in turn.
"""
MAX_ROWS = 2**28
"""Samples times epochs."""
NumBytes = Annotated[int, Field(ge=0, le=2**53)]
BoundedSize = Annotated[int, Field(ge=1, le=MAX_ROWS)]


class DataSetShape(Spec):
    """A data set in shards, and who reads it."""

    samples: BoundedSize  # N
    samples_per_shard: Count  # of every shard but the last, which has what is left
    shard_nbytes: NumBytes  # whole bytes of a full shard
    nodes: BoundedSize  # hosts
    gpus: Few  # ranks of a node
    workers: Few  # of a rank
    batch_size: BoundedSize  # of a rank
    # what each node keeps; None for no limit, 0 for no cache
    cache_nbytes: NumBytes | None
    epochs: Annotated[int, Field(ge=1, le=100_000)]  # that are looked at
    seed: Annotated[int, Field(ge=0, le=2**53)] = 0  # of the orders
    # labels; the samples stand sorted by label, and equally many have each
    classes: BoundedSize = 10

    @property
    def readers(self) -> Readers:
        """The nodes, ranks, workers and batches that read the data set."""
        return Readers(self.nodes, self.gpus, self.workers, self.batch_size)

    @property
    def data(self) -> ShardedSet:
        """The data set: samples and bytes of each shard."""
        samples_per_shard = min(self.samples_per_shard, self.samples)
        num_full_shards, remaining_samples = divmod(self.samples, samples_per_shard)
        samples_of_shard = np.array(
            [samples_per_shard] * num_full_shards
            + [remaining_samples] * (remaining_samples > 0)
        )
        return ShardedSet(
            samples_of_shard,
            np.rint(samples_of_shard * (self.shard_nbytes / samples_per_shard)),
        )

    @property
    def rows(self) -> int:
        """Samples that are handed out in all epochs, roughly."""
        return self.samples * self.epochs


def facts_of(shape: DataSetShape) -> dict[str, Any]:
    """Return what figures and texts say: the shape, and the shares of a random order.

    They are the keys of `LoaderFacts` without mixtures; ``batch_companions``,
    ``rank_companions`` and ``moves`` are the shares.
    """
    num_samples = shape.samples
    ranks = shape.readers.world_size
    pairs = max(num_samples - 1, 1)
    fields = {
        "samples",
        "nodes",
        "workers",
        "batch_size",
        "epochs",
        "cache_nbytes",
        "classes",
    }
    return {
        **shape.model_dump(include=fields),
        "shards": len(shape.data.samples),
        "nbytes": int(shape.data.nbytes.sum()),
        "ranks": ranks,
        "batch_companions": (shape.batch_size - 1) / pairs,
        "rank_companions": max(num_samples / ranks - 1, 0) / pairs,
        "moves": 1 - 1 / shape.nodes,
    }


SECONDS_PER_ROW = 3e-6
"""s of one core for each sample of each epoch, roughly."""
BYTES_PER_ROW = 200.0
"""Bytes of memory for each sample of each epoch, roughly."""


def fill_options(options: LoaderOptions, **readers: Any) -> LoaderOptions:
    """Return the options with ``readers`` by name where an option is None."""
    defaults = {
        name: value for name, value in readers.items() if getattr(options, name) is None
    }
    return replace(options, **defaults)


def shape_of(options: LoaderOptions, min_samples: int = 0) -> DataSetShape:
    """Return the shape of options that name all readers.

    Samples are those of the options, else of the data set, else of a file, else
    `SAMPLES`; a cache by default is `CACHE_FACTOR` times what a node reads in an epoch.
    By default there are `SHARDS` shards, and no more classes than samples.

    Args:
        options: the options.
        min_samples: samples that the shape has at least, as a recorded order names
            them.

    Raises:
        InputError: the options contradict each other, or the shape is too large or too
            small.
    """
    if options.shards is not None and options.samples_per_shard is not None:
        rule = "cannot be combined with --samples-per-shard"
        remedy = "Leave one out."
        refuse("--shards", rule, str(options.shards), remedy, COMMAND_LINE)
    samples, sample_nbytes = read_dataset(options.dataset)
    if options.samples is not None or samples is None:
        samples = options.samples or min_samples or SAMPLES
    if min_samples > samples:
        rule = (
            f"must be at least {min_samples}, as the file has sample {min_samples - 1}"
        )
        remedy = "Give the size of the data set that was recorded."
        refuse("--samples", rule, str(samples), remedy, COMMAND_LINE)
    shards = options.shards or min(SHARDS, samples)
    samples_per_shard = options.samples_per_shard or -(-samples // shards)
    shard_nbytes = sample_nbytes * min(samples_per_shard, samples)
    if options.shard_size is not None:
        shard_nbytes = nbytes_of("--shard-size", options.shard_size)
    node_nbytes = (
        shard_nbytes * samples / min(samples_per_shard, samples) / (options.nodes or 1)
    )
    cache_nbytes: int | None = round(CACHE_FACTOR * node_nbytes)
    if options.cache is not None:
        cache_text = (
            f"{options.cache} B" if options.cache.strip() == "0" else options.cache
        )
        cache_nbytes = (
            None if cache_text == "none" else round(nbytes_of("--cache", cache_text))
        )
    reader_names = ("nodes", "gpus", "workers", "batch_size", "epochs", "seed")
    values = {
        **{name: getattr(options, name) for name in reader_names},
        "samples": samples,
        "samples_per_shard": samples_per_shard,
        "shard_nbytes": round(shard_nbytes),
        "cache_nbytes": cache_nbytes,
        "classes": min(options.classes, samples),
    }
    shape, problems = validate_record(values, DataSetShape)
    if shape is None or problems:
        for index, problem in enumerate(problems):
            flag = problem.path.removesuffix("_nbytes").replace("_", "-")
            problems[index] = replace(problem, path=f"--{flag}")
        raise InputError(problems, COMMAND_LINE)
    if shape.rows > MAX_ROWS:
        rule = f"samples times epochs must be at most {MAX_ROWS}"
        remedy = "Use fewer samples, or fewer --epochs."
        problems.append(Problem("--samples", rule, str(shape.rows), remedy))
    if samples < (num_ranks := shape.readers.world_size):
        remedy = "Use more samples, or fewer --nodes or --gpus."
        rule = f"each of the {num_ranks} ranks needs a sample"
        problems.append(Problem("--samples", rule, str(samples), remedy))
    if problems:
        raise InputError(problems, COMMAND_LINE)
    return shape


def spell_order(order: Order) -> str:
    """Return an order as the command line writes it, such as 'levanter:shuffle=era'.

    Values at their default are left out.
    """
    values = order.model_dump(mode="json", exclude_defaults=True, exclude={"source"})
    kind = values.pop("kind")
    return f"{kind}:{','.join(f'{name}={value}' for name, value in values.items())}".rstrip(
        ":"
    )


def read_dataset(name: str | None) -> tuple[int | None, float]:
    """Return the samples of a data set of the catalog, and the mean stored bytes of a
    sample; None and `SAMPLE_NBYTES` without a name.

    Raises:
        InputError: there is no such data set.
    """
    if name is None:
        return None, SAMPLE_NBYTES
    try:
        entry = catalog_entry("datasets", name)
    except InputError as error:
        raise InputError(
            [problem.below("--dataset") for problem in error.problems], COMMAND_LINE
        ) from None
    dataset = Dataset.model_validate(entry)
    return dataset.num_samples, dataset.stored.mean


def fill_from_scenario(options: LoaderOptions) -> LoaderOptions:
    """Return the options with a scenario's values where they leave them out, without
    the scenario and what is set in it.

    The values are nodes, ranks of a node, workers, batch, samples, and samples and
    bytes of a shard. Under a loader's shuffle they are the order and its cache, too.
    Without a scenario the options are returned as they are.

    Raises:
        InputError: the scenario is not valid or its ranks do not fill all hosts, or
            values are set and no scenario is named.
    """
    if options.scenario is None:
        if options.set:
            rule = "needs a scenario"
            remedy = "Name one: simshuffle study loader SCENARIO."
            refuse("--set", rule, ", ".join(options.set), remedy, COMMAND_LINE)
        return options
    scenario = choose_reading_run(scenario_of(options.scenario, options.set))
    workload = scenario.workload
    strategy = workload.exchange
    dataset = workload.dataset
    ranks = scenario.cluster.ranks_per_host(scenario.world_size)
    if ranks * scenario.hosts != scenario.world_size:
        rule = f"must be a multiple of {ranks}, to fill all hosts"
        remedy = "Set another world size with --set world_size=."
        refuse("world_size", rule, str(scenario.world_size), remedy, scenario.name)
    scenario_values: dict[str, Any] = {
        "nodes": scenario.hosts,
        "gpus": ranks,
        "workers": workload.loader.workers,
        "batch_size": workload.local_batch_size,
    }
    if options.dataset is None and options.samples is None:
        scenario_values["samples"] = dataset.num_samples
    samples_per_shard = (
        dataset.samples_per_file if dataset.samples_per_file > 1 else None
    )
    if isinstance(strategy, LoaderShuffle):
        samples_per_shard = strategy.samples_per_shard or samples_per_shard
        limit = strategy.cache_limit
        scenario_values["cache"] = "none" if limit is None else f"{limit:.0f} B"
        options = replace(
            options, order=options.order or (spell_order(strategy.order),)
        )
    if options.shards is None and samples_per_shard is not None:
        scenario_values["samples_per_shard"] = samples_per_shard
    if options.shard_size is None and options.dataset is None:
        shards = options.shards or SHARDS
        samples_per_shard = (
            options.samples_per_shard
            or samples_per_shard
            or -(-dataset.num_samples // shards)
        )
        scenario_values["shard_size"] = (
            f"{round(samples_per_shard * dataset.stored.mean)} B"
        )
    return fill_options(replace(options, scenario=None, set={}), **scenario_values)


def choose_reading_run(scenario: Scenario) -> Scenario:
    """Return the run of a scenario that says who reads, without following its
    exchanges.

    It is the first one, as runs differ only in the exchange; where a run has a loader's
    order, there must be a single run.

    Raises:
        ScenarioError: another key is swept, or a loader's order is one of several
            exchanges.
    """
    runs = [*runs_followed(scenario, VERB, (EXCHANGE,)).values()]
    ordered = any(
        isinstance(single.workload.exchange, LoaderShuffle) for single in runs
    )
    return single_run(scenario, VERB) if ordered else runs[0]
