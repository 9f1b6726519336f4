"""The page of the tables of result folders, from the schemas of the studies."""

from __future__ import annotations

from simshuffle.reference.markdown import RENEWED, code, plain, table
from simshuffle.studies import kinds_of, own_verbs, study_of
from simshuffle.study.schema import LARGEST, MOST, Column, Schema, unit_of

HEAD = ("column", "kind", "unit", "range", "meaning")
ABOUT = """\
The tables of every kind of result folder, with all columns. [Result folders](../tables.md) says
what the rows are, and what else a folder holds. `columns.json` in a folder has the same sentences.
Tables that vary values, as those of `simshuffle sweep`, begin with a column for each of them."""


def page() -> str:
    """The page."""
    sections = [f"# Tables\n\n{ABOUT}\n\n{RENEWED}\n"]
    for kind in kinds_of(own_verbs().values()):
        study = study_of(kind)
        verb = f" of `simshuffle {study.verb}`" if study.verb else ""
        sections.append(f"\n## {kind}\n\nResult folders{verb}; `meta.json` says `kind: {kind}`.\n")
        derived = {name: made.schema for name, made in study.derived.items()}
        for name, schema in {**study.stored, **derived}.items():
            follows = "\n\nIt follows from the others." if name in derived else ""
            heading = f"{kind}: {name}{schema.suffix}"
            sections.append(f"\n### {heading}{follows}{_key(schema)}\n\n{_columns(schema)}")
    return "".join(sections)


def _key(schema: Schema) -> str:
    keys = ", ".join(map(code, schema.key))
    return f"\n\nNo two rows have the same {keys}." if keys else ""


def _columns(schema: Schema) -> str:
    return table(HEAD, (_row(name, column) for name, column in schema.columns.items()))


def _row(name: str, column: Column) -> list[str]:
    words = {"real": "number", "count": "whole number", "flag": "true or false", "text": "text"}
    kind = words[column.kind] + (", or empty" if column.empty else "")
    ranged = _range(column) if column.kind in {"real", "count"} else ""
    choices = ", ".join(map(code, filter(None, column.choices)))
    return [code(name), kind, unit_of(name), choices or ranged, plain(column.meaning)]


def _range(column: Column) -> str:
    low = "" if column.low <= -LARGEST else f"from {column.low:g}"
    wide = column.high >= (MOST if column.kind == "count" else LARGEST)
    return low if wide else f"{low} to {round(column.high, 6):g}".strip()
