"""Recovery: how a job goes on when a host fails."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from simshuffle.errors import InputError, Problem
from simshuffle.spec.record import Seconds, Sourced
from simshuffle.workload.exchange import LoaderShuffle
from simshuffle.workload.resuming import AnyResume

if TYPE_CHECKING:
    from simshuffle.job.scenario.scenario import Scenario


class Recovery(Sourced):
    """Recovery of a job after a host has failed.

    Attributes:
        policy: 'spare' takes a spare host, and waits for a repaired one where none is
            left; 'elastic' goes on with the hosts that there are; 'stop' ends the job.
            In a month, 'elastic' takes spare and repaired hosts in at its next restart.
            A simulated run never does, so its later epochs are too slow.
        spares: hosts beside those that the ranks fill, which may fail too. A simulated
            run with 'elastic' does not use them.
        detect: until the failure is noticed and the job has ended.
        restart: of starting all processes again, when all hosts are there and before
            anything is read.
        reread: whether a host that is new to the job reads its shard of the samples
            again, where the hosts keep one.
        resume: what a loader does with the state that it saved, under `loader_shuffle`:
            which samples are then lost, repeated and read again. By default the plan of
            the epoch is followed as if nothing had happened to the loader.
    """

    default_sources: ClassVar[dict[str, str]] = {
        "detect": "default: the watchdog of PyTorch's NCCL process group, 10 min",
        "restart": "default: 3 min to start processes, build communicators and warm up (estimate)",
    }

    policy: Literal["spare", "elastic", "stop"] = "spare"
    spares: Annotated[int, Field(ge=0, le=100_000)] = 0
    detect: Seconds = 600.0
    restart: Seconds = 180.0
    reread: bool = True
    resume: AnyResume | None = None


def recovery_problems(scenario: Scenario) -> Iterator[Problem]:
    """Yield a problem if there are more spare hosts than the ranks leave free, if the
    file of recorded failures cannot be read, and if a loader's state is not of the
    order that the run has. Reads that file.
    """
    recovery = scenario.recovery
    failures = scenario.failures
    exchange = scenario.workload.exchange
    if recovery is not None and (law := recovery.resume) is not None:
        path = "recovery.resume"
        order = law.order
        if not isinstance(exchange, LoaderShuffle):
            rule = "must be left out where no loader's order is followed"
            remedy = (
                f"Set workload.exchange to loader_shuffle with the order {order.kind}."
            )
            yield Problem(path, rule, exchange.kind, remedy)
        elif exchange.order != order:
            rule = f"must resume the order of workload.exchange: {exchange.order!r}"
            yield Problem(path, rule, repr(order), "Give both the same keys.")
    if recovery is not None and recovery.spares:
        free = scenario.cluster.num_hosts - scenario.hosts
        if recovery.spares > free:
            rule = f"must be at most {free}, the hosts that {scenario.world_size} ranks leave free"
            remedy = "Use fewer, fewer ranks, or a larger topology."
            yield Problem("recovery.spares", rule, str(recovery.spares), remedy)
    if failures is not None and failures.kind == "trace":
        try:
            failures.read_file()
        except InputError as error:
            for each in error.problems:
                path = f"failures.{each.path}"
                yield Problem(path, each.rule, each.value, each.remedy)
