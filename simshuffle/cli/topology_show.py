"""The verb topology show: what a network is made of, its routes, and what a pattern puts on it."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import OUT_FILE, NetworkName, file_in, say
from simshuffle.cli.show import AsJson, To, print_parts
from simshuffle.errors import InputError, Problem
from simshuffle.studies.fields import ROUTINGS
from simshuffle.study.options import words

if TYPE_CHECKING:
    from simshuffle.fabrics.imported import ImportedFabric
    from simshuffle.routing import Fabric, RoutingRule


PatternName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What is sent. Default: all_to_all, of more than 4,096 adapters random_permutation.",
        autocompletion=words(place="simshuffle.fabrics.survey:PATTERNS"),
    ),
]
RoutingKind = Annotated[
    str | None,
    typer.Option(
        metavar="KIND",
        help="Such as ecmp:queue_pairs=4. Default: the machine's.",
        autocompletion=ROUTINGS,
    ),
]


def show(
    source: NetworkName,
    route: Annotated[
        tuple[str, str] | None, typer.Option(metavar="HOST HOST", help="Show the way between two.")
    ] = None,
    pattern: PatternName = None,
    routing: RoutingKind = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of what is drawn.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(metavar=OUT_FILE, help="Draw the network with its loads: .png or .pdf."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file there.")] = False,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Show what the network of NAME is made of, its bisection, its routes, and the loads of a
    pattern."""
    import numpy as np

    from simshuffle.fabrics.survey import (
        PATTERNS,
        Survey,
        check_effort,
        facts,
        load_table,
        pattern_loads,
        route_rows,
        usual_pattern,
    )
    from simshuffle.spec.library import nearest

    if pattern is not None and pattern not in PATTERNS:
        problem = Problem(
            "--pattern", "no such pattern", repr(pattern), nearest(pattern, [*PATTERNS])
        )
        raise InputError(problem, "command line")
    if (out := file_in(out, f"{Path(source).stem}.png")) is not None:
        _check_out(out, force=force)
    fabric, rule = network_of(source, routing)
    survey = Survey(fabric)
    pattern = pattern or usual_pattern(survey)
    check_effort(survey, pattern)
    router = rule.router(fabric, seed)
    told = {"network": source, **facts(survey), "routing": rule.describe()}
    loads = pattern_loads(router, pattern, np.random.default_rng(seed))
    table = load_table(router, loads)
    rows = [] if route is None else route_rows(router, *route)
    if json:
        shown = {"facts": told, "pattern": pattern, "loads": table.to_dict("records")}
        typer.echo(json_text.dumps({**shown, "route": rows}, indent=1))
    else:
        print_parts(_tables(told, pattern, table, rows, route), to)
    if out is not None:
        from simshuffle.cli.fabric_figure import fabric_figure, save_figure

        save_figure(fabric_figure(fabric, loads, pattern.replace("_", " ")), out)
        say(f"Written: {out}")


def network_of(source: str, routing: str | None) -> tuple[Fabric, RoutingRule]:
    """The network of a machine, or of a network's file, and its routing: one that is named in short
    form, or that of the machine, or of the topology.

    Raises:
        InputError: there is no such machine or routing.
    """
    from simshuffle.routing import Fabric, routing_by_levels, routing_named, routing_of
    from simshuffle.scenario.scenario import machine_of

    own: RoutingRule | None = None
    found = fabric_in(source)
    if found is not None:
        fabric = Fabric(found.sketch())
    else:
        machine = machine_of(source)
        fabric, own = Fabric(machine.sketch()), machine.routing
        if own is None and not machine.is_cut:
            own = routing_of(machine.topology, fabric)
    if routing is not None:
        return fabric, routing_named(routing)
    return fabric, own or routing_by_levels(fabric)


def fabric_in(source: str) -> ImportedFabric | None:
    """The network of a file that holds one; None for the name or file of a machine."""
    from simshuffle.fabrics.reading import is_fabric, read_fabric
    from simshuffle.spec.library import is_file

    path = Path(source)
    if is_file(path) and (path.suffix not in {".yaml", ".yml"} or is_fabric(path)):
        return read_fabric(path)
    return None


def _check_out(out: Path, *, force: bool) -> None:
    if out.suffix not in {".png", ".pdf"}:
        problem = Problem("--out", "must end in .png or .pdf", repr(str(out)), "Say abci.png.")
    elif not out.parent.is_dir():
        problem = Problem("--out", "needs a folder that is there", str(out.parent), "Make it.")
    elif out.exists() and not force:
        problem = Problem("--out", "is there already", str(out), "Use --force to replace it.")
    else:
        return
    raise InputError(problem, "command line")


def _tables(
    told: dict[str, str],
    pattern: str,
    loads: Any,
    rows: list[tuple[str, str, str, str]],
    route: tuple[str, str] | None,
) -> list[Any]:
    from simshuffle.results.console import new_table
    from simshuffle.spec.units import Dimension, readable

    first = new_table(None, ["what", "found"])
    for name, text in told.items():
        first.add_row(name, text)
    title = f"{pattern}: messages that share a link, and what each of them gets"
    second = new_table(title, ["links"], ["count", "mean", "most", "each message"])
    for row in loads.itertuples():
        rate = readable(row.full_at, Dimension.BANDWIDTH) if row.most else "-"
        second.add_row(row.tier, str(row.links), f"{row.mean:.3g}", str(row.most), rate)
    if route is None:
        return [first, second]
    third = new_table(f"from {route[0]} to {route[1]}", ["rail", "link"], ["bandwidth", "latency"])
    for of_route in rows:
        third.add_row(*of_route)
    return [first, second, third]
