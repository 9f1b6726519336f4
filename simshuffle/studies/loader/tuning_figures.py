"""The figure of settings of loaders, from tables alone."""

from __future__ import annotations

import pandas as pd

from simshuffle.results.chart import GREY, Axis, Chart, Look, Mark, Panel, apart, rule
from simshuffle.studies.loader.tuning_tables import LOOP

COLOURS = ("#CCBB44", "#4477AA", "#228833", "#AA3377", "#66CCEE", "#EE6677")
MARKERS = ("v", "o", "^", "s", "D", "P")
NEED = "what the loops need"
ANSWER, OWN = "smallest that wastes nothing", "the scenario's own"


def tuning_chart(settings: pd.DataFrame, answers: pd.DataFrame) -> Chart:
    """Samples a second against workers, a panel for each run, a line for each number of batches
    ahead of a worker and of its threads; the need of the loops is a rule.

    Args:
        settings: table `settings`.
        answers: table `answers`.
    """
    rows = settings.assign(
        x=settings["workers"].astype(float),
        y=settings["samples_per_s"],
        look=[_name(*of) for of in settings[["workers", "threads", "prefetch"]].to_numpy()],
    )
    rows["tip"] = rows["look"] + ", " + rows["binds"].where(rows["binds"] != LOOP, "no stall")
    whole = rows[rows["prefetch"] % rows["workers"] == 0]
    names = list(dict.fromkeys(whole.sort_values(["threads", "prefetch", "workers"])["look"]))
    looks = {
        name: Look(name, COLOURS[n % len(COLOURS)], MARKERS[n % len(MARKERS)], size=3.0)
        for n, name in enumerate(names)
    }
    looks[NEED] = Look(NEED, GREY, dash=(0, (4, 1.5)))
    looks[OWN] = Look(OWN, "#000000", "x", size=4.5)
    looks[ANSWER] = Look(ANSWER, "#000000", "o", size=6.5, fill="none")
    panels = []
    for run, own in rows.groupby("run", sort=False):
        best = answers[answers["run"] == run].iloc[0]
        places = own.merge(best[["workers", "threads", "prefetch"]].to_frame().T.astype(int))
        lines = own[own["look"].isin(names)].sort_values("workers")
        panels.append(
            Panel(
                [
                    rule(NEED, y=float(best["needed_per_s"])),
                    Mark("line", lines),
                    Mark("point", lines),
                    Mark("point", own[own["own"]].assign(look=OWN)),
                    Mark("point", places.assign(look=ANSWER)),
                ],
                Axis("workers of a rank", True, ticks=apart(own["x"].unique().tolist(), True)),
                Axis(low=0.0, high=1.1 * float(max(own["y"].max(), best["needed_per_s"]))),
                title=str(run),
            )
        )
    about = "Samples that loaders bring in a second, by their workers and the batches ahead."
    height = 1.4 * len(panels)
    return Chart(panels, height, looks, about, y="samples/s")


def _name(workers: int, threads: int, prefetch: int) -> str:
    """What a line is called: batches ahead for each worker, and threads."""
    ahead = f"{prefetch / workers:.3g} ahead for a worker"
    return ahead if threads == 1 else f"{ahead}, {threads} threads"
