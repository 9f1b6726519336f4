"""Makes abci_2020.csv from the epoch log in data/: python benchmarks/abci_2020_rows.py >
validation/abci_2020.csv

Of every model and number of GPUs with steady epochs (from the second on), the measured value is the
median of the epochs that are at most 3 % longer than the shortest of them; low and high are the
ends of that group. Other jobs, of the same user and of others, only ever make an epoch longer, so
that this is the time of the run when it was disturbed least. Epochs differ by one iteration: each
is scaled to the iterations of the second, which is the one that is predicted, or to the mean number
where the job is predicted beside others. Of first epochs the shortest is taken, for the same
reason. Rows of mean epochs take all epochs.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from datetime import datetime, timedelta
from pathlib import Path
from statistics import mean, median

from simshuffle.extensions.calibration.validation.concurrent import (
    NUM_FILES,
    TIME_FORMAT,
    steady_epochs,
)

LOG = "abci_dataparallel_2020.csv"
FOLDER = Path(__file__).parent.parent / "validation"
COLUMNS = [
    "set",
    "case",
    "quantity",
    "unit",
    "measured",
    "low",
    "high",
    "use",
    "kind",
    "scenario",
    "values",
    "spread",
    "reason",
    "source",
]
SCENARIO = "validation/abci-chainer-2020"
SOURCE = (
    "github.com/ankahira/paraDL, raw training logs on ABCI, January 2020; the epochs are in"
    " validation/data/" + LOG
)
NAMES = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "alexnet": "AlexNet"}
LARGE = 32
# seconds of an epoch as projected by the ParaDL technical report
# (github.com/TruongThaoNguyen/paraDL-analysis)
PARADL = {
    "resnet50": {
        2: 2014.8,
        4: 1012.2,
        8: 532.0,
        16: 267.7,
        32: 134.8,
        64: 68.1,
        128: 34.7,
    },
    "vgg16": {2: 5549.2, 4: 2842.9, 8: 1796.9, 16: 916.6, 32: 463.8, 64: 234.2},
    "alexnet": {2: 397.3, 4: 200.2, 8: 108.8, 16: 54.9, 32: 27.6, 64: 13.9},
}
FITTED = {
    **{("resnet50", gpus): "intra-host bus bandwidth" for gpus in (2, 4)},
    **{("vgg16", 4): "intra-host bus bandwidth"},
    **{
        (model, gpus): "inter-host bus bandwidth"
        for model in ("resnet50", "vgg16")
        for gpus in (8, 16, 32)
    },
    **{(model, 1): "time of forward and backward" for model in NAMES},
    **{("alexnet", gpus): "decode time of an image" for gpus in (4, 8)},
    ("alexnet", 32): "background load of the file system",
}
BOUND_BY_FILES = {
    ("resnet50", 64),
    ("resnet50", 128),
    ("alexnet", 16),
    ("alexnet", 32),
    ("alexnet", 64),
    ("resnet50", 256),
    ("alexnet", 128),
    ("alexnet", 256),
}
CACHED = {("alexnet", 512)}  # all but the first epoch
LOAD = "cluster.parallel_file_system.background_load=0.2..0.6"
# on evenings whose jobs are all in the log nobody else is counted; the rate is what they got
RATE = "cluster.parallel_file_system.open_rate=35 k/s..53 k/s"
NOBODY_ELSE = "cluster.parallel_file_system.background_load=0"
# evenings in which several jobs ran; in the first two of them the jobs started within minutes
EVENINGS = {
    "21 January, 18:30": ("2020-01-21-18-30-00", "2020-01-21-20-00-00"),
    "21 January": ("2020-01-21-20-00-00", "2020-01-21-23-00-00"),
    "22 January, AlexNet": ("2020-01-22-17-00-00", "2020-01-22-18-30-00"),
    "22 January, ResNet-50": ("2020-01-22-19-00-00", "2020-01-22-19-30-00"),
}
# Its 1.28 M files in 15 s are more than the servers gave to all jobs together. VGG-16 has as many
# files a host on 512 GPUs, but slowed VGG-16 on 64 down for as long as it ran.
CACHED_BESIDE = {"21 January": "cached=alexnet 512;"}
# a job that ran alone, as far as the log says: what it did not get is the load of others
ALONE = {"24 January": ("2020-01-24-20-00-00", "2020-01-24-21-00-00")}
# The minutes of 21 January before VGG-16 began on 512 GPUs, and what is compared of them; first
# epochs only of ResNet-50, which reads for twice as long as it computes.
MINUTES = datetime(2020, 1, 21, 20, 20), datetime(2020, 1, 21, 20, 40)
IN_THESE_MINUTES = {
    **dict.fromkeys(
        [("resnet50", 8), ("resnet50", 16), ("alexnet", 16), ("vgg16", 64)], "fit"
    ),
    **dict.fromkeys([("vgg16", 128), ("vgg16", 256)], "predict"),
}
# fitted by benchmarks/abci_2020_latency.py, which sets the first two
LATENCY = {
    "cluster.parallel_file_system.latency": "71 ms",
    "cluster.parallel_file_system.latency_spread": "0.56",
    "cluster.parallel_file_system.background_load": "0",
    "cluster.memory.page_cache": "0 B",
    "workload.jitter.read": "0",
}
# models and GPUs of 21 January of which every epoch is a row: both were slowed down for a while
EPOCH_BY_EPOCH = (("vgg16", 64), ("vgg16", 128))


def log() -> list[dict[str, str]]:
    with (FOLDER / "data" / LOG).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def row(**values: str) -> dict[str, str]:
    return {
        **dict.fromkeys(COLUMNS, ""),
        "unit": "s",
        "kind": "run",
        "scenario": SCENARIO,
        "source": SOURCE,
        **values,
    }


def label(model: str, gpus: int) -> str:
    return f"{NAMES[model]}, {gpus} GPU{'s' if gpus > 1 else ''}"


def run_of(model: str, gpus: int, batch: str) -> str:
    return f"workload.model={model};world_size={gpus};workload.local_batch_size={batch};epochs=2"


def evening_of(job_start: str) -> str | None:
    """The name of the evening on which a job started; None if it ran alone."""
    for name, (begins, ends) in EVENINGS.items():
        if begins <= job_start <= ends:
            return name
    return None


def beside(model: str, gpus: int, evening: str) -> dict[str, str]:
    """What predicts a job among all those of its evening."""
    begins, ends = (EVENINGS | ALONE)[evening]
    values = f"log={LOG};from={begins};to={ends};job={model} {gpus}"
    if evening in ALONE:
        return {"kind": "concurrent", "values": values, "spread": LOAD}
    values += f";{CACHED_BESIDE.get(evening, '')}{NOBODY_ELSE}"
    return {"kind": "concurrent", "values": values, "spread": RATE}


def by_run(
    records: list[dict[str, str]],
) -> dict[tuple[str, int, str], list[dict[str, str]]]:
    """Records by model, GPUs and local batch size, in the order of `NAMES` and of GPUs."""
    runs = defaultdict(list)
    for record in records:
        runs[record["model"], int(record["gpus"]), record["local_batch_size"]].append(
            record
        )
    return dict(
        sorted(
            runs.items(), key=lambda item: (list(NAMES).index(item[0][0]), item[0][1])
        )
    )


def steady_rows(records: list[dict[str, str]]) -> list[dict[str, str]]:
    out = []
    later = [record for record in records if int(record["epoch"]) > 1]
    for (model, gpus, batch), run in by_run(later).items():
        fixes = FITTED.get((model, gpus))
        bound = (model, gpus) in BOUND_BY_FILES
        evening = evening_of(min(run, key=iteration_s)["job_start"]) if bound else None
        # a job among others goes on without pause: as many iterations as there are on average
        wanted = (
            NUM_FILES / (gpus * int(batch))
            if evening
            else next(int(r["iterations"]) for r in run if r["epoch"] == "2")
        )
        epochs = [iteration_s(record) * wanted for record in run]
        kept = steady_epochs(epochs)
        remark = f"{len(kept)} of {len(epochs)} epochs"
        if gpus in PARADL[model]:
            remark += (
                f"; ParaDL projects {PARADL[model][gpus]:g} s"
                f" ({100 * (PARADL[model][gpus] / median(kept) - 1):+.0f} %)"
            )
        alone = {"values": run_of(model, gpus, batch), "spread": LOAD if bound else ""}
        out.append(
            row(
                set="abci_2020_files"
                if bound or (model, gpus) in CACHED
                else "abci_2020",
                case=label(model, gpus),
                quantity="steady epoch",
                measured=f"{median(kept):.6g}",
                low=f"{kept[0]:.6g}",
                high=f"{kept[-1]:.6g}",
                use="fit" if fixes else "predict",
                reason=f"{fixes}; {remark}" if fixes else remark,
                **(beside(model, gpus, evening) if evening else alone),
            )
        )
    return out


def iteration_s(record: dict[str, str]) -> float:
    """Seconds of an iteration."""
    return float(record["epoch_s"]) / int(record["iterations"])


def first_rows(records: list[dict[str, str]]) -> list[dict[str, str]]:
    """First epochs on at least 32 GPUs: of smaller runs, what other jobs took is most of the
    difference."""
    out = []
    first = [r for r in records if int(r["epoch"]) == 1 and int(r["gpus"]) >= LARGE]
    for (model, gpus, batch), run in by_run(first).items():
        epochs = [float(record["epoch_s"]) for record in run]
        evening = evening_of(min(run, key=iteration_s)["job_start"])
        bound = (model, gpus) in BOUND_BY_FILES
        alone = {"values": run_of(model, gpus, batch), "spread": LOAD if bound else ""}
        out.append(
            row(
                set="abci_2020_first",
                case=label(model, gpus),
                quantity="first epoch",
                measured=f"{min(epochs):.6g}",
                low=f"{min(epochs):.6g}",
                high=f"{max(epochs):.6g}",
                use="predict",
                reason=(
                    f"the shortest of {len(epochs)}; start-up of the processes and of the GPUs is"
                    " in it, and is not modelled"
                ),
                **(beside(model, gpus, evening) if evening else alone),
            )
        )
    return out


def concurrent_rows(records: list[dict[str, str]]) -> list[dict[str, str]]:
    out = []
    for evening, (begins, ends) in (EVENINGS | ALONE).items():
        jobs = defaultdict(list)
        for record in records:
            if begins <= record["job_start"] <= ends:
                jobs[record["model"], int(record["gpus"])].append(
                    float(record["epoch_s"])
                )
        for (model, gpus), epochs in sorted(jobs.items()):
            if len(epochs) < 2:
                continue
            counted = (
                "others count as background"
                if evening in ALONE
                else "nobody else is counted"
            )
            about = {
                "case": f"{label(model, gpus)}, {evening}",
                "use": "predict",
                **beside(model, gpus, evening),
            }
            out.append(
                row(
                    set="abci_2020_concurrent",
                    quantity="mean epoch",
                    measured=f"{mean(epochs):.6g}",
                    reason=f"{len(epochs)} epochs, the first included; {counted}",
                    **about,
                )
            )
            if evening == "21 January" and (model, gpus) in EPOCH_BY_EPOCH:
                out += [
                    row(
                        set="abci_2020_epochs",
                        quantity=f"epoch {number}",
                        measured=f"{seconds:.6g}",
                        reason="one of the epochs whose mean is a row of abci_2020_concurrent",
                        **about,
                    )
                    for number, seconds in enumerate(epochs[1:], 2)
                ]
    return out


def minutes_rows(records: list[dict[str, str]]) -> list[dict[str, str]]:
    """Epochs of `MINUTES`, mean of each run; of one with a later epoch there the first is left
    out."""
    runs = defaultdict(list)
    ended = dict[tuple[str, str], datetime]()
    iterations = {}  # of the second epoch, which is predicted
    for record in records:
        job = record["job_start"], record["model"]
        if record["epoch"] == "2":
            iterations[record["model"], int(record["gpus"])] = int(record["iterations"])
        begun = ended.setdefault(
            job, datetime.strptime(record["job_start"], TIME_FORMAT)
        )
        ended[job] = begun + timedelta(seconds=float(record["epoch_s"]))
        if MINUTES[0] <= begun and ended[job] <= MINUTES[1]:
            runs[
                record["model"], int(record["gpus"]), record["local_batch_size"]
            ].append(record)
    out = []
    for (model, gpus, batch), run in runs.items():
        use = IN_THESE_MINUTES.get((model, gpus))
        if use is None:
            continue
        kept = run[1:] or run
        epochs = [iteration_s(record) * iterations[model, gpus] for record in kept]
        fixes = "latency of a file and its spread; " if use == "fit" else ""
        last = f"epochs {kept[0]['epoch']} to {kept[-1]['epoch']}"
        which = "epoch 1, with start-up" if kept[0]["epoch"] == "1" else last
        set_ = ";".join(f"{key}={value}" for key, value in LATENCY.items())
        out.append(
            row(
                set="abci_2020_latency",
                case=f"{label(model, gpus)}, 21 January before 20:40",
                quantity="steady epoch",
                measured=f"{mean(epochs):.6g}",
                low=f"{min(epochs):.6g}",
                high=f"{max(epochs):.6g}",
                use=use,
                values=f"{run_of(model, gpus, batch)};{set_}",
                reason=f"{fixes}{which}",
            )
        )
    return out


def main() -> None:
    records = log()
    writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        steady_rows(records) + first_rows(records) + concurrent_rows(records)
    )
    writer.writerows(minutes_rows(records))


if __name__ == "__main__":
    main()
