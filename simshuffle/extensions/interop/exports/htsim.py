"""The exchange of an iteration for htsim (github.com/Broadcom/csg-htsim): a connection matrix, and
the fat tree on which it runs, where htsim can have it.

The grammar of the matrix is that of ``ConnectionMatrix::load`` in
sim/datacenter/connection_matrix.cpp, commit 20b2297: starts in ps, sizes in bytes below 2**31, of
which 0 would be without end, and comments before the first connection alone.

A node is a host, with the number that it has in the tree; without a tree, in the order in which
ranks fill hosts. A connection is a message that crosses a cable. No rank waits for a message before
it sends another one, so that work and barriers are in the starts, which count from the sum of the
gradients. Only messages of the same two ranks wait for each other, by a trigger. Barriers of htsim
wait for messages, and are not needed.
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

MATRIX, NETWORK = "exchange.cm", "network.topo"
"""Names of the files."""
LARGEST = 2**31 - 1
"""Bytes of a connection at most: its size is an int."""


@dataclass
class Connection:
    """A message."""

    # source, target: numbers of hosts
    source: int
    target: int
    ready: float  # s after the sum of the gradients at which it can be sent
    nbytes: int  # its size
    waits_for: int = 0  # the trigger that starts it, from 1; 0 for its start
    releases: int = 0  # the trigger that its end sets off; 0 for none


def write(made: Program, path: Path, tell: Tell) -> list[str]:
    """Write the matrix, and the network where htsim can have it, to a new folder ``path``."""
    cluster = made.resources.cluster
    tree, why = htsim.written(cluster.topology)
    if cluster.faults:
        tree, why = "", "it has faults"
    host = host_numbers(made) if tree else made.resources.host_of
    messages, inside = connections(made, host)
    if not messages:
        rule, remedy = "must have messages that cross a cable", "Use more hosts."
        refuse("--to htsim", rule, f"{inside} inside", remedy, "export")
    path.mkdir()
    nodes = cluster.topology.num_hosts if tree else int(host.max()) + 1
    (path / MATRIX).write_text(matrix(made, nodes, messages), encoding="utf-8")
    waiting = sum(1 for message in messages if message.waits_for)
    said = [
        f"Iteration {made.iteration} of epoch {made.epoch}: {len(messages)} messages,"
        f" {waiting} of them after another one of the same ranks"
        f"{f'; left out: {inside} that cross no cable' if inside else ''}."
    ]
    given = f"htsim takes it as -tm {path.name}/{MATRIX}"
    if why:
        return [*said, f"Without {NETWORK}, as htsim cannot have this network: {why}.", given]
    (path / NETWORK).write_text(tree, encoding="utf-8")
    return [*said, f"{given} -topo {path.name}/{NETWORK}"]


def host_numbers(made: Program) -> Ints:
    """(M,) number in the network of each rank's host."""
    known = names_of(wiring(made.resources.cluster).fabric, "host")
    number = {name: place for place, name in enumerate(known)}
    return np.array([number[name] for name in made.resources.hosts])[made.resources.host_of]


def connections(made: Program, host: Ints) -> tuple[list[Connection], int]:
    """The messages that cross a cable, in the order of the steps and then of the ranks; and how
    many others there are. ``host``: see `host_numbers`. Raises an InputError if a message is too
    large for htsim."""
    out: list[Connection] = []
    inside = triggers = 0
    links = made.resources.links
    # of each pair of ranks its last message, and when that arrives if the network is empty
    before: dict[tuple[int, int], tuple[Connection, float]] = {}
    for step, ready in zip(made.steps, ready_times(made), strict=True):
        sends = step.sends & (step.nbytes >= 1)
        far = sends & (links.cable[step.route] & (step.route >= 0)).any(axis=1)
        inside += int((sends & ~far).sum())
        alone = _seconds_alone(made, step)
        for rank in np.flatnonzero(far).tolist():
            pair = rank, int(step.target[rank])
            size = round(float(step.nbytes[rank]))
            if size > LARGEST:
                rule = f"messages must be at most {readable(LARGEST, Dimension.NBYTES)} for htsim"
                remedy = "Set samples_per_message of the exchange to less."
                refuse("--to htsim", rule, readable(size, Dimension.NBYTES), remedy, "export")
            message = Connection(int(host[rank]), int(host[pair[1]]), float(ready[rank]), size)
            last, arrives = before.get(pair, (None, 0.0))
            if made.serial_pairs and last is not None and arrives > message.ready:
                triggers += 1
                message.waits_for = last.releases = triggers
            before[pair] = message, max(message.ready, arrives) + alone[rank]
            out.append(message)
    return out, inside


def ready_times(made: Program) -> list[Floats]:
    """Of each step (M,) s from the sum of the gradients until a rank's message is handed over."""
    done = np.full(made.world_size, made.gradients.update_s)
    out = []
    for step, barrier in zip(made.steps, made.barrier_before, strict=True):
        if barrier:
            done = np.full(made.world_size, done.max() + made.barrier_s)
        done = done + step.before_s
        out.append(done + made.latency_s)
    return out


def _seconds_alone(made: Program, step: ProgramStep) -> Floats:
    """(M,) s of each message on its route if nothing else is there."""
    rate = np.where(step.route >= 0, made.resources.links.capacity[step.route], np.inf).min(axis=1)
    return np.asarray(step.nbytes / np.minimum(rate, made.stream_bandwidth))


def matrix(made: Program, hosts: int, messages: Sequence[Connection]) -> str:
    """The connection matrix of messages between so many hosts."""
    triggers = sum(1 for message in messages if message.waits_for)
    about = " ".join(made.name.split())
    lines = [
        f"# {about}: iteration {made.iteration} of epoch {made.epoch}, written by simshuffle",
        f"Nodes {hosts}",
        f"Connections {len(messages)}",
        f"Triggers {triggers}",
    ]
    for number, message in enumerate(messages, 1):
        begin = f"start {round(message.ready * 1e12)}"
        if message.waits_for:
            begin = f"trigger {message.waits_for}"
        end = f" send_done_trigger {message.releases}" if message.releases else ""
        ends = f"{message.source}->{message.target}"
        lines.append(f"{ends} id {number} {begin} size {message.nbytes}{end}")
    lines += [f"trigger id {number} oneshot" for number in range(1, triggers + 1)]
    return "\n".join(lines) + "\n"
