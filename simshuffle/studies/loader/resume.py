"""Study what loaders lose, repeat and mix when a training stops and goes on with other
ranks.

It stands behind ``study loader --resume-at``.
"""

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
from simshuffle.studies.loader.cell import cells_by_label
from simshuffle.studies.loader.options import LoaderOptions
from simshuffle.studies.loader.resume_cell import ResumeCell
from simshuffle.studies.loader.resume_laws import default_laws
from simshuffle.studies.loader.resume_tables import RESUMES, describe_change
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
UNUSED_OPTIONS = (
    "tune",
    "prefetch_factor",
    "threads",
    "check",
    "order",
    "unit",
    "block",
    "classes",
)
"""Options that mean nothing with --resume-at."""
NaturalNumber = Annotated[int, Field(ge=0)]
PositiveNumber = Annotated[int, Field(ge=1)]


class ResumeFacts(TypedDict):
    """Facts beside the table, from which figures and texts are made."""

    samples: PositiveNumber  # of the data set
    shards: PositiveNumber  # of the data set
    nbytes: NaturalNumber  # of the data set
    workers: PositiveNumber  # of a rank, before the crash
    batch_size: PositiveNumber  # samples of a rank's batch, before the crash
    epochs: PositiveNumber  # of the run
    seed: NaturalNumber  # of the orders
    epoch: NaturalNumber  # that is broken off, from 0
    step: PositiveNumber | None  # iterations that were done; None for half of the epoch
    storage: str  # kind of storage, for people
    rows: PositiveNumber  # of the table


class ResumeMeta(TypedDict):
    """Contents of ``meta.json`` for loaders that were resumed."""

    says: ResumeFacts
    asked: dict[str, Any]


def request(options: LoaderOptions) -> Request[Sequence[ResumeCell]]:
    """Return the checked request: the named loaders, or all loaders, resumed on a
    shape.

    With a scenario, what is read again comes from its storage, and ``options.store`` is
    refused. Without a scenario it comes from this store.

    Raises:
        InputError: a loader is not known, the shape is impossible, the epoch or the
            iteration is beyond the end, or an option is of other studies.
    """
    _check_options(options)
    store = parse_store(options.store)
    named_laws = {
        name: record_of("--loader", name, kinds_of(AnyResume))
        for name in options.loader
    }
    scenario = None
    if options.scenario is not None:
        scenario = choose_reading_run(scenario_of(options.scenario, options.set))
        options = replace(options, scenario=scenario, set={})
    shape, readers_after = _choose_readers(options)
    if scenario is None:
        storage_costs = [costs_of_store(store) for _ in readers_after]
    else:
        storage_costs = [
            costs_of_scenario(scenario, readers.nodes) for readers in readers_after
        ]
    epoch = options.epoch or 0
    stored_request = {
        "loaders": [*named_laws],
        "shape": shape.model_dump(mode="json"),
        "afters": [asdict(readers) for readers in readers_after],
        "storages": [asdict(costs) for costs in storage_costs],
        "epoch": epoch,
        "step": _parse_step(options.resume_at, shape),
    }
    if epoch >= shape.epochs:
        rule = f"must be below --epochs, {shape.epochs}"
        remedy = "Epochs are numbered from 0."
        refuse("--epoch", rule, str(epoch), remedy, COMMAND_LINE)
    return _make_request(stored_request)


def _make_request(stored_request: Mapping[str, Any]) -> Request[Sequence[ResumeCell]]:
    """Return the request that ``meta.json`` stores: a cell for each change and loader.

    A loader is named by its short name, or as it was given where two share the short
    name. `default_laws` are resumed if no loader is named.
    """
    shape = DataSetShape.model_validate(stored_request["shape"])
    law_kinds = kinds_of(AnyResume)
    law_of_text = {
        name: record_of("--loader", name, law_kinds)
        for name in stored_request["loaders"]
    }
    count_of_short_name = Counter(law.short_name for law in law_of_text.values())
    named_laws = {
        name if count_of_short_name[law.short_name] > 1 else law.short_name: law
        for name, law in law_of_text.items()
    }
    changes = [
        (Readers(**reader_values), StorageCosts(**storage_values))
        for reader_values, storage_values in zip(
            stored_request["afters"], stored_request["storages"], strict=True
        )
    ]
    cells = [
        ResumeCell(
            label=f"{name}, {describe_change(shape.readers, readers)}",
            loader=name,
            law=law,
            shape=shape,
            new_readers=readers,
            epoch=stored_request["epoch"],
            step=stored_request["step"],
            storage=storage,
        )
        for readers, storage in changes
        for name, law in (named_laws or default_laws(shape)).items()
    ]
    return Request("resume", cells, {}, {"asked": dict(stored_request)})


def repeat(folder: Path, meta: Meta) -> Request[Sequence[ResumeCell]]:
    """Return the request of a stored result, from its ``meta.json`` alone."""
    return _make_request(meta["asked"])


def _check_options(options: LoaderOptions) -> None:
    """Check that no option is of another study, that a scenario has no --store and
    --from no --nodes or --gpus beside it, and that no loader is a script.

    Raises:
        InputError: options are wrong; with all of them.
    """
    defaults = type(options)()
    problems = []
    for field in fields_of(type(options)):
        value = getattr(options, field.name)
        if field.name in UNUSED_OPTIONS and value != getattr(defaults, field.name):
            rule = "has no effect with --resume-at"
            remedy = "Leave one out."
            problems.append(Problem(field.flag, rule, str(value), remedy))
    if options.scenario is not None and options.store != defaults.store:
        rule = "has no effect with --resume-at and a scenario, whose storage is read"
        remedy = "Leave --store or the scenario out."
        problems.append(Problem("--store", rule, options.store, remedy))
    if options.from_ is not None and (options.nodes or options.gpus):
        value = f"--from {options.from_}"
        remedy = "Leave --nodes and --gpus out."
        problems.append(
            Problem("--from", "already sets nodes and ranks", value, remedy)
        )
    problems += [
        Problem(
            "--loader",
            "must be a kind of loader, not a script",
            name,
            f"To audit your script, run simshuffle study audit -- python {name}",
        )
        for name in options.loader
        if name.endswith(".py")
    ]
    if problems:
        raise InputError(problems, COMMAND_LINE)


def _choose_readers(options: LoaderOptions) -> tuple[DataSetShape, list[Readers]]:
    """Return the shape with the readers before, and the readers after, each once.

    Without ``--to`` nodes and ranks after are those before. Workers and batches after
    are the second numbers of their options. A cache by default is that of the fewest
    nodes, before or after.

    Raises:
        InputError: an option is invalid, or there are more ranks than samples.
    """
    workers = _parse_pair("--workers", options.workers)
    batches = _parse_pair("--batch-size", options.batch_size)
    values: dict[str, Any] = {
        "workers": workers[0],
        "batch_size": batches[0],
        "order": (),
    }
    if options.from_ is not None:
        values["nodes"], values["gpus"] = _parse_ranks("--from", options.from_)
    filled = fill_from_scenario(replace(options, **values))
    shape = shape_of(fill_options(filled, **READERS))
    ranks = [_parse_ranks("--to", text) for text in options.to] or [
        (shape.nodes, shape.gpus)
    ]
    if filled.cache is None:  # room for what a node reads, however few there are
        min_nodes = min(shape.nodes, *(nodes for nodes, _ in ranks))
        fewest_nodes = fill_options(replace(filled, nodes=min_nodes), **READERS)
        cache_nbytes = shape_of(fewest_nodes).cache_nbytes
        shape = shape.model_copy(update={"cache_nbytes": cache_nbytes})
    workers_and_batch = workers[1] or shape.workers, batches[1] or shape.batch_size
    readers_after = [
        Readers(*nodes_and_ranks, *workers_and_batch)
        for nodes_and_ranks in dict.fromkeys(ranks)
    ]
    for readers in readers_after:
        if readers.world_size > shape.samples:
            rule = f"each of the {readers.world_size} ranks needs a sample"
            refuse(
                "--to",
                rule,
                f"{shape.samples} samples",
                "Use more --samples.",
                COMMAND_LINE,
            )
    return shape, readers_after


def _parse_ranks(flag: str, text: str) -> tuple[int, int]:
    """Parse nodes and ranks of each node from text such as '56x4'.

    Raises:
        InputError: it is no such text.
    """
    numbers = [int(part) if part.strip().isdecimal() else 0 for part in text.split("x")]
    if len(numbers) != 2 or min(numbers) < 1:
        rule = "must be NODESxGPUS, two whole numbers of 1 or more"
        refuse(flag, rule, repr(text), f"For example {flag} 56x4.", COMMAND_LINE)
    return numbers[0], numbers[1]


def _parse_pair(flag: str, option: int | str | None) -> tuple[int | None, int | None]:
    """Parse the numbers before and after from '8:6', or 8 for both; None and None where
    nothing is given.

    Raises:
        InputError: it is no such number or text.
    """
    if option is None:
        return None, None
    numbers = [
        int(part) if part.strip().isdecimal() else 0 for part in str(option).split(":")
    ]
    if len(numbers) > 2 or min(numbers) < 1:
        rule = "must be a whole number of 1 or more, or two as in 8:6, before:after"
        refuse(flag, rule, repr(option), f"For example {flag} 8:6.", COMMAND_LINE)
    return numbers[0], numbers[-1]


def _parse_step(option: int | str | None, shape: DataSetShape) -> int | None:
    """Return the number of iterations done before the crash; None for `MIDDLE`, half of
    the epoch.

    Raises:
        InputError: it is no whole number from 1 to the iterations of the epoch minus 1.
    """
    if option == MIDDLE:
        return None
    samples_per_step = shape.readers.world_size * shape.batch_size
    num_steps = -(-shape.samples // samples_per_step)
    step = int(str(option)) if str(option).isdecimal() else 0
    if not 0 < step < num_steps:
        rule = f"must be {MIDDLE}, or from 1 to {num_steps - 1}, as an epoch has"
        rule += f" {num_steps} iterations"
        remedy = (
            f"Give a smaller number, or more --samples; an iteration has {samples_per_step}"
            " samples."
        )
        if num_steps < 2:
            rule = (
                f"needs an epoch of 2 or more iterations, of {samples_per_step}"
                " samples each"
            )
            remedy = "Use more --samples, or fewer ranks."
        refuse("--resume-at", rule, repr(option), remedy, COMMAND_LINE)
    return step


def _collect(cells: Sequence[ResumeCell], outcomes: Outcomes) -> Tables:
    """Return the table `resumes` of all cells."""
    rows = [row for cell in cells for row in outcomes[cell.label].values["resumes"]]
    return {"resumes": RESUMES.framed(rows)}


def _state_facts(
    cells: Sequence[ResumeCell], outcomes: Outcomes, tables: Tables
) -> Meta:
    """Return under 'says' the `ResumeFacts`, with the shape before the crash."""
    cell = cells[0]
    crash_facts = {"epoch": cell.epoch, "step": cell.step, "seed": cell.shape.seed}
    shape = {
        name: value
        for name, value in facts_of(cell.shape).items()
        if name in ResumeFacts.__annotations__
    }
    return {
        "says": {
            **shape,
            **crash_facts,
            "storage": cell.storage.name,
            "rows": len(cells),
        }
    }


def _find_faults(result: Result) -> Iterator[Problem]:
    """Yield a problem if the table has another number of rows than ``meta.json`` says."""
    table = result.tables["resumes"]
    rows = result.meta["says"]["rows"]
    if len(table) != rows:
        rule = f"must have {rows} rows, as meta.json says"
        yield Problem("resumes.csv", rule, f"{len(table)} rows", REMEDY)


STUDY: Study[Sequence[ResumeCell]] = Study(
    kind="resume",
    verb="loader",
    stages=(cells_by_label,),
    collect=_collect,
    stored={"resumes": RESUMES},
    figures=lambda result: {
        "resume": resume_chart(result.tables["resumes"], result.meta["says"])
    },
    one_figure=True,
    verdict=lambda result: resume_verdict(
        result.tables["resumes"], result.meta["says"]
    ),
    **documents_with_details(
        lambda result: resume_parts(result.tables["resumes"], result.meta["says"]),
        lambda result: resume_details(result.tables["resumes"], result.meta["says"]),
    ),
    facts=_state_facts,
    says=ResumeMeta,
    faults=_find_faults,
    again=f"{__name__}:repeat",
)
