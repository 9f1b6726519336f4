"""Predictions of jobs that read from one parallel file system at the same time."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import mean, median

import numpy as np

from simshuffle.errors import InputError, Problem
from simshuffle.network import Fluid, Links
from simshuffle.network.flows import Flows
from simshuffle.spec.library import shipped
from simshuffle.studies.validation.answers import load

FILES = 1_281_167  # of ImageNet-1K, which all jobs of the log read
PLATEAU = 1.03
STAMP = "%Y-%m-%d-%H-%M-%S"
UNSHARED = {
    "cluster.parallel_file_system.open_rate": "1 G/s",
    "cluster.parallel_file_system.background_load": "0",
}


@dataclass(frozen=True)
class Job:
    """One training job of a log."""

    model: str  # name of the model
    gpus: int  # ranks
    batch: int  # local batch size
    start: float  # s, after that of the first job
    epochs: tuple[float, ...]  # (epochs,) s measured
    # whether clients' caches hold its files, so that only the first epoch reads the servers
    cached: bool = False

    @property
    def name(self) -> str:
        """Model and ranks, as in 'resnet50 128'."""
        return f"{self.model} {self.gpus}"


def jobs(log: str, begins: str, ends: str) -> list[Job]:
    """The jobs of an epoch log in ``validation/data/`` that started from ``begins`` to ``ends`` (as
    in its column job_start).

    Raises:
        InputError: there is none.
    """
    path = shipped("validation") / "data" / log
    if not path.is_file():
        remedy = f"Name a file of {path.parent}."
        raise InputError(Problem("log", "no such file", repr(log), remedy))
    found: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            if begins <= record["job_start"] <= ends:
                key = record["job_start"], record["model"], record["gpus"]
                found.setdefault(key, []).append(record)
    if not found:
        rule = f"must name a time in which jobs of {log} started"
        raise InputError(Problem("values", rule, f"{begins} to {ends}", "Widen it."))
    first, out = _time(min(found)[0]), []
    for (start, model, gpus), rows in found.items():
        after, lasted = _time(start) - first, tuple(float(row["epoch_s"]) for row in rows)
        batch = int(rows[0]["local_batch_size"])
        out.append(Job(model, int(gpus), batch, after.total_seconds(), lasted))
    return out


def _time(stamp: str) -> datetime:
    return datetime.strptime(stamp, STAMP)


def alone(values: Mapping[str, str]) -> list[dict[str, str]]:
    """For each job the values of a run in which it has the file system for itself, for one epoch.

    Of ``values``, ``log``, ``from``, ``to`` choose the jobs, and ``cached`` names those of them
    that are (see `Job`), separated by commas; all others are set in the scenario. An InputError if
    no job is found, or not the cached ones."""
    chosen, running = _chosen(values)
    shared = {key: value for key, value in chosen.items() if key not in UNSHARED}
    return [
        {
            **shared,
            **UNSHARED,
            "workload.model": job.model,
            "workload.local_batch_size": str(job.batch),
            "world_size": str(job.gpus),
            "epochs": "1",
        }
        for job in running
    ]


def epochs(
    scenario: str, values: Mapping[str, str], seconds: Sequence[float]
) -> dict[str, tuple[float, ...]]:
    """Seconds of every epoch of each job beside the others, by its name.

    Every rank of a job is a flow of files, limited to the rate at which the job reads when it has
    the file system for itself; all flows share the operations of the servers max-min fairly, and an
    epoch begins when the one before has ended. All epochs read the servers, but for the later ones
    of a cached job. ``seconds``: (jobs,) s of an epoch of each run of `alone`.
    """
    chosen, running = _chosen(values)
    servers = load(scenario, chosen).cluster.parallel_file_system
    lasted = epochs_together(running, list(seconds), servers.free_open_rate)
    return {job.name: one for job, one in zip(running, lasted, strict=True)}


def quantity(name: str, lasted: Sequence[float]) -> float:
    """Seconds of the 'mean epoch', the 'steady epoch' (`steady`), the 'first epoch' or an epoch by
    its number, as in 'epoch 4', of the seconds of every epoch.

    Raises:
        InputError: there is no such quantity, or not so many epochs.
    """
    number = "1" if name == "first epoch" else name.removeprefix("epoch ")
    if name == "mean epoch":
        return mean(lasted)
    if name == "steady epoch" and len(lasted) > 1:
        return median(steady(lasted[1:]))
    if number.isdecimal() and 1 <= int(number) <= len(lasted):
        return lasted[int(number) - 1]
    rule = f"must be mean epoch, steady epoch, first epoch or epoch 1 to {len(lasted)}"
    remedy = "Choose one of them; a steady epoch needs a second one."
    raise InputError(Problem("quantity", rule, repr(name), remedy))


def steady(lasted: Sequence[float]) -> list[float]:
    """Of the seconds of some epochs those of the least disturbed: at most 3 % more than the least,
    in rising order. Others only ever make an epoch longer."""
    return sorted(one for one in lasted if one <= PLATEAU * min(lasted))


def _chosen(values: Mapping[str, str]) -> tuple[dict[str, str], list[Job]]:
    missing = [name for name in ("log", "from", "to") if name not in values]
    if missing:
        rule = "must name the log, and from when to when jobs started"
        raise InputError(Problem("values", rule, f"no {', '.join(missing)}", "Add them."))
    rest = dict(values)
    cached = {name.strip() for name in rest.pop("cached", "").split(",") if name.strip()}
    found = jobs(rest.pop("log"), rest.pop("from"), rest.pop("to"))
    unknown = sorted(cached - {job.name for job in found})
    if unknown:
        rule, value = "must name jobs of the log that are cached", f"cached={', '.join(unknown)}"
        remedy = f"Choose from {', '.join(job.name for job in found)}."
        raise InputError(Problem("values", rule, value, remedy))
    return rest, [replace(job, cached=job.name in cached) for job in found]


def epochs_together(
    running: list[Job], alone: list[float], files_per_second: float
) -> list[tuple[float, ...]]:
    """Seconds of every epoch of each job when all share the file system; ``alone``: (jobs,) s of an
    epoch without the others.
    """
    links, nbytes, start = [files_per_second], list[float](), list[float]()
    routes, after = list[list[int]](), list[list[int]]()
    last_rank = list[slice]()
    for job, seconds in zip(running, alone, strict=True):
        share = FILES / job.gpus
        for _ in range(job.gpus):
            links.append(share / seconds)  # a rank's own link: no faster than alone
            for epoch in range(len(job.epochs)):
                after.append([len(routes) - 1] if epoch else [])
                own = len(links) - 1
                routes.append([own] if job.cached and epoch else [0, own])
                nbytes.append(share)
                start.append(job.start)
        last_rank.append(slice(len(routes) - len(job.epochs), len(routes)))
    outcome = Fluid().finish_times(
        Links(np.array(links), np.zeros(len(links))), Flows.of(routes, nbytes, start, after)
    )
    return [
        tuple(np.diff(outcome.finish[of], prepend=job.start).tolist())
        for of, job in zip(last_rank, running, strict=True)
    ]
