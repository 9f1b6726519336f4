"""What is asked of a study of shuffling strategies: its runs as cells, and what tables say of
them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from simshuffle.errors import InputError, Problem, refuse
from simshuffle.studies.training.study import Trainings
from simshuffle.studies.training.tables import ABSENT
from simshuffle.study.study import Meta, Request
from simshuffle.train.cell import TrainingCell, named
from simshuffle.train.emulate import check_run, device_named
from simshuffle.train.run import Run
from simshuffle.train.samples import TrainingSet
from simshuffle.train.study import Study, load_study
from simshuffle.train.training import Training
from simshuffle.workload.exchange import TrainedExchange
from simshuffle.workload.exchange.schedule import AUTHORS


def request(study: Study, device: str) -> Request[Trainings]:
    """The runs of a study, which that device trains; errors as of `cells_of`."""
    return request_of(study, cells_of(study, device), device)


def request_of(study: Study, cells: Mapping[str, TrainingCell], device: str) -> Request[Trainings]:
    """The same, given its runs by name."""
    runs = [cell.training_run for cell in cells.values()]
    known = [run.exchange.exchange_schedule for run in runs]
    several = len({schedule.name for schedule in known if schedule is not None}) > 1
    told = zip(cells, runs, _variants(runs), _strategies(runs, several), strict=True)
    descriptions = {name: description(run, variant, label) for name, run, variant, label in told}
    asked = {"device": device.partition(":")[0], "torch": version("torch")}
    trainings = Trainings(study.name, study.description, device, cells, descriptions)
    return Request(study.name, trainings, {"study.yaml": study.to_yaml()}, asked)


def repeat(folder: Path, meta: Meta) -> Request[Trainings]:
    """The request of a result, from its folder, or raise InputError; trained on the same kind of
    device. Networks and data of a program's own are not there, nor ranks that were processes."""
    device, name = str(meta["device"]).partition(":")[0], str(meta["study"])
    rule, remedy = "", "again, and simshuffle compare the two folders."
    if "own" in meta:
        rule = "must name its network and data, and these were a program's own"
        remedy = f"Run that program {remedy}"
    elif "ranks" in meta:
        rule = "must be trained on emulated ranks, and these were processes"
        remedy = f"Train it with torchrun {remedy}"
    if rule:
        refuse("", rule, name, remedy, str(folder))
    device_named(device)
    return request(load_study(folder / "study.yaml"), device)


def cells_of(study: Study, device: str) -> dict[str, TrainingCell]:
    """The runs of a study by name: strategy, M, seed and what stands for the run, the same in every
    study; or raise InputError where one cannot be trained."""
    runs, loaded = study.all_runs(), dict[str, TrainingSet]()

    def check(run: Run) -> None:
        data = repr(run.data)
        if data not in loaded:
            loaded[data] = run.data.load()
        check_run(run, loaded[data])

    check_all(runs, study.name, check)
    return named(
        TrainingCell(run, len(loaded[repr(run.data)].train), run_label(run), device) for run in runs
    )


MEASURED = {"importance_pass"}
"""Keys of a training that only strategies with such a pass follow."""
TOGETHER = "training.sync_ranks"
"""What the batch norm of tables, 'sync', does not tell."""


def run_label(run: Run) -> str:
    """Strategy, M and seed, as they may stand in the name of a file."""
    label = strategy_label(run.exchange, run.training)
    fraction = f"-{run.exchange.fraction:g}" if run.exchange.fraction else ""
    plain = "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in label)
    return f"{plain}{fraction}_M{run.world_size}_s{run.seed}"


def description(run: Run, variant: str, strategy: str) -> dict[str, Any]:
    """What tables say of a run, and what they call its variant and its strategy: the values of
    `simshuffle.studies.training.tables.DESCRIPTION_COLUMNS`."""
    return {
        "variant": variant,
        "batch_norm": run.training.batch_norm if run.model.has_batch_norm else ABSENT,
        "world_size": run.world_size,
        "strategy": strategy,
        "exchange_fraction": run.exchange.fraction,
        "seed": run.seed,
        "data": run.data.label,
        "model": run.model.label,
        "partition": _partition_label(run),
        "epochs_planned": run.training.epochs,
        "learning_rate": run.training.peak_learning_rate(run.world_size),
    }


def strategy_label(exchange: TrainedExchange, training: Training | None = None) -> str:
    """The strategy's name, with what is set otherwise than by default, but for Q, in parentheses;
    ``training`` says how importance is measured in a pass."""
    return _labelled(exchange, _details(exchange, training))


def _strategies(runs: Sequence[Run], several_schedules: bool) -> list[str]:
    """For each run the `strategy_label` for tables, without what all loaders of one name have, and
    the authors' schedule unless there are ``several_schedules``: it decides times and no
    accuracy."""
    details = [_details(run.exchange, run.training) for run in runs]
    shared: dict[str, set[str]] = {}
    for run, detail in zip(runs, details, strict=True):
        name = run.exchange.short_name
        if run.exchange.fetches:
            shared[name] = shared.get(name, {*detail}) & {*detail}
    out = []
    for run, detail in zip(runs, details, strict=True):
        known = shared.get(run.exchange.short_name, set())
        unsaid = known if several_schedules else known | {AUTHORS}
        out.append(_labelled(run.exchange, [each for each in detail if each not in unsaid]))
    return out


def _labelled(exchange: TrainedExchange, details: Sequence[str]) -> str:
    return exchange.short_name + (f" ({', '.join(details)})" if details else "")


def _details(exchange: TrainedExchange, training: Training | None) -> list[str]:
    """What is set otherwise than by default, as 'key=value', but for what the name tells and Q."""
    of = exchange.exchange_schedule
    authors = of.authors_settings if of is not None and of.name == AUTHORS else {}
    values = exchange.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={**exchange.in_name, "exchange_fraction": True, "schedule": {*authors}},
    )
    details = [AUTHORS] if authors else []
    details += [f"{key.rpartition('.')[2]}={value}" for key, value in _flat(values).items()]
    if training is not None and exchange.inference_pass and training.refreshes_statistics:
        details.append(f"importance_pass={training.importance_pass}")
    return details


def _partition_label(run: Run) -> str:
    values = _flat(run.partition.model_dump(mode="json", exclude={"kind"}))
    return run.partition.kind + "".join(f" {key}={value}" for key, value in values.items())


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as one with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        whole = f"{before}{key}"
        out |= _flat(value, f"{whole}.") if isinstance(value, dict) else {whole: value}
    return out


def _variants(runs: Sequence[Run]) -> list[str]:
    """For each run, 'key=value' of whatever else varies in the study than strategy, ranks, batch
    norm, seed and how importance is measured; '' where nothing does. A key of the training is left
    out if ranks and batch norm decide it, as often the learning rate, unless it is how many ranks
    normalise together; one of the data, say, where it has its default, if there are several kinds
    of data."""
    elsewhere: dict[str, Any] = {
        **dict.fromkeys(("exchange", "seed", "world_size"), True),
        "training": MEASURED,
    }
    flat = [_flat(run.model_dump(mode="json", exclude=elsewhere)) for run in runs]
    decided = [(run.world_size, run.training.batch_norm) for run in runs]
    telling = []
    for key in dict.fromkeys(key for values in flat for key in values):
        found = {
            (of if key.startswith("training.") and key != TOGETHER else None, repr(values.get(key)))
            for of, values in zip(decided, flat, strict=True)
        }
        if key != "training.batch_norm" and len(found) > len({of for of, _ in found}):
            telling.append(key)
    names = {key: key.removesuffix(".kind").rpartition(".")[2] for key in telling}
    several = {key.partition(".")[0] for key in telling if key.endswith(".kind")}
    common = {
        key
        for key in (set.intersection(*map(set, flat)) if flat else ())
        if key.endswith(".kind") or key.partition(".")[0] not in several
    }
    chosen = [common | {*_flat(run.model_dump(mode="json", exclude_defaults=True))} for run in runs]
    return [
        ", ".join(
            f"{names[key]}={values[key]}"
            for key in telling
            if key in values.keys() & of and (key != TOGETHER or values[key])
        )
        for values, of in zip(flat, chosen, strict=True)
    ]


def check_all(
    runs: Sequence[Run], source: str, check: Callable[[Run], None], told: Callable[[str], str] = str
) -> None:
    """See before the first of ``runs`` that none is bound to fail: ``check`` those that differ in
    what decides it, or raise InputError with every problem, of which ``told`` names the key."""
    problems, seen = dict[Problem, None](), set[str]()
    for run in runs:
        near = getattr(run.exchange.exchange_schedule, "partner_scope", "")
        order = run.exchange if run.exchange.fetches else near
        parts = repr((run.data, run.model, run.training, run.world_size, run.cluster, order))
        if parts in seen:
            continue
        seen.add(parts)
        try:
            check(run)
        except InputError as error:
            problems |= dict.fromkeys(replace(of, path=told(of.path)) for of in error.problems)
    if problems:
        raise InputError(list(problems), source)
