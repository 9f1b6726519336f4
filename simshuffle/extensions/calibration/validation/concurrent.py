"""Jobs of a log that ran at the same time, as a scenario with jobs, and the epochs of each."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import mean, median
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.calibration.validation.answers import load
from simshuffle.fabric.allreduce import Nccl
from simshuffle.job.plan.jobs import place_jobs
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.jobs import simulate_jobs
from simshuffle.report import report
from simshuffle.spec.library import shipped_folder

FILES = 1_281_167  # of ImageNet-1K, which all jobs of the log read
PLATEAU = 1.03
STAMP = "%Y-%m-%d-%H-%M-%S"
THINNED = 16
"""An evening has one of so many samples and begins so many times as early, and what an epoch takes
counts so many times: nothing changes where jobs share servers in a steady way. Mean epochs of 22
January, AlexNet on 4 to 256 GPUs, differ by at most 0.4 % from those of the whole evening."""
FEWEST = 10
"""Iterations of a thinned epoch, below which the iterations are made smaller in place of fewer."""


@dataclass(frozen=True)
class LoggedJob:
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


@dataclass(frozen=True)
class Evening:
    """What is compared of jobs that ran together."""

    epochs: Mapping[str, Sequence[float]]  # of each job by its name, (epochs,) s of each epoch

    def of(self, job: str) -> Sequence[float]:
        """(epochs,) s of a job. Raises an InputError if there is none of that name."""
        if job in self.epochs:
            return self.epochs[job]
        remedy = f"Choose from {', '.join(self.epochs)}."
        raise InputError(Problem("values", "must name a job of the log", f"job={job}", remedy))

    def quantity(self, name: str) -> float:
        """There is none of all jobs: see `quantity`."""
        raise InputError(Problem("quantity", "must be that of a job", repr(name), "Name a job."))


def jobs(log: str, begins: str, ends: str) -> list[LoggedJob]:
    """The jobs of an epoch log in ``validation/data/`` that started from ``begins`` to ``ends`` (as
    in its column job_start).

    Raises:
        InputError: there is none.
    """
    path = shipped_folder("validation") / "data" / log
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
        out.append(LoggedJob(model, int(gpus), batch, after.total_seconds(), lasted))
    return out


def _time(stamp: str) -> datetime:
    return datetime.strptime(stamp, STAMP)


def evening(scenario: str, values: Mapping[str, str]) -> Evening:
    """Simulate the jobs of a log side by side. Of ``values``, ``log``, ``from``, ``to`` choose
    them, and ``cached`` names those of them that are (see `LoggedJob`), separated by commas; all
    others are set in the scenario. Errors as of `load`, and an InputError if no job is found, or
    not the cached ones."""
    rest, running = _chosen(values)
    whole, names = side_by_side(load(scenario, rest), running), {_key(one): one for one in running}
    lasted: dict[str, list[float]] = {one.name: [] for one in running}
    for of, timeline in simulate_jobs(place_jobs(whole), {name: name for name in names}):
        seconds = float(report.epochs(timeline)["epoch_s"].iloc[0])
        lasted[names[of].name].append(THINNED * seconds)
    return Evening(lasted)


def side_by_side(base: Scenario, running: Sequence[LoggedJob], thinned: int = THINNED) -> Scenario:
    """A scenario with these jobs, thinned by that factor: see `THINNED`."""
    cache, samples = base.cluster.memory.cache_nbytes / thinned, base.workload.dataset.num_samples
    return base.with_values(
        {
            "workload.dataset.num_samples": samples // thinned,
            "jobs": {
                _key(one): {
                    "workload": _smaller(base, one, _divisor(one, samples // thinned, thinned)),
                    "world_size": one.gpus,
                    "start": f"{one.start / thinned!r} s",
                    "epochs": len(one.epochs),
                    "page_cache": f"{cache if one.cached else 0.0!r} B",
                }
                for one in running
            },
        }
    )


def _divisor(job: LoggedJob, samples: int, most: int) -> int:
    """By how much the iterations of a job are smaller: a power of two, at most ``most``."""
    divisor = 1
    while 2 * divisor <= most and samples * divisor < FEWEST * job.gpus * job.batch:
        divisor *= 2
    return divisor


def _smaller(base: Scenario, job: LoggedJob, divisor: int) -> dict[str, Any]:
    """The workload of a job whose iterations have that part of samples and gradients, and take that
    part of the time."""
    plain: dict[str, Any] = {"model": job.model, "local_batch_size": job.batch // divisor}
    if divisor == 1:
        return plain
    model, allreduce = base.models[job.model], base.workload.allreduce
    assert isinstance(allreduce, Nccl)  # noqa: S101 - that of the log's scenario
    size = model.gradient_size
    plain["model.gradient_size"] = f"{size / divisor!r} B"
    for name, times in model.accelerators.items():
        plain[f"model.accelerators.{name}.update"] = f"{times.update / divisor!r} s"
    for where in ("intra", "inter"):
        latency = getattr(allreduce, f"ring_{where}_host_latency")
        plain[f"allreduce.ring_{where}_host_latency"] = f"{latency / divisor!r} s"
        rate = getattr(allreduce, f"{where}_host_bus_bandwidth")(size)
        plain[f"allreduce.{where}_host_bus_bandwidth"] = f"{rate!r} B/s"
    return plain


def _key(job: LoggedJob) -> str:
    return job.name.replace(" ", "-")


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


def _chosen(values: Mapping[str, str]) -> tuple[dict[str, str], list[LoggedJob]]:
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
