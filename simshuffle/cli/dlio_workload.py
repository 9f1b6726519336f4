"""Read a workload of DLIO: its data set, its reader, and how long its accelerators
pause.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.cli.common import is_name
from simshuffle.cli.dlio_keys import DlioKeys, finite_number
from simshuffle.cli.new_machine import yaml_scalar
from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import read_yaml
from simshuffle.study.matching import flat

DEFAULT_PREFETCH = 2
FILE_SYSTEMS = ("local_fs", "local", "file", "parallel_fs", "direct_fs")
"""Types of storage that are file systems; all others are object stores."""
SHUFFLE_KEYS = ("reader.file_shuffle", "reader.sample_shuffle")
UNSHUFFLED_VALUES = (None, "off", False)
"""Values that leave an order as it is; YAML reads a bare off as false."""


def read_dlio(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """Read from a YAML file of DLIO how samples are read, and how long accelerators
    pause.

    Of a file that Hydra wrote, the section 'workload' is read. A section 'data_reader'
    counts as 'reader'.

    Returns:
        Texts for the template of a scenario, by name: those of `read_accelerators`,
        `read_data_set` and `read_loader`; source (the file's name), per_request
        (samples that a request reads of a file) and thirds (3 times batch). Then a
        sentence for each thing that is left out or assumed.

    Raises:
        InputError: the file cannot be read, has several documents or no section
            'dataset'; or a value is missing, not valid, or asks for what is not
            simulated, each with its key.
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
        ("reader" if key == "data_reader" else key): value
        for key, value in document.items()
    }
    keys = DlioKeys(
        {key: value for key, value in flat(document).items() if value != {}}
    )
    values = {
        "source": yaml_scalar(path.name),
        **read_accelerators(keys),
        **read_data_set(keys),
        **read_loader(keys),
    }
    keys.add_key_problems()
    if keys.problems:
        raise InputError(keys.problems, str(path))
    per_file = int(values["per_file"])
    batch = int(values["batch"])
    # what one request reads of a file: a row group, or the samples of a batch
    samples_of_group = int(values["row_group"]) or batch
    values |= {
        "per_request": str(min(per_file, samples_of_group)),
        "thirds": str(3 * batch),
    }
    return values, (*keys.describe_unused_keys(), *keys.assumptions)


def read_accelerators(keys: DlioKeys) -> dict[str, str]:
    """Read the accelerators, the epochs, and the utilisation with which a run passes.

    Keys are model, pause (s of a step), jitter (its deviation over its mean), epochs,
    seed, steps (of an epoch; -1 or 0 for all) and au (share of the time, 0 to 1).
    A model whose name is none (`is_name`) is called dlio. Missing are 1 epoch, seed
    123, all steps and an au of 0.9. Problems are noted in ``keys``.
    """
    if keys.get("workflow.train") is False:
        rule = "must be true: without training nothing is read"
        keys.add_problem(
            "workflow.train", rule, False, "Choose a workload that trains."
        )
    pause, deviation = keys.read_time("train.computation_time")
    if pause <= 0:
        rule = "must take longer than 0 s"
        remedy = "For example 0.323."
        keys.add_problem("train.computation_time", rule, f"{pause:g}", remedy)
        pause = 1.0
    min_utilisation = keys.read_number("metric.au", default=0.9)
    if not 0 < min_utilisation <= 1:
        rule = "must be a share, above 0 and at most 1"
        keys.add_problem("metric.au", rule, min_utilisation, "For example 0.9.")
    if keys.get("train.seed_change_epoch") is False:
        keys.unused_sentences.append(
            "train.seed_change_epoch: every epoch has an order of its own"
        )
    name = str(keys.get("model.name", "model"))
    return {
        "model": yaml_scalar(name if is_name(name) else "dlio"),
        "pause": f"{pause:.9g}",
        "jitter": f"{deviation / pause:.6g}",
        "epochs": str(keys.read_whole("train.epochs", default=1)),
        "seed": str(keys.read_whole("train.seed", default=123, minimum=0)),
        "steps": str(
            keys.read_whole("train.total_training_steps", default=-1, minimum=-1)
        ),
        "au": f"{min_utilisation:g}",
    }


def read_data_set(keys: DlioKeys) -> dict[str, str]:
    """Read the data set, and the storage that holds it; note problems in ``keys``.

    Keys are samples (of all files), files, per_file (samples), row_group (samples, 0
    for none) and store; and in bytes size (mean of a sample, of the columns that are
    read), std (its deviation) and resized (decoded; size where the file says nothing).
    A shape (``record_dims``) comes before a length.
    """
    if keys.get("dataset.format") == "synthetic":
        rule = "must be a format of files: synthetic samples are not read from storage"
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
    resized_length = keys.read_number(
        *(f"{name}_resize" for name in names), default=0.0
    )
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
    """Return the bytes of an array by its shape and type; None without a shape.

    A wrong shape is noted as a problem, and stands for 1 byte. The type is uint8 by
    default.
    """
    shape = keys.get(shape_key)
    type_name = keys.get(type_key)
    if not shape:
        return None
    sides = (
        [finite_number(side) or 0.0 for side in shape]
        if isinstance(shape, list)
        else [0.0]
    )
    if min(sides) < 1:
        rule = "must be a list of numbers, at least 1"
        keys.add_problem(shape_key, rule, shape, "For example [512, 512].")
        return 1.0
    return math.prod(sides) * _element_nbytes(keys, type_key, type_name or "uint8")


def _element_nbytes(keys: DlioKeys, key: str, type_name: Any) -> int:
    """Return the bytes of an element of a type of numpy.

    1 in place of a type that numpy does not know or that has no size; it is noted as a
    problem.
    """
    try:
        nbytes = np.dtype(str(type_name)).itemsize
    except TypeError:
        nbytes = 0
    if nbytes:
        return nbytes
    keys.add_problem(key, "must be a type of numpy", type_name, "For example uint8.")
    return 1


def read_parquet(keys: DlioKeys) -> tuple[float, int]:
    """Return the share of a record's bytes that is read, and the samples of a row
    group.

    The share (0 to 1) is 1 unless a column has ``read: false``; if all have it, that is
    noted as a problem. A column without dtype has float32, without size 1 element. The
    samples are 0 where a request does not read a row group.
    """
    column_keys = [
        key for key in keys.value_of_key if key.startswith("dataset.parquet.columns.")
    ]
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
            rule = "must have a column whose `read` is true"
            remedy = "Remove `read: false` from each column that is read."
            keys.add_problem("dataset.parquet.columns", rule, "false for all", remedy)
    reads_groups = keys.get("dataset.parquet.read_mode") == "row_group"
    row_group = keys.read_whole("dataset.parquet.row_group_size", default=0, minimum=0)
    return (
        read_nbytes / total_nbytes if read_nbytes else 1.0
    ), row_group if reads_groups else 0


def read_storage(keys: DlioKeys) -> str:
    """Return the store that files are read from: 'pfs' or 'object_store'.

    All `FILE_SYSTEMS` are 'pfs', a local one and a missing type, too; so is s3dlio with
    a ``storage_root`` file:. Any other type is an object store, noted as an assumption.
    """
    storage_type = str(keys.get("storage.storage_type") or FILE_SYSTEMS[0])
    on_disk = str(keys.value_of_key.get("storage.storage_root", "")).startswith("file:")
    if storage_type in FILE_SYSTEMS or (on_disk and storage_type == "s3dlio"):
        return "pfs"
    keys.assumptions.append(
        f"storage.storage_type: {yaml_scalar(storage_type)} is an object store with the numbers of"
        " Amazon S3; set the numbers of your store in cluster.object_store"
    )
    return "object_store"


def read_loader(keys: DlioKeys) -> dict[str, str]:
    """Read the loader: its workers, the batches that it prefetches, and preprocessing.

    Keys are batch (samples), workers (of a rank), prefetch (batches of all workers of a
    rank), decode (mean s of a sample; its deviation is dropped with a sentence) and
    cached ('no' with ``odirect``, else 'yes'). ``read_threads`` workers have an equal
    share of ``prefetch_size`` batches each, rounded up; 0 are PyTorch's own 2 for each.
    Problems are noted in ``keys``.
    """
    loader = keys.get("reader.data_loader")
    if loader == "synthetic":
        rule = "must read files: a synthetic loader reads nothing"
        keys.add_problem(
            "reader.data_loader", rule, "synthetic", "For example pytorch."
        )
    workers = 1
    if keys.get("reader.read_threads") == 0:
        rule = "must be at least 1: a step that reads its own batch is not simulated"
        keys.add_problem("reader.read_threads", rule, 0, "Write 1 or more.")
    else:
        workers = keys.read_whole("reader.read_threads", default=1)
    batches_ahead = keys.read_whole(
        "reader.prefetch_size", default=DEFAULT_PREFETCH, minimum=0
    )
    # an equal share of each worker, and PyTorch's default for 0
    batches_of_worker = math.ceil(batches_ahead / workers) or DEFAULT_PREFETCH
    decode, deviation = keys.read_time("reader.preprocess_time", default=0.0)
    if deviation:
        has_key = keys.value_of_key.get("reader.preprocess_time_stdev") is not None
        name = "reader.preprocess_time" + "_stdev" * has_key
        keys.unused_sentences.append(
            f"{name}: preprocessing always takes its mean time"
        )
    _note_order(keys)
    return {
        "batch": str(keys.read_whole("reader.batch_size", default=1)),
        "workers": str(workers),
        "prefetch": str(workers * batches_of_worker),
        "decode": f"{decode:.9g}",
        "cached": "no" if keys.get("reader.odirect") is True else "yes",
    }


def _note_order(keys: DlioKeys) -> None:
    """Note in ``keys`` that a scenario shuffles every epoch, where DLIO does not.

    Each of `SHUFFLE_KEYS` that is written as off has a sentence. If both are missing,
    the first one has it.
    """
    unshuffled_keys = [
        name for name in SHUFFLE_KEYS if keys.get(name) in UNSHUFFLED_VALUES
    ]
    written_keys = [
        name for name in unshuffled_keys if keys.value_of_key.get(name) is not None
    ]
    is_unshuffled = len(unshuffled_keys) == len(SHUFFLE_KEYS)
    for name in written_keys or (unshuffled_keys[:1] if is_unshuffled else []):
        keys.unused_sentences.append(
            f"{name}: every epoch is shuffled, whatever this key says"
        )
