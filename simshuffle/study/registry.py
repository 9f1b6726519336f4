"""Every study there is: a folder of ``studies/`` with a module ``verb`` is found by itself; one of
another distribution by its entry point in the group `PLUGINS`, which names such a module."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.errors import refuse
from simshuffle.study.verb import Verb

if TYPE_CHECKING:
    from simshuffle.study.study import Result, Study

PLUGINS = "simshuffle.studies"
APART = {"testbed": "Install it: pip install ./plugins/testbed in a checkout of simshuffle."}
"""How to get a plugin of simshuffle's, by the last word of its verb, its function and its kind."""
REMEDIES = {
    **APART,
    "doctor": "It is a recorded training: simshuffle doctor FOLDER shows it.",
    "audit": "It is an audit of a loader: its tables are CSV files.",
}
"""What to do about a kind of folder that no study writes."""


@cache
def own_verbs() -> dict[str, Verb[Any]]:
    """Every verb of this package that makes a result, by name; nothing that computes is
    imported."""
    folders = sorted(
        path.parent.name for path in Path(__file__).parents[1].glob("studies/*/verb.py")
    )
    return _by_name(importlib.import_module(f"simshuffle.studies.{name}.verb") for name in folders)


@cache
def verbs() -> dict[str, Verb[Any]]:
    """The same with those of plugins."""
    return own_verbs() | _by_name(plugin.load() for plugin in entry_points(group=PLUGINS))


def _by_name(modules: Iterable[Any]) -> dict[str, Verb[Any]]:
    return {verb.name: verb for module in modules for verb in module.VERBS}


@cache
def kinds() -> dict[str, str]:
    """Every kind of result folder, and the study that writes it, as of `Verb.kinds`."""
    return kinds_of(verbs().values())


def kinds_of(chosen: Iterable[Verb[Any]]) -> dict[str, str]:
    """The kinds that these verbs write, likewise."""
    return {kind: module for verb in chosen for kind, module in verb.kinds.items()}


def study_of(kind: str) -> Study[Any]:
    """The study that writes result folders of that kind, imported now; a KeyError if none does."""
    module, _, name = kinds()[kind].partition(":")
    study: Study[Any] = getattr(importlib.import_module(module), name or "STUDY")
    return study


def read_folder(folder: Path) -> Result:
    """The result in ``folder``, of any study; an InputError if it holds none, or a damaged one."""
    # what reads tables; a list of verbs needs none of it
    from simshuffle.report.folders import meta_of  # noqa: PLC0415
    from simshuffle.study import engine  # noqa: PLC0415

    kind = meta_of(folder).get("kind")
    if not isinstance(kind, str) or kind not in kinds():
        rule = "must be a result folder, with a meta.json that names its kind"
        remedy = REMEDIES.get(str(kind), "Give a folder that simshuffle wrote.")
        refuse("", rule, repr(kind) if kind else "none", remedy, str(folder))
    return engine.read(study_of(kind), folder)
