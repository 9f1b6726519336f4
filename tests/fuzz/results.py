"""One small result folder of every kind that simshuffle writes, and the commands that read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from simshuffle.cli import main
from simshuffle.studies.filtering import study as filtering
from simshuffle.studies.time_to_accuracy import time_to_accuracy
from simshuffle.study import engine
from tests import filtered, trained
from tests.units import test_accuracy, test_testbed, test_tta, test_validation
from tests.units.test_calibrate import DATA
from tests.units.test_congestion import FEW
from tests.units.test_mechanisms import SET
from tests.units.test_policies import FAST

RUN = ["run", "quickstart", "--set", "world_size=8", "--set", "epochs=1"]
CONGESTION = ["congestion", *FEW]
ABLATE = ["ablate", "quickstart", *SET, "--seeds", "1", "--processes", "1"]
HIDING = ["hiding", "quickstart", *SET, "--world-size", "4", "--way", "pair", "--processes", "1"]
POLICIES = ["policies", "nopfs", *FAST]
CALIBRATE = ["calibrate", str(DATA / "nccl-2-hosts.txt")]


class Kind(NamedTuple):
    """A kind of result.

    Attributes:
        make: makes one in the folder that is given, which does not exist yet.
        again: the command that finds it there, and simulates nothing; () if there is none.
    """

    make: Callable[[Path], object]
    again: tuple[str, ...] = ()


def _training(folder: Path) -> None:
    """Runs that were never trained, of a study that is finished."""
    trained.saved(folder, "invented", *test_accuracy.invented(2))


def _unfinished(folder: Path) -> None:
    """A study of which one run is missing."""
    records, descriptions = test_accuracy.invented(2)
    del records[min(records)]
    trained.saved(folder, "invented", records, descriptions)
    path = folder / "meta.json"
    meta = json.loads(path.read_text(encoding="utf-8")) | {"state": "unfinished"}
    path.write_text(json.dumps(meta), encoding="utf-8")


def _tta(folder: Path) -> None:
    study = test_tta.two_strategies(folder.with_name("two_strategies"))
    time_to_accuracy(study, test_tta.of_scale()).save(folder)


def _filtering(folder: Path) -> None:
    engine.run(filtering.STUDY, filtered.request()).save(folder)


def _made_by(*arguments: str) -> Kind:
    def make(folder: Path) -> None:
        status, said = quietly(*arguments, "--out", str(folder))
        if status:
            raise RuntimeError(said)

    return Kind(make, arguments)


KINDS = {
    "run": _made_by(*RUN),
    "congestion": _made_by(*CONGESTION),
    "ablation": _made_by(*ABLATE),
    "hiding": _made_by(*HIDING),
    "policies": _made_by(*POLICIES),
    "calibration": _made_by(*CALIBRATE),
    "validation": Kind(lambda folder: test_validation.result().save(folder)),
    "tta": Kind(_tta),
    "training": Kind(_training),
    "unfinished training": Kind(_unfinished),
    "filtering": Kind(_filtering),
    "testbed": Kind(lambda folder: test_testbed.measurement().save(folder)),
}


def made(kind: str, place: Path) -> Path:
    """A result of that kind, in a folder of its own in ``place``."""
    folder = place / kind.replace(" ", "_") / "result"
    folder.parent.mkdir(parents=True)
    KINDS[kind].make(folder)
    return folder


def quietly(*arguments: str) -> tuple[int, str]:
    """Exit status of the command line, and what it wrote to standard error."""
    said = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(said):
        status = main(arguments)
    return status, said.getvalue()
