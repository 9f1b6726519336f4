"""What a new scenario asks about a machine and a training, and what to answer where one does not
know: the one table of the prompts, the options and the comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simshuffle.errors import InputError, Problem
from simshuffle.new.start import NETWORK, SHAPES, decided, start_of, start_problem
from simshuffle.spec.units import Dimension, UnitError, parse_quantity

Kind = (
    Dimension
    | Literal["count", "number", "name", "topology", "shape", "format", "timed", "overlap"]
    | Literal["ways", "ranks", "ssd"]
)
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
_PARTIAL = re.compile(r"partial-(0(?:\.\d+)?|1(?:\.0+)?|\.\d+)")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
NAME_RULE = "must be letters, digits, '.', '_' and '-'"
NO_SSD = "none"
ALL_RANKS = "all"
FITTING = "fitting"
OFFERED = ("global-pfs", "global-ssd", "local", "partial-0.1")
"""The ways of `FITTING`, as far as hosts have room for what they hold."""


@dataclass(frozen=True)
class Question:
    """One thing that is asked."""

    name: str  # of the answer; the option has hyphens for its underscores
    group: str  # what it is about
    at: str  # dotted key of the scenario that it decides
    text: str  # what is asked
    kind: Kind  # of the answer
    default: str  # what to write if one does not know it
    why: str  # where the default is from
    measure: str = ""  # a command that tells
    needed: bool = False  # whether a script must answer it, as nobody else can know
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
            return start_problem(self.option, answer)
        if isinstance(self.kind, Dimension):
            rule = _quantity_rule(answer, self.kind)
        elif self.kind == "ssd":
            rule = "" if answer == NO_SSD else _quantity_rule(answer, Dimension.NBYTES)
            rule = f"{rule}; or {NO_SSD}" if rule else ""
        else:
            rule = "" if _matches(self.kind, answer) else _RULES[self.kind]
        remedy = f"For example {self.default}."
        return Problem(self.option, rule, repr(answer), remedy) if rule else None


def _quantity_rule(answer: str, dimension: Dimension) -> str:
    try:
        positive = parse_quantity(answer, dimension) > 0
    except UnitError as error:
        return str(error)
    if re.search(r"/\s*[0-9_]+$", answer):
        return "must not be divided"
    return "" if positive else "must be greater than 0"


_RULES = {
    "count": "must be a whole number, at least 1",
    "number": "must be a number, at least 1",
    "name": NAME_RULE,
    "shape": "must be whole numbers from 2 on with x between them",
    **{kind: f"must be {', '.join(of[:-1])} or {of[-1]}" for kind, of in CHOICES.items()},
    "ways": f"must be names between commas, of {', '.join(WAYS)} and partial-Q with Q from 0 to 1;"
    f" or {FITTING}",
    "ranks": f"must be whole numbers, at least 1, between commas; or {ALL_RANKS}",
}


def _matches(kind: str, answer: str) -> bool:
    if kind == "count":
        return re.fullmatch(r"[1-9][0-9]{0,14}", answer) is not None
    if kind == "ranks":
        return all(ranks == ALL_RANKS or _matches("count", ranks) for ranks in listed(answer))
    if kind == "number":
        return re.fullmatch(r"[1-9][0-9]{0,3}(\.[0-9]{1,9})?", answer) is not None
    if kind == "shape":
        return (
            re.fullmatch(r"([2-9]|[1-9][0-9]{1,3})(x([2-9]|[1-9][0-9]{1,3}))*", answer) is not None
        )
    if kind in CHOICES:
        return answer in CHOICES[kind]
    if kind == "ways":
        return answer == FITTING or all(
            way in WAYS or _PARTIAL.fullmatch(way) for way in listed(answer)
        )
    return is_name(answer)


def is_name(text: str) -> bool:
    """Whether something may be called so."""
    return len(text) <= 100 and _NAME.fullmatch(text) is not None


def listed(answer: str) -> list[str]:
    """What stands between the commas of an answer, each once."""
    return list(dict.fromkeys(each.strip() for each in answer.split(",")))


def strategy_of(way: str) -> str:
    """The short form of the strategy whose runs are called so."""
    return WAYS.get(way) or f"partial_local_shuffle:exchange_fraction={way.partition('-')[2]}"


_IOR = "ior -w -r -F -C -e -t 1m -b 4g -i 3"
_DATA, _TIME, _RATE = Dimension.NBYTES, Dimension.SECONDS, Dimension.BANDWIDTH
_PFS, _SSD = "cluster.parallel_file_system", "cluster.ssd"
_HOSTS = (*SHAPES, NETWORK)
SOURCE = "new scenario"
"""What problems with answers are found in."""

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
             "HDR200; EDR and HDR100 have 12.5 GB/s, NDR 50 GB/s", "ib_write_bw", of=SHAPES),
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
             "ABCI, topologies/abci.yaml", f"{_IOR} -o /pfs/file", of=_HOSTS),
    Question("pfs_opens", "Machine", f"{_PFS}.open_rate", "Files that they open a second",
             Dimension.FREQUENCY, "43 k/s", "ABCI, from its training logs",
             "mdtest -n 1000 -i 5 -F -w 110000 -e 110000 -d /pfs/folder", of=_HOSTS),
    Question("ssd", "Machine", f"{_SSD}.capacity", f"SSD of a host, or {NO_SSD}", "ssd", "1.6 TB",
             "ABCI, Intel DC P4600", "df -h", of=_HOSTS),
    Question("ssd_read", "Machine", f"{_SSD}.read_bandwidth", "What the SSD reads", _RATE,
             "3.2 GB/s", "ABCI, data sheet of the Intel DC P4500", f"{_IOR} -o /local/file",
             of=_HOSTS),
    Question("ssd_write", "Machine", f"{_SSD}.write_bandwidth", "What the SSD writes", _RATE,
             "1.325 GB/s", "ABCI, data sheet of the Intel DC P4600", f"{_IOR} -o /local/file",
             of=_HOSTS),
    Question("samples", "Data set", "workload.dataset.num_samples", "Samples", "count", "1281167",
             "ImageNet-1K", "find FOLDER -type f | wc -l", needed=True),
    Question("sample_size", "Data set", "workload.dataset.sample_size.mean",
             "Mean size of a sample as it is stored", _DATA, "110 kB", "ImageNet-1K",
             "simshuffle machine probe FOLDER", needed=True),
    Question("format", "Data set", "workload.dataset.format", "Stored as jpeg or raw (arrays)",
             "format", "jpeg", "photographs; decides what decoding costs",
             "simshuffle machine probe FOLDER"),
    Question("batch_size", "Model", "workload.local_batch_size", "Samples of a batch on one GPU",
             "count", "64", "an example", needed=True),
    Question("batch_time", "Model", "workload.model.accelerators",
             "Time of a batch, data at hand: forward, backward, update", _TIME, "23.1 ms",
             "the catalog's ResNet-50, 64 images, A100, mixed precision",
             "a loop of 100 batches, whose data is in memory", needed=True),
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


def asked_of(topology: str) -> list[Question]:
    """The questions about a new machine that begins so, in their order."""
    start = start_of(topology)
    return [question for question in QUESTIONS if not question.of or start in question.of]


def answered(given: Mapping[str, str]) -> dict[str, str]:
    """An answer to every question: that given, or the default; and what a network's file or a
    machine decides (`decided`).

    Raises:
        InputError: an answer is missing that only the user knows, is not asked for, or is not
            valid.
    """
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
