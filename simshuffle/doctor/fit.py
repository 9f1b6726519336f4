"""Fit a scenario to the record of a training: of this very training on its own host.

What a core takes of a sample is its decoding, and what a worker waits is the latency and the
bandwidth of the file system, whatever waits there. On its own host nothing else is known, so the
network, the SSD and the memory are so fast that they never bind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.doctor.fitted import (
    ACCELERATORS,
    DATASET,
    RATE,
    SECONDS,
    SHARED,
    Fitted,
    Value,
)
from simshuffle.doctor.laws import (
    Estimate,
    Reading,
    bootstrapped,
    loads,
    main_loader,
    reading_law,
    reads,
    spread,
    step_law,
    steps,
)
from simshuffle.records.record import Record
from simshuffle.scenario.calibrated import read_fragment
from simshuffle.spec.units import Dimension, parse_quantity, readable
from simshuffle.studies.calibrate.fit import relative_fit

PFS = "cluster.parallel_file_system"
NBYTES = Dimension.NBYTES
NO_LIMIT = "1 PB/s"
UNKNOWN_CORES = 1024
"""Cores of a host of which the record does not say how many it has: so many that they do not
bind."""


def fit(records: Record | Sequence[Record], include: Sequence[Path] = ()) -> Fitted:
    """The training that one record, or several of it at several numbers of ranks, are of.

    Args:
        records: of the same training on the same host.
        include: fragments of measured values. What the record knows better is left out of them; a
            limit of what readers share is taken as known.

    Raises:
        InputError: a record has no steps, or no size of a batch; or a fragment cannot be read.
    """
    given = [records] if isinstance(records, Record) else list(records)
    return _Fit(sorted(given, key=_ranks), include).fitted()


def _ranks(record: Record) -> int:
    return int(record.about.get("ranks") or record.rows["rank"].max() + 1)


class _Fit:
    """What is found of one thing after the other; the records have the fewest ranks first."""

    def __init__(self, records: Sequence[Record], include: Sequence[Path]) -> None:
        self.records = [_steady(record) for record in records]
        self.first = records[0]
        self.made = [loads(record) for record in self.records]
        self.steps = [steps(*pair) for pair in zip(self.records, self.made, strict=True)]
        self.ranks = tuple(map(_ranks, self.records))
        self.about = self.first.about
        listed, place = self.about.get("loaders") or [], main_loader(self.first)
        self.loader = listed[place] if place < len(listed) else {}
        self.batch = int(self.steps[0]["samples"].max())
        self.cpu = str(self.about.get("device", "cpu")).partition(":")[0] == "cpu"
        self.notes: list[str] = list(self.about.get("notes", ()))
        self.values: list[Value] = []
        self.fragments = tuple(map(read_fragment, include))
        limits = (SHARED, f"{PFS}.client_bandwidth", "cluster.ssd.read_bandwidth")
        known = [of.values[key] for of in self.fragments for key in limits if key in of.values]
        # a curve is over hosts, of which this is one
        rates = [next(iter(of["points"].values())) if isinstance(of, dict) else of for of in known]
        self.limit = min((parse_quantity(rate, RATE) for rate in rates), default=None)

    @property
    def source(self) -> str:
        """The record, in words."""
        words = " ".join(self.about.get("command") or ["a training"])
        batches = sum(map(len, self.steps))
        return f"record of {words} on {self.host}, {batches} batches"

    @property
    def host(self) -> str:
        """The name of the host."""
        return str((self.about.get("host") or {}).get("name") or "this host")

    def measured(self, key: str, found: Estimate, dimension: Dimension, note: str) -> str:
        """The text of a value, which is noted as measured."""
        value = Value(key, found, dimension, note)
        if found.value > 0:
            self.values.append(value)
        return value.text(found.value)

    def fitted(self) -> Fitted:
        """All of it."""
        words = self.about.get("command") or ["training"]
        name = _name(next((Path(word).stem for word in words if word.endswith(".py")), words[0]))
        device = _name(str(self.about.get("device", "cpu")))
        times, step_s = self.times(f"{ACCELERATORS}.{device}")
        made, reading = pd.concat(self.made, ignore_index=True), self.reading()
        mean, decode = 1.0, Estimate(0.0)
        if len(made):
            mean = float(made["nbytes"].sum() / made["samples"].sum()) or 1.0
            (decode,) = bootstrapped(made, lambda of: [of["core_s"].sum() / of["samples"].sum()])
        load_s = decode.value + reading.latency.value + mean / reading.bandwidth.value
        workers = int(self.loader.get("num_workers", 1))
        if workers == 0:
            self.loads_in_step(times, load_s)
        dataset, cores = self.dataset(name, decode, mean), self.cores()
        model = {"name": name, **self.gradients(), "input_size": "1 B"}
        model["accelerators"] = {device: times}
        model["source"] = self.source
        document = {
            "name": name,
            "description": self.source,
            "cluster": self.cluster(device, cores, reading),
            "world_size": max(self.ranks),
            "time_tolerance": "1 %",
            "workload": {
                "model": model,
                "dataset": dataset,
                "local_batch_size": self.batch,
                "last_batch": "drop" if self.loader.get("drop_last") else "keep",
                "exchange": "global_shuffle:source=pfs",
                "allreduce": self.allreduce(),
                "loader": {
                    "workers": max(workers, 1),
                    "prefetch": max(workers * int(self.loader.get("prefetch_factor") or 2), 1),
                },
                "jitter": self.jitter(),
            },
        }
        return Fitted(
            name=name,
            source=self.source,
            document=document,
            values=tuple(self.values),
            over={
                "world_size": [min(self.ranks), max(self.ranks)],
                "local_batch_size": [self.batch, self.batch],
            },
            notes=tuple(self.notes),
            device=device,
            ranks=self.ranks,
            cores=cores,
            step_s=step_s,
            step_cores=self.step_cores(),
            load_s=load_s * self.batch,
            decode_s=decode.value * self.batch,
            workers=workers,
            files=bool(made["nbytes"].any()),
            fragments=self.fragments,
        )

    def loads_in_step(self, times: dict[str, str | int], load_s: float) -> None:
        """Add what a sample takes to load to the passes: a rank that makes its batches itself does
        one after the other. The notes say so."""
        self.notes.append("Ranks make their batches themselves: that is in their steps too.")
        for name, part in (("forward", 1 / 3), ("backward", 2 / 3)):
            longer = parse_quantity(times[name], SECONDS) + part * load_s
            times[name] = readable(longer, SECONDS, 6)
        self.values = [of for of in self.values if not of.key.startswith(ACCELERATORS)]

    def reading(self) -> Reading:
        """How samples are read."""
        both = zip(self.records, self.made, strict=True)
        tables = [table for table in (reads(*pair) for pair in both) if len(table)]
        if tables:
            return reading_law(tables, self.limit)
        self.notes.append("What workers do was not recorded: loading is taken to cost nothing.")
        return Reading(Estimate(0.0), Estimate(self.limit or parse_quantity(NO_LIMIT, RATE)))

    def dataset(self, name: str, decode: Estimate, mean: float) -> dict[str, Any]:
        """The data set, of which a core takes ``decode`` for a sample."""
        made = pd.concat(self.made, ignore_index=True)
        samples, opens, decoded = (
            float(made[key].sum()) for key in ("samples", "opens", "decoded")
        )
        note = "of a core: decode, transform and collate, and what reading takes of it"
        total = int(self.loader.get("samples") or sum(self.steps[0]["samples"]))
        dataset: dict[str, Any] = {
            "name": name,
            "num_samples": total,
            "sample_size": {
                "mean": readable(mean, NBYTES, 6),
                "std": readable(_deviation(made, mean), NBYTES, 6),
            },
            "format": "raw",
            "decode": self.measured(f"{DATASET}.decode", decode, SECONDS, note),
            "samples_per_file": max(round(samples / opens), 1) if opens else total,
            "source": self.source,
        }
        if decoded:
            dataset["decoded_size"] = {"mean": readable(decoded / samples, NBYTES, 6)}
        return dataset

    def times(self, key: str) -> tuple[dict[str, str | int], float]:
        """Step times, and s of a whole batch. Waiting for a core is not in them, and where there
        are several ranks not what they wait for one another."""
        table = self.steps[0]
        parts = table[["forward", "backward", "optimizer", "allreduce"]]
        update = parts["optimizer"].median() if parts["optimizer"].notna().any() else 0.0
        apart = parts["allreduce"].fillna(0.0) if self.ranks[0] > 1 else 0.0
        own = table["seconds"] - table["queued_s"].fillna(0.0) - update - apart
        own = own.where(own > 0, table["seconds"] - update).clip(lower=1e-9)
        self.own = table.assign(own_s=own)
        fixed, each, several = step_law(self.own)
        passes = parts[["forward", "backward"]].sum()
        share = passes["forward"] / passes.sum() if passes.all() else 1 / 3
        self.law = fixed.value, each.value
        times: dict[str, str | int] = {}
        for name, of in (("forward", share), ("backward", 1 - share)):
            note = f"{of:.0%} of the passes" if passes.all() else "split 1:2, the usual rule"
            found = Estimate(each.value * of, each.low * of, each.high * of)
            times[name] = self.measured(f"{key}.{name}", found, SECONDS, note)
        times["update"] = readable(update, SECONDS, 6)
        if several:
            note = "of steps of several batch sizes, what does not grow with the batch"
            times["fixed"] = self.measured(f"{key}.fixed", fixed, SECONDS, note)
        else:
            times["measured_batch"] = self.batch
            self.notes.append("All batches have one size: what of a step is fixed is a prior.")
        return times, fixed.value + each.value * self.batch + update

    def cores(self) -> int:
        """Cores of the host."""
        known = (self.about.get("host") or {}).get("cores")
        if not known:
            self.notes.append("How many cores the host has is not known: they do not bind.")
        return int(known or UNKNOWN_CORES)

    def step_cores(self) -> float:
        """Cores that a rank keeps busy in its step: those of its thread and, on a CPU, of the
        threads that compute with it."""
        table = self.steps[0]
        share = table["core_s"].sum() / table["seconds"].sum()
        if table["core_s"].isna().all():
            share = float(self.cpu)
        return float(min(share, 1.0) * (self.about.get("threads") or 1 if self.cpu else 1))

    def gradients(self) -> dict[str, Any]:
        """Size of the gradients, and the buckets in which they are summed."""
        model = self.about.get("model") or {}
        parameters = model.get("parameters")
        nbytes = model.get("gradient_nbytes") or 4 * (parameters or 0)
        if not nbytes:
            self.notes.append("The size of the gradients is not known: ranks only wait for others.")
            return {"gradient_size": "8 B"}
        buckets = [round(each / 4) for each in reversed(model.get("buckets") or ()) if each >= 4]
        out: dict[str, Any] = {"gradient_size": readable(nbytes, NBYTES, 12)}
        if buckets and 4 * sum(buckets) == nbytes:
            out["layers"] = {"parameters": buckets, "backward": buckets}
        return {"num_parameters": parameters, **out} if parameters else out

    def allreduce(self) -> dict[str, Any]:
        """What ranks of this host show of their allreduce, by 2 (M-1) steps of a latency each and 2
        (M-1)/M of the gradients over a bandwidth."""
        shown = {}
        for ranks, table in zip(self.ranks, self.steps, strict=True):
            if ranks > 1 and table["allreduce"].notna().any():
                # the last to come waits for nobody
                shown[ranks] = float(table.groupby(["epoch", "batch"])["allreduce"].min().median())
        model = self.about.get("model") or {}
        nbytes = float(model.get("gradient_nbytes") or 4 * (model.get("parameters") or 0))
        latency, bandwidth = 0.0, parse_quantity(NO_LIMIT, RATE)
        if shown and min(shown.values()) > 0:
            count = np.array(list(shown), float)
            x = np.column_stack([2 * (count - 1), 2 * (count - 1) / count * nbytes])
            # one number of ranks cannot tell both: it is all bandwidth where there are gradients
            used = [0, 1] if len(shown) > 1 and nbytes else [1] if nbytes else [0]
            found = np.zeros(2)
            found[used] = relative_fit(x[:, used], np.array(list(shown.values()))).value
            latency, bandwidth = found[0], 1 / found[1] if found[1] else bandwidth
        elif max(self.ranks) > 1:
            self.notes.append("The allreduce was not recorded: it is in the step where it shows.")
        else:
            self.notes.append("One rank sums no gradients: on this host that is taken to be free.")
        each = readable(float(latency), SECONDS), readable(float(bandwidth), RATE)
        return {
            "kind": "ring",
            **dict.fromkeys(("intra_host_latency", "inter_host_latency"), each[0]),
            **dict.fromkeys(("intra_host_bus_bandwidth", "inter_host_bus_bandwidth"), each[1]),
            "overlap": "none",
            "source": self.source,
        }

    def jitter(self) -> dict[str, float]:
        """How much steps, and the waiting of batches, vary beside their laws."""
        law = self.law[0] + self.law[1] * self.own["samples"]
        out = {"compute": spread(self.own["own_s"] / law)}
        waited = self.made[0]
        if len(waited) and waited["waited_s"].any():
            out["read"] = spread(waited["waited_s"] / waited["samples"])
        return {name: round(value, 4) for name, value in ({"read": 0.0} | out).items()}

    def cluster(self, device: str, cores: int, reading: Reading) -> dict[str, Any]:
        """This host, with a file system that is as the record has it."""
        note = "what a worker waits for a sample beside what the server takes"
        latency = self.measured(f"{PFS}.latency", reading.latency, SECONDS, note)
        note = "what all readers share, from the time in which the server is busy"
        if not reading.seen:
            note = "readers were not in each other's way: a limit is above the lower end, if any"
            self.notes.append(
                "No limit of what all readers share was reached, up to"
                f" {readable(reading.bandwidth.low, RATE, 3)}: it is taken to be far above. Record"
                " more ranks, or measure it (simshuffle machine probe)."
            )
        rate = readable(reading.bandwidth.value, RATE, 6)
        if self.limit is None:
            self.measured(SHARED, reading.bandwidth, RATE, note)
        unused = "not used: one host, whose own devices the record does not tell apart"
        memory = float((self.about.get("host") or {}).get("memory_nbytes") or 64e9)
        return {
            "name": _name(self.host),
            "topology": {
                "kind": "star",
                "hosts": 1,
                "link_bandwidth": NO_LIMIT,
                "cable_latency": "0 s",
                "switch_latency": "0 s",
                "source": unused,
            },
            "host": {
                "gpus": max(self.ranks),
                "accelerator": device,
                "cores": cores,
                "hcas": 1,
                "pcie_slots": 1,
                "pcie_bandwidth": NO_LIMIT,
                "nvlink_bandwidth": NO_LIMIT,
                "source": unused,
            },
            "ssd": {
                "capacity": readable(memory, NBYTES),
                "read_bandwidth": NO_LIMIT,
                "write_bandwidth": NO_LIMIT,
                "latency": "0 s",
                "source": unused,
            },
            "memory": {
                "capacity": readable(memory, NBYTES),
                "bandwidth": NO_LIMIT,
                "page_cache": "0 B",  # what it holds is in the times that were recorded
                "source": unused,
            },
            "parallel_file_system": {
                "read_bandwidth": rate,
                "open_rate": "1 G/s",
                "latency": latency,
                "link_bandwidth": NO_LIMIT,
                "link_latency": "0 s",
                "source": self.source,
            },
        }


def _deviation(made: pd.DataFrame, mean: float) -> float:
    """Standard deviation of the bytes of a sample: those of batches vary by the square root of
    their samples less."""
    samples, nbytes = made["samples"].to_numpy(float), made["nbytes"].to_numpy(float)
    if not nbytes.any():
        return 0.0
    return float(np.sqrt(np.mean((nbytes / samples - mean) ** 2 * samples)))


def _steady(record: Record) -> Record:
    """The epochs after the first, whose caches are cold and whose processes are warming up, where
    they have at least half as many steps as it has."""
    stepping = record.rows.loc[record.rows["operation"] == "step", "epoch"]
    later = record.rows["epoch"] >= 1
    if 2 * (stepping >= 1).sum() < (stepping < 1).sum() or not later.any():
        return record
    return replace(record, rows=record.rows[later].reset_index(drop=True))


def _name(text: str) -> str:
    """A text as the name of a thing."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "training"
