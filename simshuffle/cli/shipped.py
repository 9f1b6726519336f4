"""The verb list: what comes with simshuffle, with a line on each."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import typer

from simshuffle.cli.common import To, print_parts
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.study.options import COMMAND_LINE, Argument, Option

app = typer.Typer()

FOLDERS = {"scenarios": "scenario", "studies": "study", "topologies": "machine"}
"""Folders of files that come with simshuffle, and the word for one of them."""
CATALOGS = {"models": "model", "datasets": "data set", "failures": "failures"}
"""Catalogs that come with simshuffle, and the word for an entry."""
KINDS = FOLDERS | CATALOGS
PLURALS = {"topologies": "machines", "datasets": "data sets"}
"""Words for several of a kind that are not the name of its folder or catalog."""
TO_BEGIN_WITH = {
    "scenarios": (
        "quickstart",
        "abci-imagenet1k",
        "paper/strategies",
        "gpt-tokens",
        "faults",
    ),
    "studies": ("quick",),
    "topologies": ("a100-fat-tree", "dgx-h100-pod"),
    "models": ("resnet50",),
    "datasets": ("imagenet1k",),
}
"""The ten that are listed without a word and without --all."""


@dataclass(frozen=True)
class ShippedEntry:
    """A file or an entry of a catalog that comes with simshuffle."""

    folder: str  # a key of `KINDS`
    name: str
    description: str  # in a line, without a full stop

    @property
    def line(self) -> str:
        """Return the entry as a line of the terminal."""
        return f"{KINDS[self.folder]:9} {self.name:32} {self.description}"

    def has_words(self, words: list[str]) -> bool:
        """Return true if each of the words, in any letters, is in name, kind or
        description.
        """
        text = f"{self.line} {self.folder}".lower()
        return all(word.lower() in text for word in words)


def read_shipped_entries() -> list[ShippedEntry]:
    """Return everything that comes with simshuffle, by kind, then by name."""
    from simshuffle.spec.library import (
        catalog_entry,
        catalog_names,
        shipped_folder,
        shipped_names,
    )

    entries = []
    for folder in FOLDERS:
        for name in shipped_names(folder):
            # a line of the text: a YAML reader takes a hundred times as long
            text = (shipped_folder(folder) / f"{name}.yaml").read_text(encoding="utf-8")
            match = re.search(r"^description: (?:>-?\n +)?(.*)$", text, re.MULTILINE)
            entries.append(ShippedEntry(folder, name, match[1] if match else ""))
    for kind in CATALOGS:
        for name in catalog_names(kind):
            description = _describe_values(kind, catalog_entry(kind, name))
            entries.append(ShippedEntry(kind, name, description))
    return entries


def _describe_values(kind: str, values: dict[str, object]) -> str:
    """Return a line on an entry of a catalog, from its values."""
    if kind == "models":
        return f"{values['num_parameters']:,} parameters"
    if kind == "datasets":
        return f"{values['num_samples']:,} samples"
    return f"a fault of a host every {values['mean_between']}"


@command(
    app,
    "Describe",
    "simshuffle list",
    "simshuffle list abci",
    "simshuffle list --all",
    name="list",
    hidden=True,
)
def list_(
    words: Annotated[
        list[str] | None,
        Argument("WORD", "Words of a name or a description.", many=True),
    ] = None,
    *,
    complete: Annotated[bool, Option("", "List everything.", flag="--all")] = False,
    to: To = None,
) -> None:
    """List scenarios, studies, machines, models, data sets, failures.

    Ten to begin with; those with a WORD in name or description; or all."""
    entries = read_shipped_entries()
    chosen = entries
    if words:
        chosen = [entry for entry in entries if entry.has_words(words)]
        if not chosen:
            rule = f"must be in the name or description of one of {len(entries)} things"
            remedy = "simshuffle list --all lists all."
            refuse("WORD", rule, " ".join(words), remedy, COMMAND_LINE)
    elif not complete:
        entry_of = {(entry.folder, entry.name): entry for entry in entries}
        chosen = [
            entry_of[folder, name]
            for folder, names in TO_BEGIN_WITH.items()
            for name in names
        ]
    if to is not None:
        from simshuffle.report.console import new_table

        table = new_table("What comes with simshuffle", ["kind", "name", "what it is"])
        for entry in chosen:
            table.add_row(KINDS[entry.folder], entry.name, entry.description)
        print_parts([table], to)
        return
    for entry in chosen:
        typer.echo(entry.line)
    if len(chosen) < len(entries):
        typer.echo(_describe_rest(entries, len(chosen)))


def _describe_rest(entries: list[ShippedEntry], num_listed: int) -> str:
    """Return a line on what was not listed, and how to list it."""
    counts = Counter(entry.folder for entry in entries)
    kinds = ", ".join(
        f"{count} {PLURALS.get(folder, folder)}" for folder, count in counts.items()
    )
    return (
        f"{num_listed} of {len(entries)}: {kinds}. simshuffle list WORD searches names and"
        " descriptions; --all lists all."
    )
