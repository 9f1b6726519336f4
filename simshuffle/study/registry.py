"""Every study there is: a folder of ``studies/`` with a module ``verb`` is found by itself; one of
another distribution by its entry point in the group `PLUGINS`, which names such a module."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Result, Study

PLUGINS = "simshuffle.studies"


@cache
def verbs() -> dict[str, Verb[Any]]:
    """Every verb that makes a result, by its name. The packages that compute are not imported."""
    return {verb.name: verb for module in _modules() for verb in module.VERBS}


def _modules() -> Iterator[Any]:
    for path in sorted(Path(__file__).parents[1].glob("studies/*/verb.py")):
        yield importlib.import_module(f"simshuffle.studies.{path.parent.name}.verb")
    for plugin in entry_points(group=PLUGINS):
        yield plugin.load()


@cache
def kinds() -> dict[str, str]:
    """Every kind of result folder, and the study that writes it, as of `Verb.kinds`."""
    return {kind: module for verb in verbs().values() for kind, module in verb.kinds.items()}


def study_of(kind: str) -> Study[Any]:
    """The study that writes result folders of that kind. Its module is imported now.

    Raises:
        KeyError: there is none.
    """
    module, _, name = kinds()[kind].partition(":")
    study: Study[Any] = getattr(importlib.import_module(module), name or "STUDY")
    return study


def read_folder(folder: Path) -> Result:
    """The result in ``folder``, of whatever study.

    Raises:
        InputError: it holds none, or a damaged one.
    """
    # what reads tables; a list of verbs needs none of it
    from simshuffle.errors import InputError, Problem  # noqa: PLC0415
    from simshuffle.results.folders import meta_of  # noqa: PLC0415
    from simshuffle.study import engine  # noqa: PLC0415

    kind = meta_of(folder).get("kind")
    if not isinstance(kind, str) or kind not in kinds():
        rule = "must be a result folder, with a meta.json that names its kind"
        remedy = "Give a folder that simshuffle wrote."
        raise InputError(Problem("", rule, repr(kind) if kind else "none", remedy), str(folder))
    return engine.read(study_of(kind), folder)
