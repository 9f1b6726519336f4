"""What is searched for: the smallest file system, and the value of an input from which on another
strategy is the cheapest."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simshuffle.plan.bounds import bounds
from simshuffle.results import report
from simshuffle.results.report import WHOLE
from simshuffle.scenario.scenario import Scenario
from simshuffle.sim.cell import NetworkCell, RunCell
from simshuffle.sim.simulate import simulate
from simshuffle.study.cell import Outcome, Tell

OPEN_RATE = "cluster.parallel_file_system.open_rate"
READ_BANDWIDTH = "cluster.parallel_file_system.read_bandwidth"
CLOSE = 1.02
"""A file system is known to 2 %: one that is so many times smaller does not do."""
AMPLE = 1e3
"""Times what an epoch needs at least: a file system that never binds."""
IO, EXCHANGE = "I/O", "EXCHANGE"


def shares(breakdown: Mapping[Any, Any], epoch: int) -> dict[str, float]:
    """Of an epoch the share under each label, a rank's own and what it waits for others that are at
    it, from columns label, cause, seconds, epoch."""
    columns = (breakdown[name] for name in ("epoch", "label", "cause", "seconds"))
    found: dict[str, float] = {}
    for number, label, cause, seconds in zip(*columns, strict=True):
        if number == epoch:
            found[cause or label] = found.get(cause or label, 0.0) + seconds
    whole = sum(found.values())
    return {label: seconds / whole for label, seconds in found.items()}


def smallest(enough: Callable[[float], bool], guess: float, most: float) -> float:
    """The smallest number, to `CLOSE`, that is ``enough``, which is as all larger ones; found from
    ``guess`` on by doubling or halving, then by bisection of logarithms. ``most`` is enough."""
    low = high = min(guess, most)
    if enough(high):
        while enough(low := high / 2):
            high = low
    else:
        while not enough(high := min(2 * low, most)):
            low = high
    while high / low > CLOSE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class FileSystemCell(NetworkCell):
    """The smallest file system of a strategy that reads from it in every epoch."""

    document: Mapping[str, Any]  # the scenario with the strategy, without sweep
    name: str  # of the strategy
    io_share: float  # that I/O may take of an epoch

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [self._run.key, self.name, self.io_share]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return f"file system of {self.name}"

    @property
    def cost(self) -> float:
        """As for `Cell`: it simulates the last epoch some thirty times."""
        return 30 / self._run.scenario.epochs * self._run.cost

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return self._run.memory

    @cached_property
    def _run(self) -> RunCell:
        return RunCell(self.document, "")

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: files_per_s and bytes_per_s; alone, each of them where the other never
        binds; the share that I/O takes, and the rows of all that was simulated. None for all four
        numbers if no file system does."""
        return Outcome(_FileSystems(self._run.scenario, self.name, self.io_share, tell).found())


class _FileSystems:
    """The simulations of a search, each once."""

    def __init__(self, scenario: Scenario, name: str, most: float, tell: Tell) -> None:
        self._scenario, self._name, self._most, self._tell = scenario, name, most, tell
        self.rows: list[dict[str, Any]] = []
        self._known: dict[tuple[float, float], float] = {}

    def found(self) -> dict[str, Any]:
        """What `FileSystemCell.run` gives."""
        workload = self._scenario.workload
        needed = (
            workload.dataset.num_samples / workload.dataset.samples_per_file,
            workload.dataset.nbytes,
        )
        least = bounds(self._scenario).loop
        files, nbytes = (of / least for of in needed)
        ample = (AMPLE * files, AMPLE * nbytes)
        unbound = self._io(*ample)
        if unbound > self._most:
            return {
                "alone": None,
                "files_per_s": None,
                "bytes_per_s": None,
                "io": unbound,
                "points": self.rows,
            }
        opens = _rounded(smallest(lambda of: self._io(of, ample[1]) <= self._most, files, ample[0]))
        bandwidth = _rounded(
            smallest(lambda of: self._io(ample[0], of) <= self._most, nbytes, ample[1])
        )
        # a worker opens a file, then reads it: both at once bind more than each alone
        times = smallest(lambda of: self._io(of * opens, of * bandwidth) <= self._most, 1.0, AMPLE)
        best = _rounded(times * opens), _rounded(times * bandwidth)
        io = self._io(*best)
        return {
            "files_per_s": best[0],
            "bytes_per_s": best[1],
            "io": io,
            "alone": [opens, bandwidth],
            "points": self.rows,
        }

    def _io(self, files: float, nbytes: float) -> float:
        """Share of the last epoch that I/O takes of a file system with that open rate and
        bandwidth, both rounded up to what is written of them."""
        at = _rounded(files), _rounded(nbytes)
        if at not in self._known:
            scenario = self._scenario.with_values(file_system(*at))
            timeline = simulate(scenario, first_epoch=scenario.epochs)
            table = report.all_labels(timeline)
            found = shares(table.to_dict("list"), scenario.epochs)
            self._known[at] = found.get(IO, 0.0)
            whole = float(table["seconds"].sum())
            self.rows.append(
                {
                    "strategy": self._name,
                    "files_per_s": at[0],
                    "bytes_per_s": at[1],
                    WHOLE: whole,
                    "io": self._known[at],
                }
            )
            self._tell(min(0.95, len(self.rows) / 30))
        return self._known[at]


def file_system(files: float, nbytes: float) -> dict[str, Any]:
    """The values of a scenario with such a file system (1/s, bytes/s)."""
    return {OPEN_RATE: f"{files:.4g} /s", READ_BANDWIDTH: f"{nbytes:.4g} B/s"}


def _rounded(value: float) -> float:
    """Four digits, upwards, as they are written in a command."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.4g}")
