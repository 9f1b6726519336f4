"""A shared network for any SimPy model: transfers over links, whose ends are events."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import simpy
from numpy.typing import ArrayLike

from simshuffle.fabric.network import Fluid, Links, Network
from simshuffle.fabric.network.batch import (
    NO_PAIR,
    TransferBatch,
    as_floats,
    pad_routes,
    tasks,
)
from simshuffle.fabric.network.models import shared_network
from simshuffle.job.sim.clock import NetworkClock
from simshuffle.spec.arrays import Floats

if TYPE_CHECKING:
    from simshuffle.fabric.network.fluid import FluidNetwork

AHEAD = 1e-9
"""Lead of the network over SimPy that rounding alone may cause, relative to the time."""


class Transferred(NamedTuple):
    """The value of the event of one transfer: times in s of simulated time."""

    start: float
    finish: float


class LinkStatistics(NamedTuple):
    """The traffic of links up to now."""

    nbytes: Floats  # (links,) bytes carried, those of transfers under way included
    busy_seconds: Floats  # (links,) s with any traffic
    # (links,) highest share of the capacity in use at any moment, from 0 to 1; with `Analytic` it
    # can be more, since links are not shared
    peak_utilisation: Floats


class _Clock(NetworkClock):
    """A clock whose events have values that are made when a group is complete."""

    def __init__(self, env: simpy.Environment, network: FluidNetwork) -> None:
        super().__init__(env, network)
        self._promised: dict[int, tuple[simpy.Event, Callable[[float], Any]]] = {}

    def promise(
        self, batch: TransferBatch, group: int, value: Callable[[float], Any]
    ) -> simpy.Event:
        """Post a group's transfers; return the event of its completion.

        The event has the value ``value(t)``, t being s at which the last transfer
        ended. The group is given back then.
        """
        self.post(batch)
        self.network.watch(group)
        event = self.env.event()
        self._promised[group] = event, value
        return event

    def _complete(self, when: float, groups: list[int]) -> None:
        # an event of SimPy: its time is the caller's, and is not moved on under its feet
        self._after(when, lambda _: self._trigger_events(groups))

    def _trigger_events(self, groups: list[int]) -> None:
        """Trigger the events of complete groups, and close the groups."""
        for group in groups:
            event, value = self._promised.pop(group)
            event.succeed(value(self.network.close_group(group)[1]))


class SimpyNetwork:
    """Directed links in a SimPy environment, and transfers over them.

    A transfer spends the sum of its links' latencies and moves its bytes as the model
    says. By default it spends the latencies first and uses no link meanwhile; then, at
    every moment, the transfers under way share every link max-min fairly. It needs
    nothing else of simshuffle: routes are lists of link numbers.

    With `Analytic` no link is ever shared, and a rate limit still holds. With `Packet`
    all links carry packets; the ones of a transfer with a rate limit are sent in up to
    16 parts, evenly spread, and the transfer ends no earlier than its limit allows.

    Args:
        env: the environment; it may hold several networks.
        links: the links; or None, and then ``capacity`` is needed.
        capacity: (links,) bytes/s, greater than 0.
        latency: (links,) s, at least 0; None for none.
        max_hops: links of the longest route.
        model: of the links; None for `Fluid`. One that does not put the messages of a
            pair in order (`Analytic`, ``Fluid(fair_share="message")``) does not put the
            transfers of a pair in order either.

    Raises:
        ValueError: both or neither of ``links`` and ``capacity`` are given, or
            ``latency`` with ``links``; or a number is out of range.
    """

    def __init__(
        self,
        env: simpy.Environment,
        links: Links | None = None,
        *,
        capacity: ArrayLike | None = None,
        latency: ArrayLike | None = None,
        max_hops: int = 16,
        model: Network | None = None,
    ) -> None:
        if (links is None) == (capacity is None) or (
            links is not None and latency is not None
        ):
            raise ValueError("give either links, or capacity and latency")
        if links is None:
            values = as_floats(cast(ArrayLike, capacity))
            links = Links(
                values,
                np.zeros(values.shape) if latency is None else as_floats(latency),
            )
        if max_hops < 1:
            raise ValueError(f"max_hops must be at least 1; got {max_hops}")
        self.env = env
        self.links = links
        self.max_hops = max_hops
        self.model: Network = model or Fluid()
        self._network = shared_network(
            self.model, links, np.ones(len(links), bool), width=max_hops
        )
        self._clock = _Clock(env, self._network)
        self._latency: list[float] = links.latency.tolist()
        self._pairs: dict[Hashable, int] = {}
        self._free_tags: dict[int, list[int]] = {}
        self._tags = 0
        # one transfer is posted by filling in this batch; the network keeps a copy
        self._single = TransferBatch(tasks(1), np.full((1, max_hops), -1, np.int32))
        self._task = self._single.tasks[0]
        self._hops = self._single.routes[0]
        self._hops_before = 0

    def transfer(
        self,
        route: Sequence[int],
        nbytes: float,
        *,
        pair: Hashable | None = None,
        rate_limit: float | None = None,
    ) -> simpy.Event:
        """Start a transfer now.

        Args:
            route: the links it uses, each once; an empty one takes no time, unless
                there is a rate limit.
            nbytes: bytes, at least 0; with 0 it takes its latency alone.
            pair: transfers of one pair go one after the other, in the order in which
                their latencies have passed (in that of starting with `Packet`, where
                the pair is a queue pair); None for no pair.
            rate_limit: bytes/s that it never exceeds; None for no limit.

        Returns:
            An event that is triggered when the transfer ends, with a `Transferred` as
            its value. A process that stops waiting for it, since it was interrupted,
            does not stop the transfer.

        Raises:
            ValueError: a link does not exist or is named twice, the route has more than
                ``max_hops`` links, or a number is out of range.
            RuntimeError: called between two calls of ``env.step()`` when the network
                has run ahead.
        """
        links = self._checked_route(route)
        if not (isfinite(nbytes) and nbytes >= 0):
            raise ValueError(f"nbytes must be finite and at least 0; got {nbytes}")
        now = self._now()
        count = len(links)
        hops = self._hops
        hops[:count] = links
        hops[count : self._hops_before] = -1
        self._hops_before = count
        latency = self._latency
        task = self._task
        task["work"] = task["nbytes"] = nbytes
        task["cap"] = _limit(rate_limit)
        task["delay"] = sum([latency[link] for link in links])
        task["pair"] = self._pair(pair)
        task["group"] = group = self._network.open_group(1)
        return self._clock.promise(
            self._single, group, lambda finish: Transferred(now, finish)
        )

    def transfers(
        self,
        routes: Iterable[Sequence[int]],
        nbytes: ArrayLike,
        *,
        pairs: Iterable[Hashable | None] | None = None,
        rate_limits: Iterable[float | None] | None = None,
    ) -> simpy.Event:
        """Start many transfers now, with a single event for all; much faster than calls
        of `transfer`.

        Args:
            routes: for each transfer the links it uses.
            nbytes: (n,) bytes, or one number for all.
            pairs: for each transfer its pair or None; None if none has a pair.
            rate_limits: for each transfer its limit (bytes/s) or None; None if none is
                limited.

        Returns:
            An event that is triggered when the last of them ends; its value: (n,) s
            when each did. Without transfers it is triggered at once.

        Raises:
            ValueError: as `transfer`, or lengths that do not fit.
            RuntimeError: as `transfer`.
        """
        paths = [self._checked_route(route) for route in routes]
        count = len(paths)
        sizes = as_floats(nbytes)
        if np.ndim(nbytes) == 0:
            sizes = np.broadcast_to(sizes, (count,))
        keys = (
            [NO_PAIR] * count if pairs is None else [self._pair(pair) for pair in pairs]
        )
        limits = (
            [inf] * count
            if rate_limits is None
            else [_limit(limit) for limit in rate_limits]
        )
        if sizes.shape != (count,) or not count == len(keys) == len(limits):
            raise ValueError(
                f"{count} routes, nbytes of shape {sizes.shape}, {len(keys)} pairs,"
                f" {len(limits)} rate limits do not fit"
            )
        if not np.all(np.isfinite(sizes) & (sizes >= 0)):
            raise ValueError("nbytes must be finite and at least 0")
        self._now()
        if not count:
            return self.env.event().succeed(np.empty(0))
        delays = [sum([self._latency[link] for link in path]) for path in paths]
        group = self._network.open_group(count)
        size, first = self._take_tags(count)
        columns = tasks(
            count,
            work=sizes,
            nbytes=sizes,
            cap=limits,
            delay=delays,
            pair=keys,
            group=group,
            tag=np.arange(first, first + count),
        )

        def ends(_: float) -> Floats:
            self._free_tags[size].append(first)
            return self._network.finish[first : first + count].copy()

        return self._clock.promise(
            TransferBatch(columns, pad_routes(paths)), group, ends
        )

    def link_statistics(self) -> LinkStatistics:
        """Return copies of what every link has carried, and how long and how much it
        was in use, from the start of the simulation until now.
        """
        self._clock.settle()
        links = self._network.links
        return LinkStatistics(
            links["work"].copy(), links["busy"].copy(), links["peak"].copy()
        )

    def _checked_route(self, route: Sequence[int]) -> list[int]:
        """Return the links of a route as integers.

        Raises:
            ValueError: a link does not exist or comes twice, or there are too many.
        """
        try:
            links = [operator.index(link) for link in route]
        except TypeError:
            raise ValueError(
                f"a route must be a list of link numbers; got {route!r}"
            ) from None
        if links:
            last = len(self._latency) - 1
            if min(links) < 0 or max(links) > last:
                raise ValueError(
                    f"a route must hold links from 0 to {last}; got {links}"
                )
            if len(set(links)) < len(links):
                raise ValueError(f"a route must not use a link twice; got {links}")
            if len(links) > self.max_hops:
                raise ValueError(
                    f"a route of {len(links)} links needs a max_hops of at least that,"
                    f" now {self.max_hops}"
                )
        return links

    def _now(self) -> float:
        """Return the time (s), at which transfers may be started.

        Raises:
            RuntimeError: the network has run ahead of it.
        """
        now = float(self.env.now)
        if self._network.now - now > AHEAD * now:
            raise RuntimeError(
                f"the network has run ahead to {self._network.now} s: start transfers in processes,"
                " in callbacks, or between calls of env.run(), not between calls of env.step()"
            )
        return now

    def _pair(self, pair: Hashable | None) -> int:
        """Return the number of a pair, a new one for a new pair; NO_PAIR for None and
        for models without order.
        """
        if pair is None or not self.model.serial_pairs:
            return NO_PAIR
        return self._pairs.setdefault(pair, len(self._pairs))

    def _take_tags(self, count: int) -> tuple[int, int]:
        """Reserve tags for ``count`` noted ends; return their number, a power of two,
        and first.

        Tags that were given back are taken again.
        """
        size = 1 << (count - 1).bit_length()
        free = self._free_tags.setdefault(size, [])
        if free:
            return size, free.pop()
        first = self._tags
        self._tags += size
        self._network.reserve_tags(self._tags)
        return size, first


def _limit(rate_limit: float | None) -> float:
    """Return a rate limit in bytes/s, inf for None; ValueError for nan, or unless it is
    above 0.
    """
    if rate_limit is None:
        return inf
    if not rate_limit > 0:
        raise ValueError(f"rate_limit must be greater than 0; got {rate_limit}")
    return rate_limit
