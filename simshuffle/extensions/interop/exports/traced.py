"""What a timeline shows of a run: its epochs, simulated again and recorded, or from stored tables
alone; and the ranks, by number or by what they are like."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.interop.exports.source import ExportedRun, spans
from simshuffle.job.sim.recorder import EpochRecord, Recorder
from simshuffle.job.sim.simulate import simulate_epochs
from simshuffle.report.kept_phases import iteration_means, sample_ranks, seconds_by_rank
from simshuffle.report.timeline import EXCLUSIVE, PHASES
from simshuffle.spec.library import suggest_nearest
from simshuffle.version import __version__

ALIKE = 1e-6
"""Share of an epoch by which moments may differ that were simulated from another epoch on: their
sums are rounded elsewhere."""
KEYS = ["iteration", "rank", "phase", "start_s"]
ALL_UP_TO = 16
"""Ranks of a run that are all shown if nobody says which."""
WORDS = ("slowest", "fastest", "sample", "all")


@dataclass(frozen=True)
class TracedEpoch:
    """An epoch."""

    epoch: int  # from 1
    phases: pd.DataFrame  # columns `simshuffle.report.timeline.PHASE_COLUMNS`
    window: dict[Hashable, Any]  # its row of the sources table: what was simulated of it
    record: EpochRecord | None  # its messages and links; None if they are not known
    same: str  # how it compares with what is stored, as a text

    @property
    def begin(self) -> float:
        """When it begins (s)."""
        return float(self.phases["start_s"].min())

    @property
    def end(self) -> float:
        """When it ends (s)."""
        return float(self.phases["end_s"].max())


def simulated(source: ExportedRun, tell: Callable[[float], None]) -> Iterator[TracedEpoch]:
    """Simulate the wanted epochs again. What was stored of them has to come out again. Only the
    epochs from the first that is wanted on are simulated, but all of them where one decides how the
    next is simulated. Raises an InputError if something else comes out than is stored. Raises a
    SimshuffleError if it cannot be simulated."""
    scenario, last = source.scenario, source.epochs[-1]
    together = scenario.time_tolerance > 0 or scenario.workload.loader.across_epochs
    first = 1 if together else source.epoch
    recorder = Recorder(_length(source))
    share = (scenario.epochs + 1 - first) / (last + 1 - first)
    epochs = simulate_epochs(
        scenario, source.run, lambda done: tell(min(done * share, 1.0)), first, recorder
    )
    for timeline in epochs:
        epoch = int(timeline.sources["epoch"].iloc[0])
        if epoch in source.epochs:
            same = "" if source.result is None else _checked(source, timeline.phases, epoch)
            window = timeline.sources.to_dict("records")[0]
            yield TracedEpoch(epoch, timeline.phases, window, recorder.record, same)
        if epoch == last:
            return


def stored(source: ExportedRun) -> Iterator[TracedEpoch]:
    """The wanted epochs as the result has them. Raises an InputError if there is no result, or it
    has no timeline."""
    if source.result is None:
        rule, remedy = "needs a result of 'simshuffle run'", "Leave --messages out."
        refuse("--messages", rule, "none", remedy, source.reference)
    for epoch in source.epochs:
        phases = source.stored("timeline", epoch)
        if phases.empty:
            rule, remedy = "needs a timeline, which the result does not have", "Leave it out."
            refuse("--messages", rule, "none", remedy, source.reference)
        window = source.stored("sources", epoch).to_dict("records")[0]
        yield TracedEpoch(epoch, phases, window, None, "read from the result, not simulated again")


def _length(source: ExportedRun) -> float:
    """How long an epoch is, about (s): as stored, or what computing alone takes."""
    if source.result is not None:
        length = float(source.stored("epochs", source.epoch)["epoch_s"].iloc[0])
    else:
        scenario, workload = source.scenario, source.scenario.workload
        times = workload.model.accelerators[scenario.cluster.host.accelerator]
        batch = np.full(1, workload.local_batch_size)
        each = float((times.forward_of(batch) + times.backward_of(batch))[0])
        length = each * workload.iterations(scenario.world_size)
    return max(length, 1e-6)


def _checked(source: ExportedRun, phases: pd.DataFrame, epoch: int) -> str:
    """See that what is stored of an epoch is what was simulated; returns how alike they are."""
    begin = float(phases["start_s"].min())
    length = float(phases["end_s"].max()) - begin
    rows = source.stored("timeline", epoch)
    if rows.empty:
        made = iteration_means(phases, seconds_by_rank(phases))
        rows, columns, shift = source.stored("iterations", epoch), ["mean_s", "least_s"], 0.0
        keys = ["iteration", "phase"]
    else:
        made = phases[phases["rank"].isin(rows["rank"].unique())]
        columns, keys = ["start_s", "end_s"], KEYS
        # the sample of ranks begins with the epoch, as all ranks do
        shift = float(rows["start_s"].min()) - begin
    made, rows = _sorted(made, keys), _sorted(rows, keys)
    alike = len(made) == len(rows) and all(
        (made[key].astype(str).to_numpy() == rows[key].astype(str).to_numpy()).all()
        for key in keys
        if not key.endswith("_s")
    )
    apart = (
        max(float(np.abs(made[c].to_numpy() + shift - rows[c].to_numpy()).max()) for c in columns)
        if alike
        else float("inf")
    )
    if apart > ALIKE * length:
        assert source.result is not None  # noqa: S101 - else nothing is stored
        by = source.result.meta.get("versions", {}).get("simshuffle", "another version")
        rule = f"simshuffle {__version__} must simulate epoch {epoch} as it is stored"
        remedy = "Simulate it again with 'run', or export what is stored with --messages none."
        refuse("timeline.parquet", rule, f"another, made by {by}", remedy, source.reference)
    exact = "to the last bit" if apart == 0 else f"within {apart:.0e} s"
    what = "the timeline" if "rank" in keys else "means over ranks"
    return f"simulated again, {what} as stored {exact}"


def _sorted(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    return table.assign(phase=table["phase"].astype(str)).sort_values(keys, kind="stable")


def check_ranks(text: str | None, world_size: int) -> list[str]:
    """The parts of what is requested, before anything is simulated. Raises an InputError if one of
    them names no rank."""
    if text is None:
        return ["all"] if world_size <= ALL_UP_TO else ["slowest", "fastest", "sample"]
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part in WORDS:
            continue
        ends = spans(part)
        if ends is None:
            remedy = suggest_nearest(part, [*WORDS, "0", "4-7"])
            refuse(
                "--ranks", "must be ranks, or words for them", repr(part), remedy, "command line"
            )
        low, high = ends[0]
        if not low <= high < world_size:
            rule = f"must be ranks from 0 to {world_size - 1}"
            refuse("--ranks", rule, part, "Name one of them.", "command line")
    return parts


def chosen_ranks(parts: Sequence[str], tables: Sequence[pd.DataFrame]) -> dict[int, str]:
    """The ranks that are requested (``parts`` of `check_ranks`), in their order, the slowest and
    the fastest first if they are among many; and in brackets what is special about each, else ''.
    ``tables`` are the phases of every epoch, perhaps of some ranks only. Raises an InputError if a
    rank is not in them."""
    seconds = sum(seconds_by_rank(table).sum(axis=0) for table in tables)
    there = np.unique(tables[0]["rank"].to_numpy())
    own = [name in EXCLUSIVE and not name.startswith("wait_") for name in PHASES]
    busy = np.asarray(seconds)[:, own].sum(axis=1)[there]
    slowest, fastest = int(there[busy.argmax()]), int(there[busy.argmin()])
    known = there.tolist()
    whole = len(known) == known[-1] + 1
    words: dict[str, Iterable[int]] = {
        "slowest": [slowest],
        "fastest": [fastest],
        "sample": sample_ranks(seconds_by_rank(tables[0])) if whole else known,
        "all": known,
    }
    ranks: dict[int, None] = {}
    for part in parts:
        ends = spans(part) or ()
        ranks |= dict.fromkeys(words.get(part, ()))
        ranks |= dict.fromkeys(rank for low, high in ends for rank in range(low, high + 1))
    if missing := [str(rank) for rank in ranks if rank not in set(known)]:
        listed = ", ".join(map(str, known[:20]))
        listed += f" and {len(known) - 20} more" * (len(known) > 20)
        rule = f"must be ranks of which the result has the timeline: {listed}"
        remedy = "Leave --messages none out."
        refuse("--ranks", rule, ", ".join(missing[:3]), remedy, "command line")
    special = {} if slowest == fastest else {slowest: " (slowest)", fastest: " (fastest)"}
    first = [rank for rank in (slowest, fastest) if rank in ranks and len(ranks) > ALL_UP_TO // 4]
    return {rank: special.get(rank, "") for rank in (*first, *sorted(ranks))}
