"""GOAL, the schedules that LogGOPSim and ATLAHS simulate: the exchange of an iteration as text.

The grammar is that of src/LogGOPSim/txt2bin.re in github.com/spcl/LogGOPSim (d5bb14a). A statement
ends with its line. Times of ``calc`` are whole ns, sizes whole bytes and at least one, since the
simulator takes one off. ``b requires a`` lets b begin when a has ended, ``b irequires a`` when it
has begun (Hoefler, Siebert and Lumsdaine, ICPP 2009).

Of a rank, ``wK`` is its work before message K, ``sK`` and ``rK`` are what it sends and receives in
it, ``store`` is what it stores in the end, and ``bNsJ`` and ``bNrJ`` are round J of barrier N. A
barrier is a dissemination of one byte, in which a round costs a latency, as in
`simshuffle.job.scenario.host_work.barrier_seconds`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np

from simshuffle.extensions.interop.exports.program import Program, Tell

HEAD = """\
// {name}: exchange after iteration {iteration} of epoch {epoch}, written by simshuffle.
// Messages of a rank: {messages}. calc, in ns: reads from storage and work on samples.
// What the network adds is for the simulator: simshuffle has L = {latency} ns for a message, and no
// other cost of the processor for sending it (o = g = O = 0).
num_ranks {ranks}
"""


def write(made: Program, path: Path, tell: Tell) -> list[str]:
    """Write the schedule of an iteration to the file ``path``, rank after rank."""
    with path.open("w", encoding="ascii", newline="\n") as file:
        for rank, text in enumerate(schedules(made)):
            file.write(text)
            tell((rank + 1) / made.world_size)
    return [f"The exchange after iteration {made.iteration} of epoch {made.epoch}."]


def schedules(made: Program) -> Iterator[str]:
    """The text of a schedule: its head with rank 0, then each other rank."""
    head = HEAD.format(
        name=made.name.encode("ascii", "replace").decode(),
        iteration=made.iteration,
        epoch=made.epoch,
        messages=len(made.steps),
        latency=round(1e9 * made.latency_s),
        ranks=made.world_size,
    )
    # of each step: whom a rank sends to and receives from, bytes, and ns of work before it sends
    steps = [
        (
            step.target.tolist(),
            step.source.tolist(),
            np.maximum(np.rint(step.nbytes), 1).astype(np.int64).tolist(),
            np.rint(1e9 * step.before_s).astype(np.int64).tolist(),
        )
        for step in made.steps
    ]
    store = np.rint(1e9 * made.store_s).astype(np.int64).tolist()
    for rank in range(made.world_size):
        lines = "\n".join(_statements(made, steps, store[rank], rank))
        yield f"{head if rank == 0 else ''}\nrank {rank} {{\n{lines}\n}}\n"


def _statements(
    made: Program, steps: Sequence[tuple[list[int], ...]], store: int, rank: int
) -> Iterator[str]:
    """The statements of a rank."""
    done: list[str] = []  # what the next statement waits for
    receipt: list[str] = []
    for k, (target, source, nbytes, before) in enumerate(steps):
        if made.barrier_before[k]:
            done = yield from _barrier(made, rank, k, done)
        yield f"w{k}: calc {before[rank]}"
        yield from (f"w{k} {wait}" for wait in done)
        done = [f"requires w{k}"]
        if target[rank] != rank:
            yield f"s{k}: send {nbytes[rank]}b to {target[rank]} tag {k}"
            yield f"s{k} requires w{k}"
            done = [f"irequires s{k}"]  # it goes on when the message has left it
            yield f"r{k}: recv {nbytes[source[rank]]}b from {source[rank]} tag {k}"
            receipt += [f"requires s{k}", f"requires r{k}"]
    yield f"store: calc {store}"
    # a message that is sent has begun
    waits = receipt if done[0].startswith("irequires") else [*done, *receipt]
    yield from (f"store {wait}" for wait in waits)
    if made.barrier_after:
        yield from _barrier(made, rank, len(steps), ["requires store"])


def _barrier(
    made: Program, rank: int, number: int, done: list[str]
) -> Generator[str, None, list[str]]:
    """Barrier ``number``, which the rank enters when all in ``done`` is; returns what its end
    is."""
    ranks, rounds = made.world_size, (made.world_size - 1).bit_length()
    for turn in range(rounds):
        tag = len(made.steps) + number * rounds + turn
        name = f"b{number}s{turn}"
        yield f"{name}: send 1b to {(rank + (1 << turn)) % ranks} tag {tag}"
        yield from (f"{name} {wait}" for wait in done)
        yield f"b{number}r{turn}: recv 1b from {(rank - (1 << turn)) % ranks} tag {tag}"
        done = [f"requires {name}", f"requires b{number}r{turn}"]
    return done
