"""What a training that was recorded would take with other numbers of ranks, on its own host or on a
machine: its scenario is simulated as `simshuffle run` does it, so that this can be repeated from
the files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from simshuffle.errors import InputError, SimshuffleError, refuse
from simshuffle.extensions.doctor.fit import fit
from simshuffle.extensions.doctor.fitted import ACCELERATORS, Fitted
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.scenario.scenario import Scenario, from_dict, machine_of
from simshuffle.report import report
from simshuffle.spec.overrides import related
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
"""The variant of partial local shuffle whose largest hidden fraction is searched: its authors'."""
READ, DECODE = "read", "decode"
"""What a rank waits for that waits for its own batch."""
OWN_WORK = ("FW+BW", "IMPT")
"""Parts of an iteration that are no waiting."""
RANKS = Schema(
    {
        "ranks": count("M"),
        "step_s": amount("of an iteration, mean of an epoch", head="step (s)", look=".3g"),
        "epoch_s": amount("of the last epoch", head="epoch (s)", look=".4g"),
        "interval": text("of 90 %, of the epoch", head="90 % (s)"),
        "stall": text("what ranks wait for most, and its share", head="waits for"),
        "hidden": share("largest Q that costs nothing", empty=True, head="hidden Q", look=".3g"),
        "next": text(
            "with twice the ranks, what takes longest of all but computing, over that",
            head="at twice M",
        ),
    }
)


@dataclass(frozen=True)
class Expected:
    """A number of ranks."""

    ranks: int
    iterations: int  # of an epoch
    epoch_s: float  # of the last epoch, which is the most like all that follow
    low_s: float | None  # ends of its 90 % interval, if that was asked for
    high_s: float | None
    parts_s: Mapping[str, float]  # of an iteration: what it goes into, and what ranks wait for
    bottleneck: str  # what bounds the epoch
    hidden: float | None  # largest exchange fraction that costs nothing; None if not known
    # with twice the ranks the resource with the least room, and its time over that of computing;
    # '' and None if there is no place for so many
    next: str
    next_share: float | None

    @property
    def step_s(self) -> float:
        """s of an iteration."""
        return self.epoch_s / self.iterations

    @property
    def stall(self) -> tuple[str, float]:
        """What ranks wait for most, and its share of the epoch."""
        waits = {name: of for name, of in self.parts_s.items() if name not in OWN_WORK}
        name = max(waits, key=lambda each: waits[each])
        share = waits[name] / self.step_s
        return (name.removeprefix("wait for "), share) if share > 0 else ("nothing", 0.0)

    @property
    def interval(self) -> str:
        """The ends of the interval (s) in words; '' without."""
        if self.low_s is None or self.high_s is None:
            return ""
        return f"{self.low_s:.3g} to {self.high_s:.3g}"

    def __str__(self) -> str:
        ends = f" (90 %: {self.interval} s)" if self.interval else ""
        stall, part = self.stall
        waits = f", {part:.0%} of it waiting for {stall}" if part else ""
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        return f"with {ranks} an epoch takes {self.epoch_s:.3g} s{ends}{waits}"


@dataclass(frozen=True)
class Prediction:
    """What is expected of a training, and the scenarios that say so."""

    machine: str  # its name; 'this host' for that of the record
    ranks: Sequence[Expected]
    source: str  # the record
    recorded: Sequence[int]  # numbers of ranks that it has
    notes: Sequence[str]
    files: Mapping[str, str]  # texts of scenarios by the names of their files

    @property
    def verdict(self) -> str:
        """A sentence on the most ranks, and what it rests on."""
        last, binds, assumed = self.ranks[-1], "", ""
        if last.next_share is not None:
            times = f"{last.next_share:.2g} times the time of computing"
            binds = f"; with twice as many, {last.next} alone takes {times}"
        if self.notes:
            assumed = f", and on {len(self.notes)} assumptions (below)"
        seen = f"{' and '.join(map(str, self.recorded))} rank{'s' * (max(self.recorded) > 1)}"
        basis = f"This rests on the {self.source}, with {seen}{assumed}."
        return f"On {self.machine}, {last}{binds}. {basis}"

    def parts(self) -> list[str | Table]:
        """What a terminal shows."""
        rows = [
            {
                "ranks": of.ranks,
                "step_s": of.step_s,
                "epoch_s": of.epoch_s,
                "interval": of.interval,
                "stall": f"{of.stall[0]}, {of.stall[1]:.0%}",
                "hidden": of.hidden,
                "next": "" if of.next_share is None else f"{of.next}, {of.next_share:.2g}",
            }
            for of in self.ranks
        ]
        there = {name for row in rows for name, value in row.items() if value not in (None, "")}
        columns = [name for name in RANKS.columns if name in there]
        title = f"This training on {self.machine}, the batch of a rank as recorded"
        return [self.verdict, RANKS.listing(RANKS.framed(rows), title, columns), *self.notes]

    def as_json(self) -> dict[str, Any]:
        """All as plain values, in s and shares."""
        rows = [{**asdict(of), "step_s": of.step_s} for of in self.ranks]
        known = {"machine": self.machine, "source": self.source, "recorded": [*self.recorded]}
        more = {"notes": [*self.notes], "files": sorted(self.files)}
        return {"verdict": self.verdict, **known, "ranks": rows, **more}

    def write(self, folder: Path) -> list[Path]:
        """Write the scenarios into a folder that is there, each a file for `simshuffle run`."""
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
    """Predict a training that was recorded.

    Args:
        record: one, or several of the same training with several numbers of ranks.
        machine: its name or file; None for the host of the record.
        ranks: numbers of them. The batch of a rank and the data set stay as recorded.
        overrides: further values of the scenarios by dotted key.
        interval: whether epochs have 90 % intervals.
        include: fragments of measured values, as `simshuffle machine probe` writes them.
        hidden: whether on a machine the largest hidden exchange fraction is searched, which takes
            some ten simulations for each number of ranks.

    Raises:
        InputError: a record has no steps or batches; there is no such machine, or it has fewer GPUs
            than ranks; or an override is not valid.
    """
    if not ranks or min(ranks) < 1:
        remedy = "For example --ranks 8,64."
        refuse("--ranks", "must be numbers, at least 1", str([*ranks]), remedy, COMMAND_LINE)
    found = fit(record, include)

    def scenario(number: int) -> Scenario:
        return from_dict(found.on(number, machine), f"{found.name} with {number} ranks", overrides)

    made = [scenario(number) for number in sorted(set(ranks))]
    options = RunOptions(scenario=made, interval=interval, timeline="ranks")
    result = engine.run(*simulation.request(options))
    notes = [*found.notes, *_taken_for_granted(found, machine, overrides)]
    expected = []
    for single in made:
        searched = hidden and machine is not None and single.world_size > 1
        fraction = _hidden(single, notes) if searched else None
        binds = _first_to_bind(scenario, single.world_size)
        expected.append(_expected(result, single, fraction, binds))
    head = "".join(f"# {line}\n" for line in (f"{found.source}.", *notes))
    return Prediction(
        machine="this host" if machine is None else machine_of(str(machine)).name,
        ranks=expected,
        source=found.source,
        recorded=found.ranks,
        notes=notes,
        files={f"{single.name}.yaml": head + single.to_yaml() for single in made},
    )


def _expected(
    result: Result, scenario: Scenario, hidden: float | None, binds: tuple[str, float | None]
) -> Expected:
    """A run of a result, by its last epoch."""
    ranks, epochs = scenario.world_size, result.tables["epochs"]
    last = epochs[epochs["world_size"] == ranks].iloc[-1]

    def own(name: str) -> pd.DataFrame:
        table = result.tables[name]
        mine = (table["run"] == last["run"]) & (table["epoch"] == last["epoch"])
        return pd.DataFrame(table[mine])

    phases = own("iterations").groupby("phase", observed=True)["mean_s"].sum()
    waited = phases.reindex(["io", "decode"], fill_value=0.0)
    decoding = waited["decode"] / waited.sum() if waited.sum() else 0.0
    parts: dict[str, float] = {}
    causes = report.by_cause(own("breakdown"))[["label", "waiting", "seconds"]]
    for label, waiting, seconds in causes.to_numpy().tolist():
        each = seconds / last["iterations"]
        if label == "I/O" and not waiting:
            parts |= {READ: (1 - decoding) * each, DECODE: decoding * each}
        else:
            parts[report.part_name(label, waiting)] = each
    known = result.meta.get("intervals", {}).get("runs", {}).values()
    ends: Mapping[str, float] = next((of for of in known if of["ranks"] == ranks), {})
    return Expected(
        ranks=ranks,
        iterations=int(last["iterations"]),
        epoch_s=float(last["epoch_s"]),
        low_s=ends.get("low"),
        high_s=ends.get("high"),
        parts_s=parts,
        bottleneck=bounds(scenario).bottleneck,
        hidden=hidden,
        next=binds[0],
        next_share=binds[1],
    )


def _hidden(scenario: Scenario, notes: list[str]) -> float | None:
    """The largest exchange fraction that costs nothing; None where hosts cannot hold samples."""
    try:
        options = HidingOptions(
            scenario=scenario, variant=(HIDDEN,), world_size=(scenario.world_size,)
        )
        found = engine.run(hiding.STUDY, hiding.request(options))
    except SimshuffleError as error:
        notes.append(f"{scenario.world_size} ranks: no hidden fraction. {error}")
        return None
    return float(found.tables["limits"]["exchange_fraction"].iloc[0])


def _first_to_bind(scenario: Callable[[int], Scenario], ranks: int) -> tuple[str, float | None]:
    """With twice the ranks, the resource that takes longest of all but computing, and its time over
    that; '' and None if there is no place for so many."""
    try:
        found = bounds(scenario(2 * ranks))
    except InputError:
        return "", None
    needed = {**found.resources, "allreduce": found.allreduce, "exchange": found.exchange.seconds}
    worst = max(needed, key=lambda name: needed[name])
    return worst, needed[worst] / found.compute


def _taken_for_granted(
    found: Fitted, machine: str | Path | None, overrides: Mapping[str, Any]
) -> list[str]:
    """What a prediction takes for granted beside what the record says."""
    if machine is None:
        return [*found.here]
    accelerator = machine_of(str(machine)).host.accelerator
    key = f"{ACCELERATORS}.{accelerator}"
    out = []
    if not found.files:
        out.append("The record has no bytes of samples: on a machine they are taken from memory.")
    if not any(related(name, key) for name in overrides):
        out.append(
            f"A step is taken to last as long on {accelerator} as on {found.device}: set"
            f" {key}.forward and .backward if you know better."
        )
        if found.device.startswith("cpu"):
            out.append(
                f"The record is of a CPU: {accelerator} computes faster, and its steps are taken to"
                " vary as the default says."
            )
    return out
