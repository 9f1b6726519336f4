"""Sections of the page on runs, beside their tables: charts, the network, the tail of
the exchange.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report import intervals, report
from simshuffle.report.console import new_table
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.report.links import links_of_whole_epochs
from simshuffle.spec.arrays import Floats
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.presentation import page_charts as charts
from simshuffle.studies.presentation.named_results import exchange_phases
from simshuffle.studies.presentation.page_charts import EXCHANGE
from simshuffle.studies.presentation.page_network import (
    MOST_ROWS,
    draw_network,
    link_loads,
)
from simshuffle.studies.presentation.page_parts import (
    Section,
    bullets,
    details,
    html_tables,
    paragraph,
)
from simshuffle.studies.presentation.page_vega import html_figure
from simshuffle.studies.simulation import text
from simshuffle.studies.simulation.figures import breakdown_chart
from simshuffle.studies.simulation.parts import booking_of, means_of, timeline_of
from simshuffle.studies.simulation.sweep_figures import sweep_chart
from simshuffle.studies.simulation.tables import (
    WHOLE_EPOCH,
    Means,
    last_epochs,
    samples_of,
)
from simshuffle.studies.simulation.tables import SweptAxis as Swept
from simshuffle.study.study import Result

if TYPE_CHECKING:
    from rich.table import Table

MOST_POINTS = 6000
"""Most rows of the chart by iteration."""
MOST_NETWORKS = 4
"""Most machines whose network is drawn."""
_SHOWN = "exchange and wait_exchange"


def sections(result: Result, runs: Mapping[str, Scenario]) -> Iterator[Section]:
    """Yield the sections that runs alone have; ``runs`` holds their scenarios by name,
    where known.

    The sections of scaling and of the exchange's tail are left out where there is
    nothing to show.
    """
    averages = means_of(result)
    yield _breakdown_section(result, averages)
    yield from _scaling_section(averages)
    yield _network_section(result, runs)
    yield from _tail_section(result)
    yield _storage_section(result, averages)


def _scaling_section(averages: Means) -> Iterator[Section]:
    """Yield a chart of the last epoch's seconds over ranks, if runs differ in their
    number of ranks.

    Seconds are means over the seeds. The 95 % interval is over the seeds alone: with
    one seed there is none. A line's name is a run's name without its number of ranks.
    """
    epochs = last_epochs(averages.epochs).sort_values("world_size", kind="stable")
    if epochs["world_size"].nunique() < 2:
        return
    lines = epochs["run"].str.replace(r" @\d+$", "", regex=True)
    axes: list[Swept] = [
        {"name": "world_size", "key": "world_size", "numbers": True},
        {"name": "line", "key": "line", "numbers": False},
    ]
    rows = epochs.assign(line=lines, label=lines, mean=epochs["epoch_s"])
    index = pd.MultiIndex.from_frame(rows[["run", "epoch"]])
    half_width = (
        np.nan
        if averages.half_intervals is None
        else averages.half_intervals["epoch_s"].loc[index].to_numpy(float)
    )
    rows = rows.assign(
        low=rows["mean"] - half_width,
        high=rows["mean"] + half_width,
        seeds=averages.seeds,
    )
    rows = intervals.add_interval_ends(rows, averages.ends)
    chart = sweep_chart(
        rows.assign(measure=WHOLE_EPOCH),
        axes,
        samples=samples_of(epochs),
        num_measured=averages.num_measured,
    )
    yield Section("Scaling", html_figure(chart, "Time per epoch by ranks."))


def _breakdown_section(result: Result, averages: Means) -> Section:
    """Return the section of where the time goes: chart, tables, and 90 % intervals.

    The chart has the first and the last epoch of each run (`select_epochs`); a note says
    how many of all it has. The tables have all epochs. The 90 % intervals are there if
    the result has any.
    """
    bars = charts.select_epochs(averages.epochs)
    labels = booking_of(result.meta)
    num_epochs = len(averages.epochs)
    chart = breakdown_chart(
        averages.breakdown,
        averages.epochs,
        labels,
        half_intervals=averages.epoch_half,
        interval_subject=averages.interval_subject,
        bars=bars,
        interval_ends=averages.ends,
        num_measured=averages.num_measured,
    )
    left_out = f" {len(bars)} of {num_epochs} epochs are drawn; the table has all."
    body_of_chart = html_figure(
        chart, "Seconds of an epoch.", left_out * (len(bars) < num_epochs)
    )
    booking = labels if labels == "paper" else None
    notes = [report.legend(averages.breakdown, labels)]
    notes += (
        []
        if averages.epoch_half is None
        else [text.describe_interval(averages.interval_subject)]
    )
    body = body_of_chart + html_tables([text.seconds_table(averages, booking), *notes])
    if intervals_of_runs := result.meta.get("intervals"):
        body += html_tables(intervals.details(intervals_of_runs))
    if booking is None:
        body += details(
            "By label and cause", html_tables([text.labels_table(averages)])
        )
    return Section("Where the time goes", body)


def _network_section(result: Result, runs: Mapping[str, Scenario]) -> Section:
    """Return the section of the network: a drawing for each machine, and links by tier.

    Runs share a machine if their scenarios have one topology. A run whose scenario is
    not in ``runs`` has a machine of its own. At most `MOST_NETWORKS` machines are drawn;
    of several seeds the first of each run counts. The mean use of an epoch of which a
    part was simulated is scaled to all its iterations; the peak is that of the part.
    """
    epochs = result.tables["epochs"]
    notes = []
    links = links_of_whole_epochs(result.tables["links"], epochs)
    if "seed" in links:
        links = _rows_of_first_seeds(links)
        notes.append("Links are those of the first seed of every run.")
    machines: dict[
        str, list[str]
    ] = {}  # the runs on each; where no scenario is known, a run alone
    for run in dict.fromkeys(links["run"].astype(str)):
        key = f"network {runs[run].cluster.topology!r}" if run in runs else run
        machines.setdefault(key, []).append(run)
    body = ""
    for names in list(machines.values())[:MOST_NETWORKS]:
        machine_links = links[links["run"].astype(str).isin(names)]
        body += _network_html(machine_links, names, len(machines) > 1)
    if len(machines) > MOST_NETWORKS:
        body += paragraph(f"{MOST_NETWORKS} of {len(machines)} networks are drawn.")
    if (epochs["iterations_simulated"] < epochs["iterations"]).any():
        notes.append(
            "Bytes and mean use of links are those of all iterations: where a part of an epoch"
            " was simulated, they are scaled. The peak is that of the simulated part."
        )
    return Section("The network", body + html_tables([*notes, _tabulate_tiers(links)]))


def _network_html(links: pd.DataFrame, names: list[str], several_machines: bool) -> str:
    """Return the drawing of a machine as HTML, and sentences on what it leaves out.

    ``names`` are the runs on the machine. One sentence takes the place of the drawing
    where no link is a cable. Where lines times epochs exceed `MOST_ROWS`, only the last
    epoch of each run is in the drawing; where that is still too many, only of the last
    runs.
    """
    drawing = draw_network(links)
    if drawing is None:
        return paragraph(f"{', '.join(names)}: nothing crossed the network.")
    links = links.assign(run=links["run"].astype(str))
    epochs = links[["run", "epoch"]].drop_duplicates()
    notes = list(drawing.notes)
    if len(epochs) * len(drawing.lines) > MOST_ROWS:
        epochs = epochs.drop_duplicates("run", keep="last")
        notes.append("The last epoch of every run is shown.")
    max_epochs = max(1, MOST_ROWS // len(drawing.lines))
    if len(epochs) > max_epochs:
        notes.append(f"The last {max_epochs} of {len(epochs)} runs are shown.")
        epochs = epochs.tail(max_epochs)
    pairs = list(epochs.itertuples(index=False, name=None))
    by_epoch = dict(iter(links.groupby(["run", "epoch"], sort=False)))
    rows = [
        row
        for index, pair in enumerate(pairs)
        for row in link_loads(drawing, by_epoch[pair], index)
    ]
    picks = [charts.name_bar(run, int(epoch), True) for run, epoch in pairs]
    notes.append("Links that carried nothing in any of the runs are left out.")
    whose = f" {', '.join(names)}." if several_machines else ""
    about = (
        f"A line has the colour of its busier direction; grey is idle.{whose} The pointer, or"
        " arrow keys from the busiest link on, show the name and the bytes of a link."
    )
    return charts.chart_network(drawing, rows, picks, about) + bullets(notes)


def _tabulate_tiers(links: pd.DataFrame) -> Table:
    """Return a table of the last epoch of every run, a row for each kind of link.

    Bytes are summed over the links of a kind; they are '-' where its unit is not the
    byte. Utilisation is the mean of all links, that of the busiest, and the peak, in %.
    """
    rows_of_table = []
    names = links["run"].astype(str)
    last = report.rows_of_last_epoch(links, names)
    groups = last.groupby(
        [last["run"].astype(str), last["tier"].astype(str)], sort=False
    )
    for (run, tier), rows in groups:
        in_bytes = str(rows["unit"].iloc[0]) == "B"
        mean = rows["mean_utilisation"]
        moved = readable(rows["nbytes"].sum(), Dimension.NBYTES, 3) if in_bytes else "-"
        shares = map(
            _format_percent, (mean.mean(), mean.max(), rows["peak_utilisation"].max())
        )
        rows_of_table.append([str(run), str(tier), f"{len(rows):,}", moved, *shares])
    return new_table(
        "Links and devices by kind, last epoch; mean over the epoch, and peak at any moment",
        ["run", "kind"],
        ["links", "bytes", "mean of all", "mean of the busiest", "peak"],
        rows_of_table,
    )


def _format_percent(share: float) -> str:
    """Format a share in % with three digits; '< 0.001 %' below that, for 0 and NaN,
    too.
    """
    return f"{100 * share:.3g} %" if share >= 1e-5 else "< 0.001 %"


def _tail_section(result: Result) -> Iterator[Section]:
    """Yield the section on how ranks differ in the exchange, if any run has one.

    Exchange outside of all iterations (iteration 0) is left out of the chart and of the
    table over iterations. Of several seeds the first of each run counts. Without a
    timeline there is no table over ranks.
    """
    iterations = result.tables["iterations"]
    exchange_rows = iterations[
        iterations["phase"].isin(list(EXCHANGE)) & (iterations["iteration"] > 0)
    ]
    if exchange_rows.empty:
        return
    if "seed" in exchange_rows:
        exchange_rows = _rows_of_first_seeds(exchange_rows)
    body = _exchange_by_iteration(exchange_rows)
    kept_timeline = timeline_of(result.meta)
    over_ranks = (
        [] if kept_timeline == "none" else [_exchange_over_ranks(result, kept_timeline)]
    )
    explanation = (
        "exchange: the loop works on the exchange or waits for its own messages; wait_exchange:"
        " the loop waits for other ranks at a barrier; exchange_hidden: messages travel while the"
        " loop does something else."
    )
    seeds = ["Of the first seed of every run."] if "seed" in iterations else []
    parts: list[str | Table] = [
        explanation,
        *seeds,
        *over_ranks,
        _exchange_of_slowest(exchange_rows),
    ]
    yield Section("The tail of the exchange", body + html_tables(parts))


def _rows_of_first_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the lowest seed of each run; runs may have other seeds."""
    first_seeds = rows.groupby(rows["run"].astype(str))["seed"].transform("min")
    return rows[rows["seed"] == first_seeds]


def _exchange_by_iteration(rows_of_exchange: pd.DataFrame) -> str:
    """Return the chart of the exchange by iteration, as HTML.

    Rows are columns of `ITERATION_COLUMNS`. Above `MOST_POINTS` rows several iterations
    are one point: the mean of their means, the least and the most of all.
    """
    names = rows_of_exchange["run"].astype(str)
    runs = list(dict.fromkeys(names))
    index_of_run = {run: index for index, run in enumerate(runs)}
    rows_of_exchange = rows_of_exchange.assign(
        run=names.map(index_of_run), phase=rows_of_exchange["phase"].astype(str)
    )
    about = (
        "The line is the mean over all ranks; the band goes from the lowest to the"
        " highest rank."
    )
    iterations_a_point = max(1, -(-len(rows_of_exchange) // MOST_POINTS))
    if iterations_a_point > 1:
        about += f" Each point stands for {iterations_a_point} iterations."
        rows_of_exchange = rows_of_exchange.assign(
            iteration=(rows_of_exchange["iteration"] - 1)
            // iterations_a_point
            * iterations_a_point
            + 1
        )
        measures = {"mean_s": "mean", "least_s": "min", "most_s": "max"}
        keys = ["run", "epoch", "iteration", "phase"]
        rows_of_exchange = (
            rows_of_exchange.groupby(keys, sort=False).agg(measures).reset_index()
        )
    columns = ["run", "epoch", "iteration", "phase", "mean_s", "least_s", "most_s"]
    rows = [
        [*row[:4], *(float(f"{value:.4g}") for value in row[4:])]
        for row in rows_of_exchange[columns]
        .astype(object)
        .itertuples(index=False, name=None)
    ]
    epochs = sorted(int(epoch) for epoch in rows_of_exchange["epoch"].unique())
    return charts.chart_exchange(rows, runs, epochs, about)


def _exchange_over_ranks(result: Result, kept_timeline: KeptRanks) -> Table:
    """Return a table of exchange seconds in a whole epoch: quantiles and maximum over
    ranks, in ms.

    Each epoch has a row for each phase, and one for `_SHOWN`, their sum per rank; rows
    of 0 s are left out. Iterations that stand for others count as often. Only ranks of
    the timeline with any exchange count, and only the first seed of each run.
    """
    keys = ["run", "epoch", "phase", "rank"]
    sources = result.tables["sources"]
    pieces: Iterable[pd.DataFrame] = exchange_phases(result)
    if "seed" in sources:
        first_seeds = sources.groupby(sources["run"].astype(str))["seed"].min()
        pieces = (
            piece[piece["seed"] == piece["run"].map(first_seeds)] for piece in pieces
        )
    phases = pd.concat(pieces)
    sums = phases.groupby(keys, sort=False)["seconds"].sum()
    which_ranks = "all ranks" if kept_timeline == "full" else "a sample of ranks"
    table = new_table(
        f"Exchange of a rank in an epoch, ms, over {which_ranks}",
        ["run", "phase"],
        ["epoch", "ranks", "median", "99th percentile", "most"],
    )
    wide = sums.unstack("phase").reindex(columns=list(EXCHANGE))
    wide[_SHOWN] = wide[["exchange", "wait_exchange"]].sum(axis=1)
    for (run, epoch), ranks in wide.groupby(level=["run", "epoch"], sort=False):
        for phase in (*EXCHANGE, _SHOWN):
            seconds = ranks[phase].fillna(0.0).to_numpy(float)
            if seconds.any():
                quantiles = _format_quantiles(seconds)
                table.add_row(
                    str(run), phase, str(epoch), f"{len(seconds):,}", *quantiles
                )
    return table


def _exchange_of_slowest(exchange_rows: pd.DataFrame) -> Table:
    """Return a table of the slowest rank's exchange: quantiles and maximum over
    iterations, in ms.

    A row is a run, an epoch and a phase; an iteration without the phase does not count.
    The slowest rank may be another one in each iteration. A further column has the mean
    over ranks and iterations.
    """
    keys = [
        exchange_rows["run"].astype(str),
        exchange_rows["epoch"],
        exchange_rows["phase"].astype(str),
    ]
    return new_table(
        "Exchange of the slowest rank of an iteration, ms, over iterations",
        ["run", "phase"],
        [
            "epoch",
            "iterations",
            "mean of all ranks",
            "median",
            "99th percentile",
            "most",
        ],
        (
            [
                *(str(run), str(phase), str(epoch), f"{len(rows):,}"),
                _format_milliseconds(rows["mean_s"].mean()),
                *_format_quantiles(rows["most_s"].to_numpy(float)),
            ]
            for (run, epoch, phase), rows in exchange_rows.groupby(keys, sort=False)
        ),
    )


def _format_quantiles(seconds: Floats) -> list[str]:
    """Return median, 99th percentile and maximum of ``seconds`` in ms, as texts."""
    return [
        _format_milliseconds(quantile)
        for quantile in (*np.quantile(seconds, [0.5, 0.99]), seconds.max())
    ]


def _format_milliseconds(seconds: float) -> str:
    """Format seconds as ms with three digits, all digits from 1 s on."""
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.3g}"


def _storage_section(result: Result, averages: Means) -> Section:
    """Return the section of bytes by source, and of each run's storage and staging.

    Bytes are means over the seeds of a run; staged bytes, and those written to SSDs, are
    sums over epochs. Without a byte read there is no chart.
    """
    body = ""
    if chart := charts.chart_sources(averages):
        body = html_figure(chart, "Bytes that ranks read in an epoch.")
    table = new_table(
        "Storage of a host and staging",
        ["run", "kept in"],
        ["hosts", "storage of a host", "staging", "staged", "written to SSDs"],
    )
    sources = result.tables["sources"]
    sources_by_run = sources.groupby(sources["run"].astype(str))
    sums = sources_by_run[["nbytes_staged", "nbytes_ssd_written"]].sum()
    per_seed = (
        sums.div(sources_by_run["seed"].nunique(), axis=0)
        if "seed" in sources
        else sums
    )
    for run, facts in result.meta["runs"].items():
        stored = float(facts["storage_per_host_nbytes"])
        staging = float(facts["staging_s"])
        moved = per_seed.loc[run] if run in per_seed.index else {}
        cells = (
            float(moved.get(key, 0.0))
            for key in ("nbytes_staged", "nbytes_ssd_written")
        )
        table.add_row(
            str(run),
            {None: "-", "ssd": "SSD"}.get(facts["staged_to"], str(facts["staged_to"])),
            str(facts.get("hosts", "-")),
            _format_bytes(stored),
            readable(staging, Dimension.SECONDS, 3) if staging else "-",
            *map(_format_bytes, cells),
        )
    about = (
        "Staging happens once, before the first epoch. Bytes written to SSDs are those of all"
        " epochs."
    )
    return Section(
        "Storage and caches",
        body + html_tables([*text.bytes_tables(averages), table, about]),
    )


def _format_bytes(value: float) -> str:
    """Format bytes with a prefix and three digits; '-' for 0."""
    return readable(value, Dimension.NBYTES, 3) if value else "-"
