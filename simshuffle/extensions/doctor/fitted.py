"""A training that was recorded as scenarios: on its own host with any number of ranks, and on other
machines.

On its own host ranks share the cores: see `Fitted.shared`. A machine brings its own network and
storage; of the record count the values of the workload, and its step times are taken as measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.doctor.laws import CONFIDENCE, ValueWithInterval
from simshuffle.job.scenario.calibrated import Fragment
from simshuffle.job.scenario.scenario import machine_of
from simshuffle.spec.library import is_file
from simshuffle.spec.overrides import plain_copy, put
from simshuffle.spec.units import Dimension, parse_quantity, readable

ACCELERATORS, DATASET = "workload.model.accelerators", "workload.dataset"
SECONDS, RATE = Dimension.SECONDS, Dimension.BANDWIDTH
_OF_NVLINK, _OF_ADAPTERS = 230 / 300, 0.85
"""What an allreduce reaches of what joins the GPUs of a host, and of the adapters of a host, as
`simshuffle new` takes them: an estimate for a DGX A100; and 84.8 of 100 GB/s with 4 HDR200
(github.com/NVIDIA/nccl-tests, issue 119)."""
_ADAPTER = 12.5e9
"""bytes/s of an adapter, where the topology does not say it in one number: EDR, an estimate."""


@dataclass(frozen=True)
class FittedValue:
    """A measured value of the scenario."""

    key: str  # dotted
    found: ValueWithInterval
    dimension: Dimension
    note: str

    def text(self, number: float) -> str:
        """As the scenario has it."""
        return readable(number, self.dimension, 6)


@dataclass(frozen=True)
class Fitted:
    """A training as it was recorded."""

    name: str
    source: str  # the record of what, where, and how much of it
    document: Mapping[str, Any]  # of the scenario, on this host, but for what ranks share
    values: tuple[FittedValue, ...]  # those that were measured
    over: Mapping[str, Sequence[int]]  # what they were measured over: all values
    notes: tuple[str, ...]  # what could not be seen, or was taken otherwise
    here: tuple[str, ...]  # the same of what counts on this host only
    device: str  # the name of its step times
    ranks: tuple[int, ...]  # numbers of ranks that were recorded
    cores: int  # of the host
    step_s: float  # of a whole batch
    step_cores: float  # that a rank keeps busy in its step
    load_s: float  # in which a worker makes a batch
    decode_s: float  # of it on a core
    workers: int  # of a rank; 0 where it makes its batches itself
    distributed: bool  # whether steps were recorded with what sums gradients beside them
    files: bool  # whether samples are read from files at all
    fragments: tuple[Fragment, ...]  # of what the record does not know

    def on(self, ranks: int, machine: str | Path | None = None) -> dict[str, Any]:
        """The document of the scenario with so many ranks: on this host, or on a machine, by name
        or file. Raises an InputError if there is no such machine, or a fragment does not fit."""
        out: dict[str, Any] = plain_copy(dict(self.document))
        out["name"], out["world_size"] = f"{self.name}-{ranks}", ranks
        records = self._records(self.values)
        if machine is None:
            out["cluster"]["host"]["gpus"] = ranks
            changed = self._share_cores(out, ranks)
            records = [of for of in records if of["key"] not in changed]
        else:
            records = self._move(out, machine)
        return {**out, "calibrated": [*records, *self._include(out)]}

    def _include(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        """Set what fragments say and the record does not; returns their records of that."""
        own = {of.key for of in self.values}
        problems: list[Problem] = []
        records = []
        for fragment in self.fragments:
            new = {key: value for key, value in fragment.values.items() if key not in own}
            for key, value in new.items():
                put(document, key, value, problems)
            records += [
                of.model_dump(mode="json", exclude_none=True)
                for of in fragment.calibrated
                if of.key in new
            ]
        if problems:
            raise InputError(problems, self.name)
        return records

    def to_yaml(self) -> str:
        """The training as it was recorded, on this host: a file that `simshuffle run` reads."""
        lines = (f"{self.source}.", *self.notes, *self.here)
        head = "".join(f"# {line}\n" for line in lines)
        document = self.on(max(self.ranks))
        return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=130)

    def shared(self, ranks: int) -> tuple[float, int, float]:
        """What so many ranks on the cores of this host do: the factor by which steps are longer,
        the cores that are left to workers, and the factor by which these decode longer since the
        cores that are left are no whole number.

        An iteration takes the longest of a step, of loading, and of the work of all ranks over the
        cores of the host. While steps take their part of the cores, workers have the rest.
        """
        work = self.step_cores * self.step_s + self.decode_s
        alone = max(self.step_s, self.load_s / max(self.workers, 1))
        alone = alone if self.workers else self.step_s + self.load_s
        iteration = max(alone, ranks * work / self.cores)
        left = self.cores - ranks * self.step_cores * self.step_s / iteration
        slower = max(1.0, ranks * self.step_cores / self.cores)
        if left <= 0:
            return slower, self.cores, 1.0
        whole = max(math.ceil(left - 0.01), 1)
        return slower, whole, whole / left

    def _share_cores(self, document: dict[str, Any], ranks: int) -> set[str]:
        """Set what `shared` says; returns the keys that are no longer as measured."""
        slower, cores, longer = self.shared(ranks)
        document["cluster"]["host"]["cores"] = cores
        times = document["workload"]["model"]["accelerators"][self.device]
        dataset = document["workload"]["dataset"]
        changed = set()
        for holder, factor, names, above in (
            (times, slower, ("forward", "backward", "update", "fixed"), self._times),
            (dataset, longer, ("decode",), DATASET),
        ):
            for name in names if factor > 1 else ():
                if name in holder:
                    seconds = factor * parse_quantity(holder[name], SECONDS)
                    holder[name] = readable(seconds, SECONDS, 6)
                    changed.add(f"{above}.{name}")
        return changed

    @property
    def _hooks(self) -> float:
        """s that summing gradients beside the backward pass adds to steps that were recorded
        without: 3 ms of ResNet-50's 102 MB, as by default, in proportion."""
        nbytes = parse_quantity(
            self.document["workload"]["model"]["gradient_size"], Dimension.NBYTES
        )
        return 0.0 if self.distributed else 3e-3 * nbytes / 102.2e6

    @property
    def _times(self) -> str:
        return f"{ACCELERATORS}.{self.device}"

    def _move(self, document: dict[str, Any], machine: str | Path) -> list[dict[str, Any]]:
        """Put the training on a machine; returns the records of the values that are kept."""
        found = machine_of(str(machine))
        place = Path(machine)
        document["cluster"] = str(place.resolve()) if is_file(place) else str(machine)
        workload = document["workload"]
        times = workload["model"]["accelerators"]
        times[found.host.accelerator] = times.pop(self.device)
        if self.device.startswith("cpu"):  # how its steps vary is the doing of what it shares
            del workload["jitter"]["compute"]
        adapters = found.host.hcas * getattr(found.topology, "link_bandwidth", _ADAPTER)
        workload["allreduce"] = {
            "kind": "nccl",
            "ring_intra_host_latency": "3.4 us",
            "ring_inter_host_latency": "9.6 us",
            "tree_intra_host_latency": "28 us",
            "tree_inter_host_latency": "50 us",
            "intra_host_bus_bandwidth": readable(_OF_NVLINK * found.host.nvlink_bandwidth, RATE),
            "inter_host_bus_bandwidth": readable(_OF_ADAPTERS * adapters, RATE),
            "protocols": "nccl_2.7",
            "overlap": {"kind": "ddp", "hooks": readable(self._hooks, SECONDS)},
            "source": "estimate: latencies of NCCL's tuning table, shares of NVLink and adapters",
        }
        workload["exchange"] = "global_shuffle:source=pfs"
        if not self.files:
            workload["exchange"], workload["staging"] = "local_shuffle", {"target": "memory"}
        old, new = self._times, f"{ACCELERATORS}.{found.host.accelerator}"
        kept = [of for of in self.values if of.key.startswith((f"{DATASET}.", f"{old}."))]
        return self._records([replace(of, key=of.key.replace(old, new)) for of in kept])

    def _records(self, values: Sequence[FittedValue]) -> list[dict[str, Any]]:
        """What the scenario keeps of the values that were measured."""
        out = []
        for of in values:
            ends = {"low": of.found.low, "high": of.found.high}
            known = {name: of.text(end) for name, end in ends.items() if math.isfinite(end)}
            told = {"key": of.key, "value": of.text(of.found.value), **known}
            out.append(
                {**told, "confidence": CONFIDENCE, "source": self.source, "note": of.note}
                | {"over": {name: [min(seen), max(seen)] for name, seen in self.over.items()}}
            )
        return out

    def fragment(self) -> str:
        """The values that were measured, as a fragment that a scenario of another machine
        includes: those of the workload."""
        kept = [of for of in self.values if of.key.startswith("workload.")]
        values = {of.key: of.text(of.found.value) for of in kept}
        return yaml.safe_dump(
            {"values": values, "calibrated": self._records(kept)}, sort_keys=False, width=130
        )
