"""A small result folder of every kind."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simshuffle.studies.training.study import STUDY as TRAINING
from simshuffle.study import engine
from simshuffle.study.study import Request, Study
from tests.studies_tiny import TINY, Tiny
from tests.trained import request
from tests.units.test_accuracy import invented


def _training(_: Path) -> tuple[Study[Any], Request[Any]]:
    return TRAINING, request("invented", *invented(2))


def _unfinished(_: Path) -> tuple[Study[Any], Request[Any]]:
    """A study of which one run is lost and one is missing."""
    records, descriptions = invented(2)
    names = list(records)
    return TRAINING, request(
        "part", {names[0]: "no memory", **{name: records[name] for name in names[2:]}}, descriptions
    )


def _data_optimised(_: Path) -> tuple[Study[Any], Request[Any]]:
    from tests.units import test_data_optimised as filtering

    return filtering.STUDY, filtering.request(filtering.whole())


KINDS: Mapping[str, Tiny] = {
    "training": _training,
    **({"data_optimised": _data_optimised} if importlib.util.find_spec("torch") else {}),
    **{kind: tiny for kind, tiny in TINY.items() if kind != "toy"},
    "unfinished training": _unfinished,
}


def made(kind: str, place: Path) -> Path:
    """A result of that kind, in a folder of its own in ``place``."""
    folder = place / kind.replace(" ", "_")
    study, asked = KINDS[kind](place / f"{folder.name}-inputs")
    return engine.run(study, asked).save(folder / "result", draw=False)
