"""A timeline of some ranks, their messages and the links, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.interop.exports.program import Tell
from simshuffle.extensions.interop.exports.source import ExportedRun
from simshuffle.extensions.interop.exports.trace_file import (
    TraceFile,
    lanes,
    nanoseconds,
    quoted,
    trace_file,
    write_counters,
)
from simshuffle.extensions.interop.exports.traced import (
    TracedEpoch,
    check_ranks,
    chosen_ranks,
    simulated,
    stored,
)
from simshuffle.job.sim.recorder import MessageTimes
from simshuffle.report.report import ALL_LABELS
from simshuffle.report.timeline import HIDDEN
from simshuffle.report.waiting import wait_causes
from simshuffle.spec.arrays import Ints64
from simshuffle.version import __version__

LABEL_OF = {phase: label for label, phases in ALL_LABELS.items() for phase in phases}
LABEL_OF |= dict(zip(HIDDEN, ("EXCHANGE", "GE+WU"), strict=True))
OVERLAPPING = {
    "exchange_hidden": "exchange hidden: its messages are in flight",
    "allreduce_hidden": "allreduce hidden: gradients are in flight",
}
SHORTEST = 2
"""ns of a message's slice: an arrow needs a place inside."""
HOSTS_UP_TO = 64
"""Ranks whose hosts have counters: of more, these would be most of the file."""
SIMULATED = 0.85
"""Share of the time that the simulation takes."""


def write(
    source: ExportedRun, path: Path, ranks: str | None, messages: str | None, tell: Tell
) -> list[str]:
    """Write a timeline to the file ``path``; ``ranks`` and ``messages`` as options of the verb.
    Raises an InputError for a rank that does not exist, or tables that are not what is simulated
    now."""
    parts = check_ranks(ranks, source.scenario.world_size)
    if messages not in {None, "chosen", "none"}:
        rule, remedy = "must be chosen or none", "Write one of them, or leave it out."
        refuse("--messages", rule, repr(messages), remedy, "command line")
    alone = messages == "none" and source.result is not None
    found = stored(source) if alone else simulated(source, lambda done: tell(SIMULATED * done))
    epochs = list(found)
    shown = chosen_ranks(parts, [epoch.phases for epoch in epochs])
    with trace_file(path) as file:
        trace = _Trace(file, source, shown, epochs[0].begin)
        for number, epoch in enumerate(epochs, 1):
            last = number == len(epochs) or epochs[number].begin > epoch.end
            trace.epoch(epoch, messages=messages != "none", last=last)
            tell(SIMULATED + (1 - SIMULATED) * number / len(epochs))
        about = {
            "simshuffle": __version__,
            "source": source.reference,
            "run": source.run,
            "world_size": source.scenario.world_size,
            "ranks": list(shown),
            "epochs": {str(epoch.epoch): _said(epoch) for epoch in epochs},
            "zero_s": epochs[0].begin,
        }
        file.finish(about)
    return [
        f"{len(shown)} of {source.scenario.world_size} ranks, {trace.arrows} messages,"
        f" {file.events} events.",
        *(f"Epoch {epoch.epoch}: {text}." for epoch in epochs for text in _said(epoch)),
    ]


def _said(epoch: TracedEpoch) -> list[str]:
    """What is to be said of an epoch: how it was come by, and what of it was simulated."""
    window = epoch.window
    some = (
        f"{window['iterations_simulated']} of {window['iterations']} iterations, which the time"
        f" tolerance asks for; {window['steady_first']} to {window['steady_last']} stand for those"
        " left out"
    )
    left_out = window["iterations"] - window["iterations_simulated"]
    return [*filter(None, [epoch.same]), *([some] if left_out else [])]


class _End(NamedTuple):
    """How one end of messages is called."""

    title: str  # of its lanes in the process of a rank that is shown
    other: str  # those beside a rank that is shown
    side: str  # what stands between this rank and its partner
    first: int  # place of the first lane


SENDING = _End("messages sent", "sending to", "to", 10)
RECEIVING = _End("messages coming in", "receiving from", "from", 1000)


class _Trace:
    """The lanes of a file: of a run, for the ``ranks`` that are shown, with what is said of each;
    the file begins at ``zero`` s of simulated time."""

    def __init__(
        self, file: TraceFile, source: ExportedRun, ranks: dict[int, str], zero: float
    ) -> None:
        self._file, self._source, self._ranks, self._zero = file, source, ranks, zero
        self.arrows = 0
        self._threads: dict[tuple[int, str], int] = {}
        # numbers of processes end in the number of the rank; threads go on after them
        self._offset = max(10_000, 10 ** len(str(source.scenario.world_size)))
        self.cluster, self._others = self._offset - 2, self._offset - 1
        self._next_tid = 10 * self._offset
        host_of = source.scenario.cluster.host_of(source.scenario.world_size)
        self._process(self.cluster, f"{source.run}: links and file system", 0)
        for place, (rank, about) in enumerate(ranks.items(), 1):
            name = f"rank {rank} on host {host_of[rank]}{about}"
            self._process(self._offset + rank, name, place)
            self._thread(self._offset + rank, "training loop", 0, self._offset + rank)

    def _process(self, pid: int, name: str, place: int) -> None:
        self._file.name("process_name", pid, pid, name=name)
        self._file.name("process_sort_index", pid, pid, sort_index=place)

    def _thread(self, pid: int, name: str, place: int, tid: int | None = None) -> int:
        """The thread of a process with that name; ``place`` among its threads when it is new."""
        key = pid, name
        if key not in self._threads:
            if tid is None:
                tid, self._next_tid = self._next_tid, self._next_tid + 1
            self._threads[key] = tid
            self._file.name("thread_name", pid, tid, name=name)
            self._file.name("thread_sort_index", pid, tid, sort_index=place)
        return self._threads[key]

    def epoch(self, epoch: TracedEpoch, *, messages: bool, last: bool) -> None:
        """Write an epoch, with its messages if they are known and wanted; ``last`` if no other one
        begins where it ends."""
        begin, end = (nanoseconds(when - self._zero) for when in (epoch.begin, epoch.end))
        facts = {
            key: None if isinstance(value, float) and not np.isfinite(value) else value  # as JSON
            for key, value in epoch.window.items()
            if key not in {"run", "seed"}
        }
        args = json.dumps({**facts, "about": "; ".join(_said(epoch))})
        tid = self._thread(self.cluster, "epochs", 0, self.cluster)
        name = quoted([f"epoch {epoch.epoch}"])
        where = (self.cluster, tid, begin.reshape(1), end.reshape(1))
        self._file.slices(*where, name, ['"epoch"'], [args])
        self._phases(epoch)
        if epoch.record is None:
            return
        offset = int(begin)
        if messages:
            self._messages(epoch.record.messages, offset, epoch.epoch)
        few = len(self._ranks) <= HOSTS_UP_TO
        processes = {rank: self._offset + rank for rank in self._ranks if few}
        write_counters(self._file, epoch.record, offset, self.cluster, processes, last=last)

    # -------------------------------------------------------------------------------- what ranks do

    def _phases(self, epoch: TracedEpoch) -> None:
        """The loops of the ranks, and what overlaps them."""
        phases = epoch.phases
        cause: Sequence[str] = [""] * len(phases)
        last = np.full(len(phases), -1)
        if phases["rank"].nunique() == self._source.scenario.world_size:
            cause, last = wait_causes(phases, ALL_LABELS)
        table = pd.DataFrame(
            {
                "iteration": phases["iteration"].to_numpy(),
                "rank": phases["rank"].to_numpy(),
                "phase": phases["phase"].astype(str).to_numpy(object),
                "begin": nanoseconds(phases["start_s"] - self._zero),
                "end": nanoseconds(phases["end_s"] - self._zero),
                "nbytes": phases["nbytes"].to_numpy(),
                "cause": cause,
                "last": last,
            }
        )
        table = table[table["rank"].isin(list(self._ranks))]
        hidden = table["phase"].isin(HIDDEN)
        self._loops(table[~hidden], epoch.epoch)
        for place, phase in enumerate(HIDDEN, 1):
            some = table[table["phase"] == phase].sort_values(["rank", "begin"])
            tids = {
                rank: self._thread(self._offset + rank, OVERLAPPING[phase], place)
                for rank in some["rank"].unique().tolist()
            }
            self._write_phases(some, some["rank"].map(tids).to_numpy(), epoch.epoch)

    def _loops(self, table: pd.DataFrame, epoch: int) -> None:
        """Iterations, with their phases inside."""
        table = table.sort_values(["rank", "begin", "end"], kind="stable")
        inside = table[table["iteration"] > 0].groupby(["rank", "iteration"], sort=True)
        whole = inside.agg(begin=("begin", "min"), end=("end", "max")).reset_index()
        pid = self._offset + whole["rank"].to_numpy(np.int64)
        numbers = whole["iteration"].tolist()
        self._file.slices(
            pid,
            pid,
            whole["begin"].to_numpy(),
            whole["end"].to_numpy(),
            [f'"iteration {number}"' for number in numbers],
            ['"iteration"'] * len(whole),
            [f'{{"epoch":{epoch},"iteration":{number}}}' for number in numbers],
        )
        self._write_phases(table, self._offset + table["rank"].to_numpy(np.int64), epoch)

    def _write_phases(self, table: pd.DataFrame, tid: Any, epoch: int) -> None:
        names = table["phase"].tolist()
        columns = (table[name].tolist() for name in ("iteration", "nbytes", "cause", "last"))
        args = [
            f'{{"epoch":{epoch},"iteration":{iteration}'
            + (f',"bytes":{nbytes:.0f}' if nbytes else "")
            + (f',"cause":"{cause}"' if cause else "")
            + (f',"waits for rank":{last}' if last >= 0 else "")
            + "}"
            for iteration, nbytes, cause, last in zip(*columns, strict=True)
        ]
        self._file.slices(
            self._offset + table["rank"].to_numpy(np.int64),
            tid,
            table["begin"].to_numpy(),
            table["end"].to_numpy(),
            quoted(names),
            quoted([LABEL_OF[name] for name in names]),
            args,
        )

    # ------------------------------------------------------------------------------------- messages

    def _messages(self, messages: MessageTimes, offset: int, epoch: int) -> None:
        """The messages of the ranks shown, each with an arrow: from what its sender does for it, to
        what is in flight to its receiver."""
        shown = np.array(list(self._ranks))
        of = messages.select(np.isin(messages.sender, shown) | np.isin(messages.receiver, shown))
        count = len(of.sent)
        if not count:
            return
        sent, received = (offset + nanoseconds(when) for when in (of.sent, of.received))
        worked = _begun(of, offset, sent)
        received = np.maximum(received, sent + 1)
        about = zip(
            of.iteration.tolist(),
            of.index.tolist(),
            of.sender.tolist(),
            of.receiver.tolist(),
            of.nbytes.tolist(),
            ((of.received - of.sent) * 1e6).tolist(),
            strict=True,
        )
        args = [
            f'{{"epoch":{epoch},"iteration":{iteration},"number":{number + 1},"sender":{sender},'
            f'"receiver":{receiver},"bytes":{nbytes:.0f},"in flight (us)":{flight:.3f}}}'
            for iteration, number, sender, receiver, nbytes, flight in about
        ]
        sides = [
            (of.sender, of.receiver, worked, sent, SENDING),
            (of.receiver, of.sender, sent, received, RECEIVING),
        ]
        places = [self._placed(*side) for side in sides]
        for (rank, partner, begin, end, kind), place in zip(sides, places, strict=True):
            pairs = zip(rank.tolist(), partner.tolist(), strict=True)
            names = [f'"{one} {kind.side} {other}"' for one, other in pairs]
            self._file.slices(*place, begin, end, names, ['"message"'] * count, args)
        ends = [(*place, side[3] - 1) for place, side in zip(places, sides, strict=True)]
        self._file.arrows(self.arrows + np.arange(count), ends, "message")
        self.arrows += count

    def _placed(
        self, rank: Ints64, partner: Ints64, begin: Ints64, end: Ints64, kind: _End
    ) -> tuple[Ints64, Ints64]:
        """(n,) process and thread of one end of every message, given this rank, its partner, and
        begin and end (ns) of the slice: in the process of its rank, or among the other ranks beside
        those that its partner has there."""
        known = np.isin(rank, list(self._ranks))
        pid = np.where(known, self._offset + rank, self._others)
        owner = np.where(known, rank, partner)
        tid = np.zeros(len(rank), np.int64)
        places = {own: place for place, own in enumerate(self._ranks)}
        if not known.all() and (self._others, "") not in self._threads:
            self._threads[self._others, ""] = self._others
            self._process(self._others, "other ranks", len(self._ranks) + 1)
        # pieces of one owner, and of its own process or another one
        key = owner * 2 + known
        order = np.argsort(key, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            own = int(owner[some[0]])
            lane = lanes(begin[some], end[some])
            title, first = kind.title, kind.first
            if not known[some[0]]:
                title, first = f"{kind.other} rank {own}", first + 10_000 * places[own]
            tids = [
                self._thread(int(pid[some[0]]), title + f" {n + 1}" * (n > 0), first + n)
                for n in range(int(lane.max()) + 1)
            ]
            tid[some] = np.array(tids)[lane]
        return pid, tid


def _begun(of: MessageTimes, offset: int, sent: Ints64) -> Ints64:
    """(n,) ns at which the work for each message begins. Where the last one ends at that moment, by
    rounding a nanosecond later, it is that."""
    begin = np.minimum(offset + nanoseconds(of.sent - of.work), sent - SHORTEST)
    order = np.lexsort((sent, of.sender))
    before, after = order[:-1], order[1:]
    late = (of.sender[before] == of.sender[after]) & (sent[before] - begin[after] == 1)
    begin[after[late]] += 1
    return begin
