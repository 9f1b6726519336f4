"""Accuracy lost on real images, predicted before it is measured, and compared afterwards:

    simshuffle train real-images-fit --out FIT
    python benchmarks/sealed_accuracy.py seal FIT validation/sealed/accuracy.json
    simshuffle train real-images --out FOUND
    python benchmarks/sealed_accuracy.py compare validation/sealed/accuracy.json FOUND

Every setting of studies/real-images.yaml that has batch norm per rank is predicted in two ways.

**law**: c (1/n - 1/n of global shuffle); n before any training, by
`simshuffle.plan.running_statistics`; c of the perceptron and of the small CNN by least squares from
FIT (64 ranks, 8 to 64 images each, other seeds), of the residual network as of one more network
than those of the table. Its 90 % interval has the error of c and that of a mean over five seeds.

**screening**: a network is trained by global shuffle on 64 ranks, with seed 10, and
`simshuffle.train.screen` says what each strategy loses under its weights. What is measured was 0.93
to 1.55 times that on procedural images (local shuffle on 256, 1024 and 2048 ranks, partial at Q =
0.1 and 0.3; weights of 64 ranks), so the interval is 0.7 to 1.85 times, the t-interval of these
five for one more, and the error of a mean over five seeds.
"""

from __future__ import annotations

import argparse
import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from scipy import stats

import simshuffle
from simshuffle.plan.running_statistics import rests_on
from simshuffle.studies.accuracy.sensitivity import pooled, table
from simshuffle.studies.validation.sealed import digest_of
from simshuffle.train.emulate import device_named, emulation_of, materials_of
from simshuffle.train.run import Run
from simshuffle.train.screening import screen_sources
from simshuffle.train.shuffling import strategy_label
from simshuffle.train.study import load_study

FORMAT = "simshuffle sealed accuracies 1"
SCREENED = (0.7, 1.85)
"""From how many times to how many times the loss that a screening says is measured."""
SEEDS, SCREENINGS = 5, 3
KEYS = ["model", "partition", "world_size", "local_batch_size", "strategy"]


def settings() -> dict[tuple[Any, ...], Run]:
    """The settings that are predicted, each by its first run."""
    found: dict[tuple[Any, ...], Run] = {}
    for run in load_study("real-images").all_runs():
        training = run.training
        usual = training.batch_norm == "per_rank" and training.statistics_momentum is None
        if usual and training.epochs in {12, 20, 30}:
            found.setdefault(key(run), run)
    return found


def key(run: Run) -> tuple[Any, ...]:
    """The values of `KEYS`."""
    label = strategy_label(run.exchange, run.training)
    if run.exchange.fraction:
        label += f" {run.exchange.fraction:g}"
    return (
        run.model.kind, run.partition.kind, run.world_size, run.training.local_batch_size, label,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ the law


def fitted(folder: Path) -> tuple[dict[str, tuple[float, float, float]], float]:
    """c and its 90 % interval of each network that was fitted, points; and the standard deviation
    of the difference of one seed, points."""
    runs = simshuffle.read(folder).tables["runs"]
    pairs = runs.query("strategy == 'local'").merge(
        runs.query("strategy == 'global'"), on=["variant", "seed", "model"], suffixes=("", "_g")
    )
    pairs["y"] = 100 * (pairs["own_accuracy_g"] - pairs["own_accuracy"])
    pairs["x"] = 1 / pairs["effective_samples"] - 1 / pairs["effective_samples_g"]
    means = pairs.groupby(["model", "variant"])[["x", "y"]].mean().reset_index()
    cs = {}
    for model, of in means.groupby("model"):
        x, y = of["x"].to_numpy(), of["y"].to_numpy()
        c = float(x @ y / (x @ x))
        error = math.sqrt(float(((y - c * x) ** 2).sum()) / (len(x) - 1) / float(x @ x))
        reach = float(stats.t.ppf(0.95, len(x) - 1)) * error
        cs[kind_of(model)] = (c, c - reach, c + reach)
    return cs, math.sqrt(float(pairs.groupby("variant")["y"].var(ddof=1).mean()))


def kind_of(label: str) -> str:
    """The kind of network that a table's label means."""
    begins = {"small conv": "small_cnn", "ResNet": "resnet", "ViT": "vit"}
    return next((kind for begin, kind in begins.items() if label.startswith(begin)), "mlp")


def by_law(run: Run, cs: dict[str, tuple[float, float, float]], noise: float) -> list[float]:
    """n, n of global shuffle, loss and its 90 % interval, points."""
    if not run.model.has_batch_norm:
        return [math.nan, math.nan, 0.0, -noise, noise]
    training = run.training
    n, whole = (
        rests_on(
            of, run.data.num_samples, run.world_size, training.local_batch_size,
            epochs=training.epochs,
        ).number
        for of in (run.exchange, Run.alone(run.data, run.model, training, 0).exchange)
    )  # fmt: skip
    x = 1 / n - 1 / whole
    c, low, high = cs[run.model.kind]
    ends = sorted((low * x, high * x))
    loss = c * x
    return [
        n, whole, loss, loss - math.hypot(loss - ends[0], noise),
        loss + math.hypot(ends[1] - loss, noise),
    ]  # fmt: skip


# ------------------------------------------------------------------------------------ the screening


def by_screening(runs: list[Run], noise: float) -> list[list[float]]:
    """Loss and its 90 % interval, points, of runs of one network and partition."""
    if not runs[0].model.has_batch_norm:
        return [[0.0, -noise, noise] for _ in runs]
    base = next(run for run in settings().values() if run.model == runs[0].model
                and run.world_size == 64 and run.exchange.kind == "global_shuffle")  # fmt: skip
    base = base.model_copy(update={"seed": 10})
    device = device_named("cpu")
    materials = materials_of(base, device)
    emulation = emulation_of(base, materials, device)
    for _ in range(base.training.epochs):
        emulation.epoch()
    model = emulation.model()
    out = []
    for run in runs:
        found = screen_sources(
            model, materials.train, materials.test, strategies=[run.exchange],
            world_size=[run.world_size], local_batch_size=run.training.local_batch_size,
            epochs=run.training.epochs, partition=run.partition, seeds=SCREENINGS, ranks=64,
        )  # fmt: skip
        row = found.settings.iloc[-1]
        loss, reach = float(row["loss_points"]), float(row["high"] - row["loss_points"])
        ends = sorted((SCREENED[0] * loss, SCREENED[1] * loss))
        out.append([
            loss, loss - math.hypot(loss - ends[0], reach, noise),
            loss + math.hypot(ends[1] - loss, reach, noise),
        ])  # fmt: skip
        print(key(run), *(f"{of:.2f}" for of in out[-1]), flush=True)
    return out


# ---------------------------------------------------------------------------------------- the verbs


def seal(fit: Path, path: Path) -> None:
    """Predict, and write the predictions with their digest."""
    if path.exists():
        raise SystemExit(f"{path}: predictions are there; nothing is replaced.")
    cs, deviation = fitted(fit)
    rows = table().query("norm == 'batch'")
    more = pd.DataFrame(
        [
            {"model": kind, "c": c, "c_low": low, "c_high": high}
            for kind, (c, low, high) in cs.items()
        ]
    )
    cs["resnet"] = pooled(pd.concat([rows, more]))
    noise = float(stats.t.ppf(0.95, SEEDS - 1)) * deviation / math.sqrt(SEEDS)
    print({kind: [round(of, 2) for of in c] for kind, c in cs.items()}, f"noise {noise:.2f} points")
    asked = [(at, run) for at, run in settings().items() if run.exchange.kind != "global_shuffle"]
    made: dict[tuple[Any, ...], list[float]] = {}
    for same in {(run.model.kind, run.partition.kind): None for _, run in asked}:
        some = [(at, run) for at, run in asked if (run.model.kind, run.partition.kind) == same]
        screened = by_screening([run for _, run in some], noise)
        for (at, run), found in zip(some, screened, strict=True):
            made[at] = [*by_law(run, cs, noise), *found]
    names = ("n", "n_global", "law", "law_low", "law_high", "screened", "screened_low",
             "screened_high")  # fmt: skip
    content = {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "c": {kind: list(c) for kind, c in cs.items()},
        "noise_points": noise,
        "predictions": [
            dict(zip(KEYS, at, strict=True))
            | {n: None if math.isnan(v) else round(v, 4) for n, v in zip(names, of, strict=True)}
            for at, of in made.items()
        ],
    }
    text = json.dumps({"sha256": digest_of(content), "content": content}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{len(made)} predictions, sha256 {digest_of(content)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    of = verbs.add_parser("seal")
    of.add_argument("fit", type=Path)
    of.add_argument("path", type=Path)
    asked = parser.parse_args()
    if asked.verb == "seal":
        seal(asked.fit, asked.path)


if __name__ == "__main__":
    main()
