"""Accuracy lost on real images, predicted before it is measured, and compared afterwards:

    simshuffle train real-images-fit --out FIT
    python benchmarks/sealed_accuracy.py seal FIT validation/sealed/accuracy.json
    simshuffle train real-images --out FOUND
    python benchmarks/sealed_accuracy.py compare validation/sealed/accuracy.json FOUND

    python benchmarks/sealed_accuracy.py networks

Every setting of studies/real-images.yaml that has batch norm per rank is predicted in two ways.

**law**: c (1/n - 1/n of global shuffle); n before any training, by
`simshuffle.studies.training.running_statistics`; c of the perceptron and of the small CNN by least
squares from FIT (64 ranks, 8 to 64 images each, other seeds), of the residual network as of one
more network than those of the table. Its 90 % interval has the error of c and that of a mean over
five seeds.

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
from simshuffle.extensions.calibration.validation.sealed import compute_digest
from simshuffle.extensions.learning.accuracy.sensitivity import (
    pool_sensitivities,
    read_sensitivities,
)
from simshuffle.report import canvas, paper
from simshuffle.report.chart import Axis, Chart, Look, Mark, Panel, rule, ticks
from simshuffle.studies.training.running_statistics import estimate_effective_samples
from simshuffle.train.emulate import emulation_of, find_device, materials_of
from simshuffle.train.run import Run
from simshuffle.train.screening import screen_sources
from simshuffle.train.shuffling import cells_of, strategy_label
from simshuffle.train.study import load_study
from simshuffle.workload.exchange import GlobalShuffle

FORMAT = "simshuffle sealed accuracies 1"
TRAINED = (0.7, 1.85)
"""How many times what a screening says was expected to be measured, when it was sealed."""
SEEDS, SCREENINGS = 5, 3
USUAL_EPOCHS = (12, 20, 30)
STATISTICS = ("own", "pooled", "recalibrated")
GLOBAL = GlobalShuffle(kind="global_shuffle")
NAMES = {
    "mlp": "perceptron",
    "small_cnn": "small CNN",
    "resnet": "ResNet-8",
    "vit": "ViT",
}
SORTED = "sorted"
LOOKS = {
    "perceptron": Look("perceptron", "#4477AA", "o"),
    "small CNN": Look("small CNN", "#228833", "s"),
    "ResNet-8": Look("ResNet-8", "#EE6677", "^"),
    "ViT": Look("ViT", "#AA3377", "D"),
    SORTED: Look("any, shards sorted by class", "#222222", "v"),
    "screened before": Look("sealed screening", "#AAAAAA", "x"),
}
KEYS = ["model", "partition", "world_size", "local_batch_size", "strategy"]


def settings() -> dict[tuple[Any, ...], Run]:
    """The settings that are predicted, each by its first run."""
    found: dict[tuple[Any, ...], Run] = {}
    for run in load_study("real-images").all_runs():
        training = run.training
        usual = (
            training.batch_norm == "per_rank" and training.statistics_momentum is None
        )
        if usual and training.epochs in USUAL_EPOCHS:
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
        runs.query("strategy == 'global'"),
        on=["variant", "seed", "model"],
        suffixes=("", "_g"),
    )
    pairs["y"] = 100 * (pairs["own_accuracy_g"] - pairs["own_accuracy"])
    pairs["x"] = 1 / pairs["effective_samples"] - 1 / pairs["effective_samples_g"]
    means = pairs.groupby(["model", "variant"])[["x", "y"]].mean().reset_index()
    cs = {}
    for model, of in means.groupby("model"):
        x = of["x"].to_numpy()
        y = of["y"].to_numpy()
        c = float(x @ y / (x @ x))
        error = math.sqrt(float(((y - c * x) ** 2).sum()) / (len(x) - 1) / float(x @ x))
        reach = float(stats.t.ppf(0.95, len(x) - 1)) * error
        cs[kind_of(model)] = (c, c - reach, c + reach)
    return cs, math.sqrt(float(pairs.groupby("variant")["y"].var(ddof=1).mean()))


def kind_of(label: str) -> str:
    """The kind of network that a table's label means."""
    begins = {"small conv": "small_cnn", "ResNet": "resnet", "ViT": "vit"}
    return next(
        (kind for begin, kind in begins.items() if label.startswith(begin)), "mlp"
    )


def by_law(
    run: Run, cs: dict[str, tuple[float, float, float]], noise: float
) -> list[float]:
    """n, n of global shuffle, loss and its 90 % interval, points."""
    if not run.model.has_batch_norm:
        return [math.nan, math.nan, 0.0, -noise, noise]
    training = run.training
    n, whole = (
        estimate_effective_samples(
            of, run.data.num_samples, run.world_size, training.local_batch_size,
            epochs=training.epochs,
        ).number
        for of in (run.exchange, Run.of_one_rank(run.data, run.model, training, 0).exchange)
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
    device = find_device("cpu")
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
        loss = float(row["loss_points"])
        reach = float(row["high"] - row["loss_points"])
        ends = sorted((TRAINED[0] * loss, TRAINED[1] * loss))
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
    rows = read_sensitivities().query("norm == 'batch'")
    more = pd.DataFrame(
        [
            {"model": kind, "c": c, "c_low": low, "c_high": high}
            for kind, (c, low, high) in cs.items()
        ]
    )
    cs["resnet"] = pool_sensitivities(pd.concat([rows, more]))
    noise = float(stats.t.ppf(0.95, SEEDS - 1)) * deviation / math.sqrt(SEEDS)
    print(
        {kind: [round(of, 2) for of in c] for kind, c in cs.items()},
        f"noise {noise:.2f} points",
    )
    asked = [
        (at, run)
        for at, run in settings().items()
        if run.exchange.kind != "global_shuffle"
    ]
    made: dict[tuple[Any, ...], list[float]] = {}
    for same in {(run.model.kind, run.partition.kind): None for _, run in asked}:
        some = [
            (at, run)
            for at, run in asked
            if (run.model.kind, run.partition.kind) == same
        ]
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
            | {
                n: None if math.isnan(v) else round(v, 4)
                for n, v in zip(names, of, strict=True)
            }
            for at, of in made.items()
        ],
    }
    text = json.dumps({"sha256": compute_digest(content), "content": content}, indent=1)
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{len(made)} predictions, sha256 {compute_digest(content)}")


# ----------------------------------------------------------------------------------- the comparison


def read_sealed(path: Path) -> dict[str, Any]:
    """The content of a file of predictions, or SystemExit if its digest is another one."""
    found = json.loads(path.read_text(encoding="utf-8"))
    if compute_digest(found["content"]) != found["sha256"]:
        raise SystemExit(f"{path}: the predictions are not those that were sealed.")
    content: dict[str, Any] = found["content"]
    return content


def measured(folder: Path) -> pd.DataFrame:
    """What each setting of a study loses against global shuffle in the same condition and seed,
    mean over seeds with its 90 % interval by Student's t, points, with each of the statistics."""
    result = simshuffle.read(folder)
    cells = cells_of(load_study(folder / "study.yaml"), "cpu")
    epochs = result.tables["epochs"].groupby("run").last()
    runs = result.tables["runs"].set_index("run")
    rows = []
    for name, cell in cells.items():
        if name not in epochs.index or runs.loc[name, "status"] != "done":
            continue
        run = cell.training_run
        last = epochs.loc[name]
        condition = run.model_copy(update={"exchange": GLOBAL, "seed": 0})
        rows.append(
            dict(zip(KEYS, key(run), strict=True))
            | {"condition": repr(condition), "seed": run.seed, "training": told(run)}
            | {"n_counted": runs.loc[name, "effective_samples"]}
            | {"label_divergence": last["label_divergence"]}
            | {of: 100 * last[f"{of}_accuracy"] for of in STATISTICS}
        )
    table = pd.DataFrame(rows)
    whole = table[table["strategy"] == "global"].set_index(["condition", "seed"])
    out = []
    for (_, strategy), of in table.groupby(["condition", "strategy"], sort=False):
        if strategy == "global":
            continue
        # a training that diverged is left out, and its pair
        pairs = [
            at in whole.index for at in zip(of["condition"], of["seed"], strict=True)
        ]
        of = of[pairs]  # noqa: PLW2901 - the rows that count
        base = whole.loc[list(zip(of["condition"], of["seed"], strict=True))]
        row = {**of.iloc[0][[*KEYS, "training"]].to_dict(), "seeds": len(of)}
        row |= {
            "global_accuracy": base["own"].mean(),
            "n_counted": of["n_counted"].mean(),
        }
        row |= {"label_divergence": of["label_divergence"].mean()}
        for name in STATISTICS:
            lost = base[name].to_numpy() - of[name].to_numpy()
            row[f"lost_{name}"] = lost.mean()
            if name == "own":
                half = float(stats.t.ppf(0.95, len(lost) - 1)) * lost.std(ddof=1)
                row["reach"] = half / math.sqrt(len(lost))
        out.append(row)
    return pd.DataFrame(out)


def told(run: Run) -> str:
    """What is not as in most runs: norm, momentum, epochs."""
    training = run.training
    words = []
    if training.batch_norm != "per_rank":
        ranks = f" of {training.sync_ranks} ranks" if training.sync_ranks else ""
        words.append(f"batch norm {training.batch_norm}{ranks}")
    if getattr(run.model, "norm", "batch") != "batch":
        words.append(f"{run.model.norm} norm")
    if training.statistics_momentum is not None:
        words.append(f"momentum {training.statistics_momentum:g}")
    if training.epochs not in USUAL_EPOCHS:
        words.append(f"{training.epochs} epochs")
    return ", ".join(words)


def compare(path: Path, folder: Path, table: Path | None, figure: Path | None) -> None:
    """Print what was predicted beside what was measured, and how often it lies within."""
    sealed = pd.DataFrame(read_sealed(path)["predictions"])
    found = measured(folder)
    usual = found[(found["training"] == "")].merge(sealed, on=KEYS, how="inner")
    rest = found[~found.index.isin(found.reset_index().merge(sealed, on=KEYS)["index"])]
    rest = pd.concat([rest, found[(found["training"] != "")]]).drop_duplicates()
    every = pd.concat([usual, rest[rest["training"] != ""]], ignore_index=True)
    if table is not None:
        every.round(3).to_csv(table, index=False)
    print(coverage(usual).to_string(index=False))
    if figure is not None:
        canvas.save(paper.draw(chart(usual)), figure)[1].unlink()


def coverage(rows: pd.DataFrame) -> pd.DataFrame:
    """By shards and network: how many settings, how often the interval has the measured loss, and
    the root of the mean square of predicted less measured, points; of both ways."""
    out = []
    groups = [*rows.groupby(["partition", "model"], sort=False)]
    groups += [
        ((of, "all"), some) for of, some in rows.groupby("partition", sort=False)
    ]
    for (shards, model), of in groups:
        lost = of["lost_own"]
        row = {"shards": shards, "model": model, "settings": len(of)}
        row["largest"] = round(float(lost.max()), 2)
        for way in ("law", "screened"):
            inside = (of[f"{way}_low"] <= lost) & (lost <= of[f"{way}_high"])
            row[f"{way}_within"] = int(inside.sum())
            row[f"{way}_rms"] = round(float(((of[way] - lost) ** 2).mean() ** 0.5), 2)
        out.append(row)
    return pd.DataFrame(out)


def chart(rows: pd.DataFrame) -> Chart:
    """Lost points over n on random shards, with the law that was sealed; and what screenings say of
    all settings, over what was measured."""
    random = rows[(rows["partition"] == "random") & rows["n"].notna()]
    points = random.assign(
        x=random["n"], y=random["lost_own"], look=random["model"].map(NAMES)
    )
    points = points.assign(
        low=points["y"] - points["reach"], high=points["y"] + points["reach"]
    )
    said = random.assign(x=random["n"], y=random["screened"], look="screened before")
    marks = [
        rule(Look(colour="#BBBBBB", width=0.6), y=0.0),
        Mark("point", said),
        Mark("interval", points, y="low", y2="high"),
        Mark("point", points),
    ]
    n = Axis(
        "n, samples that statistics rest on",
        True,
        7.0,
        200.0,
        ticks([8, 16, 32, 64, 128]),
    )
    first = Panel(marks, n, Axis("points lost"), "Random shards")
    every = rows.assign(
        look=rows["model"].map(NAMES).where(rows["partition"] == "random", SORTED)
    )
    every = every.assign(
        x=every["screened"].clip(lower=0.02), y=every["lost_own"].clip(lower=0.02)
    )
    every = every.assign(low=every["x"], high=every["y"])
    same = pd.DataFrame({"x": [0.02, 60.0], "y": [0.02, 60.0]})
    across = Axis("points, by screening", True, 0.018, 150.0, ticks([0.1, 1, 10, 100]))
    up = Axis("points measured", True, 0.018, 150.0, ticks([0.1, 1, 10, 100]))
    line = Mark("line", same, look=Look(colour="#BBBBBB"))
    second = Panel(
        [line, Mark("point", every)], across, up, "All settings (at least 0.02 shown)"
    )
    about = "Points of accuracy lost against global shuffle, predicted and measured."
    return Chart([first, second], 2.6, LOOKS, about)


# -------------------------------------------------------------------------------- other networks


OTHERS: dict[str, tuple[dict[str, Any], float]] = {
    "mlp, 1 layer": ({"kind": "mlp", "layers": 1}, 0.05),
    "mlp, 4 layers": ({"kind": "mlp", "layers": 4}, 0.05),
    "small_cnn, width 8": ({"kind": "small_cnn", "width": 8}, 0.1),
    "small_cnn, width 32": ({"kind": "small_cnn", "width": 32}, 0.1),
    "resnet-8": ({"kind": "resnet", "depth": 8, "stem_stride": 2}, 0.2),
    "resnet-14": ({"kind": "resnet", "depth": 14, "stem_stride": 2}, 0.2),
    "wide_resnet-10-1": ({"kind": "wide_resnet", "depth": 10, "widen_factor": 1}, 0.2),
}
"""Networks, and their learning rates on 64 ranks."""


def networks() -> None:
    """Print c of more networks: trained by global shuffle on 64 ranks for four epochs, and screened
    with local shuffle on 512, 1,024 and 2,048."""
    device = find_device("cpu")
    first = next(run for run in settings().values() if run.world_size == 64)
    for name, (model, rate) in OTHERS.items():
        values = first.model_dump(mode="json") | {
            "model": model,
            "exchange": GLOBAL,
            "seed": 10,
        }
        values["data"]["flat"] = model["kind"] == "mlp"
        values["training"] |= {"epochs": 4, "learning_rate": rate, "warmup_epochs": 1}
        run = Run.model_validate(values)
        materials = materials_of(run, device)
        emulation = emulation_of(run, materials, device)
        for _ in range(4):
            emulation.epoch()
        found = screen_sources(
            emulation.model(), materials.train, materials.test, strategies=["local_shuffle"],
            world_size=[512, 1024, 2048], local_batch_size=8, epochs=30, partition="random",
            seeds=2, ranks=32,
        )  # fmt: skip
        at = ", ".join(f"{of:.2f}" for of in found.settings["loss_points"])
        c = f"{found.c_points:.2f} ({found.c_low:.2f} to {found.c_high:.2f})"
        print(f"{name}: c {c}, rms {found.rms:.3f}; {at}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    of = verbs.add_parser("seal")
    of.add_argument("fit", type=Path)
    of.add_argument("path", type=Path)
    of = verbs.add_parser("compare")
    of.add_argument("path", type=Path)
    of.add_argument("found", type=Path)
    of.add_argument("--table", type=Path, help="CSV file of all settings")
    of.add_argument("--figure", type=Path, help="stem of a PNG file")
    verbs.add_parser("networks")
    asked = parser.parse_args()
    if asked.verb == "seal":
        seal(asked.fit, asked.path)
    elif asked.verb == "networks":
        networks()
    else:
        compare(asked.path, asked.found, asked.table, asked.figure)


if __name__ == "__main__":
    main()
