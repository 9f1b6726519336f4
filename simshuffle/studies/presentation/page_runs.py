"""What the page has of runs beside their tables: charts, the network, the tail of the exchange."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from simshuffle.job.scenario.scenario import Scenario
from simshuffle.report import intervals, report
from simshuffle.report.console import new_table
from simshuffle.report.kept_phases import Kept
from simshuffle.report.links import links_of_whole_epochs
from simshuffle.spec.arrays import Floats
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.presentation import page_charts as charts
from simshuffle.studies.presentation.of_runs import exchange_phases
from simshuffle.studies.presentation.page_charts import EXCHANGE
from simshuffle.studies.presentation.page_network import MOST_ROWS, drawing, loads
from simshuffle.studies.presentation.page_parts import Section, bullets, details, paragraph, tables
from simshuffle.studies.presentation.page_vega import figure
from simshuffle.studies.simulation import text
from simshuffle.studies.simulation.figures import breakdown_chart
from simshuffle.studies.simulation.study import labels_of, means_of, timeline_of
from simshuffle.studies.simulation.sweep_figures import sweep_chart
from simshuffle.studies.simulation.tables import WHOLE_EPOCH, Means, last_epochs, samples_of
from simshuffle.studies.simulation.tables import SweptAxis as Swept
from simshuffle.study.study import Result

if TYPE_CHECKING:
    from rich.table import Table

MOST_POINTS = 6000
"""Of the chart by iteration: rows of its table."""
MOST_NETWORKS = 4
_SHOWN = "exchange and wait_exchange"


def sections(result: Result, runs: Mapping[str, Scenario]) -> Iterator[Section]:
    """All that is shown of runs, but what every result has; ``runs``: their scenarios by name, as
    far as they are known."""
    of = means_of(result)
    yield _breakdown(result, of)
    yield from _scaling(of)
    yield _network(result, runs)
    yield from _tail(result)
    yield _storage(result, of)


def _scaling(of: Means) -> Iterator[Section]:
    """Seconds of the last epoch by ranks, of runs by their names without these; nothing where all
    have the same number of ranks."""
    epochs = last_epochs(of.epochs).sort_values("world_size", kind="stable")
    if epochs["world_size"].nunique() < 2:
        return
    lines = epochs["run"].str.replace(r" @\d+$", "", regex=True)
    axes: list[Swept] = [
        {"name": "world_size", "key": "world_size", "numbers": True},
        {"name": "line", "key": "line", "numbers": False},
    ]
    rows = epochs.assign(line=lines, label=lines, mean=epochs["epoch_s"])
    places = pd.MultiIndex.from_frame(rows[["run", "epoch"]])
    half = np.nan if of.half is None else of.half["epoch_s"].loc[places].to_numpy(float)
    rows = rows.assign(low=rows["mean"] - half, high=rows["mean"] + half, seeds=of.seeds)
    rows = intervals.add_interval_ends(rows, of.ends)
    chart_of = sweep_chart(rows.assign(measure=WHOLE_EPOCH), axes, samples=samples_of(epochs))
    yield Section("Scaling", figure(chart_of, "Time per epoch by ranks."))


def _breakdown(result: Result, of: Means) -> Section:
    bars, labels = charts.shown_epochs(of.epochs), labels_of(result.meta)
    whole = len(of.epochs)
    half, about = of.epoch_half, of.about
    chart_of = breakdown_chart(of.breakdown, of.epochs, labels, half, about, bars, of.ends)
    left_out = f" {len(bars)} of {whole} epochs are drawn; the table has all."
    drawn = figure(chart_of, "Seconds of an epoch.", left_out * (len(bars) < whole))
    booked = labels if labels == "paper" else None
    notes = [report.legend(of.breakdown, labels)]
    notes += [] if of.epoch_half is None else [text.about_interval(of.about)]
    body = drawn + tables([text.seconds_table(of, booked), *notes])
    if found := result.meta.get("intervals"):
        body += tables(intervals.details(found))
    if booked is None:
        body += details("By label and cause", tables([text.labels_table(of)]))
    return Section("Where the time goes", body)


def _network(result: Result, runs: Mapping[str, Scenario]) -> Section:
    epochs, notes = result.tables["epochs"], []
    links = links_of_whole_epochs(result.tables["links"], epochs)
    if "seed" in links:
        first = links.groupby(links["run"].astype(str))["seed"].transform("min")
        links = links[links["seed"] == first]
        notes.append("Links are those of the first seed of every run.")
    machines: dict[str, list[str]] = {}  # the runs on each; where no scenario is known, a run alone
    for run in dict.fromkeys(links["run"].astype(str)):
        key = f"network {runs[run].cluster.topology!r}" if run in runs else run
        machines.setdefault(key, []).append(run)
    body = ""
    for names in list(machines.values())[:MOST_NETWORKS]:
        here = links[links["run"].astype(str).isin(names)]
        body += _drawn(here, names, len(machines) > 1)
    if len(machines) > MOST_NETWORKS:
        body += paragraph(f"{MOST_NETWORKS} of {len(machines)} networks are drawn.")
    if (epochs["iterations_simulated"] < epochs["iterations"]).any():
        notes.append(
            "Bytes and mean use of links are those of all iterations: of epochs of which a part was"
            " simulated they are scaled. The peak is that of the part."
        )
    return Section("The network", body + tables([*notes, _tiers(links)]))


def _drawn(links: pd.DataFrame, names: list[str], several: bool) -> str:
    """The drawing of a machine, and what is left out of it."""
    of = drawing(links)
    if of is None:
        return paragraph(f"{', '.join(names)}: nothing crossed the network.")
    links = links.assign(run=links["run"].astype(str))
    epochs = links[["run", "epoch"]].drop_duplicates()
    notes = list(of.notes)
    if len(epochs) * len(of.lines) > MOST_ROWS:
        epochs = epochs.drop_duplicates("run", keep="last")
        notes.append("The last epoch of every run is shown.")
    most = max(1, MOST_ROWS // len(of.lines))
    if len(epochs) > most:
        notes.append(f"The last {most} of {len(epochs)} runs are shown.")
        epochs = epochs.tail(most)
    pairs = list(epochs.itertuples(index=False, name=None))
    by_epoch = dict(iter(links.groupby(["run", "epoch"], sort=False)))
    rows = [row for pick, pair in enumerate(pairs) for row in loads(of, by_epoch[pair], pick)]
    picks = [charts.bar_name(run, int(epoch), True) for run, epoch in pairs]
    notes.append("Links that carried nothing in any of the runs are left out.")
    whose = f" {', '.join(names)}." if several else ""
    about = (
        f"A line has the colour of the busier of its directions; grey is idle.{whose}"
        " Pointer or arrow keys, the busiest first, say which link it is, with its bytes."
    )
    return charts.network(of, rows, picks, about) + bullets(notes)


def _tiers(links: pd.DataFrame) -> Table:
    """The last epoch of every run by kind of link."""
    out = []
    names = links["run"].astype(str)
    last = links[links["epoch"] == links.groupby(names)["epoch"].transform("max")]
    groups = last.groupby([last["run"].astype(str), last["tier"].astype(str)], sort=False)
    for (run, tier), rows in groups:
        in_bytes = str(rows["unit"].iloc[0]) == "B"
        mean = rows["mean_utilisation"]
        moved = readable(rows["nbytes"].sum(), Dimension.NBYTES, 3) if in_bytes else "-"
        shares = map(_percent, (mean.mean(), mean.max(), rows["peak_utilisation"].max()))
        out.append([str(run), str(tier), f"{len(rows):,}", moved, *shares])
    return new_table(
        "Links and devices by kind, last epoch; mean over the epoch, and its highest moment",
        ["run", "kind"],
        ["links", "bytes", "mean of all", "mean of the busiest", "peak"],
        out,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share >= 1e-5 else "< 0.001 %"


def _tail(result: Result) -> Iterator[Section]:
    """How ranks differ in the exchange; nothing where no run has one."""
    iterations = result.tables["iterations"]
    of = iterations[iterations["phase"].isin(list(EXCHANGE)) & (iterations["iteration"] > 0)]
    if of.empty:
        return
    if "seed" in of:
        of = of[of["seed"] == of["seed"].min()]
    body = _by_iteration(of)
    kept = timeline_of(result.meta)
    over_ranks = [] if kept == "none" else [_over_ranks(result, kept)]
    explained = (
        "exchange: the loop works for it or waits for its own messages; wait_exchange: for other"
        " ranks at a barrier; exchange_hidden: messages travel while it does something else."
    )
    seeds = ["Of the first seed."] if "seed" in iterations else []
    parts: list[str | Table] = [explained, *seeds, *over_ranks, _slowest(of)]
    yield Section("The tail of the exchange", body + tables(parts))


def _by_iteration(of: pd.DataFrame) -> str:
    names = of["run"].astype(str)
    runs = list(dict.fromkeys(names))
    place = {run: number for number, run in enumerate(runs)}
    of = of.assign(run=names.map(place), phase=of["phase"].astype(str))
    about = "The line is the mean over all ranks, the band goes from the least to the most of them."
    wide = max(1, -(-len(of) // MOST_POINTS))
    if wide > 1:
        about += f" {wide} iterations each are one point."
        of = of.assign(iteration=(of["iteration"] - 1) // wide * wide + 1)
        measures = {"mean_s": "mean", "least_s": "min", "most_s": "max"}
        keys = ["run", "epoch", "iteration", "phase"]
        of = of.groupby(keys, sort=False).agg(measures).reset_index()
    columns = ["run", "epoch", "iteration", "phase", "mean_s", "least_s", "most_s"]
    rows = [
        [*row[:4], *(float(f"{value:.4g}") for value in row[4:])]
        for row in of[columns].astype(object).itertuples(index=False, name=None)
    ]
    epochs = sorted(int(epoch) for epoch in of["epoch"].unique())
    return charts.exchange(rows, runs, epochs, about)


def _over_ranks(result: Result, kept: Kept) -> Table:
    """Seconds that a rank spends in a whole epoch: median, 99th percentile and most over the ranks;
    iterations that stand for others count as often."""
    keys, sources = ["run", "epoch", "phase", "rank"], result.tables["sources"]
    seed = sources["seed"].min() if "seed" in sources else 0
    phases = pd.concat([of[of["seed"] == seed] for of in exchange_phases(result)])
    sums = phases.groupby(keys, sort=False)["seconds"].sum()
    whose = "all ranks" if kept == "full" else "a sample of ranks"
    table = new_table(
        f"Exchange of a rank in an epoch, ms, over {whose}",
        ["run", "phase"],
        ["epoch", "ranks", "median", "99th percentile", "most"],
    )
    wide = sums.unstack("phase").reindex(columns=list(EXCHANGE))
    wide[_SHOWN] = wide[["exchange", "wait_exchange"]].sum(axis=1)
    for (run, epoch), ranks in wide.groupby(level=["run", "epoch"], sort=False):
        for phase in (*EXCHANGE, _SHOWN):
            seconds = ranks[phase].fillna(0.0).to_numpy(float)
            if seconds.any():
                table.add_row(str(run), phase, str(epoch), f"{len(seconds):,}", *_tail_of(seconds))
    return table


def _slowest(of: pd.DataFrame) -> Table:
    """Seconds of the slowest rank of an iteration: median, 99th percentile and most over them."""
    keys = [of["run"].astype(str), of["epoch"], of["phase"].astype(str)]
    return new_table(
        "Exchange of the slowest rank of an iteration, ms, over iterations",
        ["run", "phase"],
        ["epoch", "iterations", "mean of all ranks", "median", "99th percentile", "most"],
        (
            [
                *(str(run), str(phase), str(epoch), f"{len(rows):,}"),
                _milliseconds(rows["mean_s"].mean()),
                *_tail_of(rows["most_s"].to_numpy(float)),
            ]
            for (run, epoch, phase), rows in of.groupby(keys, sort=False)
        ),
    )


def _tail_of(seconds: Floats) -> list[str]:
    """Median, 99th percentile and most."""
    return [_milliseconds(of) for of in (*np.quantile(seconds, [0.5, 0.99]), seconds.max())]


def _milliseconds(seconds: float) -> str:
    """With three digits."""
    return f"{1e3 * seconds:,.0f}" if seconds >= 1 else f"{1e3 * seconds:.3g}"


def _storage(result: Result, of: Means) -> Section:
    body = ""
    if drawn := charts.sources(of):
        body = figure(drawn, "Bytes that ranks read in an epoch.")
    table = new_table(
        "Storage of a host and staging",
        ["run", "kept in"],
        ["hosts", "storage of a host", "staging", "staged", "written to SSDs"],
    )
    sources = result.tables["sources"]
    sums = sources.groupby(sources["run"].astype(str))[["nbytes_staged", "nbytes_ssd_written"]]
    per_seed = sums.sum() / (sources["seed"].nunique() if "seed" in sources else 1)
    for run, facts in result.meta["runs"].items():
        stored = float(facts["storage_per_host_nbytes"])
        staging = float(facts["staging_s"])
        moved = per_seed.loc[run] if run in per_seed.index else {}
        cells = (float(moved.get(key, 0.0)) for key in ("nbytes_staged", "nbytes_ssd_written"))
        table.add_row(
            str(run),
            {None: "-", "ssd": "SSD"}.get(facts["staged_to"], str(facts["staged_to"])),
            str(facts.get("hosts", "-")),
            _bytes(stored),
            readable(staging, Dimension.SECONDS, 3) if staging else "-",
            *map(_bytes, cells),
        )
    about = "Staging is once, before the first epoch; what is written to SSDs is of all epochs."
    return Section("Storage and caches", body + tables([*text.bytes_tables(of), table, about]))


def _bytes(value: float) -> str:
    return readable(value, Dimension.NBYTES, 3) if value else "-"
