"""State what the ranks of simulated runs waited for, from a result of ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.blame.waited_for import (
    LABELS,
    OWN_CAUSES,
    WaitedForRow,
    apply_faults,
    find_bounds,
    find_own_lateness,
    idle_seconds,
    rank_rows,
)
from simshuffle.report import report
from simshuffle.report.console import new_table
from simshuffle.report.timeline import HIDDEN, Timeline
from simshuffle.report.waiting import name_hosts
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import Result
from simshuffle.study.verdict import Verdict

if TYPE_CHECKING:
    from rich.table import Table

SLOW = 0.05
"""Share of an epoch from which on somebody is to blame (chosen; as for traces)."""
MIN_SHARE = 0.001
"""Share of an epoch below which nothing is listed."""
MAX_RUNS = 18
"""Runs with a sentence, of two lines of a terminal each."""
LINES = 31
"""Lines beside heads and notes of a screen of 40."""
MAX_ROWS = 10
"""Rows of a run."""
# by how much of the timeline the run kept, as meta.json has it
UNKNOWN = {
    "ranks": "ranks and hosts, of which the timeline has only some (--timeline full).",
    "none": "ranks and hosts, of which no timeline is kept (--timeline full).",
}


@dataclass(frozen=True)
class BlamedEpoch:
    """An epoch of a run, and what its ranks waited for."""

    run: str  # name of the run
    epoch: int  # number of the epoch
    epoch_s: float  # s that the epoch took
    rows: list[WaitedForRow]  # worst first; those of `MIN_SHARE` of the epoch or more
    # by label: mean s of a rank in what others have a part in, waits for them included
    together_s: Mapping[str, float]
    ranks_known: bool = (
        True  # whether the timeline has all ranks, so that they can be told apart
    )

    def answer(self) -> str:
        """Return the sentence on who is to blame most, the first row; nobody is below
        `SLOW` of the epoch. Of unknown ranks it speaks of links and servers alone.
        """
        if self._is_blamed:
            row = self.rows[0]
            return (
                f"To blame: {row.kind} {row.what}, {row.seconds:.3g} s of {self.epoch_s:.3g} s of"
                f" epoch {self.epoch} ({row.share:.0%})."
            )
        cost = f"costs {SLOW:.0%} of epoch {self.epoch} ({self.epoch_s:.3g} s)"
        worst = "".join(
            f"; the most is {row.what}, {row.share:.1%}" for row in self.rows[:1]
        )
        if not self.ranks_known:
            return f"No link or server alone {cost}{worst}."
        return f"Nobody is to blame: no rank, host, link or server alone {cost}{worst}."

    def why(self) -> str:
        """Return in which phase the first row is waited for, and how it differs from
        its peers; '' if nobody is to blame.
        """
        if not self._is_blamed:
            return ""
        row = self.rows[0]
        return f"ranks wait for {row.kind} {row.what} in {row.cause}: {row.why}."

    @property
    def _is_blamed(self) -> bool:
        """Return whether the first row costs `SLOW` of the epoch or more."""
        return bool(self.rows) and self.rows[0].share >= SLOW


@dataclass(frozen=True)
class BlamedRuns:
    """The blamed epochs of a result, one for each run."""

    source: str  # folder of the result
    runs: list[BlamedEpoch]
    unknown: str  # what cannot be told apart, and why; '' if all can

    def verdict(self) -> Verdict:
        """Return who is to blame in each of the first `MAX_RUNS` runs, and why in the
        run where the blamed costs most; then whether only links and servers are known.
        """
        has_several = len(self.runs) > 1
        displayed = self.runs[:MAX_RUNS]
        answer = [
            f"{epoch.run}: {epoch.answer()}" if has_several else epoch.answer()
            for epoch in displayed
        ]
        if num_hidden := len(self.runs) - len(displayed):
            answer.append(f"And {num_hidden} more runs; --run NAME names one.")
        blamed = [epoch for epoch in self.runs if epoch.why()]
        worst = max(blamed, key=lambda epoch: epoch.rows[0].share, default=None)
        why = f"in {worst.run}, " * has_several + worst.why() if worst else ""
        basis = "one epoch of each run, by the first seed."
        return Verdict(answer, why, rests_on=basis, measure_next=self.unknown)

    def parts(self) -> list[str | Table]:
        """Return what a terminal shows, at most a screen: rows, of a single run the
        shared time, and the verdict.

        A single run has at most `MAX_ROWS` rows; each of several has fewer, down to none.
        """
        has_several = len(self.runs) > 1
        displayed = self.runs[:MAX_RUNS]
        # a sentence and a row take two lines where names fold
        num_rows = MAX_ROWS
        if has_several:
            num_rows = (LINES - 2 * len(displayed)) // (2 * len(displayed))
        listed = [
            (epoch.run, row)
            for epoch in displayed
            for row in epoch.rows[: max(num_rows, 0)]
        ]
        parts: list[str | Table] = []
        if listed:
            names = ["run"] * has_several + ["what", "kind", "cause", "why"]
            title = (
                f"{self.source}: what others wait for, beyond their waits for its peers"
            )
            table = new_table(title, names, ["seconds", "of the epoch"])
            for run, row in listed:
                texts = [row.what, row.kind, row.cause, row.why]
                seconds = f"{row.seconds:.3g}"
                table.add_row(*[run] * has_several, *texts, seconds, f"{row.share:.1%}")
            parts.append(table)
        if not has_several:
            parts.append(_state_shared_time(self.runs[0]))
        return [*parts, *self.verdict().lines()]

    def as_json(self) -> dict[str, Any]:
        """Return source, runs with their verdicts and rows, what is unknown, and the
        verdict on all runs, as plain values, in s.
        """
        runs = [
            {
                "verdict": " ".join([epoch.answer(), epoch.why()]).strip(),
                **asdict(epoch),
            }
            for epoch in self.runs
        ]
        about = {"source": self.source, "runs": runs, "unknown": self.unknown}
        return about | self.verdict().as_json()


def _state_shared_time(epoch: BlamedEpoch) -> str:
    """Return the sentence on the share of the epoch that an average rank is in each
    phase that others have a part in, longest first, without those below `MIN_SHARE`.
    """
    parts = [
        f"{name} {seconds / epoch.epoch_s:.1%}"
        for name, seconds in sorted(epoch.together_s.items(), key=lambda item: -item[1])
        if seconds >= MIN_SHARE * epoch.epoch_s
    ]
    return f"Shares of the epoch, with waits for other ranks: {', '.join(parts) or 'none'}."


def blame_runs(
    result: Result, source: str, run: str = "", epoch: int | None = None
) -> BlamedRuns:
    """Find what the ranks of each run waited for in one epoch, with the first seed.

    Without a timeline of all ranks, only links and servers are examined, and the result
    says so in ``unknown``.

    Args:
        result: of ``simshuffle run``.
        source: its folder, as messages name it.
        run: name of the only run that is examined; '' for all.
        epoch: number of the epoch that is examined; None for the last of each run.

    Returns:
        For each run, in the order of its table ``epochs``, what its ranks waited for,
        worst first.

    Raises:
        InputError: the result is of another verb, it has no such run, or one of the
            examined runs has no such epoch.
    """
    if result.study.verb != "run":
        rule = "must be a result of simshuffle run, or a trace"
        remedy = "Give one of these."
        refuse("RESULT", rule, f"a result of {result.study.verb}", remedy, source)
    epochs = result.tables["epochs"]
    names = list(dict.fromkeys(epochs["run"].astype(str)))
    if run and run not in names:
        remedy = f"There are {', '.join(names[:MAX_ROWS])}."
        refuse("--run", "must be a run of the result", repr(run), remedy, COMMAND_LINE)
    timeline = result.meta.get("timeline", "full")
    epochs_of_runs = [
        _blame_epoch(result, name, epoch, has_all_ranks=timeline == "full")
        for name in names
        if run in ("", name)
    ]
    return BlamedRuns(source, epochs_of_runs, UNKNOWN.get(timeline, ""))


def _blame_epoch(
    result: Result, run: str, epoch: int | None, *, has_all_ranks: bool
) -> BlamedEpoch:
    """Find what the ranks of a run waited for in an epoch; None is the last.

    Only the first seed counts. Links have the capacity that faults left them in the
    epoch. Rows below `MIN_SHARE` of the epoch are left out. Ranks and hosts are
    compared only if the timeline has all ranks, and there are several.

    Raises an InputError if the run has no such epoch. ``has_all_ranks`` says whether
    the timeline has all ranks.
    """
    run_epochs = result.tables["epochs"]
    run_epochs = run_epochs[run_epochs["run"].astype(str) == run]
    numbers = sorted(set(run_epochs["epoch"]))
    if epoch is not None and epoch not in numbers:
        rule = f"must be an epoch of {run}"
        remedy = f"There are {numbers[0]} to {numbers[-1]}."
        refuse("--epoch", rule, str(epoch), remedy, COMMAND_LINE)
    keys = {"run": run, "epoch": numbers[-1] if epoch is None else epoch}
    if "seed" in run_epochs:
        keys["seed"] = run_epochs["seed"].iloc[0]
        run_epochs = run_epochs[run_epochs["seed"] == keys["seed"]]

    def rows_of(table: str) -> pd.DataFrame:
        """Return the rows of a table on the run, epoch and seed, numbered from 0."""
        rows = result.tables[table]
        for key, value in keys.items():
            column = rows[key].astype(str) if key == "run" else rows[key]
            rows = rows[column == value]
        return rows.reset_index(drop=True)

    epoch_row = rows_of("epochs").iloc[0]
    links = rows_of("links")
    sources = rows_of("sources")
    epoch_s = float(epoch_row["epoch_s"])
    num_ranks = int(epoch_row["world_size"])
    shared_s, hidden_s = _shared_seconds(
        rows_of("iterations"), links, sources, rows_of("breakdown")
    )
    facts = result.meta["runs"][run]
    if faults := facts.get("faults"):
        is_until_epoch = run_epochs["epoch"] <= keys["epoch"]
        end = facts.get("start_s", 0.0) + float(
            run_epochs.loc[is_until_epoch, "epoch_s"].sum()
        )
        links = apply_faults(links, faults, end - epoch_s, end)
    rows = find_bounds(links, epoch_s, shared_s, hidden_s)
    if has_all_ranks and num_ranks > 1:
        phases = rows_of("timeline")
        weight = report.row_weights(Timeline(phases, links, sources))
        if weight is not None:
            phases = phases.assign(weight=weight)
        idle_s = idle_seconds(links, epoch_s)
        hosts = name_hosts(links, facts["hosts"])
        ranks_of_host = ranks_per_host(num_ranks, facts["hosts"])
        decodes_late = shared_s["decode"] > idle_s
        late_rows = find_own_lateness(
            phases, epoch_s, hosts, ranks_of_host, rows, decodes_late=decodes_late
        )
        rows = rank_rows(late_rows, rows, idle_s)
    rows = [row for row in rows if row.share >= MIN_SHARE]
    number = int(keys["epoch"])
    return BlamedEpoch(run, number, epoch_s, rows, shared_s, ranks_known=has_all_ranks)


def _shared_seconds(
    iterations: pd.DataFrame,
    links: pd.DataFrame,
    sources: pd.DataFrame,
    breakdown: pd.DataFrame,
) -> tuple[dict[str, float], float]:
    """Return the mean s of a rank in each label that others have a part in, and the
    mean s of what is in flight beside computing.

    The first has every one of `LABELS` but `OWN_CAUSES`, 0 where there is no time. A
    label's seconds include waits for others that it caused. All are from the means over
    all ranks, which every result has.

    Args:
        iterations, links, sources, breakdown: rows of one epoch in these tables.
    """
    weight = report.row_weights(Timeline(iterations, links, sources))
    times = 1.0 if weight is None else weight
    phase_of_row = iterations["phase"].astype(str)
    mean_s = (iterations["mean_s"] * times).groupby(phase_of_row).sum()
    extra_s = iterations["most_s"] - iterations["mean_s"]
    last_rank_extra_s = (extra_s * times).groupby(phase_of_row).sum()
    waits = (
        breakdown[breakdown["cause"] != ""]
        .groupby("cause", observed=True)["seconds"]
        .sum()
    )
    label_of_phase = {
        phase: name for name, phases in LABELS.items() for phase in phases
    }
    shared_s = dict.fromkeys((name for name in LABELS if name not in OWN_CAUSES), 0.0)
    for phase, seconds in mean_s.items():
        if (
            not str(phase).startswith("wait_")
            and label_of_phase.get(str(phase)) in shared_s
        ):
            shared_s[label_of_phase[str(phase)]] += float(seconds)
    for name, seconds in waits.items():
        # of several phases it is the one that the last rank does longest
        phases = [
            phase for phase in report.LABELS[str(name)] if not phase.startswith("wait_")
        ]
        longest = max(phases, key=lambda phase: last_rank_extra_s.get(phase, 0.0))
        if label_of_phase[longest] in shared_s:
            shared_s[label_of_phase[longest]] += float(seconds)
    hidden_s = float(mean_s.reindex(HIDDEN).fillna(0.0).sum())
    return shared_s, hidden_s


def ranks_per_host(ranks: int, hosts: int) -> int:
    """Return the ranks of every host but maybe the last, guessed from two numbers.

    They are as many on each host if the hosts divide the ranks; else the smallest power
    of two that is possible, as GPUs of hosts are; else the smallest count that is
    possible.

    Args:
        ranks: number of ranks of the job.
        hosts: number of hosts that they fill in order.
    """
    min_count = -(-ranks // hosts)
    if ranks % hosts == 0:
        return min_count
    max_count = (ranks - 1) // (hosts - 1) if hosts > 1 else ranks
    power = 1 << (min_count - 1).bit_length()
    return power if power <= max_count else min_count
