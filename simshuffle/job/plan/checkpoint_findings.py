"""What is to be said of checkpoints before anything is simulated: what they take, as plain values
and in a sentence, and what of them is probably not meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simshuffle.errors import Problem
from simshuffle.job.plan.checkpoint_bounds import (
    checkpoint_of,
    drain_seconds,
    restore_seconds,
    save_resources,
    save_seconds,
    stall_seconds,
    state_nbytes,
    training_seconds,
    watchdog_waits,
    written,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.units import Dimension, readable

NEAR = 0.5
"""Share of a watchdog's patience that a synchronous save takes, from which on it is asked about."""
PATH = "workload.checkpoint"


def checkpoint_facts(scenario: Scenario) -> dict[str, Any]:
    """Plain values, which JSON can hold: ``state_nbytes``, ``written_nbytes`` of all ``files``;
    ``save_s``, ``drain_s``, ``stall_s`` of the training loop at each, ``restore_s``, the ``share``
    of the time of training that stalls take, and what a save is ``bound_by``; and ``killed``,
    whether a watchdog ends the job."""
    record, of = checkpoint_of(scenario), written(scenario)
    stall, resources = stall_seconds(scenario), save_resources(scenario)
    return {
        "kind": record.describe(),
        "state_nbytes": state_nbytes(scenario.workload),
        "written_nbytes": of.total,
        "files": of.ranks,
        "training_s": training_seconds(scenario),
        "save_s": save_seconds(scenario),
        "drain_s": drain_seconds(scenario),
        "stall_s": stall,
        "share": stall / (stall + training_seconds(scenario)),
        "restore_s": restore_seconds(scenario),
        "bound_by": max(resources, key=lambda name: resources[name]),
        "killed": watchdog_waits(scenario) > record.watchdog,
    }


def checkpoint_sentence(of: Mapping[str, Any]) -> str:
    """The same in words."""
    size, all_of_it = (readable(of[f"{name}_nbytes"], Dimension.NBYTES, 3) for name in _SIZES)
    names = ("save", "stall", "training", "restore")
    save, stall, training, restore = (
        readable(of[f"{name}_s"], Dimension.SECONDS, 3) for name in names
    )
    files = "1 file" if of["files"] == 1 else f"{of['files']:,} files"
    drained = ""
    if of["drain_s"]:
        drained = f", drained in {readable(of['drain_s'], Dimension.SECONDS, 3)} more"
    ended = ", and a watchdog ends the job at the first" if of["killed"] else ""
    return (
        f"{of['kind']}; a state of {size}, {all_of_it} written in {files}. A save takes {save},"
        f" bound by {of['bound_by']}{drained}; the loop waits {stall} every {training} of training,"
        f" {100 * of['share']:.2g} % of the time{ended}; a restart reads for {restore}"
    )


_SIZES = ("state", "written")


def checkpoint_warnings(scenario: Scenario) -> Iterator[Problem]:
    """A watchdog that is near or ends the job, writing that is not hidden, and a save that does not
    fit its place; nothing without checkpoints."""
    record = scenario.workload.checkpoint
    if record is None:
        return
    seconds, nbytes = Dimension.SECONDS, Dimension.NBYTES
    save, patience = save_seconds(scenario), readable(record.watchdog, Dimension.SECONDS)
    if record.mode == "synchronous" and save > NEAR * record.watchdog:
        took = readable(save, seconds, 3)
        if watchdog_waits(scenario) > record.watchdog:
            rule = f"ends the job: ranks that write nothing wait {took} for a save"
        else:
            rule = f"is near: a save takes {took}, and a rank that is done early waits for others"
        remedy = "Use mode: asynchronous, layout: deduplicated, or a longer watchdog."
        yield Problem(f"{PATH}.watchdog", rule, patience, remedy)
    behind, training = drain_seconds(scenario), training_seconds(scenario)
    if record.mode == "asynchronous":
        behind += save
    if behind > training:
        rule = f"comes before the last save is written, which takes {readable(behind, seconds, 3)}"
        when = "every" if record.period is None else "period"
        given = readable(training, seconds, 3)
        remedy = "Save less often, or with layout: deduplicated."
        yield Problem(f"{PATH}.{when}", rule, given, remedy)
    if record.to in {"memory", "ssd"}:
        of, cluster = written(scenario), scenario.cluster
        here = of.nbytes * min(of.ranks, cluster.ranks_per_host(scenario.world_size))
        room = cluster.capacity(record.to)
        if here > room:
            rule = f"must have room for a save, {readable(here, nbytes, 3)} a host"
            given = f"{record.to} of {readable(room, nbytes, 3)}"
            yield Problem(f"{PATH}.to", rule, given, "Use to: pfs, or layout: deduplicated.")
