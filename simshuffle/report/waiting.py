"""The causes of waiting of ranks, at allreduces and barriers.

The idea is that of the delay analysis of D. Böhme et al., "Identifying the root causes
of wait states in large-scale parallel applications", ICPP 2010: a wait is caused by the
work that the last rank to arrive did beyond that of the waiting rank, since they last
were together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simshuffle.report.timeline import PHASES, locate_epochs, phase_numbers
from simshuffle.spec.arrays import Flags, Floats, Ints, Ints64

TIE_SHARE = 1e-6
"""Share of the longest wait of a step by which ranks that come last together may
differ.
"""
WAITED_FOR = 0.05
"""Share of an epoch that ranks must wait for a host, beyond what they wait for others,
to name it (chosen).
"""
MAX_HOSTS = 3  # that are named of an epoch
SURE_ERRORS = 4.0
"""Standard errors by which a host must come last more often than by chance (normal
tail: 1 host of 30,000 does so by chance).
"""


def waiting_by_cause(
    phases: pd.DataFrame,
    labels: Mapping[str, tuple[str, ...]],
    keys: Sequence[str] = ("run", "epoch"),
    weights: Floats | None = None,
) -> pd.DataFrame:
    """Return the seconds that ranks wait for one another in each epoch, mean over
    ranks.

    Columns ``keys``, label (where it is booked), cause (the label waited for), seconds;
    rows of more than 0 s only. All ranks leave an allreduce together. Until the next
    one, a rank's own phases and its waiting last as long as those of any other. So a
    rank waits for the time that the last rank to arrive spent more, label by label;
    labels in which the last rank spent less have no part in it. After an allreduce
    there is nothing but the exchange to wait for.

    Args:
        phases: of one or more epochs, with all their ranks.
        labels: the phases of each label, those of waiting where it is booked.
        keys: columns that tell epochs apart, the run first.
        weights: (rows of ``phases``,) how many times each row counts, equal in all rows
            of an iteration; None for once.
    """
    first_rows, _ = locate_epochs(phases, keys)
    rows = list_waits(phases, labels, keys, weights)
    epochs = phases[list(keys)].iloc[first_rows[[row.epoch for row in rows]]]
    table = epochs.reset_index(drop=True).astype({keys[0]: str})
    return table.assign(
        label=[row.label for row in rows],
        cause=[row.cause for row in rows],
        seconds=[row.seconds for row in rows],
    )


class LabelRow(NamedTuple):
    """The seconds of an epoch at a label that have one cause, mean over ranks."""

    epoch: int  # as `locate_epochs` numbers epochs
    label: str
    cause: str
    seconds: float


def list_waits(
    phases: pd.DataFrame,
    labels: Mapping[str, tuple[str, ...]],
    keys: Sequence[str],
    weights: Floats | None,
) -> list[LabelRow]:
    """List the rows of `waiting_by_cause`, whose arguments are these."""
    if weights is not None:
        phases = phases.assign(weight=weights)
    first_rows, epoch_of_row = locate_epochs(phases, keys)
    rows = []
    for epoch in range(len(first_rows)):
        # rows of a single epoch are not copied: there may be a million
        table = phases if len(first_rows) == 1 else phases[epoch_of_row == epoch]
        for label, seconds in _causes_of_epoch(table, labels).items():
            rows += [
                LabelRow(epoch, label, cause, value)
                for cause, value in zip(labels, seconds.tolist(), strict=True)
                if value > 0
            ]
    return rows


def list_work(
    means: pd.DataFrame, labels: Mapping[str, Sequence[str]]
) -> list[LabelRow]:
    """List the seconds of each label in each epoch, without its phases of waiting.

    ``means`` are from `simshuffle.report.report.phase_seconds`.
    """
    seconds = means[list(PHASES)].to_numpy()
    rows = []
    for label, phases in labels.items():
        work = [phase for phase in phases if not phase.startswith("wait_")]
        columns = [PHASES.index(phase) for phase in work]
        for epoch, value in enumerate(seconds[:, columns].sum(axis=1).tolist()):
            rows.append(LabelRow(epoch, label, "", value))
    return rows


def wait_causes(
    phases: pd.DataFrame, labels: Mapping[str, tuple[str, ...]]
) -> tuple[list[str], Ints64]:
    """Return the cause of each wait of an epoch, with all its ranks.

    Returns:
        (rows,) the label that has the largest part in the waiting of its rank in that
        iteration (see `waiting_by_cause`), '' for rows that are no waiting; and (rows,)
        the rank that comes last, -1 where it is not known, or is the waiting rank:
        after an allreduce there is only the exchange to wait for, and a barrier has a
        latency.
    """
    epoch = waits(phases, labels)
    names = list(labels)
    rank = phases["rank"].to_numpy()
    main_label = epoch.share.argmax(axis=2)[epoch.step, rank]
    # what no work explains is by rounding, or by what ranks do alike: it is caused by the same
    main_label = np.where(
        epoch.share.sum(axis=2)[epoch.step, rank] > 0, main_label, epoch.label
    )
    main_label = np.where(
        epoch.later, _label_of_phase(labels)[PHASES.index("exchange")], main_label
    )
    cause = [
        names[label_index] if is_idle else ""
        for label_index, is_idle in zip(main_label, epoch.idle, strict=True)
    ]
    last = epoch.last[epoch.step]
    return cause, np.where(epoch.idle & ~epoch.later & (last != rank), last, -1)


@dataclass(frozen=True)
class Waits:
    """The waiting of one epoch, by row and by step."""

    # (rows,) the iteration that each phase belongs to, see `_steps`
    step: NDArray[np.integer[Any]]
    label: NDArray[np.int8]  # (rows,) its label
    idle: Flags  # (rows,) whether it is waiting
    # (rows,) whether it starts with the allreduce of its iteration, or later
    later: Flags
    # (steps, ranks, labels) s of waiting before the allreduce, after it, and in all
    before_allreduce: Floats
    after_allreduce: Floats
    idling: Floats
    share: Floats  # (steps, ranks, labels) which part of ``before_allreduce`` each label causes
    # (steps,) the rank that comes last: it waits least before the allreduce
    last: NDArray[np.intp]

    def weights(self, table: pd.DataFrame) -> Floats:
        """Return (steps,) how many times each step counts, from a column ``weight`` of
        the rows if there is one.
        """
        weight = np.ones(len(self.before_allreduce))
        if "weight" in table:
            weight[self.step] = table["weight"]
        return weight


def _causes_of_epoch(
    table: pd.DataFrame, labels: Mapping[str, tuple[str, ...]]
) -> dict[str, Floats]:
    """Return (labels,) s of waiting by cause, mean over ranks, for every label by name.

    Those of a label add up to all the waiting that is booked to it; they are 0 for a
    label without waiting. A column ``weight`` of ``table`` says how many times each row
    counts.
    """
    epoch = waits(table, labels)
    names = list(labels)
    _, ranks, _ = epoch.before_allreduce.shape
    exchange = _label_of_phase(labels)[PHASES.index("exchange")]
    weight = epoch.weights(table)
    before_allreduce = epoch.before_allreduce * weight[:, None, None]
    after_allreduce = epoch.after_allreduce * weight[:, None, None]
    causes = np.einsum("srb,srl->bl", before_allreduce, epoch.share) / ranks
    causes[exchange, exchange] += after_allreduce.sum() / ranks
    # what no work explains, by rounding or by the clocks of real ranks, is caused by the same
    booked = (epoch.idling * weight[:, None, None]).sum(axis=(0, 1)) / ranks
    explained = causes.sum(axis=1)
    scale = np.divide(booked, explained, out=np.zeros_like(booked), where=explained > 0)
    causes *= scale[:, None]
    causes[np.diag_indices(len(names))] += np.where(explained > 0, 0.0, booked)
    return dict(zip(names, causes, strict=True))


def waits(table: pd.DataFrame, labels: Mapping[str, tuple[str, ...]]) -> Waits:
    """Return the waiting of one epoch, with all its ranks.

    ``labels`` is as in `waiting_by_cause`. Lateness at the begin of a step counts as
    work of its rank: as a checkpoint's, as far as that was longer, else as the
    exchange's.
    """
    phase = phase_numbers(table)
    rank = table["rank"].to_numpy()
    iteration = table["iteration"].to_numpy()
    start = table["start_s"].to_numpy(float)
    end = table["end_s"].to_numpy(float)
    step = _steps(iteration, phase)
    ranks = int(rank.max()) + 1
    steps = int(step.max()) + 1
    names = list(labels)
    # an epoch of thousands of ranks has a million rows: half as wide where all places fit
    step = step.astype(np.int32 if steps * ranks * len(names) < 2**31 else np.int64)
    label = _label_of_phase(labels)
    exchange, saving = (
        label[PHASES.index(name)] for name in ("exchange", "checkpoint")
    )
    flat_index = step * ranks + rank
    allreduce_start = np.full(steps * ranks, np.inf)
    is_allreduce = phase == PHASES.index("allreduce")
    np.minimum.at(allreduce_start, flat_index[is_allreduce], start[is_allreduce])
    is_later = start >= allreduce_start[flat_index]
    is_idle = np.array([name.startswith("wait_") for name in PHASES])[phase]

    def total(chosen: Flags) -> Floats:
        kind = flat_index[chosen] * len(names)
        kind += label[phase[chosen]]
        length = steps * ranks * len(names)
        seconds = np.bincount(kind, end[chosen] - start[chosen], length)
        # of no rows numpy counts whole numbers
        return seconds.astype(np.float64, copy=False).reshape(steps, ranks, len(names))

    work = total(~is_later & ~is_idle & (label[phase] >= 0))
    # a rank that is late when a step begins is so by the checkpoint and the exchange after the
    # allreduce before it
    end_of_step = np.full(steps * ranks, -np.inf)
    exclusive = label[phase] >= 0
    np.maximum.at(end_of_step, flat_index[exclusive], end[exclusive])
    delay = _delays(end_of_step.reshape(steps, ranks)[1:-1])
    saving_delay = np.zeros(delay.shape)
    if saving >= 0:
        saved = total(label[phase] == saving)[1:-1, :, saving]
        saving_delay = np.minimum(saved - saved.min(axis=1, keepdims=True), delay)
    work[2:, :, exchange] += delay - saving_delay
    work[2:, :, max(saving, 0)] += saving_delay
    waited = total(~is_later & is_idle)
    last = waited.sum(axis=2).argmin(axis=1)
    return Waits(
        step,
        label[phase],
        is_idle,
        is_later,
        waited,
        total(is_later & is_idle),
        total(is_idle),
        _shares_of_cause(work, last),
        last,
    )


def _delays(end_of_step: Floats) -> Floats:
    """Return by how many s each rank is later than the first one, (steps, ranks).

    Args:
        end_of_step: (steps, ranks) s; -inf for a rank that takes no part in a step,
            which counts as early as the first.
    """
    takes_part = np.isfinite(end_of_step)
    earliest = np.where(takes_part, end_of_step, np.inf).min(axis=1, keepdims=True)
    end_of_step = np.where(takes_part, end_of_step, earliest)
    delay: Floats = end_of_step - end_of_step.min(axis=1, keepdims=True)
    return delay


def _shares_of_cause(work: Floats, last: Ints) -> Floats:
    """Return (steps, ranks, labels) shares in what the last rank works longer than each
    rank.

    0 where it works no longer in any label.

    Args:
        work: (steps, ranks, labels) s.
        last: (steps,) the rank for which the others wait.
    """
    excess = (work[np.arange(len(work)), last][:, None] - work).clip(min=0.0)
    total_excess = excess.sum(axis=2, keepdims=True)
    shares: Floats = np.zeros_like(excess)
    np.divide(excess, total_excess, out=shares, where=total_excess > 0)
    return shares


# ---------------------------------------------------------------------------- hosts waited for


def waits_by_host(
    phases: pd.DataFrame,
    labels: Mapping[str, tuple[str, ...]],
    host_of_rank: Ints,
    weights: Floats | None = None,
) -> tuple[Floats, Flags]:
    """Return the seconds that an average rank waits for each host in an epoch, and
    which hosts come last more often than by chance.

    All that ranks wait in a step is booked to the host of the rank that waits least in
    it, in equal parts if several ranks come last together. By chance each of H hosts is
    last in a step with probability 1 / H: over steps with waits w, that is W / H with
    the variance of ``sum(w**2) (1 - 1 / H) / H``.

    Args:
        phases: those of all ranks of one epoch.
        labels: as of `waiting_by_cause`.
        host_of_rank: (M,) number of the host of each rank, from 0 on.
        weights: as of `waiting_by_cause`.

    Returns:
        (hosts, labels) s, by the label that the last rank spent longer in; (hosts,)
        flags.
    """
    if weights is not None:
        phases = phases.assign(weight=weights)
    epoch = waits(phases, labels)
    weight_of_step = epoch.weights(phases)
    ranks = epoch.before_allreduce.shape[1]
    num_hosts = int(host_of_rank.max()) + 1
    exchange = _label_of_phase(labels)[PHASES.index("exchange")]

    seconds = np.zeros((num_hosts, len(labels)))
    wait_of_step = []
    host_is_last = []
    for waited, after_allreduce in (
        (epoch.before_allreduce, False),
        (epoch.after_allreduce, True),
    ):
        by_rank = waited.sum(axis=2)  # (steps, ranks) s
        longest = by_rank.max(axis=1, keepdims=True)
        is_last = by_rank <= by_rank.min(axis=1, keepdims=True) + TIE_SHARE * longest
        last_ranks = np.zeros((len(by_rank), num_hosts))
        np.add.at(last_ranks.T, host_of_rank[:ranks], is_last.T)
        part = last_ranks / last_ranks.sum(axis=1, keepdims=True)  # (steps, hosts)

        # (steps, labels) s that an average rank waits, by cause
        if after_allreduce:
            causes = np.zeros((len(by_rank), len(labels)))
            causes[:, exchange] = by_rank.mean(axis=1)
        else:
            causes = np.einsum("sr,srl->sl", by_rank, epoch.share) / ranks
        causes *= weight_of_step[:, None]
        seconds += part.T @ causes
        wait_of_step.append(causes.sum(axis=1))
        host_is_last.append(part)

    wait = np.concatenate(wait_of_step)
    part = np.concatenate(host_is_last)
    chance = 1.0 / num_hosts
    error = np.sqrt(chance * (1.0 - chance) * (wait**2).sum())
    return seconds, wait @ part - chance * wait.sum() > SURE_ERRORS * error


def hosts_waited_for(
    seconds: Floats,
    comes_last_often: Flags,
    epoch_s: float,
    names: Sequence[str],
    faulty: Collection[str],
    *,
    unshared_labels: Collection[int],
) -> list[dict[str, Any]]:
    """Return the hosts that an epoch waits for, worst first, as plain values.

    Only the `MAX_HOSTS` worst hosts are looked at. A host is named if ranks wait for
    it, beyond the median of the other hosts, for at least the share `WAITED_FOR` of the
    epoch. A host without a fault of its own must also come last more often than by
    chance, in something that a rank does alone: where ranks share a file system or
    cables, who is behind stays behind for a while, and is not the cause.

    Args:
        seconds: (hosts, labels) s, from `waits_by_host`.
        comes_last_often: (hosts,) flags, from `waits_by_host`.
        epoch_s: length of the epoch (s).
        names: of the hosts.
        faulty: the hosts that have a fault.
        unshared_labels: indices of the labels in which ranks share no resource.

    Returns:
        For each host its name (host), the index of the label that costs most (label),
        and the s that ranks wait for it beyond the median of the other hosts (seconds).
    """
    by_host = seconds.sum(axis=1)
    hosts = []
    for host in np.argsort(-by_host, kind="stable")[:MAX_HOSTS].tolist():
        other_hosts = np.delete(by_host, host)
        excess = (
            float(by_host[host] - np.median(other_hosts)) if len(other_hosts) else 0.0
        )
        label = int(seconds[host].argmax())
        is_cause = (bool(comes_last_often[host]) and label in unshared_labels) or names[
            host
        ] in faulty
        if is_cause and excess >= WAITED_FOR * epoch_s:
            hosts.append({"host": names[host], "label": label, "seconds": excess})
    return hosts


def name_hosts(links: pd.DataFrame, count: int) -> list[str]:
    """Return the names of the ``count`` hosts of a run in the order in which ranks fill
    them.

    The names are those of the devices in ``links``. They are 'number 0', 'number 1' and
    so on where no kind of device carried anything on all hosts.
    """
    for tier, devices in links.groupby("tier", observed=True, sort=False):
        hosts = [
            str(device).rpartition(f".{tier}")[0]
            for device in devices["link"].to_numpy()
        ]
        names = list(dict.fromkeys(host for host in hosts if host))
        if len(names) == count:
            return names
    return [f"number {index}" for index in range(count)]


def _steps(
    iteration: NDArray[np.integer[Any]], phase: NDArray[np.integer[Any]]
) -> NDArray[np.integer[Any]]:
    """Return (rows,) the iteration of each phase, from 1.

    Of phases without iteration, the importance pass is of the first one; all others are
    of one after the last.
    """
    is_before = phase == PHASES.index("importance")
    return np.where(
        iteration > 0, iteration, np.where(is_before, 1, iteration.max() + 1)
    )


def _label_of_phase(labels: Mapping[str, tuple[str, ...]]) -> NDArray[np.int8]:
    """Return (phases,) the index of the label of each phase; -1 for phases in no label."""
    label_index = np.full(len(PHASES), -1, np.int8)
    for index, phases in enumerate(labels.values()):
        for phase in phases:
            label_index[PHASES.index(phase)] = index
    return label_index
