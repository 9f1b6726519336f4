"""What is said of runs to which something happened: faults, hosts that were lost, a job that was
killed. All of it is in ``meta.json``, by run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from simshuffle.report.console import new_table
from simshuffle.report.faults import describe_faults
from simshuffle.spec.units import Dimension, readable
from simshuffle.study.study import Result

HAPPENED = ("killed", "faults", "losses", "completeness")
"""What ``meta.json`` has of such a run."""
MOST = 4
"""Runs that lost hosts and are told of in a verdict."""
AWAY = {
    "detect_s": "until it was noticed",
    "restart_s": "to start again",
    "restore_s": "to read the checkpoint",
    "reread_s": "to read its samples again",
    "waited_s": "more until it was repaired",
}


def happened(result: Result) -> dict[str, dict[str, Any]]:
    """For JSON, what of `HAPPENED` there is, each by run."""
    runs = result.meta["runs"]
    found = {name: {run: of[name] for run, of in runs.items() if name in of} for name in HAPPENED}
    return {name: of for name, of in found.items() if of}


def lines(meta: Mapping[str, Any]) -> Iterator[str]:
    """Lines of the notes of a run."""
    if meta.get("killed"):
        yield killed(meta["killed"])
    # where a host was lost, that is told below, and no other need have begun
    if "faults" in meta and (meta["faults"] or not meta.get("losses")):
        yield f"{describe_faults(meta['faults'])}."
    yield from map(_lost, meta.get("losses", ()))


def sentences(result: Result) -> list[str]:
    """What a verdict says of it."""
    runs = result.meta["runs"]
    said = [
        f"{run} was {killed(of['killed'])} Its seconds are those until then."
        for run, of in runs.items()
        if "killed" in of
    ]
    said += [
        f"{run}: {describe_faults(rows)}."
        for run, of in runs.items()
        if (rows := _unnamed_faults(of))
    ]
    lossy = {run: of for run, of in runs.items() if of.get("losses")}
    for run, of in list(lossy.items())[:MOST]:
        losses = of["losses"]
        seconds = sum(loss["redone_s"] + sum(loss[name] for name in AWAY) for loss in losses)
        hosts = ", ".join(loss["host"] for loss in losses)
        least = min(each["seen"] for each in of["completeness"])
        usual = of["completeness"][0]["planned"]  # whole batches alone, maybe
        seen = f"an epoch saw {100 * least:.3g} % of the data set in place of {100 * usual:.3g} %"
        if least > usual - 1e-3:
            seen = "all epochs saw as much of the data set as without that"
        ended = " and ended there" if losses[-1]["ranks"] == 0 else ""
        took = readable(seconds, Dimension.SECONDS, 3)
        said.append(f"{run} lost {hosts}{ended}, which cost it {took}; {seen}.")
    more = len(lossy) - MOST
    return [*said, *[f"{more} more runs lost hosts; the table below has them."] * (more > 0)]


def _unnamed_faults(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The faults of a run other than those of hosts that its ranks wait for: these are named as the
    cause of the waiting."""
    hosts = {each["host"] for each in facts.get("waited_for", ())}
    return [
        row for row in facts.get("faults", ()) if str(row["what"]).partition(".")[0] not in hosts
    ]


def completeness(result: Result) -> Table | None:
    """Which share of the data set each epoch has seen, and computed twice; None of runs that lost
    no host."""
    of_runs = {
        run: of["completeness"] for run, of in result.meta["runs"].items() if of.get("completeness")
    }
    if not of_runs:
        return None
    rows = (
        [run, str(epoch["epoch"]), *(f"{100 * epoch[name]:.1f} %" for name in ("seen", "twice"))]
        for run, epochs in of_runs.items()
        for epoch in epochs
    )
    return new_table("Share of the data set", ["run"], ["epoch", "seen", "computed twice"], rows)


def tables(result: Result) -> Sequence[Table]:
    """The tables that are shown of it."""
    found = completeness(result)
    return [] if found is None else [found]


def _lost(loss: Mapping[str, Any]) -> str:
    """A host that was lost, and what that cost."""
    at, redone = (readable(loss[name], Dimension.SECONDS, 3) for name in ("at_s", "redone_s"))
    where = f"Lost {loss['host']} at {at}, in epoch {loss['epoch']}"
    if loss["ranks"] == 0:
        why = f": {loss['loader']} does not go on, {loss['refused']}" if loss.get("refused") else ""
        return f"{where}, where the job ended{why}."
    spent = [
        f"{readable(loss[name], Dimension.SECONDS, 3)} {does}"
        for name, does in AWAY.items()
        if loss[name]
    ]
    parts = ", ".join([f"{redone} of work is done again", *spent])
    by = f"; what they read is by {loss['loader']}" if loss.get("loader") else ""
    return f"{where}: {parts}; {loss['ranks']:,} ranks went on ({loss['policy']}){by}."


def killed(about: Mapping[str, Any]) -> str:
    """What ended a job, and when."""
    others = f" and {about['writing'] - 1} more" if about["writing"] > 1 else ""
    at, waited = (readable(about[name], Dimension.SECONDS, 3) for name in ("at_s", "waited_s"))
    return (
        f"killed by the watchdog {at} after it began, in epoch {about['epoch']} after iteration"
        f" {about['iteration']}: ranks had waited {waited} for rank {about['rank']}{others},"
        f" {about['what']}."
    )
