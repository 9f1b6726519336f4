"""GOAL, the schedules that LogGOPSim and ATLAHS simulate: the exchange of an iteration
as text.

The grammar is that of src/LogGOPSim/txt2bin.re in github.com/spcl/LogGOPSim (d5bb14a).
A statement ends with its line. Times of ``calc`` are whole ns, sizes whole bytes and at
least one, since the simulator takes one off. ``b requires a`` lets b begin when a has
ended, ``b irequires a`` when it has begun (Hoefler, Siebert and Lumsdaine, ICPP 2009).

Of a rank, ``wK`` is its work before message K, ``sK`` and ``rK`` are what it sends and
receives in it, ``store_ns`` is what it stores in the end, and ``bNsJ`` and ``bNrJ`` are
round J of barrier N. A barrier is a dissemination of one byte, in which a round costs a
latency, as in `simshuffle.job.scenario.host_work.barrier_seconds`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simshuffle.extensions.interop.exports.program import Program, Tell

HEAD = """\
// {name}: exchange after iteration {iteration} of epoch {epoch}, written by simshuffle.
// Messages of a rank: {messages}. calc, in ns: reads from storage and work on samples.
// What the network adds is for the simulator: simshuffle has L = {latency} ns for a message, and no
// other cost of the processor for sending it (o = g = O = 0).
num_ranks {ranks}
"""


class _StepNumbers(NamedTuple):
    """Whole numbers of one step, for every rank."""

    target: list[int]  # (M,) rank that the message goes to; its own if nothing is sent
    source: list[int]  # (M,) rank that the message comes from; its own if nothing comes
    nbytes: list[int]  # (M,) bytes of the message, at least 1
    work_ns: list[int]  # (M,) ns of work before the message is sent


def write(program: Program, path: Path, tell: Tell) -> list[str]:
    """Write the schedule of an iteration to the file ``path``, and return lines about
    it for people.

    Args:
        program: the exchange of the iteration.
        path: the file; one that is there is replaced.
        tell: receives the share that is written, from 0 to 1.
    """
    with path.open("w", encoding="ascii", newline="\n") as file:
        for rank, text in enumerate(schedules(program)):
            file.write(text)
            tell((rank + 1) / program.world_size)
    return [
        f"The exchange after iteration {program.iteration} of epoch {program.epoch}."
    ]


def schedules(program: Program) -> Iterator[str]:
    """Yield the text of each rank's schedule, ascending; that of rank 0 begins with the
    head of the file.

    The passes, the sum of the gradients, the update and latencies are not in it.
    """
    head = HEAD.format(
        name=program.name.encode("ascii", "replace").decode(),
        iteration=program.iteration,
        epoch=program.epoch,
        messages=len(program.steps),
        latency=round(1e9 * program.latency_s),
        ranks=program.world_size,
    )
    steps = [
        _StepNumbers(
            target=step.target.tolist(),
            source=step.source.tolist(),
            nbytes=np.maximum(np.rint(step.nbytes), 1).astype(np.int64).tolist(),
            work_ns=np.rint(1e9 * step.before_s).astype(np.int64).tolist(),
        )
        for step in program.steps
    ]
    store_ns = np.rint(1e9 * program.store_s).astype(np.int64).tolist()
    for rank in range(program.world_size):
        lines = "\n".join(_statements(program, steps, store_ns[rank], rank))
        yield f"{head if rank == 0 else ''}\nrank {rank} {{\n{lines}\n}}\n"


def _statements(
    program: Program, steps: Sequence[_StepNumbers], store_ns: int, rank: int
) -> Iterator[str]:
    """Yield the statements of a rank.

    Args:
        program: the exchange of the iteration.
        steps: numbers of every step.
        store_ns: ns of storing after the receipt.
        rank: the rank.
    """
    waits: list[str] = []  # what the next statement waits for
    receipt_waits: list[str] = []  # what storing waits for
    for index, (target, source, nbytes, work_ns) in enumerate(steps):
        if program.barrier_before[index]:
            waits = yield from _barrier_statements(program, rank, index, waits)
        yield f"w{index}: calc {work_ns[rank]}"
        yield from (f"w{index} {wait}" for wait in waits)
        waits = [f"requires w{index}"]
        if target[rank] != rank:
            yield f"s{index}: send {nbytes[rank]}b to {target[rank]} tag {index}"
            yield f"s{index} requires w{index}"
            waits = [f"irequires s{index}"]  # it goes on when the message has left it
            yield f"r{index}: recv {nbytes[source[rank]]}b from {source[rank]} tag {index}"
            receipt_waits += [f"requires s{index}", f"requires r{index}"]
    yield f"store: calc {store_ns}"
    # a message that is sent has begun
    store_waits = (
        receipt_waits if waits[0].startswith("irequires") else [*waits, *receipt_waits]
    )
    yield from (f"store {wait}" for wait in store_waits)
    if program.barrier_after:
        yield from _barrier_statements(program, rank, len(steps), ["requires store"])


def _barrier_statements(
    program: Program, rank: int, barrier_index: int, waits: list[str]
) -> Generator[str, None, list[str]]:
    """Yield the statements of a rank in a barrier, and return what to wait for so as to
    wait for its end, such as 'requires b0s1'; ``waits`` if there is one rank.

    Args:
        program: the exchange of the iteration.
        rank: the rank.
        barrier_index: index of the barrier, from 0.
        waits: what the rank waits for before it enters the barrier, such as 'requires
            w0'.
    """
    ranks = program.world_size
    rounds = (ranks - 1).bit_length()
    for round_index in range(rounds):
        tag = len(program.steps) + barrier_index * rounds + round_index
        name = f"b{barrier_index}s{round_index}"
        yield f"{name}: send 1b to {(rank + (1 << round_index)) % ranks} tag {tag}"
        yield from (f"{name} {wait}" for wait in waits)
        receive = f"b{barrier_index}r{round_index}"
        yield f"{receive}: recv 1b from {(rank - (1 << round_index)) % ranks} tag {tag}"
        waits = [f"requires {name}", f"requires {receive}"]
    return waits
