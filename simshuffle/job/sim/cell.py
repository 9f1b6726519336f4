"""The cell of a run: a resolved scenario without sweep, simulated and reported."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd
import pyarrow as pa

from simshuffle.errors import InputError
from simshuffle.fabric.network import Fluid
from simshuffle.fabric.network.models import load_model
from simshuffle.job.plan.effort import SHARED_NBYTES, Effort, effort
from simshuffle.job.plan.findings import SlowCables, extrapolation_sentences
from simshuffle.job.plan.holding import count_fetches, held_in
from simshuffle.job.plan.wiring import routing_of
from simshuffle.job.scenario.reading import identity_of
from simshuffle.job.scenario.scenario import Scenario, from_dict
from simshuffle.job.sim.simulate import simulate, simulate_epochs
from simshuffle.report import kept_phases, report
from simshuffle.report.kept_phases import KeptRanks
from simshuffle.report.table_io import stack_tables
from simshuffle.report.timeline import Timeline
from simshuffle.spec.arrays import Ints32
from simshuffle.spec.late import special
from simshuffle.study.cell import Outcome, PlainCell, Tell
from simshuffle.study.long_table import (
    Growing,
    LazyTables,
    LongTable,
    TablePart,
    get_long,
)
from simshuffle.study.store import TABLE
from simshuffle.workload.parallelism import Data

TABLES = ("timeline", "iterations", "links", "sources")
"""Tables that are kept of a run; the first may be of some ranks or of none."""
NAMELESS = ""
"""Name of the run in a cell's tables; a study puts its own name there."""

M_MMAP_THRESHOLD = -3
MAPPED = 1 << 20
"""An option of glibc: the size in bytes from which an array is mapped by itself."""
LARGE = 100e6
"""Bytes of a simulation from which on that pays."""


class NetworkCell(PlainCell):
    """Computes with the compiled network."""

    def make_ready(self) -> None:
        """Load the compiled network, or compile it where no cache holds it yet."""
        load_model(Fluid())


@dataclass(frozen=True)
class RunCell(NetworkCell):
    """The simulation of one run."""

    # the resolved scenario as plain values (see `Scenario.to_dict`), without sweep
    document: Mapping[str, Any]
    label: str  # of the run, for people
    with_tables: bool = (
        True  # whether its tables are kept, beside what is reported of it
    )
    # the ranks whose phases the kept timeline has: all, a sample, or none
    timeline: KeptRanks = "full"

    def make_ready(self) -> None:
        """Load the compiled network, what reads such scenarios, and the special
        functions that windows need.

        Raises as `scenario`.
        """
        super().make_ready()
        if self.scenario.time_tolerance > 0:
            special.load()

    @cached_property
    def scenario(self) -> Scenario:
        """The scenario of ``document``, read once.

        Raises:
            ScenarioError: it is not valid.
        """
        return from_dict(self.document, self.label)

    @property
    def key(self) -> Any:
        """The inputs that decide the outcome; of a file they are its contents, without
        its name.
        """
        return identity_of(self.document)

    @cached_property
    def _effort(self) -> Effort:
        """The effort of the run; zero where the scenario is not valid, which is
        reported at once. The scenario read here is not kept, for the cell is sent to
        another process.
        """
        try:
            return effort(from_dict(self.document, self.label))
        except InputError:
            return Effort(iterations=0.0, samples=0.0, stored=0.0, epochs=1, ranks=1)

    @property
    def cost(self) -> float:
        """Seconds of one core that the run is expected to take, see `Effort.seconds`."""
        return self._effort.seconds

    @property
    def timed_as(self) -> str:
        """The kind of run, which decides how well its cost is known. Subclasses have
        their own kinds.
        """
        return self._effort.kind if type(self) is RunCell else super().timed_as

    @property
    def memory(self) -> float:
        """Bytes that the run is expected to add to a process beyond the shared ones
        (`SHARED_NBYTES`).
        """
        return self._effort.nbytes - SHARED_NBYTES

    @property
    def parts(self) -> frozenset[str]:
        """The names of the tables that the outcome holds, as files: with their suffix.
        Empty if no tables are kept.
        """
        if not self.with_tables:
            return frozenset()
        names = (*TIMELINES[self.timeline][:1], *TABLES[1:])
        return frozenset(f"{name}{TABLE}" for name in names)

    def run(self, tell: Tell) -> Outcome:
        """Simulate the run; return its facts, epochs, breakdown, and tables if they are
        kept.

        The rows of an epoch are taken when the epoch is over; ``tell`` is called with
        the share done. Changes how the process gives back memory (`hold_little`).
        Raises as `scenario`, or if the simulation refuses to go on.
        """
        scenario = self.scenario
        self.hold_little()
        reporting = Reporting(scenario, self.timeline if self.with_tables else None)
        for timeline in simulate_epochs(
            scenario, NAMELESS, tell, struck=reporting.struck
        ):
            give_back()  # before tables are made of it
            reporting.add(timeline)
            del timeline  # the next epoch needs its room
            give_back()
        outcome = reporting.outcome()
        give_back()  # the machine is gone only now
        return outcome

    def simulate_timeline(self, tell: Tell) -> Timeline:
        """Simulate the run and return the timeline of all its epochs."""
        return simulate(self.scenario, progress=tell)

    def max_held_nbytes(self, epochs: int) -> float:
        """Return the most bytes that loaders of one host keep of what they fetch.

        Counted over the first ``epochs`` epochs without a simulation; 0 where none
        fetch.
        """
        fetched = count_fetches(self.scenario, epochs)
        return max((plan.fetches.held_nbytes for plan in fetched), default=0)

    def hold_little(self) -> None:
        """Have the system take each large array back as soon as nobody has it any more.

        It sets an option of glibc for the whole process, for runs from `LARGE` bytes
        on; else glibc would raise that size to 32 MB, and keep the room of all that are
        smaller.
        """
        if self.memory > LARGE and (
            set_option := getattr(ctypes.CDLL(None), "mallopt", None)
        ):
            set_option(M_MMAP_THRESHOLD, MAPPED)


def give_back() -> None:
    """Give the system the memory that is no longer used, which the allocators of Arrow
    and of C would keep: 60 MB of 2048 ranks, in 5 ms.
    """
    pa.default_memory_pool().release_unused()
    # glibc alone has it; other C libraries do so by themselves
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)


class Reporting:
    """The facts, rows and tables of a run, collected epoch by epoch.

    ``kept_timeline`` is `RunCell.timeline`, None without tables. The simulation adds
    the faults that began to the list ``struck`` while the run goes on.
    """

    def __init__(self, scenario: Scenario, kept_timeline: KeptRanks | None) -> None:
        self._scenario, self._slow = scenario, SlowCables(scenario.cluster)
        self._tables = None if kept_timeline is None else _Tables(kept_timeline)
        self._reported: dict[str, list[pd.DataFrame]] = {"epochs": [], "breakdown": []}
        self._held, self._groups = 0.0, dict[str, Any]()
        self._waited_for: list[dict[str, Any]] = []
        self.struck: list[dict[str, Any]] = []
        self._said: dict[str, list[Any]] = (
            {"faults": self.struck} if scenario.faults else {}
        )

    def add(self, timeline: Timeline) -> None:
        """Add the facts, rows and tables of an epoch.

        Of the seconds in model-parallel groups and of the hosts that ranks wait for,
        only the last epoch's stay. Gives unused memory back to the system.
        """
        for name, rows in timeline.facts.items():
            self._said.setdefault(name, []).extend(rows)
        self._slow.note_carried(timeline.links)
        seconds = report.phase_seconds(timeline)
        self._groups = group_facts(self._scenario, seconds)
        self._held = max(self._held, float(timeline.sources["nbytes_cached"].max()))
        self._reported["epochs"].append(report.epochs(timeline, seconds))
        parts = report.all_labels(timeline, seconds)
        self._reported["breakdown"].append(parts)
        self._waited_for = report.waited_for(timeline, parts, *self._hosts(timeline))
        give_back()
        if self._tables is not None:
            self._tables.add(timeline)

    def _hosts(self, timeline: Timeline) -> tuple[Ints32, set[str]]:
        """Return (M,) the host of each rank, and the names of hosts with a fault.

        Faults of a device count as its host's.
        """
        ranks = int(timeline.phases["rank"].max()) + 1
        lasting = self._scenario.cluster.faults or {}
        faulty_devices = [
            *(str(row["what"]) for row in self.struck),
            *map(str, lasting),
        ]
        faulty = {device.partition(".")[0] for device in faulty_devices}
        return self._scenario.cluster.host_of(ranks), faulty

    def outcome(self) -> Outcome:
        """Return the outcome of the run: its tables, and the values 'label', 'facts',
        'epochs' and 'breakdown'; the last two are lists by column.
        """
        values = {
            name: _columns(stack_tables(parts))
            for name, parts in self._reported.items()
        }
        run_facts = {
            **facts(self._scenario, self._held),
            **self._groups,
            **self._slow.facts(),
        }
        run_facts |= {"waited_for": self._waited_for} if self._waited_for else {}
        # a job is killed once
        facts_of_events = {
            name: rows[0] if name == "killed" else rows
            for name, rows in self._said.items()
        }
        label_and_facts = {
            "label": self._scenario.label(),
            "facts": {**run_facts, **facts_of_events},
        }
        tables = {} if self._tables is None else self._tables.all()
        return Outcome({**label_and_facts, **values}, tables)


TIMELINES: Mapping[KeptRanks, tuple[str, ...]] = {
    "full": ("timeline", "timeline_of_ranks"),
    "ranks": ("timeline_of_ranks",),
    "none": (),
}
"""The timelines in an outcome, by what was asked: first that, then what follows from
it. So what was kept of all ranks serves where some are asked for, and not the other way
round.
"""


class _Tables:
    """The tables that are kept of a run, which grow epoch by epoch."""

    def __init__(self, timeline: KeptRanks) -> None:
        names = [*TIMELINES[timeline], *TABLES[1:]]
        self._growing = {name: Growing() for name in names}

    def add(self, timeline: Timeline) -> None:
        """Append the rows of an epoch to every table."""
        phases = timeline.phases
        seconds = kept_phases.seconds_by_rank(timeline.phases)
        for name, growing in self._growing.items():
            if name == "timeline":
                table = phases
            elif name == "timeline_of_ranks":
                table = phases[phases["rank"].isin(kept_phases.sample_ranks(seconds))]
            elif name == "iterations":
                table = kept_phases.iteration_means(phases, seconds)
            else:
                table = getattr(timeline, name)
            growing.add(table.iloc[:, 1:])  # the run comes first

    def all(self) -> LazyTables:
        """Return all tables by name, without the column of the run's name.

        Each is loaded into memory when it is first read.
        """
        return LazyTables(
            {name: growing.table() for name, growing in self._growing.items()}
        )


def table_of_run(outcome: Outcome, table: str, timeline: KeptRanks) -> LongTable:
    """Return one of `TABLES` of an outcome, without the column of the run's name.

    Of the timeline it has the ranks that ``timeline`` says; for 'none' no rows. The
    outcome must hold that timeline.
    """
    if table != "timeline":
        return get_long(outcome.tables, table)
    names = TIMELINES[timeline][:1]
    empty = LongTable((TablePart(kept_phases.no_phases().drop(columns="run")),))
    return get_long(outcome.tables, names[0]) if names else empty


def concatenate_rows(
    cells: Sequence[tuple[Mapping[str, Any], Outcome]],
    table: Literal["epochs", "breakdown"],
) -> pd.DataFrame:
    """Return the rows of table ``table`` of all cells below one another.

    The columns that are given with each cell, one value each, stand in front. The index
    counts from 0.
    """
    parts = [pd.DataFrame({**lead, **outcome.values[table]}) for lead, outcome in cells]
    return pd.concat(parts, ignore_index=True)


def group_facts(scenario: Scenario, seconds: pd.DataFrame) -> dict[str, Any]:
    """Return the seconds that model-parallel ranks spend beside computing, by
    'in_groups'.

    Its value has 'strategy', 'ranks' (of a group), and means over all ranks 'wait_s',
    'bubble_s' and 'sent_s'. {} where ranks do not divide their steps. ``seconds`` are
    of an epoch, from `simshuffle.report.report.phase_seconds`: the first row counts.
    """
    strategy = scenario.workload.parallelism
    if isinstance(strategy, Data):
        return {}
    phases = {
        "wait_s": "wait_group",
        "bubble_s": "bubble",
        "sent_s": "group_communication",
    }
    return {
        "in_groups": {
            "strategy": strategy.short_name,
            "ranks": strategy.group_size(scenario.world_size),
            **{name: float(seconds[phase].iloc[0]) for name, phase in phases.items()},
        }
    }


def facts(scenario: Scenario, held_nbytes: float) -> dict[str, Any]:
    """Return the facts of a run in ``meta.json`` beside times, as plain values.

    Keys are 'seed', 'hosts', 'iterations' (of the first epoch),
    'storage_per_host_nbytes', 'routing' (text) and 'staged_to' (None if hosts keep no
    samples). 'extrapolated' is there only where it says something. ``held_nbytes`` is
    the most that the loaders of one host held of fetched samples; it is added to the
    storage.
    """
    beyond = extrapolation_sentences(scenario)
    return {
        **({"extrapolated": beyond} if beyond else {}),
        "seed": scenario.seed,
        "hosts": scenario.hosts,
        "iterations": scenario.workload.iterations(scenario.world_size),
        "storage_per_host_nbytes": scenario.storage_per_host + held_nbytes,
        "routing": routing_of(scenario.cluster).describe(),
        "staged_to": held_in(scenario),
    }


def _columns(table: pd.DataFrame) -> dict[str, list[Any]]:
    """Return the columns as plain lists by name, without the run, which has no name
    here; the strategy comes last, as text.
    """
    return {
        str(name): table[name].tolist()
        for name in table.columns
        if name not in {"run", "strategy"}
    } | (
        {"strategy": table["strategy"].astype(str).tolist()}
        if "strategy" in table
        else {}
    )
