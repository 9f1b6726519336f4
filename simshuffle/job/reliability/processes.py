"""Failure processes of a scenario: how often a host fails, how long it is away, and
from what cause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from simshuffle.errors import refuse
from simshuffle.job.reliability.faults import Faults
from simshuffle.job.reliability.trace import FaultTrace, read_trace
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.library import catalog_entry, parse_kind
from simshuffle.spec.record import Count, PositiveSeconds, Sourced, Spec, whole_as_float

RelativeShare = Annotated[float, BeforeValidator(whole_as_float), Field(gt=0)]
"""A count or a share, greater than 0, of which only the ratio to others matters."""
ProperShare = Annotated[float, Field(gt=0, lt=1)]
"""A share that is neither nothing nor all."""
Variation = Annotated[float, BeforeValidator(whole_as_float), Field(ge=1, le=100)]
"""Standard deviation over mean, of what is no less irregular than chance."""


class Repair(Spec):
    """Repair time of a failed host: log-normal, since the mean of such times is far
    above the median.

    Attributes:
        mean: of all repairs.
        median: half of them take no longer; if left out, all take the mean.
    """

    mean: PositiveSeconds
    median: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _mean_is_more(self) -> Repair:
        if self.median is not None and self.median > self.mean:
            raise ValueError("median must not be longer than mean")
        return self

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw (count,) s of repairs; all are the mean if no median is given.

        The ratio mean / median of a log-normal time is exp(sigma^2 / 2).
        """
        median = self.mean if self.median is None else self.median
        sigma = math.sqrt(2 * math.log(self.mean / median))
        return median * np.exp(sigma * rng.standard_normal(count))


class _Drawn(Sourced):
    """A process whose faults are drawn.

    Attributes:
        name: of the process, for people.
        mean_between: time of one host between two of its faults, so that 100 hosts fail
            100 times as often.
        repair: how long a host is away.
        causes: the share of each cause, in any unit, such as counts.
        in_place: causes after which the host is good at once: its processes start again
            on it.
    """

    name: str = ""
    mean_between: PositiveSeconds
    repair: Repair
    causes: dict[str, RelativeShare] = Field(
        default_factory=lambda: {"host": 1.0}, min_length=1
    )
    in_place: list[str] = Field(default_factory=lambda: ["software"])

    def expected_faults(self, hosts: int, horizon: float) -> float:
        """Return the mean number of faults of ``hosts`` in ``horizon`` s."""
        return hosts * horizon / self.mean_between

    def draw(self, rng: np.random.Generator, hosts: int, horizon: float) -> Faults:
        """Draw the faults of ``hosts`` that start in the first ``horizon`` s, sorted by
        start.

        Each ends after a repair that is drawn, maybe after the horizon, and also if its
        cause is in ``in_place``: the caller must heed that key.
        """
        starts = self._draw_starts(rng, self.mean_between / hosts, horizon)
        host = self._draw_hosts(rng, hosts, len(starts))
        count = len(starts)
        names = tuple(self.causes)
        weights = np.array([*self.causes.values()])
        cause = rng.choice(len(names), count, p=weights / weights.sum())
        return Faults(host, starts, starts + self.repair.draw(rng, count), cause, names)

    def _draw_starts(
        self, rng: np.random.Generator, mean: float, horizon: float
    ) -> Floats:
        """Draw when faults of the whole machine start: (n,) s, ascending, all before
        ``horizon``. ``mean`` s are between two faults.
        """
        parts = [np.zeros(0)]
        last = 0.0
        while last <= horizon:
            count = max(int(1.1 * (horizon - last) / mean), 16)
            parts.append(
                last + np.cumsum(self._draw_gaps(rng, mean, count, first=last == 0.0))
            )
            last = float(parts[-1][-1])
        starts = np.concatenate(parts)
        return starts[starts < horizon]

    def _draw_gaps(
        self, rng: np.random.Generator, mean: float, count: int, first: bool
    ) -> Floats:
        """Draw (count,) s between faults; with ``first``, time 0 is a random moment
        between two faults.
        """
        return rng.exponential(mean, count)

    def _draw_hosts(self, rng: np.random.Generator, hosts: int, count: int) -> Ints:
        """Draw (count,) hosts, all equally likely."""
        return rng.integers(hosts, size=count)


class Exponential(_Drawn):
    """Faults that know nothing of one another: at any moment and any host alike."""

    kind: Literal["exponential"] = "exponential"


class Lemons(Spec):
    """Hosts that fail more often than others.

    Attributes:
        hosts: their share of the hosts, at least one of them.
        faults: their share of the faults.
    """

    hosts: ProperShare
    faults: ProperShare


class Bursty(_Drawn):
    """Faults in bursts, with some hosts that fail more often than others.

    Times between two faults of the whole machine are hyperexponential: short ones and
    long ones, as much time in the short as in the long (balanced means; A. Allen,
    Probability, Statistics and Queueing Theory, 1990). The variation is that of a
    machine of any size: whether larger ones burst less is not measured.

    Attributes:
        variation: standard deviation over mean of the time between two faults of the
            machine; 1 is exponential.
        lemons: hosts that fail more often; if left out, all are alike.
    """

    kind: Literal["bursty"]
    variation: Variation
    lemons: Lemons | None = None

    def _draw_gaps(
        self, rng: np.random.Generator, mean: float, count: int, first: bool
    ) -> Floats:
        """Draw (count,) hyperexponential s; with ``first``, time 0 is a random moment."""
        variation_squared = self.variation**2
        short_share = 0.5 * (
            1 + math.sqrt((variation_squared - 1) / (variation_squared + 1))
        )
        is_short = rng.random(count) < short_share
        if first:  # a moment is as often in a short gap as in a long one, as their means balance
            is_short[0] = rng.random() < 0.5
        scale = np.where(
            is_short, mean / (2 * short_share), mean / (2 * (1 - short_share))
        )
        return rng.exponential(scale)

    def _draw_hosts(self, rng: np.random.Generator, hosts: int, count: int) -> Ints:
        """Draw (count,) hosts; lemons, drawn anew at each call, have their share of
        faults. At least one host is a lemon and one is not; of a single host, none.
        """
        if self.lemons is None or hosts == 1:
            return super()._draw_hosts(rng, hosts, count)
        order = rng.permutation(hosts)
        num_lemons = min(max(round(self.lemons.hosts * hosts), 1), hosts - 1)
        is_lemon = rng.random(count) < self.lemons.faults
        position = np.where(
            is_lemon,
            rng.integers(num_lemons, size=count),
            rng.integers(num_lemons, hosts, size=count),
        )
        return order[position]


class Trace(Sourced):
    """Faults as they were recorded, from a file: JSON of starts and ends by node, or
    CSV with the columns host, start, end, class, times with units.

    More hosts than the traced are copies of the machine, each beginning at another
    moment of the trace, which goes round; of the last copy, and of a smaller machine,
    hosts are drawn.

    Attributes:
        name: of the process, for people.
        path: of the file.
        sha256: of that file, in hexadecimal; if given, another file is refused.
        hosts: how many hosts were watched, also those without faults; if left out,
            those in the file.
        length: how long they were watched; if left out, until the last event.
        shift: begin each draw at another moment of the trace, and not at its beginning.
        in_place: causes after which the host is good at once.
    """

    kind: Literal["trace"]
    name: str = ""
    path: str
    sha256: str | None = None
    hosts: Count | None = None
    length: PositiveSeconds | None = None
    shift: bool = False
    in_place: list[str] = Field(default_factory=lambda: ["software"])

    def read_file(self) -> FaultTrace:
        """Read the file's faults.

        Raises:
            InputError: the file cannot be read, is no trace, differs from ``sha256``,
                or has more hosts or a longer time than this record.
        """
        trace = read_trace(Path(self.path), self.hosts, self.length)
        if self.sha256 not in (None, trace.sha256):
            rule = "the file is no longer the one that sha256 names"
            refuse(
                "sha256",
                rule,
                str(self.sha256),
                "Leave it out to use the new one.",
                self.path,
            )
        return trace

    def expected_faults(self, hosts: int, horizon: float) -> float:
        """Return the mean number of faults of ``hosts`` in ``horizon`` s; raises as
        `read_file`.
        """
        trace = self.read_file()
        return len(trace.faults) * (hosts / trace.hosts) * (horizon / trace.length)

    def draw(self, rng: np.random.Generator, hosts: int, horizon: float) -> Faults:
        """Draw the faults of ``hosts`` that start in the first ``horizon`` s, sorted by
        start.

        For as many hosts as were traced nothing is random without ``shift``. Raises as
        `read_file`.
        """
        trace = self.read_file()
        parts = []
        for first in range(0, hosts, trace.hosts):
            size = min(hosts - first, trace.hosts)
            host_of_traced = np.full(trace.hosts, -1)  # that a traced host has here
            chosen = (
                np.arange(size)
                if size == trace.hosts
                else rng.permutation(trace.hosts)[:size]
            )
            host_of_traced[chosen] = first + np.arange(size)
            begin_moment = rng.uniform(0, trace.length) if self.shift or first else 0.0
            parts.append(replay_trace(trace, host_of_traced, begin_moment, horizon))
        host, start, end, cause = (
            np.concatenate(column) for column in zip(*parts, strict=True)
        )
        return Faults(host, start, end, cause, trace.faults.causes).sort_by_start()


def replay_trace(
    trace: FaultTrace, host_of_traced: Ints, begin: float, horizon: float
) -> tuple[Ints, Floats, Floats, Ints]:
    """Return host, start, end and cause of the faults that start within ``horizon`` s.

    The trace goes round; starts and ends are in s from time 0, and not sorted. A fault
    that started before time 0 is left out, even if it lasts longer.

    Args:
        trace: of other hosts.
        host_of_traced: the host here that each traced host stands for, -1 for none.
        begin: the moment of the trace at which time 0 is, s.
        horizon: s.
    """
    faults = trace.faults
    rounds = np.arange(math.floor((begin + horizon) / trace.length) + 1)
    shift = (rounds * trace.length - begin)[:, None]
    start = (faults.start_s + shift).ravel()
    end = (faults.end_s + shift).ravel()
    host, cause = (
        np.tile(values, len(rounds))
        for values in (host_of_traced[faults.host], faults.cause)
    )
    is_within = (host >= 0) & (start >= 0) & (start < horizon)
    return host[is_within], start[is_within], end[is_within], cause[is_within]


def process_by_name(text: str) -> Mapping[str, Any]:
    """Return the plain values of a process named in a text.

    A text with ':' is a kind with values, such as ``exponential:mean_between=10 d``,
    which is not checked here; any other must be an entry of the catalog of failures.

    Raises:
        ScenarioError: there is no such entry, or values are not written name=value or
            cannot be set.
    """
    return parse_kind(text) if ":" in text else catalog_entry("failures", text)
