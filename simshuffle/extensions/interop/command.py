"""Verbs below ``simshuffle machine``: ``show`` and ``export`` of a network."""

from __future__ import annotations

import json as json_text
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simshuffle.cli.common import (
    OUT_FILE,
    AsJson,
    Force,
    To,
    check_paths,
    output_file,
    print_parts,
    say,
    write_files,
)
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.job.scenario.options import ROUTINGS, machine_names
from simshuffle.study.options import COMMAND_LINE, Argument, Option, words

if TYPE_CHECKING:
    from rich.table import Table

    from simshuffle.extensions.interop.fabrics.imported import ImportedFabric
    from simshuffle.fabric.routing import Fabric, RoutingRule

app = typer.Typer()

MAX_NAMED_CABLES = 10
"""Cables slower than others that are named; the rest are counted."""


NetworkName = Annotated[
    str,
    Argument(
        "NAME",
        "A machine, by its name or file; or a network's file.",
        complete=machine_names,
    ),
]
Pattern = Annotated[
    str | None,
    Option(
        "NAME",
        "Pattern of messages. Default: all_to_all; random_permutation for over 4,096 adapters.",
        complete=words(place="simshuffle.extensions.interop.fabrics.survey:PATTERNS"),
    ),
]
RoutingKind = Annotated[
    str | None,
    Option(
        "KIND",
        "Routing, such as ecmp:queue_pairs=4. Default: the machine's.",
        complete=ROUTINGS,
    ),
]


@command(
    app,
    "Describe",
    "simshuffle machine show abci --route h0000 h0700",
    "simshuffle machine show abci --pattern random_pairs --out abci.png",
)
def show(
    source: NetworkName,
    *,
    route: Annotated[
        tuple[str, str] | None, Option("HOST HOST", "Show the route between two hosts.")
    ] = None,
    pattern: Pattern = None,
    routing: RoutingKind = None,
    seed: Annotated[int, Option("N", "Seed of what is drawn at random.", low=0)] = 1,
    out: Annotated[
        Path | None, Option(OUT_FILE, "Draw the network with its loads: .png or .pdf.")
    ] = None,
    force: Annotated[bool, Option("", "Replace an existing file.")] = False,
    json: AsJson = False,
    to: To = None,
) -> None:
    """Show what the network of NAME is made of, its bisection, its routes, and the
    loads of a pattern.
    """
    import numpy as np

    from simshuffle.extensions.interop.fabrics.survey import (
        PATTERNS,
        Survey,
        check_effort,
        default_pattern,
        describe_network,
        load_table,
        pattern_loads,
        route_rows,
    )
    from simshuffle.spec.library import suggest_nearest

    if pattern is not None and pattern not in PATTERNS:
        remedy = suggest_nearest(pattern, [*PATTERNS])
        refuse("--pattern", "no such pattern", repr(pattern), remedy, COMMAND_LINE)
    if (out := output_file(out, f"{Path(source).stem}.png")) is not None:
        if out.suffix not in {".png", ".pdf"}:
            refuse(
                "--out",
                "must end in .png or .pdf",
                repr(str(out)),
                "Say a.png.",
                COMMAND_LINE,
            )
        check_paths(out, replace=force)
    fabric, rule = _read_network(source, routing)
    survey = Survey(fabric)
    pattern = pattern or default_pattern(survey)
    check_effort(survey, pattern)
    router = rule.router(fabric, seed)
    network_facts = {
        "network": source,
        **describe_network(survey),
        "routing": rule.describe(),
    }
    loads = pattern_loads(router, pattern, np.random.default_rng(seed))
    table = load_table(router, loads)
    hops = [] if route is None else route_rows(router, *route)
    if json:
        # NaN stands for the rate of links that no message of the pattern crosses
        values = {
            "facts": network_facts,
            "pattern": pattern,
            "loads": table.to_dict("records"),
        }
        typer.echo(json_text.dumps({**values, "route": hops}, indent=1))
    else:
        print_parts(_make_tables(network_facts, pattern, table, hops, route), to)
    if out is not None:
        from simshuffle.extensions.interop.fabrics.figure import (
            fabric_figure,
            save_figure,
        )

        save_figure(fabric_figure(fabric, loads, pattern.replace("_", " ")), out)
        say(f"Written: {out}")


def _read_network(source: str, routing: str | None) -> tuple[Fabric, RoutingRule]:
    """Return the network of a machine or of a network's file, and its routing.

    The routing is the named one, else that of the machine, else the usual one of the
    topology. For the network of a file, or a machine that is a part of one, the last is
    the one by the levels of switches.

    Args:
        source: name or file of a machine, or a file that holds a network.
        routing: short form of a routing, such as 'ecmp:queue_pairs=4', or None.

    Raises:
        InputError: there is no such machine or routing, or the file cannot be read.
    """
    from simshuffle.fabric.routing import (
        Fabric,
        parse_routing_rule,
        routing_by_levels,
        routing_of_network,
    )
    from simshuffle.job.scenario.scenario import machine_of

    imported = _read_fabric_file(source)
    default_rule: RoutingRule | None = None
    if imported is not None:
        fabric = Fabric(imported.sketch())
    else:
        machine = machine_of(source)
        fabric = Fabric(machine.sketch())
        default_rule = machine.routing
        if default_rule is None and not machine.is_cut:
            default_rule = routing_of_network(machine.topology, fabric)
    if routing is not None:
        return fabric, parse_routing_rule(routing)
    return fabric, default_rule or routing_by_levels(fabric)


def _read_fabric_file(source: str) -> ImportedFabric | None:
    """Return the network of a file that holds one; None for the name or file of a
    machine.

    A file whose name does not end in .yaml or .yml is taken for one with a network.

    Raises:
        InputError: the file cannot be read.
    """
    from simshuffle.extensions.interop.fabrics.reading import is_fabric, read_fabric
    from simshuffle.spec.library import is_file

    path = Path(source)
    if is_file(path) and (path.suffix not in {".yaml", ".yml"} or is_fabric(path)):
        return read_fabric(path)
    return None


def _make_tables(
    facts: dict[str, str],
    pattern: str,
    loads: Any,
    hops: list[tuple[str, str, str, str]],
    route: tuple[str, str] | None,
) -> list[Table]:
    """Return the tables that ``machine show`` prints: facts, loads, and a requested
    route.

    Args:
        facts: texts about the network, by what they say.
        pattern: name of the pattern.
        loads: `load_table` of the pattern.
        hops: rail, link, bandwidth and latency of each link of the route.
        route: names of its two hosts; None for no table of it.
    """
    from simshuffle.report.console import new_table
    from simshuffle.spec.units import Dimension, readable

    facts_table = new_table(None, ["what", "found"])
    for name, text in facts.items():
        facts_table.add_row(name, text)
    title = f"{pattern}: messages that share a link, and the bandwidth of each"
    load_table = new_table(title, ["links"], ["count", "mean", "most", "each message"])
    for row in loads.itertuples():
        rate = readable(row.full_at, Dimension.BANDWIDTH) if row.most else "-"
        load_table.add_row(
            row.tier, str(row.links), f"{row.mean:.3g}", str(row.most), rate
        )
    if route is None:
        return [facts_table, load_table]
    route_table = new_table(
        f"from {route[0]} to {route[1]}", ["rail", "link"], ["bandwidth", "latency"]
    )
    for hop in hops:
        route_table.add_row(*hop)
    return [facts_table, load_table, route_table]


@command(
    app,
    "Describe",
    "simshuffle machine export abci --to json --out abci.json",
    "simshuffle machine export mine.yaml --to ibsim --out mine.net",
)
def export(
    source: NetworkName,
    *,
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
    from simshuffle.extensions.interop.exports.export import (
        NETWORKS,
        describe_loss,
        format_of,
    )
    from simshuffle.extensions.interop.fabrics.network_fabric import fabric_of_network
    from simshuffle.job.scenario.scenario import machine_of

    kind = format_of(to)
    if to not in NETWORKS:
        remedy = f"simshuffle results export SCENARIO --to {to}."
        refuse("--to", "needs the messages of a run", repr(to), remedy, COMMAND_LINE)
    out = output_file(out, Path(source).stem + kind.suffix) or out
    check_paths(out, replace=force)
    fabric = _read_fabric_file(source) or fabric_of_network(
        machine_of(source).sketch(), source
    )
    (path,) = write_files(out.parent, {out.name: NETWORKS[to](fabric)})
    notes = [*fabric.warnings, *describe_loss(to, fabric)]
    print_fabric(replace(fabric, warnings=notes))
    typer.echo(f"Written: {path}")


def print_fabric(fabric: ImportedFabric) -> None:
    """Print on standard error what a fabric has, what was left out, and what is
    unusual; of slow cables of each kind, at most `MAX_NAMED_CABLES` and a count.
    """
    say(fabric.source)
    lines = [
        *fabric.counts().items(),
        *(("left out", text) for text in fabric.left_out),
        *(("note", text) for text in fabric.warnings),
    ]
    for is_older, cable_kind in ((False, "slow cable"), (True, "older adapter")):
        cables = [
            cable
            for cable in fabric.slow_cables
            if cable.is_of_older_adapter == is_older
        ]
        lines += [(cable_kind, str(cable)) for cable in cables[:MAX_NAMED_CABLES]]
        if len(cables) > MAX_NAMED_CABLES:
            lines.append(
                ("", f"and {len(cables) - MAX_NAMED_CABLES} other {cable_kind}s")
            )
    for name, text in lines:
        say(f"  {name:10} {text}")
    if fabric.slow_cables:
        say(
            "To see what these cables cost, import again with --mended, run both, and compare."
        )
