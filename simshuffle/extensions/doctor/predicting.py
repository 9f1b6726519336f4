"""Predict a recorded training with other numbers of ranks, on its own host or on a
machine.

The scenario of the training is simulated as `simshuffle run` does it, so that the
prediction can be repeated from its files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from simshuffle.errors import InputError, SimshuffleError, refuse
from simshuffle.extensions.doctor.fit import fit
from simshuffle.extensions.doctor.fitted import ACCELERATORS, FittedTraining
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.scenario import Scenario, from_dict, machine_of
from simshuffle.report import report
from simshuffle.spec.overrides import keys_overlap
from simshuffle.studies.mechanisms import hiding
from simshuffle.studies.mechanisms.verb import HidingOptions
from simshuffle.studies.simulation import study as simulation
from simshuffle.studies.simulation.verb import RunOptions
from simshuffle.study import engine
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import Schema, amount, count, share, text
from simshuffle.study.study import Result

if TYPE_CHECKING:
    from rich.table import Table

HIDDEN = "authors"
"""The variant of partial local shuffle whose largest hidden fraction is searched: its
authors'.
"""
READ, DECODE = "read", "decode"
"""Names of the two waits of a rank for its own batch."""
OWN_WORK = ("FW+BW", "IMPT")
"""Parts of an iteration in which a rank does not wait."""
RANKS = Schema(
    {
        "ranks": count("M"),
        "step_s": amount(
            "s of an iteration, mean of the last epoch", head="step (s)", look=".3g"
        ),
        "epoch_s": amount("of the last epoch", head="epoch (s)", look=".4g"),
        "interval": text("90 % interval of the epoch, s", head="90 % (s)"),
        "stall": text("what ranks wait for most, and its share", head="waits for"),
        "hidden": share(
            "largest Q that costs nothing", empty=True, head="hidden Q", look=".3g"
        ),
        "next": text(
            "with twice the ranks, the slowest resource, and its time over that of computing",
            head="at twice M",
        ),
    }
)


@dataclass(frozen=True)
class RanksPrediction:
    """The predicted times of a training with one number of ranks."""

    ranks: int  # number of ranks
    iterations: int  # of the last epoch
    epoch_s: float  # of the last epoch, which is the most like all that follow
    # low end of the 90 % interval of ``epoch_s``; None if not requested
    low_s: float | None
    high_s: float | None  # its high end
    # mean s of an iteration that go into each part: `OWN_WORK`, and "read", "decode" or "wait for
    # NAME", which ranks wait for
    parts_s: Mapping[str, float]
    bottleneck: str  # what bounds the epoch
    # largest exchange fraction that costs nothing; None if not known
    hidden: float | None
    next: str  # resource with the least room at twice the ranks; '' if there is no place for them
    next_share: float | None  # its time over that of computing; None without a name

    @property
    def step_s(self) -> float:
        """Mean seconds of an iteration of the last epoch, waits included."""
        return self.epoch_s / self.iterations

    @property
    def stall(self) -> tuple[str, float]:
        """Name of what ranks wait for most, without "wait for", and its share of the
        epoch; 'nothing' and 0 if they wait for nothing.
        """
        waits_s = {
            part: seconds
            for part, seconds in self.parts_s.items()
            if part not in OWN_WORK
        }
        longest = max(waits_s, key=lambda part: waits_s[part])
        share = waits_s[longest] / self.step_s
        return (
            (longest.removeprefix("wait for "), share)
            if share > 0
            else ("nothing", 0.0)
        )

    @property
    def interval(self) -> str:
        """The ends of the 90 % interval of the epoch as text, in s but without the
        unit; '' without one.
        """
        if self.low_s is None or self.high_s is None:
            return ""
        return f"{self.low_s:.3g} to {self.high_s:.3g}"

    def __str__(self) -> str:
        interval = f" (90 %: {self.interval} s)" if self.interval else ""
        stall, share = self.stall
        waits = f", {share:.0%} of it waiting for {stall}" if share else ""
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return f"with {ranks} an epoch takes {self.epoch_s:.3g} s{interval}{waits}"


@dataclass(frozen=True)
class Prediction:
    """The predictions of a training, and the scenarios that were simulated for them."""

    machine: str  # its name; 'this host' for that of the record
    ranks: Sequence[RanksPrediction]  # the fewest ranks first
    source: str  # the record: its command, host and number of batches
    recorded: Sequence[int]  # numbers of ranks that were recorded
    notes: Sequence[str]  # sentences on what is assumed
    files: Mapping[str, str]  # texts of scenarios by the names of their files

    @property
    def verdict(self) -> str:
        """The sentences on the largest number of ranks, and on the record and the
        number of assumptions that they rest on.
        """
        largest = self.ranks[-1]
        next_limit = ""
        if largest.next_share is not None:
            times = f"{largest.next_share:.2g} times the time of computing"
            next_limit = f"; with twice as many, {largest.next} alone takes {times}"
        assumptions = (
            f", and on {len(self.notes)} assumptions (below)" if self.notes else ""
        )
        numbers = " and ".join(map(str, self.recorded))
        ranks = f"{numbers} rank{'s' * (max(self.recorded) > 1)}"
        basis = f"The prediction rests on the {self.source}, with {ranks}{assumptions}."
        return f"On {self.machine}, {largest}{next_limit}. {basis}"

    def parts(self) -> list[str | Table]:
        """Return what a terminal shows: the verdict, the table of ranks without columns
        that are empty in all rows, and the notes.
        """
        rows = []
        for prediction in self.ranks:
            stall, stall_share = prediction.stall
            share = prediction.next_share
            row = {
                "ranks": prediction.ranks,
                "step_s": prediction.step_s,
                "epoch_s": prediction.epoch_s,
                "interval": prediction.interval,
                "stall": f"{stall}, {stall_share:.0%}",
                "hidden": prediction.hidden,
                "next": "" if share is None else f"{prediction.next}, {share:.2g}",
            }
            rows.append(row)
        filled = {
            name
            for row in rows
            for name, value in row.items()
            if value not in (None, "")
        }
        columns = [name for name in RANKS.columns if name in filled]
        title = f"This training on {self.machine}, the batch of a rank as recorded"
        return [
            self.verdict,
            RANKS.listing(RANKS.framed(rows), title, columns),
            *self.notes,
        ]

    def as_json(self) -> dict[str, Any]:
        """Return all fields and the verdict as plain values, in s and shares; of the
        scenarios the names of the files alone.
        """
        return {
            "verdict": self.verdict,
            "machine": self.machine,
            "source": self.source,
            "recorded": [*self.recorded],
            "ranks": [
                {**asdict(prediction), "step_s": prediction.step_s}
                for prediction in self.ranks
            ],
            "notes": [*self.notes],
            "files": sorted(self.files),
        }

    def write(self, folder: Path) -> list[Path]:
        """Write the scenarios into a folder that is there, each a file for `simshuffle
        run`, and return the paths; files of these names are overwritten.
        """
        for name, content in self.files.items():
            (folder / name).write_text(content, encoding="utf-8")
        return [folder / name for name in self.files]


def predict(
    record: Record | Sequence[Record],
    machine: str | Path | None,
    ranks: Sequence[int],
    overrides: Mapping[str, Any] = {},
    *,
    interval: bool = True,
    include: Sequence[Path] = (),
    hidden: bool = True,
) -> Prediction:
    """Predict a training that was recorded, once for each distinct number of ranks, by
    simulating it.

    Args:
        record: one, or several of the same training with several numbers of ranks.
        machine: its name or file; None for the host of the record.
        ranks: numbers of them. The batch of a rank and the data set stay as recorded.
        overrides: further values of the scenarios by dotted key.
        interval: whether epochs have 90 % intervals.
        include: fragments of measured values, as `simshuffle machine probe` writes
            them.
        hidden: whether on a machine the largest hidden exchange fraction is searched,
            which takes some ten simulations for each number of ranks above 1.

    Returns:
        The predictions, the fewest ranks first, and the scenarios.

    Raises:
        InputError: no rank is asked for, or a number below 1; `fit` refuses the records
            or a fragment; there is no such machine, or it has fewer GPUs than ranks; or
            an override is not valid.
    """
    if not ranks or min(ranks) < 1:
        remedy = "For example --ranks 8,64."
        refuse(
            "--ranks",
            "must be numbers, at least 1",
            str([*ranks]),
            remedy,
            COMMAND_LINE,
        )
    training = fit(record, include)

    def scenario_of(num_ranks: int) -> Scenario:
        """Return the scenario of a number of ranks; InputError if there is no place."""
        document = training.on(num_ranks, machine)
        return from_dict(document, f"{training.name} with {num_ranks} ranks", overrides)

    scenarios = [scenario_of(num_ranks) for num_ranks in sorted(set(ranks))]
    options = RunOptions(scenario=scenarios, interval=interval, timeline="ranks")
    result = engine.run(*simulation.request(options))
    notes = [*training.notes, *_state_assumptions(training, machine, overrides)]
    predictions = []
    for scenario in scenarios:
        is_searched = hidden and machine is not None and scenario.world_size > 1
        fraction = _largest_hidden_fraction(scenario, notes) if is_searched else None
        next_limit = _next_limit(scenario_of, scenario.world_size)
        predictions.append(_predict_ranks(result, scenario, fraction, next_limit))
    head = "".join(f"# {line}\n" for line in (f"{training.source}.", *notes))
    return Prediction(
        machine="this host" if machine is None else machine_of(str(machine)).name,
        ranks=predictions,
        source=training.source,
        recorded=training.ranks,
        notes=notes,
        files={
            f"{scenario.name}.yaml": head + scenario.to_yaml() for scenario in scenarios
        },
    )


class NextLimit(NamedTuple):
    """The resource with the least room beside computing."""

    name: str  # '' if there is no place for so many ranks
    share: float | None  # its time over that of computing; None without a name


def _predict_ranks(
    result: Result, scenario: Scenario, hidden: float | None, next_limit: NextLimit
) -> RanksPrediction:
    """Return what a scenario takes in the last epoch of its run.

    Args:
        result: of the runs of all numbers of ranks.
        scenario: of one number of ranks.
        hidden: its largest exchange fraction that costs nothing; None if not known.
        next_limit: with twice its ranks.
    """
    epochs = result.tables["epochs"]
    last = epochs[epochs["world_size"] == scenario.world_size].iloc[-1]

    def rows_of_last(name: str) -> pd.DataFrame:
        """Return the rows of a table on the last epoch of the run."""
        table = result.tables[name]
        is_last = (table["run"] == last["run"]) & (table["epoch"] == last["epoch"])
        return pd.DataFrame(table[is_last])

    # waits for the own batch are divided among reading and decoding as these took on average
    phases = rows_of_last("iterations").groupby("phase", observed=True)["mean_s"].sum()
    loads = phases.reindex(["io", "decode"], fill_value=0.0)
    decode_share = loads["decode"] / loads.sum() if loads.sum() else 0.0
    parts_s: dict[str, float] = {}
    causes = report.by_cause(rows_of_last("breakdown"))[["label", "waiting", "seconds"]]
    for label, waiting, seconds in causes.to_numpy().tolist():
        iteration_s = seconds / last["iterations"]
        if label == "I/O" and not waiting:
            parts_s[READ] = (1 - decode_share) * iteration_s
            parts_s[DECODE] = decode_share * iteration_s
        else:
            parts_s[report.part_name(label, waiting)] = iteration_s
    intervals = result.meta.get("intervals", {}).get("runs", {}).values()
    ends: Mapping[str, float] = next(
        (
            interval
            for interval in intervals
            if interval["ranks"] == scenario.world_size
        ),
        {},
    )
    return RanksPrediction(
        ranks=scenario.world_size,
        iterations=int(last["iterations"]),
        epoch_s=float(last["epoch_s"]),
        low_s=ends.get("low"),
        high_s=ends.get("high"),
        parts_s=parts_s,
        bottleneck=bounds(scenario).bottleneck,
        hidden=hidden,
        next=next_limit.name,
        next_share=next_limit.share,
    )


def _largest_hidden_fraction(scenario: Scenario, notes: list[str]) -> float | None:
    """Return the largest exchange fraction that costs nothing; None, with a note, where
    it cannot be simulated, as on hosts that cannot hold the samples.

    Args:
        scenario: of the training.
        notes: is extended.
    """
    try:
        options = HidingOptions(
            scenario=scenario, variant=(HIDDEN,), world_size=(scenario.world_size,)
        )
        result = engine.run(hiding.STUDY, hiding.request(options))
    except SimshuffleError as error:
        notes.append(f"{scenario.world_size} ranks: no hidden fraction. {error}")
        return None
    return float(result.tables["limits"]["exchange_fraction"].iloc[0])


def _next_limit(scenario_of: Callable[[int], Scenario], ranks: int) -> NextLimit:
    """Return the resource that takes longest beside computing with twice the ranks,
    allreduce and exchange included; no name and None if the machine has no place for so
    many.

    Args:
        scenario_of: gives the scenario of a number of ranks.
        ranks: their number before it is doubled.
    """
    try:
        doubled = bounds(scenario_of(2 * ranks))
    except InputError:
        return NextLimit("", None)
    seconds_of = {
        **doubled.resources,
        "allreduce": doubled.allreduce,
        "exchange": doubled.exchange.seconds,
    }
    slowest = max(seconds_of, key=lambda name: seconds_of[name])
    return NextLimit(slowest, seconds_of[slowest] / doubled.compute)


def _state_assumptions(
    training: FittedTraining, machine: str | Path | None, overrides: Mapping[str, Any]
) -> list[str]:
    """Return sentences on what a prediction assumes beside what the record says.

    On the host of the record they are `FittedTraining.host_notes`.

    Args:
        training: as it was recorded.
        machine: of the prediction; None for the host of the record.
        overrides: values of the scenarios by dotted key.
    """
    if machine is None:
        return [*training.host_notes]
    accelerator = machine_of(str(machine)).host.accelerator
    key = f"{ACCELERATORS}.{accelerator}"
    sentences = []
    if not training.reads_files:
        sentences.append(
            "The record has no bytes of samples: on a machine, samples are taken to be in memory."
        )
    if not any(keys_overlap(name, key) for name in overrides):
        sentences.append(
            f"A step is taken to last as long on {accelerator} as on {training.device}: set"
            f" {key}.forward and .backward if you know better."
        )
        if training.device.startswith("cpu"):
            sentences.append(
                f"The record is of a CPU: {accelerator} computes faster, and its steps are taken to"
                " vary by the default."
            )
    return sentences
