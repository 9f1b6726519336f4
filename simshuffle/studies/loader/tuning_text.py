"""Settings of loaders on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.loader.tuning_tables import (
    ANSWERS,
    DECODING,
    LOOP,
    LOST,
    READING,
    SETTING,
    SETTINGS,
    UNEVEN,
)

Row = Mapping[Any, Any]
SCARCE = 0.5
"""Batches that take more than this share of a host's memory are worth a sentence."""
REMEDIES = {
    UNEVEN: "Batches that take long come late: a longer prefetch hides them.",
    READING: "Workers wait for storage: more of them, or threads, would help.",
    DECODING: "Workers decode: more of them would help.",
}
"""What helps where workers bind; a resource that all share binds whatever the loader."""


def parts(settings: pd.DataFrame, answers: pd.DataFrame) -> Iterator[str | Table]:
    """All of it but the verdict, in order."""
    yield from map(_keys, answers.to_dict("records"))
    threads = ("threads",) * bool((settings["threads"] > 1).any())
    setting = ("workers", *threads, "prefetch", "samples_per_s", "waiting")
    more = ("stall_s", "first_s", "memory_nbytes", "binds")
    title = "Smallest settings with which loops never wait longer than they must"
    yield ANSWERS.listing(answers, title, ("run", "needed_per_s", *setting, *more[2:]))
    if len(answers) == 1:
        yield SETTINGS.listing(settings, "All settings", (*setting, "stall_every", *more), names=0)
    else:
        yield "settings.csv and the figure have all settings; for one run alone, --set sweep={}."
    yield (
        "Times vary as the scenario's jitter and sample sizes say. Queues are left out at shared"
        " resources that are not the bottleneck. Memory is that of batches; the worker processes"
        " come on top."
    )


def verdict(settings: pd.DataFrame, answers: pd.DataFrame) -> Iterator[str]:
    """What each run needs, and what that rests on."""
    for row in answers.to_dict("records"):
        yield from _answer(row, settings[settings["run"] == row["run"]])
    yield "Rests on one seed, and on decode and step times as the scenario gives them."


def _answer(row: Row, of: pd.DataFrame) -> Iterator[str]:
    """What one run needs, in sentences."""
    run, needed, found = row["run"], row["needed_per_s"], row["samples_per_s"]
    memory = readable(row["memory_nbytes"], Dimension.NBYTES, 3)
    best = of.set_index([*SETTING]).loc[tuple(row[name] for name in SETTING)]
    if row["binds"] == LOOP:
        busy = 100 * best["resource_s"] / best["step_s"]
        yield (
            f"{run}: {_setting(row)}: nothing stalls, at {found:.4g} samples/s. The batches of"
            f" a host take {memory}. The busiest shared resource is {best['resource']}, in use"
            f" {busy:.2g} % of the time."
        )
    else:
        yield (
            f"{run}: {_setting(row)}: {found:.4g} of the {needed:.4g} samples/s that the loops"
            f" could take; no setting that was tried gives more. The bottleneck: {row['binds']}."
            f" {REMEDIES.get(row['binds'], 'No setting of the loader changes that.')}"
        )
    for own in of[of["own"]].to_dict("records"):
        if own["samples_per_s"] >= (1 - LOST) * found:
            continue
        every = own["stall_every"]
        stalls = "" if pd.isna(every) else f", a stall every {every:.3g} steps"
        yield (
            f"{run}: as the scenario has it, {_setting(own)}: {own['samples_per_s']:.4g} samples/s;"
            f" loops wait {100 * own['waiting']:.2g} % of the time{stalls}. The bottleneck:"
            f" {own['binds']}."
        )
    if row["memory_nbytes"] > SCARCE * best["host_nbytes"]:
        host = readable(best["host_nbytes"], Dimension.NBYTES, 3)
        yield f"{run}: these batches take {memory} of a host's {host} of memory."


def _keys(row: Row) -> str:
    """How to ask for a setting."""
    keys = " ".join(f"--set workload.loader.{name}={row[name]}" for name in SETTING)
    ahead, rest = divmod(row["prefetch"], row["workers"])
    torch = f"in PyTorch num_workers={row['workers']}, prefetch_factor={ahead}; here "
    return f"{row['run']}: {torch if row['threads'] == 1 and not rest else ''}{keys}"


def _setting(row: Row) -> str:
    """A setting in words."""
    workers, ahead = row["workers"], row["prefetch"]
    threads = f" of {row['threads']} threads" if row["threads"] > 1 else ""
    return (
        f"{workers} worker{'s' * (workers > 1)}{threads}, {ahead} batch{'es' * (ahead > 1)} ahead"
    )
