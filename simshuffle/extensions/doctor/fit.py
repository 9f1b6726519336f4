"""Fit a scenario to the record of a training: of this very training on its own host.

What a core takes of a sample is its decoding, and what a worker waits is the latency and the rate
of the server that it reads from, whatever waits there. On its own host nothing else is known, so
the network, the SSD and the memory are so fast that they never bind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simshuffle.errors import refuse
from simshuffle.extensions.calibration.calibrate.fit import relative_fit
from simshuffle.extensions.doctor.fitted import (
    ACCELERATORS,
    DATASET,
    RATE,
    SECONDS,
    Fitted,
    FittedValue,
)
from simshuffle.extensions.doctor.laws import (
    ReadingLaw,
    ValueWithInterval,
    bootstrapped,
    deviation,
    loads,
    reading_law,
    reads,
    settings,
    spread,
    step_law,
    steps,
)
from simshuffle.extensions.doctor.own_host import NO_LIMIT, own_host
from simshuffle.extensions.doctor.records.record import Record
from simshuffle.job.scenario.calibrated import read_fragment
from simshuffle.spec.units import Dimension, parse_quantity, readable

NOTICED = 0.01
"""Share of a step from which on what several ranks take longer counts as their allreduce."""
PFS, SERVER = "cluster.parallel_file_system", "cluster.object_store"
NBYTES = Dimension.NBYTES
UNKNOWN_CORES, UNKNOWN_MEMORY = 1024, 64e9
"""Cores, and bytes of memory, of a host of which the record does not say how many it has: so many
that they do not bind."""


def fit(records: Record | Sequence[Record], include: Sequence[Path] = ()) -> Fitted:
    """The training that one record, or several of it at several numbers of ranks, are of.

    Args:
        records: of the same training on the same host.
        include: fragments of measured values. What the record knows better is left out of them; a
            limit of what readers share is taken as known.

    Raises:
        InputError: a record has no steps, or no size of a batch; two have the same number of
            ranks; or a fragment cannot be read.
    """
    given = [records] if isinstance(records, Record) else list(records)
    ranks = list(map(_ranks, given))
    if len(set(ranks)) < len(given):
        rule, remedy = "must have different numbers of ranks", "Name one of each."
        refuse("RECORD", rule, " and ".join(map(str, ranks)), remedy, given[0].source)
    return _Fit(sorted(given, key=_ranks), include).fitted()


def _ranks(record: Record) -> int:
    return int(record.about.get("ranks") or record.rows["rank"].max() + 1)


class _Fit:
    """What is found of one thing after the other; the records have the fewest ranks first."""

    def __init__(self, records: Sequence[Record], include: Sequence[Path]) -> None:
        self.records = [_steady(record) for record in records]
        self.made = [loads(record) for record in self.records]
        self.steps = [steps(*pair) for pair in zip(self.records, self.made, strict=True)]
        self.ranks = tuple(map(_ranks, self.records))
        self.about = records[0].about
        self.loader = settings(records[0])
        self.batch = int(self.steps[0]["samples"].max())
        self.cpu = str(self.about.get("device", "cpu")).partition(":")[0] == "cpu"
        self.notes: list[str] = list(self.about.get("notes", ()))
        self.here: list[str] = []
        self.values: list[FittedValue] = []
        self.fragments = tuple(map(read_fragment, include))
        keys = (f"{PFS}.read_bandwidth", f"{PFS}.client_bandwidth", "cluster.ssd.read_bandwidth")
        known = [of.values[key] for of in self.fragments for key in keys if key in of.values]
        # a curve is over hosts, of which this is one
        rates = [next(iter(of["points"].values())) if isinstance(of, dict) else of for of in known]
        self.limit = min((parse_quantity(rate, RATE) for rate in rates), default=None)

    @property
    def source(self) -> str:
        """The record, in words."""
        batches = sum(map(len, self.steps))
        return f"record of {' '.join(self.command)} on {self.host}, {batches} batches"

    @property
    def command(self) -> list[str]:
        """The script and its options, or all words where there is no script."""
        words: list[str] = list(self.about.get("command") or ["training"])
        script = next((k for k, word in enumerate(words) if word.endswith(".py")), 0)
        return words[script:]

    @property
    def host(self) -> str:
        """The name of the host."""
        return str((self.about.get("host") or {}).get("name") or "this host")

    def measured(self, key: str, found: ValueWithInterval, dimension: Dimension, note: str) -> str:
        """The text of a value, which is noted as measured."""
        value = FittedValue(key, found, dimension, note)
        if found.value > 0:
            self.values.append(value)
        return value.text(found.value)

    def fitted(self) -> Fitted:
        """All of it."""
        name = _name(Path(self.command[0]).stem)
        device = _name(str(self.about.get("device", "cpu")))
        times = self.times(f"{ACCELERATORS}.{device}")
        made, reading = pd.concat(self.made, ignore_index=True), self.reading()
        mean, decode = 1.0, ValueWithInterval(0.0)
        if len(made):
            mean = float(made["nbytes"].sum() / made["samples"].sum()) or 1.0
            (decode,) = bootstrapped(made, lambda of: [of["core_s"].sum() / of["samples"].sum()])
        rate = min(reading.own_rate.value, reading.bandwidth.value)
        load_s = decode.value + reading.latency.value + mean / rate
        workers = int(self.loader.get("num_workers", 1))
        if workers == 0:
            self.loads_in_step(times, load_s)
        dataset, cores = self.dataset(name, decode, mean), self.cores()
        model = {"name": name, **self.gradients(), "input_size": "1 B", "source": self.source}
        document = {
            "name": name,
            "description": self.source,
            "cluster": self.cluster(device, cores, reading),
            "world_size": max(self.ranks),
            "time_tolerance": "1 %",
            "workload": {
                "model": model | {"accelerators": {device: times}},
                "dataset": dataset,
                "local_batch_size": self.batch,
                "last_batch": "drop" if self.loader.get("drop_last") else "keep",
                "exchange": "global_shuffle:source=object_store",
                "allreduce": self.allreduce(cores),
                "loader": {
                    "workers": max(workers, 1),
                    "prefetch": max(workers * int(self.loader.get("prefetch_factor") or 2), 1),
                },
                "jitter": self.jitter(reading.latency.value),
            },
        }
        return Fitted(
            name=name,
            source=self.source,
            document=document,
            values=tuple(self.values),
            over={"world_size": self.ranks, "local_batch_size": (self.batch,)},
            notes=tuple(self.notes),
            here=tuple(self.here),
            device=device,
            ranks=self.ranks,
            cores=cores,
            step_s=self.step_s,
            step_cores=self.step_cores(),
            load_s=load_s * self.batch,
            decode_s=decode.value * self.batch,
            workers=workers,
            distributed=self.ranks[0] > 1 or bool((self.about.get("model") or {}).get("buckets")),
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

    def reading(self) -> ReadingLaw:
        """How samples are read."""
        both = zip(self.records, self.made, strict=True)
        tables = [table for table in (reads(*pair) for pair in both) if len(table)]
        if tables:
            return reading_law(tables, self.limit)
        self.notes.append("What workers do was not recorded: loading is taken to cost nothing.")
        free = ValueWithInterval(parse_quantity(NO_LIMIT, RATE))
        return ReadingLaw(ValueWithInterval(0.0), free, free)

    def dataset(self, name: str, decode: ValueWithInterval, mean: float) -> dict[str, Any]:
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
                "std": readable(deviation(made, mean), NBYTES, 6),
            },
            "format": "raw",
            "decode": self.measured(f"{DATASET}.decode", decode, SECONDS, note),
            "samples_per_file": max(round(samples / opens), 1) if opens else total,
            "source": self.source,
        }
        if decoded:
            dataset["decoded_size"] = {"mean": readable(decoded / samples, NBYTES, 6)}
        return dataset

    def times(self, key: str) -> dict[str, str | int]:
        """Step times. Waiting for a core is not in them, and where there
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
            found = ValueWithInterval(each.value * of, each.low * of, each.high * of)
            times[name] = self.measured(f"{key}.{name}", found, SECONDS, note)
        times["update"] = readable(update, SECONDS, 6)
        if several:
            note = "of steps of several batch sizes, what does not grow with the batch"
            times["fixed"] = self.measured(f"{key}.fixed", fixed, SECONDS, note)
        else:
            times["measured_batch"] = self.batch
            self.notes.append("All batches have one size: what of a step is fixed is a prior.")
        self.step_s = fixed.value + each.value * self.batch + update
        return times

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

    @property
    def gradient_nbytes(self) -> float:
        """Bytes of the gradients; 0 if not known."""
        model = self.about.get("model") or {}
        return float(model.get("gradient_nbytes") or 4 * (model.get("parameters") or 0))

    def gradients(self) -> dict[str, Any]:
        """Size of the gradients, and the buckets in which they are summed."""
        model, nbytes = self.about.get("model") or {}, self.gradient_nbytes
        if not nbytes:
            self.notes.append("The size of the gradients is not known: ranks only wait for others.")
            return {"gradient_size": "8 B"}
        out: dict[str, Any] = {"gradient_size": readable(nbytes, NBYTES, 12)}
        # the last layers are summed first
        buckets = [round(each / 4) for each in reversed(model.get("buckets") or ()) if each >= 4]
        if buckets and 4 * sum(buckets) == nbytes:
            out["layers"] = {"parameters": buckets, "backward": buckets}
        if parameters := model.get("parameters"):
            out["num_parameters"] = parameters
        return out

    def shown(self, cores: int) -> dict[int, float]:
        """s of an allreduce that steps show, by the number of ranks: as it was recorded, or what
        several ranks take longer than one, if they have cores enough."""
        out = {}
        for ranks, table in zip(self.ranks, self.steps, strict=True):
            if ranks == 1:
                continue
            whole = table[table["samples"] == self.batch]
            beside = self.ranks[0] == 1 and ranks * self.step_cores() <= cores
            own = whole["seconds"] - whole["queued_s"].fillna(0.0) - self.step_s
            # the last to come waits for nobody
            together = whole.assign(longer=own).groupby(["epoch", "batch"])
            least = together["allreduce"].min().median()
            if not least > NOTICED * self.step_s and beside:
                least = together["longer"].min().median()
            if least > NOTICED * self.step_s:
                out[ranks] = float(least)
        return out

    def allreduce(self, cores: int) -> dict[str, Any]:
        """The allreduce of ranks of this host, by 2 (M-1) steps of a latency each and 2 (M-1)/M of
        the gradients over a bandwidth."""
        shown, nbytes = self.shown(cores), self.gradient_nbytes
        latency, bandwidth = 0.0, parse_quantity(NO_LIMIT, RATE)
        if shown:
            count = np.array(list(shown), float)
            x = np.column_stack([2 * (count - 1), 2 * (count - 1) / count * nbytes])
            # one number of ranks cannot tell both: it is all bandwidth where there are gradients
            used = [0, 1] if len(shown) > 1 and nbytes else [1] if nbytes else [0]
            found = np.zeros(2)
            found[used] = relative_fit(x[:, used], np.array(list(shown.values()))).value
            latency, bandwidth = found[0], 1 / found[1] if found[1] else bandwidth
        else:
            self.here.append(
                "No allreduce shows in steps: on this host it is taken as free."
                if self.ranks[0] == 1
                else "What steps show of an allreduce is not known apart: it stays in them."
            )
        each = readable(float(latency), SECONDS), readable(float(bandwidth), RATE)
        return {
            "kind": "ring",
            **dict.fromkeys(("intra_host_latency", "inter_host_latency"), each[0]),
            **dict.fromkeys(("intra_host_bus_bandwidth", "inter_host_bus_bandwidth"), each[1]),
            "overlap": "none",
            "source": self.source,
        }

    def jitter(self, latency: float) -> dict[str, float]:
        """How much steps vary beside their law, and what batches wait; the latter is put on their
        ``latency`` alone."""
        law = self.law[0] + self.law[1] * self.own["samples"]
        read, waited = 0.0, self.made[0]["waited_s"] / self.made[0]["samples"]
        if latency and waited.any():
            read = min(spread(waited) * float(waited.mean()) / latency, 1.0)
        return {"compute": round(spread(self.own["own_s"] / law), 4), "read": round(read, 4)}

    def cluster(self, device: str, cores: int, reading: ReadingLaw) -> dict[str, Any]:
        """This host, with a file system that is as the record has it."""
        note = "what a worker waits for a sample beside its bytes"
        latency = self.measured(f"{SERVER}.latency", reading.latency, SECONDS, note)
        note = "what a worker gets by itself"
        own = readable(reading.own_rate.value, RATE, 6)
        if reading.seen:
            own = self.measured(f"{SERVER}.connection_bandwidth", reading.own_rate, RATE, note)
        note = "what all readers share, from the time in which the server is busy"
        if not reading.seen:
            note = "readers were not in each other's way: a limit is above the lower end, if any"
            seen = readable(reading.bandwidth.low, RATE, 3)
            if not any(table["nbytes"].any() for table in self.made):
                seen = f"{reading.bandwidth.low:.3g} samples/s"
            self.here.append(
                f"No limit of what all readers share was reached, up to {seen}: it is taken to be"
                " far above. Record more ranks, or measure it (simshuffle machine probe)."
            )
        note = note if self.limit is None else "as it was measured otherwise"
        shared = self.measured(f"{SERVER}.bandwidth", reading.bandwidth, RATE, note)
        server = {
            "latency": latency,
            "connection_bandwidth": own,
            "bandwidth": shared,
            "request_rate": "1 G/s",
            "price_per_request": 0,
            "source": self.source,
        }
        memory = float((self.about.get("host") or {}).get("memory_nbytes") or UNKNOWN_MEMORY)
        return own_host(_name(self.host), device, cores, memory, server)


def _steady(record: Record) -> Record:
    """The epochs after the first, whose caches are cold and whose processes are warming up, where
    they have at least half as many steps as it has."""
    rows = record.rows
    stepping, later = rows.loc[rows["operation"] == "step", "epoch"], rows["epoch"] >= 1
    if 2 * (stepping >= 1).sum() < (stepping < 1).sum() or not later.any():
        return record
    # rows of no batch know no epoch either
    later |= (rows["batch"] < 0) & (rows["start_s"] >= rows.loc[later, "start_s"].min())
    return replace(record, rows=rows[later].reset_index(drop=True))


def _name(text: str) -> str:
    """A text as the name of a thing."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "training"
