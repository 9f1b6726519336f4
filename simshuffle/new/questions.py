"""What a new scenario asks about a machine and a training, and what to answer where one does not
know: the one table of the prompts, the options and the comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simshuffle.errors import InputError, Problem
from simshuffle.spec.units import Dimension, UnitError, parse_quantity

Kind = Dimension | Literal["count", "number", "name", "format", "overlap", "ways", "ranks", "ssd"]

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
    "format": "must be jpeg or raw",
    "overlap": "must be ddp, horovod or none",
    "ways": f"must be names between commas, of {', '.join(WAYS)} and partial-Q with Q from 0 to 1",
    "ranks": f"must be whole numbers, at least 1, between commas; or {ALL_RANKS}",
}


def _matches(kind: str, answer: str) -> bool:
    if kind == "count":
        return re.fullmatch(r"[1-9][0-9]{0,14}", answer) is not None
    if kind == "ranks":
        return all(ranks == ALL_RANKS or _matches("count", ranks) for ranks in listed(answer))
    if kind == "number":
        return re.fullmatch(r"[1-9][0-9]{0,3}(\.[0-9]{1,9})?", answer) is not None
    if kind == "format":
        return answer in {"jpeg", "raw"}
    if kind == "overlap":
        return answer in {"ddp", "horovod", "none"}
    if kind == "ways":
        return all(way in WAYS or _PARTIAL.fullmatch(way) for way in listed(answer))
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

QUESTIONS = (
    Question("hosts", "Machine", "cluster.topology.hosts", "Hosts", "count", "64",
             "an example", "sinfo -h -o %D", needed=True),
    Question("gpus", "Machine", "cluster.host.gpus", "GPUs of a host", "count", "4",
             "as on ABCI, Perlmutter and JUWELS Booster", "nvidia-smi -L"),
    Question("accelerator", "Machine", "cluster.host.accelerator", "What the GPUs are called",
             "name", "a100", "a name; v100, a100 and h100 set PCIe and NVLink too",
             "nvidia-smi -L"),
    Question("cores", "Machine", "cluster.host.cores", "Cores of a host", "count", "64",
             "Perlmutter, one EPYC 7763", "nproc"),
    Question("memory", "Machine", "cluster.memory.capacity", "Memory of a host", _DATA, "256 GB",
             "Perlmutter", "free -h"),
    Question("hcas", "Machine", "cluster.host.hcas", "Network adapters (HCAs) of a host",
             "count", "2", "as on ABCI and Perlmutter", "ibstat -l"),
    Question("hca_bandwidth", "Machine", "cluster.topology.link_bandwidth",
             "Bandwidth of an adapter", _RATE, "25 GB/s",
             "HDR200; EDR and HDR100 have 12.5 GB/s, NDR 50 GB/s", "ib_write_bw"),
    Question("ports", "Machine", "cluster.topology.ports", "Ports of a switch", "count", "40",
             "HDR, as in topologies/selene.yaml; EDR has 36, NDR 64", "ibswitches"),
    Question("taper", "Machine", "cluster.topology.taper",
             "Links below a leaf switch to one above it", "number", "1",
             "full bisection, as in topologies/selene.yaml", "iblinkinfo"),
    Question("pfs_bandwidth", "Machine", f"{_PFS}.read_bandwidth",
             "What all servers of the parallel file system read", _RATE, "77 GB/s",
             "ABCI, topologies/abci.yaml", f"{_IOR} -o /pfs/file"),
    Question("pfs_opens", "Machine", f"{_PFS}.open_rate", "Files that they open a second",
             Dimension.FREQUENCY, "43 k/s", "ABCI, from its training logs",
             "mdtest -n 1000 -i 5 -F -w 110000 -e 110000 -d /pfs/folder"),
    Question("ssd", "Machine", f"{_SSD}.capacity", f"SSD of a host, or {NO_SSD}", "ssd", "1.6 TB",
             "ABCI, Intel DC P4600", "df -h"),
    Question("ssd_read", "Machine", f"{_SSD}.read_bandwidth", "What the SSD reads", _RATE,
             "3.2 GB/s", "ABCI, data sheet of the Intel DC P4500", f"{_IOR} -o /local/file"),
    Question("ssd_write", "Machine", f"{_SSD}.write_bandwidth", "What the SSD writes", _RATE,
             "1.325 GB/s", "ABCI, data sheet of the Intel DC P4600", f"{_IOR} -o /local/file"),
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
             "Time of a batch on one GPU, data at hand: forward, backward, update", _TIME,
             "23.1 ms", "the catalog's ResNet-50, 64 images, A100, mixed precision",
             "a loop of 100 batches, whose data is in memory", needed=True),
    Question("gradients", "Model", "workload.model.gradient_size",
             "Gradients: 4 B a parameter in FP32, 2 B in FP16", _DATA, "102 MB",
             "the catalog's ResNet-50 in FP32", "sum(p.numel() for p in model.parameters())",
             needed=True),
    Question("overlap", "Model", "workload.allreduce.overlap",
             "What sums gradients while the backward pass runs: ddp, horovod, or none", "overlap",
             "ddp", "PyTorch's DistributedDataParallel, with the buckets that it has by itself"),
    Question("ranks", "Comparison", "world_size", "Ranks of the runs, between commas", "ranks",
             ALL_RANKS, "a rank for each GPU of the machine"),
    Question("epochs", "Comparison", "epochs", "Epochs", "count", "2",
             "a cold one, and one like all that follow"),
    Question("ways", "Comparison", "sweep.workload.exchange",
             "Ways to shuffle, between commas", "ways", "global-pfs, local, partial-0.1",
             "those of Nguyen et al., IPDPS 2022"),
)  # fmt: skip
"""In the order in which they are asked and written."""
BY_NAME = {question.name: question for question in QUESTIONS}


def answered(given: Mapping[str, str]) -> dict[str, str]:
    """An answer to every question: that given, or the default.

    Raises:
        InputError: an answer is missing that only the user knows, or is not valid.
    """
    given = {name: " ".join(answer.split()) for name, answer in given.items()}
    problems = []
    for question in QUESTIONS:
        if question.name in given:
            problem = question.problem(given[question.name])
        elif question.needed:
            rule, remedy = f"is required: {question.text}", question.advice
            problem = Problem(question.option, rule, remedy=remedy)
        else:
            problem = None
        problems += [problem] if problem else []
    if problems:
        raise InputError(problems, "new scenario")
    return {question.name: given.get(question.name, question.default) for question in QUESTIONS}
