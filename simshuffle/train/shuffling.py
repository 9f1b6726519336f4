"""A study of shuffling strategies carried out: what it says of each run, the runs on all cores, and
the result folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.exchange import TrainedExchange
from simshuffle.results.code import versions
from simshuffle.studies.training import folder as folders
from simshuffle.studies.training.stored import check_run, write_run
from simshuffle.train.data import TrainingSet
from simshuffle.train.emulate import check_run as check_training
from simshuffle.train.emulate import train_run
from simshuffle.train.pool import Outcome, Progress, Tell, run_jobs
from simshuffle.train.run import Run
from simshuffle.train.study import Study, fingerprint


@dataclass(frozen=True)
class RunJob:
    """One run as a job of the pool.

    Attributes:
        training_run: what is trained.
        description: values of `simshuffle.studies.training.tables.DESCRIPTION_COLUMNS`.
        device: that trains.
    """

    training_run: Run
    description: dict[str, Any]
    device: str

    @property
    def cost(self) -> float:
        """Samples that pass the network, roughly: an inference pass for importance costs about a
        third of an epoch."""
        training, exchange = self.training_run.training, self.training_run.exchange
        passes = 1.0 + (1 / 3 if exchange.inference_pass else 0.0)
        ranks = self.training_run.world_size
        # few ranks make small batches, which take longer
        return training.epochs * passes * (1.0 + 2.0 * (16 / max(ranks, 16)))

    def run(self, folder: Path, tell: Tell) -> None:
        """Train, and write the record."""
        record = train_run(self.training_run, tell, self.device)
        write_run(replace(record, description=record.description | self.description), folder)

    def check(self, folder: Path) -> None:
        """As `check_run`."""
        check_run(folder)


def jobs_of(study: Study, device: str) -> dict[str, RunJob]:
    """The runs of a study by name: strategy, M, seed and the fingerprint of the run, which the same
    run has in every study.

    Raises:
        InputError: a run cannot be trained: more ranks than samples, files that are missing, a
            network that cannot take the samples.
    """
    runs = study.all_runs()
    check_all(runs, study.name)
    variants = _variants(runs)
    jobs = {}
    for run, variant in zip(runs, variants, strict=True):
        label = strategy_label(run.exchange)
        fraction = f"-{run.exchange.fraction:g}" if run.exchange.fraction else ""
        mark = fingerprint(run.model_dump(mode="json"), device.partition(":")[0])
        plain = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in label)
        jobs[f"{plain}{fraction}_M{run.world_size}_s{run.seed}_{mark}"] = RunJob(
            run, description(run, variant), device
        )
    return jobs


def description(run: Run, variant: str) -> dict[str, Any]:
    """What tables say of a run: the values of
    `simshuffle.studies.training.tables.DESCRIPTION_COLUMNS`."""
    return {
        "variant": variant,
        "batch_norm": run.training.batch_norm,
        "world_size": run.world_size,
        "strategy": strategy_label(run.exchange),
        "exchange_fraction": run.exchange.fraction,
        "seed": run.seed,
        "data": run.data.kind,
        "model": run.model.kind,
        "partition": _partition_label(run),
        "epochs_planned": run.training.epochs,
        "learning_rate": run.training.peak_learning_rate(run.world_size),
    }


def strategy_label(exchange: TrainedExchange) -> str:
    """The strategy's name in tables, with what is set otherwise than by default, but for Q, in
    parentheses."""
    values = exchange.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={"kind", "exchange_fraction", "lagging"},
    )
    detail = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in _flat(values).items())
    return exchange.short_name + (f" ({detail})" if detail else "")


def _partition_label(run: Run) -> str:
    values = _flat(run.partition.model_dump(mode="json", exclude={"kind"}))
    return run.partition.kind + "".join(f" {key}={value}" for key, value in values.items())


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= (
            _flat(value, f"{before}{key}.")
            if isinstance(value, dict)
            else {f"{before}{key}": value}
        )
    return out


def _variants(runs: Sequence[Run]) -> list[str]:
    """For each run, 'key=value' of whatever else varies in the study than strategy, ranks, batch
    norm and seed; '' where nothing does.

    How to train is often chosen for each number of ranks, such as the learning rate: a key of the
    training is left out if ranks and batch norm decide it.
    """
    flat = [
        _flat(run.model_dump(mode="json", exclude={"exchange", "seed", "world_size"}))
        for run in runs
    ]
    decided = [(run.world_size, run.training.batch_norm) for run in runs]
    telling = []
    for key in dict.fromkeys(key for values in flat for key in values):
        found = {
            (of if key.startswith("training.") else None, repr(values.get(key)))
            for of, values in zip(decided, flat, strict=True)
        }
        if key != "training.batch_norm" and len(found) > len({of for of, _ in found}):
            telling.append(key)
    names = {key: key.removesuffix(".kind").rpartition(".")[2] for key in telling}
    return [
        ", ".join(f"{names[key]}={values[key]}" for key in telling if key in values)
        for values in flat
    ]


def check_all(runs: Iterable[Run], study: str) -> None:
    """See before the first run that none of them is bound to fail.

    Raises:
        InputError: with every problem.
    """
    loaded: dict[str, TrainingSet] = {}
    problems: dict[Problem, None] = {}
    seen: set[tuple[str, ...]] = set()
    for run in runs:
        schedule = run.exchange.exchange_schedule
        near = getattr(schedule, "partner_scope", "")
        parts = (
            repr(run.data),
            repr(run.model),
            repr(run.training),
            str(run.world_size),
            str(run.cluster),
            near,
        )
        if parts in seen:
            continue
        seen.add(parts)
        try:
            if parts[0] not in loaded:
                loaded[parts[0]] = run.data.load()
            check_training(run, loaded[parts[0]])
        except InputError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise InputError(list(problems), study)


def meta_of(study: Study, jobs: Mapping[str, RunJob], device: str) -> dict[str, Any]:
    """What ``meta.json`` says of the study before it is run; the fingerprint stands for its runs
    and name."""
    return {
        "study": study.name,
        "description": study.description,
        "fingerprint": fingerprint(
            [study.name, study.description, sorted(jobs)], device.partition(":")[0]
        ),
        "device": device,
        "versions": versions() | {"torch": version("torch")},
        "runs": {name: job.description for name, job in jobs.items()},
    }


def carry_out(
    jobs: Mapping[str, RunJob],
    folder: Path,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
    earlier: Callable[[str], Path | None] = lambda name: None,
) -> tuple[folders.Result, Outcome]:
    """Do the runs of a study that are not there yet, and write its tables, report and figures.

    Args:
        jobs: of `jobs_of`.
        folder: that `simshuffle.studies.training.folder.begin` made ready.
        processes: as of `run_jobs`.
        progress: as of `run_jobs`.
        earlier: a folder with the run of that name, of another study, if there is one; it is
            copied.

    Returns:
        The result, and how each run ended.

    Raises:
        InputError: a stored run is damaged, or another process works in ``folder``.
        KeyboardInterrupt: stopped; the next call goes on.
    """
    place = folder / folders.RUNS
    for name in jobs:
        found = None if (place / name).exists() else earlier(name)
        if found is not None:
            _adopt(found, place / name)
    outcome = run_jobs(jobs, place, processes=processes, progress=progress)
    return folders.finish(folder, outcome.lost), outcome


def _adopt(found: Path, wanted: Path) -> None:
    """Copy a run, whole or not at all; one that is damaged is left alone."""
    with tempfile.TemporaryDirectory(
        dir=wanted.parent, prefix=f".{wanted.name}.part-", ignore_cleanup_errors=True
    ) as room:
        draft = Path(room) / "run"
        shutil.copytree(found, draft)
        try:
            check_run(draft)
        except InputError:
            return
        draft.rename(wanted)
