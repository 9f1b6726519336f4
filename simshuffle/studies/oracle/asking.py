"""What is asked of an oracle, checked: which strategies at which world sizes, and what of it is
simulated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem
from simshuffle.layers import SHIPPED, LayerList
from simshuffle.scenario.scenario import Scenario, load_scenarios, stored
from simshuffle.spec.library import nearest
from simshuffle.studies.oracle.given import COMMAND_LINE, budget_of
from simshuffle.studies.oracle.strategies import Named, chosen, known_names
from simshuffle.study.study import Meta, Request


@dataclass(frozen=True)
class Asked:
    """What is asked beside the scenario.

    Attributes:
        strategies: names or kinds with values; none for all that may work.
        world_sizes: none for powers of two.
        budget: memory of a GPU, with a unit; None for what the accelerator's name says.
        simulate: strategies and world sizes whose step is simulated.
        measured: strategy, world size and s of measured epochs.
    """

    strategies: Sequence[str] = ()
    world_sizes: Sequence[int] = ()
    budget: str | None = None
    simulate: Sequence[tuple[str, int]] = ()
    measured: Sequence[tuple[str, int, float]] = ()


@dataclass(frozen=True)
class Oracle:
    """What is looked at.

    Attributes:
        scenario: without sweep.
        points: strategies at each world size, smallest first.
        simulate: names and world sizes of those that are simulated too.
        measured: name, world size and s of measured epochs.
        budget: bytes of memory of a GPU; None without one.
        budget_from: where that is from.
    """

    scenario: Scenario
    points: Mapping[int, Sequence[Named]]
    simulate: Sequence[tuple[str, int]]
    measured: Sequence[tuple[str, int, float]]
    budget: float | None
    budget_from: str

    def named(self, name: str, world_size: int) -> Named:
        """The strategy of that name at a world size."""
        return next(each for each in self.points[world_size] if each.name == name)


def request(scenario: Scenario, asked: Asked) -> Request[Oracle]:
    """What is asked for.

    Args:
        scenario: its sweep is not followed, nor its world size and parallelism but for precision,
            optimiser and the like.
        asked: what else.

    Raises:
        InputError: the layers of the model are not known; a strategy is not; a world size does not
            fit; or the budget is none.
    """
    single = scenario.model_copy(update={"sweep": {}})
    layers = _layers(single)
    budget, budget_from = budget_of(asked.budget, single.cluster.host.accelerator)
    sizes = _sizes(single, asked.world_sizes)
    points: dict[int, list[Named]] = {
        size: chosen(single, layers, size, asked.strategies) for size in sizes
    }
    _check_known(single, layers, sizes, asked.strategies, points)
    simulate = [
        (name, size)
        for wanted, size in asked.simulate
        for name in _added(single, layers, points, "--simulate", wanted, size)
    ]
    measured = []
    for wanted, size, seconds in asked.measured:
        names = _added(single, layers, points, "--measured", wanted, size)
        if len(names) > 1:
            rule, remedy = f"must name one strategy on {size} GPUs", f"Choose: {', '.join(names)}."
            raise InputError(Problem("--measured", rule, repr(wanted), remedy), COMMAND_LINE)
        measured.append((names[0], size, seconds))
    _check_possible(single, layers, points)
    text, files = stored([single])
    plain: dict[str, Any] = {
        "strategies": list(asked.strategies),
        "world_sizes": list(asked.world_sizes),
        "budget": asked.budget,
        "simulate": [list(of) for of in asked.simulate],
        "measured": [list(of) for of in asked.measured],
    }
    ordered = {size: points[size] for size in sorted(points)}
    of = Oracle(single, ordered, sorted(set(simulate)), measured, budget, budget_from)
    return Request(scenario.name, of, {"scenario.yaml": text}, {"asked": plain}, files)


def again(folder: Path, meta: Meta) -> Request[Oracle]:
    """The request of a result, from its folder."""
    (scenario,) = load_scenarios(folder / "scenario.yaml")
    plain = meta["asked"]
    pairs = {name: [tuple(of) for of in plain[name]] for name in ("simulate", "measured")}
    return request(
        scenario, Asked(plain["strategies"], plain["world_sizes"], plain["budget"], **pairs)
    )


def _layers(scenario: Scenario) -> LayerList:
    model = scenario.workload.model
    if model.layer_list is None:
        given = "groups of layers without shapes" if model.layers is not None else "none"
        rule = f"must say the shapes of the layers of {model.name}"
        known = [*SHIPPED]
        remedy = (
            f"Name the network: --set workload.model.layers={model.name}."
            if model.name in known
            else f"Name a network, or write it layer by layer. {nearest(model.name, known)}"
        )
        raise InputError(Problem("workload.model.layers", rule, given, remedy), scenario.name)
    return model.layer_list


def _sizes(scenario: Scenario, wanted: Sequence[int]) -> list[int]:
    """The world sizes that are looked at, smallest first.

    Raises:
        InputError: one is larger than the machine or the data set.
    """
    workload, gpus = scenario.workload, scenario.cluster.num_gpus
    samples = workload.dataset.num_samples
    most = min(gpus, samples)
    if not wanted:
        filled = max(min(most, samples // workload.local_batch_size), 1)
        return [1 << power for power in range(filled.bit_length())]
    for size in wanted:
        _check_size(scenario, size, "--world-sizes")
    return sorted(set(wanted))


def _check_size(scenario: Scenario, size: int, option: str) -> None:
    gpus, samples = scenario.cluster.num_gpus, scenario.workload.dataset.num_samples
    if size > gpus:
        rule, most = f"must be at most the {gpus} GPUs of {scenario.cluster.name}", gpus
    elif size > samples:
        rule, most = f"must be at most the {samples} samples of the data set", samples
    else:
        return
    remedy = f"{1 << (most.bit_length() - 1)} is the largest power of two that fits."
    raise InputError(Problem(option, rule, str(size), remedy), COMMAND_LINE)


def _check_known(
    scenario: Scenario,
    layers: LayerList,
    sizes: Sequence[int],
    strategies: Sequence[str],
    points: Mapping[int, Sequence[Named]],
) -> None:
    """See that every strategy that was named is there at some world size.

    Raises:
        InputError: one is not.
    """
    found = {each.asked for of_size in points.values() for each in of_size}
    missing = [name for name in strategies if name not in found]
    if missing:
        known = known_names(scenario, layers, sizes)
        problems = [
            Problem(
                "--strategies",
                "no such strategy at these world sizes",
                repr(name),
                nearest(name, known),
            )
            for name in missing
        ]
        raise InputError(problems, COMMAND_LINE)


def _check_possible(
    scenario: Scenario, layers: LayerList, points: Mapping[int, Sequence[Named]]
) -> None:
    """See that training can be divided in one of the ways at least.

    Raises:
        InputError: with the first reason of each.
    """
    batch = scenario.workload.local_batch_size
    problems: dict[str, Problem] = {}
    for size, strategies in points.items():
        for each in strategies:
            found = next(each.strategy.problems(layers, size, batch), None)
            if found is None:
                return
            rule = f"{each.name} on {size} GPUs: {found.rule}"
            problems.setdefault(each.name, Problem("--strategies", rule, found.value, found.remedy))
    raise InputError(list(problems.values()), COMMAND_LINE)


def _added(
    scenario: Scenario,
    layers: LayerList,
    points: dict[int, list[Named]],
    option: str,
    name: str,
    size: int,
) -> list[str]:
    """Add points that are asked for by themselves, unless they are there; returns their names.

    Raises:
        InputError: there is none of that name.
    """
    _check_size(scenario, size, option)
    found = chosen(scenario, layers, size, [name])
    if not found:
        known = known_names(scenario, layers, [size])
        rule = f"no such strategy on {size} GPUs"
        raise InputError(Problem(option, rule, repr(name), nearest(name, known)), COMMAND_LINE)
    there = points.setdefault(size, [])
    there += [each for each in found if each.name not in {of.name for of in there}]
    return [each.name for each in found]
