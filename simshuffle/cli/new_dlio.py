"""Make a scenario of a workload of DLIO, and so of MLPerf Storage.

It has the files, the reader and the accelerators of the workload; accelerators only
pause.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from simshuffle.cli.dlio_workload import read_dlio
from simshuffle.cli.new_answers import complete_answers
from simshuffle.cli.new_machine import machine_text, yaml_scalar
from simshuffle.cli.new_questions import BY_NAME, QUESTIONS, questions_of
from simshuffle.cli.new_scenario import check_texts
from simshuffle.cli.new_sources import sources_of_inputs
from simshuffle.errors import InputError, Problem, refuse
from simshuffle.report.report import DLIO_PAUSES

MACHINE_GROUP = "Machine"
"""The group of the questions that a file of DLIO leaves open."""
ACCELERATOR = "emulated"
PAGE_CACHE_OFF = "  page_cache: 0 B  # reader.odirect: reads bypass the page cache\n"
_PAGE_CACHE_IN_BRACES = re.compile(r"(?<=[{,])\s*page_cache:[^,}]*,?")
OBJECT_STORE = """\
object_store: {}  # storage.storage_type; missing keys are those of Amazon S3 (docs/scenario.md)
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
    "ranks": (
        "Leave it out: all GPUs become ranks. For other numbers: run NAME.yaml"
        " --set 'sweep={world_size: [8, 16]}'."
    )
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
# A run of the benchmark passes if accelerators pause for {au} of the time or more (metric.au). Here
# accelerator_utilisation in epochs.csv is that share, with the first batch and the first epoch. It
# is a prediction, and never a result of MLPerf.
"""


def dlio_drafts(
    name: str, path: Path, machine_answers: Mapping[str, str]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return DLIO's file ``path`` as texts of the scenario ``name`` and of its machine.

    All GPUs of the machine are ranks. Nothing is written.

    Args:
        name: of the scenario.
        path: the file of DLIO.
        machine_answers: to the questions about the machine and its sources, by name;
            the user's alone, without defaults.

    Returns:
        The texts by the names of their files, the scenario's first; and a sentence for
        each thing that they leave out or assume.

    Raises:
        InputError: as `read_dlio`; or an answer is missing, not valid or about what the
            file decides; or no step is made; or they do not make a scenario.
    """
    values, notes = read_dlio(path)
    answers = _complete_machine_answers(machine_answers)
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


def _complete_machine_answers(machine_answers: Mapping[str, str]) -> dict[str, str]:
    """Return the answers to all questions: the given answers, else the machine's, else
    the defaults.

    Questions that the file of DLIO decides have their defaults. The accelerator is
    `ACCELERATOR` unless it is given or the machine has its own.

    Raises:
        InputError: an answer is missing, not valid or about what the file of DLIO
            decides.
    """
    file_defaults = {
        question.name: question.default
        for question in QUESTIONS
        if question.group != MACHINE_GROUP
    }
    _refuse_decided_answers(machine_answers, file_defaults)

    questions = questions_of(
        machine_answers.get("topology", BY_NAME["topology"].default)
    )
    emulated_accelerator = (
        {"accelerator": ACCELERATOR} if BY_NAME["accelerator"] in questions else {}
    )
    return complete_answers(
        {**emulated_accelerator, **machine_answers, **file_defaults}
    )


def _refuse_decided_answers(
    machine_answers: Mapping[str, str], file_defaults: Mapping[str, str]
) -> None:
    """Refuse answers to the questions that the file of DLIO decides.

    Args:
        machine_answers: the answers by the name of their question.
        file_defaults: the default answer of each question that the file decides.

    Raises:
        InputError: there is such an answer.
    """
    rule = "is decided by the file of DLIO"
    remedy = "Leave it out, and edit the scenario that is written."
    problems = [
        Problem(
            question.option,
            rule,
            machine_answers[question.name],
            REMEDY_OF_QUESTION.get(question.name, remedy),
        )
        for question in QUESTIONS
        if question.name in machine_answers and question.name in file_defaults
    ]
    if problems:
        raise InputError(problems)


def _cut_to_steps(
    values: dict[str, str], ranks: int
) -> tuple[dict[str, str], list[str]]:
    """Cut the data set to the samples that ``total_training_steps`` read in an epoch.

    DLIO ends every epoch after so many steps, and draws other samples in the next one:
    one epoch stands for all, since later ones read what the first left.

    Returns:
        The values, unchanged where all samples are read, else copied with fewer samples
        and 1 epoch; and a list of one note if they are cut, else [].
    """
    key = "train.total_training_steps"
    steps = int(values["steps"])
    samples = int(values["samples"])
    read_samples = steps * int(values["batch"]) * ranks
    if steps <= 0 or read_samples >= samples:
        return values, []
    note = (
        f"{key}: an epoch is cut to the {read_samples:,} samples of its {steps} steps"
    )
    if values["epochs"] != "1":
        note += f"; one epoch stands for all {values['epochs']}, each of which reads other samples"
    return {**values, "samples": str(read_samples), "epochs": "1"}, [note]


def _note_cores(values: Mapping[str, str], answers: Mapping[str, str]) -> list[str]:
    """Return a note that preprocessing takes cores, where a host has too few cores for
    all its readers; [] elsewhere.
    """
    readers = int(answers["gpus"]) * int(values["workers"])
    cores = int(answers["cores"])
    if not float(values["decode"]) or readers <= cores:
        return []
    return [
        "reader.preprocess_time: a reader of DLIO only sleeps, but a simulated reader takes a core;"
        f" a host has {cores} cores (--cores) for its {readers} readers"
    ]


def without_page_cache(machine: str) -> str:
    """Return the text of a machine with ``page_cache: 0 B``, so that its memory caches
    no files.

    The keys of ``memory:`` may stand in the lines below it or in braces. A machine
    without ``memory:`` gets it.
    """
    machine = _PAGE_CACHE_IN_BRACES.sub("", machine)
    lines = [
        line
        for line in machine.splitlines(keepends=True)
        if not line.lstrip().startswith("page_cache:")
    ]
    for index, line in enumerate(lines):
        if line.startswith("memory:"):
            key, brace, values = line.partition("{")
            if brace:
                setting = PAGE_CACHE_OFF.partition("#")[0].strip()
                lines[index] = f"{key}{{{setting}, {values}"
            else:
                lines.insert(index + 1, PAGE_CACHE_OFF)
            return "".join(lines)
    return "".join([*lines, "memory:\n", PAGE_CACHE_OFF])


def _check_steps(values: Mapping[str, str], ranks: int, source: str) -> None:
    """Refuse a file whose samples are fewer than one batch on every rank.

    DLIO makes floor(samples / batch / ranks) steps (main.py: max_steps), which are then
    none.

    Raises:
        InputError: no step is made; but not where even one rank has no batch, which the
            scenario refuses.
    """
    batch, samples, per_file = (
        int(values[key]) for key in ("batch", "samples", "per_file")
    )
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
