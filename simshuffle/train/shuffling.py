"""A study of shuffling strategies as a request: its runs as cells, and the columns that
describe each run in tables.
"""

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
from simshuffle.train.cell import TrainingCell, cells_by_name
from simshuffle.train.emulate import check_run, find_device
from simshuffle.train.run import Run
from simshuffle.train.samples import TrainingSet
from simshuffle.train.study import Study, load_study
from simshuffle.train.training import Training
from simshuffle.workload.exchange import TrainedExchange
from simshuffle.workload.exchange.schedule import AUTHORS


def request(study: Study, device: str) -> Request[Trainings]:
    """Return the request of a study whose runs ``device`` trains; errors as of
    `cells_of`.
    """
    return request_of(study, cells_of(study, device), device)


def request_of(
    study: Study, cells: Mapping[str, TrainingCell], device: str
) -> Request[Trainings]:
    """Return the request of a study, given its runs as ``cells`` by name.

    It has the study as YAML, and remembers the kind of device, such as 'cuda' of
    'cuda:1', and torch's version.
    """
    runs = [cell.training_run for cell in cells.values()]
    schedules = [run.exchange.exchange_schedule for run in runs]
    several_schedules = (
        len({schedule.name for schedule in schedules if schedule is not None}) > 1
    )
    labels = _strategies(runs, several_schedules)
    descriptions = {
        name: description(run, variant, label)
        for name, run, variant, label in zip(
            cells, runs, _variants(runs), labels, strict=True
        )
    }
    device_values = {"device": device.partition(":")[0], "torch": version("torch")}
    trainings = Trainings(study.name, study.description, device, cells, descriptions)
    return Request(
        study.name, trainings, {"study.yaml": study.to_yaml()}, device_values
    )


def repeat(folder: Path, meta: Meta) -> Request[Trainings]:
    """Return the request of a result, from its folder, to be trained again on such a
    device.

    Raises:
        InputError: the result used networks and data of a program's own, which are not
            in the folder; its ranks were processes; there is no such device here; or as
            of `load_study` and `cells_of`.
    """
    device = str(meta["device"]).partition(":")[0]
    name = str(meta["study"])
    rule = ""
    remedy = "again, and compare both folders with simshuffle compare."
    if "own" in meta:
        rule = "must name its network and data, but a program passed its own"
        remedy = f"Run that program {remedy}"
    elif "ranks" in meta:
        rule = "must be trained on emulated ranks, but its ranks were processes"
        remedy = f"Train the study with torchrun {remedy}"
    if rule:
        refuse("", rule, name, remedy, str(folder))
    find_device(device)
    return request(load_study(folder / "study.yaml"), device)


def cells_of(study: Study, device: str) -> dict[str, TrainingCell]:
    """Return the runs of a study as cells, by name: strategy, M, seed, and a digest of
    all that decides the run.

    Each is tried on a few samples first, as of `check_all`, for which its data are
    loaded; a warning is given of local batches larger than a shard.

    Raises:
        InputError: with the problems of all runs that cannot be trained.
    """
    runs = study.all_runs()
    data_sets: dict[str, TrainingSet] = {}

    def check(run: Run) -> None:
        """Try the run on a few samples of its data, which are loaded once for all."""
        key = repr(run.data)
        if key not in data_sets:
            data_sets[key] = run.data.load()
        check_run(run, data_sets[key])

    check_all(runs, study.name, check)
    return cells_by_name(
        TrainingCell(run, len(data_sets[repr(run.data)].train), run_label(run), device)
        for run in runs
    )


IMPORTANCE_KEYS = {"importance_pass"}
"""Keys of a training that matter only to strategies that measure importance in a pass."""
SYNC_RANKS = "training.sync_ranks"
"""Key of the ranks that normalise together, which the tables' batch norm 'sync' does
not tell.
"""


def run_label(run: Run) -> str:
    """Return strategy, Q (unless 0 or none), M and seed of a run, in letters that the
    name of a file may have; others become '_'.
    """
    label = strategy_label(run.exchange, run.training)
    fraction = f"-{run.exchange.fraction:g}" if run.exchange.fraction else ""
    safe_label = "".join(
        letter if letter.isalnum() or letter in "-." else "_" for letter in label
    )
    return f"{safe_label}{fraction}_M{run.world_size}_s{run.seed}"


def description(run: Run, variant: str, strategy: str) -> dict[str, Any]:
    """Return what tables say about a run: the values of
    `simshuffle.studies.training.tables.DESCRIPTION_COLUMNS`.

    Args:
        run: with its data, network, ranks and training.
        variant: its name in tables, if other keys than those of the columns vary in the
            study.
        strategy: its label in tables.

    Returns:
        The values by column. ``exchange_fraction`` is None where every epoch is drawn
        anew; ``batch_norm`` is `ABSENT` where the network has none; ``learning_rate``
        is that after the warm-up.
    """
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
    """Return the strategy's name, with values that are not the default, except Q, in
    parentheses.

    ``training`` says how importance is measured in a pass; None leaves this out, as
    does its default.
    """
    return _strategy_name(exchange, _details(exchange, training))


def _strategies(runs: Sequence[Run], several_schedules: bool) -> list[str]:
    """Return for each run the `strategy_label` for tables, shortened.

    It omits details that all loaders of one name share, and the authors' schedule
    unless there are ``several_schedules``: it decides times and not accuracy.
    """
    details = [_details(run.exchange, run.training) for run in runs]
    # details that all loaders of one name have tell nothing apart
    shared: dict[str, set[str]] = {}  # by name of the loader
    for run, detail in zip(runs, details, strict=True):
        name = run.exchange.short_name
        if run.exchange.fetches:
            shared[name] = shared.get(name, {*detail}) & {*detail}
    labels = []
    for run, detail in zip(runs, details, strict=True):
        omitted = shared.get(run.exchange.short_name, set())
        if not several_schedules:
            omitted = omitted | {AUTHORS}
        labels.append(
            _strategy_name(
                run.exchange, [text for text in detail if text not in omitted]
            )
        )
    return labels


def _strategy_name(exchange: TrainedExchange, details: Sequence[str]) -> str:
    """Return the strategy's name with ``details`` in parentheses."""
    return exchange.short_name + (f" ({', '.join(details)})" if details else "")


def _details(exchange: TrainedExchange, training: Training | None) -> list[str]:
    """Return values of a strategy that are not the default, as 'key=value', except
    those in its name and Q; 'authors' stands for all keys of that schedule.
    """
    schedule = exchange.exchange_schedule
    has_authors = schedule is not None and schedule.name == AUTHORS
    authors_keys = (
        schedule.authors_settings if schedule is not None and has_authors else {}
    )
    values = exchange.model_dump(
        mode="json",
        exclude_defaults=True,
        exclude={
            **exchange.in_name,
            "exchange_fraction": True,
            "schedule": {*authors_keys},
        },
    )
    details = [AUTHORS] if authors_keys else []
    details += [
        f"{key.rpartition('.')[2]}={value}"
        for key, value in _by_dotted_key(values).items()
    ]
    if (
        training is not None
        and exchange.inference_pass
        and training.refreshes_statistics
    ):
        details.append(f"importance_pass={training.importance_pass}")
    return details


def _partition_label(run: Run) -> str:
    """Return the kind of a run's partition and its values as text."""
    values = _by_dotted_key(run.partition.model_dump(mode="json", exclude={"kind"}))
    return run.partition.kind + "".join(
        f" {key}={value}" for key, value in values.items()
    )


def _by_dotted_key(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one with dotted keys, each behind ``prefix``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        dotted_key = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= _by_dotted_key(value, f"{dotted_key}.")
        else:
            flat[dotted_key] = value
    return flat


def _variants(runs: Sequence[Run]) -> list[str]:
    """Return for each run, as 'key=value', the keys that vary in the study besides
    strategy, ranks, batch norm, seed and the measuring of importance; '' where nothing
    does.

    A key of the training is left out if ranks and batch norm decide it, as often the
    learning rate, except the ranks that normalise together. A key of the data, for
    example, is left out where it has its default, if there are several kinds of data.
    """
    columns: dict[str, Any] = {
        **dict.fromkeys(("exchange", "seed", "world_size"), True),
        "training": IMPORTANCE_KEYS,
    }
    values_of_runs = [
        _by_dotted_key(run.model_dump(mode="json", exclude=columns)) for run in runs
    ]
    varying = _varying_keys(runs, values_of_runs)
    names = {key: key.removesuffix(".kind").rpartition(".")[2] for key in varying}
    records_of_kinds = {
        key.partition(".")[0] for key in varying if key.endswith(".kind")
    }
    in_all_runs = (
        set.intersection(*map(set, values_of_runs)) if values_of_runs else set()
    )
    always_named = {
        key
        for key in in_all_runs
        if key.endswith(".kind") or key.partition(".")[0] not in records_of_kinds
    }
    variants = []
    for run, values in zip(runs, values_of_runs, strict=True):
        set_keys = {*_by_dotted_key(run.model_dump(mode="json", exclude_defaults=True))}
        keys_to_name = values.keys() & (always_named | set_keys)
        texts = [
            f"{names[key]}={values[key]}"
            for key in varying
            if key in keys_to_name and (key != SYNC_RANKS or values[key])
        ]
        variants.append(", ".join(texts))
    return variants


def _varying_keys(
    runs: Sequence[Run], values_of_runs: Sequence[Mapping[str, Any]]
) -> list[str]:
    """Return the dotted keys whose values vary among runs, except batch norm.

    A key of the training counts only if it varies among runs with equal ranks and batch
    norm.
    """
    ranks_and_norm = [(run.world_size, run.training.batch_norm) for run in runs]
    varying = []
    for key in dict.fromkeys(key for values in values_of_runs for key in values):
        # a learning rate that follows from the ranks does not vary by itself
        within = key.startswith("training.") and key != SYNC_RANKS
        variants = {
            (group if within else None, repr(values.get(key)))
            for group, values in zip(ranks_and_norm, values_of_runs, strict=True)
        }
        if key != "training.batch_norm" and len(variants) > len(
            {group for group, _ in variants}
        ):
            varying.append(key)
    return varying


def check_all(
    runs: Sequence[Run],
    source: str,
    check: Callable[[Run], None],
    rename_key: Callable[[str], str] = str,
) -> None:
    """Check before the first of ``runs`` that none is bound to fail.

    Args:
        runs: of a study; those that differ only in seed, partition or what is exchanged
            are checked once.
        source: file or function, which the error names.
        check: raises InputError if a run cannot be trained; other errors pass.
        rename_key: turns the key of a problem into the one that the error names.

    Raises:
        InputError: with the problems of all runs, each once.
    """
    problems: dict[Problem, None] = {}
    checked: set[str] = set()
    for run in runs:
        partner_scope = getattr(run.exchange.exchange_schedule, "partner_scope", "")
        order = run.exchange if run.exchange.fetches else partner_scope
        deciding = (
            run.data,
            run.model,
            run.training,
            run.world_size,
            run.cluster,
            order,
            run.exchange.needs_importance,
        )
        # seeds and exchanged samples do not decide whether a run can be trained
        if repr(deciding) in checked:
            continue
        checked.add(repr(deciding))
        try:
            check(run)
        except InputError as error:
            problems |= dict.fromkeys(
                replace(problem, path=rename_key(problem.path))
                for problem in error.problems
            )
    if problems:
        raise InputError(list(problems), source)
