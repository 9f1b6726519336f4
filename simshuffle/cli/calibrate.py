"""The verb calibrate: parameters of a scenario from measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import say
from simshuffle.cli.verb import To, check_format, print_parts

app = typer.Typer()


@app.command()
def calibrate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Output of nccl-tests, OSU, IOR or mdtest, or an epoch log (CSV).",
        ),
    ],
    kind: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="KIND",
            help="Kind of the files: nccl-tests, nccl-json, osu, ior, mdtest or epochs.",
        ),
    ] = None,
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
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[LOGGED=]ENTRY",
            help="Epoch log: the catalog's entry for a model; may be given several times.",
        ),
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(metavar="NAME", help="Epoch log: key of the step times.")
    ] = None,
    gpus_per_host: Annotated[
        int, typer.Option(min=1, help="Epoch log without a column hosts: GPUs of a host.")
    ] = 4,
    ranks: Annotated[
        int | None,
        typer.Option(min=2, help="Ranks, where a file does not say it (OSU collectives)."),
    ] = None,
    hosts: Annotated[
        int | None, typer.Option(min=1, help="Hosts, where a file does not say it.")
    ] = None,
    storage: Annotated[
        str, typer.Option(metavar="WHICH", help="What IOR and mdtest measured: pfs or ssd.")
    ] = "pfs",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder; the default is results/calibration-NAME-FINGERPRINT."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is in the folder.")] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the parameters as JSON on standard output, and nothing else."
        ),
    ] = False,
    to: To = None,
) -> None:
    """Fit latencies, bandwidths, rates, compute times and jitter to FILE..., as a fragment that a
    scenario includes."""
    from simshuffle.results.folders import check_place
    from simshuffle.studies.calibrate import calibrate as fit
    from simshuffle.studies.calibrate.result import holds
    from simshuffle.studies.calibrate.text import parts

    check_format(json, to)
    result = fit(
        files,
        kind=kind,
        fit_up_to=fit_up_to,
        epochs=epochs,
        models=model or (),
        accelerator=accelerator,
        gpus_per_host=gpus_per_host,
        ranks=ranks,
        hosts=hosts,
        store=storage,
    )
    folder = (
        out
        if out is not None
        else Path("results") / f"calibration-{files[0].stem}-{result.fingerprint}"
    )
    if not force and holds(folder, result.fingerprint):
        say(f"{folder} already holds this calibration; nothing was written.")
    else:
        check_place(folder, replace=force)
        result.save(folder, replace=force)
    if json:
        typer.echo(result.to_json())
        return
    print_parts(parts(result), to)
    if to is not None:
        return
    for name in result.fragments():
        typer.echo(f"Include in a scenario: {folder / name}")
    typer.echo(
        f"Residuals: {folder / 'residuals.csv'}\nFigure: {folder / 'residuals.png'} and"
        f" {folder / 'residuals.pdf'}"
    )
