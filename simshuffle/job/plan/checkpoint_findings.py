"""Facts and warnings of checkpoints before anything is simulated: their sizes and
seconds, as plain values and in a sentence, and values that are probably not meant.
"""

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
    save_size,
    stall_seconds,
    state_nbytes,
    training_seconds,
    watchdog_waits,
)
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.spec.units import Dimension, readable

NEAR = 0.5
"""Share of a watchdog's patience that a synchronous save takes, from which on it is
asked about.
"""
PATH = "workload.checkpoint"


def checkpoint_facts(scenario: Scenario) -> dict[str, Any]:
    """Return the facts of a scenario's checkpoints, plain values which JSON can hold.

    Returns:
        ``kind``, the record in words; ``state_nbytes`` of one copy; ``written_nbytes``
        of all ``files`` of a save; ``training_s`` between saves; ``save_s``;
        ``drain_s``, 0 if saves stay where they are; ``stall_s`` of the loop at each
        save but the first; ``share`` of stalls in stalls and training, at most 1;
        ``restore_s``; ``bound_by``, the slowest resource of a save, copy from the GPUs
        included; ``killed``, whether a watchdog ends the job.

    Raises:
        AssertionError: the scenario saves nothing.
    """
    record = checkpoint_of(scenario)
    size = save_size(scenario)
    stall = stall_seconds(scenario)
    resources = save_resources(scenario)
    return {
        "kind": record.describe(),
        "state_nbytes": state_nbytes(scenario.workload),
        "written_nbytes": size.total,
        "files": size.ranks,
        "training_s": training_seconds(scenario),
        "save_s": save_seconds(scenario),
        "drain_s": drain_seconds(scenario),
        "stall_s": stall,
        "share": stall / (stall + training_seconds(scenario)),
        "restore_s": restore_seconds(scenario),
        "bound_by": max(resources, key=lambda name: resources[name]),
        "killed": watchdog_waits(scenario) > record.watchdog,
    }


def checkpoint_sentence(facts: Mapping[str, Any]) -> str:
    """Return the `checkpoint_facts` ``facts`` as a sentence."""
    size, written = (
        readable(facts[f"{name}_nbytes"], Dimension.NBYTES, 3) for name in _SIZES
    )
    names = ("save", "stall", "training", "restore")
    save, stall, training, restore = (
        readable(facts[f"{name}_s"], Dimension.SECONDS, 3) for name in names
    )
    files = "1 file" if facts["files"] == 1 else f"{facts['files']:,} files"
    drain_clause = ""
    if facts["drain_s"]:
        drain_clause = (
            f", drained in {readable(facts['drain_s'], Dimension.SECONDS, 3)} more"
        )
    kill_clause = (
        ", and a watchdog ends the job at the first" if facts["killed"] else ""
    )
    return (
        f"{facts['kind']}; a state of {size}, {written} written in {files}. A save takes {save},"
        f" bound by {facts['bound_by']}{drain_clause}; the loop waits {stall} every {training} of"
        f" training, {100 * facts['share']:.2g} % of the time{kill_clause}; a restart reads for"
        f" {restore}"
    )


_SIZES = ("state", "written")


def checkpoint_warnings(scenario: Scenario) -> Iterator[Problem]:
    """Yield what is probably not meant of checkpoints; nothing without any.

    A watchdog that is near (`NEAR` of it taken by a synchronous save) or ends the job,
    writing or draining that the time to the next save does not hide, and a save that
    does not fit the memory or the SSDs of the hosts, of which nothing else is deducted.
    """
    record = scenario.workload.checkpoint
    if record is None:
        return
    seconds = Dimension.SECONDS
    nbytes = Dimension.NBYTES
    save = save_seconds(scenario)
    patience = readable(record.watchdog, Dimension.SECONDS)
    if record.mode == "synchronous" and save > NEAR * record.watchdog:
        save_text = readable(save, seconds, 3)
        if watchdog_waits(scenario) > record.watchdog:
            rule = f"ends the job: ranks that write nothing wait {save_text} for a save"
        else:
            rule = (
                f"is near: a save takes {save_text}, and a rank that is done"
                " early waits for others"
            )
        remedy = "Use mode: asynchronous, layout: deduplicated, or a longer watchdog."
        yield Problem(f"{PATH}.watchdog", rule, patience, remedy)
    background_seconds = drain_seconds(scenario)
    training = training_seconds(scenario)
    if record.mode == "asynchronous":
        background_seconds += save
    if background_seconds > training:
        duration = readable(background_seconds, seconds, 3)
        rule = f"comes before the last save is written, which takes {duration}"
        period_key = "every" if record.period is None else "period"
        value = readable(training, seconds, 3)
        remedy = "Save less often, or with layout: deduplicated."
        yield Problem(f"{PATH}.{period_key}", rule, value, remedy)
    if record.to in {"memory", "ssd"}:
        size = save_size(scenario)
        cluster = scenario.cluster
        host_nbytes = size.nbytes * min(
            size.ranks, cluster.ranks_per_host(scenario.world_size)
        )
        room = cluster.capacity(record.to)
        if host_nbytes > room:
            rule = (
                f"must have room for a save, {readable(host_nbytes, nbytes, 3)} a host"
            )
            value = f"{record.to} of {readable(room, nbytes, 3)}"
            yield Problem(
                f"{PATH}.to", rule, value, "Use to: pfs, or layout: deduplicated."
            )
