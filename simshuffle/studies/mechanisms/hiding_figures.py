"""The figure, from tables alone."""

from __future__ import annotations

from typing import Any

from simshuffle.results.chart import Axis, Chart, Look, Mark, Panel, percent, rule, ticks
from simshuffle.studies.mechanisms.tables import NAMES
from simshuffle.study.study import Tables

LOOKS = {
    way: Look(NAMES[way], colour, marker, size=3.5)
    for way, colour, marker in (
        ("authors", "#EE6677", "o"),
        ("pair", "#4477AA", "s"),
        ("encoded", "#228833", "^"),
        ("wire", "#000000", "D"),
        ("own", "#AA3377", "v"),
    )
}
NONE = {
    f"{way}, none": Look("", of.colour, of.marker, size=3.5, fill="none")
    for way, of in LOOKS.items()
}
STRIP = Look(colour="#EEEEEE")


def hiding_chart(tables: Tables) -> Chart:
    """The largest hidden exchange fraction against the world size, both logarithmic, a line for
    each way of carrying the exchange out; where nothing is hidden, hollow in a strip of its own
    below. Above, the iterations of an epoch."""
    limits = tables["limits"]
    rows = limits.rename(columns={"world_size": "x", "exchange_fraction": "y", "way": "look"})
    rows["tip"] = rows["look"].map(NAMES) + rows["x"].map(", {} ranks: ".format)
    rows["tip"] += rows["y"].map(percent)
    some = rows["y"] > 0
    floor = (float(rows.loc[some, "y"].min()) if some.any() else 0.01) / 2
    none = rows[rows["y"] == 0]
    none = none.assign(y=floor, look=none["look"] + ", none")
    # a line does not go on through a size at which nothing is hidden
    lines = rows.assign(y=rows["y"].where(some))
    marks = [Mark("line", lines), Mark("point", none)]
    upwards = _upwards(floor)
    if len(none):
        marks.insert(0, rule(STRIP, y=floor * 0.8, y2=floor * 1.25))
        upwards = {floor: "none", **upwards}
    once = limits.drop_duplicates("world_size").sort_values("world_size")
    sizes = once["world_size"].tolist()
    above = dict(zip(map(float, sizes), once["iterations"].map(str), strict=True))
    ends: Any = {"low": sizes[0] / 1.2, "high": sizes[-1] * 1.2}
    return Chart(
        [
            Panel(
                marks,
                Axis("ranks M", True, **ends, ticks=ticks(sizes)),
                Axis("largest hidden Q", True, floor * 0.8, 1.4, upwards),
                top=Axis("iterations of an epoch", True, **ends, ticks=above),
            )
        ],
        2.4,
        {**LOOKS, **NONE},
        "The largest exchanged fraction Q that is hidden behind other work, by ranks.",
    )


def _upwards(floor: float) -> dict[float, str]:
    """Ticks; a number beside the strip of those that hide nothing would be taken for theirs."""
    steps = (1, 2, 5) if floor > 0.02 else (1,)
    values = [step * 10.0**power for power in range(-6, 1) for step in steps]
    return ticks([value for value in values if 1.6 * floor < value <= 1.0], percent)
