"""Figures of studies other than runs, of links over time, and of when exchanges end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from simshuffle.report.chart import (
    DASHES,
    Axis,
    Chart,
    Look,
    Mark,
    Panel,
    Ramp,
    in_rows,
    log_axis,
)
from simshuffle.report.style import BRIGHT
from simshuffle.studies.congestion.figures import COLOURS as PATTERNS
from simshuffle.studies.congestion.figures import (
    SHAPES,
    row_name,
    rows_of_largest,
    sort_tiers_upwards,
)
from simshuffle.studies.congestion.patterns import Variant
from simshuffle.studies.congestion.tables import VARIANT, groups
from simshuffle.studies.oracle.figures import memory_rows, parts_of, shown_points
from simshuffle.studies.oracle.tables import MEMORY
from simshuffle.studies.presentation.named_results import (
    NamedResult,
    check_run_count,
    distinguish_runs,
    exchange_phases,
    missing_exchange,
    unsuitable_results,
)
from simshuffle.studies.simulation.figures import wrap_name
from simshuffle.studies.simulation.parts import timeline_of
from simshuffle.studies.simulation.sweep_figures import MAX_LINES
from simshuffle.study.long_table import get_long


def congestion_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return mean and busiest utilisation of each tier and pattern, as means over
    seeds.

    Only the first result counts, at its largest world size, by the bytes and the model
    of its figure. Columns: routing, pattern, batching, barrier, tier, links,
    mean_utilisation and max_utilisation (shares). Tiers are in the order in which a
    message crosses them.
    """
    tables = results[0].result.tables
    tiers = rows_of_largest(tables, tables["tiers"])
    keys = ["routing", *VARIANT, "tier"]
    columns = ["links", "mean_utilisation", "max_utilisation"]
    rows = tiers.groupby(keys, sort=False, observed=True)[columns].mean().reset_index()
    rows = rows.astype({"links": int, "tier": str, "barrier": bool})
    tier_index = rows["tier"].map(sort_tiers_upwards(list(rows["tier"].unique())).index)
    variant = rows.groupby(keys[:-1], sort=False).ngroup()
    return rows.iloc[np.lexsort((tier_index, variant))].reset_index(drop=True)


def waterfall_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return the seconds that each switch of the ablation adds to the epoch: the rows of
    label 'epoch' in table `contributions`, without their column ``label``.

    Only the first result counts. A last row has all switches together. Negative seconds
    make the epoch shorter.
    """
    rows = results[0].result.all_tables["contributions"]
    return rows[rows["label"] == "epoch"].drop(columns="label").reset_index(drop=True)


def strategies_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return the parts of an iteration, in s, under each drawn strategy and number of
    ranks.

    Only the first result counts. Columns: world_size, strategy, and a label and '_s'
    for each part.

    Raises:
        InputError: no strategy fits the memory.
    """
    tables = results[0].result.tables
    drawn_points = shown_points(tables["points"], tables["measured"])
    if drawn_points.empty:
        rule = "needs a strategy that fits the memory"
        raise unsuitable_results(
            rule, results, "Use more GPUs, or another --budget-memory."
        )
    parts = parts_of(drawn_points).add_suffix("_s")
    return pd.concat(
        [drawn_points[["world_size", "strategy"]], parts], axis=1
    ).reset_index(drop=True)


def memory_table(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return the parts of a GPU's memory (bytes), by strategy, least memory first.

    Only the first result counts, at the scale of its best point, with at most as many
    strategies as its figure. Columns: world_size, strategy, a part of `MEMORY` and
    '_nbytes' for each part, memory_nbytes, and ``fits``: whether a strategy fits the
    memory.
    """
    parts = [f"{part}_nbytes" for part in MEMORY]
    columns = ["world_size", "strategy", *parts, "memory_nbytes", "fits"]
    return memory_rows(results[0].result.all_tables)[columns].reset_index(drop=True)


MOST_RUNS = 6
"""Panels below one another that still fit a page."""
COLUMNS = {"mean": "mean of the busiest link", "peak": "highest at any moment"}


def draw_links(results: Sequence[NamedResult]) -> Chart:
    """Draw two panels a run: tiers by simulated time, coloured by the busiest link's
    mean and peak.

    A column of cells is an epoch.

    Raises:
        InputError: there are more than `MOST_RUNS` runs.
    """
    rows = tabulate_links(results)
    runs = list(rows["run"].unique())
    check_run_count(results, len(runs), MOST_RUNS)
    tiers = sort_tiers_upwards(list(rows["tier"].unique()))
    tier_index = rows["tier"].map(tiers.index)
    tip = rows["tier"] + ", epoch " + rows["epoch"].map(str)
    cells = rows.assign(y=tier_index - 0.5, y2=tier_index + 0.5, tip=tip)
    y = in_rows([tier.replace("_", " ") for tier in tiers], small=True)
    panels = []
    for run in runs:
        run_cells = cells[cells["run"] == run]
        name = wrap_name(run, with_world_size=True).replace("\n", ", ")
        for column, text in COLUMNS.items():
            title = f"simulated time (s)\n{text}" if run == runs[-1] else ""
            x = Axis(title, low=0.0, high=float(run_cells["end_s"].max()), small=True)
            look = Look(fill="none")
            marks = [
                Mark(
                    "cell", run_cells, x="start_s", x2="end_s", value=column, look=look
                )
            ]
            panels.append(Panel(marks, x, y, name if column == "mean" else "peak"))
    return Chart(
        panels,
        0.75 + len(runs) * (0.3 + 0.13 * len(tiers)),
        caption="Utilisation of links over simulated time, by tier.",
        across=2,
        share="y",
        ramp=Ramp("utilisation; a column is an epoch"),
    )


def tabulate_links(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return a row for each run, epoch and tier, as means over seeds.

    Columns: run, epoch, start_s and end_s of the epoch, tier, and mean and peak: the
    highest mean and the highest peak utilisation (shares) of a link of the tier, maybe
    of two links. Epochs follow one another from 0 s on, without staging. Of an epoch of
    which a part was simulated, utilisation is that of the part. Epochs without links
    are left out.
    """
    rows_of_results = []
    keys = _LINK_COLUMNS[:4]
    utilisations = _LINK_COLUMNS[4:]
    for runs in distinguish_runs(results):
        busiest = []
        for piece in get_long(runs.named_result.result.tables, "links").pieces(
            _LINK_COLUMNS
        ):
            named_piece = piece.assign(
                run=piece["run"].astype(str).map(runs.new_names),
                tier=piece["tier"].astype(str),
            )
            keys_of_piece = [name for name in keys if name in piece]
            busiest.append(
                named_piece.groupby(keys_of_piece, sort=False)[utilisations].max()
            )
        by_seed = pd.concat(busiest).groupby(keys_of_piece, sort=False).max()
        by_seed = by_seed.set_axis(["mean", "peak"], axis=1)
        mean = (
            by_seed.groupby(["run", "epoch", "tier"], sort=False).mean().reset_index()
        )

        epochs_of_runs = runs.epochs.groupby(["run", "epoch"], sort=False)
        times = epochs_of_runs["epoch_s"].mean().reset_index()
        times["end_s"] = times.groupby("run")["epoch_s"].cumsum()
        times["start_s"] = times["end_s"] - times["epoch_s"]
        rows_of_results.append(times.merge(mean, on=["run", "epoch"]))
    rows = pd.concat(rows_of_results, ignore_index=True)
    return rows[["run", "epoch", "start_s", "end_s", "tier", "mean", "peak"]]


_LINK_COLUMNS = ["run", "seed", "epoch", "tier", "mean_utilisation", "peak_utilisation"]


# columns of a table of completion, and the share of ranks or messages of each
QUANTILES = {
    "min_s": 0.0,
    "p10_s": 0.1,
    "p50_s": 0.5,
    "p90_s": 0.9,
    "p99_s": 0.99,
    "max_s": 1.0,
}
TAIL = {"flow_p50_s": 0.5, "flow_p99_s": 0.99, "flow_max_s": 1.0}
SAMPLE = (
    "Only a sample of ranks is drawn, with the slowest and fastest; --timeline full keeps all"
    " ranks."
)


def draw_completion(results: Sequence[NamedResult]) -> Chart:
    """Draw when exchanges end: a line for each run, or for each pattern.

    Patterns are drawn if the first result is a congestion study; other results are then
    left out.

    Raises:
        InputError: as `_exchange_of_ranks`: without timeline or exchange, or with too
            many runs.
    """
    if results[0].result.study.kind == "congestion":
        return _draw_tails(tabulate_completion(results))
    return _draw_steps(
        _exchange_of_ranks(results), sampled=_has_sample_of_ranks(results)
    )


def tabulate_completion(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return quantiles of exchange seconds: over the ranks of each run, or over
    messages.

    A congestion study keeps quantiles over messages, from post to end; the table has
    their medians over seeds, in s, at the largest world size of the first result:
    columns routing, pattern, batching, barrier and those of `TAIL`. Of runs: columns
    run, ranks (of all seeds together) and `QUANTILES` (s) of the exchange in the last
    epoch, shown and hidden. A quantile is a value of some rank, not between two.

    Raises:
        InputError: as `_exchange_of_ranks`: without timeline or exchange, or with too
            many runs.
    """
    if results[0].result.study.kind == "congestion":
        tables = results[0].result.tables
        times = rows_of_largest(tables, tables["times"])
        keys = ["routing", *VARIANT]
        quantiles: pd.DataFrame = (
            times.groupby(keys, sort=False)[list(TAIL)].median().reset_index()
        )
        return quantiles
    rows = []
    for run, run_ranks in _exchange_of_ranks(results).groupby("run", sort=False):
        values = run_ranks["seconds"].to_numpy()
        # of what was measured, as the steps of the figure
        quantiles_of_run = {
            name: float(np.quantile(values, share, method="inverted_cdf"))
            for name, share in QUANTILES.items()
        }
        rows.append({"run": run, "ranks": len(run_ranks), **quantiles_of_run})
    return pd.DataFrame(rows)


def completion_notes(results: Sequence[NamedResult]) -> list[str]:
    """Say of what a completion figure shows the distribution, a sentence each."""
    if results[0].result.study.kind == "congestion":
        return ["Time from the post of a message to its end; medians over seeds."]
    distribution = (
        "Exchange of each rank in the last epoch, shown and hidden,"
        " over ranks and seeds."
    )
    return [distribution, *([SAMPLE] if _has_sample_of_ranks(results) else [])]


def _has_sample_of_ranks(results: Sequence[NamedResult]) -> bool:
    """Return whether a result has the timeline of a sample of ranks alone."""
    return any(
        timeline_of(named_result.result.meta) == "ranks" for named_result in results
    )


def _exchange_of_ranks(results: Sequence[NamedResult]) -> pd.DataFrame:
    """Return the exchange of each rank in each run's last epoch: run, seed, rank,
    seconds.

    Seconds are sums over the epoch, shown and hidden, with waiting at barriers. The seed
    is 0 where a result has one. Ranks without any exchange, or outside the timeline's
    sample, have no row.

    Raises:
        InputError: a result has no timeline, nothing is exchanged, or there are too
            many runs.
    """
    parts = []
    for runs in distinguish_runs(results):
        result = runs.named_result.result
        if timeline_of(result.meta) == "none":
            remedy = "Simulate again with --timeline full."
            raise unsuitable_results("needs the timeline", [runs.named_result], remedy)
        last_epoch = runs.epochs.groupby("run")["epoch"].max()
        for phases in exchange_phases(result):
            piece = phases.assign(run=phases["run"].map(runs.new_names))
            part = piece[
                piece["epoch"].to_numpy() == last_epoch.loc[piece["run"]].to_numpy()
            ]
            parts.append(
                part.groupby(["run", "seed", "rank"], sort=False)["seconds"].sum()
            )
    if not sum(map(len, parts)):
        raise missing_exchange(results)
    ranks: pd.DataFrame = (
        pd.concat(parts).groupby(level=[0, 1, 2], sort=False).sum().reset_index()
    )
    check_run_count(results, ranks["run"].nunique(), MAX_LINES)
    return ranks


def _draw_steps(ranks: pd.DataFrame, *, sampled: bool) -> Chart:
    """Draw the share (%) of ranks whose exchange has ended, over its seconds, in steps.

    Ranks of all seeds count together; a line is a run. ``ranks`` are of
    `_exchange_of_ranks`; with ``sampled`` the axis says that they are a sample.
    """
    parts = []
    looks = {}
    for index, (run, run_ranks) in enumerate(ranks.groupby("run", sort=False)):
        seconds = np.sort(run_ranks["seconds"].to_numpy())
        shares = np.linspace(0.0, 100.0, len(seconds) + 1)
        x = np.repeat(seconds, 2)
        y = np.repeat(shares, 2)[1:-1]
        parts.append(pd.DataFrame({"x": x, "y": y, "look": str(run)}))
        dash = DASHES[index // len(BRIGHT) % len(DASHES)]
        looks[str(run)] = Look(
            str(run), BRIGHT[index % len(BRIGHT)], dash=dash, width=1.1
        )
    x_axis = Axis("exchange of a rank in the last epoch (s)")
    y_axis = Axis(
        f"share of {'sampled ' if sampled else ''}ranks (%)", low=0.0, high=103.0
    )
    panel = Panel([Mark("line", pd.concat(parts))], x_axis, y_axis)
    return Chart(
        [panel], 2.2, looks, "When exchanges end: the share of ranks over time."
    )


def _draw_tails(rows: pd.DataFrame) -> Chart:
    """Draw medians, 99th percentiles and maxima (ms), joined by lines, as results keep
    no more.

    ``rows`` hold them in s, a row for each routing and variant.
    """
    parts = []
    looks = {}
    lines_of_pattern = dict.fromkeys(rows["pattern"], 0)
    several = rows["routing"].nunique() > 1
    for (routing, pattern, batching, barrier), group_rows in groups(
        rows, "routing", *VARIANT
    ):
        name = row_name(Variant(pattern, batching, barrier))
        name += f" ({routing})" if several else ""
        dash = DASHES[lines_of_pattern[pattern] % len(DASHES)]
        lines_of_pattern[pattern] += 1
        looks[name] = Look(name, PATTERNS[pattern], SHAPES[pattern], dash, size=3)
        ends = 1e3 * group_rows[list(TAIL)].iloc[0].to_numpy(float)
        shares = [100 * share for share in TAIL.values()]
        parts.append(pd.DataFrame({"x": ends, "y": shares, "look": name}))
    lines = pd.concat(parts)
    title = "time from post to end of a message (ms)\n(marks: median, 99 %, longest)"
    low = 0.85 * lines["x"].clip(lower=1e-9).min()
    high = 1.15 * lines["x"].max()
    upwards = Axis("share of messages (%)", low=45.0, high=103.0)
    panel = Panel([Mark("line", lines)], log_axis(title, low, high), upwards)
    return Chart(
        [panel], 2.2, looks, "When messages end: the share of messages over time."
    )
