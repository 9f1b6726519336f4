"""The study of data-optimised training: its record, and reading it from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import find_file, parse_kind
from simshuffle.spec.overrides import expand_name, sort_outermost_first
from simshuffle.spec.record import Count, Spec
from simshuffle.spec.switching import PendingSwitches, warn_of_switches
from simshuffle.spec.validation import drop_reported_problems, validate_record
from simshuffle.train.data import Data
from simshuffle.train.models import Model
from simshuffle.train.study import Seeds, as_yaml, document, locate
from simshuffle.train.training import Positive, Training

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,60}$")]


def _check_loss(training: Training) -> Training:
    """Refuse a training whose loss is not that of labels."""
    if training.loss.kind != "cross_entropy":
        raise PydanticCustomError(
            "loss", "data-optimised training needs loss: cross_entropy"
        )
    return training


LabelTraining = Annotated[Training, AfterValidator(_check_loss)]
"""Training on labels, by cross entropy: each sample has a loss of its own."""


class Extractor(Spec):
    """A network whose features decide what is filtered out.

    Attributes:
        name: in tables.
        model: the network; features are what goes into its last layer, ``head``.
        training: how it is trained on the full data. Its ``local_batch_size`` is the
            whole batch.
        weights: file with the weights in place of training: a state_dict of the
            network, as ``torch.save`` writes it.
    """

    name: Name
    model: Model
    training: LabelTraining = Training(local_batch_size=64)
    weights: str | None = None


class Projection(Spec):
    """From features to two dimensions: principal components, then t-SNE (van der Maaten
    and Hinton 2008), both of scikit-learn.

    Attributes:
        pca_components: that t-SNE gets; all of them where there are no more. 50 is what
            scikit-learn's page on t-SNE recommends.
        perplexity: of t-SNE, about the number of neighbours that count; scikit-learn's
            default.
    """

    pca_components: Count = 50
    perplexity: Positive = 30.0


class Clustering(Spec):
    """DBSCAN (Ester et al. 1996) on the samples of each class; what belongs to no
    cluster is noise. Defaults are scikit-learn's.

    Attributes:
        eps: neighbours are at most that far apart, in units of t-SNE's plane, which
            spans about 100.
        min_samples: neighbours, itself included, that make a sample the core of a
            cluster.
        eps_table: further values of eps, of which only the share of noise is reported.
    """

    eps: Positive = 0.5
    min_samples: Count = 5
    eps_table: list[Positive] = Field(
        default_factory=lambda: [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    )


class Retraining(Spec):
    """A smaller network, trained on the full, the network-filtered and the randomly
    filtered data.

    Attributes:
        model: the network.
        training: how; ``local_batch_size`` and ``learning_rate`` are set by the lists
            below, and only the last epoch is evaluated.
        batch_sizes: samples; 'largest' is the number of samples that the filter leaves,
            the smallest one over the seeds.
        learning_rates: as of `Training`, each with every batch size.
    """

    model: Model
    training: LabelTraining = Training()
    batch_sizes: Annotated[list[Count | Literal["largest"]], Field(min_length=1)]
    learning_rates: Annotated[list[Positive], Field(min_length=1)]


class DataOptimisedStudy(Spec):
    """Data-optimised large-batch training: samples that look like noise in a trained
    network's features are left out.

    Attributes:
        name: of the study.
        description: in words; the report begins with it.
        data: what is learnt.
        extractors: networks that filter.
        filter_with: name of the one whose filtered data are trained on; the first one
            if left out.
        projection: from the features of an extractor to points in a plane.
        clustering: from these points to noise.
        retrain: what is trained on the data sets.
        seeds: a list, or how many, which are 0, 1, ...; of weights, orders and filters.
        independent_filters: extract and filter anew for every seed; otherwise the first
            seed's filter serves all.
    """

    kind: Literal["data_optimised"]
    name: Name
    description: str = ""
    data: Data
    extractors: Annotated[list[Extractor], Field(min_length=1)]
    filter_with: str | None = None
    projection: Projection = Projection()
    clustering: Clustering = Clustering()
    retrain: Retraining
    seeds: Seeds = Field(default_factory=lambda: [0])
    independent_filters: bool = True

    @model_validator(mode="after")
    def _names_are_known(self) -> DataOptimisedStudy:
        """Refuse extractors of equal names, and an unknown name in ``filter_with``."""
        names = [extractor.name for extractor in self.extractors]
        if len(set(names)) < len(names):
            raise PydanticCustomError("names", "extractors must have different names")
        if self.filter_with is not None and self.filter_with not in names:
            raise PydanticCustomError(
                "filter",
                "filter_with must name one of the extractors: {names}",
                {"names": ", ".join(names)},
            )
        return self

    @property
    def filtering(self) -> Extractor:
        """The extractor whose filtered data are trained on."""
        return next(
            (
                extractor
                for extractor in self.extractors
                if extractor.name == self.filter_with
            ),
            self.extractors[0],
        )

    @property
    def filter_seeds(self) -> list[int]:
        """Seeds that extractions are made with."""
        return self.seeds if self.independent_filters else self.seeds[:1]

    def to_yaml(self) -> str:
        """The study as YAML that `load_study` reads back to an equal one."""
        return as_yaml(self)


def load_study(
    reference: str | Path, values: Mapping[str, Any] | None = None
) -> DataOptimisedStudy:
    """Load the study of a file, or of a shipped one by its name below ``studies/``.

    ``values`` are set by dotted key, such as ``{"seeds": 3,
    "extractors.0.training.epochs": 2}``. Warns of the switches that they cause
    (`simshuffle.spec.switching`).

    Raises:
        InputError: the file has problems; all are in it.
    """
    path = find_file(str(reference), "studies")
    raw = document(path)
    problems: list[Problem] = []
    pending_switches = PendingSwitches(DataOptimisedStudy)
    for key, value in sort_outermost_first(values or {}).items():
        pending_switches.set_key(raw, key, value, problems)
    switches = pending_switches.settle(raw, values or {})
    _resolve_names(raw, path.parent, problems)
    study, record_problems = validate_record(raw, DataOptimisedStudy)
    problems += drop_reported_problems(record_problems, problems)
    if problems or study is None:
        raise InputError(problems, str(path))
    warn_of_switches(switches)
    return study


def _resolve_names(raw: dict[str, Any], folder: Path, problems: list[Problem]) -> None:
    """Expand records named by their kind, and make paths absolute, within ``raw``.

    A path is taken as beside the study if there is such a file. ``problems`` gets what
    is wrong with names.
    """
    extractors = raw["extractors"] if isinstance(raw.get("extractors"), list) else []
    models = [f"extractors.{index}.model" for index in range(len(extractors))]
    for key in ("data", *models, "retrain.model"):
        expand_name(raw, key, {key: parse_kind}, problems)
    locate(raw.get("data"), "path", folder)
    for extractor in extractors:
        locate(extractor, "weights", folder)
