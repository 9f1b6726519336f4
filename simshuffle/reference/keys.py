"""The pages of the keys of files, from their JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from simshuffle.reference.definitions import Json, alternatives
from simshuffle.reference.markdown import RENEWED, anchor, code, plain, table

HEAD = ("key", "value", "unit", "default", "range", "meaning")
MOST = 2**53
"""A bound that says nothing."""


def page(title: str, about: str, schema: Json, roots: Mapping[str, Json]) -> str:
    """The page of a kind of file.

    Args:
        title: of the page.
        about: its first paragraph.
        schema: the whole schema.
        roots: the records that a file may be, by the heading of each.
    """
    sections = _Sections(schema["$defs"])
    for heading, root in roots.items():
        sections.add(heading, "", root)
    return f"# {title}\n\n{about}\n\n{RENEWED}\n" + "".join(sections.texts())


class _Sections:
    """A section for each record, in the order in which files name them.

    Args:
        definitions: by name.
    """

    def __init__(self, definitions: Json) -> None:
        self._all = definitions
        self._headings: dict[str, str] = {}
        self._found: list[tuple[str, Json]] = []

    def add(self, heading: str, path: str, record: Json) -> None:
        """Add a record, and those in it.

        Args:
            heading: of its section.
            path: its dotted key with a full stop; '' for the whole file.
            record: its schema.
        """
        self._found.append((heading, record))
        for key, value in record["properties"].items():
            for at, name in self._records(f"{path}{key}", value):
                if name in self._headings:
                    continue
                inner = self._all[name]
                kind = inner["properties"].get("kind", {}).get("const")
                wanted = f"{at}: {kind}" if kind else at
                taken = wanted in self._headings.values()
                of = record["properties"].get("kind", {}).get("const")
                self._headings[name] = f"{wanted} of {of}" if taken else wanted
                self.add(self._headings[name], f"{at}.", inner)

    def _records(self, path: str, value: Json) -> Iterator[tuple[str, str]]:
        """The records at a key and in its lists and mappings: dotted key, and name."""
        for part in alternatives(value):
            name = part.get("$ref", "").removeprefix("#/$defs/")
            if "properties" in self._all.get(name, {}):
                yield path, name
            if part.get("type") == "array" and "items" in part:
                yield from self._records(f"{path}.N", part["items"])
            inner = part.get("additionalProperties")
            if isinstance(inner, dict) and "properties" not in part:
                yield from self._records(f"{path}.NAME", inner)

    def texts(self) -> Iterator[str]:
        """The sections."""
        for heading, record in self._found:
            about = plain(record.get("description", ""))
            rows = [
                self._row(key, value, key in record["required"])
                for key, value in record["properties"].items()
                if "const" not in value
            ]
            keys = f"\n{table(HEAD, rows)}" if rows else ""
            yield f"\n## {heading}\n\n{about}\n{keys}"

    def _row(self, key: str, value: Json, required: bool) -> list[str]:
        parts = [self._all.get(_name(part), part) | part for part in alternatives(value)]
        units = dict.fromkeys(part["unit"] for part in parts if "unit" in part)
        default = "required" if required else ""
        if value.get("default") not in (None, "", [], {}):
            default = code(_shown(value["default"]))
        texts = dict.fromkeys(filter(None, map(self._value, alternatives(value))))
        return [
            code(key),
            ", ".join(texts),
            ", ".join(units),
            default,
            ", ".join(dict.fromkeys(filter(None, map(_range, [value, *parts])))),
            plain(value.get("description", "")),
        ]

    def _value(self, part: Json) -> str:
        """What may stand there, in words; '' for nothing."""
        name = _name(part)
        name = name if name in self._all else part.get("title", "")
        if name in self._headings:
            kind = self._all[name]["properties"].get("kind", {}).get("const")
            return f"[{kind or 'mapping'}](#{anchor(self._headings[name])})"
        part = self._all.get(name, part)
        if "unit" in part:
            return str(part["title"].removesuffix(" above 0"))
        if "enum" in part:
            many = len(part["enum"]) > 12
            return "a shipped name" if many else ", ".join(map(code, map(_shown, part["enum"])))
        if "const" in part:
            return code(_shown(part["const"]))
        if part.get("title"):
            return str(part["title"])
        return self._of_type(part)

    def _of_type(self, part: Json) -> str:
        kind = part.get("type", "")
        if kind == "array":
            inner = ", ".join(dict.fromkeys(map(self._value, alternatives(part.get("items", {})))))
            return f"list of {inner}" if inner else "list"
        if kind == "object":
            of = part.get("additionalProperties")
            texts = map(self._value, alternatives(of)) if isinstance(of, dict) else ()
            inner = ", ".join(dict.fromkeys(filter(None, texts)))
            return f"names, each with {inner}" if inner else "mapping"
        if kind == "string":
            return "percent" if "%" in part.get("pattern", "") else "text"
        words = {"integer": "whole number", "number": "number", "boolean": "`true`, `false`"}
        return words.get(kind, "" if kind == "null" else "any")


def _name(part: Json) -> str:
    return str(part.get("$ref", "")).removeprefix("#/$defs/")


def _range(part: Json) -> str:
    """The range of a number in words; '' if it has none."""
    if "unit" in part:
        return "above 0" if part.get("title", "").endswith("above 0") else ""
    low, above = part.get("minimum"), part.get("exclusiveMinimum")
    high, below = part.get("maximum"), part.get("exclusiveMaximum")
    ends = []
    if above is not None:
        ends.append(f"above {above:g}")
    elif low is not None:
        ends.append(f"from {low:g}")
    if below is not None:
        ends.append(f"below {below:g}")
    elif high is not None and high < MOST:
        ends.append(f"to {high:,}" if isinstance(high, int) else f"to {high:g}")
    return ", ".join(ends) if below is not None else " ".join(ends)


def _shown(value: Any) -> str:
    """A value as YAML has it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
