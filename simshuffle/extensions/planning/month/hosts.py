"""The hosts of a job while hosts fail and are repaired: when the job trains, and what
it waits for.

How often the job saves changes none of it: a failure comes at its time, whatever was
done before.
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
"""Phases between a failure and the next training, in this order; 'waiting' is for hosts."""


@dataclass(frozen=True)
class RestartPolicy:
    """The reaction of a job to the failure of one of its hosts.

    With 'spare' the job takes free hosts and waits until it has as many as it wants.
    'elastic' takes free hosts, and goes on as soon as it has any, without more until
    the next failure. 'stop' ends it at the first failure.
    """

    hosts: int  # that the job wants
    spares: int = 0  # hosts beside them
    policy: Policy = "spare"  # see above
    detect_s: float = 0.0  # until a failure is noticed
    restart_s: float = 0.0  # to start all processes
    restore_s: float = 0.0  # to read the last checkpoint
    # for hosts that join the job to read their shards; spent once if any does, else not
    reread_s: float = 0.0
    in_place: Sequence[str] = ()  # causes after which the host is good at once


@dataclass(frozen=True)
class JobCourse:
    """The stretches of training (S,) of a job, each followed by an interruption, but
    the last if the time is over first.

    Stretches and interruptions together last ``length`` s.
    """

    begin_s: Floats  # (S,) s; when training begins
    end_s: Floats  # (S,) s; when it is interrupted, or the time is over
    share: Floats  # (S,) hosts that take part over those that the job wants
    cause: Ints  # (S,) what interrupted it, its place in ``causes``; -1 where the time was over
    # (S, phases) s of each of `PHASES` in the interruption that follows; cut off at the end
    down_s: Floats
    causes: tuple[str, ...]  # names
    length: float  # s


def follow_job(faults: Faults, policy: RestartPolicy, length: float) -> JobCourse:
    """Follow a job for ``length`` s through the faults of its hosts and spares.

    Hosts 0 to hosts - 1 begin; spares have the next numbers. ``faults`` are in the
    order of their starts, and of no other hosts.
    """
    return _HostPool(faults, policy, length).run()


class _HostPool:
    """The hosts of a job, followed up to a moment."""

    def __init__(self, faults: Faults, policy: RestartPolicy, length: float) -> None:
        self._faults = faults
        self._policy = policy
        self._length = length
        num_hosts = policy.hosts + policy.spares
        self._usable_from = np.zeros(num_hosts)  # s; from when on a host can be used
        self._in_job = np.arange(num_hosts) < policy.hosts
        self._starts = faults.start_s.tolist()
        self._hosts, self._ends = faults.host.tolist(), faults.end_s.tolist()
        self._is_repaired_in_place = faults.is_repaired_in_place(
            policy.in_place
        ).tolist()
        self._next = 0  # fault
        self._down_seconds = np.zeros(len(PHASES))

    def run(self) -> JobCourse:
        """Follow the job to the end of the time."""
        rows = []
        downs = []
        begin_time = 0.0
        length = self._length
        while begin_time < length:
            share = float(np.count_nonzero(self._in_job)) / self._policy.hosts
            hit = self._next_hit(length)
            if hit < 0:
                rows.append((begin_time, length, share, -1))
                downs.append(np.zeros(len(PHASES)))
                break
            failure_time = self._starts[hit]
            rows.append((begin_time, failure_time, share, int(self._faults.cause[hit])))
            self._down_seconds = np.zeros(len(PHASES))
            begin_time = self._recover(failure_time)
            downs.append(self._down_seconds)
        begin, end, share_of_hosts, cause = (
            np.array(column) for column in zip(*rows, strict=True)
        )
        return JobCourse(
            begin,
            end,
            share_of_hosts,
            cause,
            np.array(downs),
            self._faults.causes,
            length,
        )

    def _next_hit(self, deadline: float) -> int:
        """Return the next fault before ``deadline`` that the job feels, -1 if there is
        none: a fault of a host of the job that is up.

        Moves on past all faults up to it. Takes its host out of the job, unless the
        host is good at once.
        """
        while self._next < len(self._starts) and self._starts[self._next] < deadline:
            fault = self._next
            self._next += 1
            host = self._hosts[fault]
            start = self._starts[fault]
            is_up = start >= self._usable_from[host]
            is_repaired = self._is_repaired_in_place[fault]
            if not is_repaired:
                self._usable_from[host] = max(
                    self._usable_from[host], self._ends[fault]
                )
            if is_up and self._in_job[host]:
                self._in_job[host] = is_repaired
                return fault
        return -1

    def _recover(self, failure_time: float) -> float:
        """Return when training goes on after a failure (s); at most the end of the
        time.

        A failure meanwhile begins the recovery anew. Books the seconds of each phase.
        """
        policy = self._policy
        has_new_hosts = False
        while True:
            noticed = self._spend("detection", failure_time, policy.detect_s)
            while self._next_hit(noticed) >= 0:  # more of them change nothing
                pass
            ready, has_new_host = self._gather(noticed)
            has_new_hosts |= has_new_host
            self._spend("waiting", noticed, ready - noticed)
            if ready >= self._length:
                return self._length
            phase_ends = [ready + policy.restart_s]
            phase_ends += [phase_ends[-1] + policy.restore_s]
            phase_ends += [phase_ends[-1] + policy.reread_s * has_new_hosts]
            hit = self._next_hit(min(phase_ends[-1], self._length))
            stop = self._length if hit < 0 else self._starts[hit]
            for phase, begin, end in zip(
                PHASES[2:], (ready, *phase_ends), phase_ends, strict=False
            ):
                self._spend(phase, begin, max(min(end, stop) - begin, 0.0))
            if hit < 0:
                return min(phase_ends[-1], self._length)
            failure_time = stop

    def _spend(self, phase: str, begin: float, seconds: float) -> float:
        """Book the seconds of a phase and return its end; time after the course is left
        out.
        """
        end = max(min(begin + seconds, self._length), begin)
        self._down_seconds[PHASES.index(phase)] += end - begin
        return end

    def _gather(self, now: float) -> tuple[float, bool]:
        """Return when the job has its hosts (s), and whether any host is new.

        The end of the time if it never has, or its policy is to stop. Free hosts join
        the job, and faults until then are taken into account.
        """
        policy = self._policy
        has_new_hosts = False
        if policy.policy == "stop":
            return self._length, False
        while now < self._length:
            num_lacking = policy.hosts - int(np.count_nonzero(self._in_job))
            free = np.flatnonzero(~self._in_job & (self._usable_from <= now))[
                :num_lacking
            ]
            self._in_job[free] = True
            has_new_hosts |= bool(len(free))
            num_present = int(np.count_nonzero(self._in_job))
            if num_present == policy.hosts or (
                policy.policy == "elastic" and num_present
            ):
                return now, has_new_hosts
            repaired = float(self._usable_from[~self._in_job].min(initial=math.inf))
            next_event = min(repaired, self._length)
            hit = self._next_hit(next_event)
            now = next_event if hit < 0 else self._starts[hit]
        return self._length, has_new_hosts
