"""Traffic of others on the machine: what neighbours of a job send and write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from simshuffle.errors import InputError, Problem
from simshuffle.spec.hostlist import expand_node_list
from simshuffle.spec.record import (
    Count,
    Fraction,
    PositiveNBytes,
    PositiveSeconds,
    Seconds,
    Spec,
)


class _Traffic(Spec):
    """Traffic of some hosts.

    Attributes:
        hosts: which hosts send, by name: a list, or a node list of Slurm; those on
            which no job runs if left out.
    """

    hosts: str | list[str] | None = None

    @property
    def named_hosts(self) -> list[str] | None:
        """The names in ``hosts``; None if it is left out. Raises an InputError if it is
        a text that is no node list.
        """
        return (
            expand_node_list(self.hosts) if isinstance(self.hosts, str) else self.hosts
        )


class Uniform(_Traffic):
    """Background traffic in which every host sends to random hosts all the time.

    Attributes:
        load: share of a host's links that it asks for.
        partners: others that each sends to at a time, drawn once.
    """

    kind: Literal["uniform"] = "uniform"
    load: Fraction
    partners: Count = 4


class Permutation(_Traffic):
    """Background traffic in which every host sends to one host, and receives from one,
    all the time.

    Attributes:
        load: share of a host's links that it asks for.
    """

    kind: Literal["permutation"] = "permutation"
    load: Fraction


class OnOff(_Traffic):
    """Background traffic in which every host sends bursts, each to another host, with
    pauses. Bursts and pauses last exponentially distributed times.

    Attributes:
        load: share of a host's links that it asks for in a burst.
        on: what a burst takes in the mean, if nobody slows it down.
        off: what the silence between two takes in the mean.
    """

    kind: Literal["on_off"] = "on_off"
    load: Fraction
    on: PositiveSeconds
    off: PositiveSeconds


class PeriodicWrites(_Traffic):
    """Hosts write to the file system at regular times, as other jobs write checkpoints.
    What is not written at the next time delays it.

    Attributes:
        period: from the beginning of a write to that of the next one.
        nbytes: that each host writes.
        start: of the first write.
    """

    kind: Literal["periodic_writes"] = "periodic_writes"
    period: PositiveSeconds
    nbytes: PositiveNBytes
    start: Seconds = 0.0


Background = Annotated[
    Uniform | Permutation | OnOff | PeriodicWrites, Field(discriminator="kind")
]


def background_problems(background: Sequence[Background]) -> Iterator[Problem]:
    """Yield the problems of the hosts that the records name: text that is no node list,
    a host named twice, or fewer than two hosts (one, if they write).

    Whether the topology has them is not checked here.
    """
    for index, record in enumerate(background):
        path = f"background.{index}.hosts"
        try:
            hosts = record.named_hosts
        except InputError as error:
            yield from (problem.below(path) for problem in error.problems)
            continue
        if hosts is None:
            continue
        min_hosts = 1 if isinstance(record, PeriodicWrites) else 2
        if len(set(hosts)) < max(min_hosts, len(hosts)):
            rule = (
                f"must name at least {min_hosts} host{'s' * (min_hosts > 1)}, each once"
            )
            yield Problem(
                path, rule, f"{len(hosts)} names", "Name more, or leave it out."
            )
