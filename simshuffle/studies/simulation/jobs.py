"""Jobs that share a machine: how much longer an epoch of each takes than in isolation,
and which link they share.
"""

from __future__ import annotations

import pandas as pd
from rich.table import Table

from simshuffle.studies.simulation.causes import RESOURCES
from simshuffle.studies.simulation.ranking import describe_ratio
from simshuffle.study.long_table import get_long
from simshuffle.study.schema import Schema, amount, count, real, text
from simshuffle.study.study import Result
from simshuffle.study.verdict import Verdict

ISOLATED_SUFFIX = " alone"
"""End of the name of a run that is a job without the others."""
MAX_UNHURT_RATIO = 1.0005
"""Largest slow-down of a job that is not called slower."""

JOBS = Schema(
    {
        "job": text("name of the job's run beside the other jobs"),
        "epoch": count("from 1; the first is cold"),
        "alone_s": amount(
            "s of the epoch without the other jobs", head="alone (s)", look=".4g"
        ),
        "together_s": amount(
            "s of the epoch beside the other jobs", head="together (s)", look=".4g"
        ),
        "slowdown": real("together_s / alone_s", head="slow-down", look=".3f"),
    },
    key=("job", "epoch"),
)


def jobs_table(result: Result) -> pd.DataFrame:
    """Return the epochs of each job alone and beside the others: columns of `JOBS`.

    ``slowdown`` is together_s over alone_s; epochs that one of both lacks are left out.
    """
    epochs = result.tables["epochs"]
    seconds = {
        (str(run), int(epoch)): float(epoch_s)
        for run, epoch, epoch_s in epochs[["run", "epoch", "epoch_s"]].itertuples(
            index=False
        )
    }
    rows = [
        (run, epoch, seconds[f"{run}{ISOLATED_SUFFIX}", epoch], epoch_s)
        for (run, epoch), epoch_s in seconds.items()
        if (f"{run}{ISOLATED_SUFFIX}", epoch) in seconds
    ]
    table = pd.DataFrame(rows, columns=list(JOBS.columns)[:-1])
    return table.assign(slowdown=table["together_s"] / table["alone_s"])


def list_jobs(result: Result) -> Table:
    """Return the table of jobs, all epochs of each, as a terminal displays it."""
    title = "Epochs of each job alone and beside the others"
    return JOBS.listing(result.derived["jobs"], title, list(JOBS.columns))


def jobs_verdict(result: Result) -> Verdict:
    """Return the verdict: the job that loses most, the other jobs, and the link that the
    first one shares.

    A job's loss is the ratio of the sums over all its epochs, beside the others and
    alone. Up to `MAX_UNHURT_RATIO` a job is not called slower, and not named.
    """
    sums = (
        result.derived["jobs"]
        .groupby("job", sort=False)[["alone_s", "together_s"]]
        .sum()
    )
    ratio = (sums["together_s"] / sums["alone_s"]).sort_values(
        ascending=False, kind="stable"
    )
    slowed_jobs = ratio[ratio > MAX_UNHURT_RATIO]
    sentences = ["No job is slower beside the others than alone."]
    shared_link = ""
    if len(slowed_jobs):
        slowest_job = str(slowed_jobs.index[0])
        slow_down = describe_ratio(slowed_jobs.iloc[0])
        sentences = [
            f"{slowest_job} loses most: beside the others its epochs take {slow_down}."
        ]
        shared_link = _describe_shared_link(result, slowest_job)
        if len(slowed_jobs) > 1:
            phrases = ", ".join(
                f"{job} takes {describe_ratio(job_ratio)}"
                for job, job_ratio in slowed_jobs[1:].items()
            )
            sentences.append(f"Of the other jobs, {phrases}.")
    facts = result.meta["runs"].values()
    routing_of_runs = (
        run_facts["routing"] for run_facts in facts if "routing" in run_facts
    )
    routings = ", ".join(dict.fromkeys(routing_of_runs))
    return Verdict(
        sentences,
        why=shared_link,
        rests_on=f"one seed and routing {routings}; each job is staged alone.",
    )


def _describe_shared_link(result: Result, job: str) -> str:
    """Return the sentence on the busiest link that a job shares with another, while it
    ran beside the others; '' if it shares no link.

    Shared is a link that both the job and another one use when they run alone.
    """
    utilisation = _utilisation(result)
    isolated_peers = [
        run
        for run in utilisation
        if run.endswith(ISOLATED_SUFFIX) and run != f"{job}{ISOLATED_SUFFIX}"
    ]
    common_links = set(utilisation[f"{job}{ISOLATED_SUFFIX}"]) & {
        link for run in isolated_peers for link in utilisation[run]
    }
    shared_links = {
        link: share for link, share in utilisation[job].items() if link in common_links
    }
    if not shared_links:
        return ""
    link = max(shared_links, key=lambda name: shared_links[name])
    return (
        f"the busiest resource that {job} shares with another job is"
        f" {RESOURCES.get(link, link)} ({100 * shared_links[link]:.0f} % in use)."
    )


def _utilisation(result: Result) -> dict[str, dict[str, float]]:
    """Return the utilisation (share) of each link by run: {run: {link: share}}.

    It is the mean over the epoch in which the link was busiest.
    """
    columns = ["run", "link", "mean_utilisation"]
    utilisation: dict[str, dict[str, float]] = {}
    for piece in get_long(result.tables, "links").pieces(columns):
        for run, link, share in piece[columns].itertuples(index=False, name=None):
            link_shares = utilisation.setdefault(str(run), {})
            link_shares[str(link)] = max(link_shares.get(str(link), 0.0), share)
    return utilisation
