"""What is asked of an accuracy: scenarios for each number of ranks, what of them is changed, and
the sensitivity of the network."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from simshuffle.errors import InputError, Problem, ScenarioError, refuse
from simshuffle.extensions.learning.accuracy import sensitivity
from simshuffle.extensions.learning.accuracy.sensitivity import MeasuredScreening, Norm, Sensitivity
from simshuffle.job.scenario.options import scenario_of
from simshuffle.job.scenario.scenario import Scenario, load_scenarios, serialise_scenarios
from simshuffle.job.scenario.swept import EXCHANGE, WORLD_SIZE, runs_followed
from simshuffle.studies.mechanisms.variants import prepare_scenario
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import Meta, Request
from simshuffle.workload.exchange import PartialLocalShuffle
from simshuffle.workload.layers import SHIPPED, LayerList, layer_list
from simshuffle.workload.parallelism import Data

if TYPE_CHECKING:
    from simshuffle.extensions.learning.accuracy.verb import AccuracyOptions

TIMES = (2, 4)
"""Times the local batch that are tried."""
FRACTIONS = (0.03, 0.1, 0.3)
"""Q of the exchanges that are tried."""
FROM_PFS = "global_shuffle:source=pfs"
BATCH = "workload.local_batch_size"
VERB = "simshuffle accuracy"


@dataclass(frozen=True)
class Change:
    """A remedy that is another scenario."""

    name: str
    kind: str  # one of `tables.KINDS`
    scenario: Scenario | None  # with it; None where it cannot be had
    why: str  # it cannot; '' if it can


@dataclass(frozen=True)
class Sized:
    """What is asked about a run of the scenario: a strategy on a number of ranks."""

    base: Scenario  # of two epochs, without sweep
    strategy: str  # of its run, such as 'partial-0.1 streamlined'
    changes: Sequence[Change]  # none where nothing is lost

    @property
    def name(self) -> str:
        """The name of the run."""
        return f"{self.strategy} @{self.world_size}"

    @property
    def world_size(self) -> int:
        """M."""
        return self.base.world_size

    @property
    def cells(self) -> dict[str, Scenario]:
        """What is simulated and followed, by name; the scenario as it is under ''."""
        found = {of.name: of.scenario for of in self.changes if of.scenario is not None}
        return {"": self.base, **found}


@dataclass(frozen=True)
class AccuracyRequest:
    """What is asked."""

    sized: Sequence[Sized]  # fewest ranks first
    of: Sensitivity
    without: Sensitivity  # that of a network without running statistics
    momentum: float
    epochs: int  # of the training
    tolerance: float  # points
    channels: Sequence[int]  # of every layer of batch norm; empty where none are known
    norm_is_known: bool  # whether it is known what the network normalises by
    exact: bool  # whether all remedies are simulated, however long that takes


def request(options: AccuracyOptions) -> Request[AccuracyRequest]:
    """What is asked for: every run of the scenario's sweep over strategies and numbers of ranks.

    Raises:
        InputError: other keys are swept; shards are sorted, for which there is no law; a number of
            ranks does not fit; the screening is no such file, or of another momentum; training is
            divided otherwise than by data.
    """
    if options.shards == "sorted":
        rule = "must be random: the law is of how many samples statistics rest on, not of which"
        remedy = (
            "Train it: simshuffle train with partition: sorted, or screen your own network on"
            " such shards."
        )
        refuse("--shards", rule, "sorted", remedy, COMMAND_LINE)
    scenario = scenario_of(options.scenario, options.set)
    if not isinstance(scenario.workload.parallelism, Data):
        rule, kind = "must be data parallel", scenario.workload.parallelism.kind
        remedy = "Set workload.parallelism=data: ranks are then replicas, each with its own batch."
        raise ScenarioError(Problem("workload.parallelism", rule, kind, remedy), scenario.name)
    plain: dict[str, Any] = {
        "model": options.model,
        "norm": options.norm,
        "momentum": options.momentum,
        "epochs": options.epochs,
        "tolerance": options.tolerance,
        "screening": None,
        "exact": options.exact,
    }
    if options.screening is not None:
        found = sensitivity.screened(options.screening)
        plain["screening"] = found.model_dump(mode="json")
    return _request(_bases(scenario, options.world_size), plain)


def _bases(scenario: Scenario, world_sizes: Sequence[int]) -> list[Scenario]:
    """Every run of the scenario, fewest ranks first; of all of them on each of ``world_sizes``, if
    there are some."""
    if world_sizes:
        sizes = sorted(set(world_sizes))
        axes = {**scenario.with_values({WORLD_SIZE: sizes[0]}).sweep, WORLD_SIZE: sizes}
        first = scenario.with_values({WORLD_SIZE: sizes[0]})
        scenario = first.model_copy(update={"sweep": axes})
    runs = runs_followed(scenario, VERB, (WORLD_SIZE, EXCHANGE))
    return sorted(map(prepare_scenario, runs.values()), key=lambda base: base.world_size)


def repeat(folder: Path, meta: Meta) -> Request[AccuracyRequest]:
    """The request of a result, from its folder."""
    return _request(load_scenarios(folder / "scenario.yaml"), meta["asked"])


def _request(sized: Sequence[Scenario], plain: Mapping[str, Any]) -> Request[AccuracyRequest]:
    first = sized[0]
    name, layers = _network(first, plain["model"])
    norm = cast(Norm | None, plain["norm"])
    rows = sensitivity.table()
    is_known = True
    if plain["screening"] is not None:
        found: MeasuredScreening = sensitivity.screening_of(plain["screening"], "screening")
        of = sensitivity.of_screening(found, plain["momentum"], norm)
    else:
        known = norm or _norm_of(rows, name, layers)
        is_known = known is not None
        of = sensitivity.of_network(
            rows, name, known or "batch", first.workload.dataset.name, _layers_of(layers)
        )
    has_statistics = of.norm == "batch"
    without = sensitivity.of_network(rows, name, "none") if has_statistics else of
    asked = AccuracyRequest(
        [
            Sized(base, strategy, list(_changes(base)) if has_statistics else [])
            for base, strategy in zip(sized, _strategies(sized), strict=True)
        ],
        of,
        without,
        plain["momentum"],
        plain["epochs"],
        plain["tolerance"],
        _channels(layers) if has_statistics else (),
        is_known,
        plain.get("exact", True),  # in results of earlier versions all was simulated
    )
    document, files = serialise_scenarios(sized)
    said = {"asked": dict(plain), "sensitivity": of.plain()}
    return Request(first.name, asked, {"scenario.yaml": document}, said, files)


def _strategies(bases: Sequence[Scenario]) -> list[str]:
    """What the strategy of each run is called; equal names on as many ranks are numbered."""
    names: list[str] = []
    count: Counter[str] = Counter()
    for base in bases:
        label = base.label()
        count[label] += 1
        strategy = label.rpartition(" @")[0]
        names.append(strategy if count[label] == 1 else f"{strategy} ({count[label]})")
    return names


def _network(scenario: Scenario, name: str | None) -> tuple[str, LayerList | None]:
    """The network that is meant, and its layers where they are known."""
    own = scenario.workload.model
    if name is None or name == own.name:
        return own.name, own.layer_list
    return name, layer_list(name) if name in SHIPPED else None


LAYER_NORM = re.compile(
    r"(?<![a-z])(vit|deit|swin|beit|bert|roberta|gpt|llama|mistral|mixtral|t5|transformer|convnext)"
)
"""Begins of names of networks that normalise by layer, in small letters: transformers, and ConvNeXt
(arXiv 2201.03545, table 9)."""


def _norm_of(rows: Any, name: str, layers: LayerList | None) -> Norm | None:
    """What a network normalises by: as the table says, else its layers: with attention by layer,
    otherwise by batch if it does at all; else its name. None where nothing is known."""
    named = rows.loc[rows["model"] == name, "norm"]
    if len(named):
        return cast(Norm, "batch" if "batch" in set(named) else named.iloc[0])
    if layers is None:
        return "layer" if LAYER_NORM.search(name.lower()) else None
    found = {layer.kind for layer in layers.layers}
    if "norm" not in found:
        return "none"
    return "layer" if "attention" in found else "batch"


def _layers_of(layers: LayerList | None) -> str:
    """What most of its layers are, by the words of the table; '' of one of which nothing is
    known."""
    found = {layer.kind for layer in layers.layers} if layers is not None else set()
    words = {"attention": "attention", "conv": "convolution", "linear": "dense"}
    return next((word for kind, word in words.items() if kind in found), "")


def _channels(layers: LayerList | None) -> tuple[int, ...]:
    """Channels of every norm, of which each has a factor and a summand."""
    norms = [] if layers is None else [of for of in layers.layers if of.kind == "norm"]
    return tuple(of.parameters // 2 for of in norms)


def _changes(base: Scenario) -> Iterator[Change]:
    """The remedies that are another scenario; none where nothing is lost."""
    workload = base.workload
    if workload.exchange.redraws and not workload.exchange.fetches:
        return
    samples = workload.dataset.num_samples // base.world_size
    for times in TIMES:
        batch = times * workload.local_batch_size
        name = f"local batch {batch}"
        if batch > samples:
            yield Change(name, "local batch", None, f"a rank has {samples:,} samples")
        else:
            yield _change(base, name, "local batch", {BATCH: batch})
    for kind in ("random", "oldest"):
        for fraction in FRACTIONS:
            if (values := _exchange(base, kind, fraction)) is not None:
                word = "partial" if kind == "random" else "oldest"
                yield _change(base, f"{word} {fraction:g}", word, {EXCHANGE: values})
    yield _change(base, "global from the PFS", "global", {EXCHANGE: FROM_PFS})


def _exchange(base: Scenario, selection: str, fraction: float) -> dict[str, Any] | None:
    """The exchange of that fraction, which travels as the scenario's own if that is a partial
    shuffle; None where it would be no more than that."""
    own = base.workload.exchange
    values: dict[str, Any] = {"kind": "partial_local_shuffle"}
    if isinstance(own, PartialLocalShuffle):
        less = fraction < own.exchange_fraction
        same = fraction == own.exchange_fraction and selection in ("random", own.selection)
        if less or same:
            return None
        values = own.model_dump(mode="json", exclude_defaults=True)
    return {**values, "exchange_fraction": fraction, "selection": selection}


def _change(base: Scenario, name: str, kind: str, values: Mapping[str, Any]) -> Change:
    try:
        return Change(name, kind, base.with_values(values), "")
    except InputError as error:
        why = "; ".join(f"{of.rule}: {of.value}" for of in error.problems)
        return Change(name, kind, None, why)
