"""Export the exchange of an iteration to htsim (github.com/Broadcom/csg-htsim).

The files are a connection matrix, and the fat tree on which it runs, where htsim can
have it.

The grammar of the matrix is that of ``ConnectionMatrix::load`` in
sim/datacenter/connection_matrix.cpp, commit 20b2297: starts in ps, sizes in bytes below
2**31, of which 0 would be without end, and comments before the first connection alone.

A node is a host, with the number that it has in the tree; without a tree, in the order
in which ranks fill hosts. A connection is a message that crosses a cable. No rank waits
for a message before it sends another one, so that work and barriers are in the starts,
which count from the sum of the gradients. Only messages of the same two ranks wait for
each other, by a trigger. Barriers of htsim wait for messages, and are not needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simshuffle.errors import refuse
from simshuffle.extensions.interop.exports.program import Program, ProgramStep, Tell
from simshuffle.extensions.interop.fabrics import htsim
from simshuffle.job.plan.wiring import names_of, wiring
from simshuffle.spec.arrays import Floats, Ints
from simshuffle.spec.units import Dimension, readable

MATRIX = "exchange.cm"
"""Name of the file of the connection matrix."""
NETWORK = "network.topo"
"""Name of the file of the network."""
MAX_NBYTES = 2**31 - 1
"""Bytes of a connection at most: its size is an int."""


@dataclass
class Connection:
    """A message between two hosts, as a connection of htsim."""

    source: int  # number of the sending host
    target: int  # number of the receiving host
    ready_s: float  # s after the sum of the gradients at which it can be sent
    nbytes: int  # its size
    # the trigger that starts it in place of ``ready_s``, from 1; 0 if it starts at ``ready_s``
    waits_for: int = 0
    releases: int = 0  # the trigger that its end sets off; 0 for none


def write(program: Program, path: Path, tell: Tell) -> list[str]:
    """Write the matrix and, where htsim can have it, the network to a new folder.

    Args:
        program: the exchange of the iteration.
        path: the folder, which is made and must not exist.
        tell: receives the share that is done; unused here.

    Returns:
        lines about the files, for people: with what was left out, and why.

    Raises:
        InputError: no message crosses a cable, or one is too large for htsim.
    """
    cluster = program.resources.cluster
    topology_text, obstacle = htsim.format_fat_tree(cluster.topology)
    if cluster.faults:
        topology_text = ""
        obstacle = "it has faults"
    host_of_rank = host_numbers(program) if topology_text else program.resources.host_of
    messages, num_inside = connections(program, host_of_rank)
    if not messages:
        rule = "must have messages that cross a cable"
        remedy = "Use more hosts."
        refuse("--to htsim", rule, f"{num_inside} inside", remedy, "export")
    path.mkdir()
    num_hosts = (
        cluster.topology.num_hosts if topology_text else int(host_of_rank.max()) + 1
    )
    (path / MATRIX).write_text(matrix(program, num_hosts, messages), encoding="utf-8")
    num_waiting = sum(1 for message in messages if message.waits_for)
    left_out = (
        f"; {num_inside} messages that cross no cable are left out"
        if num_inside
        else ""
    )
    lines = [
        f"Iteration {program.iteration} of epoch {program.epoch}: {len(messages)} messages;"
        f" {num_waiting} of them wait for an earlier message of the same ranks{left_out}."
    ]
    usage = f"htsim takes it as -tm {path.name}/{MATRIX}"
    if obstacle:
        return [
            *lines,
            f"{NETWORK} is not written, since htsim cannot model this network: {obstacle}.",
            usage,
        ]
    (path / NETWORK).write_text(topology_text, encoding="utf-8")
    return [*lines, f"{usage} -topo {path.name}/{NETWORK}"]


def host_numbers(program: Program) -> Ints:
    """Return (M,) the number in the network of each rank's host: its index among the
    hosts of the cluster's topology.
    """
    host_names = names_of(wiring(program.resources.cluster).fabric, "host")
    index_of_host = {name: index for index, name in enumerate(host_names)}
    numbers = np.array([index_of_host[name] for name in program.resources.hosts])
    return numbers[program.resources.host_of]


def connections(program: Program, host_of_rank: Ints) -> tuple[list[Connection], int]:
    """Return the messages that cross a cable, in order of step and rank, and the number
    of others.

    Messages of less than a byte are in neither; sizes are rounded to whole bytes. With
    ``program.serial_pairs``, a message waits for the last one from the same rank to the
    same other, if the last one would still be under way in an empty network.

    Args:
        program: the exchange of the iteration.
        host_of_rank: (M,) number of each rank's host, see `host_numbers`.

    Raises:
        InputError: a message has more than `MAX_NBYTES`.
    """
    messages: list[Connection] = []
    num_inside = 0
    num_triggers = 0
    links = program.resources.links
    # of each pair of ranks its last message, and when that arrives if the network is empty
    last_of_pair: dict[tuple[int, int], tuple[Connection, float]] = {}
    for step, ready_s in zip(program.steps, ready_seconds(program), strict=True):
        sends = step.sends & (step.nbytes >= 1)
        crosses_cable = sends & (links.cable[step.route] & (step.route >= 0)).any(
            axis=1
        )
        num_inside += int((sends & ~crosses_cable).sum())
        seconds = _isolated_seconds(program, step)
        for rank in np.flatnonzero(crosses_cable).tolist():
            target = int(step.target[rank])
            nbytes = round(float(step.nbytes[rank]))
            if nbytes > MAX_NBYTES:
                limit = readable(MAX_NBYTES, Dimension.NBYTES)
                rule = f"messages must be at most {limit} for htsim"
                remedy = "Lower samples_per_message of the exchange."
                refuse(
                    "--to htsim",
                    rule,
                    readable(nbytes, Dimension.NBYTES),
                    remedy,
                    "export",
                )
            message = Connection(
                source=int(host_of_rank[rank]),
                target=int(host_of_rank[target]),
                ready_s=float(ready_s[rank]),
                nbytes=nbytes,
            )
            last_message, arrival_s = last_of_pair.get((rank, target), (None, 0.0))
            if (
                program.serial_pairs
                and last_message is not None
                and arrival_s > message.ready_s
            ):
                num_triggers += 1
                message.waits_for = num_triggers
                last_message.releases = num_triggers
            start_s = max(message.ready_s, arrival_s)
            last_of_pair[rank, target] = (message, start_s + seconds[rank])
            messages.append(message)
    return messages, num_inside


def ready_seconds(program: Program) -> list[Floats]:
    """Return for each step (M,) s from the sum of the gradients to the hand-over of a
    rank's message: update, work, barriers and the latency of message passing, without
    that of cables and without waits for messages.
    """
    work_end_s = np.full(program.world_size, program.gradients.update_s)
    ready_s = []
    for step, barrier in zip(program.steps, program.barrier_before, strict=True):
        if barrier:
            work_end_s = np.full(
                program.world_size, work_end_s.max() + program.barrier_s
            )
        work_end_s = work_end_s + step.before_s
        ready_s.append(work_end_s + program.latency_s)
    return ready_s


def _isolated_seconds(program: Program, step: ProgramStep) -> Floats:
    """Return (M,) s of each message alone: bytes over the slowest link of its route, or
    over the stream's bandwidth if that is lower; no latency. 0 where nothing is sent.
    """
    # (M, width) bytes/s of the links of each route, of which the smallest counts
    capacity = np.where(
        step.route >= 0, program.resources.links.capacity[step.route], np.inf
    )
    capacity = capacity.min(axis=1)
    return np.asarray(step.nbytes / np.minimum(capacity, program.stream_bandwidth))


def matrix(program: Program, num_hosts: int, messages: Sequence[Connection]) -> str:
    """Return the text of the connection matrix; starts are in whole ps.

    Args:
        program: the exchange of the iteration.
        num_hosts: number of hosts in the network.
        messages: the messages, in their order.
    """
    num_triggers = sum(1 for message in messages if message.waits_for)
    label = " ".join(program.name.split())
    lines = [
        f"# {label}: iteration {program.iteration} of epoch {program.epoch}, written by simshuffle",
        f"Nodes {num_hosts}",
        f"Connections {len(messages)}",
        f"Triggers {num_triggers}",
    ]
    for connection_id, message in enumerate(messages, 1):
        start = f"start {round(message.ready_s * 1e12)}"
        if message.waits_for:
            start = f"trigger {message.waits_for}"
        end = f" send_done_trigger {message.releases}" if message.releases else ""
        ends = f"{message.source}->{message.target}"
        lines.append(f"{ends} id {connection_id} {start} size {message.nbytes}{end}")
    lines += [
        f"trigger id {connection_id} oneshot"
        for connection_id in range(1, num_triggers + 1)
    ]
    return "\n".join(lines) + "\n"
