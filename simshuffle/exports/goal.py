"""GOAL, the schedules that LogGOPSim and ATLAHS simulate: the exchange of an iteration as text.

The grammar is that of src/LogGOPSim/txt2bin.re in github.com/spcl/LogGOPSim (d5bb14a). A statement
ends with its line. Times of ``calc`` are whole ns, sizes whole bytes and at least one, since the
simulator takes one off. ``b requires a`` lets b begin when a has ended, ``b irequires a`` when it
has begun (Hoefler, Siebert and Lumsdaine, ICPP 2009).

Of a rank, ``wK`` is its work before message K, ``sK`` and ``rK`` are what it sends and receives in
it, ``store`` is what it stores in the end, and ``bNsJ`` and ``bNrJ`` are round J of barrier N. A
barrier is a dissemination of one byte, in which a round costs a latency, as in
`simshuffle.plan.host_work.barrier_seconds`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simshuffle.exports.export import Options, Tell
from simshuffle.exports.program import Program, program
from simshuffle.exports.source import Source

HEAD = """\
// {name}: exchange after iteration {iteration} of epoch {epoch}, written by simshuffle.
// Messages of a rank: {messages}. calc, in ns: reads from storage and work on samples.
// What the network adds is for the simulator: simshuffle has L = {latency} ns for a message, and no
// other cost of the processor for sending it (o = g = O = 0).
num_ranks {ranks}
"""


def write(source: Source, path: Path, options: Options, tell: Tell) -> list[str]:
    """Write the schedule of an iteration to the file ``path``, rank after rank.

    Raises:
        InputError: there is nothing to send.
    """
    made = program(source.scenario, source.epoch, source.iteration)
    with path.open("w", encoding="ascii", newline="\n") as file:
        for rank, text in enumerate(schedules(made)):
            file.write(text)
            tell((rank + 1) / made.world_size)
    return [f"The exchange after iteration {made.iteration} of epoch {made.epoch}."]


def schedules(made: Program) -> Iterator[str]:
    """The text of a schedule: its head with rank 0, then each other rank."""
    printable = made.name.encode("ascii", "replace").decode()
    head = HEAD.format(
        name=printable,
        iteration=made.iteration,
        epoch=made.epoch,
        messages=len(made.steps),
        latency=round(1e9 * made.latency_s),
        ranks=made.world_size,
    )
    writer = _Writer(made)
    for rank in range(made.world_size):
        lines = "\n".join(writer.rank(rank))
        yield f"{head if rank == 0 else ''}\nrank {rank} {{\n{lines}\n}}\n"


class _Writer:
    """Writes ranks of a program, whose arrays it makes whole numbers once."""

    def __init__(self, made: Program) -> None:
        self._made, self._barriers = made, made.barrier_before
        self._rounds = (made.world_size - 1).bit_length()
        self._target = [step.target.tolist() for step in made.steps]
        self._source = [step.source.tolist() for step in made.steps]
        self._nbytes = [np.maximum(_whole(step.nbytes), 1).tolist() for step in made.steps]
        self._before = [_whole(1e9 * step.before_s).tolist() for step in made.steps]
        self._store = _whole(1e9 * made.store_s).tolist()

    def rank(self, rank: int) -> Iterator[str]:
        """The statements of a rank."""
        done: list[str] = []  # what the next statement waits for
        receipt: list[str] = []
        for k, barrier in enumerate(self._barriers):
            if barrier:
                yield from self._barrier(rank, k, done)
                done = self._last_round(k)
            work = f"w{k}"
            yield f"{work}: calc {self._before[k][rank]}"
            yield from (f"{work} {wait}" for wait in done)
            done = [f"requires {work}"]
            if self._target[k][rank] != rank:
                yield f"s{k}: send {self._nbytes[k][rank]}b to {self._target[k][rank]} tag {k}"
                yield f"s{k} requires {work}"
                done = [f"irequires s{k}"]  # it goes on when the message has left it
                receipt.append(f"requires s{k}")
                source = self._source[k][rank]
                yield f"r{k}: recv {self._nbytes[k][source]}b from {source} tag {k}"
                receipt.append(f"requires r{k}")
        yield f"store: calc {self._store[rank]}"
        # a message that is sent has begun
        before = receipt if done[0].startswith("irequires") else [*done, *receipt]
        yield from (f"store {wait}" for wait in before)
        if self._made.barrier_after:
            yield from self._barrier(rank, len(self._barriers), ["requires store"])

    def _barrier(self, rank: int, number: int, done: list[str]) -> Iterator[str]:
        """Barrier ``number``, which the rank enters when all in ``done`` is."""
        ranks, steps = self._made.world_size, len(self._barriers)
        for turn in range(self._rounds):
            tag = steps + number * self._rounds + turn
            name = f"b{number}s{turn}"
            yield f"{name}: send 1b to {(rank + (1 << turn)) % ranks} tag {tag}"
            yield from (f"{name} {wait}" for wait in done)
            yield f"b{number}r{turn}: recv 1b from {(rank - (1 << turn)) % ranks} tag {tag}"
            done = [f"requires {name}", f"requires b{number}r{turn}"]

    def _last_round(self, number: int) -> list[str]:
        last = self._rounds - 1
        return [f"requires b{number}s{last}", f"requires b{number}r{last}"]


def _whole(values: NDArray[np.float64]) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)
