"""Who the ranks of simulated runs waited for, as tables and sentences, from a result of ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.blame.waited_for import (
    ALONE,
    LABELS,
    WaitedForRow,
    as_they_were,
    bounding,
    idle_seconds,
    late_by_itself,
    ranked,
)
from simshuffle.report import report
from simshuffle.report.console import new_table
from simshuffle.report.timeline import HIDDEN, Timeline
from simshuffle.report.waiting import name_hosts
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import Result

if TYPE_CHECKING:
    from rich.table import Table

SLOW = 0.05
"""Share of an epoch from which on somebody is to blame (chosen; as for traces)."""
WORTH = 0.001  # share of an epoch below which nobody is listed
MOST_RUNS, LINES, MOST_ROWS = 18, 31, 10
"""Runs with a sentence, of two lines of a terminal; lines beside heads and notes of a screen of 40;
rows of a run."""
UNKNOWN = {
    "ranks": "Ranks and hosts cannot be told apart: of some ranks alone the timeline is kept"
    " (--timeline full keeps all).",
    "none": "Ranks and hosts cannot be told apart: no timeline is kept (--timeline full keeps it).",
}


@dataclass(frozen=True)
class Blamed:
    """An epoch of a run, and who its ranks waited for."""

    run: str
    epoch: int
    epoch_s: float
    rows: list[WaitedForRow]  # worst first
    together_s: Mapping[str, float]  # what ranks do together or wait for one another in, mean s
    ranks_known: bool = True  # whether the timeline has all ranks, so that they can be told apart

    def verdict(self) -> str:
        """One sentence: who is to blame most, or that nobody is."""
        if not self.rows or self.rows[0].share < SLOW:
            least = f"costs {SLOW:.0%} of epoch {self.epoch} ({self.epoch_s:.3g} s)"
            most = "".join(f"; the most is {of.what}, {of.share:.1%}" for of in self.rows[:1])
            if not self.ranks_known:
                return (
                    f"No link or server alone {least}{most}. Whether a rank or a host does cannot"
                    " be told: --timeline full keeps all ranks."
                )
            return f"Nobody is to blame: no rank, host, link or server alone {least}{most}."
        row = self.rows[0]
        return (
            f"To blame: {row.kind} {row.what}, {row.seconds:.3g} s of {self.epoch_s:.3g} s of epoch"
            f" {self.epoch} ({row.share:.0%}), {row.cause}: {row.why}."
        )


@dataclass(frozen=True)
class BlamedRuns:
    """What is found in a result."""

    source: str
    runs: list[Blamed]
    unknown: str  # what cannot be said, and why; '' if all can

    def parts(self) -> list[str | Table]:
        """What a terminal shows, at most a screen: a sentence for each run, then rows."""
        several = len(self.runs) > 1
        shown = self.runs[:MOST_RUNS]
        said: list[str | Table] = [
            f"{of.run}: {of.verdict()}" if several else of.verdict() for of in shown
        ]
        if len(self.runs) > len(shown):
            said.append(f"And {len(self.runs) - len(shown)} more runs; --run NAME names one.")
        # a sentence and a row take two lines where names fold
        room = (LINES - 2 * len(shown)) // (2 * len(shown)) if several else MOST_ROWS
        listed = [(of.run, row) for of in shown for row in of.rows[: max(room, 0)]]
        if listed:
            names = ["run"] * several + ["what", "kind", "cause", "why"]
            title = f"{self.source}: waited for, beyond what its peers are waited for"
            table = new_table(title, names, ["seconds", "of the epoch"])
            for run, row in listed:
                own = [row.what, row.kind, row.cause, row.why]
                seconds = f"{row.seconds:.3g}"
                table.add_row(*[run] * several, *own, seconds, f"{row.share:.1%}")
            said.append(table)
        if not several:
            said.append(_together(self.runs[0]))
        return [*said, *([self.unknown] if self.unknown else [])]

    def as_json(self) -> dict[str, Any]:
        """All rows as plain values, in s."""
        runs = [{"verdict": of.verdict(), **asdict(of)} for of in self.runs]
        return {"source": self.source, "runs": runs, "unknown": self.unknown}


def _together(of: Blamed) -> str:
    """What is nobody's: how long an average rank is in each phase that others have a part in."""
    parts = [
        f"{name} {seconds / of.epoch_s:.1%}"
        for name, seconds in sorted(of.together_s.items(), key=lambda each: -each[1])
        if seconds >= WORTH * of.epoch_s
    ]
    return f"Of the epoch, with waiting for others there: {', '.join(parts) or 'no part'}."


def blame_runs(result: Result, source: str, run: str = "", epoch: int | None = None) -> BlamedRuns:
    """Who the ranks of each run waited for, in its last epoch, of several seeds with the first.

    Args:
        result: of ``simshuffle run``.
        source: its folder, for people.
        run: the name of the only run that is looked at; all if ''.
        epoch: another epoch than the last.

    Returns:
        All that were waited for, worst first.

    Raises:
        InputError: the result is of another verb, or has no such run or epoch.
    """
    if result.study.verb != "run":
        rule, remedy = "must be a result of simshuffle run, or a trace", "Give one of those."
        refuse("RESULT", rule, f"a result of {result.study.verb}", remedy, source)
    epochs = result.tables["epochs"]
    names = list(dict.fromkeys(epochs["run"].astype(str)))
    if run and run not in names:
        remedy = f"There are {', '.join(names[:MOST_ROWS])}."
        refuse("--run", "must be a run of the result", repr(run), remedy, COMMAND_LINE)
    kept = result.meta.get("timeline", "full")
    runs = [_of_run(result, name, epoch, kept == "full") for name in names if run in ("", name)]
    return BlamedRuns(source, runs, UNKNOWN.get(kept, ""))


def _of_run(result: Result, run: str, epoch: int | None, whole: bool) -> Blamed:
    mine = result.tables["epochs"]
    mine = mine[mine["run"].astype(str) == run]
    known = sorted(set(mine["epoch"]))
    if epoch is not None and epoch not in known:
        rule, remedy = f"must be an epoch of {run}", f"There are {known[0]} to {known[-1]}."
        refuse("--epoch", rule, str(epoch), remedy, COMMAND_LINE)
    chosen = {"run": run, "epoch": known[-1] if epoch is None else epoch}
    if "seed" in mine:
        chosen["seed"] = mine["seed"].iloc[0]
        mine = mine[mine["seed"] == chosen["seed"]]

    def of(table: str) -> pd.DataFrame:
        found = result.tables[table]
        for key, value in chosen.items():
            text = found[key].astype(str) if key == "run" else found[key]
            found = found[text == value]
        return found.reset_index(drop=True)

    row, links, sources = of("epochs").iloc[0], of("links"), of("sources")
    epoch_s, ranks = float(row["epoch_s"]), int(row["world_size"])
    together, hidden = _seconds(of("iterations"), links, sources, of("breakdown"))
    facts = result.meta["runs"][run]
    if faults := facts.get("faults"):
        end = facts.get("start_s", 0.0) + float(
            mine.loc[mine["epoch"] <= chosen["epoch"], "epoch_s"].sum()
        )
        links = as_they_were(links, faults, end - epoch_s, end)
    rows = bounding(links, epoch_s, together, hidden)
    if whole and ranks > 1:
        phases = of("timeline")
        weight = report.row_weights(Timeline(phases, links, sources))
        if weight is not None:
            phases = phases.assign(weight=weight)
        count = facts["hosts"]
        hosts = name_hosts(links, count)
        idle_s = idle_seconds(links, epoch_s)
        decodes_late = together["decode"] > idle_s
        each = ranks_on_each(ranks, count)
        lasts = late_by_itself(phases, epoch_s, hosts, each, rows, decodes_late=decodes_late)
        rows = ranked(lasts, rows, idle_s)
    rows = [cause for cause in rows if cause.share >= WORTH]
    return Blamed(run, int(chosen["epoch"]), epoch_s, rows, together, ranks_known=whole)


def _seconds(
    iterations: pd.DataFrame, links: pd.DataFrame, sources: pd.DataFrame, breakdown: pd.DataFrame
) -> tuple[dict[str, float], float]:
    """Mean s of a rank in each label that is not computing alone, and in waiting for others there,
    by the means over all ranks that every result has; and mean s of what is in flight meanwhile."""
    weight = report.row_weights(Timeline(iterations, links, sources))
    phase, times = iterations["phase"].astype(str), 1.0 if weight is None else weight
    seconds = (iterations["mean_s"] * times).groupby(phase).sum()
    later = ((iterations["most_s"] - iterations["mean_s"]) * times).groupby(phase).sum()
    waits = breakdown[breakdown["cause"] != ""].groupby("cause", observed=True)["seconds"].sum()
    label = {phase: name for name, phases in LABELS.items() for phase in phases}
    found = dict.fromkeys((name for name in LABELS if name not in ALONE), 0.0)
    for name, value in seconds.items():
        if not str(name).startswith("wait_") and label.get(str(name)) in found:
            found[label[str(name)]] += float(value)
    for name, value in waits.items():
        # of several phases it is the one that the last rank does longest
        own = [of for of in report.LABELS[str(name)] if not of.startswith("wait_")]
        cause = label[max(own, key=lambda of: later.get(of, 0.0))]
        if cause in found:
            found[cause] += float(value)
    hidden = float(seconds.reindex(HIDDEN).fillna(0.0).sum())
    return found, hidden


def ranks_on_each(ranks: int, hosts: int) -> int:
    """Ranks of every host but maybe the last: a power of two, as GPUs of hosts are, where several
    counts are possible."""
    least = -(-ranks // hosts)
    most = (ranks - 1) // (hosts - 1) if hosts > 1 else ranks
    power = 1 << (least - 1).bit_length()
    return power if power <= most else least
