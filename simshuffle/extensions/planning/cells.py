"""Search cells of a plan for the smallest file system of a strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simshuffle.extensions.planning.precision import COARSE_TOLERANCE, TOLERANCE
from simshuffle.extensions.planning.prices import JOINT_PRECISION
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.effort import effort, first_window
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.sim.cell import NetworkCell, RunCell
from simshuffle.job.sim.simulate import simulate
from simshuffle.report import report
from simshuffle.report.report import WHOLE
from simshuffle.study.cell import Outcome, Tell
from simshuffle.study.store import run_inner_cell

OPEN_RATE = "cluster.parallel_file_system.open_rate"
READ_BANDWIDTH = "cluster.parallel_file_system.read_bandwidth"
SEARCH_PRECISION = 1.01
"""Factor to which a search is precise: a file system 1.01 times smaller is not enough."""
OVERSHOOT = 1.001
"""Factor by which a search goes beyond a prediction, to either side: much less than
`SEARCH_PRECISION`."""
MAX_STEPS = 200  # rates that a search tries at most
SEARCH_RUNS = 15
"""Epochs that a search simulates in windows, as those of a run, by estimate."""
MIN_FIRST_WINDOWS = 7
"""Smallest number of first windows in an epoch with which the epochs of a search have
windows.

A shorter epoch is simulated with every iteration near the border: three windows, each
twice as long as the last one, would cover it.
"""
FULL_EPOCHS, EXACT_FULL_EPOCHS = 1.3, 5.0
"""Epochs of which a search simulates every iteration, without and with ``--exact``."""
AMPLE_FACTOR = 1e3
"""Factor on the smallest rates that an epoch needs, with which a file system never
binds.
"""
IO, EXCHANGE = "I/O", "EXCHANGE"


def epoch_shares(breakdown: Mapping[Any, Any], epoch: int) -> dict[str, float]:
    """Return the share of an epoch under each label, from 0 to 1.

    Time that has a cause, in which a rank waits for others, counts under the label that
    those others are at. Labels without an entry are left out; {} if the epoch has none.

    Args:
        breakdown: columns label, cause ('' for a rank's own work), seconds and epoch,
            one entry for each label and cause of an epoch.
        epoch: the epoch, from 1.
    """
    columns = (breakdown[name] for name in ("epoch", "label", "cause", "seconds"))
    seconds_by_label: dict[str, float] = {}
    for row_epoch, label, cause, label_seconds in zip(*columns, strict=True):
        if row_epoch == epoch:
            seconds_by_label[cause or label] = (
                seconds_by_label.get(cause or label, 0.0) + label_seconds
            )
    epoch_seconds = sum(seconds_by_label.values())
    return {
        label: label_seconds / epoch_seconds
        for label, label_seconds in seconds_by_label.items()
    }


def find_smallest_rate(
    io_share_at: Callable[[float], float],
    max_share: float,
    guess: float,
    max_rate: float,
    *,
    precision: float = SEARCH_PRECISION,
    low: float = 0.0,
) -> float:
    """Return the smallest rate, to ``precision``, at which I/O takes at most
    ``max_share`` of an epoch.

    A rate that is ``precision`` times smaller was simulated too, and takes more. Where
    a resource of rate x binds, an epoch lasts 1/x, and its time beside I/O is equal at
    every x. The share at one rate therefore predicts the rate at which the share is
    ``max_share``. Where the prediction is poor the step doubles; between two known
    sides every other step is a bisection of logarithms. After `MAX_STEPS` rates the
    smallest known to be enough is returned; infinite if none was.

    Args:
        io_share_at: the share of an epoch at a rate; it falls with the rate.
        max_share: the largest share that is enough.
        guess: the rate to try first.
        max_rate: a rate that is known to be enough; no larger one is tried.
        precision: the factor to which the rate is searched.
        low: a rate that is known to be too small; 0 if none is.
    """
    high = math.inf
    rate = min(guess, max_rate)
    stride = 1.0
    for step in range(MAX_STEPS):
        io_share = io_share_at(rate)
        if io_share <= max_share:
            high = rate
        else:
            low = rate
        if low > 0 and high / low <= precision:
            return high
        predicted_rate = rate * (1.0 - max_share) / max(1.0 - io_share, 1e-9)
        if math.isinf(high):
            rate = min(
                max(OVERSHOOT * predicted_rate, rate * OVERSHOOT * stride), max_rate
            )
            stride *= 2.0
        elif low == 0.0:
            rate = min(predicted_rate / OVERSHOOT, rate / (OVERSHOOT * stride))
            stride *= 2.0
        elif step % 2:
            rate = math.sqrt(low * high)
        else:
            # just beyond the predicted rate, on the side that is not known to `SEARCH_PRECISION`
            overshot_rate = (
                predicted_rate * OVERSHOOT
                if io_share > max_share
                else predicted_rate / OVERSHOOT
            )
            rate = min(max(overshot_rate, low * OVERSHOOT), high / OVERSHOOT)
    return high


@dataclass(frozen=True)
class FileSystemCell(NetworkCell):
    """Cell that searches the smallest file system of a strategy that reads from the
    file system in every epoch.
    """

    document: Mapping[str, Any]  # scenario with the strategy, without sweep
    name: str  # name of the strategy
    io_share: float  # share of an epoch that I/O may take
    # true if every run has the time tolerance of the scenario, and both rates together
    # are searched to `SEARCH_PRECISION`, not `JOINT_PRECISION`
    exact: bool = True

    @property
    def key(self) -> Any:
        """Return what decides the outcome: run, strategy, share of I/O, and exactness."""
        return [self._run.key, self.name, self.io_share, self.exact]

    @property
    def label(self) -> str:
        """Return the name of the search for people."""
        return f"file system of {self.name}"

    @property
    def cost(self) -> float:
        """Return the seconds of one core that the search takes, by estimate.

        They are the last epoch in windows, and the whole epoch at the rates at which
        I/O begins to bind.
        """
        scenario = self._run.scenario
        run_seconds = self._run.cost
        iterations = scenario.workload.iterations(scenario.world_size)
        if MIN_FIRST_WINDOWS * first_window(scenario) >= iterations:
            run_seconds = max(run_seconds, self._full_run_seconds)
        return SEARCH_RUNS * run_seconds / scenario.epochs + self._full_epoch_seconds

    @property
    def _full_epoch_seconds(self) -> float:
        """Return the seconds of one core of the epochs of which every iteration is
        simulated.
        """
        epoch_seconds = self._full_run_seconds / self._run.scenario.epochs
        return epoch_seconds * (EXACT_FULL_EPOCHS if self.exact else FULL_EPOCHS)

    @cached_property
    def _full_run_seconds(self) -> float:
        """Return the seconds of one core of a run that simulates every iteration."""
        return effort(self._run.scenario.model_copy(update={TOLERANCE: 0.0})).seconds

    @property
    def memory(self) -> float:
        """Return the memory of the search (bytes), which is that of one run."""
        return self._run.memory

    @cached_property
    def _run(self) -> RunCell:
        """Return the run of the scenario, for its key, cost and memory."""
        return RunCell(self.document, "")

    def run(self, tell: Tell) -> Outcome:
        """Search the smallest file system and return its numbers.

        The outcome has ``files_per_s`` and ``bytes_per_s``; ``alone``, a list of each
        of the two where the other never binds; ``io``, the share of I/O with the first
        two; and ``points``, the rows of all that was simulated: strategy, files_per_s,
        bytes_per_s, epoch (s) and io. The first three are None if no file system is
        enough; ``io`` is then the share with an ample one. Without ``exact`` the
        scenario has at least `COARSE_TOLERANCE`.
        """
        scenario = self._run.scenario
        if not self.exact and scenario.time_tolerance < COARSE_TOLERANCE:
            scenario = scenario.with_values({TOLERANCE: COARSE_TOLERANCE})
        share_of_single_searches = 1.0 - self._full_epoch_seconds / self.cost
        search = _FileSystemSearch(
            scenario,
            self.name,
            tell,
            max_io_share=self.io_share,
            exact=self.exact,
            share_of_single_searches=share_of_single_searches,
        )
        return Outcome(search.run())


class _FileSystemSearch:
    """The search of the smallest file system; each file system is simulated once."""

    def __init__(
        self,
        scenario: Scenario,
        name: str,
        tell: Tell,
        *,
        max_io_share: float,
        exact: bool,
        share_of_single_searches: float,  # share of the time that searches of one resource take
    ) -> None:
        self._scenario = scenario
        self._name = name
        self._tell = tell
        self._max_io_share = max_io_share
        self._exact = exact
        self._share_of_single_searches = share_of_single_searches
        self._num_single_rows = (
            0  # rows of searches of one resource, once these are done
        )
        self.rows: list[dict[str, Any]] = []  # a row for each simulated file system
        # share of I/O by open rate (1/s) and bandwidth (bytes/s)
        self._io_share_by_file_system: dict[tuple[float, float], float] = {}

    def run(self) -> dict[str, Any]:
        """Search each rate where the other never binds, then both together.

        Returns:
            the outcome of `FileSystemCell.run`; its rates are None where an ample file
            system is not enough.
        """
        workload = self._scenario.workload
        amounts = (
            workload.dataset.num_samples / workload.dataset.samples_per_file,
            workload.dataset.nbytes,
        )
        bounded_seconds = bounds(self._scenario).loop
        files, nbytes = (amount / bounded_seconds for amount in amounts)
        ample_rates = (AMPLE_FACTOR * files, AMPLE_FACTOR * nbytes)
        unbound_io_share = self._io_share_of(*ample_rates)
        if unbound_io_share > self._max_io_share:
            return {
                "alone": None,
                "files_per_s": None,
                "bytes_per_s": None,
                "io": unbound_io_share,
                "points": self.rows,
            }
        # where a resource alone binds, its time is what an epoch is beside I/O over the rest
        seconds_beside_io = (1.0 - unbound_io_share) * self.rows[0][WHOLE]
        guess = OVERSHOOT * (1.0 - self._max_io_share) / seconds_beside_io
        files, nbytes = (amount * guess for amount in amounts)
        open_rate = _round_up(
            find_smallest_rate(
                lambda rate: self._io_share_of(rate, ample_rates[1]),
                self._max_io_share,
                files,
                ample_rates[0],
            )
        )
        bandwidth = _round_up(
            find_smallest_rate(
                lambda rate: self._io_share_of(ample_rates[0], rate),
                self._max_io_share,
                nbytes,
                ample_rates[1],
            )
        )

        # a worker opens a file, then reads it: both at once bind more than each by itself
        self._num_single_rows = len(self.rows)
        factor = self._find_joint_factor(open_rate, bandwidth)
        best_rates = _round_up(factor * open_rate), _round_up(factor * bandwidth)
        io = self._io_share_of(*best_rates)
        return {
            "files_per_s": best_rates[0],
            "bytes_per_s": best_rates[1],
            "io": io,
            "alone": [open_rate, bandwidth],
            "points": self.rows,
        }

    def _find_joint_factor(self, open_rate: float, bandwidth: float) -> float:
        """Search the smallest factor on both rates with which I/O takes little enough.

        It is known to `SEARCH_PRECISION` with ``exact``, else to `JOINT_PRECISION`.

        Args:
            open_rate: the smallest one (1/s) where the bandwidth never binds.
            bandwidth: the smallest one (bytes/s) where the open rate never binds.
        """

        def share_at_once(factor: float) -> float:
            """Return the share of I/O with both rates multiplied by ``factor``."""
            return self._io_share_of(factor * open_rate, factor * bandwidth)

        if self._exact:
            return find_smallest_rate(
                share_at_once, self._max_io_share, OVERSHOOT, AMPLE_FACTOR
            )
        # a file system that is too small by one resource alone is too small
        low = 1.0 / SEARCH_PRECISION
        guess = low * JOINT_PRECISION / OVERSHOOT
        return find_smallest_rate(
            share_at_once,
            self._max_io_share,
            guess,
            AMPLE_FACTOR,
            precision=JOINT_PRECISION,
            low=low,
        )

    def _io_share_of(self, open_rate: float, read_bandwidth: float) -> float:
        """Return the share of the last epoch that I/O takes with a file system.

        Each file system is simulated once: its row is appended to ``rows``, and the
        progress reported.

        Args:
            open_rate: files that the file system opens in a second; it is simulated
                rounded up to 4 digits.
            read_bandwidth: bytes/s; it is simulated rounded up to 4 digits.
        """
        rates = _round_up(open_rate), _round_up(read_bandwidth)
        if rates not in self._io_share_by_file_system:
            scenario = self._scenario.with_values(file_system_settings(*rates))
            epoch = run_inner_cell(IoShareCell(scenario.to_dict(), self._name)).values
            self._io_share_by_file_system[rates] = float(epoch["io"])
            self.rows.append(
                {
                    "strategy": self._name,
                    "files_per_s": rates[0],
                    "bytes_per_s": rates[1],
                    WHOLE: epoch[WHOLE],
                    "io": epoch["io"],
                }
            )
            self._tell(self._share_done())
        return self._io_share_by_file_system[rates]

    def _share_done(self) -> float:
        """Return the share of the search that is done, by estimate: first one resource
        at a time, then both together. It never reaches 1.
        """
        single_share = self._share_of_single_searches
        if not self._num_single_rows:
            return single_share * min(1.0, len(self.rows) / SEARCH_RUNS)
        num_joint_rows = len(self.rows) - self._num_single_rows
        return single_share + (1.0 - single_share) * num_joint_rows / (
            num_joint_rows + 1
        )


@dataclass(frozen=True)
class IoShareCell(RunCell):
    """Cell that simulates the last epoch of a scenario: its length (s), and the share
    of I/O.
    """

    @property
    def parts(self) -> frozenset[str]:
        """Return the tables of the outcome: none."""
        return frozenset()

    def run(self, tell: Tell) -> Outcome:
        """Simulate the epoch; return its length (s) at key 'epoch', and the share of
        I/O, waiting for others that are at it included, at 'io'.
        """
        scenario = self.scenario
        table = report.all_labels(simulate(scenario, first_epoch=scenario.epochs))
        io = epoch_shares(table.to_dict("list"), scenario.epochs).get(IO, 0.0)
        return Outcome({WHOLE: float(table["seconds"].sum()), "io": io})


def file_system_settings(open_rate: float, read_bandwidth: float) -> dict[str, Any]:
    """Return the scenario settings of a file system with an open rate (1/s) and a read
    bandwidth (bytes/s).

    They are texts with a unit, by dotted key, rounded to 4 digits.
    """
    return {
        OPEN_RATE: f"{open_rate:.4g} /s",
        READ_BANDWIDTH: f"{read_bandwidth:.4g} B/s",
    }


def _round_up(value: float) -> float:
    """Return ``value``, above 0, rounded up to four digits, as commands have it."""
    last_digit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / last_digit - 1e-9) * last_digit:.4g}")
