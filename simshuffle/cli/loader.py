"""The verb that says what loaders do: what they fetch, and how well they mix."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.help import command
from simshuffle.cli.verb import AsJson, Force, Options, Out, ProcessCount, Scheduler, To, carry_out

app = typer.Typer()

Check = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Look at this recorded order instead: CSV or Parquet with the columns epoch, rank,"
        " worker, position and sample.",
    ),
]
Orders = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KIND[:KEY=VALUE,...]",
        help="An order; may be given several times. Default: all.",
    ),
]
DataSet = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A data set of the catalog, for samples and their size."),
]
Samples = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Default: 16384, or of the data set or the file."),
]
Shards = Annotated[int | None, typer.Option(min=1, metavar="S", help="Files. Default: 64.")]
PerShard = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Samples of a file, in place of --shards.")
]
ShardSize = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Bytes of a file, such as '64 MB'. Default: of samples of 100 kB."
    ),
]
Nodes = Annotated[int | None, typer.Option(min=1, metavar="N", help="Default: 4; of a file: 1.")]
Gpus = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Ranks of a node. Default: 4; as in a file.")
]
Workers = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Workers of a rank. Default: 2; as in a file."),
]
Batch = Annotated[int, typer.Option(min=1, metavar="N", help="Samples of a rank's batch.")]
Cache = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help="What a node keeps of what it fetched: such as '10 GB'; none for no limit; 0 for no"
        " cache. Default: 1.25 times what it reads in an epoch.",
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Default: 3; as in a file.")]
Seed = Annotated[int, typer.Option(min=0, metavar="N", help="Of the orders.")]
Classes = Annotated[
    int, typer.Option(min=1, metavar="N", help="Labels, by which the samples are sorted.")
]
Unit = Annotated[
    str,
    typer.Option(metavar="UNIT", help="What a file's loader fetches: sample, block or shard."),
]
Store = Annotated[
    str,
    typer.Option(
        metavar="s3[:KEY=VALUE,...]",
        help="The object store for seconds and price: Amazon S3, with other values such as"
        " 's3:latency=50 ms,prefixes=10,price_per_gigabyte=0.09'.",
    ),
]
Block = Annotated[int, typer.Option(min=1, metavar="N", help="Samples of a block, with --unit.")]


@command(
    app,
    "Simulate",
    "simshuffle loader",
    "simshuffle loader --dataset imagenet50 --nodes 8 --cache '1 GB'",
    "simshuffle loader --check results/order.csv --nodes 2 --cache none",
)
def loader(
    check: Check = None,
    order: Orders = None,
    dataset: DataSet = None,
    samples: Samples = None,
    shards: Shards = None,
    samples_per_shard: PerShard = None,
    shard_size: ShardSize = None,
    nodes: Nodes = None,
    gpus: Gpus = None,
    workers: Workers = None,
    batch_size: Batch = 16,
    cache: Cache = None,
    epochs: Epochs = None,
    seed: Seed = 0,
    classes: Classes = 10,
    unit: Unit = "shard",
    block: Block = 1,
    store: Store = "s3",
    out: Out = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
    processes: ProcessCount = None,
    scheduler: Scheduler = None,
) -> None:
    """Count what loaders fetch and how well they mix: the orders of libraries, or one that was
    recorded of yours."""
    from simshuffle.studies.loader.asking import Asked, check_request, request
    from simshuffle.studies.loader.study import STUDY

    read = {"nodes": nodes, "gpus": gpus, "workers": workers, "epochs": epochs}
    data = {"samples": samples, "shards": shards, "samples_per_shard": samples_per_shard}
    asked = Asked(
        dataset=dataset,
        **data,
        shard_size=shard_size,
        **read,
        batch_size=batch_size,
        cache=cache,
        seed=seed,
        classes=classes,
        unit=unit,
        block=block,
        store=store,
    )
    wanted = check_request(check, order or [], asked) if check else request(order or [], asked)
    options = Options(out, json, force, processes, scheduler, "loader", done="counted", to=to)
    carry_out(STUDY, wanted, options)
