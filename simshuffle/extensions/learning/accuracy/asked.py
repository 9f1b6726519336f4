"""Turn options into the request of an accuracy study.

The request has the scenarios on each number of ranks, the changes of each scenario that
may help, and the sensitivity of the network.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simshuffle.errors import InputError, Problem, ScenarioError, refuse
from simshuffle.extensions.learning.accuracy import sensitivity
from simshuffle.extensions.learning.accuracy.sensitivity import (
    MeasuredScreening,
    Norm,
    Sensitivity,
)
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.scenario import (
    Scenario,
    load_scenarios,
    serialise_scenarios,
)
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, runs_followed
from simshuffle.studies.mechanisms.variants import prepare_scenario
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import Meta, Request
from simshuffle.workload.exchange import PartialLocalShuffle
from simshuffle.workload.layers import SHIPPED, LayerList, layer_list
from simshuffle.workload.parallelism import Data

if TYPE_CHECKING:
    from simshuffle.extensions.learning.accuracy.verb import AccuracyOptions

BATCH_FACTORS = (2, 4)
"""Times the local batch that are tried."""
TRIED_FRACTIONS = (0.03, 0.1, 0.3)
"""Q of the exchanges that are tried."""
FROM_PFS = "global_shuffle:source=pfs"
BATCH = "workload.local_batch_size"
VERB = "simshuffle accuracy"


@dataclass(frozen=True)
class Change:
    """A remedy that is another scenario."""

    name: str  # names the remedy in tables
    kind: str  # one of `tables.KINDS`
    # the changed scenario; None where the change is impossible
    scenario: Scenario | None
    reason: str  # says why the change is impossible; '' if it is possible


@dataclass(frozen=True)
class AccuracyCase:
    """A run of the scenario whose accuracy is asked for: a strategy on a number of
    ranks.
    """

    base: Scenario  # the run as a scenario of two epochs, without sweep
    strategy: str  # the run's strategy, such as 'partial-0.1 streamlined'
    # remedies to compare; none for global shuffle, and for a network without batch norm
    changes: Sequence[Change]

    @property
    def name(self) -> str:
        """The strategy and the ranks of the run."""
        return f"{self.strategy} @{self.world_size}"

    @property
    def world_size(self) -> int:
        """M."""
        return self.base.world_size

    @property
    def cells(self) -> dict[str, Scenario]:
        """The scenarios that are simulated, by the name of the change; '' for no
        change. Impossible changes are left out.
        """
        changed_scenarios = {
            change.name: change.scenario
            for change in self.changes
            if change.scenario is not None
        }
        return {"": self.base, **changed_scenarios}


@dataclass(frozen=True)
class AccuracyRequest:
    """The checked request of an accuracy study."""

    cases: Sequence[AccuracyCase]  # the runs, fewest ranks first
    sensitivity: Sensitivity  # sensitivity of the network
    norm_free_sensitivity: (
        Sensitivity  # sensitivity of a network without running statistics
    )
    momentum: float  # m of the running statistics
    epochs: int  # epochs of the training
    tolerance: float  # points of accuracy that may be lost
    # channels of every batch-norm layer; empty where none are known, or without batch norm
    channels: Sequence[int]
    # whether it is known what the network normalises by; else batch norm is assumed
    norm_is_known: bool
    exact: bool  # whether all remedies are simulated, however long that takes


def request(options: AccuracyOptions) -> Request[AccuracyRequest]:
    """Build the request: every run of the scenario's sweep over strategies and numbers
    of ranks.

    Raises:
        InputError: other keys are swept; shards are sorted, for which there is no law;
            a number of ranks does not fit; the screening is no such file, or of another
            momentum; training is divided otherwise than by data.
    """
    if options.shards == "sorted":
        rule = (
            "must be random: the law counts the samples behind statistics, and ignores which"
            " ones"
        )
        remedy = (
            "Train on sorted shards (simshuffle train with partition: sorted), or screen your"
            " own network on sorted shards."
        )
        refuse("--shards", rule, "sorted", remedy, COMMAND_LINE)
    scenario = scenario_of(options.scenario, options.set)
    if not isinstance(scenario.workload.parallelism, Data):
        rule = "must be data parallel"
        kind = scenario.workload.parallelism.kind
        remedy = "Set workload.parallelism=data: ranks are then replicas, each with its own batch."
        raise ScenarioError(
            Problem("workload.parallelism", rule, kind, remedy), scenario.name
        )
    question: dict[str, Any] = {
        "model": options.model,
        "norm": options.norm,
        "momentum": options.momentum,
        "epochs": options.epochs,
        "tolerance": options.tolerance,
        "screening": None,
        "exact": options.exact,
    }
    if options.screening is not None:
        screening = sensitivity.read_screening_file(options.screening)
        question["screening"] = screening.model_dump(mode="json")
    return _build_request(_bases(scenario, options.world_size), question)


def _bases(scenario: Scenario, world_sizes: Sequence[int]) -> list[Scenario]:
    """Return every run of the scenario with two epochs, fewest ranks first.

    With ``world_sizes`` every run stands on each of these numbers of ranks.
    """
    if world_sizes:
        sizes = sorted(set(world_sizes))
        axes = {**scenario.with_values({WORLD_SIZE: sizes[0]}).sweep, WORLD_SIZE: sizes}
        smallest = scenario.with_values({WORLD_SIZE: sizes[0]})
        scenario = smallest.model_copy(update={"sweep": axes})
    runs = runs_followed(scenario, VERB, (WORLD_SIZE, EXCHANGE))
    return sorted(
        map(prepare_scenario, runs.values()), key=lambda base: base.world_size
    )


def repeat(folder: Path, meta: Meta) -> Request[AccuracyRequest]:
    """Rebuild the request of a result from its folder and ``meta.json``."""
    return _build_request(load_scenarios(folder / "scenario.yaml"), meta["asked"])


def _build_request(
    bases: Sequence[Scenario], question: Mapping[str, Any]
) -> Request[AccuracyRequest]:
    """Build the request on scenarios; ``question`` has the keys of `AccuracyQuestion`.

    A screening decides the sensitivity if there is one; else the measured rows do, of
    the norm that was asked for or is known, batch norm where none is.
    """
    first = bases[0]
    name, layers = _resolve_network(first, question["model"])
    norm = cast(Norm | None, question["norm"])
    rows = sensitivity.read_sensitivities()
    is_known = True
    if question["screening"] is not None:
        screening: MeasuredScreening = sensitivity.parse_screening_values(
            question["screening"], "screening"
        )
        network_sensitivity = sensitivity.screening_sensitivity(
            screening, question["momentum"], norm
        )
    else:
        known_norm = norm or _known_norm(rows, name, layers)
        is_known = known_norm is not None
        network_sensitivity = sensitivity.predict_sensitivity(
            rows,
            name,
            known_norm or "batch",
            first.workload.dataset.name,
            _main_layer_kind(layers),
        )
    has_statistics = network_sensitivity.norm == "batch"
    norm_free = (
        sensitivity.predict_sensitivity(rows, name, "none")
        if has_statistics
        else network_sensitivity
    )
    accuracy_request = AccuracyRequest(
        [
            AccuracyCase(
                base, strategy, list(_possible_remedies(base)) if has_statistics else []
            )
            for base, strategy in zip(bases, _strategy_names(bases), strict=True)
        ],
        network_sensitivity,
        norm_free,
        question["momentum"],
        question["epochs"],
        question["tolerance"],
        _norm_channels(layers) if has_statistics else (),
        is_known,
        question.get("exact", True),  # in results of earlier versions all was simulated
    )
    document, files = serialise_scenarios(bases)
    facts = {"asked": dict(question), "sensitivity": network_sensitivity.plain_values()}
    return Request(
        first.name, accuracy_request, {"scenario.yaml": document}, facts, files
    )


def _strategy_names(bases: Sequence[Scenario]) -> list[str]:
    """Return the name of each run's strategy, in the order of ``bases``.

    Equal names on as many ranks are numbered from the second on: 'local (2)'.
    """
    names: list[str] = []
    repetitions: Counter[str] = Counter()
    for base in bases:
        label = base.label()
        repetitions[label] += 1
        strategy = label.rpartition(" @")[0]
        names.append(
            strategy
            if repetitions[label] == 1
            else f"{strategy} ({repetitions[label]})"
        )
    return names


def _resolve_network(
    scenario: Scenario, name: str | None
) -> tuple[str, LayerList | None]:
    """Return the name of the requested network, and its layers; None where they are not
    known.

    A ``name`` of None stands for the scenario's network.
    """
    scenario_model = scenario.workload.model
    if name is None or name == scenario_model.name:
        return scenario_model.name, scenario_model.layer_list
    return name, layer_list(name) if name in SHIPPED else None


LAYER_NORM = re.compile(
    r"(?<![a-z])(vit|deit|swin|beit|bert|roberta|gpt|llama|mistral|mixtral|t5|transformer|convnext)"
)
"""Begins of names of networks that normalise by layer, in small letters: transformers,
and ConvNeXt (arXiv 2201.03545, table 9).
"""


def _known_norm(rows: Any, name: str, layers: LayerList | None) -> Norm | None:
    """Return the kind of norm that a network has, or None where nothing is known.

    The table decides first, then the layers (with attention by layer, otherwise by
    batch if it normalises at all), then the name.
    """
    model_norms = rows.loc[rows["model"] == name, "norm"]
    if len(model_norms):
        return cast(
            Norm, "batch" if "batch" in set(model_norms) else model_norms.iloc[0]
        )
    if layers is None:
        return "layer" if LAYER_NORM.search(name.lower()) else None
    layer_kinds = {layer.kind for layer in layers.layers}
    if "norm" not in layer_kinds:
        return "none"
    return "layer" if "attention" in layer_kinds else "batch"


def _main_layer_kind(layers: LayerList | None) -> str:
    """Return the kind of layers that counts: attention, convolution or dense.

    It is attention if there is any, else what more layers are, convolutions where as
    many are dense. It is '' if there are none of these, or layers are not known.
    """
    num_layers = Counter(layer.kind for layer in layers.layers) if layers else Counter()
    if num_layers["attention"]:
        return "attention"
    if num_layers["conv"] >= max(num_layers["linear"], 1):
        return "convolution"
    return "dense" if num_layers["linear"] else ""


def _norm_channels(layers: LayerList | None) -> tuple[int, ...]:
    """Return the channels of every norm layer; () if no layers are known.

    Each channel has a factor and a summand.
    """
    norms = (
        []
        if layers is None
        else [norm for norm in layers.layers if norm.kind == "norm"]
    )
    return tuple(norm.parameters // 2 for norm in norms)


def _possible_remedies(base: Scenario) -> Iterator[Change]:
    """Yield the remedies that are another scenario; none for global shuffle.

    These are larger batches, exchanges of more samples, and global shuffle. Exchanges
    that improve nothing are left out. A change that is impossible, such as a batch that
    exceeds the samples of a rank, has no scenario.
    """
    workload = base.workload
    if workload.exchange.redraws and not workload.exchange.fetches:
        return
    samples = workload.dataset.num_samples // base.world_size
    for factor in BATCH_FACTORS:
        batch = factor * workload.local_batch_size
        name = f"local batch {batch}"
        if batch > samples:
            yield Change(name, "local batch", None, f"a rank has {samples:,} samples")
        else:
            yield _change_values(base, name, "local batch", {BATCH: batch})
    for kind in ("random", "oldest"):
        for fraction in TRIED_FRACTIONS:
            if (values := _exchange_values(base, kind, fraction)) is not None:
                label = "partial" if kind == "random" else "oldest"
                yield _change_values(
                    base, f"{label} {fraction:g}", label, {EXCHANGE: values}
                )
    yield _change_values(base, "global from the PFS", "global", {EXCHANGE: FROM_PFS})


def _exchange_values(
    base: Scenario, selection: str, fraction: float
) -> dict[str, Any] | None:
    """Return the values of an exchange of that fraction and selection.

    None where the scenario exchanges more, or as much in a way no worse. If the
    scenario has a partial shuffle, the exchange travels as that does.
    """
    scenario_exchange = base.workload.exchange
    values: dict[str, Any] = {"kind": "partial_local_shuffle"}
    if isinstance(scenario_exchange, PartialLocalShuffle):
        sends_less = fraction < scenario_exchange.exchange_fraction
        is_equal = fraction == scenario_exchange.exchange_fraction and selection in (
            "random",
            scenario_exchange.selection,
        )
        if sends_less or is_equal:
            return None
        values = scenario_exchange.model_dump(mode="json", exclude_defaults=True)
    return {**values, "exchange_fraction": fraction, "selection": selection}


def _change_values(
    base: Scenario, name: str, kind: str, values: Mapping[str, Any]
) -> Change:
    """Return the change that sets ``values``, by dotted key.

    It has no scenario, but a reason, where they do not fit.
    """
    try:
        return Change(name, kind, base.with_values(values), "")
    except InputError as error:
        reason = "; ".join(
            f"{problem.rule}: {problem.value}" for problem in error.problems
        )
        return Change(name, kind, None, reason)
