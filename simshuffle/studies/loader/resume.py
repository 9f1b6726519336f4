"""The study behind ``study loader --resume-at``: what loaders lose, repeat and mix when a
training is broken off and goes on with others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.job.scenario.options import kinds_of, record_of, scenario_of
from simshuffle.studies.loader.cell import by_label
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.resume_cell import ResumeCell
from simshuffle.studies.loader.resume_laws import defaults
from simshuffle.studies.loader.resume_tables import RESUMES, change_of
from simshuffle.studies.loader.resume_text import (
    resume_chart,
    resume_details,
    resume_parts,
    resume_verdict,
)
from simshuffle.studies.loader.shape import (
    READERS,
    DataSetShape,
    choose_reading_run,
    facts_of,
    fill_from_scenario,
    fill_options,
    shape_of,
)
from simshuffle.studies.loader.storage import (
    StorageCosts,
    costs_of_scenario,
    costs_of_store,
    parse_store,
)
from simshuffle.study.options import COMMAND_LINE, fields_of
from simshuffle.study.schema import REMEDY
from simshuffle.study.study import (
    Meta,
    Outcomes,
    Request,
    Result,
    Study,
    Tables,
    documents_with_details,
)
from simshuffle.workload.orders.order import Readers
from simshuffle.workload.resuming import AnyResume

MIDDLE = "middle"
OTHERS = ("tune", "prefetch_factor", "threads", "check", "order", "unit", "block", "classes")
"""Options that mean nothing with --resume-at."""
_Count = Annotated[int, Field(ge=0)]
_One = Annotated[int, Field(ge=1)]


class _Shape(TypedDict):
    """What figures and texts say beside the table."""

    samples: _One
    shards: _One
    nbytes: _Count
    workers: _One
    batch_size: _One
    epochs: _One
    seed: _Count
    epoch: _Count
    step: _One | None
    storage: str
    rows: _One


class _Says(TypedDict):
    """What ``meta.json`` holds of loaders that were broken off."""

    says: _Shape
    asked: dict[str, Any]


def request(options: LoaderOptions) -> Request[Sequence[ResumeCell]]:
    """What is asked for: the loaders that are named, or all, broken off on a shape.

    Raises:
        InputError: a loader is not known, the shape cannot be had, or an option is of other
            studies.
    """
    _check_alone(options)
    store = parse_store(options.store)
    named = {name: record_of("--loader", name, kinds_of(AnyResume)) for name in options.loader}
    scenario = None
    if options.scenario is not None:
        scenario = choose_reading_run(scenario_of(options.scenario, options.set))
        options = replace(options, scenario=scenario, set={})
    shape, afters = _readers(options)
    epoch = options.epoch or 0
    plain = {
        "loaders": [*named],
        "shape": shape.model_dump(mode="json"),
        "afters": [asdict(after) for after in afters],
        "storages": [
            asdict(
                costs_of_store(store)
                if scenario is None
                else costs_of_scenario(scenario, after.nodes)
            )
            for after in afters
        ],
        "epoch": epoch,
        "step": _step(options.resume_at, shape),
    }
    if epoch >= shape.epochs:
        rule, remedy = f"must be less than the {shape.epochs} of --epochs", "Epochs are from 0 on."
        refuse("--epoch", rule, str(epoch), remedy, COMMAND_LINE)
    return _request(plain)


def _request(plain: Mapping[str, Any]) -> Request[Sequence[ResumeCell]]:
    shape, known = DataSetShape.model_validate(plain["shape"]), kinds_of(AnyResume)
    of_name = {name: record_of("--loader", name, known) for name in plain["loaders"]}
    times = Counter(law.short_name for law in of_name.values())
    named = {
        name if times[law.short_name] > 1 else law.short_name: law for name, law in of_name.items()
    }
    changes = [
        (Readers(**after), StorageCosts(**storage))
        for after, storage in zip(plain["afters"], plain["storages"], strict=True)
    ]
    epoch, step = plain["epoch"], plain["step"]
    cells = [
        ResumeCell(f"{name}, {change_of(shape.readers, after)}", name, law, shape, after, *rest)
        for after, storage in changes
        for name, law in (named or defaults(shape)).items()
        for rest in [(epoch, step, storage)]
    ]
    return Request("resume", cells, {}, {"asked": dict(plain)})


def again(folder: Path, meta: Meta) -> Request[Sequence[ResumeCell]]:
    """The request of a result, from its folder."""
    return _request(meta["asked"])


def _check_alone(options: LoaderOptions) -> None:
    """See that no option is of another study, or raise InputError with all that are."""
    other, problems = type(options)(), []
    for field in fields_of(type(options)):
        given = getattr(options, field.name)
        if field.name in OTHERS and given != getattr(other, field.name):
            rule, remedy = "is not looked at with --resume-at", "Leave one out."
            problems.append(Problem(field.flag, rule, str(given), remedy))
    if options.from_ is not None and (options.nodes or options.gpus):
        given, remedy = f"--from {options.from_}", "Leave --nodes and --gpus out."
        problems.append(Problem("--from", "says nodes and ranks already", given, remedy))
    problems += [
        Problem(
            "--loader",
            "is a kind of loader, and no script",
            name,
            f"To audit your own: simshuffle study audit -- python {name}",
        )
        for name in options.loader
        if name.endswith(".py")
    ]
    if problems:
        raise InputError(problems, COMMAND_LINE)


def _readers(options: LoaderOptions) -> tuple[DataSetShape, list[Readers]]:
    """The shape with those who read at first, and who reads then: ranks may be named several
    times."""
    workers, batches = (
        _before_and_after(flag, given)
        for flag, given in (("--workers", options.workers), ("--batch-size", options.batch_size))
    )
    own: dict[str, Any] = {"workers": workers[0], "batch_size": batches[0], "order": ()}
    if options.from_ is not None:
        own["nodes"], own["gpus"] = _ranks("--from", options.from_)
    found = fill_from_scenario(replace(options, **own))
    shape = shape_of(fill_options(found, **READERS))
    ranks = [_ranks("--to", text) for text in options.to] or [(shape.nodes, shape.gpus)]
    if found.cache is None:  # room for what a node reads, however few there are
        fewest = min(shape.nodes, *(nodes for nodes, _ in ranks))
        room = shape_of(fill_options(replace(found, nodes=fewest), **READERS)).cache_nbytes
        shape = shape.model_copy(update={"cache_nbytes": room})
    rest = workers[1] or shape.workers, batches[1] or shape.batch_size
    afters = [Readers(*each, *rest) for each in dict.fromkeys(ranks)]
    for after in afters:
        if after.world_size > shape.samples:
            rule = f"each of the {after.world_size} ranks needs a sample"
            refuse("--to", rule, f"{shape.samples} samples", "Use more --samples.", COMMAND_LINE)
    return shape, afters


def _ranks(flag: str, text: str) -> tuple[int, int]:
    """Nodes and ranks of each of '56x4'."""
    parts = [int(part) if part.strip().isdecimal() else 0 for part in text.split("x")]
    if len(parts) != 2 or min(parts) < 1:
        rule = "is written NODESxGPUS, both whole numbers from 1 on"
        refuse(flag, rule, repr(text), f"For example {flag} 56x4.", COMMAND_LINE)
    return parts[0], parts[1]


def _before_and_after(flag: str, given: int | str | None) -> tuple[int | None, int | None]:
    """The numbers of 8, or of '8:6'."""
    if given is None:
        return None, None
    parts = [int(part) if part.strip().isdecimal() else 0 for part in str(given).split(":")]
    if len(parts) > 2 or min(parts) < 1:
        rule = "must be a whole number from 1 on, or two as in 8:6, before and after"
        refuse(flag, rule, repr(given), f"For example {flag} 8:6.", COMMAND_LINE)
    return parts[0], parts[-1]


def _step(given: int | str | None, shape: DataSetShape) -> int | None:
    """Iterations that were done; None for half of them."""
    if given == MIDDLE:
        return None
    each = shape.readers.world_size * shape.batch_size
    most = -(-shape.samples // each)
    step = int(str(given)) if str(given).isdecimal() else 0
    if not 0 < step < most:
        rule = f"must be from 1 to {most - 1}, for an epoch has {most} iterations; or {MIDDLE}"
        remedy = f"Give a smaller one, or more --samples: an iteration has {each}."
        if most < 2:
            rule = f"needs an epoch of 2 iterations, of {each} samples each"
            remedy = "Use more --samples, or fewer ranks."
        refuse("--resume-at", rule, repr(given), remedy, COMMAND_LINE)
    return step


def _collect(cells: Sequence[ResumeCell], outcomes: Outcomes) -> Tables:
    rows = [row for cell in cells for row in outcomes[cell.label].values["resumes"]]
    return {"resumes": RESUMES.framed(rows)}


def _facts(cells: Sequence[ResumeCell], outcomes: Outcomes, tables: Tables) -> Meta:
    cell = cells[0]
    about = {"epoch": cell.epoch, "step": cell.step, "seed": cell.shape.seed}
    shape = {
        name: of for name, of in facts_of(cell.shape).items() if name in _Shape.__annotations__
    }
    return {"says": {**shape, **about, "storage": cell.storage.name, "rows": len(cells)}}


def _faults(result: Result) -> Iterator[Problem]:
    """A table that lacks rows."""
    table, rows = result.tables["resumes"], result.meta["says"]["rows"]
    if len(table) != rows:
        rule = f"must have the {rows} rows that meta.json speaks of"
        yield Problem("resumes.csv", rule, f"{len(table)} rows", REMEDY)


STUDY: Study[Sequence[ResumeCell]] = Study(
    kind="resume",
    verb="loader",
    stages=(by_label,),
    collect=_collect,
    stored={"resumes": RESUMES},
    figures=lambda result: {"resume": resume_chart(result.tables["resumes"], result.meta["says"])},
    one_figure=True,
    verdict=lambda result: resume_verdict(result.tables["resumes"], result.meta["says"]),
    **documents_with_details(
        lambda result: resume_parts(result.tables["resumes"], result.meta["says"]),
        lambda result: resume_details(result.tables["resumes"], result.meta["says"]),
    ),
    facts=_facts,
    says=_Says,
    faults=_faults,
    again=f"{__name__}:again",
)
