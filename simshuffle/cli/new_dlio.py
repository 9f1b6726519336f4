"""Make a scenario of a workload of DLIO, and so of MLPerf Storage.

It has the files, the reader and the accelerators of the workload; accelerators only pause.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.cli.common import is_name
from simshuffle.cli.dlio_keys import DlioKeys, finite_number
from simshuffle.cli.new_machine import machine_text, yaml_scalar
from simshuffle.cli.new_questions import BY_NAME, QUESTIONS, complete_answers, questions_of
from simshuffle.cli.new_scenario import check_texts
from simshuffle.cli.new_sources import sources_of_inputs
from simshuffle.errors import InputError, Problem, refuse
from simshuffle.report.report import DLIO_PAUSES
from simshuffle.spec.library import read_yaml
from simshuffle.study.matching import flat

MACHINE_GROUP = "Machine"
"""The group of the questions that a file of DLIO leaves open."""
ACCELERATOR = "emulated"
DEFAULT_PREFETCH = 2
FILE_SYSTEMS = ("local_fs", "local", "file", "parallel_fs", "direct_fs")
"""Types of storage that are file systems; all others are object stores."""
SHUFFLE_KEYS = ("reader.file_shuffle", "reader.sample_shuffle")
UNSHUFFLED_VALUES = (None, "off", False)
"""Values that leave an order as it is; YAML reads a bare off as false."""
PAGE_CACHE_OFF = "  page_cache: 0 B  # reader.odirect: files are read beside the page cache\n"
OBJECT_STORE = """\
object_store: {}  # storage.storage_type; as Amazon S3 where nothing is said (docs/scenario.md)
"""
DLIO_KEY_OF_SCENARIO_KEY = {
    "workload.dataset.num_samples": "dataset.num_files_train",
    "workload.dataset.sample_size": "dataset.record_length_bytes",
    "workload.local_batch_size": "reader.batch_size",
    "workload": "reader.batch_size",
    "workload.loader.workers": "reader.read_threads",
    "workload.model.accelerators": "train.computation_time",
    "epochs": "train.epochs",
    "seed": "train.seed",
}
"""The key of DLIO that decides one of a scenario."""

REMEDY_OF_QUESTION = {
    "ranks": "All GPUs are taken. For others: run NAME.yaml --set 'sweep={world_size: [8, 16]}'."
}
SCENARIO = """\
# {source} of DLIO as a scenario, written by `simshuffle new --from-dlio`.
#   simshuffle check {name}.yaml    what follows from these values, before anything is simulated
#   simshuffle run {name}.yaml      seconds of an epoch, and the share in which accelerators pause
{notes}name: {label}
cluster: {name}-cluster.yaml
world_size: {ranks}  # emulated accelerators
epochs: {epochs}
seed: {seed}
workload:
  model:
    name: {model}
    gradient_size: 8 B  # a barrier after every step, here as an allreduce of 8 B
    input_size: 1 B  # nothing is copied to an accelerator that only pauses
    accelerators:
      {device}:
        # train.computation_time: {pause} s for {batch} samples. Forward is a third of it.
        forward: {pause} s / {thirds}
    source: {{accelerators: "{pauses}"}}
  dataset:
    name: {model}
    num_samples: {samples}
    sample_size: {{mean: {size} B, std: {std} B}}
    decoded_size: {{mean: {resized} B}}
    samples_per_file: {per_file}
    samples_per_request: {per_request}  # estimate: one request reads what a batch needs of a file
    decode: {decode} s  # reader.preprocess_time, a pause of the reader for each sample
    encode: 0 s
    source: {{decode: "{pauses}"}}
  local_batch_size: {batch}
  last_batch: drop
  exchange: {{kind: global_shuffle, source: {store}}}
  loader: {{workers: {workers}, prefetch: {prefetch}}}  # reader.read_threads, reader.prefetch_size
  jitter: {{compute: {jitter}}}
  allreduce:  # the barrier, whose time does not matter beside a step
    kind: ring
    rings: 1
    intra_host_latency: 1 us
    inter_host_latency: 1 us
    intra_host_bus_bandwidth: 1 TB/s
    inter_host_bus_bandwidth: 1 TB/s
"""
CRITERION_COMMENT = """\
# A run of the benchmark passes if accelerators pause for {au} of the time (metric.au). Here that is
# accelerator_utilisation in epochs.csv, first batch and first epoch included. It is a prediction,
# and never a result of MLPerf.
"""


def read_dlio(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read from a YAML file of DLIO how samples are read, and how long accelerators pause.

    Of a file that Hydra wrote, the section 'workload' is read.

    Returns:
        Texts of the scenario by name, and a sentence for each thing that is left out or assumed.

    Raises:
        InputError: the file cannot be read; or a value is missing, not valid, or asks for what is
            not simulated, each with its key.
    """
    documents = read_yaml(path)
    document = documents[0] if len(documents) == 1 else None
    if isinstance(document, dict) and isinstance(document.get("workload"), dict):
        document = document["workload"]
    if not isinstance(document, dict) or not isinstance(document.get("dataset"), dict):
        rule = "must be a workload of DLIO that trains, with a section 'dataset'"
        remedy = "Checkpoints alone read nothing. See configs/dlio/workload of mlcommons/storage."
        raise InputError(Problem("", rule, remedy=remedy), str(path))
    document = {
        ("reader" if key == "data_reader" else key): value for key, value in document.items()
    }
    keys = DlioKeys({key: value for key, value in flat(document).items() if value != {}})
    values = {
        "source": yaml_scalar(path.name),
        **read_accelerators(keys),
        **read_data_set(keys),
        **read_loader(keys),
    }
    keys.add_key_problems()
    if keys.problems:
        raise InputError(keys.problems, str(path))
    per_file, batch = int(values["per_file"]), int(values["batch"])
    samples_of_group = int(values["row_group"]) or batch
    values |= {"per_request": str(min(per_file, samples_of_group)), "thirds": str(3 * batch)}
    return values, (*keys.describe_unused_keys(), *keys.assumptions)


def read_accelerators(keys: DlioKeys) -> dict[str, str]:
    """Read the accelerators, the epochs, and the share of time with which a run passes."""
    if keys.get("workflow.train") is False:
        rule = "must be true: without training nothing is read"
        keys.add_problem("workflow.train", rule, False, "Choose a workload that trains.")
    pause, deviation = keys.read_time("train.computation_time")
    if pause <= 0:
        rule, remedy = "must take longer than 0 s", "For example 0.323."
        keys.add_problem("train.computation_time", rule, f"{pause:g}", remedy)
        pause = 1.0
    min_utilisation = keys.read_number("metric.au", default=0.9)
    if not 0 < min_utilisation <= 1:
        rule = "must be a share, above 0 and at most 1"
        keys.add_problem("metric.au", rule, min_utilisation, "For example 0.9.")
    if keys.get("train.seed_change_epoch") is False:
        keys.unused_sentences.append("train.seed_change_epoch: every epoch has an order of its own")
    name = str(keys.get("model.name", "model"))
    return {
        "model": yaml_scalar(name if is_name(name) else "dlio"),
        "pause": f"{pause:.9g}",
        "jitter": f"{deviation / pause:.6g}",
        "epochs": str(keys.read_whole("train.epochs", default=1)),
        "seed": str(keys.read_whole("train.seed", default=123, minimum=0)),
        "steps": str(keys.read_whole("train.total_training_steps", default=-1, minimum=-1)),
        "au": f"{min_utilisation:g}",
    }


def read_data_set(keys: DlioKeys) -> dict[str, str]:
    """Read the data set, and the storage that holds it."""
    if keys.get("dataset.format") == "synthetic":
        rule = "must be that of files: synthetic samples are read from nowhere"
        keys.add_problem("dataset.format", rule, "synthetic", "For example npz.")
    files = keys.read_whole("dataset.num_files_train")
    per_file = keys.read_whole("dataset.num_samples_per_file", default=1)
    names = ("dataset.record_length_bytes", "dataset.record_length")
    size = _array_nbytes(keys, "dataset.record_dims", "dataset.record_element_type")
    if size:
        keys.get(*names)  # the shape comes before the length
    else:
        size = keys.read_number(*names, minimum=1, example="146600628")
    std = keys.read_number(*(f"{name}_stdev" for name in names), default=0.0)
    resized = _array_nbytes(
        keys, "reader.transformed_record_dims", "reader.transformed_record_element_type"
    )
    resized_length = keys.read_number(*(f"{name}_resize" for name in names), default=0.0)
    read_share, row_group = read_parquet(keys)
    return {
        "samples": str(files * per_file),
        "files": str(files),
        "per_file": str(per_file),
        "size": f"{size * read_share:.12g}",
        "std": f"{std * read_share:.12g}",
        "resized": f"{resized or resized_length or size * read_share:.12g}",
        "row_group": str(row_group),
        "store": read_storage(keys),
    }


def _array_nbytes(keys: DlioKeys, shape_key: str, type_key: str) -> float | None:
    """Return the bytes of an array by its shape and the type of its elements; None if shapeless."""
    shape = keys.get(shape_key)
    type_name = keys.get(type_key)
    if not shape:
        return None
    sides = [finite_number(side) or 0.0 for side in shape] if isinstance(shape, list) else [0.0]
    if min(sides) < 1:
        rule = "must be a list of numbers, at least 1"
        keys.add_problem(shape_key, rule, shape, "For example [512, 512].")
        return 1.0
    return math.prod(sides) * _element_nbytes(keys, type_key, type_name or "uint8")


def _element_nbytes(keys: DlioKeys, key: str, type_name: Any) -> int:
    """Return the bytes of an element of a type of numpy; 1 in place of one that is none."""
    try:
        nbytes = np.dtype(str(type_name)).itemsize
    except TypeError:
        nbytes = 0
    if nbytes:
        return nbytes
    keys.add_problem(key, "must be a type of numpy", type_name, "For example uint8.")
    return 1


def read_parquet(keys: DlioKeys) -> tuple[float, int]:
    """Return the share of a record's bytes that is read, and the samples of a row group.

    The samples are 0 where a request does not read a row group.
    """
    column_keys = [key for key in keys.value_of_key if key.startswith("dataset.parquet.columns.")]
    column_numbers = dict.fromkeys(key.split(".")[3] for key in column_keys)
    read_nbytes = total_nbytes = 0.0
    columns = [f"dataset.parquet.columns.{number}" for number in column_numbers]
    if any(keys.value_of_key.get(f"{column}.read") is False for column in columns):
        for column in columns:
            for member in ("name", "read"):
                keys.get(f"{column}.{member}")
            type_name = keys.get(f"{column}.dtype") or "float32"
            count = keys.read_number(f"{column}.size", default=1.0, minimum=1.0)
            nbytes = count * _element_nbytes(keys, f"{column}.dtype", type_name)
            total_nbytes += nbytes
            read_nbytes += nbytes * (keys.get(f"{column}.read") is not False)
        if not read_nbytes:
            rule, remedy = "must be true for one column at least", "Leave read out where it is."
            keys.add_problem("dataset.parquet.columns", rule, "false for all", remedy)
    reads_groups = keys.get("dataset.parquet.read_mode") == "row_group"
    row_group = keys.read_whole("dataset.parquet.row_group_size", default=0, minimum=0)
    return (read_nbytes / total_nbytes if read_nbytes else 1.0), row_group if reads_groups else 0


def read_storage(keys: DlioKeys) -> str:
    """Return the store that files are read from: 'pfs' or 'object_store'."""
    storage_type = str(keys.get("storage.storage_type") or FILE_SYSTEMS[0])
    on_disk = str(keys.value_of_key.get("storage.storage_root", "")).startswith("file:")
    if storage_type in FILE_SYSTEMS or (on_disk and storage_type == "s3dlio"):
        return "pfs"
    keys.assumptions.append(
        f"storage.storage_type: {yaml_scalar(storage_type)} is an object store with the numbers of"
        " Amazon S3 (cluster.object_store); set those of yours"
    )
    return "object_store"


def read_loader(keys: DlioKeys) -> dict[str, str]:
    """Read the loader: its workers, the batches that it prefetches, and the preprocessing.

    ``read_threads`` workers have an equal share of ``prefetch_size`` batches each, rounded up; 0
    are PyTorch's own 2 for each.
    """
    loader = keys.get("reader.data_loader")
    if loader == "synthetic":
        rule = "must read files: a synthetic loader reads nothing"
        keys.add_problem("reader.data_loader", rule, "synthetic", "For example pytorch.")
    workers = 1
    if keys.get("reader.read_threads") == 0:
        rule = "must be at least 1: a step that reads its own batch is not simulated"
        keys.add_problem("reader.read_threads", rule, 0, "Write 1 or more.")
    else:
        workers = keys.read_whole("reader.read_threads", default=1)
    batches_ahead = keys.read_whole("reader.prefetch_size", default=DEFAULT_PREFETCH, minimum=0)
    batches_of_worker = math.ceil(batches_ahead / workers) or DEFAULT_PREFETCH
    decode, deviation = keys.read_time("reader.preprocess_time", default=0.0)
    if deviation:
        has_key = keys.value_of_key.get("reader.preprocess_time_stdev") is not None
        name = "reader.preprocess_time" + "_stdev" * has_key
        keys.unused_sentences.append(f"{name}: preprocessing always takes its mean")
    _note_order(keys)
    return {
        "batch": str(keys.read_whole("reader.batch_size", default=1)),
        "workers": str(workers),
        "prefetch": str(workers * batches_of_worker),
        "decode": f"{decode:.9g}",
        "cached": "no" if keys.get("reader.odirect") is True else "yes",
    }


def _note_order(keys: DlioKeys) -> None:
    """Note that a scenario shuffles every epoch, where DLIO does not."""
    unshuffled_keys = [name for name in SHUFFLE_KEYS if keys.get(name) in UNSHUFFLED_VALUES]
    written_keys = [name for name in unshuffled_keys if keys.value_of_key.get(name) is not None]
    is_unshuffled = len(unshuffled_keys) == len(SHUFFLE_KEYS)
    for name in written_keys or (unshuffled_keys[:1] if is_unshuffled else []):
        keys.unused_sentences.append(f"{name}: every epoch is shuffled, whatever it says")


def dlio_drafts(
    name: str, path: Path, machine_answers: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return DLIO's file ``path`` as texts of the scenario ``name`` and of its machine.

    Args:
        name: of the scenario.
        path: the file of DLIO.
        machine_answers: to the questions about the machine, by name.

    Returns:
        The texts by the names of their files; and a sentence for each thing that they leave out or
        assume.

    Raises:
        InputError: as `read_dlio`; or an answer is missing, not valid or about what the file
            decides; or no step is made; or they do not make a scenario.
    """
    values, notes = read_dlio(path)
    rule, remedy = "is decided by the file of DLIO", "Leave it out, and change what is written."
    file_defaults = {
        question.name: question.default for question in QUESTIONS if question.group != MACHINE_GROUP
    }
    decided_questions = [
        question
        for question in QUESTIONS
        if question.name in machine_answers and question.name in file_defaults
    ]
    if decided_questions:
        raise InputError(
            [
                Problem(
                    question.option,
                    rule,
                    machine_answers[question.name],
                    REMEDY_OF_QUESTION.get(question.name, remedy),
                )
                for question in decided_questions
            ]
        )
    questions = questions_of(machine_answers.get("topology", BY_NAME["topology"].default))
    emulated_accelerator = (
        {"accelerator": ACCELERATOR} if BY_NAME["accelerator"] in questions else {}
    )
    answers = complete_answers({**emulated_accelerator, **machine_answers, **file_defaults})
    ranks = int(answers["hosts"]) * int(answers["gpus"])
    values, step_notes = _cut_to_steps(values, ranks)
    notes = (*notes, *step_notes, *_note_cores(values, answers))
    comments = CRITERION_COMMENT.format(au=values["au"]) + "".join(
        f"# Note: {text}\n" for text in notes
    )
    text = SCENARIO.format(
        name=name,
        pauses=DLIO_PAUSES,
        label=yaml_scalar(name),
        ranks=ranks,
        device=yaml_scalar(answers["accelerator"]),
        notes=comments,
        **values,
    )
    machine = machine_text(name, answers, sources_of_inputs(machine_answers))
    if values["cached"] == "no":
        machine = without_page_cache(machine)
    if values["store"] == "object_store" and "\nobject_store:" not in machine:
        machine += OBJECT_STORE
    texts = {f"{name}.yaml": text, f"{name}-cluster.yaml": machine}
    _check_steps(values, ranks, str(path))
    check_texts(texts, DLIO_KEY_OF_SCENARIO_KEY, str(path))
    return texts, notes


def _cut_to_steps(values: dict[str, str], ranks: int) -> tuple[dict[str, str], list[str]]:
    """Cut the data set to the samples that ``total_training_steps`` read in an epoch.

    DLIO ends every epoch after so many steps, and draws other samples in the next one: one epoch
    stands for all, since later ones read what the first left.
    """
    key = "train.total_training_steps"
    steps = int(values["steps"])
    samples = int(values["samples"])
    read_samples = steps * int(values["batch"]) * ranks
    if steps <= 0 or read_samples >= samples:
        return values, []
    note = f"{key}: an epoch is cut to the {read_samples:,} samples of its {steps} steps"
    if values["epochs"] != "1":
        note += f", and one stands for the {values['epochs']}, which read other samples"
    return {**values, "samples": str(read_samples), "epochs": "1"}, [note]


def _note_cores(values: Mapping[str, str], answers: Mapping[str, str]) -> list[str]:
    """Return a note that preprocessing takes cores, where they are too few for all readers."""
    readers = int(answers["gpus"]) * int(values["workers"])
    cores = int(answers["cores"])
    if not float(values["decode"]) or readers <= cores:
        return []
    return [
        f"reader.preprocess_time: DLIO sleeps, and here it takes a core; the {cores} cores of a"
        f" host (--cores) are fewer than its {readers} readers"
    ]


def without_page_cache(machine: str) -> str:
    """Return the text of a machine whose memory caches no files."""
    lines = [
        line
        for line in machine.splitlines(keepends=True)
        if not line.lstrip().startswith("page_cache:")
    ]
    memory_line = next(index for index, line in enumerate(lines) if line.startswith("memory:"))
    return "".join([*lines[: memory_line + 1], PAGE_CACHE_OFF, *lines[memory_line + 1 :]])


def _check_steps(values: Mapping[str, str], ranks: int, source: str) -> None:
    """Refuse a file whose samples are fewer than one batch on every rank.

    DLIO makes floor(samples / batch / ranks) steps (main.py: max_steps), which are then none.
    """
    batch, samples, per_file = (int(values[key]) for key in ("batch", "samples", "per_file"))
    max_ranks = samples // batch
    if (
        samples >= batch * ranks or not max_ranks
    ):  # where no rank has a batch, the scenario refuses it
        return
    rule = (
        f"makes no step: {samples} samples are less than a batch of {batch} on each of"
        f" {ranks} ranks"
    )
    remedy = (
        f"Use at least {-(-batch * ranks // per_file)} files, or at most {max_ranks}"
        f" rank{'s' * (max_ranks > 1)} (--hosts, --gpus)."
    )
    refuse("dataset.num_files_train", rule, values["files"], remedy, source)
