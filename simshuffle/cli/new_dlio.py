"""A workload of DLIO, and so of MLPerf Storage, as a scenario: its files, its reader and its
accelerators, which only pause."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.cli.common import is_name
from simshuffle.cli.dlio_keys import DlioKeys, finite_number
from simshuffle.cli.new_machine import machine_text, scalar
from simshuffle.cli.new_questions import BY_NAME, QUESTIONS, answered, asked_of
from simshuffle.cli.new_scenario import checked
from simshuffle.cli.new_sources import sources
from simshuffle.errors import InputError, Problem, refuse
from simshuffle.report.report import DLIO_PAUSES
from simshuffle.spec.library import read_yaml
from simshuffle.study.matching import flat

MACHINE = "Machine"
"""The group of the questions that a file of DLIO leaves open."""
ACCELERATOR = "emulated"
DEFAULT_PREFETCH = 2
FILE_SYSTEMS = ("local_fs", "local", "file", "parallel_fs", "direct_fs")
"""Types of storage that are file systems; all others are object stores."""
SHUFFLES = ("reader.file_shuffle", "reader.sample_shuffle")
UNSHUFFLED = (None, "off", False)
"""Values that leave an order as it is; YAML reads a bare off as false."""
PAGE_CACHE_OFF = "  page_cache: 0 B  # reader.odirect: files are read beside the page cache\n"
OBJECT_STORE = """\
object_store: {}  # storage.storage_type; as Amazon S3 where nothing is said (docs/scenario.md)
"""
KEYS = {
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

REMEDIES = {
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
PASSES = """\
# A run of the benchmark passes if accelerators pause for {au} of the time (metric.au). Here that is
# accelerator_utilisation in epochs.csv, first batch and first epoch included. It is a prediction,
# and never a result of MLPerf.
"""


def read_dlio(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read what a YAML file of DLIO says of reading and pausing.

    Of a file that Hydra wrote its section 'workload' is read.

    Returns:
        Texts of the scenario by name, and a sentence for each thing that is left out or assumed.

    Raises:
        InputError: the file cannot be read; or a value is missing, not valid, or asks for what is
            not simulated, each with its key.
    """
    documents = read_yaml(path)
    plain = documents[0] if len(documents) == 1 else None
    if isinstance(plain, dict) and isinstance(plain.get("workload"), dict):
        plain = plain["workload"]
    if not isinstance(plain, dict) or not isinstance(plain.get("dataset"), dict):
        rule = "must be a workload of DLIO that trains, with a section 'dataset'"
        remedy = "Checkpoints alone read nothing. See configs/dlio/workload of mlcommons/storage."
        raise InputError(Problem("", rule, remedy=remedy), str(path))
    plain = {("reader" if key == "data_reader" else key): value for key, value in plain.items()}
    keys = DlioKeys({key: value for key, value in flat(plain).items() if value != {}})
    values = {"source": scalar(path.name), **_trained(keys), **_stored(keys), **_loaded(keys)}
    keys.refuse_deciding()
    if keys.problems:
        raise InputError(keys.problems, str(path))
    per_file, batch = int(values["per_file"]), int(values["batch"])
    group = int(values["row_group"]) or batch
    values |= {"per_request": str(min(per_file, group)), "thirds": str(3 * batch)}
    return values, (*keys.all_left_out(), *keys.assumed)


def _trained(keys: DlioKeys) -> dict[str, str]:
    """Read accelerators, epochs and what passes."""
    if keys.get("workflow.train") is False:
        rule = "must be true: without training nothing is read"
        keys.add_problem("workflow.train", rule, False, "Choose a workload that trains.")
    pause, std = keys.drawn_time("train.computation_time")
    if pause <= 0:
        rule, remedy = "must take longer than 0 s", "For example 0.323."
        keys.add_problem("train.computation_time", rule, f"{pause:g}", remedy)
        pause = 1.0
    au = keys.number("metric.au", default=0.9)
    if not 0 < au <= 1:
        rule = "must be a share, above 0 and at most 1"
        keys.add_problem("metric.au", rule, au, "For example 0.9.")
    if keys.get("train.seed_change_epoch") is False:
        keys.left_out.append("train.seed_change_epoch: every epoch has an order of its own")
    name = str(keys.get("model.name", "model"))
    return {
        "model": scalar(name if is_name(name) else "dlio"),
        "pause": f"{pause:.9g}",
        "jitter": f"{std / pause:.6g}",
        "epochs": str(keys.whole("train.epochs", default=1)),
        "seed": str(keys.whole("train.seed", default=123, least=0)),
        "steps": str(keys.whole("train.total_training_steps", default=-1, least=-1)),
        "au": f"{au:g}",
    }


def _stored(keys: DlioKeys) -> dict[str, str]:
    """Read the data set, and what it is stored in."""
    if keys.get("dataset.format") == "synthetic":
        rule = "must be that of files: synthetic samples are read from nowhere"
        keys.add_problem("dataset.format", rule, "synthetic", "For example npz.")
    files = keys.whole("dataset.num_files_train")
    per_file = keys.whole("dataset.num_samples_per_file", default=1)
    names = ("dataset.record_length_bytes", "dataset.record_length")
    size = _array_nbytes(keys, "dataset.record_dims", "dataset.record_element_type")
    if size:
        keys.get(*names)  # the shape comes before the length
    else:
        size = keys.number(*names, least=1, example="146600628")
    std = keys.number(*(f"{name}_stdev" for name in names), default=0.0)
    resized = _array_nbytes(
        keys, "reader.transformed_record_dims", "reader.transformed_record_element_type"
    )
    resized_to = keys.number(*(f"{name}_resize" for name in names), default=0.0)
    read_share, row_group = _parquet(keys)
    return {
        "samples": str(files * per_file),
        "files": str(files),
        "per_file": str(per_file),
        "size": f"{size * read_share:.12g}",
        "std": f"{std * read_share:.12g}",
        "resized": f"{resized or resized_to or size * read_share:.12g}",
        "row_group": str(row_group),
        "store": _storage(keys),
    }


def _array_nbytes(keys: DlioKeys, shape_key: str, type_key: str) -> float | None:
    """Return the bytes of an array by its shape and the type of its elements; None without."""
    shape, kind = keys.get(shape_key), keys.get(type_key)
    if not shape:
        return None
    sides = [finite_number(side) or 0.0 for side in shape] if isinstance(shape, list) else [0.0]
    if min(sides) < 1:
        rule = "must be a list of numbers, at least 1"
        keys.add_problem(shape_key, rule, shape, "For example [512, 512].")
        return 1.0
    return math.prod(sides) * _element_nbytes(keys, type_key, kind or "uint8")


def _element_nbytes(keys: DlioKeys, key: str, kind: Any) -> int:
    """Return the bytes of an element of a type of numpy; 1 in place of one that is none."""
    try:
        nbytes = np.dtype(str(kind)).itemsize
    except TypeError:
        nbytes = 0
    if nbytes:
        return nbytes
    keys.add_problem(key, "must be a type of numpy", kind, "For example uint8.")
    return 1


def _parquet(keys: DlioKeys) -> tuple[float, int]:
    """Return the share of a record's bytes that is read, by the columns that are, and the samples
    of a row group where a request reads one; 0 where it does not."""
    columns = [key for key in keys.flat if key.startswith("dataset.parquet.columns.")]
    numbers = dict.fromkeys(key.split(".")[3] for key in columns)
    read = total = 0.0
    if any(keys.flat.get(f"dataset.parquet.columns.{n}.read") is False for n in numbers):
        for number in numbers:
            column = f"dataset.parquet.columns.{number}"
            for part in ("name", "read"):
                keys.get(f"{column}.{part}")
            kind = keys.get(f"{column}.dtype") or "float32"
            count = keys.number(f"{column}.size", default=1.0, least=1.0)
            nbytes = count * _element_nbytes(keys, f"{column}.dtype", kind)
            total += nbytes
            read += nbytes * (keys.get(f"{column}.read") is not False)
        if not read:
            rule, remedy = "must be true for one column at least", "Leave read out where it is."
            keys.add_problem("dataset.parquet.columns", rule, "false for all", remedy)
    by_group = keys.get("dataset.parquet.read_mode") == "row_group"
    row_group = keys.whole("dataset.parquet.row_group_size", default=0, least=0)
    return (read / total if read else 1.0), row_group if by_group else 0


def _storage(keys: DlioKeys) -> str:
    """Return 'pfs' or 'object_store', what files are read from."""
    kind = str(keys.get("storage.storage_type") or FILE_SYSTEMS[0])
    on_disk = str(keys.flat.get("storage.storage_root", "")).startswith("file:")
    if kind in FILE_SYSTEMS or (on_disk and kind == "s3dlio"):
        return "pfs"
    keys.assumed.append(
        f"storage.storage_type: {scalar(kind)} is an object store with the numbers of Amazon S3"
        " (cluster.object_store); set those of yours"
    )
    return "object_store"


def _loaded(keys: DlioKeys) -> dict[str, str]:
    """Read the loader: ``read_threads`` workers with an equal share of ``prefetch_size`` batches
    each, rounded up; 0 are PyTorch's own 2 for each."""
    loader = keys.get("reader.data_loader")
    if loader == "synthetic":
        rule = "must read files: a synthetic loader reads nothing"
        keys.add_problem("reader.data_loader", rule, "synthetic", "For example pytorch.")
    workers = 1
    if keys.get("reader.read_threads") == 0:
        rule = "must be at least 1: a step that reads its own batch is not simulated"
        keys.add_problem("reader.read_threads", rule, 0, "Write 1 or more.")
    else:
        workers = keys.whole("reader.read_threads", default=1)
    ahead = keys.whole("reader.prefetch_size", default=DEFAULT_PREFETCH, least=0)
    each = math.ceil(ahead / workers) or DEFAULT_PREFETCH
    decode, spread = keys.drawn_time("reader.preprocess_time", default=0.0)
    if spread:
        given = keys.flat.get("reader.preprocess_time_stdev") is not None
        name = "reader.preprocess_time" + "_stdev" * given
        keys.left_out.append(f"{name}: preprocessing always takes its mean")
    _note_order(keys)
    return {
        "batch": str(keys.whole("reader.batch_size", default=1)),
        "workers": str(workers),
        "prefetch": str(workers * each),
        "decode": f"{decode:.9g}",
        "cached": "no" if keys.get("reader.odirect") is True else "yes",
    }


def _note_order(keys: DlioKeys) -> None:
    """Note that a scenario shuffles every epoch, where DLIO does not."""
    off = [name for name in SHUFFLES if keys.get(name) in UNSHUFFLED]
    given = [name for name in off if keys.flat.get(name) is not None]
    for name in given or (off if len(off) == len(SHUFFLES) else [])[:1]:
        keys.left_out.append(f"{name}: every epoch is shuffled, whatever it says")


def dlio_drafts(
    name: str, path: Path, given: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Write DLIO's file ``path`` as texts of the scenario ``name`` and of its machine.

    Args:
        name: of the scenario.
        path: the file of DLIO.
        given: answers to the questions about the machine, by name.

    Returns:
        The texts by the names of their files; and a sentence for each thing that they leave out or
        assume.

    Raises:
        InputError: as `read_dlio`; or an answer is missing, not valid or about what the file
            decides; or no step is made; or they do not make a scenario.
    """
    values, notes = read_dlio(path)
    rule, remedy = "is decided by the file of DLIO", "Leave it out, and change what is written."
    by_file = {q.name: q.default for q in QUESTIONS if q.group != MACHINE}
    decided = [q for q in QUESTIONS if q.name in given and q.name in by_file]
    if decided:
        raise InputError(
            [Problem(q.option, rule, given[q.name], REMEDIES.get(q.name, remedy)) for q in decided]
        )
    asked = asked_of(given.get("topology", BY_NAME["topology"].default))
    own = {"accelerator": ACCELERATOR} if BY_NAME["accelerator"] in asked else {}
    answers = answered({**own, **given, **by_file})
    ranks = int(answers["hosts"]) * int(answers["gpus"])
    values, by_steps = _cut_to_steps(values, ranks)
    notes = (*notes, *by_steps, *_note_cores(values, answers))
    head = PASSES.format(au=values["au"]) + "".join(f"# Note: {text}\n" for text in notes)
    text = SCENARIO.format(
        name=name,
        pauses=DLIO_PAUSES,
        label=scalar(name),
        ranks=ranks,
        device=scalar(answers["accelerator"]),
        notes=head,
        **values,
    )
    machine = machine_text(name, answers, sources(given))
    if values["cached"] == "no":
        machine = _without_page_cache(machine)
    if values["store"] == "object_store" and "\nobject_store:" not in machine:
        machine += OBJECT_STORE
    texts = {f"{name}.yaml": text, f"{name}-cluster.yaml": machine}
    _check_steps(values, ranks, str(path))
    checked(texts, KEYS, str(path))
    return texts, notes


def _cut_to_steps(values: dict[str, str], ranks: int) -> tuple[dict[str, str], list[str]]:
    """Cut the data set to what ``total_training_steps`` read of it in an epoch.

    DLIO ends every epoch after so many steps, and draws other samples in the next one: one epoch
    stands for all, since later ones read what the first left.
    """
    key, steps, samples = "train.total_training_steps", int(values["steps"]), int(values["samples"])
    read = steps * int(values["batch"]) * ranks
    if steps <= 0 or read >= samples:
        return values, []
    note = f"{key}: an epoch is cut to the {read:,} samples of its {steps} steps"
    if values["epochs"] != "1":
        note += f", and one stands for the {values['epochs']}, which read other samples"
    return {**values, "samples": str(read), "epochs": "1"}, [note]


def _note_cores(values: Mapping[str, str], answers: Mapping[str, str]) -> list[str]:
    """Note that preprocessing takes cores here, where there are too few for all readers."""
    readers, cores = int(answers["gpus"]) * int(values["workers"]), int(answers["cores"])
    if not float(values["decode"]) or readers <= cores:
        return []
    return [
        f"reader.preprocess_time: DLIO sleeps, and here it takes a core; the {cores} cores of a"
        f" host (--cores) are fewer than its {readers} readers"
    ]


def _without_page_cache(machine: str) -> str:
    """Return the text of a machine whose memory caches no files."""
    lines = [
        line
        for line in machine.splitlines(keepends=True)
        if not line.lstrip().startswith("page_cache:")
    ]
    memory = next(number for number, line in enumerate(lines) if line.startswith("memory:"))
    return "".join([*lines[: memory + 1], PAGE_CACHE_OFF, *lines[memory + 1 :]])


def _check_steps(values: Mapping[str, str], ranks: int, source: str) -> None:
    """Refuse a file whose samples are fewer than one batch on every rank.

    DLIO makes floor(samples / batch / ranks) steps (main.py: max_steps), which are then none.
    """
    batch, samples, per_file = (int(values[key]) for key in ("batch", "samples", "per_file"))
    fewer = samples // batch
    if samples >= batch * ranks or not fewer:  # where no rank has a batch, the scenario refuses it
        return
    rule = (
        f"makes no step: {samples} samples are less than a batch of {batch} on each of"
        f" {ranks} ranks"
    )
    remedy = (
        f"Use at least {-(-batch * ranks // per_file)} files, or at most {fewer}"
        f" rank{'s' * (fewer > 1)} (--hosts, --gpus)."
    )
    refuse("dataset.num_files_train", rule, values["files"], remedy, source)
