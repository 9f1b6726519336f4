"""A timeline of some ranks, their messages and the links, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import InputError, Problem
from simshuffle.exports.chosen import Chosen, check_ranks, chosen
from simshuffle.exports.export import Options, Tell
from simshuffle.exports.link_counters import write_counters
from simshuffle.exports.simulated import TracedEpoch, simulated, stored
from simshuffle.exports.source import Source
from simshuffle.exports.trace_file import Ints, TraceFile, lanes, nanoseconds, quoted, trace_file
from simshuffle.results.report import LABELS
from simshuffle.results.timeline import HIDDEN
from simshuffle.results.waiting import wait_causes
from simshuffle.sim.recorder import MessageTimes
from simshuffle.version import __version__

LABEL_OF = {phase: label for label, phases in LABELS.items() for phase in phases}
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


def write(source: Source, path: Path, options: Options, tell: Tell) -> Sequence[str]:
    """See `Writer.write`.

    Raises:
        InputError: a rank that does not exist, or tables that are not what is simulated now.
    """
    wanted, messages = check_ranks(options.ranks, source.scenario.world_size), options.messages
    if messages not in {None, "chosen", "none"}:
        rule, remedy = "must be chosen or none", "Write one of them, or leave it out."
        raise InputError(Problem("--messages", rule, repr(messages), remedy), "command line")
    alone = messages == "none" and source.result is not None
    found = stored(source) if alone else simulated(source, lambda done: tell(SIMULATED * done))
    epochs = list(found)
    ranks = chosen(wanted, [epoch.phases for epoch in epochs])
    with trace_file(path) as file:
        trace = _Trace(file, source, ranks, epochs[0].begin)
        for number, epoch in enumerate(epochs, 1):
            last = number == len(epochs) or epochs[number].begin > epoch.end
            trace.epoch(epoch, messages=messages != "none", last=last)
            tell(SIMULATED + (1 - SIMULATED) * number / len(epochs))
        about = _about(source, epochs, ranks)
        file.finish(about)
    return [
        f"{len(ranks.ranks)} of {source.scenario.world_size} ranks, {trace.arrows} messages,"
        f" {file.events} events.",
        *(f"Epoch {epoch.epoch}: {text}." for epoch in epochs for text in _said(epoch)),
    ]


def _said(epoch: TracedEpoch) -> list[str]:
    """What is to be said of an epoch: how it was come by, and what of it was simulated."""
    window = epoch.window
    left_out = window["iterations"] - window["iterations_simulated"]
    shown = (
        f"{window['iterations_simulated']} of {window['iterations']} iterations, which the time"
        f" tolerance asks for; {window['steady_first']} to {window['steady_last']} stand for those"
        " left out"
    )
    return [*([epoch.same] if epoch.same else []), *([shown] if left_out else [])]


def _about(source: Source, epochs: Sequence[TracedEpoch], ranks: Chosen) -> dict[str, Any]:
    """What is said beside the events."""
    return {
        "simshuffle": __version__,
        "source": source.reference,
        "run": source.run,
        "world_size": source.scenario.world_size,
        "ranks": list(ranks.ranks),
        "epochs": {str(epoch.epoch): _said(epoch) for epoch in epochs},
        "zero_s": epochs[0].begin,
    }


@dataclass(frozen=True)
class _End:
    """Where one end of some messages is shown: (n,) process, thread, and ns of its slice."""

    pid: Ints
    tid: Ints
    begin: Ints
    end: Ints


class _Trace:
    """The lanes of a file.

    Args:
        file: where they go.
        source: the run.
        ranks: those that are shown.
        zero: s of simulated time at which the file begins.
    """

    def __init__(self, file: TraceFile, source: Source, ranks: Chosen, zero: float) -> None:
        self._file, self._source, self._ranks, self._zero = file, source, ranks, zero
        self.arrows = 0
        self._threads: dict[tuple[int, str], int] = {}
        # numbers of processes end in the number of the rank; threads go on after them
        self._offset = max(10_000, 10 ** len(str(source.scenario.world_size)))
        self.cluster, self._others = self._offset - 2, self._offset - 1
        self._next_tid = 10 * self._offset
        host_of = source.scenario.cluster.host_of(source.scenario.world_size)
        self._process(self.cluster, f"{source.run}: links and file system", 0)
        for place, rank in enumerate(ranks.ranks, 1):
            name = f"rank {rank} on host {host_of[rank]}{ranks.about(rank)}"
            self._process(self.pid(rank), name, place)
            self._thread(self.pid(rank), "training loop", 0, self.pid(rank))
        self._places = len(ranks.ranks) + 1

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        return int(self._offset + rank)

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
        facts = {key: value for key, value in epoch.window.items() if key not in {"run", "seed"}}
        args = json.dumps({**_plain(facts), "about": "; ".join(_said(epoch))})
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
        few = len(self._ranks.ranks) <= HOSTS_UP_TO
        processes = {rank: self.pid(rank) for rank in self._ranks.ranks if few}
        write_counters(self._file, epoch.record, offset, self.cluster, processes, last=last)

    # -------------------------------------------------------------------------------- what ranks do

    def _phases(self, epoch: TracedEpoch) -> None:
        """The loops of the ranks, and what overlaps them."""
        phases = epoch.phases
        cause: Sequence[str] = [""] * len(phases)
        last = np.full(len(phases), -1)
        if phases["rank"].nunique() == self._source.scenario.world_size:
            cause, last = wait_causes(phases, LABELS)
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
        table = table[table["rank"].isin(self._ranks.ranks)]
        hidden = table["phase"].isin(HIDDEN)
        self._loops(table[~hidden], epoch.epoch)
        for place, phase in enumerate(HIDDEN, 1):
            some = table[table["phase"] == phase].sort_values(["rank", "begin"])
            tids = {
                rank: self._thread(self.pid(rank), OVERLAPPING[phase], place)
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
        shown = np.array(self._ranks.ranks)
        of = messages.of(np.isin(messages.sender, shown) | np.isin(messages.receiver, shown))
        count = len(of.sent)
        if not count:
            return
        sent, received = (offset + nanoseconds(when) for when in (of.sent, of.received))
        worked = _begun(of, offset, sent)
        received = np.maximum(received, sent + 1)
        known = [np.isin(side, shown) for side in (of.sender, of.receiver)]
        sending = self._placed(of.sender, of.receiver, known[0], (worked, sent), "sending")
        flying = self._placed(of.receiver, of.sender, known[1], (sent, received), "receiving")
        about = zip(
            of.iteration.tolist(),
            of.number.tolist(),
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
        pairs = list(zip(of.sender.tolist(), of.receiver.tolist(), strict=True))
        for end, names in (
            (sending, [f'"{a} to {b}"' for a, b in pairs]),
            (flying, [f'"{b} from {a}"' for a, b in pairs]),
        ):
            category = ['"message"'] * count
            self._file.slices(end.pid, end.tid, end.begin, end.end, names, category, args)
        numbers = self.arrows + np.arange(count)
        ends = [(end.pid, end.tid, end.end - 1) for end in (sending, flying)]
        self._file.arrows(numbers, ends, "message")
        self.arrows += count

    def _placed(
        self,
        rank: Ints,
        partner: Ints,
        known: Any,
        bounds: tuple[Ints, Ints],
        what: str,
    ) -> _End:
        """Where one end of every message is shown: in the process of its rank, or among the other
        ranks beside those that its partner has there.

        Args:
            rank, partner: (n,) of this end, and of the other one.
            known: (n,) whether the rank is shown.
            bounds: of the slices (ns).
            what: the ranks of this end do.
        """
        pid = np.where(known, self._offset + rank, self._others)
        owner = np.where(known, rank, partner)
        tid = np.zeros(len(rank), np.int64)
        places = {own: place for place, own in enumerate(self._ranks.ranks)}
        if not known.all() and (self._others, "") not in self._threads:
            self._threads[self._others, ""] = self._others
            self._process(self._others, "other ranks", self._places)
        key = owner * 2 + known
        order = np.argsort(key, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            own, inside = int(owner[some[0]]), bool(known[some[0]])
            lane = lanes(bounds[0][some], bounds[1][some])
            side = {"sending": "to", "receiving": "from"}[what]
            title = f"messages {'sent' if what == 'sending' else 'coming in'}"
            first = 10 if what == "sending" else 1000
            if not inside:
                title, first = f"{what} {side} rank {own}", first + 10_000 * places[own]
            tids = [
                self._thread(int(pid[some[0]]), title + f" {n + 1}" * (n > 0), first + n)
                for n in range(int(lane.max()) + 1)
            ]
            tid[some] = np.array(tids)[lane]
        return _End(pid, tid, *bounds)


def _begun(of: MessageTimes, offset: int, sent: Ints) -> Ints:
    """(n,) ns at which the work for each message begins. Where the last one ends at that moment, by
    rounding a nanosecond later, it is that."""
    begin = np.minimum(offset + nanoseconds(of.sent - of.work), sent - SHORTEST)
    order = np.lexsort((sent, of.sender))
    before, after = order[:-1], order[1:]
    late = (of.sender[before] == of.sender[after]) & (sent[before] - begin[after] == 1)
    begin[after[late]] += 1
    return begin


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values without those of numpy, and without numbers that JSON does not have."""
    out = {}
    for key, value in values.items():
        plain = value.item() if hasattr(value, "item") else value
        out[key] = None if isinstance(plain, float) and not np.isfinite(plain) else plain
    return out
