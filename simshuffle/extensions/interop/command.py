"""Verbs below ``simshuffle machine``: show, what a network is made of, its routes and loads; export
to files of other tools."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import (
    OUT_FILE,
    AsJson,
    Force,
    NetworkName,
    To,
    check_place,
    file_in,
    print_parts,
    say,
    write_together,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.job.scenario.options import ROUTINGS
from simshuffle.study.options import COMMAND_LINE, Option, words

if TYPE_CHECKING:
    from rich.table import Table

    from simshuffle.extensions.interop.fabrics.imported import ImportedFabric
    from simshuffle.fabric.routing import Fabric, RoutingRule

app = typer.Typer()

SHOWN = 10
"""Cables slower than others that are named; the rest are counted."""


Pattern = Annotated[
    str | None,
    Option(
        "NAME",
        "What is sent. Default: all_to_all, of more than 4,096 adapters random_permutation.",
        complete=words(place="simshuffle.extensions.interop.fabrics.survey:PATTERNS"),
    ),
]
RoutingKind = Annotated[
    str | None,
    Option("KIND", "Such as ecmp:queue_pairs=4. Default: the machine's.", complete=ROUTINGS),
]


@command(
    app,
    "Describe",
    "simshuffle machine show abci --route h0000 h0700",
    "simshuffle machine show abci --pattern random_pairs --out abci.png",
)
def show(
    source: NetworkName,
    route: Annotated[
        tuple[str, str] | None, Option("HOST HOST", "Show the way between two.")
    ] = None,
    pattern: Pattern = None,
    routing: RoutingKind = None,
    seed: Annotated[int, Option("N", "Of what is drawn.", low=0)] = 1,
    out: Annotated[
        Path | None, Option(OUT_FILE, "Draw the network with its loads: .png or .pdf.")
    ] = None,
    force: Annotated[bool, Option("", "Replace the file there.")] = False,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Show what the network of NAME is made of, its bisection, its routes, and the loads of a
    pattern."""
    import numpy as np

    from simshuffle.extensions.interop.fabrics.survey import (
        PATTERNS,
        Survey,
        check_effort,
        facts,
        load_table,
        pattern_loads,
        route_rows,
        usual_pattern,
    )
    from simshuffle.spec.library import suggest_nearest

    if pattern is not None and pattern not in PATTERNS:
        remedy = suggest_nearest(pattern, [*PATTERNS])
        refuse("--pattern", "no such pattern", repr(pattern), remedy, COMMAND_LINE)
    if (out := file_in(out, f"{Path(source).stem}.png")) is not None:
        if out.suffix not in {".png", ".pdf"}:
            refuse("--out", "must end in .png or .pdf", repr(str(out)), "Say a.png.", COMMAND_LINE)
        check_place(out, replace=force)
    fabric, rule = _network_of(source, routing)
    survey = Survey(fabric)
    pattern = pattern or usual_pattern(survey)
    check_effort(survey, pattern)
    router = rule.router(fabric, seed)
    made_of = {"network": source, **facts(survey), "routing": rule.describe()}
    loads = pattern_loads(router, pattern, np.random.default_rng(seed))
    table = load_table(router, loads)
    rows = [] if route is None else route_rows(router, *route)
    if json:
        # NaN stands for the rate of links that no message of the pattern crosses
        values = {"facts": made_of, "pattern": pattern, "loads": table.to_dict("records")}
        typer.echo(json_text.dumps({**values, "route": rows}, indent=1))
    else:
        print_parts(_tables(made_of, pattern, table, rows, route), to)
    if out is not None:
        from simshuffle.extensions.interop.fabrics.figure import fabric_figure, save_figure

        save_figure(fabric_figure(fabric, loads, pattern.replace("_", " ")), out)
        say(f"Written: {out}")


def _network_of(source: str, routing: str | None) -> tuple[Fabric, RoutingRule]:
    """The network of a machine, or of a network's file, and its routing: one that is named in short
    form, or that of the machine, or of the topology. Raises an InputError if there is no such
    machine or routing."""
    from simshuffle.fabric.routing import (
        Fabric,
        parse_routing_rule,
        routing_by_levels,
        routing_of_network,
    )
    from simshuffle.job.scenario.scenario import machine_of

    found = _fabric_in(source)
    own: RoutingRule | None = None
    if found is not None:
        fabric = Fabric(found.sketch())
    else:
        machine = machine_of(source)
        fabric, own = Fabric(machine.sketch()), machine.routing
        if own is None and not machine.is_cut:
            own = routing_of_network(machine.topology, fabric)
    if routing is not None:
        return fabric, parse_routing_rule(routing)
    return fabric, own or routing_by_levels(fabric)


def _fabric_in(source: str) -> ImportedFabric | None:
    """The network of a file that holds one; None for the name or file of a machine."""
    from simshuffle.extensions.interop.fabrics.reading import is_fabric, read_fabric
    from simshuffle.spec.library import is_file

    path = Path(source)
    if is_file(path) and (path.suffix not in {".yaml", ".yml"} or is_fabric(path)):
        return read_fabric(path)
    return None


def _tables(
    made_of: dict[str, str],
    pattern: str,
    loads: Any,
    rows: list[tuple[str, str, str, str]],
    route: tuple[str, str] | None,
) -> list[Table]:
    from simshuffle.report.console import new_table
    from simshuffle.spec.units import Dimension, readable

    first = new_table(None, ["what", "found"])
    for name, text in made_of.items():
        first.add_row(name, text)
    title = f"{pattern}: messages that share a link, and what each of them gets"
    second = new_table(title, ["links"], ["count", "mean", "most", "each message"])
    for row in loads.itertuples():
        rate = readable(row.full_at, Dimension.BANDWIDTH) if row.most else "-"
        second.add_row(row.tier, str(row.links), f"{row.mean:.3g}", str(row.most), rate)
    if route is None:
        return [first, second]
    third = new_table(f"from {route[0]} to {route[1]}", ["rail", "link"], ["bandwidth", "latency"])
    for each in rows:
        third.add_row(*each)
    return [first, second, third]


@command(
    app,
    "Describe",
    "simshuffle machine export abci --to json --out abci.json",
    "simshuffle machine export mine.yaml --to ibsim --out mine.net",
)
def export(
    source: NetworkName,
    to: Annotated[
        str,
        Option(
            "FORMAT",
            "ibsim, infragraph, graphml, or json (node-link, for kind: custom).",
            complete=words("ibsim", "infragraph", "graphml", "json"),
        ),
    ],
    out: Annotated[Path, Option(OUT_FILE, "What to write.")],
    force: Force = False,
) -> None:
    """Write the network of NAME for another tool."""
    from simshuffle.extensions.interop.exports.export import NETWORKS, format_of
    from simshuffle.extensions.interop.fabrics.imported import of_network
    from simshuffle.job.scenario.scenario import machine_of

    kind = format_of(to)
    if to not in NETWORKS:
        remedy = f"simshuffle results export SCENARIO --to {to}."
        refuse("--to", "needs the messages of a run", repr(to), remedy, COMMAND_LINE)
    out = file_in(out, Path(source).stem + kind.suffix) or out
    check_place(out, replace=force)
    fabric = _fabric_in(source) or of_network(machine_of(source).sketch(), source)
    (path,) = write_together(out.parent, {out.name: NETWORKS[to](fabric)})
    tell(fabric)
    typer.echo(f"Written: {path}")


def tell(fabric: ImportedFabric) -> None:
    """Say on standard error what there is, what is left out, and what is unusual."""
    say(fabric.source)
    lines = [
        *fabric.counts().items(),
        *(("left out", text) for text in fabric.left_out),
        *(("note", text) for text in fabric.warnings),
    ]
    for older, called in ((False, "slow cable"), (True, "older adapter")):
        slow = [cable for cable in fabric.slow_cables if cable.is_of_older_adapter == older]
        lines += [(called, str(cable)) for cable in slow[:SHOWN]]
        if len(slow) > SHOWN:
            lines.append(("", f"and {len(slow) - SHOWN} other {called}s"))
    for name, text in lines:
        say(f"  {name:10} {text}")
    if fabric.slow_cables:
        say("What they cost an epoch: import once more with --mended, run both, and compare.")
