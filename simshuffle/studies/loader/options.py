"""The options of ``simshuffle study loader``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from simshuffle.job.scenario.options import Set, scenario_names
from simshuffle.study.options import Argument, CellOptions, Option, words


def parse_number(word: str) -> int | str:
    """Return the whole number (at least 0) that a word is; other words, such as '-1',
    are returned unchanged.
    """
    return int(word) if word.isdecimal() else word


@dataclass(frozen=True, kw_only=True)
class LoaderOptions(CellOptions):
    """Count what data loaders fetch and lose, or the workers they need.

    How well the orders of libraries mix, or one that was recorded of yours; with --tune
    what workers and prefetch bring in a scenario, and the smallest setting that stalls
    nothing; with --resume-at what loaders lose, repeat and mix that are killed within
    an epoch and go on with other ranks or workers: the exit status is 1 where one that
    is named does.
    """

    scenario: Annotated[
        Any,
        Argument(
            "SCENARIO",
            "A scenario file, or a name below scenarios/. It sets samples, nodes, ranks, workers"
            " and batch where no option does.",
            complete=scenario_names,
            python="Scenario | str | Path | None",
        ),
    ] = None
    tune: Annotated[
        bool,
        Option("", "Say how many workers and how much prefetch the scenario needs."),
    ] = False
    prefetch_factor: Annotated[
        tuple[int, ...],
        Option(
            "P",
            "Batches ahead for each worker, with --tune. Default: 1, 2, 4.",
            many=True,
        ),
    ] = ()
    threads: Annotated[
        tuple[int, ...],
        Option(
            "T", "Threads of a worker, with --tune. Default: the scenario's.", many=True
        ),
    ] = ()
    resume_at: Annotated[
        int | str | None,
        Option(
            "STEP|middle",
            "Break an epoch off after this many iterations, and resume from the"
            " loaders' states.",
            read=parse_number,
            complete=words("middle"),
        ),
    ] = None
    epoch: Annotated[
        int | None,
        Option("E", "The epoch that is broken off, from 0. Default: 0.", low=0),
    ] = None
    from_: Annotated[
        str | None,
        Option(
            "NODESxGPUS",
            "Readers before the break, with --resume-at. Default: --nodes x --gpus.",
        ),
    ] = None
    to: Annotated[
        tuple[str, ...],
        Option(
            "NODESxGPUS|FORMAT",
            "Readers after the break, with --resume-at. Default: unchanged. Or a format in which"
            " standard output has the tables and nothing else: latex (booktabs) or markdown.",
            many=True,
            flag="--to --onto",
            complete=words("latex", "markdown"),
        ),
    ] = ()
    loader: Annotated[
        tuple[str, ...],
        Option(
            "KIND[:KEY=VALUE,...]",
            "A loader that has a state, with --resume-at. Default: all.",
            many=True,
            complete=words(place="simshuffle.workload.resuming:AnyResume"),
        ),
    ] = ()
    set: Set = field(default_factory=dict)
    check: Annotated[
        Path | None,
        Option(
            "FILE",
            "Look at this recorded order instead: CSV or Parquet with the columns epoch, rank,"
            " worker, position and sample.",
        ),
    ] = None
    order: Annotated[
        tuple[str, ...],
        Option(
            "KIND[:KEY=VALUE,...]",
            "An order. Default: all.",
            many=True,
            complete=words(place="simshuffle.workload.orders:AnyOrder"),
        ),
    ] = ()
    dataset: Annotated[
        str | None,
        Option(
            "NAME",
            "A data set of the catalog, for samples and their size.",
            complete=words(place="simshuffle.spec.library:dataset_names"),
        ),
    ] = None
    samples: Annotated[
        int | None,
        Option(
            "N",
            "Samples. Default: 16384, or as many as the data set or the file of"
            " --check has.",
            low=1,
        ),
    ] = None
    shards: Annotated[int | None, Option("S", "Files. Default: 64.", low=1)] = None
    samples_per_shard: Annotated[
        int | None, Option("N", "Samples of a file, in place of --shards.", low=1)
    ] = None
    shard_size: Annotated[
        str | None,
        Option("SIZE", "Bytes of a file, such as '64 MB'. Default: 100 kB a sample."),
    ] = None
    nodes: Annotated[
        int | None, Option("N", "Nodes. Default: 4; with --check: 1.", low=1)
    ] = None
    gpus: Annotated[
        int | None,
        Option(
            "N", "Ranks of a node. Default: 4; with --check: as in the file.", low=1
        ),
    ] = None
    workers: Annotated[
        int | str | None,
        Option(
            "N[:N]",
            "Workers of a rank; with --resume-at before:after. Default: 2; with --check: as in"
            " the file; with --tune: all.",
            read=parse_number,
            low=1,
        ),
    ] = None
    batch_size: Annotated[
        int | str | None,
        Option(
            "N[:N]",
            "Samples of a rank's batch; with --resume-at before:after. Default: 16.",
            read=parse_number,
            low=1,
        ),
    ] = None
    cache: Annotated[
        str | None,
        Option(
            "SIZE",
            "Cache of a node for fetched bytes, such as '10 GB'; none for no limit; 0 for no"
            " cache. Default: 1.25 times the bytes that a node reads in an epoch.",
        ),
    ] = None
    epochs: Annotated[
        int | None,
        Option("N", "Epochs. Default: 3; with --check: as in the file.", low=1),
    ] = None
    seed: Annotated[int, Option("N", "Seed of the orders.", low=0)] = 0
    classes: Annotated[
        int, Option("N", "Number of labels; samples are sorted by label.", low=1)
    ] = 10
    unit: Annotated[
        str,
        Option(
            "UNIT",
            "What the loader of --check fetches at once: sample, block or shard.",
            complete=words("sample", "block", "shard"),
        ),
    ] = "shard"
    block: Annotated[int, Option("N", "Samples of a block, with --unit.", low=1)] = 1
    store: Annotated[
        str,
        Option(
            "s3[:KEY=VALUE,...]",
            "Object store whose seconds and price are computed: Amazon S3, or with other values,"
            " such as 's3:latency=50 ms,prefixes=10,price_per_gigabyte=0.09'.",
        ),
    ] = "s3"
