"""A workload of DLIO, and so of MLPerf Storage, as a scenario: its files, its reader and its
accelerators, which only pause."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from simshuffle.cli.common import is_name
from simshuffle.cli.new_machine import machine_text, scalar
from simshuffle.cli.new_questions import BY_NAME, QUESTIONS, answered, asked_of
from simshuffle.cli.new_scenario import checked
from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import nearest, read_yaml
from simshuffle.study.matching import flat

MACHINE = "Machine"
"""The group of the questions that a file of DLIO leaves open."""
ACCELERATOR = "emulated"
DEFAULT_PREFETCH = 2

SILENT = (
    "model", "framework", "output", "profiling", "metric", "checkpoint", "evaluation", "hydra",
    "workflow.generate_data", "workflow.profiling", "workflow.debug", "dataset.data_folder",
    "dataset.file_prefix", "dataset.num_files_eval", "dataset.num_subfolders_train",
    "dataset.num_subfolders_eval", "dataset.keep_files", "reader.batch_size_eval",
    "reader.computation_threads", "reader.multiprocessing_context", "reader.pin_memory",
    "reader.shuffle_size", "train.seed_change_epoch",
)  # fmt: skip
"""Keys, and sections, that decide nothing of reading and pausing: names, evaluation and checkpoints
that `NOT_MODELLED` tells of where they are switched on, and how a framework is called."""
NEUTRAL = (None, False, 0, -1, "", "none", "off", "default", "local_fs", "local")
"""Values with which a key of `NOT_MODELLED` asks for nothing."""
NOT_MODELLED = {
    "workflow.checkpoint": "checkpoints are not written",
    "workflow.evaluation": "there is no evaluation between epochs",
    "dataset.compression": "samples are taken to be stored as they are",
    "dataset.parquet": "all bytes of a record are read, not some columns",
    "dataset.enable_chunking": "a file is read in order, not in chunks",
    "reader.odirect": "files are cached; 'page_cache: 0 B' of the machine's memory turns it off",
    "reader.preprocess_time_stdev": "preprocessing always takes its mean",
    "reader.transfer_size": "a request reads whole samples",
    "storage": "an object store is read as files are",
    "train.total_training_steps": "an epoch is read to its end",
}
"""Keys whose effect is left out, and what happens in its place."""
SHUFFLES = ("reader.file_shuffle", "reader.sample_shuffle")
DISTRIBUTIONS: dict[str, tuple[tuple[str, ...], Callable[..., tuple[float, float]]]] = {
    "normal": (("mean", "stdev"), lambda mean, stdev: (mean, stdev)),
    "uniform": (
        ("min", "max"),
        lambda least, most: ((least + most) / 2, abs(most - least) / 12**0.5),
    ),
    "gamma": (("shape", "scale"), lambda shape, scale: (shape * scale, shape**0.5 * scale)),
    "exponential": (("scale",), lambda scale: (scale, scale)),
    "poisson": (("lam",), lambda lam: (lam, lam**0.5)),
}
"""The parameters of a time that is drawn, and its mean and standard deviation."""
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
  dataset:
    name: {model}
    num_samples: {samples}
    sample_size: {{mean: {size} B, std: {std} B}}
    decoded_size: {{mean: {resized} B}}
    samples_per_file: {per_file}
    samples_per_request: {per_request}  # estimate: one request reads what a batch needs of a file
    decode: {decode} s  # reader.preprocess_time, a pause of the reader for each sample
    encode: 0 s
  local_batch_size: {batch}
  last_batch: drop
  exchange: {{kind: global_shuffle, source: pfs}}
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


@dataclass
class _Keys:
    """The values of a file by dotted key, and what is wrong with those that were asked for."""

    flat: dict[str, Any]
    asked: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)

    def get(self, *names: str) -> Any:
        """The value of the first of several names of one key that there is; None if none is."""
        self.asked.update(names)
        return next((self.flat[name] for name in names if self.flat.get(name) is not None), None)

    def wrong(self, key: str, rule: str, value: Any, remedy: str) -> None:
        """Note a problem."""
        self.problems.append(Problem(key, rule, "" if value is None else f"{value!r:.80}", remedy))

    def number(
        self, *names: str, default: float | None = None, least: float = 0.0, example: str = "1"
    ) -> float:
        """A number of at least ``least``; 1 in place of one that is missing or wrong."""
        value = self.get(*names)
        if value is None and default is not None:
            return default
        found = _number(value)
        if found is not None and found >= least:
            return found
        rule = "is required" if value is None else f"must be a number, at least {least:g}"
        self.wrong(names[0], rule, value, f"For example {example}.")
        return 1.0

    def whole(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least ``least``; 1 in place of one that is missing or wrong."""
        found = float(self.number(*names, default=default, least=least, example=str(max(least, 4))))
        if found.is_integer():  # so is what stands for a wrong one
            return int(found)
        self.wrong(names[0], "must be a whole number", self.get(*names), "Round it.")
        return 1

    def time(self, name: str) -> tuple[float, float]:
        """Mean and standard deviation (s) of a time, drawn or not; above 0."""
        if not any(key.startswith(f"{name}.") for key in self.flat):
            mean = self.number(name, example="0.323")
            std = self.number(f"{name}_stdev", default=0.0)
        else:
            kind = self.get(f"{name}.type") or "normal"
            self.get(f"{name}_stdev")
            if kind not in DISTRIBUTIONS:
                remedy = nearest(str(kind), list(DISTRIBUTIONS))
                self.wrong(f"{name}.type", "must be a distribution of DLIO", kind, remedy)
                return 1.0, 0.0
            parameters, moments = DISTRIBUTIONS[kind]
            drawn = [
                self.number(f"{name}.{each}", default=0.0 if each == "stdev" else None)
                for each in parameters
            ]
            mean, std = moments(*drawn)
        if mean <= 0:
            rule, remedy = "must take longer than 0 s", "For example 0.323."
            self.wrong(name, rule, f"{mean:g}", remedy)
            return 1.0, 0.0
        return mean, std


def _number(value: Any) -> float | None:
    """A finite number, written as one or as a text such as 1e-3; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def read_dlio(path: Path) -> tuple[dict[str, str], tuple[str, ...]]:
    """What a YAML file of DLIO says of reading and pausing, as texts of the scenario by name; and
    what is left out, a sentence each. Of a file that Hydra wrote its section 'workload' is read.
    Raises an InputError if it cannot be read, or a value is missing, is not valid, or asks for what
    is not simulated, each with its key."""
    documents = read_yaml(path)
    plain = documents[0] if len(documents) == 1 else None
    if isinstance(plain, dict) and isinstance(plain.get("workload"), dict):
        plain = plain["workload"]
    if not isinstance(plain, dict) or not isinstance(plain.get("dataset"), dict):
        rule = "must be a workload of DLIO that trains, with a section 'dataset'"
        remedy = "Checkpoints alone read nothing. See configs/dlio/workload of mlcommons/storage."
        raise InputError(Problem("", rule, remedy=remedy), str(path))
    keys = _Keys({key: value for key, value in flat(plain).items() if value != {}})
    values = {"source": scalar(path.name), **_trained(keys), **_stored(keys), **_loaded(keys)}
    if keys.problems:
        raise InputError(keys.problems, str(path))
    per_file, batch = int(values["per_file"]), int(values["batch"])
    values |= {"per_request": str(min(per_file, batch)), "thirds": str(3 * batch)}
    return values, tuple(_left_out(keys))


def _trained(keys: _Keys) -> dict[str, str]:
    """Accelerators, epochs and what passes."""
    if keys.get("workflow.train") is False:
        rule = "must be true: without training nothing is read"
        keys.wrong("workflow.train", rule, False, "Choose a workload that trains.")
    pause, std = keys.time("train.computation_time")
    au = keys.number("metric.au", default=0.9)
    if not 0 < au <= 1:
        keys.wrong("metric.au", "must be a share, above 0 and at most 1", au, "For example 0.9.")
    name = str(keys.get("model.name", "model"))
    return {
        "model": scalar(name if is_name(name) else "dlio"),
        "pause": f"{pause:.9g}",
        "jitter": f"{std / pause:.6g}",
        "epochs": str(keys.whole("train.epochs", default=1)),
        "seed": str(keys.whole("train.seed", default=123, least=0)),
        "au": f"{au:g}",
    }


def _stored(keys: _Keys) -> dict[str, str]:
    """The data set."""
    if keys.get("dataset.format") == "synthetic":
        rule = "must be that of files: synthetic samples are read from nowhere"
        keys.wrong("dataset.format", rule, "synthetic", "For example npz.")
    files = keys.whole("dataset.num_files_train")
    per_file = keys.whole("dataset.num_samples_per_file", default=1)
    names = ("dataset.record_length_bytes", "dataset.record_length")
    size = _dimensions(keys) or keys.number(*names, least=1, example="146600628")
    std = keys.number(*(f"{name}_stdev" for name in names), default=0.0)
    resized = keys.number(*(f"{name}_resize" for name in names), default=0.0)
    return {
        "samples": str(files * per_file),
        "per_file": str(per_file),
        "size": f"{size:.12g}",
        "std": f"{std:.12g}",
        "resized": f"{resized or size:.12g}",
    }


def _dimensions(keys: _Keys) -> float | None:
    """Bytes of a sample that is given as an array's shape, which comes before its length."""
    shape, kind = keys.get("dataset.record_dims"), keys.get("dataset.record_element_type")
    if not shape:
        return None
    keys.get("dataset.record_length_bytes"), keys.get("dataset.record_length")
    sides = [_number(side) or 0.0 for side in shape] if isinstance(shape, list) else [0.0]
    if min(sides) < 1:
        rule = "must be a list of numbers, at least 1"
        keys.wrong("dataset.record_dims", rule, shape, "For example [512, 512].")
        return 1.0
    try:
        return math.prod(sides) * np.dtype(str(kind or "uint8")).itemsize
    except TypeError:
        rule = "must be a type of numpy"
        keys.wrong("dataset.record_element_type", rule, kind, "For example uint8.")
        return 1.0


def _loaded(keys: _Keys) -> dict[str, str]:
    """The reader: ``read_threads`` workers with an equal share of ``prefetch_size`` batches each,
    rounded up; 0 are PyTorch's own 2 for each."""
    if keys.get("reader.data_loader") == "synthetic":
        rule = "must read files: a synthetic loader reads nothing"
        keys.wrong("reader.data_loader", rule, "synthetic", "For example pytorch.")
    workers = 1
    if keys.get("reader.read_threads") == 0:
        rule = "must be at least 1: a step that reads its own batch is not simulated"
        keys.wrong("reader.read_threads", rule, 0, "Write 1 or more.")
    else:
        workers = keys.whole("reader.read_threads", default=1)
    ahead = keys.whole("reader.prefetch_size", default=DEFAULT_PREFETCH, least=0)
    each = math.ceil(ahead / workers) or DEFAULT_PREFETCH
    return {
        "batch": str(keys.whole("reader.batch_size", default=1)),
        "workers": str(workers),
        "prefetch": str(workers * each),
        "decode": f"{keys.number('reader.preprocess_time', default=0.0):.9g}",
    }


def _left_out(keys: _Keys) -> list[str]:
    """What a file says and a scenario does not, a sentence for each key or section."""
    out: dict[str, str] = {}
    for name, value in keys.flat.items():
        if name in SHUFFLES:
            if value in {"off", False}:  # YAML reads a bare off as false
                out[name] = f"{name}: every epoch is shuffled, whatever it says"
            continue
        if name in keys.asked or (not isinstance(value, list) and value in NEUTRAL):
            continue
        parts = name.split(".")
        sections = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
        known = next((key for key in NOT_MODELLED if key in sections), None)
        if known is not None:
            out[known] = f"{known}: {NOT_MODELLED[known]}"
        elif sections.isdisjoint(SILENT):
            out[name] = f"{scalar(name)}: is not known, and is left out"
    return list(out.values())


def dlio_drafts(
    name: str, path: Path, given: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The texts of the scenario ``name`` and of its machine, by the names of their files; and what
    DLIO's file ``path`` says and they leave out, a sentence each. ``given`` are answers to the
    questions about the machine, by name. Raises an InputError as `read_dlio`; or if an answer is
    missing, not valid or about what the file decides, or they do not make a scenario."""
    values, left_out = read_dlio(path)
    rule, remedy = "is decided by the file of DLIO", "Leave it out, and change what is written."
    by_file = {q.name: q.default for q in QUESTIONS if q.group != MACHINE}
    decided = [q for q in QUESTIONS if q.name in given and q.name in by_file]
    if decided:
        raise InputError([Problem(q.option, rule, given[q.name], remedy) for q in decided])
    asked = asked_of(given.get("topology", BY_NAME["topology"].default))
    own = {"accelerator": ACCELERATOR} if BY_NAME["accelerator"] in asked else {}
    answers = answered({**own, **given, **by_file})
    notes = PASSES.format(au=values["au"])
    notes += "".join(f"# Left out: {text}\n" for text in left_out)
    text = SCENARIO.format(
        name=name,
        label=scalar(name),
        ranks=int(answers["hosts"]) * int(answers["gpus"]),
        device=scalar(answers["accelerator"]),
        notes=notes,
        **values,
    )
    texts = {f"{name}.yaml": text, f"{name}-cluster.yaml": machine_text(name, answers)}
    checked(texts, KEYS, str(path))
    return texts, left_out
