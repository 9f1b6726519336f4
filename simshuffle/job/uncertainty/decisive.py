"""Find the unmeasured inputs on which the epochs depend most, by closed forms alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.warming import LATE
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.uncertainty.inputs import ESTIMATE, inputs, scale_inputs
from simshuffle.spec.units import Dimension, readable

MAX_NAMED = 3
"""Inputs that are named."""
MIN_SHARE_MOVED = 0.02
"""Share of an epoch that an input must move, over its range, to be named."""
DECODE, WORKERS = "workload.dataset.decode", "workload.loader.workers"
PAGE_CACHE = "cluster.memory.page_cache"
DETAILS = ("workload.allreduce.protocols.", "cluster.parallel_file_system.link_")
"""Beginnings of keys that nobody gives, and that hardly move an epoch."""
DECODE_RANGE = (0.5, 10.0)
"""Factors on decoding that nobody timed: it follows from the bytes of a file, and the
transforms of a training take up to nine times as long on top (estimate: 2 ms of a JPEG,
20 ms with the augmentations of a vision transformer).
"""
HALF_TO_DOUBLE = (0.5, 2.0)
"""Factors on the number of workers, which is chosen; and on the memory that is free for
caching, of which nobody knows what the processes leave. It is no more than a host has.
"""


@dataclass(frozen=True)
class DecisiveInput:
    """An input, and how far an epoch moves over the input's range."""

    key: str  # dotted
    value: str  # that is taken, with its unit
    low: float  # of its range, over the value
    high: float  # the same
    # how an epoch changes at both ends of the range, as shares of it: the shorter one
    # first, at most 0, then the longer one, at least 0
    shorter: float
    longer: float
    run: str  # whose epoch it is: the run that it moves most

    def describe(self, name: str = "") -> str:
        """Return the input in words, called by ``name``, or by its key if that is ''.

        The words have the value, the run, and the epoch's changes in whole percent.
        """
        ends = (
            f"{100 * share:+.0f}".replace("-0", "0")
            for share in (self.shorter, self.longer)
        )
        moves = "{} to {} % on {}".format(*ends, self.run)
        return f"{name or self.key} (taken: {self.value}; {moves})"


def decisive_inputs(
    runs: Mapping[str, Scenario], known_keys: Collection[str] = ()
) -> list[DecisiveInput]:
    """Return at most `MAX_NAMED` estimated inputs that move an epoch most.

    The first moves it most; [] without any. Inputs that move it by at most the
    share `MIN_SHARE_MOVED` over their range are left out. Each input comes once, as of
    the run that it moves most.

    Args:
        runs: by their names; the fastest and the slowest of the smallest and of the
            largest number of ranks stand for all. Runs with loaders' orders are left
            out: their closed form follows every sample, which takes long.
        known_keys: dotted keys that are known in spite of their sources; left out.
    """
    decisive: dict[str, DecisiveInput] = {}
    for run, scenario in _representatives(runs).items():
        for key, value, range_factors in _estimates(scenario):
            if key in known_keys:
                continue
            nominal, *epochs = (
                bounds(_multiply_input(scenario, key, factor)).epoch
                for factor in (1.0, *range_factors)
            )
            changes = sorted(epoch / nominal - 1.0 for epoch in epochs)
            candidate = DecisiveInput(
                key,
                value,
                *range_factors,
                min(changes[0], 0.0),
                max(changes[1], 0.0),
                run,
            )
            if _range_of_epoch(candidate) > max(
                MIN_SHARE_MOVED, _range_of_epoch(decisive.get(key))
            ):
                decisive[key] = candidate
    return sorted(decisive.values(), key=_range_of_epoch, reverse=True)[:MAX_NAMED]


def _range_of_epoch(decisive: DecisiveInput | None) -> float:
    """Return the share by which an input moves an epoch, end to end; 0 for None."""
    return 0.0 if decisive is None else decisive.longer - decisive.shorter


def _representatives(runs: Mapping[str, Scenario]) -> dict[str, Scenario]:
    """Return the runs that stand for all, at most four: the fastest and the slowest of
    the smallest and of the largest number of ranks.

    Runs with loaders' orders are left out, so none may be left.
    """
    runs = {
        name: run for name, run in runs.items() if not run.workload.exchange.fetches
    }
    sizes = sorted({run.world_size for run in runs.values()})
    chosen: dict[str, Scenario] = {}
    for size in dict.fromkeys([*sizes[:1], *sizes[-1:]]):
        epochs = {
            run: bounds(scenario).epoch
            for run, scenario in runs.items()
            if scenario.world_size == size
        }
        for run in (
            min(epochs, key=epochs.__getitem__),
            max(epochs, key=epochs.__getitem__),
        ):
            chosen[run] = runs[run]
    return chosen


def _estimates(scenario: Scenario) -> list[tuple[str, str, tuple[float, float]]]:
    """Return key, value in words, and range as two factors, of what is estimated.

    Workers are always among them; decoding and page cache where they are not given.
    Keys that begin with one of `DETAILS` are not.
    """
    estimates = [
        (
            estimated_input.key,
            readable(estimated_input.value, estimated_input.dimension, 3),
            (estimated_input.low, estimated_input.high),
        )
        for estimated_input in inputs(scenario, {})
        if estimated_input.kind == ESTIMATE
        and not estimated_input.key.startswith(DETAILS)
    ]
    workload = scenario.workload
    if workload.dataset.decode is None:
        seconds = readable(workload.dataset.decode_seconds, Dimension.SECONDS, 3)
        estimates.append((DECODE, f"{seconds} a sample", DECODE_RANGE))
    estimates.append((WORKERS, str(workload.loader.workers), HALF_TO_DOUBLE))
    memory = scenario.cluster.memory
    if memory.page_cache is None:
        nbytes = readable(memory.cache_nbytes, Dimension.NBYTES, 3)
        estimates.append(
            (PAGE_CACHE, f"{nbytes} a host; once caches are full", HALF_TO_DOUBLE)
        )
    return estimates


def _multiply_input(scenario: Scenario, key: str, factor: float) -> Scenario:
    """Return the scenario with an input multiplied; it is not checked again.

    Workers come with their prefetching, at least 1 each; with a page cache, at most the
    memory, the scenario ends after epoch `LATE`.
    """
    workload = scenario.workload
    if key == PAGE_CACHE:  # which later epochs hang on
        memory = scenario.cluster.memory
        memory_update = {
            "page_cache": min(factor * memory.cache_nbytes, memory.capacity)
        }
        cluster = {"memory": memory.model_copy(update=memory_update)}
        late = {"epochs": LATE, "cluster": scenario.cluster.model_copy(update=cluster)}
        return scenario.model_copy(update=late)
    if key == WORKERS:
        counts = {
            name: max(round(getattr(workload.loader, name) * factor), 1)
            for name in ("workers", "prefetch")
        }
        loader = workload.loader.model_copy(update=counts)
        return _with_workload(scenario, loader=loader)
    if key == DECODE and workload.dataset.decode is None:
        update = {"decode": workload.dataset.decode_seconds * factor}
        return _with_workload(
            scenario, dataset=workload.dataset.model_copy(update=update)
        )
    return scale_inputs(scenario, {key: factor})


def _with_workload(scenario: Scenario, **records: object) -> Scenario:
    """Return the scenario with other ``records`` in its workload, not checked again."""
    workload = scenario.workload.model_copy(update=records)
    return scenario.model_copy(update={"workload": workload})
