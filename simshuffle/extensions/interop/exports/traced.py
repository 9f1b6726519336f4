"""Collect the epochs and ranks of a timeline: simulated again, or from stored tables
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.interop.exports.source import ExportedRun, parse_spans
from simshuffle.job.sim.recorder import EpochRecord, Recorder
from simshuffle.job.sim.simulate import simulate_epochs
from simshuffle.report.kept_phases import iteration_means, sample_ranks, seconds_by_rank
from simshuffle.report.timeline import EXCLUSIVE, PHASES
from simshuffle.spec.library import suggest_nearest
from simshuffle.version import __version__

MAX_RELATIVE_DIFFERENCE = 1e-6
"""Share of an epoch by which moments may differ that were simulated from another epoch
on: their sums are rounded elsewhere.
"""
ROW_KEYS = ["iteration", "rank", "phase", "start_s"]
MAX_DEFAULT_RANKS = 16
"""Ranks of a run that are all shown if nobody says which."""
RANK_WORDS = ("slowest", "fastest", "sample", "all")


@dataclass(frozen=True)
class TracedEpoch:
    """An epoch of the timeline."""

    epoch: int  # from 1
    # columns `simshuffle.report.timeline.PHASE_COLUMNS`; of stored tables perhaps of some ranks
    phases: pd.DataFrame
    # its row of the sources table: what was simulated of it
    window: dict[Hashable, Any]
    record: EpochRecord | None  # its messages and links; None if they are not known
    # how it compares with what is stored, as a text; '' without a result
    comparison: str

    @property
    def begin(self) -> float:
        """Simulated s at which the epoch begins, from the first simulated epoch on."""
        return float(self.phases["start_s"].min())

    @property
    def end(self) -> float:
        """Simulated s at which the epoch ends, from the first simulated epoch on."""
        return float(self.phases["end_s"].max())


def describe_epoch(epoch: TracedEpoch) -> list[str]:
    """Return texts on how an epoch compares with the stored one, and on the part
    simulated; each only if there is anything to say.
    """
    window = epoch.window
    window_text = (
        f"{window['iterations_simulated']} of {window['iterations']} iterations were simulated,"
        f" by the time tolerance; {window['steady_first']} to {window['steady_last']} stand for the"
        " others"
    )
    num_left_out = window["iterations"] - window["iterations_simulated"]
    return [*filter(None, [epoch.comparison]), *([window_text] if num_left_out else [])]


def simulate_again(
    source: ExportedRun, tell: Callable[[float], None]
) -> Iterator[TracedEpoch]:
    """Simulate the requested epochs again, and compare them with what is stored, if the
    run has a result.

    Yields the requested epochs, ascending, with messages and links.

    Only the epochs from the first requested one on are simulated, but all epochs where
    one decides how the next is simulated.

    Args:
        source: the run.
        tell: receives the share that is simulated, from 0 to 1.

    Raises:
        InputError: the simulation differs from what is stored, by more than
            `MAX_RELATIVE_DIFFERENCE` of an epoch.
        SimshuffleError: the scenario cannot be simulated.
    """
    scenario = source.scenario
    last_epoch = source.epochs[-1]
    needs_all_epochs = (
        scenario.time_tolerance > 0 or scenario.workload.loader.across_epochs
    )
    first_epoch = 1 if needs_all_epochs else source.epoch
    recorder = Recorder(_approximate_seconds(source))
    share = (scenario.epochs + 1 - first_epoch) / (last_epoch + 1 - first_epoch)
    epochs = simulate_epochs(
        scenario,
        source.run,
        lambda progress: tell(min(progress * share, 1.0)),
        first_epoch=first_epoch,
        recorder=recorder,
    )
    for timeline in epochs:
        epoch = int(timeline.sources["epoch"].iloc[0])
        if epoch in source.epochs:
            comparison = ""
            if source.result is not None:
                comparison = _compare_with_stored(source, timeline.phases, epoch)
            window = timeline.sources.to_dict("records")[0]
            yield TracedEpoch(
                epoch, timeline.phases, window, recorder.record, comparison
            )
        if epoch == last_epoch:
            return


def read_stored(source: ExportedRun) -> Iterator[TracedEpoch]:
    """Yield the requested epochs as the result's tables have them, without messages
    and links.

    The timeline of a result may have a sample of the ranks only.

    Raises:
        InputError: there is no result, or it has no timeline.
    """
    if source.result is None:
        rule = "needs a result of 'simshuffle run'"
        remedy = "Leave --messages out."
        refuse("--messages", rule, "none", remedy, source.reference)
    for epoch in source.epochs:
        phases = source.stored_rows("timeline", epoch)
        if phases.empty:
            rule = "needs a timeline, but the result has none"
            remedy = "Leave --messages out."
            refuse("--messages", rule, "none", remedy, source.reference)
        window = source.stored_rows("sources", epoch).to_dict("records")[0]
        yield TracedEpoch(
            epoch, phases, window, None, "read from the result, not simulated again"
        )


def _approximate_seconds(source: ExportedRun) -> float:
    """Return s of the first requested epoch, roughly: as stored, or the time of
    forward and backward passes alone; at least 1e-6.
    """
    if source.result is not None:
        seconds = float(source.stored_rows("epochs", source.epoch)["epoch_s"].iloc[0])
    else:
        scenario = source.scenario
        workload = source.scenario.workload
        times = workload.model.accelerators[scenario.cluster.host.accelerator]
        batch = np.full(1, workload.local_batch_size)
        seconds_per_iteration = float(
            (times.forward_of(batch) + times.backward_of(batch))[0]
        )
        seconds = seconds_per_iteration * workload.iterations(scenario.world_size)
    return max(seconds, 1e-6)


def _compare_with_stored(source: ExportedRun, phases: pd.DataFrame, epoch: int) -> str:
    """Check that an epoch was simulated as it is stored, and return a text on how close
    they are.

    Phases are compared for the ranks that the stored timeline has. Without a stored
    timeline the means and minima over ranks of each iteration's phases are compared.

    Args:
        source: the run, with its result.
        phases: the phases that were simulated.
        epoch: number of the epoch, from 1.

    Raises:
        InputError: they differ by more than `MAX_RELATIVE_DIFFERENCE` of the epoch.
    """
    begin = float(phases["start_s"].min())
    epoch_seconds = float(phases["end_s"].max()) - begin
    stored_rows = source.stored_rows("timeline", epoch)
    if stored_rows.empty:
        stored_rows = source.stored_rows("iterations", epoch)
        simulated_rows = iteration_means(phases, seconds_by_rank(phases))
        keys = ["iteration", "phase"]
        columns = ["mean_s", "least_s"]
        stored_shift_s = 0.0
    else:
        simulated_rows = phases[phases["rank"].isin(stored_rows["rank"].unique())]
        keys = ROW_KEYS
        columns = ["start_s", "end_s"]
        # the sample of ranks begins with the epoch, as all ranks do
        stored_shift_s = float(stored_rows["start_s"].min()) - begin

    simulated_rows = _sort_rows(simulated_rows, keys)
    stored_rows = _sort_rows(stored_rows, keys)
    difference = _largest_difference(
        simulated_rows, stored_rows, keys, columns, stored_shift_s
    )
    if difference > MAX_RELATIVE_DIFFERENCE * epoch_seconds:
        assert source.result is not None  # noqa: S101 - else nothing is stored
        version = source.result.meta.get("versions", {}).get(
            "simshuffle", "another version"
        )
        rule = f"simshuffle {__version__} must simulate epoch {epoch} as the result stores it"
        remedy = "Simulate again with 'run', or export the stored tables with --messages none."
        refuse(
            "timeline.parquet",
            rule,
            f"another timeline, made by {version}",
            remedy,
            source.reference,
        )
    accuracy = "to the last bit" if difference == 0 else f"within {difference:.0e} s"
    subject = "the timeline" if "rank" in keys else "means over ranks"
    return f"simulated again; {subject} as stored {accuracy}"


def _largest_difference(
    simulated_rows: pd.DataFrame,
    stored_rows: pd.DataFrame,
    keys: Sequence[str],
    columns: Sequence[str],
    stored_shift_s: float,
) -> float:
    """Return the largest difference in s of sorted rows; infinity if their number or
    their keys differ.

    Args:
        simulated_rows: rows that were simulated.
        stored_rows: rows of the result.
        keys: columns that identify a row; moments among them, which end in _s, may
            differ.
        columns: columns in s that are compared.
        stored_shift_s: s that are added to what was simulated.
    """
    if len(simulated_rows) != len(stored_rows):
        return float("inf")
    for key in keys:
        if key.endswith("_s"):
            continue
        simulated_key = simulated_rows[key].astype(str).to_numpy()
        stored_key = stored_rows[key].astype(str).to_numpy()
        if not (simulated_key == stored_key).all():
            return float("inf")
    differences = [
        simulated_rows[column].to_numpy()
        + stored_shift_s
        - stored_rows[column].to_numpy()
        for column in columns
    ]
    return max(float(np.abs(values).max()) for values in differences)


def _sort_rows(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Return the table sorted by ``keys``, with phases as text."""
    return table.assign(phase=table["phase"].astype(str)).sort_values(
        keys, kind="stable"
    )


def check_ranks(text: str | None, world_size: int) -> list[str]:
    """Return the parts of a request for ranks, such as 'slowest' and '0-3', after a
    check.

    Args:
        text: the request, parts separated by commas. None stands for all of at most
            `MAX_DEFAULT_RANKS` ranks, else for the slowest, the fastest and a sample.
        world_size: number of ranks.

    Raises:
        InputError: a part is neither one of `RANK_WORDS` nor a rank or span of ranks
            below ``world_size``.
    """
    if text is None:
        return (
            ["all"]
            if world_size <= MAX_DEFAULT_RANKS
            else ["slowest", "fastest", "sample"]
        )
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if part in RANK_WORDS:
            continue
        spans = parse_spans(part)
        if spans is None:
            rule = "must be numbers of ranks, or words for ranks"
            remedy = suggest_nearest(part, [*RANK_WORDS, "0", "4-7"])
            refuse("--ranks", rule, repr(part), remedy, "command line")
        low, high = spans[0]
        if not low <= high < world_size:
            rule = f"must be ranks from 0 to {world_size - 1}"
            refuse("--ranks", rule, part, "Name one of these.", "command line")
    return parts


def choose_ranks(
    parts: Sequence[str], tables: Sequence[pd.DataFrame]
) -> dict[int, str]:
    """Return the requested ranks, each with a note in brackets that says why it is
    special, or ''.

    Ranks ascend, but the slowest and the fastest, if requested, come first among more
    than `MAX_DEFAULT_RANKS` / 4 ranks. Slowest and fastest are by the s of their own
    work without waits, summed over the epochs, and without note if they are one rank.

    Args:
        parts: parts of the request, from `check_ranks`.
        tables: the phases of every epoch, perhaps of some ranks only. Then 'sample' and
            'all' are the ranks that they have.

    Raises:
        InputError: a rank is not in the first table.
    """
    seconds = sum(seconds_by_rank(table).sum(axis=0) for table in tables)
    ranks_present = np.unique(tables[0]["rank"].to_numpy())
    is_own_work = [
        name in EXCLUSIVE and not name.startswith("wait_") for name in PHASES
    ]
    # (ranks present,) s of each rank's own work, over all its phases but waits
    busy = np.asarray(seconds)[:, is_own_work].sum(axis=1)[ranks_present]
    slowest = int(ranks_present[busy.argmax()])
    fastest = int(ranks_present[busy.argmin()])
    known_ranks = ranks_present.tolist()
    has_all_ranks = len(known_ranks) == known_ranks[-1] + 1
    ranks_of_word: dict[str, Iterable[int]] = {
        "slowest": [slowest],
        "fastest": [fastest],
        "sample": sample_ranks(seconds_by_rank(tables[0]))
        if has_all_ranks
        else known_ranks,
        "all": known_ranks,
    }
    ranks: dict[int, None] = {}
    for part in parts:
        spans = parse_spans(part) or ()
        ranks |= dict.fromkeys(ranks_of_word.get(part, ()))
        ranks |= dict.fromkeys(
            rank for low, high in spans for rank in range(low, high + 1)
        )
    if missing := [str(rank) for rank in ranks if rank not in set(known_ranks)]:
        listed = ", ".join(map(str, known_ranks[:20]))
        listed += f" and {len(known_ranks) - 20} more" * (len(known_ranks) > 20)
        rule = f"must be ranks whose timeline the result has: {listed}"
        remedy = "Leave --messages none out."
        refuse("--ranks", rule, ", ".join(missing[:3]), remedy, "command line")
    note_of_rank = (
        {} if slowest == fastest else {slowest: " (slowest)", fastest: " (fastest)"}
    )
    first_ranks = [
        rank
        for rank in (slowest, fastest)
        if rank in ranks and len(ranks) > MAX_DEFAULT_RANKS // 4
    ]
    return {rank: note_of_rank.get(rank, "") for rank in (*first_ranks, *sorted(ranks))}
