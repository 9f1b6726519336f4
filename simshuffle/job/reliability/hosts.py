"""Which hosts a job has while hosts fail and are repaired: when it trains, and what it waits for.

How often the job saves changes none of it: a failure is at its time, whatever was done until then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from simshuffle.job.reliability.faults import Faults
from simshuffle.spec.arrays import Floats, Ints

Policy = Literal["spare", "elastic", "stop"]
PHASES = ("detection", "waiting", "restart", "restore", "reread")
"""What the time between a failure and training again is spent on."""


@dataclass(frozen=True)
class Restarts:
    """What is done when a host of the job fails."""

    hosts: int  # that the job wants
    spares: int = 0  # hosts beside them
    policy: Policy = "spare"
    detect_s: float = 0.0  # until a failure is noticed
    restart_s: float = 0.0  # to start all processes
    restore_s: float = 0.0  # to read the last checkpoint
    reread_s: float = 0.0  # for a host that is new to the job to read its shard
    in_place: Sequence[str] = ()  # causes after which the host is good at once


@dataclass(frozen=True)
class Course:
    """How a job goes through its faults: times of training (S,), each but the last ended by an
    interruption; all together are ``length`` s."""

    begin_s: Floats  # (S,) s; when training begins
    end_s: Floats  # (S,) s; when it is interrupted, or the time is over
    share: Floats  # (S,) hosts that take part over those that the job wants
    cause: Ints  # (S,) what interrupted it, its place in ``causes``; -1 where the time was over
    down_s: Floats  # (S, phases) s of each of `PHASES` that follow
    causes: tuple[str, ...]
    length: float  # s


def course(faults: Faults, of: Restarts, length: float) -> Course:
    """The course of a job over ``length`` s. Host 0 to hosts - 1 begin; spares follow."""
    return _Job(faults, of, length).run()


class _Job:
    """The hosts of a job, and the time up to which they are followed."""

    def __init__(self, faults: Faults, of: Restarts, length: float) -> None:
        self._faults, self._of, self._length = faults, of, length
        whole = of.hosts + of.spares
        self._back = np.zeros(whole)  # s; from when on a host can be used
        self._in_job = np.arange(whole) < of.hosts
        self._starts = faults.start_s.tolist()
        self._hosts, self._ends = faults.host.tolist(), faults.end_s.tolist()
        self._stays = faults.repaired_in_place(of.in_place).tolist()
        self._next = 0  # fault
        self._down = np.zeros(len(PHASES))

    def run(self) -> Course:
        rows, downs = [], []
        now, length = 0.0, self._length
        while now < length:
            share = float(np.count_nonzero(self._in_job)) / self._of.hosts
            hit = self._hit(length)
            if hit < 0:
                rows.append((now, length, share, -1))
                downs.append(np.zeros(len(PHASES)))
                break
            at = self._starts[hit]
            rows.append((now, at, share, int(self._faults.cause[hit])))
            self._down = np.zeros(len(PHASES))
            now = self._recover(at)
            downs.append(self._down)
        begin, end, share_of, cause = (np.array(column) for column in zip(*rows, strict=True))
        return Course(begin, end, share_of, cause, np.array(downs), self._faults.causes, length)

    def _hit(self, until: float) -> int:
        """The next fault before ``until`` that the job feels, -1 if there is none; the hosts are as
        after it."""
        while self._next < len(self._starts) and self._starts[self._next] < until:
            number = self._next
            self._next += 1
            host, at = self._hosts[number], self._starts[number]
            up, stays = at >= self._back[host], self._stays[number]
            if not stays:
                self._back[host] = max(self._back[host], self._ends[number])
            if up and self._in_job[host]:
                self._in_job[host] = stays
                return number
        return -1

    def _recover(self, at: float) -> float:
        """When training goes on after a failure; at most the end of the time."""
        of, new = self._of, False
        while True:
            noticed = self._spend("detection", at, of.detect_s)
            while self._hit(noticed) >= 0:  # more of them change nothing
                pass
            ready, taken = self._gather(noticed)
            new |= taken
            self._spend("waiting", noticed, ready - noticed)
            if ready >= self._length:
                return self._length
            ends = [ready + of.restart_s]
            ends += [ends[-1] + of.restore_s]
            ends += [ends[-1] + of.reread_s * new]
            hit = self._hit(min(ends[-1], self._length))
            stop = self._length if hit < 0 else self._starts[hit]
            for phase, begin, end in zip(PHASES[2:], (ready, *ends), ends, strict=False):
                self._spend(phase, begin, max(min(end, stop) - begin, 0.0))
            if hit < 0:
                return min(ends[-1], self._length)
            at = stop

    def _spend(self, phase: str, begin: float, seconds: float) -> float:
        """The end of a phase; what is beyond the time does not count."""
        end = max(min(begin + seconds, self._length), begin)
        self._down[PHASES.index(phase)] += end - begin
        return end

    def _gather(self, now: float) -> tuple[float, bool]:
        """When the job has its hosts, and whether one of them is new."""
        of, new = self._of, False
        if of.policy == "stop":
            return self._length, False
        while now < self._length:
            lacking = of.hosts - int(np.count_nonzero(self._in_job))
            free = np.flatnonzero(~self._in_job & (self._back <= now))[:lacking]
            self._in_job[free] = True
            new |= bool(len(free))
            there = int(np.count_nonzero(self._in_job))
            if there == of.hosts or (of.policy == "elastic" and there):
                return now, new
            repaired = float(self._back[~self._in_job].min(initial=math.inf))
            until = min(repaired, self._length)
            hit = self._hit(until)
            now = until if hit < 0 else self._starts[hit]
        return self._length, new
