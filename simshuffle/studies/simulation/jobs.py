"""Jobs beside one another: how much longer an epoch of each takes than alone, and what they
share."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd
from rich.table import Table

from simshuffle.studies.simulation.causes import RESOURCES
from simshuffle.studies.simulation.ranking import longer
from simshuffle.study.long_table import get_long
from simshuffle.study.schema import Schema, amount, count, real, text
from simshuffle.study.study import Result

ALONE = " alone"
"""What the name of a run ends with that is a job without the others."""
UNHURT = 1.0005
"""How many times as long an epoch takes at most of a job that is not called slower."""

JOBS = Schema(
    {
        "job": text("name of the run of the job beside the others"),
        "epoch": count("from 1; the first is cold"),
        "alone_s": amount("s of the epoch without the other jobs", head="alone (s)", look=".4g"),
        "together_s": amount("s of the epoch beside them", head="together (s)", look=".4g"),
        "slowdown": real("how many times as long that is", head="slow-down", look=".3f"),
    },
    key=("job", "epoch"),
)


def jobs_table(result: Result) -> pd.DataFrame:
    """A row for each epoch of each job: columns of `JOBS`."""
    epochs = result.tables["epochs"]
    seconds = {
        (str(run), int(epoch)): float(lasted)
        for run, epoch, lasted in epochs[["run", "epoch", "epoch_s"]].itertuples(index=False)
    }
    rows = [
        (run, epoch, seconds[f"{run}{ALONE}", epoch], lasted)
        for (run, epoch), lasted in seconds.items()
        if (f"{run}{ALONE}", epoch) in seconds
    ]
    table = pd.DataFrame(rows, columns=list(JOBS.columns)[:-1])
    return table.assign(slowdown=table["together_s"] / table["alone_s"])


def jobs_listing(result: Result) -> Table:
    """The table as it is shown."""
    title = "Epochs of each job alone and beside the others"
    return JOBS.listing(result.derived["jobs"], title, list(JOBS.columns))


def jobs_verdict(result: Result) -> list[str]:
    """Which job loses most, and over what they share; the others; what it rests on."""
    sums = result.derived["jobs"].groupby("job", sort=False)[["alone_s", "together_s"]].sum()
    ratio = (sums["together_s"] / sums["alone_s"]).sort_values(ascending=False, kind="stable")
    hurt = ratio[ratio > UNHURT]
    said = ["No job is slower beside the others than alone."]
    if len(hurt):
        first = str(hurt.index[0])
        said = [f"{first} loses most: beside the others its epochs take {longer(hurt.iloc[0])}."]
        said += _shared(result, first)
        if len(hurt) > 1:
            each = ", ".join(f"those of {job} {longer(times)}" for job, times in hurt[1:].items())
            said.append(f"Of the others, {each}.")
    facts = result.meta["runs"].values()
    routings = list(dict.fromkeys(of["routing"] for of in facts if "routing" in of))
    on = f"one seed and routing {', '.join(routings)}"
    return [*said, f"Rests on {on}; the staging of each job is simulated alone."]


def _shared(result: Result, job: str) -> Iterator[str]:
    """The busiest link that a job and another one both use, while the job ran beside the others."""
    used = _utilisation(result)
    others = [run for run in used if run.endswith(ALONE) and run != f"{job}{ALONE}"]
    common = set(used[f"{job}{ALONE}"]) & {link for run in others for link in used[run]}
    busy = {link: share for link, share in used[job].items() if link in common}
    if busy:
        link = max(busy, key=lambda name: busy[name])
        name = RESOURCES.get(link, link)
        yield f"The busiest thing that it shares with another is {name}: {busy[link]:.0%} in use."


def _utilisation(result: Result) -> dict[str, dict[str, float]]:
    """Of each run, how busy each link was in the epoch in which it was busiest."""
    wanted = ["run", "link", "mean_utilisation"]
    out: dict[str, dict[str, float]] = {}
    for piece in get_long(result.tables, "links").pieces(wanted):
        for run, link, share in piece[wanted].itertuples(index=False, name=None):
            of = out.setdefault(str(run), {})
            of[str(link)] = max(of.get(str(link), 0.0), share)
    return out
