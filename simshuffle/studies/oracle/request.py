"""The request of an oracle, checked: which strategies at which world sizes, and what of them is
simulated."""

from __future__ import annotations

import csv
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from simshuffle.errors import InputError, Problem, SimshuffleWarning, refuse
from simshuffle.job.scenario.model import NOTED
from simshuffle.job.scenario.options import kinds_of, nbytes_of, record_of, scenario_of
from simshuffle.job.scenario.scenario import Scenario, load_scenario, stored
from simshuffle.job.scenario.swept import WORLD_SIZE, runs_followed
from simshuffle.spec.library import parse_kind, suggest_nearest
from simshuffle.spec.units import Dimension, readable
from simshuffle.spec.validation import validate_record
from simshuffle.studies.oracle.tables import GIB
from simshuffle.studies.oracle.verb import OracleOptions
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.study import Meta, Request
from simshuffle.workload.layers import SHIPPED, LayerList
from simshuffle.workload.parallelism import AnyParallelism, Data, Parallelism
from simshuffle.workload.parallelism.candidates import list_candidates, parallelism_name

VERB = "simshuffle study oracle"
MOST_DIVISORS = 16
"""Divisors of the largest world size of a scenario that are looked at without being asked for."""
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
    request: str = ""  # what it was asked for as; '' for none in particular

    @property
    def plain(self) -> dict[str, Any]:
        """The strategy as plain values."""
        return self.strategy.model_dump(mode="json", exclude_none=True)


def strategy_of(plain: Mapping[str, Any]) -> Parallelism:
    """The strategy of plain values."""
    strategy: Parallelism = _ADAPTER.validate_python(dict(plain))
    return strategy


def alone(scenario: Scenario) -> Data:
    """Data parallelism, with what the scenario's strategy says of all."""
    return Data(**_common(scenario))


def chosen(scenario: Scenario, world_size: int, names: Sequence[str]) -> list[Named]:
    """The strategies at a world size that are asked for, each once, in the order in which they are.

    Args:
        scenario, world_size: what they are for.
        names: a kind with values ('spatial:ways=4'); a name of a table; or the short name or kind
            of several, of those with replicas alone behind 'data+'. None for all.

    Raises:
        InputError: a kind is not known, or its values are not valid.
    """
    there = _all(scenario, world_size)
    if not names:
        return there
    found: dict[str, Named] = {}
    for name in names:
        for each in _of_name(scenario, there, world_size, name):
            found.setdefault(each.name, replace(each, request=name))
    return list(found.values())


def known_names(scenario: Scenario, sizes: Sequence[int]) -> list[str]:
    """Kinds and names of all strategies at these world sizes, as a command line takes them."""
    names: dict[str, None] = {}
    for size in sizes:
        for each in _all(scenario, size):
            names |= {getattr(each.strategy, "kind", ""): None, _typed(each.name): None}
    return list(names)


def _all(scenario: Scenario, world_size: int) -> list[Named]:
    workload = scenario.workload
    batch, gpus = workload.local_batch_size, scenario.cluster.host.gpus
    found = list_candidates(layers_of(scenario), world_size, batch, gpus, workload.parallelism)
    return [Named(name, strategy) for name, strategy in found.items()]


def _common(scenario: Scenario) -> dict[str, Any]:
    own = scenario.workload.parallelism
    return {name: getattr(own, name) for name in COMMON}


def _typed(name: str) -> str:
    """A name of a table as it can be typed without quotes: 'data+spatial (4)' is
    data+spatial-4."""
    return re.sub(r"[ (]+", "-", name.strip()).rstrip(")")


def _of_name(scenario: Scenario, there: Sequence[Named], world_size: int, name: str) -> list[Named]:
    bare = name.removeprefix(REPLICAS)
    if ":" in bare:
        kinds, common = kinds_of(AnyParallelism), _common(scenario)
        found: Parallelism = record_of("--strategies", bare, kinds, common)
        known = parallelism_name(found, world_size)
        others = {*parse_kind(bare)} - {"kind", "stage", getattr(found, "members_key", "")}
        if not others and all(each.strategy == found for each in there if each.name == known):
            return [Named(known, found)]
        # another than those that are there anyway is called as it is written
        divided = 1 < found.group_size(world_size) < world_size
        return [Named(f"{REPLICAS * divided}{bare}", found)]
    exact = [each for each in there if _typed(name).lower() == _typed(each.name).lower()]
    of_kind = [
        each
        for each in there
        if bare.lower() in {each.strategy.short_name.lower(), getattr(each.strategy, "kind", "")}
        and (each.name.startswith(REPLICAS) or bare == name)
    ]
    return of_kind or exact


Measured = tuple[str, int, float]
"""Strategy, world size, and s of an epoch."""
MEASURED = ("strategy", "world_size", "epoch_s")
"""Columns of a file of measured epochs."""


class _Epoch(BaseModel):
    """A row of such a file."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True, allow_inf_nan=False)
    strategy: str
    world_size: Annotated[int, Field(ge=1)]
    epoch_s: Annotated[float, Field(gt=0)]


_MEMORY = re.compile(r"-(\d+)gb\b")


@dataclass(frozen=True)
class Oracle:
    """What is looked at."""

    scenario: Scenario  # without sweep
    points: Mapping[int, Sequence[Named]]  # strategies at each world size, smallest first
    simulate: Sequence[tuple[str, int]]  # names and world sizes of those that are simulated too
    measured: Sequence[Measured]  # name, world size and s of measured epochs
    budget: float | None  # bytes of memory of a GPU; None without one
    budget_from: str  # where that is from

    def named(self, name: str, world_size: int) -> Named:
        """The strategy of that name at a world size."""
        return next(each for each in self.points[world_size] if each.name == name)


def with_exact_gradients(scenario: Scenario) -> Scenario:
    """Return the scenario with a gradient of 1, 2, 4 or 8 B for each parameter of its layers, from
    which all strategies are compared; a size that is further off is said."""
    model = scenario.workload.model
    exact = model.exact_gradient_size
    if abs(model.gradient_size - exact) > NOTED * exact:
        sizes = [readable(nbytes, Dimension.NBYTES) for nbytes in (model.gradient_size, exact)]
        text = "workload.model.gradient_size: {} is taken as the {} of the layers".format(*sizes)
        warnings.warn(text, SimshuffleWarning, stacklevel=2)
    workload = scenario.workload.model_copy(
        update={"model": model.model_copy(update={"gradient_size": exact})}
    )
    return scenario.model_copy(update={"workload": workload})


def request(options: OracleOptions, epochs: Sequence[Measured] | None = None) -> Request[Oracle]:
    """What is asked for.

    Args:
        options: of the sweep of their scenario the world sizes are followed, and of its parallelism
            precision, optimiser and the like.
        epochs: that were measured; None for those in the file that the options name.

    Raises:
        InputError: the layers of the model are not known; a strategy is not; a world size does not
            fit; the budget is none; or other keys are swept.
    """
    measured = measured_epochs(options.measured) if epochs is None else epochs
    scenario = scenario_of(options.scenario, options.set)
    runs = [*runs_followed(scenario, VERB, (WORLD_SIZE,)).values()]
    single = with_exact_gradients(runs[0])
    layers_of(single)  # what is wrong with them is said first
    budget, budget_from = budget_of(options.budget_memory, single.cluster.host.accelerator)
    sizes = _sizes(single, options.world_sizes or default_sizes(runs))
    points = {size: chosen(single, size, options.strategies) for size in sizes}
    found_as = {each.request for of_size in points.values() for each in of_size}
    if missing := [name for name in options.strategies if name not in found_as]:
        rule, known = "no such strategy at these world sizes", known_names(single, sizes)
        problems = [
            Problem("--strategies", rule, repr(of), suggest_nearest(of, known)) for of in missing
        ]
        raise InputError(problems, COMMAND_LINE)
    simulate = {
        (name, size)
        for wanted, size in options.simulate
        for name in _added(single, points, "--simulate", wanted, size)
    }
    found = []
    for wanted, size, seconds in measured:
        names = _added(single, points, "--measured", wanted, size)
        if len(names) > 1:
            rule, remedy = f"must name one strategy on {size} GPUs", f"Choose: {', '.join(names)}."
            refuse("--measured", rule, repr(wanted), remedy, COMMAND_LINE)
        found.append((names[0], size, seconds))
    _check_possible(single, points)
    text, files = stored([single])
    plain = {
        "strategies": list(options.strategies),
        "world_sizes": sizes,
        "budget": options.budget_memory,
        "simulate": [list(of) for of in options.simulate],
        "measured": [list(of) for of in measured],
    }
    ordered = {size: points[size] for size in sorted(points)}
    of = Oracle(single, ordered, sorted(simulate), found, budget, budget_from)
    return Request(scenario.name, of, {"scenario.yaml": text}, {"asked": plain}, files)


def repeat(folder: Path, meta: Meta) -> Request[Oracle]:
    """Return the request of a result, from its folder."""
    asked = meta["asked"]
    # results of earlier versions have powers of two where no sizes were asked for
    sizes = asked["world_sizes"] or powers_of_two(load_scenario(folder / "scenario.yaml"))
    options = OracleOptions(
        scenario=folder / "scenario.yaml",
        strategies=tuple(asked["strategies"]),
        world_sizes=tuple(sizes),
        budget_memory=asked["budget"],
        simulate=tuple((name, size) for name, size in asked["simulate"]),
    )
    return request(options, [(name, size, seconds) for name, size, seconds in asked["measured"]])


def layers_of(scenario: Scenario) -> LayerList:
    """The layers of a scenario's model.

    Raises:
        InputError: their shapes are not known.
    """
    model = scenario.workload.model
    if model.layer_list is None:
        given = "groups of layers without shapes" if model.layers is not None else "none"
        rule = f"must say the shapes of the layers of {model.name}"
        remedy = f"Name the network: --set workload.model.layers={model.name}."
        if model.name not in SHIPPED:
            known = suggest_nearest(model.name, [*SHIPPED])
            remedy = f"Name a network, or write it layer by layer. {known}"
        refuse("workload.model.layers", rule, given, remedy, scenario.name)
    return model.layer_list


def default_sizes(runs: Sequence[Scenario]) -> list[int]:
    """Powers of two as far as machine and data set go, the world sizes of the runs, and their
    divisors where these are few."""
    own = {single.world_size for single in runs}
    largest = max(own)
    divisors = [size for size in range(1, largest + 1) if largest % size == 0]
    few = divisors if len(divisors) <= MOST_DIVISORS else []
    return sorted({*powers_of_two(runs[0]), *own, *few})


def powers_of_two(scenario: Scenario) -> list[int]:
    """World sizes that are powers of two, as far as machine and data set go."""
    workload, gpus = scenario.workload, scenario.cluster.num_gpus
    filled = max(min(gpus, workload.dataset.num_samples // workload.local_batch_size), 1)
    return [1 << power for power in range(filled.bit_length())]


def _sizes(scenario: Scenario, wanted: Sequence[int]) -> list[int]:
    """The world sizes that are looked at, smallest first."""
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
    remedy = f"Give {most} or fewer."
    refuse(option, rule, str(size), remedy, COMMAND_LINE)


def _check_possible(scenario: Scenario, points: Mapping[int, Sequence[Named]]) -> None:
    """See that training can be divided in one of the ways at least, or raise InputError with the
    first reason of each."""
    layers, batch = layers_of(scenario), scenario.workload.local_batch_size
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
    scenario: Scenario, points: dict[int, list[Named]], option: str, name: str, size: int
) -> list[str]:
    """Add points that are asked for by themselves, unless they are there; returns their names."""
    _check_size(scenario, size, option)
    found = chosen(scenario, size, [name])
    if not found:
        remedy = suggest_nearest(name, known_names(scenario, [size]))
        refuse(option, f"no such strategy on {size} GPUs", repr(name), remedy, COMMAND_LINE)
    there = points.setdefault(size, [])
    there += [each for each in found if each.name not in {of.name for of in there}]
    return [each.name for each in found]


def budget_of(text: str | None, accelerator: str) -> tuple[float | None, str]:
    """The memory of a GPU that may be used (bytes), and where that is from: ``text``, or else the
    name of the accelerator; None if neither says it. InputError if ``text`` is not above 0."""
    if text is None:
        found = _MEMORY.search(accelerator)
        return (int(found[1]) * GIB, f"of {accelerator}") if found else (None, "")
    nbytes = nbytes_of("--budget-memory", text)
    if not nbytes:
        remedy = "For example --budget-memory '16 GiB'."
        refuse("--budget-memory", "must be bytes above 0", repr(text), remedy, COMMAND_LINE)
    return nbytes, "--budget-memory"


def measured_epochs(path: Path | None) -> list[Measured]:
    """Strategy, world size and s of each row of a CSV file with the columns `MEASURED`; none
    without a file.

    Raises:
        InputError: it cannot be read, or a row is not as it should be.
    """
    if path is None:
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file, restkey="more", strict=True)
            columns, rows = table.fieldnames or [], list(table)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = getattr(error, "strerror", None) or error
        remedy = f"Name a CSV file with the columns {', '.join(MEASURED)}."
        refuse("--measured", f"cannot be read: {why}", str(path), remedy, COMMAND_LINE)
    if sorted(columns) != sorted(MEASURED):
        rule, given = f"must have the columns {', '.join(MEASURED)}", ", ".join(columns) or "none"
        refuse("", rule, given, "Correct the first line.", str(path))
    if not rows:
        refuse("", "must have a row for each measured epoch", "none", "Add one.", str(path))
    found, problems = [], []
    for number, row in enumerate(rows, 2):
        epoch, wrong = validate_record(row, _Epoch)
        problems += [replace(of, path=f"line {number}: {of.path}") for of in wrong]
        if epoch is not None:
            found.append((epoch.strategy, epoch.world_size, epoch.epoch_s))
    if problems:
        raise InputError(problems, str(path))
    return found
