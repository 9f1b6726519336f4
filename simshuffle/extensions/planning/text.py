"""What a plan says, from its tables and ``meta.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.extensions.planning.prices import CLOSE_AT_ONCE
from simshuffle.extensions.planning.tables import STRATEGIES, chosen
from simshuffle.spec.units import Dimension, readable
from simshuffle.study.study import Result

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[Any, Any]
MOST_NAMED = 3  # of several things, those that a sentence names
CLOSE = 0.01  # share of a cost that is no difference
NOTABLE = 0.02  # share of an epoch from which on it is said
COLUMNS = (
    *("strategy", "kept_nbytes", "epoch_s", "io_share", "exchange_share"),
    *("files_per_s", "bytes_per_s", "period_s", "goodput", "spares", "hours", "cost"),
)
NOTHING = "nothing fits the hosts and the budget"
NOT_SIMULATED = "not simulated"
LOST = (
    "Accuracy is not counted. What local shuffle loses grows as ranks hold fewer samples: nothing"
    " with 256 a rank, 1.1 ± 0.4 points with 64, 7.8 ± 0.7 with 16, of a small network with batch"
    " norm (docs/training.md). Here a rank has {}. With --target-accuracy the epochs to a target"
    " count."
)


def verdict(result: Result) -> Iterator[str]:
    """What to do, because of what, what would change it, and what that rests on."""
    table, asked = result.tables["strategies"], result.meta["asked"]
    row = chosen(table)
    if row is None:
        yield from _nothing(table, asked)
    else:
        yield _do(row, result.meta)
        yield _because(row, table)
        yield _change(result.tables["turns"], result.meta["plan"].get("doubtful", []))
    yield from filter(None, [result.meta["plan"].get("not_steady")])
    prices = ", ".join(f"{name}={each:g}" for name, each in asked["prices"].items())
    learned = "the accuracy that was given" if asked["learned"] else "no accuracy"
    yield (
        f"Rests on simulated epochs, each with its command in the tables, on {learned}, on the"
        f" prices {prices}."
    )


def _do(row: Row, meta: Mapping[str, Any]) -> str:
    asked, plan = meta["asked"], meta["plan"]
    to = "" if asked["target"] is None else f" to an accuracy of {asked['target']:.3g}"
    within = "" if asked["budget"] is None else f", within the budget of {asked['budget']:,.6g}"
    lasting = f"{row['epochs']:.0f} epochs of {row['epoch_s']:,.3g} s{to}"
    return (
        f"Train with {row['strategy']}: {row['hours']:,.3g} h on {plan['hosts']:,} hosts,"
        f" {_cost(row['cost'], asked)}{within} ({lasting})."
    )


def _last_digit(value: float, digits: int) -> float:
    """Return what one unit in the last of so many digits is worth."""
    return 10.0 ** (math.floor(math.log10(value)) + 1 - digits)


def _rounded_up(value: float, digits: int) -> float:
    """Return ``value`` with so many digits, and no less than it is: a budget of it is enough."""
    if value <= 0:
        return value
    unit = _last_digit(value, digits)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.{digits}g}")


def _rounded_down(value: float, digits: int) -> float:
    """Return ``value`` with so many digits, and no more than it is."""
    rounded = float(f"{value:.{digits}g}")
    unit = _last_digit(value, digits) if value > 0 else 0.0
    return float(f"{rounded - unit:.{digits}g}") if rounded > value else rounded


def _cost(cost: float, asked: Row) -> str:
    priced = asked["prices"] != {"host-hour": 1.0}
    return f"a cost of {cost:,.4g}" if priced else f"{cost:,.4g} host-hours"


def _because(row: Row, table: pd.DataFrame) -> str:
    """Of which others it is the cheapest, and which cannot be had."""
    others = table[~table["chosen"] & table["cost"].notna()].sort_values("cost", kind="stable")
    said: list[str] = []
    for other in others.iloc[[0, -1][: len(others)]].to_dict("records"):
        more = other["cost"] / row["cost"] - 1.0 if row["cost"] else 0.0
        if abs(more) < CLOSE and not said:
            said.append(f"{other['strategy']} costs as much to 1 %{_mixes(other, row)}")
        else:
            said.append(f"{other['strategy']} costs {_more(more)}{_why(other, row)}")
    said += _left_out(table)
    return f"Because {'; '.join(said)}." if said else "Because nothing else was considered."


def _mixes(other: Row, row: Row) -> str:
    """Why another one that is as cheap is not chosen."""

    def mixing(of: Row) -> float:
        return 2.0 if pd.isna(of["exchange_fraction"]) else float(of["exchange_fraction"])

    return " and mixes samples less" if mixing(other) < mixing(row) else ""


def _more(more: float) -> str:
    if abs(more) < CLOSE:
        return "as much to 1 %"
    if more < 0:
        return f"{-100 * more:.2g} % less, within the time tolerance"
    return f"{more:.2g} times more" if more >= 1.0 else f"{100 * more:.2g} % more"


def _why(other: Row, row: Row) -> str:
    """What makes the difference to the row that is chosen."""
    found = []
    if other["epochs"] != row["epochs"]:
        found.append(f"it needs {other['epochs']:.0f} epochs")
    for name, what in (("io_share", "I/O"), ("exchange_share", "the exchange")):
        if other[name] > row[name] + NOTABLE:
            found.append(f"{what} takes {100 * other[name]:.2g} % of its epoch")
    if other["storage_cost"] > row["storage_cost"]:
        found.append(f"its storage costs {other['storage_cost']:,.3g}")
    return f" ({', '.join(found)})" if found else ""


def _left_out(table: pd.DataFrame) -> list[str]:
    """Strategies without room, and those that do not reach the target."""
    said = []
    if len(tight := table[~table["fits"]]):
        least = tight.sort_values("kept_nbytes").iloc[0].to_dict()
        kept, room = (
            readable(least[name], Dimension.NBYTES, 3)
            for name in ("kept_nbytes", "capacity_nbytes")
        )
        names = _named(tight["strategy"].tolist())
        which = "" if len(tight) == 1 else f" {least['strategy']}"
        verb = "does" if len(tight) == 1 else "do"
        said.append(f"{names} {verb} not fit:{which} keeps {kept} a host, which has {room}")
    if len(short := table[table["fits"] & (table["why"] == "") & table["cost"].isna()]):
        names = _named(short["strategy"].tolist())
        said.append(f"{names} {'does' if len(short) == 1 else 'do'} not reach the target")
    return said


def _named(names: list[str]) -> str:
    shown = names if len(names) <= MOST_NAMED + 1 else names[:MOST_NAMED]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _change(turns: pd.DataFrame, doubtful: Sequence[Row]) -> str:
    """Return the nearest turning points; those that were not simulated are said as such."""
    if len(turns):
        nearest = turns.assign(far=turns["factor"].map(_far)).sort_values("far", kind="stable")
        rows = nearest.to_dict("records")[:MOST_NAMED]
        return (
            f"Another one is the cheapest with {', or '.join(map(_turning_point, rows))}; runs just"
            " before and behind show it."
        )
    if doubtful:
        return "No turning point is confirmed by simulation."
    return (
        "By closed forms no SSD, open rate, bandwidth, step time or NIC between a 32nd and 32 times"
        " of what it is makes another one the cheapest."
    )


def _turning_point(row: Row) -> str:
    side = "above" if row["factor"] > 1 else "below"
    return f"{row['input']} {side} {row['shown']} ({row['after'] or NOTHING})"


def _doubts(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield what closed forms say and no simulation confirms, and what was not simulated."""
    doubtful = plan.get("doubtful", [])
    for row in doubtful:
        if row["why"] != NOT_SIMULATED:
            yield (
                f"No turning point: closed forms see one with {_turning_point(row)}; {row['why']}."
            )
    unknown = [_turning_point(row) for row in doubtful if row["why"] == NOT_SIMULATED]
    lacking = [f"whether another one is the cheapest with {', or '.join(unknown)}"] * bool(unknown)
    lacking += plan.get("not_searched", [])
    if lacking:
        unsaid = "; ".join(lacking)
        yield f"Not simulated, as it takes more than a minute (--exact does): {unsaid}."
    if coarse := plan.get("coarse", {}):
        share = max(coarse.values())
        yield f"Known to {100 * share:g} % (--exact: to the time tolerance): {_named([*coarse])}."


def _far(factor: float) -> float:
    return max(factor, 1.0 / factor)


def _nothing(table: pd.DataFrame, asked: Row) -> Iterator[str]:
    """Why there is nothing to do."""
    known = table[table["cost"].notna()].sort_values("cost", kind="stable")
    if len(known):
        least = known.iloc[0].to_dict()
        enough = _rounded_up(least["cost"], 4)
        yield (
            f"Nothing meets the budget of {asked['budget']:,.6g}: the least that would do is"
            f" {_cost(enough, asked)}, of {least['strategy']}."
        )
        return
    said = "; ".join(_left_out(table))
    yield f"Nothing that fits the hosts reaches an accuracy of {asked['target']:.3g}: {said}."


def notes(result: Result) -> Iterator[str]:
    """What was found beside the costs, a sentence each."""
    asked, plan = result.meta["asked"], result.meta["plan"]
    table = result.tables["strategies"]
    if (limit := plan["hidden"]) is not None:
        ends = f"; {limit['bottleneck']} ends it" if limit["bottleneck"] else ""
        fraction = _rounded_down(limit["exchange_fraction"], 3)
        yield (
            f"Largest Q that adds no more than 1 % to an epoch: {fraction:.3g}"
            f" ({limit['samples']:,} samples of each rank){ends}."
        )
    if plan["largest_fraction"] < 1.0:
        room = plan["largest_fraction"]
        what = f"Q up to {_rounded_down(room, 3):.3g} fits" if room >= 0 else "No shard fits"
        yield f"{what} what a host has room for ({plan['tier']})."
    for row in table[table["strategy"].isin(plan["io"])].to_dict("records"):
        most = f"{100 * asked['io_share']:g} % of an epoch"
        if pd.isna(row["files_per_s"]):
            io = plan["io"][row["strategy"]]["io"]
            yield (
                f"No file system keeps I/O of {row['strategy']} within {most}: of one that never"
                f" binds it takes {100 * io:.2g} %."
            )
        else:
            files, nbytes = plan["io"][row["strategy"]]["alone"]
            known = (
                ""
                if asked.get("exact", True)
                else f" (known to {100 * (CLOSE_AT_ONCE - 1.0):.0f} %)"
            )
            yield (
                f"{row['strategy']} keeps I/O within {most} from {_rate(row['files_per_s'])}"
                f" files/s and {_rate(row['bytes_per_s'] / 1e9)} GB/s on, both at once{known}; from"
                f" {_rate(files)} files/s where bandwidth never binds, and from"
                f" {_rate(nbytes / 1e9)} GB/s where opening files never does."
            )
    yield from _months(table, plan)
    yield from _doubts(plan)
    if not asked["learned"]:
        yield LOST.format(f"{plan['samples_of_rank']:,.0f}")


def _months(table: pd.DataFrame, plan: Mapping[str, Any]) -> Iterator[str]:
    """How often to save, and spare hosts."""
    row = chosen(table)
    if plan["lacking"]:
        yield f"With {' and '.join(plan['lacking'])} it says how often to save, and spare hosts."
    elif row is not None:
        waits = f"{100 * plan['waiting'][row['strategy']]:.2g} % of the time waiting for hosts"
        spares = (
            f"all spare hosts that the machine has, still {waits}"
            if pd.isna(row["spares"])
            else f"{row['spares']:.0f} spare hosts, {waits}"
        )
        yield (
            f"{row['strategy']} saves every {row['period_s']:,.3g} s (Daly), with {spares}:"
            f" {100 * row['goodput']:.3g} % of the time is useful."
        )


def _rate(value: float) -> str:
    """Return a rate that is enough, with three digits."""
    return f"{_rounded_up(value, 3):,g}"


def parts(result: Result) -> Iterator[str | Table]:
    """What a terminal shows below the verdict."""
    meta = result.meta
    title = (
        f"What to do with {meta['plan']['scenario']}: {meta['plan']['ranks']:,} ranks on"
        f" {meta['plan']['hosts']:,} hosts"
    )
    table = result.tables["strategies"].sort_values("cost", kind="stable", na_position="last")
    shown = [name for name in COLUMNS if table[name].notna().any()]
    yield STRATEGIES.listing(table, title, shown)
    yield from notes(result)
