"""A case drawn by seed and number: a sick script, mended ones, and the truth."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent

from benchmarks.doctor_cases.causes import ALL, CAUSES, Cause, budget_us_of, step_us
from benchmarks.doctor_cases.kinds import BASE_US, KINDS, join_blocks
from benchmarks.doctor_cases.recipe import HostSpeed, Recipe, Script, Setting, script_of
from benchmarks.doctor_cases.served import remote, shards

KIND_EDITS = {**KINDS, "remote": remote, "shards": shards}
WIDTHS = {
    "mlp": (128, 768),
    "conv": (4, 48),
    "lstm": (16, 320),
    "transformer": (8, 192),
}
DATASET_NAMES = [
    "Samples",
    "Recordings",
    "TrainingSet",
    "Signals",
    "Corpus",
    "Frames",
    "Items",
]
REFERENCE = HostSpeed()
SHAPES = ["loop", "loop", "fit", "fit", "accumulate"]


@dataclass(frozen=True)
class Case:
    """Training with causes as drawn, and the scripts with each subset of them mended."""

    seed: int
    number: int
    setting: Setting
    causes: tuple[Cause, ...]
    strengths: tuple[float, ...]
    is_decoy: bool  # the causes' places are there, mended: a healthy script

    def recipe(self, sick: tuple[bool, ...]) -> Recipe:
        """Return the slots of the script in which some of the causes are sick."""
        recipe = Recipe(self.setting)
        for cause, strength, is_sick in zip(
            self.causes, self.strengths, sick, strict=True
        ):
            cause.edit(recipe, budget_us_of(cause, self.setting, strength), is_sick)
        init_of_causes, recipe.init = recipe.init, ""
        KIND_EDITS[self.setting.kind](recipe)
        recipe.init = join_blocks(recipe.init, init_of_causes)
        return recipe

    def script(self, sick: tuple[bool, ...]) -> Script:
        """Return the script in which some of the causes are sick."""
        return script_of(self.recipe(sick))

    def script_with_a_worker(self) -> Script:
        """Return the sick script whose loader has one worker."""
        recipe = self.recipe(tuple(True for _ in self.causes))
        recipe.loader |= {"num_workers": "1", "persistent_workers": "True"}
        return script_of(recipe)

    @property
    def may_want_a_worker(self) -> bool:
        """Return whether a first worker may hide the cost of samples, and is then a cause too."""
        at_samples = {"data", "work", "collate"} & {
            cause.place for cause in self.diseases
        }
        names = {cause.name for cause in self.diseases}
        return bool(at_samples) and self.setting.workers == 0 and "workers" not in names

    @property
    def diseases(self) -> tuple[Cause, ...]:
        """The causes that the script under judgement has."""
        return () if self.is_decoy else self.causes

    @property
    def sick(self) -> Script:
        """The script under judgement."""
        return self.script(tuple(not self.is_decoy for _ in self.causes))

    def mended_scripts(self) -> dict[str, Script]:
        """Return scripts by name: all causes mended and, of two, each mended alone.

        ``one_worker`` is not mended, and has a worker where the sick script has none.
        """
        if not self.diseases:
            return {}
        scripts = {"mended": self.script(tuple(False for _ in self.causes))}
        if len(self.causes) == 2:
            scripts["mended_first"] = self.script((False, True))
            scripts["mended_second"] = self.script((True, False))
        if self.may_want_a_worker:
            scripts["one_worker"] = self.script_with_a_worker()
        return scripts

    def write(self, folder: Path) -> None:
        """Write the scripts, the program that makes their data, and the store if there is one."""
        recipe = self.recipe(tuple(True for _ in self.causes))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "prepare.py").write_text(dedent(recipe.prepare), encoding="utf-8")
        (folder / "train.py").write_text(self.sick.text, encoding="utf-8")
        for name, script in self.mended_scripts().items():
            (folder / f"{name}.py").write_text(script.text, encoding="utf-8")
        if recipe.store:
            (folder / "store.py").write_text(recipe.store, encoding="utf-8")


def draw_case(seed: int, number: int, host: HostSpeed = REFERENCE) -> Case:
    """Draw a case for a host: 35 % healthy, 45 % with one cause, 20 % with two."""
    rng = random.Random(f"{seed}:{number}")
    fate = rng.random()
    setting = None
    while setting is None:
        causes = () if fate < 0.2 else draw_causes(rng, 2 if fate > 0.8 else 1)
        settings = (draw_training_setup(rng, causes, host) for _ in range(300))
        setting = next(filter(None, settings), None)
    if 0.2 <= fate < 0.35 and any(cause.name == "workers" for cause in causes):
        # a worker added leaves its samples slow: no healthy script
        causes = ()
    low, high = (0.35, 0.65) if len(causes) == 2 else (0.3, 0.8)
    strengths = tuple(round(rng.uniform(low, high), 3) for _ in causes)
    strengths = tuple(
        min(strength, 0.5) if cause.name == "workers" else strength
        for cause, strength in zip(causes, strengths, strict=True)
    )
    return Case(seed, number, setting, causes, strengths, is_decoy=fate < 0.35)


def draw_causes(rng: random.Random, count: int) -> tuple[Cause, ...]:
    """Draw causes of different places, names uniformly, that one training can have."""
    names = sorted({cause.name for cause in CAUSES})
    while True:
        chosen = [
            rng.choice([cause for cause in CAUSES if cause.name == name])
            for name in rng.sample(names, count)
        ]
        places = {cause.place for cause in chosen}
        keys = {cause.key for cause in chosen}
        if len(places) < count or ("copy" in keys and places & {"work", "collate"}):
            continue
        if common(chosen):
            return tuple(chosen)


def common(
    causes: list[Cause] | tuple[Cause, ...],
) -> tuple[list[str], list[int]] | None:
    """Return the kinds of data and numbers of workers that suit all causes."""
    kinds = [kind for kind in ALL if all(kind in cause.kinds for cause in causes)]
    workers = [
        count for count in range(5) if all(count in cause.workers for cause in causes)
    ]
    return (kinds, workers) if kinds and workers else None


def draw_training_setup(
    rng: random.Random, causes: tuple[Cause, ...], host: HostSpeed
) -> Setting | None:
    """Draw the rest of a training, or None where reading alone would make it wait."""
    kinds, workers = common(causes) or ([], [])
    shape = rng.choice(SHAPES)
    model = rng.choice(list(WIDTHS))
    accumulate = rng.choice((2, 4)) if shape == "accumulate" else 1
    starts_matter = {cause.key for cause in causes} & {"workers_anew", "epoch_start"}
    steps_of_epoch = 12 if starts_matter else rng.choice((24, 24, 36))
    setting = Setting(
        kind=rng.choice(kinds),
        model=model,
        width=0,
        optimizer=rng.choice(("SGD", "Adam", "AdamW")),
        shape=shape,
        batch=rng.choice((16, 24, 32, 48, 64)),
        epoch_batches=steps_of_epoch * accumulate,
        accumulate=accumulate,
        workers=rng.choice(workers),
        prefetch=2 if len(causes) else rng.choice((2, 3, 4)),
        dataset_name=rng.choice(DATASET_NAMES),
        step_factor=host.step_factor,
        work_factor=host.work_factor,
    )
    # on the host which the costs are of, so that a seed draws as wide models everywhere
    target_us = rng.uniform(3000, 9000) / (2 if accumulate > 1 else 1)
    target_us *= host.step_factor
    low, high = WIDTHS[model]
    fitting = [
        width
        for width in range(low, high + 1, 4)
        if step_us(replace(setting, width=width)) <= target_us
    ]
    if not fitting:
        return None
    setting = replace(setting, width=fitting[-1])
    at_once = min(2, setting.workers)
    reading_us = host.work_factor * BASE_US[setting.kind] * setting.batch
    if reading_us > step_us(setting) * (0.4 * at_once if at_once else 0.07):
        return None
    return setting
