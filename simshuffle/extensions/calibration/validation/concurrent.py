"""Simulate concurrent jobs of a log, as a scenario with jobs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import mean, median
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.calibration.validation.answers import load_with_values
from simshuffle.fabric.allreduce import Nccl
from simshuffle.job.plan.jobs import place_jobs
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.jobs import simulate_jobs
from simshuffle.report import report
from simshuffle.spec.library import shipped_folder

NUM_FILES = 1_281_167  # of ImageNet-1K, which all jobs of the log read
MAX_STEADY_FACTOR = 1.03
TIME_FORMAT = "%Y-%m-%d-%H-%M-%S"
THINNING = 16
"""An evening has one of so many samples and begins so many times as early, and what an
epoch takes counts so many times: nothing changes where jobs share servers in a steady
way. Mean epochs of 22 January, AlexNet on 4 to 256 GPUs, differ by at most 0.4 % from
those of the whole evening.
"""
MIN_ITERATIONS = 10
"""Iterations of a thinned epoch, below which the iterations are made smaller in place
of fewer.
"""


@dataclass(frozen=True)
class LoggedJob:
    """A training job of an epoch log, with its measured epochs."""

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
class ConcurrentEpochs:
    """The simulated epochs of jobs that ran together."""

    # of each job by its name, (epochs,) s of each epoch
    epochs: Mapping[str, Sequence[float]]

    def epochs_of_job(self, job: str) -> Sequence[float]:
        """Return (epochs,) s of a job.

        Raises:
            InputError: there is no job of that name.
        """
        if job in self.epochs:
            return self.epochs[job]
        remedy = f"Choose from {', '.join(self.epochs)}."
        raise InputError(
            Problem("values", "must name a job of the log", f"job={job}", remedy)
        )

    def quantity(self, name: str) -> float:
        """Raise an InputError: only a single job has a quantity (`epoch_quantity`)."""
        raise InputError(
            Problem(
                "quantity", "must be the quantity of one job", repr(name), "Name a job."
            )
        )


def read_jobs(log: str, first_start: str, last_start: str) -> list[LoggedJob]:
    """Read the jobs of an epoch log in ``validation/data/`` that started in a span of
    time, both ends included, in the order of the log.

    Lines of one start, model and number of GPUs are one job, not cached.

    Args:
        log: name of the file.
        first_start: the earliest start, written as in the column job_start; compared as
            text.
        last_start: the latest start.

    Raises:
        InputError: there is no such log, or no job.
    """
    path = shipped_folder("validation") / "data" / log
    if not path.is_file():
        remedy = f"Name a file of {path.parent}."
        raise InputError(Problem("log", "no such file", repr(log), remedy))
    records_by_job: dict[tuple[str, str, str], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for record in csv.DictReader(file):
            if first_start <= record["job_start"] <= last_start:
                key = record["job_start"], record["model"], record["gpus"]
                records_by_job.setdefault(key, []).append(record)
    if not records_by_job:
        rule = f"must name a span of time in which jobs of {log} started"
        raise InputError(
            Problem("values", rule, f"{first_start} to {last_start}", "Widen the span.")
        )
    first_time = parse_time(min(records_by_job)[0])
    return [
        LoggedJob(
            model=model,
            gpus=int(gpus),
            batch=int(records[0]["local_batch_size"]),
            start=(parse_time(start) - first_time).total_seconds(),
            epochs=tuple(float(record["epoch_s"]) for record in records),
        )
        for (start, model, gpus), records in records_by_job.items()
    ]


def parse_time(stamp: str) -> datetime:
    """Return the time that a log writes in `TIME_FORMAT`, without a time zone."""
    return datetime.strptime(stamp, TIME_FORMAT)


def simulate_log(scenario: str, values: Mapping[str, str]) -> ConcurrentEpochs:
    """Simulate the jobs of a log side by side; the seconds are of whole epochs, not of
    thinned ones.

    Of ``values``, ``log``, ``from`` and ``to`` choose the jobs (`read_jobs`).
    ``cached`` names jobs whose files clients cache, separated by commas; all other
    values are set in the scenario. Of jobs with the same model and ranks, only the last
    is simulated.

    Raises:
        InputError: as of `load_with_values`; or no job is found, or not the cached
            ones.
    """
    scenario_values, running_jobs = choose_jobs(values)
    base = load_with_values(scenario, scenario_values)
    placed_jobs = place_jobs(concurrent_scenario(base, running_jobs))
    job_of_key = {key_of_job(job): job for job in running_jobs}
    epoch_seconds: dict[str, list[float]] = {job.name: [] for job in running_jobs}
    for key, timeline in simulate_jobs(placed_jobs, {key: key for key in job_of_key}):
        seconds = float(report.epochs(timeline)["epoch_s"].iloc[0])
        epoch_seconds[job_of_key[key].name].append(THINNING * seconds)
    return ConcurrentEpochs(epoch_seconds)


def concurrent_scenario(
    base: Scenario, running_jobs: Sequence[LoggedJob], thinning: int = THINNING
) -> Scenario:
    """Return a scenario with these jobs, thinned by a factor: samples of an epoch, page
    cache and starts are divided by ``thinning``.

    Each job has as many epochs as were measured; only a cached one has a page cache.
    """
    cache_nbytes = base.cluster.memory.cache_nbytes / thinning
    samples = base.workload.dataset.num_samples // thinning
    return base.with_values(
        {
            "workload.dataset.num_samples": samples,
            "jobs": {
                key_of_job(job): {
                    "workload": shrink_workload(
                        base, job, choose_divisor(job, samples, thinning)
                    ),
                    "world_size": job.gpus,
                    "start": f"{job.start / thinning!r} s",
                    "epochs": len(job.epochs),
                    "page_cache": f"{cache_nbytes if job.cached else 0.0!r} B",
                }
                for job in running_jobs
            },
        }
    )


def choose_divisor(job: LoggedJob, samples: int, max_divisor: int) -> int:
    """Return the factor by which the iterations of a job are made smaller: the least
    power of two with which an epoch has `MIN_ITERATIONS`, at most ``max_divisor``.

    Args:
        job: the job.
        samples: of its epoch.
        max_divisor: the largest factor.
    """
    divisor = 1
    while (
        2 * divisor <= max_divisor
        and samples * divisor < MIN_ITERATIONS * job.gpus * job.batch
    ):
        divisor *= 2
    return divisor


def shrink_workload(base: Scenario, job: LoggedJob, divisor: int) -> dict[str, Any]:
    """Return the workload of a job whose iterations have 1/``divisor`` of samples and
    gradients, as values of a scenario by key.

    Update and latencies of the allreduce take 1/``divisor`` of the time; the bus
    bandwidth stays that of the full gradients. The scenario's allreduce must be
    of kind nccl unless ``divisor`` is 1.
    """
    workload: dict[str, Any] = {
        "model": job.model,
        "local_batch_size": job.batch // divisor,
    }
    if divisor == 1:
        return workload
    model = base.models[job.model]
    allreduce = base.workload.allreduce
    assert isinstance(allreduce, Nccl)  # noqa: S101 - that of the log's scenario
    gradient_nbytes = model.gradient_size
    workload["model.gradient_size"] = f"{gradient_nbytes / divisor!r} B"
    for name, times in model.accelerators.items():
        workload[f"model.accelerators.{name}.update"] = f"{times.update / divisor!r} s"
    for ring_side in ("intra", "inter"):
        latency = getattr(allreduce, f"ring_{ring_side}_host_latency")
        workload[f"allreduce.ring_{ring_side}_host_latency"] = (
            f"{latency / divisor!r} s"
        )
        bus_bandwidth = getattr(allreduce, f"{ring_side}_host_bus_bandwidth")(
            gradient_nbytes
        )
        workload[f"allreduce.{ring_side}_host_bus_bandwidth"] = f"{bus_bandwidth!r} B/s"
    return workload


def key_of_job(job: LoggedJob) -> str:
    """Return the key of a job in a scenario."""
    return job.name.replace(" ", "-")


def epoch_quantity(name: str, epoch_seconds: Sequence[float]) -> float:
    """Return the seconds of an epoch of a job.

    Args:
        name: the 'mean epoch', the 'steady epoch' (median of the `steady_epochs` from
            the second on), the 'first epoch' or an epoch by number, as in 'epoch 4'.
        epoch_seconds: (epochs,) s of every epoch.

    Raises:
        InputError: there is no such quantity, or not so many epochs.
    """
    epoch = "1" if name == "first epoch" else name.removeprefix("epoch ")
    if name == "mean epoch":
        return mean(epoch_seconds)
    if name == "steady epoch" and len(epoch_seconds) > 1:
        return median(steady_epochs(epoch_seconds[1:]))
    if epoch.isdecimal() and 1 <= int(epoch) <= len(epoch_seconds):
        return epoch_seconds[int(epoch) - 1]
    rule = f"must be mean epoch, steady epoch, first epoch or epoch 1 to {len(epoch_seconds)}"
    remedy = "Choose one of these; a steady epoch needs two epochs."
    raise InputError(Problem("quantity", rule, repr(name), remedy))


def steady_epochs(epoch_seconds: Sequence[float]) -> list[float]:
    """Return the seconds of the least disturbed epochs, ascending: within 3 % of the
    least.

    Other jobs only ever make an epoch longer.
    """
    return sorted(
        seconds
        for seconds in epoch_seconds
        if seconds <= MAX_STEADY_FACTOR * min(epoch_seconds)
    )


def choose_jobs(values: Mapping[str, str]) -> tuple[dict[str, str], list[LoggedJob]]:
    """Return the values to set in the scenario, and the jobs that 'log', 'from' and
    'to' choose, with the jobs that 'cached' names marked.

    Raises:
        InputError: a value is missing, no job started then, or a cached job is not
            among them.
    """
    missing = [name for name in ("log", "from", "to") if name not in values]
    if missing:
        rule = (
            "must have log, and from and to, the span of time in which its jobs started"
        )
        raise InputError(
            Problem("values", rule, f"no {', '.join(missing)}", "Add them.")
        )
    scenario_values = dict(values)
    cached_names = {
        name.strip()
        for name in scenario_values.pop("cached", "").split(",")
        if name.strip()
    }
    log = scenario_values.pop("log")
    logged_jobs = read_jobs(log, scenario_values.pop("from"), scenario_values.pop("to"))
    unknown = sorted(cached_names - {job.name for job in logged_jobs})
    if unknown:
        rule = "cached must name jobs of the log"
        value = f"cached={', '.join(unknown)}"
        remedy = f"Choose from {', '.join(job.name for job in logged_jobs)}."
        raise InputError(Problem("values", rule, value, remedy))
    return scenario_values, [
        replace(job, cached=job.name in cached_names) for job in logged_jobs
    ]
