"""Load of links by tier."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from simshuffle.figures.kinds import Given, Kind
from simshuffle.studies.congestion.figures import heat_figure, largest, upwards
from simshuffle.studies.congestion.tables import VARIANT


def draw(given: Sequence[Given]) -> Figure:
    """The heat map of the largest world size."""
    return heat_figure(given[0].result.tables)


def table(given: Sequence[Given]) -> pd.DataFrame:
    """Mean and busiest utilisation of each tier and pattern, means over seeds."""
    tables = given[0].result.tables
    tiers = largest(tables, tables["tiers"])
    keys = ["routing", *VARIANT, "tier"]
    columns = ["links", "mean_utilisation", "max_utilisation"]
    rows = tiers.groupby(keys, sort=False, observed=True)[columns].mean().reset_index()
    rows = rows.astype({"links": int, "tier": str, "barrier": bool})
    place = {tier: number for number, tier in enumerate(upwards(list(rows["tier"].unique())))}
    by = rows.assign(place=rows["tier"].map(place)).groupby(keys[:-1], sort=False)
    ordered: pd.DataFrame = pd.concat([of.sort_values("place") for _, of in by], ignore_index=True)
    del ordered["place"]
    return ordered


KIND = Kind(("congestion",), draw, table)
