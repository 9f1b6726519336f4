"""The study behind ``simshuffle study policies``: data-loading policies compared, a cell for each
case; and one number of such a study, for comparison with what its paper prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.report.console import new_table
from simshuffle.spec.library import nearest, read_value
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.loader.cell import by_label
from simshuffle.studies.loader.figures import policies_chart
from simshuffle.studies.loader.policy_cases import Cases, load, read
from simshuffle.studies.loader.policy_reads import MOST_READS, PolicyCase, System
from simshuffle.studies.loader.policy_sources import POLICIES
from simshuffle.studies.loader.policy_times import PolicyOutcome, compare
from simshuffle.studies.loader.tables import POLICY_TABLES, READY, SOURCES
from simshuffle.study.cell import SMALL_MEMORY, Outcome, PlainCell, Tell
from simshuffle.study.options import COMMAND_LINE
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import Meta, Outcomes, Request, Result, Study, Tables

SHORT = dict(
    zip(SOURCES, ("PFS", "own memory", "own SSD", "remote memory", "remote SSD"), strict=False)
)
"""Sources as a line has them; what is ready is from nowhere."""


def _cases(result: Result) -> Cases:
    return read(result.documents["study.yaml"], "study.yaml")


def _parts(result: Result) -> Iterator[str | Table]:
    """For each case a line and a table; then what the marks mean."""
    study, policies = _cases(result), result.tables["policies"]
    for name, case in study.cases.items():
        workers = case.on(study.system).workers
        size, room = (readable(of, Dimension.NBYTES) for of in (case.nbytes, study.system.storage))
        yield (
            f"{name}: {case.num_samples} samples, {size}, {workers} workers with {room} of storage"
            f" each, {case.epochs} epochs."
        )
        yield _table(policies[policies["case"] == name])
    if (policies["coverage"] < 1).any():
        yield "* Reads only that share of the data set, so that training learns from less."
    yield "Sources: share of the bytes of all epochs. First: with the staging before training."


def _table(policies: pd.DataFrame) -> Table:
    table = new_table()
    table.add_column("policy", no_wrap=True)
    for name in ("first s", "steady s", "all / perfect", "kept a worker"):
        table.add_column(name, justify="right")
    table.add_column("sources", max_width=30)
    for row in policies.to_dict("records"):
        table.add_row(*_cells(row))
    return table


def _cells(row: Mapping[Any, Any]) -> list[str]:
    name = row["policy"].replace("_", " ")
    if row["problem"]:
        return [name, "-", "-", "-", "-", f"cannot: {row['problem']}"]
    if row["coverage"] < 1:
        name = f"{name} *{100 * row['coverage']:.2g}%"
    times = f"{row['first_s']:.4g}", f"{row['steady_s']:.4g}", f"{row['total_ratio']:.3f}"
    kept = readable(row["memory_nbytes"] + row["ssd_nbytes"], Dimension.NBYTES, 3)
    shares = {short: row[f"{source}_share"] for source, short in SHORT.items()}
    sources = [f"{name} {100 * share:.0f}%" for name, share in shares.items() if share >= 0.005]
    return [name, *times, kept, ", ".join(sources)]


def _faults(result: Result) -> Iterator[Problem]:
    """A study that is none, and rows without numbers."""
    policies = result.tables["policies"]
    usable = policies[policies["problem"] == ""]
    if policies.empty or usable.isna().any(axis=None):
        rule = "must have rows, and numbers for every policy that can be used"
        yield Problem("policies.csv", rule, f"{len(policies)} rows", REMEDY)
    try:
        _cases(result)
    except InputError as error:
        yield from (problem.below("study.yaml") for problem in error.problems)


SECONDS_PER_READ = 2e-7
"""s of one core for a read of a block under a policy, roughly."""
BYTES_PER_READ = 40.0
"""Bytes of memory for each, roughly."""


@dataclass(frozen=True)
class CaseCell(PlainCell):
    """A case under some policies, all on the same accesses."""

    label: str  # name of the case
    system: System  # the workers
    case: PolicyCase  # the data set
    seed: int  # decides who reads what
    policies: tuple[str, ...]  # names; of all if there are none

    @property
    def key(self) -> Any:
        """As for `Cell`."""
        dumped = [of.model_dump(mode="json") for of in (self.system, self.case)]
        return [*dumped, self.seed, sorted(set(self.policies))]

    @property
    def _reads(self) -> float:
        return min(float(self.case.num_samples) * self.case.epochs, MOST_READS)

    @property
    def cost(self) -> float:
        """As for `Cell`."""
        return 0.1 + SECONDS_PER_READ * self._reads * len(self.policies or POLICIES)

    @property
    def memory(self) -> float:
        """As for `Cell`."""
        return SMALL_MEMORY + BYTES_PER_READ * self._reads

    def run(self, tell: Tell) -> Outcome:
        """As for `Cell`: the rows of the tables without the name of the case."""
        found = compare(self.system, self.case, self.seed, self.policies)
        epochs = [
            [
                *(of.policy, number, each.seconds, each.compute),
                *(max(each.seconds - each.compute, 0.0), each.readers),
                *(*each.nbytes, *each.fetch[:READY]),
            ]
            for of in found
            for number, each in enumerate(of.epochs)
        ]
        return Outcome({"policies": [_policy_row(of) for of in found], "epochs": epochs})


def _policy_row(outcome: PolicyOutcome) -> list[Any]:
    """The columns of `policies` behind the case; times and shares are empty where a policy cannot
    be used.

    Perfect training takes S_w / c for the same bytes S_w, so that the ratios need no outcome of the
    policy 'perfect'.
    """
    plan, epochs = outcome.plan, outcome.epochs
    if not epochs:
        empty = len(POLICY_TABLES["policies"].columns) - 3
        return [outcome.policy, plan.problem, *[math.nan] * empty]
    seconds = (epochs[0].seconds, epochs[-1].seconds, outcome.seconds)
    least = (epochs[0].compute, epochs[-1].compute, sum(epoch.compute for epoch in epochs))
    ratios = [time / bound for time, bound in zip(seconds, least, strict=True)]
    nbytes = [sum(epoch.nbytes[code] for epoch in epochs) for code in range(len(SOURCES))]
    shares = [value / sum(nbytes) for value in nbytes]
    sizes = (outcome.staging, plan.memory, plan.ssd)
    return [outcome.policy, "", plan.coverage, *seconds, *ratios, *sizes, *shares]


def request(study: Cases, policies: Sequence[str]) -> Request[list[CaseCell]]:
    """What is asked for: those policies, or all if none are named, on every case.

    Raises:
        InputError: a policy is not known.
    """
    unknown = [
        Problem("--policy", "no such policy", repr(name), nearest(name, list(POLICIES)))
        for name in policies
        if name not in POLICIES
    ]
    if unknown:
        raise InputError(unknown, COMMAND_LINE)
    cells = [
        CaseCell(name, study.system, case, study.seed, tuple(policies))
        for name, case in study.cases.items()
    ]
    kept = {"policies": list(policies)}
    return Request(study.name, cells, {"study.yaml": study.to_yaml()}, kept)


def again(folder: Path, meta: Meta) -> Request[list[CaseCell]]:
    """The request of a result, from its folder."""
    text = (folder / "study.yaml").read_text(encoding="utf-8")
    return request(read(text, "study.yaml"), meta["policies"])


def collect(of: Sequence[CaseCell], outcomes: Outcomes) -> Tables:
    """The stored tables."""
    return {
        name: schema.framed(
            [(case, *row) for case, outcome in outcomes.items() for row in outcome.values[name]]
        )
        for name, schema in POLICY_TABLES.items()
    }


STUDY: Study[list[CaseCell]] = Study(
    kind="policies",
    verb="study policies",
    stages=(by_label,),
    collect=collect,
    stored=POLICY_TABLES,
    documents=("study.yaml",),
    figures=lambda result: {"policies": policies_chart(result.tables["policies"])},
    one_figure=True,
    parts=_parts,
    faults=_faults,
    again="simshuffle.studies.loader.policies:again",
)


KEYS = ("study", "case", "policy", "to", "quantity")


def predicted(values: Mapping[str, str]) -> float:
    """What the model says.

    Args:
        values: ``study``, ``case`` and ``policy`` by name; ``quantity``: 'seconds' (of all epochs),
            'coverage' (share of the data set), or 'ratio' (the default): seconds over those of the
            policy ``to`` ('perfect' if left out; 'best': the fastest but perfect). Every other key
            is set in the study, such as ``system.compute_bandwidth``.

    Raises:
        InputError: a name is not known, or the policy cannot be used there.
    """
    if missing := [key for key in KEYS[:3] if key not in values]:
        raise InputError([Problem(key, "is required", "", "Add it.") for key in missing], "values")
    overrides = tuple((key, value) for key, value in values.items() if key not in KEYS)
    outcomes = _outcomes(values["study"], values["case"], overrides)
    own, quantity = _usable(outcomes, values["policy"]), values.get("quantity", "ratio")
    _check_known("quantity", quantity, ("ratio", "seconds", "coverage"))
    if quantity == "coverage":
        return own.plan.coverage
    if quantity == "seconds":
        return own.seconds
    to = values.get("to", "perfect")
    if to == "best":
        others = (of for of in outcomes.values() if of.epochs and of.policy != "perfect")
        return own.seconds / min(of.seconds for of in others)
    return own.seconds / _usable(outcomes, to).seconds


@lru_cache(maxsize=32)
def _outcomes(
    study: str, case: str, overrides: tuple[tuple[str, str], ...]
) -> Mapping[str, PolicyOutcome]:
    loaded = load(study, {key: read_value(value, key) for key, value in overrides}).only([case])
    return {of.policy: of for of in compare(loaded.system, loaded.cases[case], loaded.seed)}


def _usable(outcomes: Mapping[str, PolicyOutcome], policy: str) -> PolicyOutcome:
    _check_known("policy", policy, [*outcomes])
    found = outcomes[policy]
    if not found.epochs:
        rule = "cannot be used in this case"
        refuse("policy", rule, repr(policy), found.plan.problem, "values")
    return found


def _check_known(key: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        refuse(key, f"no such {key}", repr(name), nearest(name, [*known]), "values")
