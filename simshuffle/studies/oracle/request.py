"""Check the request of an oracle: strategies, world sizes, and the points that are
simulated.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from simshuffle.errors import InputError, Problem, SimshuffleWarning, refuse
from simshuffle.job.scenario.model import NOTED
from simshuffle.job.scenario.options import kinds_of, nbytes_of, record_of, scenario_of
from simshuffle.job.scenario.scenario import (
    Scenario,
    load_scenario,
    serialise_scenarios,
)
from simshuffle.job.scenario.swept import WORLD_SIZE, runs_followed
from simshuffle.spec.library import parse_kind, suggest_nearest
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.oracle.measured import Measured, measured_epochs
from simshuffle.studies.oracle.tables import GIB
from simshuffle.studies.oracle.verb import OracleOptions
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import Meta, Request
from simshuffle.workload.layers import SHIPPED, LayerList
from simshuffle.workload.parallelism import AnyParallelism, Data, Parallelism
from simshuffle.workload.parallelism.candidates import list_candidates, parallelism_name

VERB = "simshuffle study oracle"
MOST_DIVISORS = 16
"""Divisors of the largest world size of a scenario that are looked at without being
asked for.
"""
REPLICAS = "data+"
"""Begins the name of a strategy of several groups, each with samples of its own."""
_ADAPTER: TypeAdapter[Any] = TypeAdapter(AnyParallelism)
COMMON = tuple(name for name in Parallelism.model_fields if name != "source")
"""Keys that all strategies take over from the scenario's."""


@dataclass(frozen=True)
class Named:
    """A strategy at a world size."""

    name: str  # what tables call it
    strategy: Parallelism  # itself
    request: str = ""  # the name by which it was requested; '' if all were

    @property
    def plain(self) -> dict[str, Any]:
        """Return the strategy as plain values."""
        return self.strategy.model_dump(mode="json", exclude_none=True)


def strategy_of(values: Mapping[str, Any]) -> Parallelism:
    """Return the strategy of plain values."""
    strategy: Parallelism = _ADAPTER.validate_python(dict(values))
    return strategy


def alone(scenario: Scenario) -> Data:
    """Return data parallelism, with the settings that all strategies take over from the
    scenario's.
    """
    return Data(**_common(scenario))


def chosen(scenario: Scenario, world_size: int, names: Sequence[str]) -> list[Named]:
    """Return the requested strategies at a world size, each once, in requested order.

    Names that no candidate at this world size has are left out.

    Args:
        scenario: the training that the strategies divide.
        world_size: M, the number of ranks.
        names: a kind with values ('spatial:ways=4'); a name of a table; or the short
            name or kind of several, of those with replicas alone behind 'data+'. Empty
            for all.

    Raises:
        InputError: the kind of a name with values is not known, or the values not
            valid.
    """
    all_candidates = _all(scenario, world_size)
    if not names:
        return all_candidates
    candidates_by_name: dict[str, Named] = {}
    for name in names:
        for candidate in _of_name(scenario, all_candidates, world_size, name):
            candidates_by_name.setdefault(
                candidate.name, replace(candidate, request=name)
            )
    return list(candidates_by_name.values())


def known_names(scenario: Scenario, sizes: Sequence[int]) -> list[str]:
    """Return the kinds and names of all strategies at these world sizes, as a command
    line takes them.
    """
    names: dict[str, None] = {}
    for size in sizes:
        for candidate in _all(scenario, size):
            names |= {
                getattr(candidate.strategy, "kind", ""): None,
                _typed(candidate.name): None,
            }
    return list(names)


def _all(scenario: Scenario, world_size: int) -> list[Named]:
    """Return every candidate of `list_candidates` at a world size."""
    workload = scenario.workload
    batch = workload.local_batch_size
    gpus = scenario.cluster.host.gpus
    strategies = list_candidates(
        layers_of(scenario), world_size, batch, gpus, workload.parallelism
    )
    return [Named(name, strategy) for name, strategy in strategies.items()]


def _common(scenario: Scenario) -> dict[str, Any]:
    """Return the values that all strategies take over from the scenario's, `COMMON`."""
    strategy = scenario.workload.parallelism
    return {name: getattr(strategy, name) for name in COMMON}


def _typed(name: str) -> str:
    """Return the name of a table as it can be typed without quotes: 'data+spatial (4)'
    becomes data+spatial-4.
    """
    return re.sub(r"[ (]+", "-", name.strip()).rstrip(")")


def _of_name(
    scenario: Scenario, all_candidates: Sequence[Named], world_size: int, name: str
) -> list[Named]:
    """Return the strategies that a requested name stands for; [] if it is unknown.

    A kind with values is a strategy of its own, under the name of the table if no
    further values make it differ. Else the candidates of that short name or kind
    (behind 'data+' those with replicas), else the one of that name. Case does not
    count.

    Raises:
        InputError: the kind of a name with values is not known, or the values not
            valid.
    """
    kind_text = name.removeprefix(REPLICAS)
    if ":" in kind_text:
        kinds = kinds_of(AnyParallelism)
        common = _common(scenario)
        strategy: Parallelism = record_of("--strategies", kind_text, kinds, common)
        table_name = parallelism_name(strategy, world_size)
        further_keys = {*parse_kind(kind_text)} - {
            "kind",
            "stage",
            getattr(strategy, "members_key", ""),
        }
        if not further_keys and all(
            candidate.strategy == strategy
            for candidate in all_candidates
            if candidate.name == table_name
        ):
            return [Named(table_name, strategy)]
        # another than those that are there anyway is called as it is written
        divided = 1 < strategy.group_size(world_size) < world_size
        return [Named(f"{REPLICAS * divided}{kind_text}", strategy)]
    exact = [
        candidate
        for candidate in all_candidates
        if _typed(name).lower() == _typed(candidate.name).lower()
    ]
    of_kind = [
        candidate
        for candidate in all_candidates
        if kind_text.lower()
        in {
            candidate.strategy.short_name.lower(),
            getattr(candidate.strategy, "kind", ""),
        }
        and (candidate.name.startswith(REPLICAS) or kind_text == name)
    ]
    return of_kind or exact


_MEMORY = re.compile(r"-(\d+)gb\b")


@dataclass(frozen=True)
class Oracle:
    """The checked request of an oracle: the points to predict, to simulate, and to
    compare.
    """

    scenario: Scenario  # without sweep
    # strategies at each world size, smallest first
    points: Mapping[int, Sequence[Named]]
    # names and world sizes of those that are simulated too
    simulate: Sequence[tuple[str, int]]
    measured: Sequence[Measured]  # name, world size and s of measured epochs
    budget: float | None  # bytes of memory of a GPU; None without one
    budget_from: str  # '--budget-memory', or 'of' the accelerator; '' without one

    def named(self, name: str, world_size: int) -> Named:
        """Return the strategy of that name at a world size; it must be there."""
        return next(
            candidate for candidate in self.points[world_size] if candidate.name == name
        )


def with_exact_gradients(scenario: Scenario) -> Scenario:
    """Return the scenario with a gradient of 1, 2, 4 or 8 B for each parameter.

    A size that is off by more than a share `NOTED` gives a `SimshuffleWarning`.
    """
    model = scenario.workload.model
    exact = model.exact_gradient_size
    if abs(model.gradient_size - exact) > NOTED * exact:
        sizes = [
            readable(nbytes, Dimension.NBYTES)
            for nbytes in (model.gradient_size, exact)
        ]
        text = "workload.model.gradient_size: {} is replaced by {}, the size of the layers".format(
            *sizes
        )
        warnings.warn(text, SimshuffleWarning, stacklevel=2)
    workload = scenario.workload.model_copy(
        update={"model": model.model_copy(update={"gradient_size": exact})}
    )
    return scenario.model_copy(update={"workload": workload})


def request(
    options: OracleOptions, epochs: Sequence[Measured] | None = None
) -> Request[Oracle]:
    """Return the checked request of an oracle.

    Args:
        options: of the sweep of their scenario the world sizes are followed, and of its
            parallelism precision, optimiser and the like.
        epochs: measured epochs; None for those in the file that the options name.

    Raises:
        InputError: the layers of the model are not known; a strategy is not, at any
            world size; none is possible; a measured name is of several strategies; a
            world size does not fit; the budget is not above 0; or other keys are swept.
    """
    measured = measured_epochs(options.measured) if epochs is None else epochs
    scenario = scenario_of(options.scenario, options.set)
    runs = [*runs_followed(scenario, VERB, (WORLD_SIZE,)).values()]
    single = with_exact_gradients(runs[0])
    layers_of(single)  # what is wrong with them is said first
    budget, budget_from = budget_of(
        options.budget_memory, single.cluster.host.accelerator
    )
    sizes = _sizes(single, options.world_sizes or default_sizes(runs))
    points = {size: chosen(single, size, options.strategies) for size in sizes}
    requests_met = {
        candidate.request for of_size in points.values() for candidate in of_size
    }
    if missing := [name for name in options.strategies if name not in requests_met]:
        rule = "no such strategy at these world sizes"
        names_known = known_names(single, sizes)
        problems = [
            Problem(
                "--strategies", rule, repr(name), suggest_nearest(name, names_known)
            )
            for name in missing
        ]
        raise InputError(problems, COMMAND_LINE)
    simulate = {
        (name, size)
        for name_text, size in options.simulate
        for name in _added(single, points, "--simulate", name_text, size)
    }
    measured_points = []
    for requested_name, size, seconds in measured:
        names = _added(single, points, "--measured", requested_name, size)
        if len(names) > 1:
            rule = f"must name one strategy on {size} GPUs"
            remedy = f"Choose: {', '.join(names)}."
            refuse("--measured", rule, repr(requested_name), remedy, COMMAND_LINE)
        measured_points.append((names[0], size, seconds))
    _check_possible(single, points)
    text, files = serialise_scenarios([single])
    answers = {
        "strategies": list(options.strategies),
        "world_sizes": sizes,
        "budget": options.budget_memory,
        "simulate": [list(simulated) for simulated in options.simulate],
        "measured": [list(epoch) for epoch in measured],
    }
    ordered = {size: points[size] for size in sorted(points)}
    oracle = Oracle(
        single, ordered, sorted(simulate), measured_points, budget, budget_from
    )
    return Request(
        scenario.name, oracle, {"scenario.yaml": text}, {"asked": answers}, files
    )


def repeat(folder: Path, meta: Meta) -> Request[Oracle]:
    """Return the request of an earlier result, from its folder."""
    answers = meta["asked"]
    # results of earlier versions have powers of two where no sizes were asked for
    sizes = answers["world_sizes"] or powers_of_two(
        load_scenario(folder / "scenario.yaml")
    )
    options = OracleOptions(
        scenario=folder / "scenario.yaml",
        strategies=tuple(answers["strategies"]),
        world_sizes=tuple(sizes),
        budget_memory=answers["budget"],
        simulate=tuple((name, size) for name, size in answers["simulate"]),
    )
    return request(
        options, [(name, size, seconds) for name, size, seconds in answers["measured"]]
    )


def layers_of(scenario: Scenario) -> LayerList:
    """Return the layers of a scenario's model.

    Raises:
        InputError: their shapes are not known.
    """
    model = scenario.workload.model
    if model.layer_list is None:
        layers_text = (
            "groups of layers without shapes" if model.layers is not None else "none"
        )
        rule = f"must say the shapes of the layers of {model.name}"
        remedy = f"Name the network: --set workload.model.layers={model.name}."
        if model.name not in SHIPPED:
            suggestion = suggest_nearest(model.name, [*SHIPPED])
            remedy = f"Name a network, or write it layer by layer. {suggestion}"
        refuse("workload.model.layers", rule, layers_text, remedy, scenario.name)
    return model.layer_list


def default_sizes(runs: Sequence[Scenario]) -> list[int]:
    """Return world sizes to look at, ascending.

    They are the powers of two as far as machine and data set go, the world sizes of the
    runs, and the divisors of the largest if these are at most `MOST_DIVISORS`.
    """
    run_sizes = {single.world_size for single in runs}
    largest = max(run_sizes)
    divisors = [size for size in range(1, largest + 1) if largest % size == 0]
    few = divisors if len(divisors) <= MOST_DIVISORS else []
    return sorted({*powers_of_two(runs[0]), *run_sizes, *few})


def powers_of_two(scenario: Scenario) -> list[int]:
    """Return powers of two from 1 up to the machine's GPUs and a batch for each rank."""
    workload = scenario.workload
    gpus = scenario.cluster.num_gpus
    filled = max(
        min(gpus, workload.dataset.num_samples // workload.local_batch_size), 1
    )
    return [1 << power for power in range(filled.bit_length())]


def _sizes(scenario: Scenario, requested_sizes: Sequence[int]) -> list[int]:
    """Check the requested world sizes, and return them, each once, smallest first.

    Raises:
        InputError: one does not fit.
    """
    for size in requested_sizes:
        _check_size(scenario, size, "--world-sizes")
    return sorted(set(requested_sizes))


def _check_size(scenario: Scenario, size: int, option: str) -> None:
    """Check that machine and data set have as many GPUs and samples as ranks.

    Raises:
        InputError: they have fewer; it names ``option``.
    """
    gpus = scenario.cluster.num_gpus
    samples = scenario.workload.dataset.num_samples
    if size > gpus:
        rule = f"must be at most the {gpus} GPUs of {scenario.cluster.name}"
        limit = gpus
    elif size > samples:
        rule = f"must be at most the {samples} samples of the data set"
        limit = samples
    else:
        return
    remedy = f"Give {limit} or fewer."
    refuse(option, rule, str(size), remedy, COMMAND_LINE)


def _check_possible(scenario: Scenario, points: Mapping[int, Sequence[Named]]) -> None:
    """Check that training can be divided by one of the strategies at least.

    Raises:
        InputError: it cannot; the first reason of each strategy.
    """
    layers = layers_of(scenario)
    batch = scenario.workload.local_batch_size
    problems: dict[str, Problem] = {}
    for size, strategies in points.items():
        for candidate in strategies:
            problem = next(candidate.strategy.problems(layers, size, batch), None)
            if problem is None:
                return
            rule = f"{candidate.name} on {size} GPUs: {problem.rule}"
            problems.setdefault(
                candidate.name,
                Problem("--strategies", rule, problem.value, problem.remedy),
            )
    raise InputError(list(problems.values()), COMMAND_LINE)


def _added(
    scenario: Scenario,
    points: dict[int, list[Named]],
    option: str,
    name: str,
    size: int,
) -> list[str]:
    """Add requested points to ``points`` in place; return their names, also of known
    ones.

    Raises:
        InputError: the world size does not fit, or there is no such strategy at it.
    """
    _check_size(scenario, size, option)
    new_candidates = chosen(scenario, size, [name])
    if not new_candidates:
        remedy = suggest_nearest(name, known_names(scenario, [size]))
        refuse(
            option, f"no such strategy on {size} GPUs", repr(name), remedy, COMMAND_LINE
        )
    size_candidates = points.setdefault(size, [])
    size_candidates += [
        candidate
        for candidate in new_candidates
        if candidate.name not in {present.name for present in size_candidates}
    ]
    return [candidate.name for candidate in new_candidates]


def budget_of(text: str | None, accelerator: str) -> tuple[float | None, str]:
    """Return the memory of a GPU that may be used (bytes), and its origin.

    It is ``text``, else what the name of the accelerator says in GiB; None and '' if
    neither says it.

    Raises:
        InputError: ``text`` is not above 0.
    """
    if text is None:
        memory_match = _MEMORY.search(accelerator)
        return (
            (int(memory_match[1]) * GIB, f"of {accelerator}")
            if memory_match
            else (None, "")
        )
    nbytes = nbytes_of("--budget-memory", text)
    if not nbytes:
        remedy = "For example --budget-memory '16 GiB'."
        refuse(
            "--budget-memory", "must be bytes above 0", repr(text), remedy, COMMAND_LINE
        )
    return nbytes, "--budget-memory"
