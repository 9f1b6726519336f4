"""Turn a recorded training into scenarios: on its own host with any number of ranks,
and on other machines.

On its own host ranks share the cores: see `FittedTraining.share_cores`. A machine
brings its own network and storage; of the record count the values of the workload, and
its step times are taken as measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from simshuffle.errors import InputError, Problem
from simshuffle.extensions.doctor.laws import CONFIDENCE, ValueWithInterval
from simshuffle.job.scenario.calibrated import Fragment
from simshuffle.job.scenario.scenario import machine_of
from simshuffle.spec.library import is_file
from simshuffle.spec.overrides import plain_copy, set_key
from simshuffle.spec.units import Dimension, parse_quantity, readable

ACCELERATORS, DATASET = "workload.model.accelerators", "workload.dataset"
SECONDS = Dimension.SECONDS
RATE = Dimension.BANDWIDTH
_NVLINK_SHARE = 230 / 300
_ADAPTER_SHARE = 0.85
"""Shares that an allreduce reaches of the bandwidth between the GPUs of a host, and of
that of the adapters of a host, as `simshuffle new` takes them: an estimate for a DGX
A100; and 84.8 of 100 GB/s with 4 HDR200 (github.com/NVIDIA/nccl-tests, issue 119).
"""
_ADAPTER = 12.5e9
"""Bytes/s of an adapter, where the topology does not say it in one number: EDR, an
estimate.
"""


@dataclass(frozen=True)
class FittedValue:
    """A measured value of the scenario."""

    key: str  # dotted
    estimate: ValueWithInterval  # the value and its interval
    dimension: Dimension
    note: str  # how it was measured

    def text(self, number: float) -> str:
        """Return a number of the value's dimension as the scenario has it: with unit,
        to 6 digits.
        """
        return readable(number, self.dimension, 6)


class MeasuredValues:
    """The measured values of a scenario, collected while its parts are fitted.

    Attributes:
        values: in the order in which they were noted.
    """

    def __init__(self) -> None:
        self.values: list[FittedValue] = []

    def note(
        self, key: str, estimate: ValueWithInterval, dimension: Dimension, note: str
    ) -> str:
        """Keep a value as measured, unless it is 0 or below, and return its text in the
        scenario, with unit.

        Args:
            key: of the scenario, dotted.
            estimate: the value with its interval.
            dimension: of the value.
            note: how it was measured.
        """
        fitted = FittedValue(key, estimate, dimension, note)
        if estimate.value > 0:
            self.values.append(fitted)
        return fitted.text(estimate.value)

    def drop(self, prefix: str) -> None:
        """Drop the values whose keys begin with ``prefix``."""
        self.values = [
            value for value in self.values if not value.key.startswith(prefix)
        ]


class SharedCores(NamedTuple):
    """Effects of the ranks of a host on each other, as they share its cores."""

    step_factor: float  # by which steps are longer, at least 1
    worker_cores: int  # cores of the host that are left to workers, rounded up
    # by which workers decode longer, as the cores left are no whole number
    decode_factor: float


@dataclass(frozen=True)
class FittedTraining:
    """A training as it was recorded."""

    name: str  # of the script
    source: str  # the record: its command, host and number of batches
    # of the scenario, on this host, before ranks share its cores
    document: Mapping[str, Any]
    values: tuple[FittedValue, ...]  # those that were measured
    # for each key all values at which these were measured
    over: Mapping[str, Sequence[int]]
    notes: tuple[str, ...]  # on what could not be seen, or was assumed
    host_notes: tuple[str, ...]  # of these, that concern this host only
    device: str  # name of its step times
    ranks: tuple[int, ...]  # numbers of ranks that were recorded
    cores: int  # of the host
    step_s: float  # s of the step of a full batch
    step_cores: float  # cores that a rank keeps busy in its step
    load_s: float  # s in which a worker makes a full batch, if no other reads
    decode_s: float  # of these, s on a core
    workers: int  # of a rank; 0 where it makes its batches itself
    distributed: (
        bool  # whether steps were recorded with what sums gradients beside them
    )
    reads_files: bool  # whether samples are read from files at all
    fragments: tuple[Fragment, ...]  # measured values that the record does not know

    def on(self, ranks: int, machine: str | Path | None = None) -> dict[str, Any]:
        """Return the document of the scenario on this host, or on a machine, with the
        measured values under ``calibrated``.

        On this host each rank has a GPU of the one host, and times that become longer
        as ranks share its cores no longer count as measured. On a machine only values
        of the data set and of steps count as measured. Fragments set what the record
        does not know.

        Args:
            ranks: number of ranks.
            machine: its name or file; None for the host of the record.

        Raises:
            InputError: there is no such machine, or a fragment does not fit.
        """
        document: dict[str, Any] = plain_copy(dict(self.document))
        document["name"] = f"{self.name}-{ranks}"
        document["world_size"] = ranks
        if machine is None:
            document["cluster"]["host"]["gpus"] = ranks
            changed_keys = self._apply_shared_cores(document, ranks)
            records = self._calibration_records(self.values)
            records = [
                record for record in records if record["key"] not in changed_keys
            ]
        else:
            records = self._move_to_machine(document, machine)
        records += self._apply_fragments(document)
        return {**document, "calibrated": records}

    def _apply_fragments(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        """Set what fragments say and the record does not, and return the records of
        that for ``calibrated``.

        Args:
            document: of a scenario, changed in place.

        Raises:
            InputError: a key of a fragment cannot be set.
        """
        own_keys = {value.key for value in self.values}
        problems: list[Problem] = []
        records = []
        for fragment in self.fragments:
            new_values = {
                key: value
                for key, value in fragment.values.items()
                if key not in own_keys
            }
            for key, value in new_values.items():
                set_key(document, key, value, problems)
            records += [
                calibrated.model_dump(mode="json", exclude_none=True)
                for calibrated in fragment.calibrated
                if calibrated.key in new_values
            ]
        if problems:
            raise InputError(problems, self.name)
        return records

    def to_yaml(self) -> str:
        """Return the training as it was recorded, on this host with the most ranks that
        were recorded: a file that `simshuffle run` reads, with the notes at its head.
        """
        lines = (f"{self.source}.", *self.notes, *self.host_notes)
        head = "".join(f"# {line}\n" for line in lines)
        document = self.on(max(self.ranks))
        return head + yaml.safe_dump(
            document, sort_keys=False, allow_unicode=True, width=130
        )

    def share_cores(self, ranks: int) -> SharedCores:
        """Return the effects on each other of so many ranks on the cores of this host.

        An iteration takes the longest of a step, of loading, and of the work of all
        ranks over the cores of the host. While steps take their part of the cores,
        workers have the others. Where none is left, workers count with all cores, and
        only steps become longer.
        """
        core_s = self.step_cores * self.step_s + self.decode_s
        isolated_s = max(self.step_s, self.load_s / max(self.workers, 1))
        if not self.workers:
            isolated_s = self.step_s + self.load_s
        iteration_s = max(isolated_s, ranks * core_s / self.cores)
        spare_cores = self.cores - ranks * self.step_cores * self.step_s / iteration_s
        step_factor = max(1.0, ranks * self.step_cores / self.cores)
        if spare_cores <= 0:
            return SharedCores(step_factor, self.cores, 1.0)
        worker_cores = max(math.ceil(spare_cores - 0.01), 1)
        return SharedCores(step_factor, worker_cores, worker_cores / spare_cores)

    def _apply_shared_cores(self, document: dict[str, Any], ranks: int) -> set[str]:
        """Set what `share_cores` says, and return the dotted keys that are no longer as
        measured.

        Args:
            document: of the scenario, changed in place.
            ranks: number of ranks.
        """
        sharing = self.share_cores(ranks)
        document["cluster"]["host"]["cores"] = sharing.worker_cores
        changed_keys = set()

        def lengthen(
            times: dict[str, Any], names: Sequence[str], key: str, factor: float
        ) -> None:
            """Multiply the times of these names that are there, if the factor is above
            1, and add their keys, below ``key``, to the changed ones.
            """
            for name in names if factor > 1 else ():
                if name in times:
                    seconds = factor * parse_quantity(times[name], SECONDS)
                    times[name] = readable(seconds, SECONDS, 6)
                    changed_keys.add(f"{key}.{name}")

        step_times = document["workload"]["model"]["accelerators"][self.device]
        passes = ("forward", "backward", "update", "fixed")
        lengthen(step_times, passes, self._times_key, sharing.step_factor)
        dataset = document["workload"]["dataset"]
        lengthen(dataset, ("decode",), DATASET, sharing.decode_factor)
        return changed_keys

    @property
    def _hook_s(self) -> float:
        """Seconds that summing gradients beside the backward pass adds to steps that
        were recorded without: 3 ms of ResNet-50's 102 MB, as by default, in proportion.
        0 if they were recorded with it.
        """
        gradient_size = self.document["workload"]["model"]["gradient_size"]
        nbytes = parse_quantity(gradient_size, Dimension.NBYTES)
        return 0.0 if self.distributed else 3e-3 * nbytes / 102.2e6

    @property
    def _times_key(self) -> str:
        """Key of the step times in the scenario, dotted."""
        return f"{ACCELERATORS}.{self.device}"

    def _move_to_machine(
        self, document: dict[str, Any], machine_name: str | Path
    ) -> list[dict[str, Any]]:
        """Put the training on a machine, and return the records of the values that the
        training keeps: values of the data set and of steps.

        Steps last as long on the accelerator of the machine; those of a CPU lose their
        jitter. The allreduce becomes an estimate of NCCL's. Samples come from the
        parallel file system, or from memory if the record has no bytes of them.

        Args:
            document: of the scenario, changed in place.
            machine_name: name or file.

        Raises:
            InputError: there is no such machine.
        """
        machine = machine_of(str(machine_name))
        path = Path(machine_name)
        document["cluster"] = (
            str(path.resolve()) if is_file(path) else str(machine_name)
        )
        workload = document["workload"]
        times = workload["model"]["accelerators"]
        times[machine.host.accelerator] = times.pop(self.device)
        if self.device.startswith("cpu"):  # its steps vary because of what it shares
            del workload["jitter"]["compute"]
        adapter_rate = machine.host.hcas * getattr(
            machine.topology, "link_bandwidth", _ADAPTER
        )
        workload["allreduce"] = {
            "kind": "nccl",
            "ring_intra_host_latency": "3.4 us",
            "ring_inter_host_latency": "9.6 us",
            "tree_intra_host_latency": "28 us",
            "tree_inter_host_latency": "50 us",
            "intra_host_bus_bandwidth": readable(
                _NVLINK_SHARE * machine.host.nvlink_bandwidth, RATE
            ),
            "inter_host_bus_bandwidth": readable(_ADAPTER_SHARE * adapter_rate, RATE),
            "protocols": "nccl_2.7",
            "overlap": {"kind": "ddp", "hooks": readable(self._hook_s, SECONDS)},
            "source": "estimate: latencies of NCCL's tuning table, shares of NVLink and adapters",
        }
        workload["exchange"] = "global_shuffle:source=pfs"
        if not self.reads_files:
            workload["exchange"] = "local_shuffle"
            workload["staging"] = {"target": "memory"}
        old_key = self._times_key
        new_key = f"{ACCELERATORS}.{machine.host.accelerator}"
        moved = [
            replace(value, key=value.key.replace(old_key, new_key))
            for value in self.values
            if value.key.startswith((f"{DATASET}.", f"{old_key}."))
        ]
        return self._calibration_records(moved)

    def _calibration_records(
        self, values: Sequence[FittedValue]
    ) -> list[dict[str, Any]]:
        """Return what the scenario keeps of measured values under ``calibrated``: key,
        value, interval, confidence, source, note and range (``over``). An end of the
        interval that is not known is left out.
        """
        records = []
        for fitted in values:
            ends = {"low": fitted.estimate.low, "high": fitted.estimate.high}
            record = {
                "key": fitted.key,
                "value": fitted.text(fitted.estimate.value),
                **{
                    name: fitted.text(end)
                    for name, end in ends.items()
                    if math.isfinite(end)
                },
                "confidence": CONFIDENCE,
                "source": self.source,
                "note": fitted.note,
                "over": {
                    name: [min(numbers), max(numbers)]
                    for name, numbers in self.over.items()
                },
            }
            records.append(record)
        return records

    def fragment(self) -> str:
        """Return the measured values of the workload, as the YAML text of a fragment
        that a scenario of another machine includes; values of the server are left out.
        """
        measured = [value for value in self.values if value.key.startswith("workload.")]
        content = {
            "values": {
                value.key: value.text(value.estimate.value) for value in measured
            },
            "calibrated": self._calibration_records(measured),
        }
        return yaml.safe_dump(content, sort_keys=False, width=130)
