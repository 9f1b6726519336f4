"""The study of data-optimised training: its extractions, the filters that follow from them, what is
trained on what these leave, and the tables of all that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.errors import InputError, Problem, SimulationError
from simshuffle.exchange import GlobalShuffle
from simshuffle.studies.filtering.tables import (
    EPS_COLUMNS,
    FILTER_COLUMNS,
    POINT_COLUMNS,
    SUBSETS,
    FilterTables,
    filter_row,
    run_table,
)
from simshuffle.study.cell import digest_of
from simshuffle.study.study import Outcomes, Request
from simshuffle.train.data import TrainingSet
from simshuffle.train.emulate import check_run, initial_model
from simshuffle.train.filtering.extraction import (
    POINTS,
    ExtractionCell,
    loaded,
    ordinary_run,
    weights_of,
)
from simshuffle.train.filtering.filtering import Bools, noise_of, random_filter
from simshuffle.train.filtering.record import DataOptimisedStudy
from simshuffle.train.filtering.retraining import RetrainingCell
from simshuffle.train.run import Run


def request(study: DataOptimisedStudy, device: str = "cpu") -> Request[Filtering]:
    """What is asked of ``study``, which that device trains.

    Raises:
        InputError: the study cannot be carried out.
    """
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
    """A study as what it does (see `simshuffle.studies.filtering.study.Filtering`).

    Attributes:
        study: what to do.
        device: that trains.
        extractions: the first stage.
    """

    study: DataOptimisedStudy
    device: str
    extractions: Mapping[str, ExtractionCell]

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What ``meta.json`` says of it."""
        study = self.study
        return {"study": study.name, "description": study.description, "device": self.device}

    def retrainings(self, outcomes: Outcomes) -> dict[str, RetrainingCell]:
        """The trainings on what the used filters leave, by name.

        Raises:
            InputError: they leave too little; says how much for other values of eps.
            SimulationError: the network that filters is not there.
        """
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


def extraction_cells(
    study: DataOptimisedStudy, num_samples: int, device: str = "cpu"
) -> dict[str, ExtractionCell]:
    """Extractions by name: the extractor's, the seed, and what stands for all that decides the
    points."""
    cells = [
        ExtractionCell(study.data, extractor, study.projection, seed, num_samples, device)
        for extractor in study.extractors
        for seed in study.filter_seeds
    ]
    return {f"{cell.label}_{digest_of(cell)[:12]}": cell for cell in cells}


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


def retraining_cells(
    study: DataOptimisedStudy, noise: Mapping[int, Bools], device: str = "cpu"
) -> dict[str, RetrainingCell]:
    """Runs by name: data set, batch size, learning rate, seed and what stands for the run.

    Args:
        study: what to do.
        noise: by seed, which training samples the filter leaves out, (n,).
        device: that trains.

    Raises:
        InputError: a batch size exceeds the number of samples that are left.
    """
    left = min(int((~out).sum()) for out in noise.values())
    cells = {}
    for size in _batch_sizes(study, left):
        for rate in study.retrain.learning_rates:
            for seed in study.seeds:
                run = retraining_run(study, size, rate, seed)
                for subset, out in _left_out(noise[seed], seed).items():
                    kept = None if subset == "full" else np.flatnonzero(~out)
                    count = len(out) if kept is None else len(kept)
                    cell = _cell(run, kept, count, subset, device)
                    cells[f"{cell.label}_{digest_of(cell)[:12]}"] = cell
    return cells


def _left_out(noise: Bools, seed: int) -> dict[str, Bools]:
    """What is left out of each data set, by its name."""
    parts = (np.zeros_like(noise), noise, random_filter(len(noise), int(noise.sum()), seed))
    return dict(zip(SUBSETS, parts, strict=True))


def _cell(
    run: Run, kept: NDArray[np.int64] | None, count: int, subset: str, device: str
) -> RetrainingCell:
    size, rate = run.training.local_batch_size, run.training.learning_rate
    about = {
        "subset": subset,
        "batch_size": size,
        "learning_rate": rate,
        "seed": run.seed,
        "num_samples": count,
    }
    label = f"{subset}_b{size}_lr{rate:g}_s{run.seed}"
    return RetrainingCell(run, kept, count, about, label, device)


def _batch_sizes(study: DataOptimisedStudy, left: int) -> list[int]:
    """The batch sizes in samples, each once."""
    remedy = "Raise clustering.eps, so that less is left out."
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
