"""The verb calibrate: parameters of a scenario from measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.help import command
from simshuffle.cli.verb import Force, Options, Out, To, make, show

app = typer.Typer()

Files = Annotated[
    list[Path],
    typer.Argument(
        metavar="FILE", help="Output of nccl-tests, OSU, IOR or mdtest, or an epoch log (CSV)."
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="KIND",
        help="Kind of the files: nccl-tests, nccl-json, osu, ior, mdtest or epochs.",
    ),
]
Model = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[LOGGED=]ENTRY",
        help="Epoch log: the catalog's entry for a model; may be given several times.",
    ),
]
Parameters = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the parameters as JSON on standard output, and nothing else."
    ),
]


@command(
    app,
    "Describe",
    "simshuffle calibrate nccl.txt --out nccl",
    "simshuffle calibrate osu-alltoall.txt --ranks 8 --hosts 8 --to latex",
)
def calibrate(
    files: Files,
    kind: Kind = None,
    fit_up_to: Annotated[
        int | None,
        typer.Option(
            "--fit-up-to",
            min=1,
            metavar="RANKS",
            help="Fit what has at most so many ranks; predict the rest.",
        ),
    ] = None,
    epochs: Annotated[
        str, typer.Option(metavar="WHICH", help="Epoch log: steady (from the second on) or all.")
    ] = "steady",
    model: Model = None,
    accelerator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Epoch log: key of the step times.")
    ] = None,
    gpus_per_host: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Epoch log without a column hosts: GPUs of a host."),
    ] = 4,
    ranks: Annotated[
        int | None,
        typer.Option(
            min=2, metavar="N", help="Ranks, where a file does not say it (OSU collectives)."
        ),
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Hosts, where a file does not say it.")
    ] = None,
    storage: Annotated[
        str, typer.Option(metavar="WHICH", help="What IOR and mdtest measured: pfs or ssd.")
    ] = "pfs",
    out: Out = None,
    force: Force = False,
    json: Parameters = False,
    to: To = None,
) -> None:
    """Fit latencies, bandwidths, rates, compute times and jitter to FILE..., as a fragment that a
    scenario includes."""
    from simshuffle.studies.calibrate.cell import Settings
    from simshuffle.studies.calibrate.study import STUDY, request
    from simshuffle.studies.calibrate.text import FRAGMENT, MODELS

    settings = Settings(
        kind, fit_up_to, epochs, model or (), accelerator, gpus_per_host, ranks, hosts, storage
    )
    options = Options(out, json, force, noun="calibration", done="fitted", to=to)
    result, folder = make(STUDY, request(files, settings), options)
    show(result, folder, json=json, to=to)
    fragments = [FRAGMENT, *(f"{MODELS}/{name}" for name in result.files_in[MODELS])]
    for name in [] if json or to else fragments:
        typer.echo(f"Include in a scenario: {folder / name}")
