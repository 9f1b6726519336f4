"""Fit a scenario to the record of a training: of this very training on its own host.

The time of a core for a sample becomes the sample's decoding. The waits of a worker
become the latency and the rate of the server that it reads from, whatever waits there.
Nothing else is known of the host, so the network, the SSD and the memory are so fast
that they never bind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.doctor.allreduce_fit import (
    allreduce_seconds,
    allreduce_settings,
)
from simshuffle.extensions.doctor.fitted import (
    ACCELERATORS,
    DATASET,
    RATE,
    SECONDS,
    FittedTraining,
    MeasuredValues,
)
from simshuffle.extensions.doctor.laws import (
    ValueWithInterval,
    batch_loads,
    bootstrap_intervals,
    loader_settings,
    robust_spread,
    sample_size_deviation,
    step_rows,
)
from simshuffle.extensions.doctor.own_host import NO_LIMIT, own_host
from simshuffle.extensions.doctor.reading_laws import (
    ReadingLaw,
    fit_reading_law,
    sample_reads,
)
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.extensions.doctor.step_fit import FittedSteps, busy_cores, fit_steps
from simshuffle.job.scenario.calibrated import read_fragment
from simshuffle.spec.units import Dimension, parse_quantity, readable

PFS = "cluster.parallel_file_system"
SERVER = "cluster.object_store"
NBYTES = Dimension.NBYTES
UNKNOWN_CORES = (
    1024  # of a host whose number is not known: so many that they do not bind
)
UNKNOWN_MEMORY = 64e9  # bytes of a host whose memory is not known
BANDWIDTH_KEYS = (
    f"{PFS}.read_bandwidth",
    f"{PFS}.client_bandwidth",
    "cluster.ssd.read_bandwidth",
)
"""Keys of fragments that bound what all readers share."""


def fit(
    records: Record | Sequence[Record], include: Sequence[Path] = ()
) -> FittedTraining:
    """Fit the scenario of one training to its record, or its records at several numbers
    of ranks. A cold first epoch is left out (`drop_cold_epoch`).

    Args:
        records: of the same training on the same host, in any order.
        include: fragments of measured values. What the record knows better is left out
            of them; a limit of what readers share is taken as known.

    Raises:
        InputError: a record has no steps, or no size of a batch; two have the same
            number of ranks; or a fragment cannot be read.
    """
    records = [records] if isinstance(records, Record) else list(records)
    ranks = list(map(num_ranks, records))
    if len(set(ranks)) < len(records):
        rule = "must have different numbers of ranks"
        numbers = " and ".join(map(str, ranks))
        remedy = "Name one record of each."
        refuse("RECORD", rule, numbers, remedy, records[0].source)
    return _ScenarioFit(sorted(records, key=num_ranks), include).fit_training()


def num_ranks(record: Record) -> int:
    """Return the number of ranks of the training, else the highest of the rows, + 1."""
    return int(record.about.get("ranks") or record.rows["rank"].max() + 1)


class _ScenarioFit:
    """The parts of a scenario, fitted one after the other to records of one training.

    Fitting adds to the notes and the measured values: each part is fitted once.
    """

    def __init__(self, records: Sequence[Record], include: Sequence[Path]) -> None:
        """Read tables of the records, which have the fewest ranks first."""
        self.records = [drop_cold_epoch(record) for record in records]
        self.loads = [batch_loads(record) for record in self.records]
        self.all_loads = pd.concat(self.loads, ignore_index=True)
        pairs = zip(self.records, self.loads, strict=True)
        self.steps = [step_rows(record, loads) for record, loads in pairs]
        self.ranks = tuple(map(num_ranks, self.records))  # of each record
        self.about = records[0].about
        self.loader = loader_settings(records[0])
        self.batch = int(self.steps[0]["samples"].max())  # samples of a full batch
        self.on_cpu = str(self.about.get("device", "cpu")).partition(":")[0] == "cpu"
        self.notes: list[str] = list(self.about.get("notes", ()))
        self.host_notes: list[str] = []  # that concern this host only
        self.measured = MeasuredValues()
        self.fragments = tuple(map(read_fragment, include))
        self.known_bandwidth = (
            self._known_bandwidth()
        )  # bytes/s; None if no fragment has one

    def _known_bandwidth(self) -> float | None:
        """Return the least of `BANDWIDTH_KEYS` in the fragments, bytes/s, of a curve
        its first point; else None.
        """
        values = [
            fragment.values[key]
            for fragment in self.fragments
            for key in BANDWIDTH_KEYS
            if key in fragment.values
        ]
        # a curve is over hosts, of which this is one
        rates = [
            next(iter(value["points"].values())) if isinstance(value, dict) else value
            for value in values
        ]
        return min((parse_quantity(rate, RATE) for rate in rates), default=None)

    @property
    def source(self) -> str:
        """Name of the record: command, host and number of steps, of all ranks."""
        batches = sum(map(len, self.steps))
        return f"record of {' '.join(self.command)} on {self.host}, {batches} batches"

    @property
    def command(self) -> list[str]:
        """The script and its options, or all words where none ends with .py."""
        words: list[str] = list(self.about.get("command") or ["training"])
        script = next(
            (index for index, word in enumerate(words) if word.endswith(".py")), 0
        )
        return words[script:]

    @property
    def host(self) -> str:
        """The name of the host; "this host" if not known."""
        return str((self.about.get("host") or {}).get("name") or "this host")

    @property
    def has_buckets(self) -> bool:
        """True if gradients were summed in buckets, as by DistributedDataParallel."""
        return bool((self.about.get("model") or {}).get("buckets"))

    @property
    def gradient_nbytes(self) -> float:
        """Bytes of the gradients, else 4 for each parameter; 0 if not known."""
        model = self.about.get("model") or {}
        return float(model.get("gradient_nbytes") or 4 * (model.get("parameters") or 0))

    def _loader_keys(self, workers: int) -> dict[str, int]:
        """Return the keys of the loader: its workers, and the batches that are prepared
        ahead of a rank; 1 each without workers.
        """
        prefetch = int(self.loader.get("prefetch_factor") or 2)
        return {"workers": max(workers, 1), "prefetch": max(workers * prefetch, 1)}

    def _model_keys(self, name: str, device: str, step: FittedSteps) -> dict[str, Any]:
        """Return the keys of the model: its gradients, and its times of a step."""
        return {
            "name": name,
            **self.gradients(),
            "input_size": "1 B",
            "source": self.source,
            "accelerators": {device: step.times},
        }

    def fit_training(self) -> FittedTraining:
        """Fit all parts of the scenario, and collect values, intervals and notes."""
        name = _as_name(Path(self.command[0]).stem)
        device = _as_name(str(self.about.get("device", "cpu")))
        step = fit_steps(
            f"{ACCELERATORS}.{device}",
            self.steps[0],
            self.batch,
            sums_gradients=self.ranks[0] > 1,
            measured=self.measured,
        )
        self.notes += step.notes
        reading = self.fit_reading()
        loads = self.all_loads
        mean_nbytes, decode = _sample_law(loads)
        load_s = decode.value + reading.latency.value + mean_nbytes / reading.rate
        workers = int(self.loader.get("num_workers", 1))
        if workers == 0:
            self.add_loads_to_passes(step.times, load_s)
        dataset = self.fit_dataset(name, decode, mean_nbytes)
        cores = self.count_cores()
        model = self._model_keys(name, device, step)
        document = {
            "name": name,
            "description": self.source,
            "cluster": self.fit_cluster(device, cores, reading),
            "world_size": max(self.ranks),
            "time_tolerance": "1 %",
            "workload": {
                "model": model,
                "dataset": dataset,
                "local_batch_size": self.batch,
                "last_batch": "drop" if self.loader.get("drop_last") else "keep",
                "exchange": "global_shuffle:source=object_store",
                "allreduce": self.fit_allreduce(step, cores),
                "loader": self._loader_keys(workers),
                "jitter": self.fit_jitter(step, reading.latency.value),
            },
        }
        return FittedTraining(
            name=name,
            source=self.source,
            document=document,
            values=tuple(self.measured.values),
            over={"world_size": self.ranks, "local_batch_size": (self.batch,)},
            notes=tuple(self.notes),
            host_notes=tuple(self.host_notes),
            device=device,
            ranks=self.ranks,
            cores=cores,
            step_s=step.step_s,
            step_cores=self.step_cores(),
            load_s=load_s * self.batch,
            decode_s=decode.value * self.batch,
            workers=workers,
            distributed=self.ranks[0] > 1 or self.has_buckets,
            reads_files=bool(loads["nbytes"].any()),
            fragments=self.fragments,
        )

    def add_loads_to_passes(self, times: dict[str, str | int], load_s: float) -> None:
        """Add the load of a sample to the times of the passes, and note that; the times
        no longer count as measured.

        A rank that makes its batches itself does one after the other.

        Args:
            times: of the passes, in place.
            load_s: s of a sample.
        """
        self.notes.append(
            "Ranks make their batches themselves: their steps include that time."
        )
        for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
            seconds = parse_quantity(times[name], SECONDS) + share * load_s
            times[name] = readable(seconds, SECONDS, 6)
        self.measured.drop(ACCELERATORS)

    def fit_reading(self) -> ReadingLaw:
        """Fit the law by which samples are read; with a note, they cost nothing where
        no fetch was recorded.
        """
        pairs = zip(self.records, self.loads, strict=True)
        tables = [sample_reads(record, loads) for record, loads in pairs]
        tables = [table for table in tables if len(table)]
        if tables:
            return fit_reading_law(tables, self.known_bandwidth)
        self.notes.append(
            "What workers do was not recorded: loading is taken to cost nothing."
        )
        no_limit = ValueWithInterval(parse_quantity(NO_LIMIT, RATE))
        return ReadingLaw(ValueWithInterval(0.0), no_limit, no_limit, is_recorded=False)

    def fit_dataset(
        self, name: str, decode: ValueWithInterval, mean_nbytes: float
    ) -> dict[str, Any]:
        """Return the ``dataset`` of the scenario, and note its decoding as measured.

        A data set of unknown length has as many samples as the fewest ranks trained on
        in the longest epoch.

        Args:
            name: of the data set.
            decode: s of a core for a sample.
            mean_nbytes: mean bytes of a sample.
        """
        loads = self.all_loads
        samples = float(loads["samples"].sum())
        opens = float(loads["opens"].sum())
        decoded_nbytes = float(loads["decoded"].sum())
        note = "core time of decode, transform and collate, and of reading"
        samples_of_epoch = self.steps[0].groupby("epoch")["samples"].sum()
        num_samples = int(self.loader.get("samples") or samples_of_epoch.max())
        dataset: dict[str, Any] = {
            "name": name,
            "num_samples": num_samples,
            "sample_size": {
                "mean": readable(mean_nbytes, NBYTES, 6),
                "std": readable(sample_size_deviation(loads, mean_nbytes), NBYTES, 6),
            },
            "format": "raw",
            "decode": self.measured.note(f"{DATASET}.decode", decode, SECONDS, note),
            "samples_per_file": max(round(samples / opens), 1)
            if opens
            else num_samples,
            "source": self.source,
        }
        if decoded_nbytes:
            dataset["decoded_size"] = {
                "mean": readable(decoded_nbytes / samples, NBYTES, 6)
            }
        return dataset

    def count_cores(self) -> int:
        """Return the cores of the host; `UNKNOWN_CORES`, with a note, if not known."""
        cores = (self.about.get("host") or {}).get("cores")
        if not cores:
            self.notes.append(
                "The number of cores of the host is not known: cores are taken never to bind."
            )
        return max(int(cores), 1) if cores else UNKNOWN_CORES

    def step_cores(self) -> float:
        """Return the cores that a rank keeps busy in its step."""
        threads = self.about.get("threads") or 1
        return busy_cores(self.steps[0], threads if self.on_cpu else 1, self.on_cpu)

    def gradients(self) -> dict[str, Any]:
        """Return the size of the gradients, and the buckets in which they are summed;
        8 bytes, with a note, if not known.
        """
        model = self.about.get("model") or {}
        nbytes = self.gradient_nbytes
        if not nbytes:
            self.notes.append(
                "The size of the gradients is not known: an allreduce only makes ranks wait."
            )
            return {"gradient_size": "8 B"}
        settings: dict[str, Any] = {"gradient_size": readable(nbytes, NBYTES, 12)}
        # the last layers are summed first; 4 bytes a parameter
        bucket_nbytes = reversed(model.get("buckets") or ())
        parameters = [round(nbytes / 4) for nbytes in bucket_nbytes if nbytes >= 4]
        if parameters and 4 * sum(parameters) == nbytes:
            settings["layers"] = {"parameters": parameters, "backward": parameters}
        if num_parameters := model.get("parameters"):
            settings["num_parameters"] = num_parameters
        return settings

    def fit_allreduce(self, step: FittedSteps, cores: int) -> dict[str, Any]:
        """Return the allreduce of ranks of this host, from what steps take longer for
        it; free, with a note, if none shows.
        """
        seconds_of_ranks = allreduce_seconds(
            self.ranks,
            self.steps,
            batch_size=self.batch,
            step_s=step.step_s,
            step_cores=self.step_cores(),
            cores=cores,
        )
        if not seconds_of_ranks:
            self.host_notes.append(
                "No allreduce shows in steps: on this host it is taken as free."
                if self.ranks[0] == 1
                else "The record cannot separate an allreduce from steps: it stays in them."
            )
        return allreduce_settings(seconds_of_ranks, self.gradient_nbytes, self.source)

    def fit_jitter(self, step: FittedSteps, latency: float) -> dict[str, float]:
        """Return the jitter of steps beside their law, and of waits over a latency (s)."""
        return {"compute": step.jitter(), "read": _read_jitter(self.loads[0], latency)}

    def fit_cluster(
        self, device: str, cores: int, reading: ReadingLaw
    ) -> dict[str, Any]:
        """Return this host, with a server that is as the record has it, and note the
        server's values as measured if any fetch was recorded.

        Args:
            device: name of its accelerator.
            cores: of the host.
            reading: the law of the server.
        """
        measured = self.measured if reading.is_recorded else MeasuredValues()
        note = "wait of a worker for a sample, in addition to the time of its bytes"
        latency = measured.note(f"{SERVER}.latency", reading.latency, SECONDS, note)
        own_rate = readable(reading.own_rate.value, RATE, 6)
        if reading.binds:
            key = f"{SERVER}.connection_bandwidth"
            note = "rate of one worker alone"
            own_rate = measured.note(key, reading.own_rate, RATE, note)
        note = "rate that all readers share, from the time in which the server is busy"
        if not reading.binds:
            note = "readers did not slow each other: a limit, if any, is above the lower end"
            reached = readable(reading.bandwidth.low, RATE, 3)
            if not any(table["nbytes"].any() for table in self.loads):
                reached = f"{reading.bandwidth.low:.3g} samples/s"
            self.host_notes.append(
                f"Readers together reached {reached} and no limit: the limit is taken to be far"
                " above. Record more ranks, or measure it (simshuffle machine probe)."
            )
        if self.known_bandwidth is not None:
            note = "from another measurement"
        server = {
            "latency": latency,
            "connection_bandwidth": own_rate,
            "bandwidth": measured.note(
                f"{SERVER}.bandwidth", reading.bandwidth, RATE, note
            ),
            "request_rate": "1 G/s",
            "price_per_request": 0,
            "source": self.source,
        }
        memory = float(
            (self.about.get("host") or {}).get("memory_nbytes") or UNKNOWN_MEMORY
        )
        return own_host(_as_name(self.host), device, cores, memory, server)


def _sample_law(loads: pd.DataFrame) -> tuple[float, ValueWithInterval]:
    """Return the mean bytes of a sample, 1 if not known, and the s of a core for a
    sample, 0 without loads.
    """
    if not len(loads):
        return 1.0, ValueWithInterval(0.0)
    mean_nbytes = float(loads["nbytes"].sum() / loads["samples"].sum()) or 1.0
    (decode,) = bootstrap_intervals(loads, _mean_core_s)
    return mean_nbytes, decode


def _mean_core_s(loads: pd.DataFrame) -> list[float]:
    """Return the mean s of a core for a sample."""
    return [loads["core_s"].sum() / loads["samples"].sum()]


def _read_jitter(loads: pd.DataFrame, latency: float) -> float:
    """Return the standard deviation of the waits for samples over a latency, at most 1;
    0 if nothing waits.

    Args:
        loads: `batch_loads` of a record.
        latency: s of a sample, on which all variation of the waits is put.
    """
    waited_s = loads["waited_s"] / loads["samples"]
    if not latency or not waited_s.any():
        return 0.0
    return round(
        min(robust_spread(waited_s) * float(waited_s.mean()) / latency, 1.0), 4
    )


def drop_cold_epoch(record: Record) -> Record:
    """Return the record without its first epoch, whose caches are cold and whose
    processes are warming up, if the later ones have at least half as many steps; else
    the record itself. Rows of no batch go that began before the second epoch.
    """
    rows = record.rows
    step_epochs = rows.loc[rows["operation"] == "step", "epoch"]
    is_later = rows["epoch"] >= 1
    if 2 * (step_epochs >= 1).sum() < (step_epochs < 1).sum() or not is_later.any():
        return record
    # rows of no batch know no epoch either
    later_start = rows.loc[is_later, "start_s"].min()
    is_later |= (rows["batch"] < 0) & (rows["start_s"] >= later_start)
    return replace(record, rows=rows[is_later].reset_index(drop=True))


def _as_name(text: str) -> str:
    """Return a text as the name of a model, host or device: small letters, digits and
    dashes; "training" if nothing is left.
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "training"
