"""What goes on in an epoch of which iterations are left out, where these alone would not say how
long it lasts: the rest of an inference pass; and epochs in which all ranks wait for one server.

A server with work to do serves at its full rate. So an epoch lasts as long as serving all that is
asked of it, and as long as it is idle meanwhile. What is asked is known without simulating. Idle it
is at both ends, before the first requests and while the last batches are decoded and computed; and
between them while ranks compute that have loaded all they may, which is rare where reading binds.
Single iterations may differ much: what one takes longer, the next ones take less.

In the middle the idle time of an iteration is a stationary series, as the iterations of
`simshuffle.job.sim.steady` are. At both ends together it is between none and twice what was seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import simpy

from simshuffle.job.lowering.reads import ReadChains
from simshuffle.job.plan.devices import LinkTable
from simshuffle.job.plan.effort import BEGIN, FEWEST_BATCHES, TRANSIENT, served_window
from simshuffle.job.scenario.workload import Loader
from simshuffle.job.sim.clock import NetworkClock, succeed_after
from simshuffle.job.sim.steady import MeanError, SteadyWindow
from simshuffle.spec.arrays import Floats, Ints

BUSY = 0.5
"""Share of a window from which on a server may be what ranks wait for."""
EDGES = 0.5
"""Share by which the idle time at the edges of an epoch may be other than that of a window."""


@dataclass(frozen=True)
class Served:
    """What a server did in an epoch of which n iterations were simulated."""

    asked: Floats  # (n,) s of its whole capacity that the batches of each iteration need
    idle: Floats  # (n,) s of its capacity that were not used during each iteration
    seconds: float  # s that the epoch of n iterations lasted
    factor: float  # how many times as much is asked in all iterations

    def window(
        self, lengths: Floats, iterations: int, loader: Loader, tolerance: float
    ) -> SteadyWindow | None:
        """What it says of an epoch of ``iterations``, more than were simulated, if times may be off
        by the share ``tolerance``; ``lengths`` are (n,) s of those simulated. None if the server is
        not what ranks wait for."""
        simulated, asked = len(lengths), float(self.asked.sum())
        if asked < BUSY * self.seconds:
            return None
        # all ranks have their first batches, and none has asked for its last one yet
        idle = self.idle[max(loader.prefetch, BEGIN) : simulated - loader.prefetch]
        longer = served_window(loader, iterations, 2 * simulated)
        if len(idle) < FEWEST_BATCHES:
            longer = served_window(loader, iterations)
            return SteadyWindow(iterations, simulated, mean_half_width=math.inf, longer=longer)
        left_out, middle = iterations - simulated, MeanError.of(idle)
        rest = (self.factor - 1.0) * asked + left_out * float(idle.mean())
        trend = MeanError.around_trend(self.asked[:-1])
        spread = math.hypot(middle.reach(left_out, iterations), trend.reach(left_out, iterations))
        edges = EDGES * max(self.seconds - asked - float(idle.sum()), 0.0)
        if edges > tolerance * (self.seconds + rest):
            longer = iterations  # they are as long in any window
        low, high, away = _alike(lengths[BEGIN:-1], rest / left_out)
        half_width = math.hypot(spread, edges) + left_out * away
        return SteadyWindow(
            iterations,
            simulated,
            first=BEGIN + low + 1,
            last=BEGIN + high,
            half_width=half_width,
            settled=middle.settled,
            mean_half_width=half_width / (self.seconds + rest),
            longer=longer,
        )

    def hold_at_least(self, window: SteadyWindow, lengths: Floats, iterations: int) -> SteadyWindow:
        """Return the window, or where it makes an epoch shorter than the server needs, another
        whose iterations last as long as that.

        Args:
            window: what alike iterations say.
            lengths: (n,) s of the iterations that were simulated.
            iterations: of the whole epoch.
        """
        left_out = iterations - window.simulated
        if left_out <= 0 or not window.last:
            return window
        least = (self.factor * float(self.asked.sum()) - self.seconds) / left_out
        mean = float(lengths[window.first - 1 : window.last].mean())
        if mean >= least:
            return window
        low, high, away = _alike(lengths[BEGIN:-1], least)
        return replace(
            window,
            first=BEGIN + low + 1,
            last=BEGIN + high,
            half_width=window.half_width + left_out * away,
        )


def _alike(lengths: Floats, mean: float) -> tuple[int, int, float]:
    """The iterations [low, high) whose mean is closest to ``mean`` (s), and how far it is away (s):
    one after the other, at least half of all. They stand for what is left out: so each that is has
    compute of its own, and together they last as long as the server says."""
    sums, count = np.concatenate([[0.0], np.cumsum(lengths)]), len(lengths)
    found = (math.inf, 0, count)
    for size in range((count + 1) // 2, count + 1):
        away = np.abs((sums[size:] - sums[:-size]) / size - mean)
        low = int(away.argmin())
        found = min(found, (float(away[low]), low, low + size))
    return found[1], found[2], found[0]


class ServerWatch:
    """Notes what the one of the servers ``links`` does of which the batches of ``chains`` ask
    most; ``factor`` as of `Served`."""

    def __init__(
        self,
        clock: NetworkClock,
        table: LinkTable,
        links: Sequence[int],
        chains: ReadChains,
        factor: float,
    ) -> None:
        self._clock, self._factor = clock, factor
        asked = {link: chains.work_on(link) / table.capacity[link] for link in links}
        self._link = max(links, key=lambda link: float(asked[link].sum()))
        self._asked, self._capacity = asked[self._link], float(table.capacity[self._link])
        self._noted: list[tuple[float, float]] = []
        self._note()

    def telling(self, progress: Callable[[int], None]) -> Callable[[int], None]:
        """What is to be called after each iteration; it tells ``progress`` the same."""

        def told(done: int) -> None:
            self._note()
            progress(done)

        return told

    def _note(self) -> None:
        env, network = self._clock.env, self._clock.network
        network.settle(env.now)
        self._noted.append((env.now, float(network.links["work"][self._link]) / self._capacity))

    def served(self) -> Served:
        """What it did in the epoch that is over now."""
        at, busy = np.diff(np.array(self._noted), axis=0).T
        seconds = self._clock.env.now - self._noted[0][0]
        return Served(self._asked, at - busy, seconds, self._factor)


class RestOfPass:
    """The batches of an inference pass that are left out: they take as long as those that are not,
    on average over the ranks of a group, without the transient at its beginning.

    Ranks do not wait for one another in a pass, so what each is ahead or behind is a random walk,
    whose standard deviation grows with the square root of the batches. ``spread`` is how well it is
    known when the pass ends (s): the standard deviation over the ranks, in their groups, and half
    of what is left out would differ by between both parts.

    Args:
        iterations: batches of each rank that are left out.
        batches: of each rank that are not, at least 4 where any are left out.
        groups: (M,) number of the group of each rank.
        at_once: batches that a rank loads at once, which may come together.
    """

    def __init__(
        self, env: simpy.Environment, iterations: int, batches: int, groups: Ints, at_once: int
    ) -> None:
        self._env, self._iterations, self._groups = env, iterations, groups
        last = batches - 2
        part = (last - TRANSIENT * at_once) // (2 * at_once) * at_once
        self._part = part if part > 0 else max(last // 2, 1)
        self._bounds = [last - 2 * self._part, last - self._part, last]
        self._growth = math.sqrt((batches + iterations) / batches)
        self.spread = 0.0
        self._at = np.zeros((len(self._bounds), len(groups)))
        self._waiting: list[tuple[int, float, simpy.Event]] = []

    def note(self, rank: int, batch: int) -> None:
        """A rank has done its batch of that number, from 0."""
        if batch in self._bounds:
            self._at[self._bounds.index(batch), rank] = self._env.now

    def passes(self, rank: int) -> simpy.Event | None:
        """The event of the rest having passed, for a rank that has done its batches; None if there
        is no rest."""
        if self._iterations == 0:
            return None
        event = self._env.event()
        self._waiting.append((rank, self._env.now, event))
        if len(self._waiting) == len(self._groups):
            self._release()
        return event

    def _release(self) -> None:
        """All have done theirs: each goes on when it would have done the others too."""
        rank, came = (np.array(column) for column in list(zip(*self._waiting, strict=True))[:2])
        group = self._groups[rank]
        behind = came - _mean(came, group)
        parts = np.diff(self._at, axis=0) * (self._iterations / self._part)
        rest = _mean(parts.mean(axis=0)[rank], group)
        done = came + rest + behind * (self._growth - 1.0)
        differ = 0.5 * float(parts[1].mean() - parts[0].mean())
        self.spread = math.hypot(self._growth * float(behind.std()), differ)
        for at, (_, _, event) in zip(done.tolist(), self._waiting, strict=True):
            succeed_after(self._env, max(at - self._env.now, 0.0), event)


def _mean(values: Floats, group: Ints) -> Floats:
    """Of the group of each."""
    means = np.bincount(group, values) / np.maximum(np.bincount(group), 1)
    return means[group]
