"""The texts of a plan, from its tables and ``meta.json``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.extensions.planning.prices import JOINT_PRECISION
from simshuffle.extensions.planning.tables import STRATEGIES, find_chosen_row
from simshuffle.spec.units import Dimension, readable
from simshuffle.study.study import Result
from simshuffle.study.verdict import Verdict, join_sentences, separate_remedy

if TYPE_CHECKING:
    from rich.table import Table

Row = Mapping[Any, Any]
MAX_NAMES = 3  # of several things, those that a sentence names
NEGLIGIBLE_COST = 0.01  # share of a cost that is no difference
NOTABLE_SHARE = 0.02  # share of an epoch from which on it is said
COLUMNS = (
    *("strategy", "kept_nbytes", "epoch_s", "io_share", "exchange_share"),
    *("files_per_s", "bytes_per_s", "period_s", "goodput", "spares", "hours", "cost"),
)
NO_STRATEGY = "no strategy fits the hosts and the budget"
NOT_SIMULATED = "not simulated"
ACCURACY_NOTE = (
    "Accuracy is not counted. Local shuffle loses more accuracy as ranks hold fewer samples: a"
    " small"
    " network with batch norm lost nothing with 256 samples a rank, 1.1 ± 0.4 points with 64, and"
    " 7.8 ± 0.7 with 16 (docs/training.md). Here a rank has {} samples. --target-accuracy counts"
    " the"
    " epochs to a target."
)


def verdict(result: Result) -> Verdict:
    """Return the verdict: what to do, why, and what would change the choice.

    Where no strategy is chosen, the answer says why, and nothing else would change it.
    """
    table = result.tables["strategies"]
    question = result.meta["asked"]
    findings = result.meta["plan"]
    warming, next_steps = separate_remedy(findings.get("not_steady", ""))
    prices = ", ".join(
        f"{resource}={unit_cost:g}"
        for resource, unit_cost in question["prices"].items()
    )
    accuracy_source = (
        "the given accuracy by epoch" if question["learned"] else "no accuracy by epoch"
    )
    basis = f"simulated epochs, {accuracy_source}, and the prices {prices}"
    chosen_row = find_chosen_row(table)
    if chosen_row is None:
        answer, why = _explain_no_choice(table, question), ""
    else:
        answer = _state_choice(chosen_row, result.meta)
        why = _state_reasons(chosen_row, table)
        turns = result.tables["turns"]
        if len(turns) or not next_steps:
            next_steps.append(
                _describe_turning_points(turns, findings.get("doubtful", []))
            )
    return Verdict(
        [answer],
        why=why,
        rests_on=join_sentences([basis, warming[:1].lower() + warming[1:]]),
        measure_next=join_sentences(next_steps),
    )


def _state_choice(row: Row, meta: Mapping[str, Any]) -> str:
    """Return the sentence on the chosen strategy, with its time, cost and epochs.

    Spare hosts, which the cost includes, stand beside the hosts of the ranks.
    """
    question = meta["asked"]
    findings = meta["plan"]
    to_target = (
        ""
        if question["target"] is None
        else f" to an accuracy of {question['target']:.3g}"
    )
    within_budget = (
        ""
        if question["budget"] is None
        else f", within the budget of {question['budget']:,.6g}"
    )
    epochs_text = f"{row['epochs']:.0f} epochs of {row['epoch_s']:,.3g} s{to_target}"
    return (
        f"Train with {row['strategy']}: {row['hours']:,.3g} h on {findings['hosts']:,} hosts"
        f"{_describe_spares(row)}, {_format_cost(row['cost'], question)}{within_budget}"
        f" ({epochs_text})."
    )


def _describe_spares(row: Row) -> str:
    """Return the phrase on the spare hosts of a strategy; '' for none, or where nothing
    fails.
    """
    if pd.isna(row["goodput"]):
        return ""
    if pd.isna(row["spares"]):
        return " and all spare hosts of the machine"
    num_spares = int(row["spares"])
    ending = "s" if num_spares != 1 else ""
    return f" and {num_spares:,} spare host{ending}" if num_spares else ""


def _last_digit(value: float, digits: int) -> float:
    """Return the value of one unit in the last of ``digits`` digits of ``value``, which
    must be above 0.
    """
    return 10.0 ** (math.floor(math.log10(value)) + 1 - digits)


def _round_up_to_digits(value: float, digits: int) -> float:
    """Round ``value`` up to ``digits`` digits, so that a budget of the result is
    enough; 0 and less stay as they are.
    """
    if value <= 0:
        return value
    last_digit = _last_digit(value, digits)
    return float(f"{math.ceil(value / last_digit - 1e-9) * last_digit:.{digits}g}")


def _round_down_to_digits(value: float, digits: int) -> float:
    """Round ``value`` down to ``digits`` digits; 0 and less are rounded to nearest."""
    rounded = float(f"{value:.{digits}g}")
    last_digit = _last_digit(value, digits) if value > 0 else 0.0
    return float(f"{rounded - last_digit:.{digits}g}") if rounded > value else rounded


def _format_cost(cost: float, question: Row) -> str:
    """Format a cost; in host-hours where a host-hour costs 1 and nothing else has a
    price.
    """
    has_prices = question["prices"] != {"host-hour": 1.0}
    return f"a cost of {cost:,.4g}" if has_prices else f"{cost:,.4g} host-hours"


def _state_reasons(chosen_row: Row, table: pd.DataFrame) -> str:
    """Return the sentence that compares the chosen strategy with the cheapest and
    dearest others.

    It also names the strategies that do not fit or do not reach the target. Strategies
    that were not simulated are passed over.
    """
    other_rows = table[~table["chosen"] & table["cost"].notna()].sort_values(
        "cost", kind="stable"
    )
    phrases: list[str] = []
    for other_row in other_rows.iloc[[0, -1][: len(other_rows)]].to_dict("records"):
        extra_cost = (
            other_row["cost"] / chosen_row["cost"] - 1.0 if chosen_row["cost"] else 0.0
        )
        if abs(extra_cost) < NEGLIGIBLE_COST and not phrases:
            mixing = _mixing_phrase(other_row, chosen_row)
            phrases.append(f"{other_row['strategy']} costs the same within 1 %{mixing}")
        else:
            cost = _describe_extra_cost(extra_cost)
            differences = _describe_differences(other_row, chosen_row)
            phrases.append(f"{other_row['strategy']} costs {cost}{differences}")
    phrases += _describe_exclusions(table)
    return join_sentences(phrases or ["no other strategy was considered"])


def _mixing_phrase(other_row: Row, chosen_row: Row) -> str:
    """Return why a strategy that is as cheap is not chosen; '' if it does not mix less."""

    def mixing_of(row: Row) -> float:
        """Return Q; 2 under global shuffle, which has no Q and mixes more than any."""
        return (
            2.0
            if pd.isna(row["exchange_fraction"])
            else float(row["exchange_fraction"])
        )

    return (
        " and mixes samples less"
        if mixing_of(other_row) < mixing_of(chosen_row)
        else ""
    )


def _describe_extra_cost(extra_cost: float) -> str:
    """Describe a cost relative to that of the chosen strategy, such as '12 % more'.

    ``extra_cost`` is the share above the cost of the chosen one; below 0 it is cheaper.
    """
    if abs(extra_cost) < NEGLIGIBLE_COST:
        return "the same within 1 %"
    if extra_cost < 0:
        return f"{-100 * extra_cost:.2g} % less, within the time tolerance"
    return (
        f"{extra_cost:.2g} times more"
        if extra_cost >= 1.0
        else f"{100 * extra_cost:.2g} % more"
    )


def _describe_differences(other_row: Row, chosen_row: Row) -> str:
    """Return in parentheses the reasons why another strategy costs more than the chosen
    one; '' if there are none.

    Another number of epochs counts, be it smaller, too. Shares count if they are larger
    by more than `NOTABLE_SHARE`.
    """
    differences = []
    if other_row["epochs"] != chosen_row["epochs"]:
        differences.append(f"it needs {other_row['epochs']:.0f} epochs")
    for name, label in (("io_share", "I/O"), ("exchange_share", "the exchange")):
        if other_row[name] > chosen_row[name] + NOTABLE_SHARE:
            differences.append(
                f"{label} takes {100 * other_row[name]:.2g} % of its epoch"
            )
    if other_row["storage_cost"] > chosen_row["storage_cost"]:
        differences.append(f"its storage costs {other_row['storage_cost']:,.3g}")
    return f" ({', '.join(differences)})" if differences else ""


def _describe_exclusions(table: pd.DataFrame) -> list[str]:
    """Return phrases on the strategies without room, and on those that do not reach the
    target; [] if there are neither.

    Strategies that were not simulated for another reason are in none.
    """
    phrases = []
    if len(rows_without_room := table[~table["fits"]]):
        smallest_row = rows_without_room.sort_values("kept_nbytes").iloc[0].to_dict()
        kept_text, capacity_text = (
            readable(smallest_row[name], Dimension.NBYTES, 3)
            for name in ("kept_nbytes", "capacity_nbytes")
        )
        names = _list_names(rows_without_room["strategy"].tolist())
        smallest_name = (
            "" if len(rows_without_room) == 1 else f" {smallest_row['strategy']}"
        )
        verb = "does" if len(rows_without_room) == 1 else "do"
        phrases.append(
            f"{names} {verb} not fit:{smallest_name} keeps {kept_text} a host, and a host has"
            f" {capacity_text}"
        )
    if len(
        rows_below_target := table[
            table["fits"] & (table["why"] == "") & table["cost"].isna()
        ]
    ):
        names = _list_names(rows_below_target["strategy"].tolist())
        phrases.append(
            f"{names} {'does' if len(rows_below_target) == 1 else 'do'} not reach the target"
        )
    return phrases


def _list_names(names: list[str]) -> str:
    """Return a phrase of the first `MAX_NAMES` names, and how many more there are.

    A single further name is listed, too.
    """
    displayed_names = names if len(names) <= MAX_NAMES + 1 else names[:MAX_NAMES]
    num_hidden = len(names) - len(displayed_names)
    return ", ".join(displayed_names) + (
        f" and {num_hidden} more" if num_hidden else ""
    )


def _describe_turning_points(turns: pd.DataFrame, doubtful: Sequence[Row]) -> str:
    """Return the clause on the nearest turning points, or on their absence.

    At most `MAX_NAMES` are named, the nearest first: the factor or its inverse counts.
    """
    if len(turns):
        nearest = turns.assign(
            far=turns["factor"].map(_distance_of_factor)
        ).sort_values("far", kind="stable")
        rows = nearest.to_dict("records")[:MAX_NAMES]
        turning_points = ", or ".join(map(_describe_turning_point, rows))
        return f"the input that would change the choice: {turning_points}"
    if doubtful:
        return "nothing: no turning point is confirmed by simulation"
    return (
        "nothing: by closed forms, no SSD, open rate, bandwidth, step time or NIC of 1/32 to 32"
        " times its value changes the choice"
    )


def _describe_turning_point(row: Row) -> str:
    """Return the phrase of a turning point: input, side, value and the strategy chosen
    there.
    """
    side = "above" if row["factor"] > 1 else "below"
    return f"{row['input']} {side} {row['shown']} ({row['after'] or NO_STRATEGY})"


def _list_doubts(findings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the turning points that closed forms claim and no simulation confirms, what
    was not simulated, and the strategies whose runs were made coarser.
    """
    doubtful = findings.get("doubtful", [])
    for row in doubtful:
        if row["why"] != NOT_SIMULATED:
            turning_point = _describe_turning_point(row)
            yield f"Closed forms claim a turning point with {turning_point}; {row['why']}."
    unsimulated_points = [
        _describe_turning_point(row) for row in doubtful if row["why"] == NOT_SIMULATED
    ]
    unanswered = [
        f"whether another strategy is the cheapest with {', or '.join(unsimulated_points)}"
    ] * bool(unsimulated_points)
    unanswered += findings.get("not_searched", [])
    if unanswered:
        unsimulated = "; ".join(unanswered)
        yield f"Not simulated, since it takes over a minute (--exact simulates it): {unsimulated}."
    if coarse := findings.get("coarse", {}):
        share = max(coarse.values())
        names = _list_names([*coarse])
        yield f"Known within {100 * share:g} % (--exact: within the time tolerance): {names}."


def _distance_of_factor(factor: float) -> float:
    """Return the factor, or its inverse, whichever is 1 or more."""
    return max(factor, 1.0 / factor)


def _explain_no_choice(table: pd.DataFrame, question: Row) -> str:
    """Return the sentence that explains why no strategy is chosen: the budget where any
    has a cost, else the target.

    Strategies that may be right, but were not simulated, stand at its end.
    """
    unsimulated = _list_missing_runs(table)
    rows_with_cost = table[table["cost"].notna()].sort_values("cost", kind="stable")
    if len(rows_with_cost):
        cheapest_row = rows_with_cost.iloc[0].to_dict()
        sufficient_cost = _round_up_to_digits(cheapest_row["cost"], 4)
        cheapest_cost = _format_cost(sufficient_cost, question)
        reasons = [f"the cheapest is {cheapest_row['strategy']}, with {cheapest_cost}"]
        subject = "No simulated strategy" if unsimulated else "No strategy"
        failure = f"meets the budget of {question['budget']:,.6g}"
    else:
        reasons = _describe_exclusions(table)
        subject = (
            "No simulated strategy"
            if unsimulated
            else "No strategy that fits the hosts"
        )
        failure = f"reaches an accuracy of {question['target']:.3g}"
    return f"{subject} {failure}: {'; '.join([*reasons, *unsimulated])}."


def _list_missing_runs(table: pd.DataFrame) -> list[str]:
    """Return the phrase on the strategies that have room and reach the target, if there
    is one, but were not simulated; [] if there are none.
    """
    rows = table[table["fits"] & (table["why"] != "") & table["epochs"].notna()]
    if rows.empty:
        return []
    pronoun = "it" if len(rows) == 1 else "them"
    is_too_long = rows["why"].str.startswith(NOT_SIMULATED).any()
    remedy = f" (--exact simulates {pronoun})" if is_too_long else ""
    verb = "was" if len(rows) == 1 else "were"
    names = _list_names(rows["strategy"].tolist())
    return [f"{names} {verb} not simulated{remedy}"]


def list_notes(result: Result) -> Iterator[str]:
    """Yield the notes of a plan, one sentence for each finding beside the costs."""
    question = result.meta["asked"]
    findings = result.meta["plan"]
    table = result.tables["strategies"]
    if (limit := findings["hidden"]) is not None:
        bottleneck_text = (
            f"; above it, {limit['bottleneck']} binds" if limit["bottleneck"] else ""
        )
        fraction = _round_down_to_digits(limit["exchange_fraction"], 3)
        yield (
            f"The largest Q that adds at most 1 % to an epoch is {fraction:.3g}"
            f" ({limit['samples']:,} samples of each rank){bottleneck_text}."
        )
    if findings["largest_fraction"] < 1.0:
        max_fraction = findings["largest_fraction"]
        fraction_text = (
            f"Q up to {_round_down_to_digits(max_fraction, 3):.3g} fits"
            if max_fraction >= 0
            else "No shard fits"
        )
        yield f"{fraction_text} into the room of a host ({findings['tier']})."
    for row in table[table["strategy"].isin(findings["io"])].to_dict("records"):
        share_text = f"{100 * question['io_share']:g} % of an epoch"
        if pd.isna(row["files_per_s"]):
            io = findings["io"][row["strategy"]]["io"]
            yield (
                f"No file system keeps I/O of {row['strategy']} within {share_text}: with one"
                f" that never binds, I/O still takes {100 * io:.2g} %."
            )
        else:
            files, nbytes = findings["io"][row["strategy"]]["alone"]
            precision_text = (
                ""
                if question.get("exact", True)
                else f" (known to {100 * (JOINT_PRECISION - 1.0):.0f} %)"
            )
            open_rate = _format_rate(row["files_per_s"])
            bandwidth = _format_rate(row["bytes_per_s"] / 1e9)
            yield (
                f"{row['strategy']} keeps I/O within {share_text} if the file system has at least"
                f" {open_rate} files/s and {bandwidth} GB/s, both at once{precision_text}. At least"
                f" {_format_rate(files)} files/s suffice where bandwidth never binds, and"
                f" {_format_rate(nbytes / 1e9)} GB/s where opening files never binds."
            )
    yield from _describe_saves(table, findings)
    yield from _list_doubts(findings)
    if not question["learned"]:
        yield ACCURACY_NOTE.format(f"{findings['samples_of_rank']:,.0f}")


def _describe_saves(table: pd.DataFrame, findings: Mapping[str, Any]) -> Iterator[str]:
    """Yield the sentence on the period of checkpoints and the spare hosts.

    Where keys of failures lack, it names them instead. Nothing is yielded where
    failures count and no strategy is chosen.
    """
    chosen_row = find_chosen_row(table)
    if findings["lacking"]:
        keys = " and ".join(findings["lacking"])
        yield f"With {keys}, a plan also says how often to save, and how many spare hosts to keep."
    elif chosen_row is not None:
        waiting_share = findings["waiting"][chosen_row["strategy"]]
        waiting_text = f"{100 * waiting_share:.2g} % of the time waiting for hosts"
        spares_text = (
            f"all spare hosts of the machine and still {waiting_text}"
            if pd.isna(chosen_row["spares"])
            else f"{chosen_row['spares']:.0f} spare hosts and {waiting_text}"
        )
        yield (
            f"{chosen_row['strategy']} saves every {chosen_row['period_s']:,.3g} s (Daly), with"
            f" {spares_text}: {100 * chosen_row['goodput']:.3g} % of the time is useful."
        )


def _format_rate(value: float) -> str:
    """Return the text of a rate rounded up to three digits, so that it is enough."""
    return f"{_round_up_to_digits(value, 3):,g}"


def list_parts(result: Result) -> Iterator[str | Table]:
    """Yield the table and the notes that a terminal displays below the verdict.

    The table is sorted by cost; strategies without a cost come last, and columns
    without any value are left out.
    """
    meta = result.meta
    title = (
        f"What to do with {meta['plan']['scenario']}: {meta['plan']['ranks']:,} ranks on"
        f" {meta['plan']['hosts']:,} hosts"
    )
    table = result.tables["strategies"].sort_values(
        "cost", kind="stable", na_position="last"
    )
    columns = [name for name in COLUMNS if table[name].notna().any()]
    yield STRATEGIES.listing(table, title, columns)
    yield from list_notes(result)
