"""Turn a data-optimised study into its request: its cells, and the tables of their
outcomes.
"""

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
    draw_random_filter,
    find_table_noise,
    load_weights,
    one_rank_run,
    weights_identity,
)
from simshuffle.extensions.learning.filtering.record import (
    DataOptimisedStudy,
    load_study,
)
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


def request_by_kind(
    reference: str | Path, values: Mapping[str, Any], device: str
) -> tuple[str, Request[Any]]:
    """Return the kind of a study and its request: 'training' or 'data_optimised'.

    Args:
        reference: path of the study, or its name below ``studies/``.
        values: values that replace those of the file, by dotted key.
        device: that trains.

    Raises:
        InputError: the study is missing or does not fit; its data are not here.
    """
    kind = shuffling_study.document(find_file(str(reference), "studies")).get("kind")
    if kind == "data_optimised":
        return kind, request(load_study(reference, values), device)
    study = shuffling_study.load_study(reference, values)
    return "training", shuffling.request(study, device)


def repeat(folder: Path, meta: Meta) -> Request[Filtering]:
    """Rebuild the request of a result from its folder and ``meta.json``.

    It trains on an equal kind of device: 'cuda' stands for any GPU of the result.

    Raises:
        InputError: its data or device are not here, or do not fit the study.
    """
    device = str(meta["device"]).partition(":")[0]
    find_device(device)
    return request(load_study(folder / "study.yaml"), device)


def request(study: DataOptimisedStudy, device: str = "cpu") -> Request[Filtering]:
    """Build the request of a study that ``device`` trains; loads its data to check it.

    Nothing is trained. Facts beside the study are the kind of device, the versions of
    torch and scikit-learn, and the identities of files of weights where there are any.

    Raises:
        InputError: the study does not fit its data, or the data are not here.
    """
    data = study.data.load()
    check_study(study, data)
    facts: dict[str, Any] = {
        "device": device.partition(":")[0],
        "torch": version("torch"),
        "scikit-learn": version("scikit-learn"),
    }
    weights = {
        extractor.name: weights_identity(extractor)
        for extractor in study.extractors
        if extractor.weights
    }
    facts |= {"weights": weights} if weights else {}
    filtering = Filtering(
        study, device, extraction_cells(study, len(data.train), device)
    )
    return Request(study.name, filtering, {"study.yaml": study.to_yaml()}, facts)


@dataclass(frozen=True)
class Filtering:
    """A data-optimised study with its cells, and the tables of their outcomes."""

    study: DataOptimisedStudy  # the study as the user wrote it
    device: str  # device that trains: cpu, cuda or cuda:N
    extractions: Mapping[str, ExtractionCell]  # cells of the first stage, by name

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The facts of the study in ``meta.json``: its name, description and device."""
        study = self.study
        return {
            "study": study.name,
            "description": study.description,
            "device": self.device,
        }

    def retrainings(self, outcomes: Outcomes) -> dict[str, RetrainingCell]:
        """Return the trainings on the samples that the used filters leave, by name.

        There is a training for each of `SUBSETS`, batch size, learning rate and seed.
        With independent filters a seed has the filter of its own extraction; otherwise
        all seeds have that of the first filter seed.

        Raises:
            InputError: too few samples are left; the message says which share is left
                out at other eps.
            SimulationError: an extraction of the used filter is lost or not yet done.
        """
        clustering = self.study.clustering
        noise = {}
        for name, cell in self.extractions.items():
            if self._is_chosen_filter(cell):
                outcome = outcomes.get(name)
                if (
                    outcome is None or outcome.lost
                ):  # without it there is nothing to train on
                    reason = outcome.lost if outcome else "not done yet"
                    raise SimulationError(
                        f"The network of the filter was lost. {name}: {reason}"
                    )
                noise[cell.seed] = find_table_noise(outcome.tables[POINTS], clustering)
        first_seed = self.study.filter_seeds[0]
        are_independent = self.study.independent_filters
        noise_by_seed = {
            seed: noise[seed if are_independent else first_seed]
            for seed in self.study.seeds
        }
        try:
            return retraining_cells(self.study, noise_by_seed, self.device)
        except InputError as error:
            reductions = f"The filter leaves out {self._describe_reductions(outcomes)}."
            problems = [
                replace(problem, remedy=f"{problem.remedy} {reductions}")
                for problem in error.problems
            ]
            raise InputError(problems, self.study.name) from None

    def _describe_reductions(self, outcomes: Outcomes) -> str:
        """Return the shares that the used extractor's filters leave out, by eps, in
        words.

        Shares are in %, means over the filter seeds that are done.
        """
        eps = pd.DataFrame(self._eps_rows(outcomes), columns=list(EPS_COLUMNS))
        used_rows = eps[eps["extractor"] == self.study.filtering.name]
        shares = used_rows.groupby("eps")["reduction"].mean()
        return ", ".join(
            f"{100 * share:.3g} % at eps {value:g}" for value, share in shares.items()
        )

    def tables(self, outcomes: Outcomes) -> FilterTables:
        """Return the tables of the extractions that are there, and of all trainings.

        Lost extractions have no rows; points are of the used filter alone. Trainings
        that are lost or not done have a row with their status.

        Raises:
            InputError: too few samples are left to train on.
            SimulationError: an extraction of the used filter is lost or not yet done.
        """
        cells = self.retrainings(outcomes)
        filters = []
        points = []
        for cell, table, facts in self._finished_extractions(outcomes):
            noise = find_table_noise(table, self.study.clustering)
            filters.append(
                filter_row(facts, table, noise, used=self._is_chosen_filter(cell))
            )
            if self._is_chosen_filter(cell):
                points.append(
                    table.assign(seed=cell.seed, noise=noise)[list(POINT_COLUMNS)]
                )
        return FilterTables(
            pd.DataFrame(filters, columns=list(FILTER_COLUMNS)),
            pd.DataFrame(self._eps_rows(outcomes), columns=list(EPS_COLUMNS)),
            pd.concat(points, ignore_index=True),
            run_table(
                {name: cell.description for name, cell in cells.items()}, outcomes
            ),
        )

    def _is_chosen_filter(self, cell: ExtractionCell) -> bool:
        """Return whether networks are trained on the samples that this extraction
        leaves.
        """
        return cell.extractor.name == self.study.filtering.name

    def _finished_extractions(
        self, outcomes: Outcomes
    ) -> list[tuple[ExtractionCell, pd.DataFrame, Mapping[str, Any]]]:
        """Return the extractions that are done, each with its points and facts.

        Lost ones and those not yet done are left out.
        """
        extractions = [
            (cell, outcomes.get(name)) for name, cell in self.extractions.items()
        ]
        return [
            (cell, outcome.tables[POINTS], outcome.values)
            for cell, outcome in extractions
            if outcome and not outcome.lost
        ]

    def _eps_rows(self, outcomes: Outcomes) -> list[dict[str, Any]]:
        """Return the rows of eps.csv: the share of noise by extraction and eps.

        Extractions that are done have a row for each eps of the study's table and for
        the eps that is used, in rising order.
        """
        clustering = self.study.clustering
        return [
            {
                "extractor": cell.extractor.name,
                "seed": cell.seed,
                "eps": eps,
                "reduction": float(find_table_noise(table, clustering, eps).mean()),
            }
            for cell, table, _ in self._finished_extractions(outcomes)
            for eps in sorted({*clustering.eps_table, clustering.eps})
        ]


def check_study(study: DataOptimisedStudy, data: TrainingSet) -> None:
    """Check, before anything is trained, that every network takes the data.

    Weights must be readable, and batches not larger than the training part. Of the
    networks that are trained on what is left, only the smallest batch is checked.

    Raises:
        InputError: the study has problems; the error has all of them.
    """
    problems: list[Problem] = []
    for index, extractor in enumerate(study.extractors):
        run = one_rank_run(study.data, extractor, study.seeds[0])
        try:
            check_run(run, data)
            if extractor.weights is not None:
                load_weights(initial_model(run, data), Path(extractor.weights))
        except InputError as error:
            problems += [
                replace(
                    problem,
                    path=f"extractors.{index}.{problem.path.removeprefix('extractors.')}",
                )
                for problem in error.problems
            ]
    sizes = [size for size in study.retrain.batch_sizes if isinstance(size, int)]
    too_large = [size for size in sizes if size > len(data.train)]
    for size in too_large:
        rule = f"must not exceed the number of training samples, {len(data.train)}"
        remedy = "Lower the batch size, or write 'largest'."
        problems.append(Problem("retrain.batch_sizes", rule, str(size), remedy))
    smallest = min([*set(sizes) - set(too_large), len(data.train)])
    try:
        check_run(
            retraining_run(study, smallest, study.retrain.learning_rates[0], 0), data
        )
    except InputError as error:
        problems += [
            replace(problem, path=f"retrain.{problem.path}")
            for problem in error.problems
        ]
    if problems:
        raise InputError(problems, study.name)


def extraction_cells(
    study: DataOptimisedStudy, num_samples: int, device: str = "cpu"
) -> dict[str, ExtractionCell]:
    """Return extractions by name: the extractor's, the seed, and a digest of inputs.

    There is one for each extractor and each filter seed. ``num_samples`` are those of
    the training part.
    """
    return cells_by_name(
        ExtractionCell(
            study.data, extractor, study.projection, seed, num_samples, device
        )
        for extractor in study.extractors
        for seed in study.filter_seeds
    )


def retraining_run(
    study: DataOptimisedStudy, batch_size: int, learning_rate: float, seed: int
) -> Run:
    """Return an ordinary training of one rank, evaluated after its last epoch alone.

    ``batch_size`` and ``learning_rate`` replace those of the study.
    """
    retrain = study.retrain
    evaluation = {
        "evaluate_every": retrain.training.epochs,
        "statistics": ["own"],
        "own_ranks": 1,
    }
    values = {
        "local_batch_size": batch_size,
        "learning_rate": learning_rate,
        **evaluation,
    }
    training = retrain.training.model_copy(update=values)
    return one_rank_run(
        study.data, retrain.model_copy(update={"training": training}), seed
    )


def retraining_cells(
    study: DataOptimisedStudy, noise: Mapping[int, Flags], device: str = "cpu"
) -> dict[str, RetrainingCell]:
    """Return runs by name: data set, batch size, learning rate, seed, and a digest.

    All trainings have the same batch sizes: 'largest' is the number of samples that are
    left by the filter that leaves fewest, on the full data as well.

    Args:
        noise: by seed, whether each training sample is left out, (n,); there must be
            one for each seed of the study.

    Raises:
        InputError: too few samples are left by the filter that leaves fewest.
    """
    num_left = min(int((~is_removed).sum()) for is_removed in noise.values())
    return cells_by_name(
        _retraining_cell(
            retraining_run(study, size, rate, seed), subset, is_removed, device
        )
        for size in _batch_sizes(study, num_left)
        for rate in study.retrain.learning_rates
        for seed in study.seeds
        for subset, is_removed in _filters_of_subsets(noise[seed], seed).items()
    )


def _filters_of_subsets(noise: Flags, seed: int) -> dict[str, Flags]:
    """Return which samples each of `SUBSETS` leaves out, (n,), by its name.

    'full' leaves out none, 'network' those of ``noise`` (n,), and 'random' as many,
    drawn with ``seed``.
    """
    filters = (
        np.zeros_like(noise),
        noise,
        draw_random_filter(len(noise), int(noise.sum()), seed),
    )
    return dict(zip(SUBSETS, filters, strict=True))


def _retraining_cell(
    run: Run, subset: str, is_removed: Flags, device: str
) -> RetrainingCell:
    """Return the cell of ``run`` on the training samples that are not removed, (n,).

    With subset 'full' the cell trains on all samples, whatever ``is_removed`` says.
    """
    retained_samples = None if subset == "full" else np.flatnonzero(~is_removed)
    count = len(is_removed) if retained_samples is None else len(retained_samples)
    size = run.training.local_batch_size
    rate = run.training.learning_rate
    setting = {"subset": subset, "batch_size": size, "learning_rate": rate}
    description = {**setting, "seed": run.seed, "num_samples": count}
    label = f"{subset}_b{size}_lr{rate:g}_s{run.seed}"
    return RetrainingCell(run, retained_samples, count, description, label, device)


def _batch_sizes(study: DataOptimisedStudy, num_left: int) -> list[int]:
    """Return the batch sizes in samples, each once, in the study's order.

    'largest' stands for the number of samples that are left.

    Raises:
        InputError: no samples are left, or fewer than a batch has.
    """
    remedy = "Raise clustering.eps, so that the filter leaves out less."
    if not num_left:
        clause = f"{study.clustering.eps:g} leaves none"
        refuse("clustering.eps", "must leave samples", clause, remedy, study.name)
    sizes = study.retrain.batch_sizes
    too_large = [size for size in sizes if isinstance(size, int) and size > num_left]
    if too_large:
        rule = f"must not exceed the {num_left} samples that the filter leaves"
        remedy = f"Lower the batch size, or write 'largest'. {remedy}"
        problems = [
            Problem("retrain.batch_sizes", rule, str(size), remedy)
            for size in too_large
        ]
        raise InputError(problems, study.name)
    return list(
        dict.fromkeys(num_left if size == "largest" else size for size in sizes)
    )
