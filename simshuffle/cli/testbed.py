"""The verb that measures a network of namespaces on this machine: testbed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import progress_bars, say
from simshuffle.cli.verb import To, check_format, print_parts

app = typer.Typer()


@app.command()
def testbed(
    pattern: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A pattern; may be given several times. Default: all."),
    ] = None,
    leaves: Annotated[int, typer.Option(help="Leaf switches.")] = 2,
    hosts_per_leaf: Annotated[
        int, typer.Option(help="Hosts below each; at most 16 hosts in all.")
    ] = 4,
    spines: Annotated[
        int,
        typer.Option(
            help=(
                "Switches above, with a link to each leaf; fewer than hosts below a leaf taper the"
                " tree."
            )
        ),
    ] = 2,
    rate: Annotated[
        str,
        typer.Option(
            metavar="RATE", help="Rate of every link, headers included; at most 200 Mbit/s."
        ),
    ] = "40 Mbit/s",
    nbytes: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Bytes that a host sends. Default: 6 MB, or 1.5 MB with --quick."
        ),
    ] = None,
    repetitions: Annotated[
        int | None, typer.Option(help="Runs of each pattern. Default: 5, or 2 with --quick.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the random pairs and permutations.")] = 1,
    limit: Annotated[
        str, typer.Option(metavar="TIME", help="Stop everything after this time; at most 3600 s.")
    ] = "900 s",
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Few patterns, few bytes, two runs: seconds instead of minutes."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Result folder; the default is results/testbed-DATE-TIME.")
    ] = None,
    keep_as: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="CSV file for the summary, as in validation/testbed/."),
    ] = None,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the tables as JSON on standard output, and nothing else."
        ),
    ] = False,
    to: To = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace what is in the result folder.")
    ] = False,
) -> None:
    """Measure exchange patterns on a network of namespaces on this machine, and simulate the same;
    needs root."""
    from simshuffle.network.replay.files import check_target
    from simshuffle.results.folders import check_place
    from simshuffle.spec.units import Dimension
    from simshuffle.studies.testbed import folder, settings, text
    from simshuffle.studies.testbed.bed import Shape

    check_format(json, to)
    patterns, left_out = settings.chosen(pattern or [], quick=quick)
    wanted = settings.Settings(
        Shape(
            leaves, hosts_per_leaf, spines, settings.quantity("--rate", rate, Dimension.BANDWIDTH)
        ),
        int(
            settings.quantity(
                "--nbytes", nbytes or ("1.5 MB" if quick else "6 MB"), Dimension.NBYTES
            )
        ),
        (2 if quick else 5) if repetitions is None else repetitions,
        seed,
        patterns,
        left_out,
        settings.quantity("--limit", limit, Dimension.SECONDS),
    )
    bed = settings.check(wanted)
    place = (
        out if out is not None else Path("results") / f"testbed-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    )
    check_place(place, replace=force)  # before a long measurement, not after it
    if keep_as is not None:
        check_target(keep_as)
    with progress_bars() as progress:
        result = folder.measurement(bed, wanted, progress)
    result.save(place, replace=force)
    if keep_as is not None:
        result.keep(keep_as)
    if json:
        typer.echo(result.as_json())
        return
    print_parts(text.parts(result), to, width=110)
    if to is None:
        typer.echo(f"Tables: {place}\nFigure: {place / 'testbed.png'}, and as .pdf")
    if keep_as is not None:
        say(f"Summary: {keep_as}")
