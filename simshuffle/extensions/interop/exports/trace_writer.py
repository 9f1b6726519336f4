"""Write the lanes of a timeline: loops of ranks, messages with arrows, counters of
links.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from simshuffle.extensions.interop.exports.source import ExportedRun
from simshuffle.extensions.interop.exports.trace_file import (
    TraceFile,
    assign_lanes,
    nanoseconds,
    quote_texts,
    write_counters,
)
from simshuffle.extensions.interop.exports.traced import TracedEpoch, describe_epoch
from simshuffle.job.sim.recorder import MessageTimes
from simshuffle.report.report import ALL_LABELS
from simshuffle.report.timeline import HIDDEN
from simshuffle.report.waiting import wait_causes
from simshuffle.spec.arrays import Ints64

LABEL_OF = {phase: label for label, phases in ALL_LABELS.items() for phase in phases}
LABEL_OF |= dict(zip(HIDDEN, ("EXCHANGE", "GE+WU"), strict=True))
TITLE_OF_HIDDEN = {
    "exchange_hidden": "exchange hidden: its messages are in flight",
    "allreduce_hidden": "allreduce hidden: gradients are in flight",
}
MIN_SLICE_NS = 2
"""Fewest ns of the slice of a sender's work: an arrow needs a place inside."""
MAX_RANKS_WITH_HOSTS = 64
"""Most shown ranks whose hosts have counters. Of more ranks no host has any: counters
would be most of the file.
"""


class _MessageEnd(NamedTuple):
    """Titles and positions of the lanes for one end of messages: sending or receiving."""

    title: str  # of its lanes in the process of a rank that is shown
    other_title: str  # those beside a rank that is shown
    preposition: str  # what stands between this rank and its partner
    first_index: int  # place of the first lane


class _MessageSlices(NamedTuple):
    """The slices at one end of n messages, and whose they are."""

    rank: Ints64  # (n,) rank at this end
    partner: Ints64  # (n,) rank at the other end
    begin: Ints64  # (n,) ns
    end: Ints64  # (n,) ns
    kind: _MessageEnd


SENDING = _MessageEnd("messages sent", "sending to", "to", 10)
RECEIVING = _MessageEnd("messages coming in", "receiving from", "from", 1000)


class TraceWriter:
    """Writes the lanes of ranks, messages and links to a trace file.

    The constructor already writes the names of the cluster's process and of the shown
    ranks' processes. ``num_arrows`` counts the messages written so far.

    Args:
        file: the trace file.
        source: the run.
        shown_ranks: the ranks that have lanes, from top to bottom, each with what is
            special about it, in brackets, or ''.
        start_s: simulated s at which the file begins.
    """

    def __init__(
        self,
        file: TraceFile,
        source: ExportedRun,
        shown_ranks: dict[int, str],
        start_s: float,
    ) -> None:
        self._file = file
        self._source = source
        self._shown_ranks = shown_ranks
        self._position_of_rank = {rank: index for index, rank in enumerate(shown_ranks)}
        self._start_s = start_s
        self.num_arrows = 0
        self._threads: dict[tuple[int, str], int] = {}
        # numbers of processes end in the number of the rank; threads go on after them
        self._first_rank_process = max(
            10_000, 10 ** len(str(source.scenario.world_size))
        )
        self.cluster_process = self._first_rank_process - 2
        self._other_process = self._first_rank_process - 1
        self._next_thread = 10 * self._first_rank_process
        host_of = source.scenario.cluster.host_of(source.scenario.world_size)
        self._name_process(
            self.cluster_process, f"{source.run}: links and file system", 0
        )
        for position, (rank, note) in enumerate(shown_ranks.items(), 1):
            name = f"rank {rank} on host {host_of[rank]}{note}"
            process = self._first_rank_process + rank
            self._name_process(process, name, position)
            self._find_thread(process, "training loop", 0, process)

    def _name_process(self, pid: int, name: str, position: int) -> None:
        """Name a process, and set its position among the processes."""
        self._file.add_metadata("process_name", pid, pid, name=name)
        self._file.add_metadata("process_sort_index", pid, pid, sort_index=position)

    def _find_thread(
        self, pid: int, name: str, position: int, tid: int | None = None
    ) -> int:
        """Return the thread of a process with this name, which is made if it is new.

        Args:
            pid: the process.
            name: name of the thread.
            position: position of a new thread among the threads of the process.
            tid: number of a new thread; None for the next free one.
        """
        key = pid, name
        if key not in self._threads:
            if tid is None:
                tid = self._next_thread
                self._next_thread += 1
            self._threads[key] = tid
            self._file.add_metadata("thread_name", pid, tid, name=name)
            self._file.add_metadata("thread_sort_index", pid, tid, sort_index=position)
        return self._threads[key]

    def write_epoch(self, epoch: TracedEpoch, *, messages: bool, is_last: bool) -> None:
        """Write the lanes of an epoch: itself, phases, messages and counters; the last
        two only if its record is known.

        The slice of the epoch holds its row of the sources table, with null for
        numbers that are not finite. Hosts have counters only where at most
        `MAX_RANKS_WITH_HOSTS` ranks are shown.

        Args:
            epoch: the epoch.
            messages: whether its messages are written, if they are known.
            is_last: True if no other epoch begins where this one ends.
        """
        begin = nanoseconds(epoch.begin - self._start_s)
        end = nanoseconds(epoch.end - self._start_s)
        facts = {
            key: None
            if isinstance(value, float) and not np.isfinite(value)
            else value  # as JSON
            for key, value in epoch.window.items()
            if key not in {"run", "seed"}
        }
        args = json.dumps({**facts, "about": "; ".join(describe_epoch(epoch))})
        tid = self._find_thread(self.cluster_process, "epochs", 0, self.cluster_process)
        name = quote_texts([f"epoch {epoch.epoch}"])
        self._file.add_slices(
            self.cluster_process,
            tid,
            begin.reshape(1),
            end.reshape(1),
            names=name,
            category=['"epoch"'],
            args=[args],
        )
        self._write_epoch_phases(epoch)
        if epoch.record is None:
            return
        offset = int(begin)
        if messages:
            self._write_messages(epoch.record.messages, offset, epoch.epoch)
        processes: dict[int, int] = {}
        if len(self._shown_ranks) <= MAX_RANKS_WITH_HOSTS:
            processes = {
                rank: self._first_rank_process + rank for rank in self._shown_ranks
            }
        write_counters(
            self._file,
            epoch.record,
            offset,
            self.cluster_process,
            processes,
            is_last=is_last,
        )

    # -------------------------------------------------------------------------------- what ranks do

    def _write_epoch_phases(self, epoch: TracedEpoch) -> None:
        """Write the loops of the shown ranks, and the communication that their
        computing hides.

        Causes of waits are there only if the table has all ranks.
        """
        phases = epoch.phases
        causes: Sequence[str] = [""] * len(phases)
        last_ranks = np.full(len(phases), -1)
        if phases["rank"].nunique() == self._source.scenario.world_size:
            causes, last_ranks = wait_causes(phases, ALL_LABELS)
        table = pd.DataFrame(
            {
                "iteration": phases["iteration"].to_numpy(),
                "rank": phases["rank"].to_numpy(),
                "phase": phases["phase"].astype(str).to_numpy(object),
                "begin": nanoseconds(phases["start_s"] - self._start_s),
                "end": nanoseconds(phases["end_s"] - self._start_s),
                "nbytes": phases["nbytes"].to_numpy(),
                "cause": causes,
                "last": last_ranks,
            }
        )
        table = table[table["rank"].isin(list(self._shown_ranks))]
        is_hidden = table["phase"].isin(HIDDEN)
        self._write_loops(table[~is_hidden], epoch.epoch)
        for position, phase in enumerate(HIDDEN, 1):
            phase_rows = table[table["phase"] == phase].sort_values(["rank", "begin"])
            tids = {
                rank: self._find_thread(
                    self._first_rank_process + rank, TITLE_OF_HIDDEN[phase], position
                )
                for rank in phase_rows["rank"].unique().tolist()
            }
            self._write_phases(
                phase_rows, phase_rows["rank"].map(tids).to_numpy(), epoch.epoch
            )

    def _write_loops(self, table: pd.DataFrame, epoch: int) -> None:
        """Write the iterations of the ranks, with their phases inside.

        Phases of iteration 0, before or after all iterations, lie in no iteration.
        """
        table = table.sort_values(["rank", "begin", "end"], kind="stable")
        phases_of_iteration = table[table["iteration"] > 0].groupby(
            ["rank", "iteration"], sort=True
        )
        iterations = phases_of_iteration.agg(
            begin=("begin", "min"), end=("end", "max")
        ).reset_index()
        pid = self._first_rank_process + iterations["rank"].to_numpy(np.int64)
        iteration_numbers = iterations["iteration"].tolist()
        self._file.add_slices(
            pid,
            pid,
            iterations["begin"].to_numpy(),
            iterations["end"].to_numpy(),
            names=[f'"iteration {number}"' for number in iteration_numbers],
            category=['"iteration"'] * len(iterations),
            args=[
                f'{{"epoch":{epoch},"iteration":{number}}}'
                for number in iteration_numbers
            ],
        )
        self._write_phases(
            table, self._first_rank_process + table["rank"].to_numpy(np.int64), epoch
        )

    def _write_phases(self, table: pd.DataFrame, tid: Any, epoch: int) -> None:
        """Write a slice for each phase of a table.

        Args:
            table: phases, with begin and end in ns. Bytes of 0, a cause '' and a last
                rank of -1 are left out of the slice.
            tid: (n,) thread of each phase.
            epoch: number of the epoch, from 1.
        """
        names = table["phase"].tolist()
        columns = (
            table[name].tolist() for name in ("iteration", "nbytes", "cause", "last")
        )
        args = [
            f'{{"epoch":{epoch},"iteration":{iteration}'
            + (f',"bytes":{nbytes:.0f}' if nbytes else "")
            + (f',"cause":"{cause}"' if cause else "")
            + (f',"waits for rank":{last_rank}' if last_rank >= 0 else "")
            + "}"
            for iteration, nbytes, cause, last_rank in zip(*columns, strict=True)
        ]
        self._file.add_slices(
            self._first_rank_process + table["rank"].to_numpy(np.int64),
            tid,
            table["begin"].to_numpy(),
            table["end"].to_numpy(),
            names=quote_texts(names),
            category=quote_texts([LABEL_OF[name] for name in names]),
            args=args,
        )

    # ------------------------------------------------------------------------------------- messages

    def _write_messages(self, messages: MessageTimes, offset: int, epoch: int) -> None:
        """Write the messages that a shown rank sends or receives, with arrows from
        senders' work to receivers.

        A message without a time in flight is drawn with 1 ns.

        Args:
            messages: all messages of the epoch.
            offset: ns at which the epoch begins in the file.
            epoch: number of the epoch, from 1.
        """
        shown_ranks = np.array(list(self._shown_ranks))
        shown_messages = messages.select(
            np.isin(messages.sender, shown_ranks)
            | np.isin(messages.receiver, shown_ranks)
        )
        count = len(shown_messages.sent)
        if not count:
            return
        sent = offset + nanoseconds(shown_messages.sent)
        received = np.maximum(offset + nanoseconds(shown_messages.received), sent + 1)
        work_begin = _work_starts(shown_messages, offset, sent)
        columns = zip(
            shown_messages.iteration.tolist(),
            shown_messages.index.tolist(),
            shown_messages.sender.tolist(),
            shown_messages.receiver.tolist(),
            shown_messages.nbytes.tolist(),
            ((shown_messages.received - shown_messages.sent) * 1e6).tolist(),
            strict=True,
        )
        args = [
            f'{{"epoch":{epoch},"iteration":{iteration},"number":{index + 1},"sender":{sender},'
            f'"receiver":{receiver},"bytes":{nbytes:.0f},"in flight (us)":{flight_us:.3f}}}'
            for iteration, index, sender, receiver, nbytes, flight_us in columns
        ]
        sender = shown_messages.sender
        receiver = shown_messages.receiver
        arrow_ends = []
        sides = (
            _MessageSlices(sender, receiver, work_begin, sent, SENDING),
            _MessageSlices(receiver, sender, sent, received, RECEIVING),
        )
        # names of threads come before the slices in them
        threads = [self._assign_threads(slices) for slices in sides]
        for slices, (pid, tid) in zip(sides, threads, strict=True):
            pairs = zip(slices.rank.tolist(), slices.partner.tolist(), strict=True)
            names = [
                f'"{rank} {slices.kind.preposition} {partner}"'
                for rank, partner in pairs
            ]
            category = ['"message"'] * count
            self._file.add_slices(
                pid,
                tid,
                slices.begin,
                slices.end,
                names=names,
                category=category,
                args=args,
            )
            arrow_ends.append((pid, tid, slices.end - 1))
        self._file.add_arrows(self.num_arrows + np.arange(count), arrow_ends, "message")
        self.num_arrows += count

    def _assign_threads(self, slices: _MessageSlices) -> tuple[Ints64, Ints64]:
        """Return (n,) process and (n,) thread for one end of every message.

        The process is that of the end's rank if that rank is shown. Else it is the
        process of the other ranks, where each shown partner has threads of its own.
        Processes and threads that are new get their names in the file.
        """
        is_shown = np.isin(slices.rank, list(self._shown_ranks))
        pid = np.where(
            is_shown, self._first_rank_process + slices.rank, self._other_process
        )
        owner = np.where(is_shown, slices.rank, slices.partner)
        tid = np.zeros(len(slices.rank), np.int64)
        if not is_shown.all() and (self._other_process, "") not in self._threads:
            self._threads[self._other_process, ""] = self._other_process
            self._name_process(
                self._other_process, "other ranks", len(self._shown_ranks) + 1
            )

        # rows of one owner, and of its own process or another one, in each piece
        key = owner * 2 + is_shown
        order = np.argsort(key, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(key[order])) + 1):
            lane = assign_lanes(slices.begin[rows], slices.end[rows])
            title, position = self._lane_title(
                slices.kind, int(owner[rows[0]]), is_shown[rows[0]]
            )
            tids = [
                self._find_thread(
                    int(pid[rows[0]]),
                    title + f" {index + 1}" * (index > 0),
                    position + index,
                )
                for index in range(int(lane.max()) + 1)
            ]
            tid[rows] = np.array(tids)[lane]
        return pid, tid

    def _lane_title(
        self, kind: _MessageEnd, owner: int, is_own: bool
    ) -> tuple[str, int]:
        """Return title and position of the first lane of a shown rank's messages.

        Args:
            kind: which end of the messages it is.
            owner: the shown rank.
            is_own: True in the rank's process, False in the process of the other ranks.
        """
        if is_own:
            return kind.title, kind.first_index
        position = kind.first_index + 10_000 * self._position_of_rank[owner]
        return f"{kind.other_title} rank {owner}", position


def _work_starts(messages: MessageTimes, offset: int, sent: Ints64) -> Ints64:
    """Return (n,) ns at which the work for each message begins, at least `MIN_SLICE_NS`
    before the message is sent.

    Where rounding puts the begin one nanosecond before the end of the sender's previous
    message, the begin is moved to that end.

    Args:
        messages: the messages.
        offset: ns at which the epoch begins in the file.
        sent: (n,) ns at which each message is sent.
    """
    begin = np.minimum(
        offset + nanoseconds(messages.sent - messages.work), sent - MIN_SLICE_NS
    )
    # rows by sender, then by moment: neighbours are a sender's consecutive messages
    order = np.lexsort((sent, messages.sender))
    previous_rows = order[:-1]
    next_rows = order[1:]
    has_same_sender = messages.sender[previous_rows] == messages.sender[next_rows]
    is_overlapping = has_same_sender & (sent[previous_rows] - begin[next_rows] == 1)
    begin[next_rows[is_overlapping]] += 1
    return begin
