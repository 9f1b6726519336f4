"""Registry of verbs, studies and extensions, found by the names of files: no list names
them.

A module ``verb`` in a folder of ``studies/`` or ``extensions/`` has ``VERBS``, the
verbs that make results. Verbs of another distribution are found by its entry point in
the group `PLUGINS`, which names such a module. The other additions of an extension
stand in its module ``extension``.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simshuffle.errors import refuse
from simshuffle.study.extension import Extension
from simshuffle.study.verb import Verb, import_study

if TYPE_CHECKING:
    from simshuffle.study.study import Result, Study

PLUGINS = "simshuffle.studies"
PLUGIN_REMEDIES = {
    "testbed": "Install it: pip install ./plugins/testbed in a checkout of simshuffle."
}
"""How to get a plugin of simshuffle's, by the last word of its verb, its function and
its kind.
"""
REMOVED = {
    "policies": "This study was removed: docs/loaders.md has closed forms, and says what to run."
}
"""What takes the place of a removed study, by its function and its kind."""
PACKAGE = Path(__file__).parents[1]


def _modules(pattern: str) -> list[Any]:
    """Import the modules of studies and extensions whose file names match ``pattern``,
    sorted by the name of their folder.
    """
    files = [
        path.relative_to(PACKAGE.parent).with_suffix("")
        for folder in ("studies", "extensions")
        for path in (PACKAGE / folder).rglob(pattern)
    ]
    files.sort(
        key=lambda file: file.parts[-2]
    )  # by folder, whichever room it stands in
    return [importlib.import_module(".".join(file.parts)) for file in files]


@cache
def own_verbs() -> dict[str, Verb[Any]]:
    """Return every verb of this package that makes a result, by name; nothing that
    computes is imported.
    """
    return _by_name(_modules("verb.py"))


@cache
def merge_extensions() -> Extension:
    """Return all that extensions of this package add, as one extension.

    Of equal names the last one stands, by the names of the folders.
    """
    parts = [module.EXTENSION for module in _modules("extension.py")]
    return Extension(
        **{
            field.name: {
                name: value
                for part in parts
                for name, value in getattr(part, field.name).items()
            }
            for field in fields(Extension)
        }
    )


def commands() -> Iterator[tuple[str, Any]]:
    """Yield the group and the module of extensions' verbs that make no result."""
    for module, group in merge_extensions().commands.items():
        yield group, importlib.import_module(module)


@cache
def verbs() -> dict[str, Verb[Any]]:
    """Return every verb that makes a result, by name, also of plugins.

    A plugin's verb replaces an own one of equal name. Errors of a plugin that cannot be
    imported pass.
    """
    return own_verbs() | _by_name(
        plugin.load() for plugin in entry_points(group=PLUGINS)
    )


def _by_name(modules: Iterable[Any]) -> dict[str, Verb[Any]]:
    """Return the ``VERBS`` of modules, by the names of the verbs."""
    return {verb.name: verb for module in modules for verb in module.VERBS}


@cache
def kinds() -> dict[str, str]:
    """Return every kind of result folder, and the place of the study that writes it, as
    in `Verb.kinds`.
    """
    return kinds_of(verbs().values())


def kinds_of(chosen: Iterable[Verb[Any]]) -> dict[str, str]:
    """Return the kinds of result folders that these verbs write, and the places of
    their studies.
    """
    return {kind: module for verb in chosen for kind, module in verb.kinds.items()}


def study_of(kind: str) -> Study[Any]:
    """Import and return the study that writes result folders of that kind; a KeyError
    if none does.
    """
    return import_study(kinds()[kind])


def read_folder(folder: Path) -> Result:
    """Read the result in ``folder``, whatever study wrote it.

    Raises:
        InputError: it holds no result, or a damaged one, or one of a study that is not
            installed.
    """
    # what reads tables; a list of verbs needs none of it
    from simshuffle.report.folders import meta_of  # noqa: PLC0415
    from simshuffle.study import engine  # noqa: PLC0415

    kind = meta_of(folder).get("kind")
    if not isinstance(kind, str) or kind not in kinds():
        rule = "must be a result folder, with a meta.json that names its kind"
        remedies = PLUGIN_REMEDIES | REMOVED | dict(merge_extensions().folders)
        remedy = remedies.get(str(kind), "Give a folder that simshuffle wrote.")
        refuse("", rule, repr(kind) if kind else "none", remedy, str(folder))
    return engine.read(study_of(kind), folder)
