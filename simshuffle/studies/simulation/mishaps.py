"""Texts on the mishaps of runs: faults, lost hosts, and a job that was killed. The
facts are in ``meta.json``, by run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from simshuffle.report.console import new_table
from simshuffle.report.faults import describe_faults
from simshuffle.spec.units import Dimension, readable
from simshuffle.study.study import Result

MISHAP_KINDS = ("killed", "faults", "losses", "completeness")
"""Keys that ``meta.json`` has of a run with mishaps."""
MAX_LOSSY_RUNS = 4
"""Largest number of runs that lost hosts with a sentence in a verdict."""
# columns of a loss in ``meta.json``, in s, and what each is for
ABSENCE_PHASES = {
    "detect_s": "until the loss was noticed",
    "waited_s": "more until hosts were repaired",
    "restart_s": "to start again",
    "restore_s": "to read the checkpoint",
    "reread_s": "to read its samples again",
}


def mishaps_by_kind(result: Result) -> dict[str, dict[str, Any]]:
    """Return the mishaps of a result for JSON: {kind: {run: facts}}.

    Kinds are those of `MISHAP_KINDS` that a run has in ``meta.json``.
    """
    runs = result.meta["runs"]
    mishaps = {
        name: {run: facts[name] for run, facts in runs.items() if name in facts}
        for name in MISHAP_KINDS
    }
    return {
        name: runs_of_kind for name, runs_of_kind in mishaps.items() if runs_of_kind
    }


def list_notes(meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines on mishaps in the notes of a run: the kill, the faults, and each
    lost host; none without mishaps.

    ``meta`` has the facts on the run in ``meta.json``.
    """
    if meta.get("killed"):
        yield describe_kill(meta["killed"])
    # where a host was lost, that is told below, and no other need have begun
    if "faults" in meta and (meta["faults"] or not meta.get("losses")):
        yield f"{describe_faults(meta['faults'])}."
    yield from map(_describe_loss, meta.get("losses", ()))


def list_sentences(result: Result) -> list[str]:
    """Return the sentences of a verdict on mishaps: kills, faults, and lost hosts.

    Faults are left out that a waiting names. At most `MAX_LOSSY_RUNS` runs have a
    sentence on their lost hosts, and a last sentence says how many more there
    are. The cost is the time of work done again and of all `ABSENCE_PHASES`, over all
    losses of a run.
    """
    runs = result.meta["runs"]
    sentences = [
        f"{run} was {describe_kill(facts['killed'])} Its seconds end there."
        for run, facts in runs.items()
        if "killed" in facts
    ]
    sentences += [
        f"{run}: {describe_faults(rows)}."
        for run, facts in runs.items()
        if (rows := _unnamed_faults(facts))
    ]
    lossy = {run: facts for run, facts in runs.items() if facts.get("losses")}
    for run, facts in list(lossy.items())[:MAX_LOSSY_RUNS]:
        losses = facts["losses"]
        seconds = sum(
            loss["redone_s"] + sum(loss[name] for name in ABSENCE_PHASES)
            for loss in losses
        )
        hosts = ", ".join(loss["host"] for loss in losses)
        min_seen = min(epoch["seen"] for epoch in facts["completeness"])
        planned_share = facts["completeness"][0][
            "planned"
        ]  # whole batches alone, maybe
        seen_text = (
            f"an epoch saw {100 * min_seen:.3g} % of the data set instead of"
            f" {100 * planned_share:.3g} %"
        )
        if min_seen > planned_share - 1e-3:
            seen_text = "all epochs saw as much of the data set as without the loss"
        end_text = " and ended there" if losses[-1]["ranks"] == 0 else ""
        duration = readable(seconds, Dimension.SECONDS, 3)
        sentences.append(
            f"{run} lost {hosts}{end_text}; this cost {duration}; {seen_text}."
        )
    num_hidden = len(lossy) - MAX_LOSSY_RUNS
    return [
        *sentences,
        *[f"{num_hidden} more runs lost hosts; the table has them."] * (num_hidden > 0),
    ]


def _unnamed_faults(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the faults of a run that no waiting names.

    Faults of hosts that the ranks wait for are named as the cause of the waiting.
    """
    hosts = {host_row["host"] for host_row in facts.get("waited_for", ())}
    return [
        row
        for row in facts.get("faults", ())
        if str(row["what"]).partition(".")[0] not in hosts
    ]


def completeness_table(result: Result) -> Table | None:
    """Return the table of the share (%) of the data set that each epoch saw, and that
    it computed twice, for the runs that lost a host.

    Returns:
        None if no run lost a host.
    """
    epochs_by_run = {
        run: facts["completeness"]
        for run, facts in result.meta["runs"].items()
        if facts.get("completeness")
    }
    if not epochs_by_run:
        return None
    rows = (
        [
            run,
            str(epoch["epoch"]),
            *(f"{100 * epoch[name]:.1f} %" for name in ("seen", "twice")),
        ]
        for run, epochs in epochs_by_run.items()
        for epoch in epochs
    )
    return new_table(
        "Share of the data set", ["run"], ["epoch", "seen", "computed twice"], rows
    )


def list_tables(result: Result) -> Sequence[Table]:
    """Return the tables on mishaps: one if a run lost a host, else []."""
    table = completeness_table(result)
    return [] if table is None else [table]


def _describe_loss(loss: Mapping[str, Any]) -> str:
    """Return the sentence on a host that was lost, and on what that cost, or that the
    job ended there.
    """
    lost_at = readable(loss["at_s"], Dimension.SECONDS, 3)
    redone = readable(loss["redone_s"], Dimension.SECONDS, 3)
    beginning = f"Lost {loss['host']} at {lost_at}, in epoch {loss['epoch']}"
    if loss["ranks"] == 0:
        reason = (
            f": {loss['loader']} cannot go on, {loss['refused']}"
            if loss.get("refused")
            else ""
        )
        return f"{beginning}, where the job ended{reason}."
    phases = [
        f"{readable(loss[name], Dimension.SECONDS, 3)} {purpose}"
        for name, purpose in ABSENCE_PHASES.items()
        if loss[name]
    ]
    parts = ", ".join([f"{redone} of work is done again", *phases])
    loader_text = (
        f"; {loss['loader']} decides what they read" if loss.get("loader") else ""
    )
    return f"{beginning}: {parts}; {loss['ranks']:,} ranks went on ({loss['policy']}){loader_text}."


def describe_kill(kill: Mapping[str, Any]) -> str:
    """Return the phrase on the end of a job that the watchdog killed."""
    peers_text = f" and {kill['writing'] - 1} more" if kill["writing"] > 1 else ""
    killed_at = readable(kill["at_s"], Dimension.SECONDS, 3)
    wait = readable(kill["waited_s"], Dimension.SECONDS, 3)
    return (
        f"killed by the watchdog {killed_at} after it began, in epoch {kill['epoch']} after"
        f" iteration {kill['iteration']}: ranks had waited {wait} for rank"
        f" {kill['rank']}{peers_text}, {kill['what']}."
    )
