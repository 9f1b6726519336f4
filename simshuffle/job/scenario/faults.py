"""Faults: devices and cables that are slow, or fail, at a time in a run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from pydantic import create_model, model_validator

from simshuffle.errors import refuse
from simshuffle.job.reliability import Failures
from simshuffle.job.scenario.cluster import Cluster
from simshuffle.spec.record import (
    CacheArgument,
    Fraction,
    PositiveSeconds,
    Seconds,
    Spec,
)
from simshuffle.spec.units import Dimension, readable

KINDS = ("cables", "hosts", "gpus", "ssds")
"""Kinds of devices whose faults may be drawn."""

if TYPE_CHECKING:

    class _Lasting(Spec):
        """A record with the key ``for``, a keyword of Python: s, or None."""

        def __init__(self, **values: Any) -> None: ...
else:
    _Lasting = create_model(
        "_Lasting", __base__=Spec, **{"for": (PositiveSeconds | None, None)}
    )


class Fault(_Lasting):
    """Something that is slow for a while, or has failed.

    What has several faults at a time is as slow as with the worst of them. Times are
    those of the simulation, in which the first epoch begins at 0 s; staging is before
    it.

    Attributes:
        what: the name of a host (all that is in it, and its cables), a switch (its
            cables), a cable ('leaf.0>spine.1', with '#1' the second of parallel ones),
            a device as the table of links calls it ('h0003.ssd', 'pfs.open'), a GPU
            ('h0003.gpu2'), all of a host ('h0003.gpus'), or 'pfs', its servers. With
            'every': 'cables', 'hosts', 'gpus' or 'ssds', of which each fault has one,
            drawn from those of the run.
        at: when it begins.
        for: how long it lasts, with 'every' in the mean of an exponential distribution;
            to the end of the run if left out.
        rate: the share of its rate that is left; 0 if it has failed.
        every: instead of 'at': the mean time between two faults of all together, of an
            exponential distribution.
        process: instead of 'at': a record as of 'failures', or a name of its catalog,
            which says when each of the hosts, cables, GPUs or SSDs of the run has a
            fault, and how long.
        on_failure: what becomes of transfers over a failed cable: new routes, or they
            wait.
        reroute_after: until new routes are known; nothing crosses before. The default
            is an estimate: a subnet manager is told at once, and makes its tables anew.
    """

    what: str
    at: Seconds | None = None
    rate: Fraction
    every: PositiveSeconds | None = None
    process: Failures | None = None
    on_failure: Literal["reroute", "stall"] = "reroute"
    reroute_after: Seconds = 1.0

    @property
    def lasts(self) -> float | None:
        """Seconds that the fault lasts, ``for``; None if it is left out."""
        seconds: float | None = getattr(self, "for")
        return seconds

    def describe(self) -> str:
        """Return the fault and its time in words."""
        rate = f"at {100 * self.rate:.3g} % of its rate" if self.rate else "failed"
        lasts = "" if self.lasts is None else f" for {_format_seconds(self.lasts)}"
        if self.process is not None:
            return (
                f"{self.what} {rate} as {self.process.name or self.process.kind} says"
            )
        if self.every is not None:
            mean = " in the mean" if lasts else ""
            return f"one of the {self.what} every {_format_seconds(self.every)} {rate}{lasts}{mean}"
        return f"{self.what} {rate} from {_format_seconds(self.at or 0.0)}{lasts}"

    @model_validator(mode="after")
    def _check_times(self) -> Fault:
        """Refuse keys of a fault that contradict each other, with an InputError.

        Exactly one of ``at``, ``every`` and ``process`` is given. Drawn faults are of
        one of `KINDS`; other names are not checked here. ``for`` is refused with
        ``process``. Failures (``rate`` 0) are refused of GPUs and of drawn hosts.
        Without ``process`` they need ``for`` if drawn or stalling, lest the job waits
        for ever.
        """
        drawn = self.at is None
        part = self.what.rpartition(".")[2]
        gpu_index = part.removeprefix("gpu")
        if (
            sum(
                key_value is not None
                for key_value in (self.at, self.every, self.process)
            )
            != 1
        ):
            remedy = "Give 'at' for one fault, 'every' or 'process' for faults that are drawn."
            _refuse(
                "at",
                "or 'every' or 'process' must be given, one of them",
                self.what,
                remedy,
            )
        if drawn and self.what not in KINDS:
            remedy = "Give 'at' in its place, for one fault of it."
            rule = f"must be one of {', '.join(KINDS)} with 'every' or 'process'"
            _refuse("what", rule, self.what, remedy)
        if self.process is not None and self.lasts is not None:
            remedy = "Leave it out: the process says how long each fault lasts."
            _refuse("for", "must be left out with 'process'", self.what, remedy)
        if self.rate > 0:
            return self
        if part == "gpus" or (part != gpu_index and gpu_index.isdigit()):
            rule = "of GPUs must be greater than 0: a job does not go on without one of its ranks"
            _refuse("rate", rule, "0", "Give its host with rate 0, or raise it.")
        if drawn and self.what == "hosts":
            rule = "of hosts that are drawn must be greater than 0"
            _refuse("rate", rule, "0", "Raise it; 'failures' has hosts that are lost.")
        if (
            self.lasts is None
            and not self.process
            and (drawn or self.on_failure == "stall")
        ):
            rule = "is required: the job waits for the device that has failed"
            remedy = "Say how long it lasts, or for one cable on_failure: reroute."
            _refuse("for", rule, "left out", remedy)
        return self


def _format_seconds(seconds: float) -> str:
    """Return seconds as text of three significant digits, with a unit that fits."""
    return readable(seconds, Dimension.SECONDS, 3)


def _refuse(path: str, rule: str, value: str, remedy: str) -> NoReturn:
    """Raise the InputError of a fault whose key ``path`` breaks ``rule``."""
    refuse(path, rule, value, remedy, "faults")


def needs_every_cable(faults: Sequence[Fault] | None) -> bool:
    """Return whether messages may go round failed cables: whether anything fails with
    ``on_failure: reroute``, be it a cable or not. False for None.
    """
    return any(
        fault.rate == 0 and fault.on_failure == "reroute" for fault in faults or ()
    )


def host_names(cluster: Cluster) -> frozenset[str]:
    """Return the names of the hosts of a machine.

    Raises:
        TopologyError: as of `Cluster.cabling`.
    """
    return _host_names(cluster.keyed_network)


@lru_cache(maxsize=2)
def _host_names(network: CacheArgument[Cluster]) -> frozenset[str]:
    """Return what `host_names` does, kept for the last two networks."""
    cabling = network.argument.cabling()
    return frozenset(
        cabling.names[node] for node in cabling.nodes_of_kind("host").tolist()
    )
