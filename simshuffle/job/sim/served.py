"""Two things that iterations alone do not tell of an epoch of which iterations are left
out: the end of an inference pass, and how long an epoch lasts in which all ranks wait
for one server.

A server with work to do serves at its full rate. So an epoch lasts as long as serving
all requests, and as long as the server is idle meanwhile. The requests are known
without simulating. The server is idle at both ends, before the first requests and while
the last batches are decoded and computed; and between them while ranks compute that
have loaded all they may, which is rare where reading binds. Single iterations may
differ much: what one takes longer, the next ones take less.

In the middle the idle time of an iteration is a stationary series, as the iterations of
`simshuffle.job.sim.steady` are. At both ends together it is between none and twice what
was seen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simshuffle.job.lowering.reads import ReadChains
from simshuffle.job.plan.effort import BEGIN, FEWEST_BATCHES, TRANSIENT, served_window
from simshuffle.job.plan.resources import Resources
from simshuffle.job.scenario.workload import Loader
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.job.sim.steady import MeanError, SteadyWindow
from simshuffle.spec.arrays import Floats, Ints

BUSY = 0.5
"""Share of a window from which on a server may be what ranks wait for."""
EDGES = 0.5
"""Share by which the idle time at the edges of an epoch may be other than that of a
window.
"""


@dataclass(frozen=True)
class Served:
    """The work and idle time of a server in an epoch of which n iterations were
    simulated.
    """

    requested: (
        Floats  # (n,) s of its whole capacity that the batches of each iteration need
    )
    # (n,) s of its capacity that were not used during each iteration of rank 0
    idle: Floats
    seconds: float  # s that the epoch of n iterations lasted
    factor: float  # how many times as much is asked in all iterations

    def window(
        self, lengths: Floats, iterations: int, loader: Loader, tolerance: float
    ) -> SteadyWindow | None:
        """Return what the server says of an epoch; None if ranks do not wait for it.

        Ranks do not wait if its work takes less than the share `BUSY` of the time. The
        half width of the mean is infinite where the iterations in the middle are too
        few to tell; the window then has no first and last iteration.

        Args:
            lengths: (n,) s of the iterations that were simulated.
            iterations: of the epoch, more than were simulated.
            loader: of the workload.
            tolerance: share by which times may be off.
        """
        simulated = len(lengths)
        requested = float(self.requested.sum())
        if requested < BUSY * self.seconds:
            return None
        # all ranks have their first batches, and none has asked for its last one yet
        idle = self.idle[max(loader.prefetch, BEGIN) : simulated - loader.prefetch]
        if len(idle) < FEWEST_BATCHES:
            return SteadyWindow(
                iterations,
                simulated,
                mean_half_width=math.inf,
                longer=served_window(loader, iterations),
            )
        left_out = iterations - simulated
        middle = MeanError.from_batch_means(idle)
        seconds_left_out = (self.factor - 1.0) * requested + left_out * float(
            idle.mean()
        )
        trend = MeanError.around_trend(self.requested[:-1])
        spread = math.hypot(
            middle.reach(left_out, iterations), trend.reach(left_out, iterations)
        )
        edges = EDGES * max(self.seconds - requested - float(idle.sum()), 0.0)
        longer = served_window(loader, iterations, 2 * simulated)
        if edges > tolerance * (self.seconds + seconds_left_out):
            longer = iterations  # they are as long in any window
        first, last, distance = _find_iterations(lengths, seconds_left_out / left_out)
        half_width = math.hypot(spread, edges) + left_out * distance
        return SteadyWindow(
            iterations,
            simulated,
            first=first,
            last=last,
            half_width=half_width,
            settled=middle.settled,
            mean_half_width=half_width / (self.seconds + seconds_left_out),
            longer=longer,
        )

    def hold_at_least(
        self, window: SteadyWindow, lengths: Floats, iterations: int
    ) -> SteadyWindow:
        """Return the window, or another where it makes the epoch too short for the
        server.

        The iterations of that one last as long as the server needs. The window is
        returned unchanged, too, if no iterations are left out or none stand for others.

        Args:
            window: what alike iterations say.
            lengths: (n,) s of the iterations that were simulated.
            iterations: of the whole epoch.
        """
        left_out = iterations - window.simulated
        if left_out <= 0 or not window.last:
            return window
        min_seconds = (
            self.factor * float(self.requested.sum()) - self.seconds
        ) / left_out
        mean = float(lengths[window.first - 1 : window.last].mean())
        if mean >= min_seconds:
            return window
        first, last, distance = _find_iterations(lengths, min_seconds)
        return replace(
            window,
            first=first,
            last=last,
            half_width=window.half_width + left_out * distance,
        )


def _find_iterations(lengths: Floats, mean: float) -> tuple[int, int, float]:
    """Return the first and the last (from 1) of the iterations whose mean is closest to
    ``mean`` (s), and how far it is from that (s). Iterations last ``lengths``, (n,) s.

    The transient at the begin and the last iteration are none of them. They follow one
    another, and are at least half of all. They stand for the iterations left out: so each
    of those has compute of its own, and together they last as long as the server says.
    """
    sums = np.concatenate([[0.0], np.cumsum(lengths[BEGIN:-1])])
    count = len(sums) - 1
    best = (math.inf, 0, count)
    for size in range((count + 1) // 2, count + 1):
        distances = np.abs((sums[size:] - sums[:-size]) / size - mean)
        low = int(distances.argmin())
        best = min(best, (float(distances[low]), low, low + size))
    distance, low, high = best
    return BEGIN + low + 1, BEGIN + high, distance


class ServerWatch:
    """Watches the server of ``resources`` of which the batches of ``chains`` ask most
    seconds of its capacity; there is at least one server.

    ``factor`` is how many times as much is asked in all iterations. It notes the server's
    work now, and after each iteration; to note it settles the network's statistics.
    """

    def __init__(
        self,
        clock: NetworkClock,
        resources: Resources,
        chains: ReadChains,
        factor: float,
    ) -> None:
        self._clock = clock
        self._factor = factor
        capacity = resources.links.capacity
        requested = {
            link: chains.work_on(link) / capacity[link] for link in resources.servers
        }
        self._link = max(requested, key=lambda link: float(requested[link].sum()))
        self._asked = requested[self._link]
        self._capacity = float(capacity[self._link])
        self._noted: list[tuple[float, float]] = []
        self._note()

    def wrap_progress(self, progress: Callable[[int], None]) -> Callable[[int], None]:
        """Return the function to call after each iteration; it also calls ``progress``."""

        def note_and_report(iterations: int) -> None:
            """Note the server's work, and pass on the iterations done."""
            self._note()
            progress(iterations)

        return note_and_report

    def _note(self) -> None:
        """Note the time and the seconds that the server has worked up to now."""
        env = self._clock.env
        network = self._clock.network
        network.settle(env.now)
        self._noted.append(
            (env.now, float(network.links["work"][self._link]) / self._capacity)
        )

    def summarise(self) -> Served:
        """Return what the server did in the epoch that is over now."""
        elapsed, busy = np.diff(np.array(self._noted), axis=0).T
        seconds = self._clock.env.now - self._noted[0][0]
        return Served(self._asked, elapsed - busy, seconds, self._factor)


class OmittedBatches:
    """The batches of an inference pass that are left out: they take as long as those
    that are not, on average over the ranks of a group, without the transient at its
    beginning.

    Ranks do not wait for one another in a pass, so what each is ahead or behind is a
    random walk, whose standard deviation grows with the square root of the batches.
    ``spread`` is how well it is known when the pass ends (s): the standard deviation
    over the ranks, in their groups, and half of what is left out would differ by
    between both parts. It is 0 before `waits`, and without omitted batches.

    Args:
        iterations: batches of each rank that are left out.
        batches: of each rank that are not, at least 4 where any are left out.
        groups: (M,) number of the group of each rank.
        at_once: batches that a rank loads at once, which may come together.
    """

    def __init__(
        self, iterations: int, batches: int, groups: Ints, at_once: int
    ) -> None:
        self.iterations = iterations
        self._groups = groups
        last = batches - 2
        part = (last - TRANSIENT * at_once) // (2 * at_once) * at_once
        self._part = part if part > 0 else max(last // 2, 1)
        self.bounds = [last - 2 * self._part, last - self._part, last]
        self._growth = math.sqrt((batches + iterations) / batches)
        self.spread = 0.0

    def waits(
        self, rank: Ints, arrived_at: Floats, done_at: Floats, now: float
    ) -> Floats:
        """Return, (M,) s from ``now`` on, when each rank would have ended the omitted
        batches; 0 for a rank that would have before. Sets ``spread``.

        Args:
            rank: (M,) ranks in the order in which they ended their simulated batches.
            arrived_at: (M,) s at which they did, in this order.
            done_at: (3, M) s at which each rank, by number, had done its batches
                `bounds`, which are numbers of batches from 0.
            now: s.
        """
        group = self._groups[rank]
        behind = arrived_at - _mean(arrived_at, group)
        parts = np.diff(done_at, axis=0) * (self.iterations / self._part)
        omitted_seconds = _mean(parts.mean(axis=0)[rank], group)
        resumed_at = arrived_at + omitted_seconds + behind * (self._growth - 1.0)
        half_difference = 0.5 * float(parts[1].mean() - parts[0].mean())
        self.spread = math.hypot(self._growth * float(behind.std()), half_difference)
        return np.maximum(resumed_at - now, 0.0)


def _mean(values: Floats, group: Ints) -> Floats:
    """Return, (n,), for each value the mean of its group; ``group`` is (n,) numbers."""
    means = np.bincount(group, values) / np.maximum(np.bincount(group), 1)
    return means[group]
