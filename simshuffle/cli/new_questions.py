"""What a new scenario asks about a machine and a training, and what to answer where one does not
know: the one table of the prompts, the options and the comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.cli.common import NAME_RULE, is_name
from simshuffle.errors import InputError, Problem
from simshuffle.spec.library import is_file, shipped_names, suggest_nearest
from simshuffle.spec.units import Dimension, UnitError, parse_quantity, readable
from simshuffle.study.options import between_commas

if TYPE_CHECKING:
    from simshuffle.fabric.topology.base import Interconnect

SHAPES = ("fat_tree", "dragonfly", "rail_optimised", "torus")
NETWORK, MACHINE = "network", "machine"
"""From what a new machine begins: a shape with a few numbers, a network's file, or a machine."""
NETWORKS, MACHINES = (".json", ".graphml", ".xml"), (".yaml", ".yml")
"""What names of files of a network end with, and those of a machine."""
CHOICES = {
    "format": ("jpeg", "raw"),
    "timed": ("one_gpu", "distributed"),
    "overlap": ("ddp", "horovod", "none"),
}
"""The words of the kinds of which an answer is one."""
WAYS = {
    "global-pfs": "global_shuffle",
    "global-ssd": "global_shuffle:source=ssd",
    "local": "local_shuffle",
    "local-pfs": "local_shuffle:source=pfs",
}
"""Strategies by the names that their runs have; beside them there is partial-Q."""
NO_SSD = "none"
BY_FORMAT = "format"
"""The answer that decoding costs what follows from the format of the samples."""
NONE = "none"
MEASURED, SHEET, ESTIMATE = "measured", "data sheet", "estimate"
"""What stands behind a number, as `simshuffle.job.uncertainty` reads it from a source."""
SOURCES = "Sources"
"""The group of the questions about what stands behind numbers, which decides intervals."""
ALL_RANKS = "all"
FITTING = "fitting"
OFFERED = ("global-pfs", "global-ssd", "local", "partial-0.1")
"""The ways of `FITTING`, as far as hosts have room for what they hold."""
SOURCE = "new scenario"
"""What problems with answers are found in."""


QUANTITY_OR: dict[Any, tuple[Any, str]] = {
    "ssd": (Dimension.NBYTES, NO_SSD),
    "decode": (Dimension.SECONDS, BY_FORMAT),
}
"""The dimension of an answer that is a quantity or a word, and that word, by the kind."""


def _list_of(each: str) -> str:
    return rf"({each})(\s*,\s*({each}))*"


_COUNT = r"[1-9][0-9]{0,14}"
_SIDE = r"([2-9]|[1-9][0-9]{1,3})"
_ANSWERS = {
    "count": (_COUNT, "must be a whole number, at least 1"),
    "number": (r"[1-9][0-9]{0,3}(\.[0-9]{1,9})?", "must be a number, at least 1"),
    "shape": (f"{_SIDE}(x{_SIDE})*", "must be whole numbers from 2 on with x between them"),
    **{
        kind: ("|".join(of), f"must be {', '.join(of[:-1])} or {of[-1]}")
        for kind, of in CHOICES.items()
    },
    "ways": (
        f"{FITTING}|" + _list_of("|".join([*WAYS, r"partial-(0(\.\d+)?|1(\.0+)?|\.\d+)"])),
        f"must be names between commas, of {', '.join(WAYS)} and partial-Q with Q from 0 to 1; or"
        f" {FITTING}",
    ),
    "inputs": (
        f"{NONE}|" + _list_of("[a-z-]+"),
        f"must be names of options between commas, such as batch-time; or {NONE}",
    ),
    "ranks": (
        _list_of(f"{_COUNT}|{ALL_RANKS}"),
        f"must be whole numbers, at least 1, between commas; or {ALL_RANKS}",
    ),
}
"""What answers of a kind look like, and that in words."""
LISTS = ("ways", "inputs", "ranks")
"""Kinds of answers that may name several things."""


@dataclass(frozen=True)
class Question:
    """One thing that is asked."""

    name: str  # of the answer; the option has hyphens for its underscores
    group: str  # what it is about
    at: str  # dotted key of the scenario that it decides
    text: str  # what is asked
    kind: Dimension | str  # of the answer: a quantity, one of `_ANSWERS`, name, topology or ssd
    default: str  # what to write if one does not know it
    why: str  # where the default is from
    measure: str = ""  # a command that tells
    needed: bool = False  # whether a script must answer it, as nobody else can know
    # of a number that is given: whether a user measures it, or reads it from a data sheet; '' for
    # what is counted or chosen
    behind: str = ""
    # of what new machine it is asked, as in `start_of`; of any if empty
    of: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        """How it is answered on the command line."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def advice(self) -> str:
        """What to write if one does not know it."""
        return f"Unknown? Write {self.default} ({self.why})."

    def lines(self, columns: int) -> list[str]:
        """What is asked, how to find out (below it if it needs more columns), and the advice."""
        head = [f"{self.text}.", *([f"Measure: {self.measure}"] if self.measure else [])]
        joined = " ".join(head)
        return [*([joined] if len(joined) <= columns else head), self.advice]

    def problem(self, answer: str) -> Problem | None:
        """What is wrong with an answer; None if nothing is."""
        if self.kind == "topology":
            return _start_problem(self.option, answer)
        if isinstance(self.kind, Dimension) or self.kind in QUANTITY_OR:
            dimension, word = QUANTITY_OR.get(self.kind, (self.kind, ""))
            rule = quantity_rule(answer, dimension)
            rule = rule or "must not be divided" * bool(re.search(r"/\s*[0-9_]+$", answer))
            if rule and word:
                rule = "" if answer == word else f"{rule}; or {word}"
        elif self.kind == "name":
            rule = "" if is_name(answer) else NAME_RULE
        else:
            pattern, rule = _ANSWERS[self.kind]
            rule = "" if re.fullmatch(pattern, answer) else rule
        remedy = f"For example {self.default}."
        return Problem(self.option, rule, repr(answer), remedy) if rule else None


def _start_problem(option: str, topology: str) -> Problem | None:
    there, machines = is_file(Path(topology)), shipped_names("topologies")
    suffix = Path(topology).suffix
    if topology in (*SHAPES, *machines) or (there and suffix in NETWORKS + MACHINES):
        return None
    rule = f"must be {', '.join(SHAPES)}, the name of a machine, or a file"
    if there:
        rule = f"must be a file of a machine ({MACHINES[0]}) or of a network ({NETWORKS[0]})"
        remedy = f"Import it: simshuffle machine import {topology} --out fabric.yaml."
    elif suffix in NETWORKS + MACHINES:
        rule, remedy = "no such file", "Name it from the working directory."
    else:
        remedy = suggest_nearest(topology, [*SHAPES, *machines])
    return Problem(option, rule, repr(topology), remedy)


def quantity_rule(answer: str, dimension: Dimension) -> str:
    """What an answer breaks that must be a quantity above 0; '' if it is one."""
    try:
        return "" if parse_quantity(answer, dimension) > 0 else "must be greater than 0"
    except UnitError as error:
        return str(error)


_IOR = "ior -w -r -F -C -e -t 1m -b 4g -i 3"
_DATA, _TIME, _RATE = Dimension.NBYTES, Dimension.SECONDS, Dimension.BANDWIDTH
_PFS, _SSD = "cluster.parallel_file_system", "cluster.ssd"
_HOSTS = (*SHAPES, NETWORK)

QUESTIONS = (
    Question("topology", "Machine", "cluster.topology.kind",
             f"Network: {', '.join(SHAPES)}; a machine to begin from, by its name (simshuffle list)"
             " or file (.yaml); or a network's file (.json, .graphml)", "topology", "fat_tree",
             "what most InfiniBand clusters have"),
    Question("hosts", "Machine", "cluster.topology.hosts", "Hosts", "count", "64",
             "an example", "sinfo -h -o %D", needed=True, of=SHAPES),
    Question("gpus", "Machine", "cluster.host.gpus", "GPUs of a host", "count", "4",
             "as on ABCI, Perlmutter and JUWELS Booster", "nvidia-smi -L", of=_HOSTS),
    Question("accelerator", "Machine", "cluster.host.accelerator", "What the GPUs are called",
             "name", "a100", "a name; v100, a100 and h100 set PCIe and NVLink too",
             "nvidia-smi -L", of=_HOSTS),
    Question("cores", "Machine", "cluster.host.cores", "Cores of a host", "count", "64",
             "Perlmutter, one EPYC 7763", "nproc", of=_HOSTS),
    Question("memory", "Machine", "cluster.memory.capacity", "Memory of a host", _DATA, "256 GB",
             "Perlmutter", "free -h", of=_HOSTS),
    Question("hcas", "Machine", "cluster.host.hcas", "Network adapters (HCAs) of a host",
             "count", "2", "as on ABCI and Perlmutter", "ibstat -l", of=_HOSTS),
    Question("hca_bandwidth", "Machine", "cluster.topology.link_bandwidth",
             "Bandwidth of an adapter", _RATE, "25 GB/s",
             "HDR200; EDR and HDR100 have 12.5 GB/s, NDR 50 GB/s", "ib_write_bw", of=SHAPES,
             behind=SHEET),
    Question("ports", "Machine", "cluster.topology.ports", "Ports of a switch", "count", "40",
             "HDR, as in topologies/selene.yaml; EDR has 36, NDR 64", "ibswitches", of=SHAPES[:3]),
    Question("taper", "Machine", "cluster.topology.taper",
             "Links below a leaf switch to one above it", "number", "1",
             "full bisection, as in topologies/selene.yaml", "iblinkinfo",
             of=("fat_tree", "rail_optimised")),
    Question("groups", "Machine", "cluster.topology.groups", "Groups of the dragonfly",
             "count", "4", "an example; often a group is a cabinet or two", needed=True,
             of=("dragonfly",)),
    Question("shape", "Machine", "cluster.topology.shape",
             "Switches of the torus in every dimension, with x between them", "shape", "4x4x4",
             "an example", needed=True, of=("torus",)),
    Question("pfs_bandwidth", "Machine", f"{_PFS}.read_bandwidth",
             "What all servers of the parallel file system read", _RATE, "77 GB/s",
             "ABCI, topologies/abci.yaml", f"{_IOR} -o /pfs/file", of=_HOSTS,
             behind=MEASURED),
    Question("pfs_opens", "Machine", f"{_PFS}.open_rate", "Files that they open a second",
             Dimension.FREQUENCY, "43 k/s", "ABCI, from its training logs",
             "mdtest -n 1000 -i 5 -F -w 110000 -e 110000 -d /pfs/folder", of=_HOSTS,
             behind=MEASURED),
    Question("ssd", "Machine", f"{_SSD}.capacity", f"SSD of a host, or {NO_SSD}", "ssd", "1.6 TB",
             "ABCI, Intel DC P4600", "df -h", of=_HOSTS),
    Question("ssd_read", "Machine", f"{_SSD}.read_bandwidth", "What the SSD reads", _RATE,
             "3.2 GB/s", "ABCI, data sheet of the Intel DC P4500", f"{_IOR} -o /local/file",
             of=_HOSTS,
             behind=MEASURED),
    Question("ssd_write", "Machine", f"{_SSD}.write_bandwidth", "What the SSD writes", _RATE,
             "1.325 GB/s", "ABCI, data sheet of the Intel DC P4600", f"{_IOR} -o /local/file",
             of=_HOSTS,
             behind=MEASURED),
    Question("samples", "Data set", "workload.dataset.num_samples", "Samples", "count", "1281167",
             "ImageNet-1K", "find FOLDER -type f | wc -l", needed=True),
    Question("sample_size", "Data set", "workload.dataset.sample_size.mean",
             "Mean size of a sample as it is stored", _DATA, "110 kB", "ImageNet-1K",
             "simshuffle machine probe FOLDER", needed=True),
    Question("format", "Data set", "workload.dataset.format", "Stored as jpeg or raw (arrays)",
             "format", "jpeg", "photographs; decides what decoding costs",
             "simshuffle machine probe FOLDER"),
    Question("decode", "Data set", "workload.dataset.format",
             "Time of one core to decode and transform a sample, or format", "decode", BY_FORMAT,
             "as ImageNet's JPEGs, or a copy of raw; transforms add to it",
             "simshuffle machine probe FOLDER", behind=MEASURED),
    Question("workers", "Data set", "workload.loader.workers",
             "Loader workers of a rank (num_workers)", "count", "4",
             "as the authors' loaders; each loads 2 batches ahead, as PyTorch's"),
    Question("batch_size", "Model", "workload.local_batch_size", "Samples of a batch on one GPU",
             "count", "64", "an example", needed=True),
    Question("batch_time", "Model", "workload.model.accelerators",
             "Time of a batch, data at hand: forward, backward, update", _TIME, "23.1 ms",
             "the catalog's ResNet-50, 64 images, A100, mixed precision",
             "a loop of 100 batches, whose data is in memory", needed=True,
             behind=MEASURED),
    Question("timed", "Model", "workload.allreduce.overlap",
             "How that was timed: one_gpu, or distributed (DDP's hooks and slow-down are in it)",
             "timed", "one_gpu", "a loop without DistributedDataParallel"),
    Question("gradients", "Model", "workload.model.gradient_size",
             "Gradients: 4 B a parameter in FP32, 2 B in FP16", _DATA, "102 MB",
             "the catalog's ResNet-50 in FP32", "sum(p.numel() for p in model.parameters())",
             needed=True),
    Question("overlap", "Model", "workload.allreduce.overlap",
             "What sums gradients while the backward pass runs: ddp, horovod or none", "overlap",
             "ddp", "PyTorch's DistributedDataParallel, with the buckets that it has by itself"),
    Question("ranks", "Comparison", "world_size", "Ranks of the runs, between commas", "ranks",
             ALL_RANKS, "a rank for each GPU of the machine"),
    Question("epochs", "Comparison", "epochs", "Epochs", "count", "2",
             "a cold one, and one like all that follow"),
    Question("ways", "Comparison", "sweep.workload.exchange",
             f"Ways to shuffle, between commas: {', '.join(WAYS)} and partial-Q, Q from 0 to 1; or"
             f" {FITTING}", "ways", FITTING,
             f"of {', '.join(OFFERED)} those for which hosts have room"),
)  # fmt: skip
"""In the order in which they are asked and written."""
BY_NAME = {question.name: question for question in QUESTIONS}
SOURCE_QUESTIONS = (
    Question("estimated", SOURCES, "source",
             "Guesses among the numbers above, between commas (batch-time, pfs-opens, ...)",
             "inputs", NONE, "what you typed counts as measured, adapters as of a data sheet"),
    Question("measured", SOURCES, "source",
             "Measured numbers among those that are from data sheets otherwise (hca-bandwidth)",
             "inputs", NONE, "batch, decoding and storage are measured if they are given"),
    Question("data_sheet", SOURCES, "source",
             "Numbers from data sheets among those that are measured otherwise (ssd-read, ...)",
             "inputs", NONE, "the bandwidth of an adapter is from one if it is given"),
)  # fmt: skip
"""About what stands behind the numbers; the first one is asked after all others."""


def start_of(topology: str) -> str:
    """Which of `SHAPES` an answer names, or whether `NETWORK` or `MACHINE`."""
    if topology in SHAPES:
        return topology
    return NETWORK if Path(topology).suffix in NETWORKS else MACHINE


def asked_of(topology: str) -> list[Question]:
    """The questions about a new machine that begins so, in their order."""
    start = start_of(topology)
    return [question for question in QUESTIONS if not question.of or start in question.of]


def listed(answer: str) -> list[str]:
    """What stands between the commas of an answer, each once."""
    return between_commas([answer])


def decided(topology: str) -> dict[str, str]:
    """Answers, by the names of their questions, that a network's file or a machine decides; none of
    a shape. Raises an InputError if it is not valid."""
    start = start_of(topology)
    if start == NETWORK:
        from simshuffle.fabric.topology import Custom

        return _of_network(Custom(kind="custom", path=topology))
    if start != MACHINE:
        return {}
    from simshuffle.job.scenario.scenario import machine_of

    cluster = machine_of(topology)
    return {
        **_of_network(cluster.topology),
        "gpus": str(cluster.host.gpus),
        "accelerator": cluster.host.accelerator,
        "hcas": str(cluster.host.hcas),
        "nvlink": readable(cluster.host.nvlink_bandwidth, Dimension.BANDWIDTH),
        "memory": readable(cluster.memory.capacity, Dimension.NBYTES),
        "ssd": readable(cluster.ssd.capacity, Dimension.NBYTES),
    }


def _of_network(topology: Interconnect) -> dict[str, str]:
    """Hosts, links of a host, and the slowest of those."""
    each = getattr(topology, "link_bandwidth", None)
    if each is None:
        graph = topology.graph()
        hosts = [node for node, kind in graph.nodes(data="kind") if kind == "host"]
        each = min(bandwidth for *_, bandwidth in graph.edges(hosts, data="bandwidth"))
    return {
        "hosts": str(topology.num_hosts),
        "hcas": str(topology.links_per_host),
        "hca_bandwidth": readable(each, Dimension.BANDWIDTH),
    }


def answered(given: Mapping[str, str]) -> dict[str, str]:
    """An answer to every question: that given, or the default; and what a network's file or a
    machine decides (`decided`). Raises an InputError if an answer is missing that only the user
    knows, is not asked for, or is not valid."""
    given = {name: " ".join(answer.split()) for name, answer in given.items()}
    topology = given.get("topology", BY_NAME["topology"].default)
    if problem := BY_NAME["topology"].problem(topology):
        raise InputError(problem, SOURCE)  # it decides what else is asked
    asked = asked_of(topology)
    found = [_problem(question, given, topology, question in asked) for question in QUESTIONS]
    if problems := [problem for problem in found if problem]:
        raise InputError(problems, SOURCE)
    defaults = {question.name: question.default for question in QUESTIONS}
    return {**defaults, **decided(topology), **given}


def _problem(
    question: Question, given: Mapping[str, str], topology: str, asked: bool
) -> Problem | None:
    """What is wrong with the answer to a question; None if nothing is."""
    answer = given.get(question.name)
    if asked and answer is not None:
        return question.problem(answer)
    if asked and question.needed:
        return Problem(question.option, f"is required: {question.text}", remedy=question.advice)
    if answer is None:
        return None
    rule = f"is not asked where --topology is {topology}"
    remedy = "Leave it out, and change the machine that is written."
    if topology in SHAPES:
        remedy = f"Leave it out: it is for {', '.join(question.of)}."
    return Problem(question.option, rule, answer, remedy)
