"""What is searched for: the smallest file system, and the largest exchange that stays hidden."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simshuffle.extensions.planning.precision import COARSE, TOLERANCE, seconds_of_run
from simshuffle.extensions.planning.prices import CLOSE_AT_ONCE
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.effort import effort, first_window
from simshuffle.job.plan.hidden import (
    bounds_without_exchange,
    fraction_of,
    hidden_samples,
    most_samples,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import NetworkCell, RunCell
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.report.report import WHOLE
from simshuffle.studies.mechanisms.variants import (
    OWN,
    WarmCell,
    with_variant,
)
from simshuffle.study.cell import Outcome, Tell
from simshuffle.study.store import run_inner_cell

OPEN_RATE = "cluster.parallel_file_system.open_rate"
READ_BANDWIDTH = "cluster.parallel_file_system.read_bandwidth"
CLOSE = 1.01
"""A file system is known to 1 %: one that is so many times smaller does not do."""
NEAR = 1.001
"""Times that a number is off where an estimate is tried from either side: much less than
`CLOSE`."""
MOST_STEPS = 200
SEARCH_RUNS = 15
"""Epochs that a search simulates in windows, as those of a run."""
WINDOWS = 7
"""First windows that an epoch must be longer than, or no window of three, each twice as long as the
last, is worth it near the border: every iteration is simulated."""
WHOLE_EPOCHS, EXACT_WHOLE_EPOCHS = 1.3, 5.0
"""Epochs that it simulates whole, and the same with ``--exact``."""
LEFT = 4.0
"""Epochs that are still to be simulated, in the mean over a search: its share never reaches 1."""
AMPLE = 1e3
"""Times what an epoch needs at least: a file system that never binds."""
IO, EXCHANGE = "I/O", "EXCHANGE"


def shares(breakdown: Mapping[Any, Any], epoch: int) -> dict[str, float]:
    """Of an epoch the share under each label, a rank's own and what it waits for others that are at
    it, from columns label, cause, seconds, epoch."""
    columns = (breakdown[name] for name in ("epoch", "label", "cause", "seconds"))
    found: dict[str, float] = {}
    for number, label, cause, spent in zip(*columns, strict=True):
        if number == epoch:
            found[cause or label] = found.get(cause or label, 0.0) + spent
    whole = sum(found.values())
    return {label: seconds / whole for label, seconds in found.items()}


def smallest(
    share: Callable[[float], float],
    within: float,
    guess: float,
    most: float,
    *,
    close: float = CLOSE,
    low: float = 0.0,
) -> float:
    """Return the smallest number, to ``close``, whose ``share`` of an epoch is ``within`` bounds,
    as that of all larger ones, and that of ``most``, is. That of ``low`` is not. One that is
    ``close`` times smaller was tried too, and is not.

    Where a resource of rate x binds, the epoch is as long as 1/x, and all but the share is the same
    at every x: so that of a number tells at which other it would be ``within``. Where it tells
    little the step doubles, and then every other step is a bisection of logarithms."""
    high, point, stride = math.inf, min(guess, most), 1.0
    for number in range(MOST_STEPS):
        taken = share(point)
        if taken <= within:
            high = point
        else:
            low = point
        if low > 0 and high / low <= close:
            return high
        told = point * (1.0 - within) / max(1.0 - taken, 1e-9)
        if math.isinf(high):
            point = min(max(NEAR * told, point * NEAR * stride), most)
            stride *= 2.0
        elif low == 0.0:
            point = min(told / NEAR, point / (NEAR * stride))
            stride *= 2.0
        elif number % 2:
            point = math.sqrt(low * high)
        else:
            # just beyond where it is told to be, on the side that is not known to `CLOSE`
            beyond = told * NEAR if taken > within else told / NEAR
            point = min(max(beyond, low * NEAR), high / NEAR)
    return high


@dataclass(frozen=True)
class FileSystemCell(NetworkCell):
    """The smallest file system of a strategy that reads from it in every epoch."""

    document: Mapping[str, Any]  # the scenario with the strategy, without sweep
    name: str  # of the strategy
    io_share: float  # that I/O may take of an epoch
    exact: bool = True  # whether every run has the time tolerance of the scenario

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        return [self._run.key, self.name, self.io_share, self.exact]

    @property
    def label(self) -> str:
        """As for `Cell`."""
        return f"file system of {self.name}"

    @property
    def cost(self) -> float:
        """Return s of one core: the last epoch in windows, and whole where I/O is about to
        bind."""
        scenario = self._run.scenario
        each = self._run.cost
        iterations = scenario.workload.iterations(scenario.world_size)
        if WINDOWS * first_window(scenario) >= iterations:
            each = max(each, self._seconds_of_all)
        return SEARCH_RUNS * each / scenario.epochs + self._whole_seconds

    @property
    def _whole_seconds(self) -> float:
        """Return s of one core of the epochs that are simulated whole."""
        whole = self._seconds_of_all / self._run.scenario.epochs
        return whole * (EXACT_WHOLE_EPOCHS if self.exact else WHOLE_EPOCHS)

    @cached_property
    def _seconds_of_all(self) -> float:
        """Return s of one core of a run that simulates every iteration."""
        return effort(self._run.scenario.model_copy(update={TOLERANCE: 0.0})).seconds

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
        scenario = self._run.scenario
        if not self.exact and scenario.time_tolerance < COARSE:
            scenario = scenario.with_values({TOLERANCE: COARSE})
        in_windows = 1.0 - self._whole_seconds / self.cost
        search = _FileSystems(
            scenario,
            self.name,
            tell,
            most=self.io_share,
            exact=self.exact,
            in_windows=in_windows,
        )
        return Outcome(search.found())


class _FileSystems:
    """The simulations of a search, each once."""

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        tell: Tell,
        *,
        most: float,
        exact: bool,
        in_windows: float,  # share of the time that searches of one resource take
    ) -> None:
        self._scenario, self._name, self._most, self._tell = scenario, name, most, tell
        self._exact, self._in_windows, self._rows_of_one = exact, in_windows, 0
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
        # where a resource alone binds, its time is what an epoch is beside I/O over the rest
        busy = (1.0 - unbound) * self.rows[0][WHOLE]
        guess = NEAR * (1.0 - self._most) / busy
        files, nbytes = (amount * guess for amount in needed)
        opens = _rounded(smallest(lambda x: self._io(x, ample[1]), self._most, files, ample[0]))
        bandwidth = _rounded(
            smallest(lambda x: self._io(ample[0], x), self._most, nbytes, ample[1])
        )
        # a worker opens a file, then reads it: both at once bind more than each alone
        self._rows_of_one = len(self.rows)

        def share_at_once(times: float) -> float:
            return self._io(times * opens, times * bandwidth)

        if self._exact:
            times = smallest(share_at_once, self._most, NEAR, AMPLE)
        else:
            # a file system that is too small by one resource alone is too small
            low = 1.0 / CLOSE
            guess = low * CLOSE_AT_ONCE / NEAR
            times = smallest(share_at_once, self._most, guess, AMPLE, close=CLOSE_AT_ONCE, low=low)
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
            epoch = run_inner_cell(IoShareCell(scenario.to_dict(), self._name)).values
            self._known[at] = float(epoch["io"])
            self.rows.append(
                {
                    "strategy": self._name,
                    "files_per_s": at[0],
                    "bytes_per_s": at[1],
                    WHOLE: epoch[WHOLE],
                    "io": epoch["io"],
                }
            )
            self._tell(self._share_done())
        return self._known[at]

    def _share_done(self) -> float:
        """Return the share of the search that is done: one resource at a time, then both."""
        first, rows = self._rows_of_one, len(self.rows)
        if not first:
            return self._in_windows * min(1.0, rows / SEARCH_RUNS)
        points = rows - first
        return self._in_windows + (1.0 - self._in_windows) * points / (points + 1)


@dataclass(frozen=True)
class IoShareCell(RunCell):
    """The last epoch of a scenario alone: how long it is (s), and the share that I/O takes."""

    @property
    def parts(self) -> frozenset[str]:
        """Return the tables of the outcome: none."""
        return frozenset()

    def run(self, tell: Tell) -> Outcome:
        """Simulate the epoch."""
        scenario = self.scenario
        table = report.all_labels(simulate(scenario, first_epoch=scenario.epochs))
        io = shares(table.to_dict("list"), scenario.epochs).get(IO, 0.0)
        return Outcome({WHOLE: float(table["seconds"].sum()), "io": io})


def file_system(files: float, nbytes: float) -> dict[str, Any]:
    """The values of a scenario with such a file system (1/s, bytes/s)."""
    return {OPEN_RATE: f"{files:.4g} /s", READ_BANDWIDTH: f"{nbytes:.4g} B/s"}


def _rounded(value: float) -> float:
    """Return four digits, upwards, as they are written in a command."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.4g}")


@dataclass(frozen=True)
class HiddenExchangeCell(NetworkCell):
    """The largest exchange that adds no more than a share to an epoch, to `CLOSE`: what
    `simshuffle.studies.mechanisms.search.SearchCell` knows to a sample, and with what ends it."""

    document: Mapping[str, Any]  # the resolved scenario with the exchange, from `prepared`
    tolerance: float  # share of the epoch without exchange that counts as nothing
    baseline_s: float  # s of that epoch

    label = "hidden exchange"

    @property
    def key(self) -> Any:
        """Return what decides the outcome."""
        return [self._run.key, self.tolerance, self.baseline_s]

    @property
    def cost(self) -> float:
        """Return s of one core: some six warm epochs, as long as that of the largest exchange that
        closed forms hide."""
        return 3 * self._seconds

    @cached_property
    def _seconds(self) -> float:
        return seconds_of_run(with_variant(self._run.scenario, OWN, max(self._guess, 1), {}))

    @cached_property
    def _guess(self) -> int:
        """Return the samples that closed forms hide."""
        scenario = self._run.scenario
        allowed = self.tolerance * self.baseline_s
        return hidden_samples(
            bounds_without_exchange(scenario), scenario, allowed, most_samples(scenario)
        )

    @cached_property
    def _run(self) -> RunCell:
        return RunCell(self.document, "")

    def run(self, tell: Tell) -> Outcome:
        """Return the columns of `limits` that a plan says, and the rows of `points`."""
        scenario = self._run.scenario
        rows: list[dict[str, Any]] = []

        def added(samples: int) -> float:
            exchange = with_variant(scenario, OWN, samples, {})
            epoch = WarmCell(exchange.to_dict(), self.label)
            spent = float(run_inner_cell(epoch).values[WHOLE])
            share = (spent - self.baseline_s) / self.baseline_s
            fraction = fraction_of(scenario, samples)
            row = {"exchange_fraction": fraction, "epoch_s": spent, "added": share, "removed": ""}
            rows.append(row)
            tell(len(rows) / (len(rows) + LEFT))
            return share

        most = most_samples(scenario)
        samples = largest_hidden(added, self.tolerance, self._guess, most)
        fraction = fraction_of(scenario, samples)
        limit = {"samples": samples, "exchange_fraction": fraction, "bottleneck": ""}
        return Outcome({"limit": limit, "points": rows})


def largest_hidden(added: Callable[[int], float], tolerance: float, guess: int, most: int) -> int:
    """Return the largest number up to ``most``, to `CLOSE`, that adds no more than ``tolerance``;
    0 if 1 adds more. What is added is about in proportion to the number: the search goes on where
    the line through what is known reaches the tolerance."""
    low, high, known = 0, most + 1, {0: 0.0}
    number = max(1, min(guess, most))
    while high - low > max(1, int((CLOSE - 1.0) * low)):
        known[number] = added(number)
        low, high = (number, high) if known[number] <= tolerance else (low, number)
        slope = known[number] / number
        told = int(tolerance / slope) if slope > 0 else 2 * number
        if high > most:
            number = min(max(int(told / NEAR), low + 1, int(1.02 * low)), most, 16 * max(low, 1))
        elif len(known) % 3 == 0:
            number = (low + high) // 2
        else:
            tried = told / NEAR if number == high else told * NEAR
            number = min(max(int(tried), low + 1), high - 1)
    return low
