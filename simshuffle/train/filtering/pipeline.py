"""The study of data-optimised training, carried out: extractions, filters, retraining, tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem, SimulationError
from simshuffle.exchange import GlobalShuffle
from simshuffle.studies.filtering import folder as folders
from simshuffle.studies.filtering.stored import read_extraction
from simshuffle.studies.filtering.tables import (
    EPS_COLUMNS,
    FILTER_COLUMNS,
    POINT_COLUMNS,
    SUBSETS,
    FilterTables,
    filter_row,
    run_table,
)
from simshuffle.train.data import TrainingSet
from simshuffle.train.emulate import check_run, initial_model
from simshuffle.train.filtering.extraction import ExtractionJob, loaded, ordinary_run
from simshuffle.train.filtering.filtering import Bools, noise_of, random_filter
from simshuffle.train.filtering.record import DataOptimisedStudy
from simshuffle.train.filtering.retraining import RetrainingJob
from simshuffle.train.pool import Job, Outcome, Progress, Standing, run_jobs
from simshuffle.train.run import Run
from simshuffle.train.study import fingerprint
from simshuffle.version import __version__


def study_fingerprint(study: DataOptimisedStudy, device: str = "cpu") -> str:
    """Twelve hexadecimal digits that stand for the study, the code that trains, torch, and the kind
    of device."""
    return fingerprint(study.model_dump(mode="json"), device.partition(":")[0])


def run_study(
    study: DataOptimisedStudy,
    folder: Path,
    *,
    progress: Progress | None = None,
    processes: int | None = None,
    device: str = "cpu",
    force: bool = False,
) -> folders.FilterResult:
    """Carry out ``study`` in ``folder``; what is there of it already is not repeated. A finished
    one is read.

    Args:
        study: what to do.
        folder: where tables, report and figures are written.
        progress: told of the progress a few times a second.
        processes: at once; the default is one for each core.
        device: that trains.
        force: remove what is in the result folder first.

    Returns:
        The result; ``meta["lost"]`` says why runs have none.

    Raises:
        InputError: the study cannot be carried out, or the folder holds something else, or what it
            holds is damaged.
        SimulationError: the networks that filter could not be trained.
        KeyboardInterrupt: stopped; the next call goes on.
    """
    mark = study_fingerprint(study, device)
    found = None if force else folders.existing(folder, mark)
    if found is not None:
        return found
    data = study.data.load()
    check_study(study, data)
    versions = {"simshuffle": __version__} | {
        name: version(name) for name in ("torch", "numpy", "scikit-learn")
    }
    meta = {
        "study": study.name,
        "description": study.description,
        "fingerprint": mark,
        "device": device,
        "versions": versions,
    }
    folders.begin(folder, meta, study.to_yaml(), force=force)
    stage = _Stages(study, len(data.train), progress)
    extractions = extraction_jobs(study, len(data.train), device)
    outcome = run_jobs(
        extractions, folder / folders.EXTRACTIONS, processes=processes, progress=stage.first
    )
    filters = _filters(study, extractions, outcome, folder / folders.EXTRACTIONS)
    folders.store_filters(folder, filters.tables)
    jobs = retraining_jobs(study, filters.noise, device)
    retrained = run_jobs(jobs, folder / folders.RUNS, processes=processes, progress=stage.second)
    runs = run_table(
        {name: job.description for name, job in jobs.items()}, folder / folders.RUNS, retrained.lost
    )
    return folders.finish(folder, replace(filters.tables, runs=runs), outcome.lost | retrained.lost)


def check_study(study: DataOptimisedStudy, data: TrainingSet) -> None:
    """See, before anything is trained, that every network takes the data, that weights can be read,
    and that batches are not too large.

    Raises:
        InputError: something will not work; all of it is named.
    """
    problems: list[Problem] = []
    for number, extractor in enumerate(study.extractors):
        run = ordinary_run(study.data, extractor, study.seeds[0])
        try:
            check_run(run, data)
            if extractor.weights is not None:
                loaded(initial_model(run, data), Path(extractor.weights))
        except InputError as error:
            problems += [
                Problem(
                    f"extractors.{number}.{p.path.removeprefix('extractors.')}",
                    p.rule,
                    p.value,
                    p.remedy,
                )
                for p in error.problems
            ]
    sizes = [size for size in study.retrain.batch_sizes if isinstance(size, int)]
    too_large = [size for size in sizes if size > len(data.train)]
    for size in too_large:
        rule = f"must not exceed the number of training samples, {len(data.train)}"
        problems.append(
            Problem("retrain.batch_sizes", rule, str(size), "Lower it, or write 'largest'.")
        )
    try:
        check_run(
            retraining_run(
                study,
                min([*set(sizes) - set(too_large), len(data.train)]),
                study.retrain.learning_rates[0],
                0,
            ),
            data,
        )
    except InputError as error:
        problems += [
            Problem(f"retrain.{p.path}", p.rule, p.value, p.remedy) for p in error.problems
        ]
    if problems:
        raise InputError(problems, study.name)


def count_jobs(study: DataOptimisedStudy) -> int:
    """Extractions and runs of ``study``."""
    batches = len(study.retrain.batch_sizes) * len(study.retrain.learning_rates)
    return len(study.extractors) * len(study.filter_seeds) + batches * len(study.seeds) * len(
        SUBSETS
    )


def extraction_jobs(
    study: DataOptimisedStudy, num_samples: int, device: str = "cpu"
) -> dict[str, ExtractionJob]:
    """Extractions by name: the extractor's, the seed, and a fingerprint of what decides the
    points."""
    jobs = {}
    for extractor in study.extractors:
        for seed in study.filter_seeds:
            job = ExtractionJob(study.data, extractor, study.projection, seed, num_samples, device)
            decides = [
                part.model_dump(mode="json") for part in (study.data, extractor, study.projection)
            ]
            weights = _digest(extractor.weights)
            mark = fingerprint([decides, seed, weights], device.partition(":")[0])
            jobs[f"{extractor.name}_s{seed}_{mark}"] = job
    return jobs


def _digest(weights: str | None) -> list[int] | None:
    """What tells a file of weights from another one in its place: size, and time of change in
    ns."""
    if weights is None:
        return None
    about = Path(weights).stat()
    return [about.st_size, about.st_mtime_ns]


def retraining_run(
    study: DataOptimisedStudy, batch_size: int, learning_rate: float, seed: int
) -> Run:
    """An ordinary training with one rank, so batch norm goes over the whole batch; evaluated after
    its last epoch."""
    values = {"local_batch_size": batch_size, "learning_rate": learning_rate}
    training = study.retrain.training.model_copy(
        update=values
        | {
            "evaluate_every": study.retrain.training.epochs,
            "statistics": ["own"],
            "own_ranks": 1,
        }
    )
    exchange = GlobalShuffle(kind="global_shuffle")
    return Run(
        data=study.data,
        model=study.retrain.model,
        exchange=exchange,
        world_size=1,
        training=training,
        seed=seed,
    )


def retraining_jobs(
    study: DataOptimisedStudy, noise: Mapping[int, Bools], device: str = "cpu"
) -> dict[str, RetrainingJob]:
    """Runs by name: data set, batch size, learning rate, seed and a fingerprint.

    Args:
        study: what to do.
        noise: by seed, which training samples the filter leaves out, (n,).
        device: that trains.

    Raises:
        InputError: a batch size exceeds the number of samples that are left.
    """
    left = min(int((~out).sum()) for out in noise.values())
    jobs = {}
    for size in _batch_sizes(study, left):
        for rate in study.retrain.learning_rates:
            for seed in study.seeds:
                run = retraining_run(study, size, rate, seed)
                for subset, out in _left_out(noise[seed], seed).items():
                    kept = None if subset == "full" else np.flatnonzero(~out)
                    job = _job(run, kept, len(out) if kept is None else len(kept), subset, device)
                    decides = [run.model_dump(mode="json"), None if kept is None else kept.tolist()]
                    mark = fingerprint(decides, device.partition(":")[0])
                    jobs[f"{subset}_b{size}_lr{rate:g}_s{seed}_{mark}"] = job
    return jobs


def _left_out(noise: Bools, seed: int) -> dict[str, Bools]:
    """What is left out of each data set, by its name."""
    parts = (np.zeros_like(noise), noise, random_filter(len(noise), int(noise.sum()), seed))
    return dict(zip(SUBSETS, parts, strict=True))


def _job(
    run: Run, kept: NDArray[np.int64] | None, count: int, subset: str, device: str
) -> RetrainingJob:
    about = {
        "subset": subset,
        "batch_size": run.training.local_batch_size,
        "learning_rate": run.training.learning_rate,
        "seed": run.seed,
        "num_samples": count,
    }
    return RetrainingJob(run, kept, count, about, device)


def _batch_sizes(study: DataOptimisedStudy, left: int) -> list[int]:
    """The batch sizes in samples, each once."""
    remedy = (
        "Raise clustering.eps, so that less is left out; eps.csv in the result folder says how much"
        " for each value."
    )
    if not left:
        raise InputError(
            Problem(
                "clustering.eps",
                "must leave samples",
                f"{study.clustering.eps:g} leaves none",
                remedy,
            ),
            study.name,
        )
    too_large = [
        size for size in study.retrain.batch_sizes if isinstance(size, int) and size > left
    ]
    if too_large:
        rule = f"must not exceed the {left} samples that the filter leaves"
        remedy = f"Lower it, or write 'largest'. {remedy}"
        raise InputError(
            [Problem("retrain.batch_sizes", rule, str(size), remedy) for size in too_large],
            study.name,
        )
    return list(
        dict.fromkeys(left if size == "largest" else size for size in study.retrain.batch_sizes)
    )


@dataclass(frozen=True)
class _Filters:
    """All filters of a study: their tables (without runs), and by seed what the used one leaves
    out."""

    tables: FilterTables
    noise: dict[int, Bools]


def _filters(
    study: DataOptimisedStudy, jobs: Mapping[str, ExtractionJob], outcome: Outcome, place: Path
) -> _Filters:
    rows, eps_rows, points, noise = [], [], [], {}
    for name, job in jobs.items():
        used = job.extractor.name == study.filtering.name
        if name in outcome.lost:
            if used:  # without it there is nothing to train on
                raise SimulationError(
                    f"The network that filters was lost. {name}: {outcome.lost[name]}"
                )
            continue
        table, facts = read_extraction(place / name)
        out = noise_of(table, study.clustering)
        rows.append(filter_row(facts, table, out, used=used))
        about = {"extractor": job.extractor.name, "seed": job.seed}
        for eps in sorted({*study.clustering.eps_table, study.clustering.eps}):
            eps_rows.append(
                about
                | {
                    "eps": eps,
                    "reduction": float(noise_of(table, study.clustering, eps).mean()),
                }
            )
        if used:
            noise[job.seed] = out
            points.append(table.assign(seed=job.seed, noise=out)[list(POINT_COLUMNS)])
    tables = FilterTables(
        pd.DataFrame(rows, columns=list(FILTER_COLUMNS)),
        pd.DataFrame(eps_rows, columns=list(EPS_COLUMNS)),
        pd.concat(points, ignore_index=True),
        pd.DataFrame(),
    )
    first = study.filter_seeds[0]
    return _Filters(
        tables, {seed: noise[seed if study.independent_filters else first] for seed in study.seeds}
    )


class _Stages:
    """Progress of two calls of `run_jobs` as that of one. How many samples a filter leaves is not
    known before; all of them are assumed."""

    def __init__(
        self, study: DataOptimisedStudy, num_samples: int, progress: Progress | None
    ) -> None:
        extractions = extraction_jobs(study, num_samples)
        nothing = {seed: np.zeros(num_samples, np.bool_) for seed in study.seeds}
        retrainings = retraining_jobs(study, nothing)
        self._counts = len(extractions), len(retrainings)
        self._costs = _cost(extractions), _cost(retrainings)
        self._progress, self._begun = progress, monotonic()
        self.first = None if progress is None else self._first
        self.second = None if progress is None else self._second

    def _first(self, standing: Standing) -> None:
        self._tell(standing.done, standing.share * self._costs[0])

    def _second(self, standing: Standing) -> None:
        self._tell(
            self._counts[0] + standing.done, self._costs[0] + standing.share * self._costs[1]
        )

    def _tell(self, done: int, worked: float) -> None:
        share = min(worked / sum(self._costs), 1.0)
        left = (monotonic() - self._begun) * (1 - share) / share if share > 0 else None
        if self._progress is not None:
            self._progress(Standing(done, sum(self._counts), share, left))


def _cost(jobs: Mapping[str, Job]) -> float:
    return sum(job.cost for job in jobs.values())
