"""What is asked of a study of data-optimised training: cells, and the tables of all that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, Problem, SimulationError, refuse
from simshuffle.extensions.learning.filtering.cells import (
    POINTS,
    ExtractionCell,
    RetrainingCell,
    loaded,
    noise_of,
    ordinary_run,
    random_filter,
    weights_of,
)
from simshuffle.extensions.learning.filtering.record import DataOptimisedStudy, load_study
from simshuffle.extensions.learning.filtering.tables import (
    EPS_COLUMNS,
    FILTER_COLUMNS,
    POINT_COLUMNS,
    SUBSETS,
    FilterTables,
    filter_row,
    run_table,
)
from simshuffle.spec.arrays import Flags
from simshuffle.spec.library import find_file
from simshuffle.study.study import Meta, Outcomes, Request
from simshuffle.train import shuffling
from simshuffle.train import study as shuffling_study
from simshuffle.train.cell import cells_by_name
from simshuffle.train.emulate import check_run, find_device, initial_model
from simshuffle.train.run import Run
from simshuffle.train.samples import TrainingSet


def requested(
    reference: str | Path, values: Mapping[str, Any], device: str
) -> tuple[str, Request[Any]]:
    """The kind of the study of that path or name below ``studies/``, of shuffling or of filtering,
    and what is asked of it, with ``values`` set by dotted key; or raise InputError."""
    kind = shuffling_study.document(find_file(str(reference), "studies")).get("kind")
    if kind == "data_optimised":
        return kind, request(load_study(reference, values), device)
    study = shuffling_study.load_study(reference, values)
    return "training", shuffling.request(study, device)


def repeat(folder: Path, meta: Meta) -> Request[Filtering]:
    """The request of a result, from its folder; trained on the same kind of device. Raises
    InputError if its data or device are not here."""
    device = str(meta["device"]).partition(":")[0]
    find_device(device)
    return request(load_study(folder / "study.yaml"), device)


def request(study: DataOptimisedStudy, device: str = "cpu") -> Request[Filtering]:
    """What is asked of ``study``, which that device trains; or raise InputError."""
    data = study.data.load()
    check_study(study, data)
    asked: dict[str, Any] = {
        "device": device.partition(":")[0],
        "torch": version("torch"),
        "scikit-learn": version("scikit-learn"),
    }
    weights = {each.name: weights_of(each) for each in study.extractors if each.weights}
    asked |= {"weights": weights} if weights else {}
    filtering = Filtering(study, device, extraction_cells(study, len(data.train), device))
    return Request(study.name, filtering, {"study.yaml": study.to_yaml()}, asked)


@dataclass(frozen=True)
class Filtering:
    """A study as what it does."""

    study: DataOptimisedStudy  # what to do
    device: str  # that trains
    extractions: Mapping[str, ExtractionCell]  # the first stage

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What ``meta.json`` says of it."""
        study = self.study
        return {"study": study.name, "description": study.description, "device": self.device}

    def retrainings(self, outcomes: Outcomes) -> dict[str, RetrainingCell]:
        """The trainings on what the used filters leave, by name. Raises InputError if they leave
        too little, with how much for other eps; SimulationError if the network that filters is not
        there."""
        clustering, noise = self.study.clustering, {}
        for name, cell in self.extractions.items():
            if self._used(cell):
                outcome = outcomes.get(name)
                if outcome is None or outcome.lost:  # without it there is nothing to train on
                    why = outcome.lost if outcome else "not done yet"
                    raise SimulationError(f"The network that filters was lost. {name}: {why}")
                noise[cell.seed] = noise_of(outcome.tables[POINTS], clustering)
        first = self.study.filter_seeds[0]
        apart = self.study.independent_filters
        of_seeds = {seed: noise[seed if apart else first] for seed in self.study.seeds}
        try:
            return retraining_cells(self.study, of_seeds, self.device)
        except InputError as error:
            told = f"Left out is {self._left_out(outcomes)}."
            problems = [replace(p, remedy=f"{p.remedy} {told}") for p in error.problems]
            raise InputError(problems, self.study.name) from None

    def _left_out(self, outcomes: Outcomes) -> str:
        """The shares that the used extractor's filters leave out, by eps, in words."""
        eps = pd.DataFrame(self._eps_rows(outcomes), columns=list(EPS_COLUMNS))
        used = eps[eps["extractor"] == self.study.filtering.name]
        shares = used.groupby("eps")["reduction"].mean()
        return ", ".join(f"{100 * share:.3g} % at {value:g}" for value, share in shares.items())

    def tables(self, outcomes: Outcomes) -> FilterTables:
        """The tables of extractions and trainings; errors as of `retrainings`."""
        cells = self.retrainings(outcomes)
        filters, points = [], []
        for cell, table, facts in self._extracted(outcomes):
            noise = noise_of(table, self.study.clustering)
            filters.append(filter_row(facts, table, noise, used=self._used(cell)))
            if self._used(cell):
                points.append(table.assign(seed=cell.seed, noise=noise)[list(POINT_COLUMNS)])
        return FilterTables(
            pd.DataFrame(filters, columns=list(FILTER_COLUMNS)),
            pd.DataFrame(self._eps_rows(outcomes), columns=list(EPS_COLUMNS)),
            pd.concat(points, ignore_index=True),
            run_table({name: cell.description for name, cell in cells.items()}, outcomes),
        )

    def _used(self, cell: ExtractionCell) -> bool:
        return cell.extractor.name == self.study.filtering.name

    def _extracted(
        self, outcomes: Outcomes
    ) -> list[tuple[ExtractionCell, pd.DataFrame, Mapping[str, Any]]]:
        """The extractions that are there, with their points and facts."""
        there = [(cell, outcomes.get(name)) for name, cell in self.extractions.items()]
        return [(cell, of.tables[POINTS], of.values) for cell, of in there if of and not of.lost]

    def _eps_rows(self, outcomes: Outcomes) -> list[dict[str, Any]]:
        clustering = self.study.clustering
        return [
            {
                "extractor": cell.extractor.name,
                "seed": cell.seed,
                "eps": eps,
                "reduction": float(noise_of(table, clustering, eps).mean()),
            }
            for cell, table, _ in self._extracted(outcomes)
            for eps in sorted({*clustering.eps_table, clustering.eps})
        ]


def check_study(study: DataOptimisedStudy, data: TrainingSet) -> None:
    """See, before anything is trained, that every network takes the data, weights can be read, and
    batches are not too large; or raise InputError with all problems."""
    problems: list[Problem] = []
    for number, extractor in enumerate(study.extractors):
        run = ordinary_run(study.data, extractor, study.seeds[0])
        try:
            check_run(run, data)
            if extractor.weights is not None:
                loaded(initial_model(run, data), Path(extractor.weights))
        except InputError as error:
            problems += [
                replace(p, path=f"extractors.{number}.{p.path.removeprefix('extractors.')}")
                for p in error.problems
            ]
    sizes = [size for size in study.retrain.batch_sizes if isinstance(size, int)]
    too_large = [size for size in sizes if size > len(data.train)]
    for size in too_large:
        rule = f"must not exceed the number of training samples, {len(data.train)}"
        remedy = "Lower it, or write 'largest'."
        problems.append(Problem("retrain.batch_sizes", rule, str(size), remedy))
    smallest = min([*set(sizes) - set(too_large), len(data.train)])
    try:
        check_run(retraining_run(study, smallest, study.retrain.learning_rates[0], 0), data)
    except InputError as error:
        problems += [replace(p, path=f"retrain.{p.path}") for p in error.problems]
    if problems:
        raise InputError(problems, study.name)


def extraction_cells(
    study: DataOptimisedStudy, num_samples: int, device: str = "cpu"
) -> dict[str, ExtractionCell]:
    """Extractions by name: the extractor's, the seed, and what stands for all that decides them."""
    return cells_by_name(
        ExtractionCell(study.data, extractor, study.projection, seed, num_samples, device)
        for extractor in study.extractors
        for seed in study.filter_seeds
    )


def retraining_run(
    study: DataOptimisedStudy, batch_size: int, learning_rate: float, seed: int
) -> Run:
    """An ordinary training, evaluated after its last epoch."""
    retrain = study.retrain
    evaluated = {"evaluate_every": retrain.training.epochs, "statistics": ["own"], "own_ranks": 1}
    values = {"local_batch_size": batch_size, "learning_rate": learning_rate, **evaluated}
    training = retrain.training.model_copy(update=values)
    return ordinary_run(study.data, retrain.model_copy(update={"training": training}), seed)


def retraining_cells(
    study: DataOptimisedStudy, noise: Mapping[int, Flags], device: str = "cpu"
) -> dict[str, RetrainingCell]:
    """Runs by name: data set, batch size, learning rate, seed and what stands for the run.
    ``noise`` is by seed which training samples are left out, (n,). Raises InputError if too few are
    left."""
    left = min(int((~out).sum()) for out in noise.values())
    return cells_by_name(
        _retraining(retraining_run(study, size, rate, seed), subset, out, device)
        for size in _batch_sizes(study, left)
        for rate in study.retrain.learning_rates
        for seed in study.seeds
        for subset, out in _left_out(noise[seed], seed).items()
    )


def _left_out(noise: Flags, seed: int) -> dict[str, Flags]:
    """What is left out of each data set, by its name."""
    parts = (np.zeros_like(noise), noise, random_filter(len(noise), int(noise.sum()), seed))
    return dict(zip(SUBSETS, parts, strict=True))


def _retraining(run: Run, subset: str, out: Flags, device: str) -> RetrainingCell:
    """``run`` on the training samples that are not left ``out``, (n,)."""
    kept = None if subset == "full" else np.flatnonzero(~out)
    count = len(out) if kept is None else len(kept)
    size, rate = run.training.local_batch_size, run.training.learning_rate
    setting = {"subset": subset, "batch_size": size, "learning_rate": rate}
    about = {**setting, "seed": run.seed, "num_samples": count}
    label = f"{subset}_b{size}_lr{rate:g}_s{run.seed}"
    return RetrainingCell(run, kept, count, about, label, device)


def _batch_sizes(study: DataOptimisedStudy, left: int) -> list[int]:
    """The batch sizes in samples, each once."""
    remedy = "Raise clustering.eps, so that less is left out."
    if not left:
        given = f"{study.clustering.eps:g} leaves none"
        refuse("clustering.eps", "must leave samples", given, remedy, study.name)
    sizes = study.retrain.batch_sizes
    too_large = [size for size in sizes if isinstance(size, int) and size > left]
    if too_large:
        rule = f"must not exceed the {left} samples that the filter leaves"
        remedy = f"Lower it, or write 'largest'. {remedy}"
        problems = [Problem("retrain.batch_sizes", rule, str(n), remedy) for n in too_large]
        raise InputError(problems, study.name)
    return list(dict.fromkeys(left if size == "largest" else size for size in sizes))
