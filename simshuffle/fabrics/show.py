"""What ``simshuffle topology show`` prints of a network."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem
from simshuffle.fabrics.patterns import host_ports
from simshuffle.fabrics.survey import Survey
from simshuffle.routing.router import Router
from simshuffle.spec.units import Dimension, readable


def facts(survey: Survey) -> dict[str, str]:
    """What a network is made of, and how far apart and how well linked its hosts are; by name, for
    people."""
    nodes, cabling = survey.nodes, survey.fabric.cabling
    switches = {tier: n for tier, n in nodes.items() if tier in _switch_tiers(survey)}
    least, mean, most = survey.shortest_ways
    bandwidth = readable(survey.bisection, Dimension.BANDWIDTH)
    out = {
        "hosts": str(len(cabling.of_kind("host"))),
        "adapters": f"{survey.adapters} attached to switches",
        "switches": f"{sum(switches.values())}: "
        + ", ".join(f"{n} {tier}" for tier, n in switches.items()),
        "cables": "; ".join(_cables(each) for each in survey.cables),
        "longest way": f"{survey.diameter} links; mean {survey.mean_distance:.2f}",
        "bisection": f"{bandwidth} each way, between the first half of the hosts and the second",
        "shortest ways": f"{least} to {most} between two leaf switches, mean {mean:.3g}",
    }
    others = len(cabling.of_kind("other"))
    return out | ({"others": f"{others} that take no part"} if others else {})


def _switch_tiers(survey: Survey) -> set[str]:
    cabling = survey.fabric.cabling
    return {cabling.tiers[node] for node in cabling.of_kind("switch").tolist()}


def _cables(cables: Any) -> str:
    rates = ", ".join(
        f"{count} of {readable(rate, Dimension.BANDWIDTH)}" for rate, count in cables.bandwidths
    )
    return f"{cables.count} {'-'.join(cables.tiers)} ({rates})"


def load_table(router: Router, loads: NDArray[np.integer]) -> pd.DataFrame:
    """Messages on the links of every tier: columns tier, links, mean, most, full_at (bytes/s at
    which every message can go at the same time, as long as the busiest link of the tier allows)."""
    links = router.links
    table = pd.DataFrame({"tier": links.tiers, "load": loads, "capacity": links.capacity})
    table = table[~table["tier"].str.contains("storage")]
    rate = table["capacity"] / table["load"].where(table["load"] > 0)
    by_tier = table.assign(rate=rate).groupby("tier", sort=False)
    return by_tier.agg(
        links=("load", "size"), mean=("load", "mean"), most=("load", "max"), full_at=("rate", "min")
    ).reset_index()


def route_rows(router: Router, source: str, target: str) -> list[tuple[str, str, str, str]]:
    """The route between two hosts, for every rail: rail, link, bytes/s, latency of the link, for
    people.

    Raises:
        InputError: one of them is no host, or both are the same.
    """
    fabric = router.fabric
    names = [fabric.cabling.names[host] for host in fabric.cabling.of_kind("host").tolist()]
    unknown = [name for name in (source, target) if name not in names]
    if unknown or source == target:
        found = ", ".join(map(repr, unknown)) or f"{source!r} twice"
        close = get_close_matches(unknown[0], names, 3) if unknown else []
        remedy = f"There are {len(names)}, such as {', '.join(close or names[:2])}."
        problem = Problem("--route", "needs the names of two hosts", found, remedy)
        raise InputError(problem, "command line")
    ports = host_ports(fabric)
    a, b = (ports[names.index(name)] for name in (source, target))
    out = []
    for rail, route in enumerate(router.routes(a, b)):
        for link in route[route >= 0].tolist():
            links = router.links
            rate = readable(float(links.capacity[link]), Dimension.BANDWIDTH)
            latency = readable(float(links.latency[link]), Dimension.SECONDS)
            out.append((str(rail), links.names[link], rate, latency))
    return out
