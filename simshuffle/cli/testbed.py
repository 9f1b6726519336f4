"""The verb that measures a network of namespaces on this machine: testbed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simshuffle.cli.common import say, share_progress
from simshuffle.cli.help import command
from simshuffle.cli.verb import AsJson, Force, To, check_format, show

if TYPE_CHECKING:
    from simshuffle.studies.testbed.settings import Settings
    from simshuffle.study.study import Result

app = typer.Typer()

Pattern = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="A pattern; may be given several times. Default: all."),
]
PerLeaf = Annotated[
    int, typer.Option(metavar="N", help="Hosts below each; at most 16 hosts in all.")
]
Spines = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="Switches above, with a link to each leaf; fewer than hosts below a leaf taper the"
        " tree.",
    ),
]
Rate = Annotated[
    str,
    typer.Option(metavar="RATE", help="Rate of every link, headers included; at most 200 Mbit/s."),
]
Size = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help="Bytes that a host sends. Default: 6 MB, or 1.5 MB with --quick."
    ),
]
Repetitions = Annotated[
    int | None,
    typer.Option(metavar="N", help="Runs of each pattern. Default: 5, or 2 with --quick."),
]
Limit = Annotated[
    str, typer.Option(metavar="TIME", help="Stop everything after this time; at most 3600 s.")
]
Quick = Annotated[
    bool,
    typer.Option("--quick", help="Few patterns, few bytes, two runs: seconds instead of minutes."),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Result folder; the default is results/testbed-DATE-TIME."),
]
Kept = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="CSV file for the summary, as in validation/testbed/."),
]


@command(
    app,
    "Believe",
    "sudo simshuffle testbed --quick",
    "sudo simshuffle testbed --leaves 4 --spines 2 --out bed",
)
def testbed(
    pattern: Pattern = None,
    leaves: Annotated[int, typer.Option(metavar="N", help="Leaf switches.")] = 2,
    hosts_per_leaf: PerLeaf = 4,
    spines: Spines = 2,
    rate: Rate = "40 Mbit/s",
    nbytes: Size = None,
    repetitions: Repetitions = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the random pairs and permutations.")
    ] = 1,
    limit: Limit = "900 s",
    quick: Quick = False,
    out: Out = None,
    keep_as: Kept = None,
    json: AsJson = False,
    to: To = None,
    force: Force = False,
) -> None:
    """Measure exchange patterns on a network of namespaces on this machine, and simulate the same;
    needs root."""
    from simshuffle.network.whole_file import check_target, whole_file
    from simshuffle.spec.units import Dimension
    from simshuffle.studies.testbed.bed import Shape
    from simshuffle.studies.testbed.settings import Settings, check, chosen, quantity

    check_format(json, to)
    patterns, left_out = chosen(pattern or [], quick=quick)
    wanted = Settings(
        Shape(leaves, hosts_per_leaf, spines, quantity("--rate", rate, Dimension.BANDWIDTH)),
        int(quantity("--nbytes", nbytes or ("1.5 MB" if quick else "6 MB"), Dimension.NBYTES)),
        (2 if quick else 5) if repetitions is None else repetitions,
        seed,
        patterns,
        left_out,
        quantity("--limit", limit, Dimension.SECONDS),
    )
    check(wanted)
    if keep_as is not None:
        check_target(keep_as, option="--keep-as")
    place = out or Path("results") / f"testbed-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    result = _measured(wanted, place, force)
    if keep_as is not None:
        with whole_file(keep_as) as file:
            result.derived["summary"].to_csv(file, index=False)
    show(result, place, json=json, to=to)
    if keep_as is not None and not json and not to:
        say(f"Summary: {keep_as}")


def _measured(wanted: Settings, place: Path, force: bool) -> Result:
    """Measure, compare, and write the folder ``place``."""
    from simshuffle.results.folders import check_place
    from simshuffle.studies.testbed.measure import measure_all
    from simshuffle.studies.testbed.study import STUDY, request
    from simshuffle.study import engine

    # before a long measurement, not after it
    check_place(place, replace=force, known=STUDY.names)
    with engine.alone(place):
        with share_progress("measurement") as progress:
            measured = measure_all(wanted, progress)
        result = engine.run(STUDY, request(measured))
        result.save(place, replace=force)
    return result
