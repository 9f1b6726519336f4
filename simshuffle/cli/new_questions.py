"""The questions about a new scenario: the one table of the prompts, the options and the
comments.

Each says what to answer where the user does not know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simshuffle.cli.common import NAME_RULE, is_name
from simshuffle.errors import Problem
from simshuffle.spec.library import is_file, shipped_names, suggest_nearest
from simshuffle.spec.units import Dimension, UnitError, parse_quantity
from simshuffle.study.options import between_commas

SHAPES = ("fat_tree", "dragonfly", "rail_optimised", "torus")
NETWORK, MACHINE = "network", "machine"
"""From what a new machine begins: a shape with a few numbers, a network's file, or a
machine.
"""
NETWORK_SUFFIXES = (".json", ".graphml", ".xml")
MACHINE_SUFFIXES = (".yaml", ".yml")
"""What names of files of a network end with, and those of a machine."""
CHOICES = {
    "format": ("jpeg", "raw"),
    "timed": ("one_gpu", "distributed"),
    "overlap": ("ddp", "horovod", "none"),
}
"""The words of the kinds of which an answer is one."""
STRATEGY_OF_WAY = {
    "global-pfs": "global_shuffle",
    "global-object_store": "global_shuffle:source=object_store",
    "global-ssd": "global_shuffle:source=ssd",
    "local": "local_shuffle",
    "local-pfs": "local_shuffle:source=pfs",
}
"""Strategies by the names that their runs have; beside them there is partial-Q."""
NO_SSD = "none"
BY_FORMAT = "format"
"""The answer that decoding costs what follows from the format of the samples."""
NONE = "none"
MEASURED, DATA_SHEET, ESTIMATE = "measured", "data sheet", "estimate"
"""What stands behind a number, as `simshuffle.job.uncertainty` reads it from a source."""
SOURCES_GROUP = "Sources"
"""The group of the questions about what stands behind numbers, which decides intervals."""
ALL_RANKS = "all"
FITTING = "fitting"
OFFERED_WAYS = ("global-pfs", "global-ssd", "local", "partial-0.1")
"""The ways of `FITTING`, as far as hosts have room for what they hold. The first one is
global-object_store where the data lies in an object store.
"""
PROBLEM_SOURCE = "new scenario"
"""What problems with answers are found in."""


QUANTITY_OR_WORD: dict[Any, tuple[Any, str]] = {
    "ssd": (Dimension.NBYTES, NO_SSD),
    "decode": (Dimension.SECONDS, BY_FORMAT),
    "store": (Dimension.BANDWIDTH, NONE),
}
"""The dimension of an answer that is a quantity or a word, and that word, by the kind."""


def list_pattern(item_pattern: str) -> str:
    """Return a pattern of one item or several between commas; blanks may be there."""
    return rf"({item_pattern})(\s*,\s*({item_pattern}))*"


_COUNT = r"[1-9][0-9]{0,14}"
_SIDE = r"([2-9]|[1-9][0-9]{1,3})"
_PARTIAL = r"partial-(0(\.\d+)?|1(\.0+)?|\.\d+)"
_RUN_NAMES = "|".join(STRATEGY_OF_WAY)
_ANSWER_PATTERNS = {
    "count": (_COUNT, "must be a whole number, at least 1, such as 5000000 or 5M"),
    "number": (r"[1-9][0-9]{0,3}(\.[0-9]{1,9})?", "must be a number, at least 1"),
    "shape": (
        f"{_SIDE}(x{_SIDE})*",
        "must be whole numbers from 2 on with x between them",
    ),
    **{
        kind: ("|".join(choices), f"must be {', '.join(choices[:-1])} or {choices[-1]}")
        for kind, choices in CHOICES.items()
    },
    "ways": (
        f"{FITTING}|{list_pattern(f'{_RUN_NAMES}|{_PARTIAL}')}",
        f"must be names between commas ({', '.join(STRATEGY_OF_WAY)}, or partial-Q with Q from"
        f" 0 to 1), or {FITTING}",
    ),
    "inputs": (
        f"{NONE}|" + list_pattern("[a-z-]+"),
        f"must be names of options between commas, such as batch-time; or {NONE}",
    ),
    "ranks": (
        list_pattern(f"{_COUNT}|{ALL_RANKS}"),
        f"must be whole numbers, at least 1, between commas; or {ALL_RANKS}",
    ),
}
"""What answers of a kind look like, and that in words."""
LIST_KINDS = ("ways", "inputs", "ranks")
"""Kinds of answers that may name several things."""


@dataclass(frozen=True)
class Question:
    """A question about a new scenario: its option, its default, and how to find the
    answer.
    """

    name: str  # of the answer; the option has hyphens for its underscores
    group: str  # what it is about
    key: str  # dotted key of the scenario that it decides
    text: str  # what is asked
    # of the answer: a quantity, one of `_ANSWER_PATTERNS`, name, topology or ssd
    kind: Dimension | str
    default: str  # what to write if one does not know it
    default_source: str  # where the default is from
    measure: str = ""  # a command that tells
    needed: bool = False  # whether a script must answer it, as nobody else can know
    # of a number that is given: whether a user measures it, or reads it from a data sheet; '' for
    # what is counted or chosen
    source_kind: str = ""
    # of what new machine it is asked, as in `start_of`; of any if empty
    starts: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """The option of the command line that answers it."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def advice(self) -> str:
        """A sentence on what to write if the user does not know the answer: the
        default.
        """
        return f"Unknown? Write {self.default} ({self.default_source})."

    def lines(self, columns: int) -> list[str]:
        """Return the question, the command that measures its answer, and the advice, as
        lines.

        The command stands in a line of its own if it does not fit into ``columns``.
        """
        question_and_command = [f"{self.text}."]
        if self.measure:
            question_and_command.append(f"Measure: {self.measure}")
        joined = " ".join(question_and_command)
        return [
            *([joined] if len(joined) <= columns else question_and_command),
            self.advice,
        ]

    def write_out(self, answer: str) -> str:
        """Return a count without k, M, G or commas, '1.28M' as '1280000'; all other
        answers as they are.
        """
        short = re.fullmatch(r"(\d+)(?:\.(\d+))? ?([kMG])", answer)
        if self.kind != "count":
            return answer
        if re.fullmatch(r"\d{1,3}(,\d{3})+", answer):
            return answer.replace(",", "")
        zeros = {"k": 3, "M": 6, "G": 9}[short[3]] if short else 0
        if short is None or len(short[2] or "") > zeros:
            return answer
        return f"{short[1]}{(short[2] or '').ljust(zeros, '0')}".lstrip("0")

    def problem(self, answer: str) -> Problem | None:
        """Return the problem with an answer of this kind; None if there is none.

        A quantity must be above 0, have a unit, and not end in a division ('1 s / 2').
        """
        if self.kind == "topology":
            return start_problem(self.option, answer)
        if isinstance(self.kind, Dimension) or self.kind in QUANTITY_OR_WORD:
            dimension, word = QUANTITY_OR_WORD.get(self.kind, (self.kind, ""))
            rule = quantity_rule(answer, dimension)
            rule = rule or "must not be divided" * bool(
                re.search(r"/\s*[0-9_]+$", answer)
            )
            if rule and word:
                rule = "" if answer == word else f"{rule}; or {word}"
        elif self.kind == "name":
            rule = "" if is_name(answer) else NAME_RULE
        else:
            pattern, rule = _ANSWER_PATTERNS[self.kind]
            rule = "" if re.fullmatch(pattern, self.write_out(answer)) else rule
        remedy = f"For example {self.default}."
        return Problem(self.option, rule, repr(answer), remedy) if rule else None


def start_problem(option: str, topology: str) -> Problem | None:
    """Return the problem with what a machine begins from; None if there is none.

    Right is one of `SHAPES`, the name of a shipped machine, or a file that exists. The
    file has a suffix of a machine or a network, and is not read.
    """
    exists = is_file(Path(topology))
    has_suffix = Path(topology).suffix in NETWORK_SUFFIXES + MACHINE_SUFFIXES
    machine_names = shipped_names("topologies")
    if topology in (*SHAPES, *machine_names) or (exists and has_suffix):
        return None
    rule = f"must be {', '.join(SHAPES)}, the name of a machine, or a file"
    if exists:
        rule = (
            f"must be a file of a machine ({MACHINE_SUFFIXES[0]}) or of a network"
            f" ({NETWORK_SUFFIXES[0]})"
        )
        remedy = f"Import it: simshuffle machine import {topology} --out fabric.yaml."
    elif has_suffix:
        rule = "no such file"
        remedy = "Give its path from the working directory."
    else:
        remedy = suggest_nearest(topology, [*SHAPES, *machine_names])
    return Problem(option, rule, repr(topology), remedy)


def quantity_rule(answer: str, dimension: Dimension) -> str:
    """Return the rule that an answer breaks, which must be a quantity above 0.

    '' if it breaks none.
    """
    try:
        return "" if parse_quantity(answer, dimension) > 0 else "must be greater than 0"
    except UnitError as error:
        return str(error)


_IOR = "ior -w -r -F -C -e -t 1m -b 4g -i 3"
_DATA = Dimension.NBYTES
_TIME = Dimension.SECONDS
_RATE = Dimension.BANDWIDTH
_PFS, _SSD = "cluster.parallel_file_system", "cluster.ssd"
_HOSTS = (*SHAPES, NETWORK)

QUESTIONS = (
    Question("topology", "Machine", "cluster.topology.kind",
             f"Network: {', '.join(SHAPES)}; a machine to begin from, by its name (simshuffle list)"
             " or file (.yaml); or a network's file (.json, .graphml)", "topology", "fat_tree",
             "what most InfiniBand clusters have"),
    Question("hosts", "Machine", "cluster.topology.hosts", "Hosts", "count", "64",
             "an example", "sinfo -h -o %D", needed=True, starts=SHAPES),
    Question("gpus", "Machine", "cluster.host.gpus", "GPUs of a host", "count", "4",
             "as on ABCI, Perlmutter and JUWELS Booster", "nvidia-smi -L", starts=_HOSTS),
    Question("accelerator", "Machine", "cluster.host.accelerator", "What the GPUs are called",
             "name", "a100", "a name; v100, a100 and h100 set PCIe and NVLink too",
             "nvidia-smi -L", starts=_HOSTS),
    Question("cores", "Machine", "cluster.host.cores", "Cores of a host", "count", "64",
             "Perlmutter, one EPYC 7763", "nproc", starts=_HOSTS),
    Question("memory", "Machine", "cluster.memory.capacity", "Memory of a host", _DATA, "256 GB",
             "Perlmutter", "free -h", starts=_HOSTS),
    Question("hcas", "Machine", "cluster.host.hcas", "Network adapters (HCAs) of a host",
             "count", "2", "as on ABCI and Perlmutter", "ibstat -l", starts=_HOSTS),
    Question("hca_bandwidth", "Machine", "cluster.topology.link_bandwidth",
             "Bandwidth of an adapter", _RATE, "25 GB/s",
             "HDR200; EDR and HDR100 have 12.5 GB/s, NDR 50 GB/s", "ib_write_bw", starts=SHAPES,
             source_kind=DATA_SHEET),
    Question("ports", "Machine", "cluster.topology.ports", "Ports of a switch", "count", "40",
             "HDR, as in topologies/selene.yaml; EDR has 36, NDR 64", "ibswitches",
             starts=SHAPES[:3]),
    Question("taper", "Machine", "cluster.topology.taper",
             "Links below a leaf switch for each link above it", "number", "1",
             "full bisection, as in topologies/selene.yaml", "iblinkinfo",
             starts=("fat_tree", "rail_optimised")),
    Question("groups", "Machine", "cluster.topology.groups", "Groups of the dragonfly",
             "count", "4", "an example; often a group is a cabinet or two", needed=True,
             starts=("dragonfly",)),
    Question("shape", "Machine", "cluster.topology.shape",
             "Switches of the torus in every dimension, with x between them", "shape", "4x4x4",
             "an example", needed=True, starts=("torus",)),
    Question("pfs_bandwidth", "Machine", f"{_PFS}.read_bandwidth",
             "Read bandwidth of the parallel file system, all servers together", _RATE, "77 GB/s",
             "ABCI, topologies/abci.yaml", f"{_IOR} -o /pfs/file", starts=_HOSTS,
             source_kind=MEASURED),
    Question("pfs_opens", "Machine", f"{_PFS}.open_rate",
             "Files that the parallel file system opens a second",
             Dimension.FREQUENCY, "43 k/s", "ABCI, from its training logs",
             "mdtest -n 1000 -i 5 -F -w 110000 -e 110000 -d /pfs/folder", starts=_HOSTS,
             source_kind=MEASURED),
    Question("store", "Machine", "cluster.object_store.bandwidth",
             f"Bandwidth of the object store that holds the data, such as S3, or {NONE}", "store",
             NONE, "the data lies on the parallel file system",
             "s5cmd cp 's3://bucket/*' /dev/shm on all hosts at once", starts=_HOSTS,
             source_kind=MEASURED),
    Question("ssd", "Machine", f"{_SSD}.capacity", f"SSD of a host, or {NO_SSD}", "ssd", "1.6 TB",
             "ABCI, Intel DC P4600", "df -h", starts=_HOSTS),
    Question("ssd_read", "Machine", f"{_SSD}.read_bandwidth", "Read bandwidth of the SSD", _RATE,
             "3.2 GB/s", "ABCI, data sheet of the Intel DC P4500", f"{_IOR} -o /local/file",
             starts=_HOSTS,
             source_kind=MEASURED),
    Question("ssd_write", "Machine", f"{_SSD}.write_bandwidth", "Write bandwidth of the SSD", _RATE,
             "1.325 GB/s", "ABCI, data sheet of the Intel DC P4600", f"{_IOR} -o /local/file",
             starts=_HOSTS,
             source_kind=MEASURED),
    Question("samples", "Data set", "workload.dataset.num_samples", "Samples", "count", "1281167",
             "ImageNet-1K", "find FOLDER -type f | wc -l", needed=True),
    Question("sample_size", "Data set", "workload.dataset.sample_size.mean",
             "Mean size of a sample as it is stored", _DATA, "110 kB", "ImageNet-1K",
             "simshuffle machine probe FOLDER", needed=True),
    Question("samples_per_shard", "Data set", "workload.dataset.samples_per_file",
             "Samples of a shard that is read in order (WebDataset, MDS, TFRecord), or 1", "count",
             "1", "each sample is a file of its own", "tar tf SHARD, over the files of a sample"),
    Question("format", "Data set", "workload.dataset.format", "Stored as jpeg or raw (arrays)",
             "format", "jpeg", "photographs; decides what decoding costs",
             "simshuffle machine probe FOLDER"),
    Question("decode", "Data set", "workload.dataset.format",
             "Time of one core to decode and transform a sample, or format", "decode", BY_FORMAT,
             "as for ImageNet's JPEGs, or to copy raw arrays; transforms add to it",
             "simshuffle machine probe FOLDER", source_kind=MEASURED),
    Question("workers", "Data set", "workload.loader.workers",
             "Loader workers of a rank (num_workers)", "count", "4",
             "as in the authors' scripts; each worker loads 2 batches ahead, as PyTorch's"),
    Question("batch_size", "Model", "workload.local_batch_size", "Samples of a batch on one GPU",
             "count", "64", "an example", needed=True),
    Question("batch_time", "Model", "workload.model.accelerators",
             "Time of a batch whose data is in memory: forward, backward, update", _TIME, "23.1 ms",
             "the catalog's ResNet-50, 64 images, A100, mixed precision",
             "a loop of 100 batches, whose data is in memory", needed=True,
             source_kind=MEASURED),
    Question("timed", "Model", "workload.allreduce.overlap",
             "How the batch was timed: one_gpu, or distributed (with DDP's hooks and slow-down)",
             "timed", "one_gpu", "a loop without DistributedDataParallel"),
    Question("gradients", "Model", "workload.model.gradient_size",
             "Gradients: 4 B a parameter in FP32, 2 B in FP16", _DATA, "102 MB",
             "the catalog's ResNet-50 in FP32", "sum(p.numel() for p in model.parameters())",
             needed=True),
    Question("overlap", "Model", "workload.allreduce.overlap",
             "What sums gradients while the backward pass runs: ddp, horovod or none", "overlap",
             "ddp", "PyTorch's DistributedDataParallel, with its default buckets"),
    Question("ranks", "Comparison", "world_size", "Ranks of the runs, between commas", "ranks",
             ALL_RANKS, "a rank for each GPU of the machine"),
    Question("epochs", "Comparison", "epochs", "Epochs", "count", "2",
             "a cold epoch, and one like all that follow"),
    Question("ways", "Comparison", "sweep.workload.exchange",
             f"Ways to shuffle, between commas: {', '.join(STRATEGY_OF_WAY)} and partial-Q, Q from"
             f" 0 to 1; or {FITTING}", "ways", FITTING,
             f"those of {', '.join(OFFERED_WAYS)} for which hosts have room"),
)  # fmt: skip
"""In the order in which they are asked and written."""
BY_NAME = {question.name: question for question in QUESTIONS}
SOURCE_QUESTIONS = (
    Question("estimated", SOURCES_GROUP, "source",
             "Guesses among the numbers above, between commas (batch-time, pfs-opens, ...)",
             "inputs", NONE, "typed numbers count as measured, the adapter's as from a data sheet"),
    Question("measured", SOURCES_GROUP, "source",
             "Measured numbers that would otherwise count as from data sheets (hca-bandwidth)",
             "inputs", NONE, "batch, decoding and storage count as measured if they are given"),
    Question("data_sheet", SOURCES_GROUP, "source",
             "Numbers from data sheets that would otherwise count as measured (ssd-read, ...)",
             "inputs", NONE, "the adapter's bandwidth counts as from a data sheet if it is given"),
)  # fmt: skip
"""About what stands behind the numbers; the first one is asked after all others."""


def start_of(topology: str) -> str:
    """Return what a machine begins from: one of `SHAPES`, `NETWORK` or `MACHINE`.

    A network is told by the suffix of its file, which need not exist; all else is a
    machine.
    """
    if topology in SHAPES:
        return topology
    return NETWORK if Path(topology).suffix in NETWORK_SUFFIXES else MACHINE


def questions_of(topology: str) -> list[Question]:
    """Return the questions of `QUESTIONS` for a machine that begins from ``topology``,
    in their order.

    Those about the data set, the model and the comparison are always among them.
    """
    start = start_of(topology)
    return [
        question
        for question in QUESTIONS
        if not question.starts or start in question.starts
    ]


def split_answer(answer: str) -> list[str]:
    """Return the words between the commas of an answer, each once, in their order;
    empty ones are dropped.
    """
    return between_commas([answer])
