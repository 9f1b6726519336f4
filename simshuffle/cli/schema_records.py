"""From records to the definitions of a JSON Schema: what pydantic says of their types, with units,
defaults as they are written, and the sentences of their docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from simshuffle.spec.units import Dimension, format_quantity

Json = dict[str, Any]
_DEFS = "#/$defs/"
_SAID = ("description", "default")
"""Of a schema, what says nothing of which values there may be."""
_NAMES = {
    Dimension.NBYTES: "size",
    Dimension.SECONDS: "time",
    Dimension.BANDWIDTH: "bandwidth",
    Dimension.FREQUENCY: "frequency",
}
_UNITS = {dimension.unit: dimension for dimension in Dimension}
_SECTION = re.compile(r"^Attributes:\n((?:    .*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*\n(?: {8}.*\n)*)", re.MULTILINE)
_ENDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}


class _Generator(GenerateJsonSchema):
    """Keeps the order of keys, and the class of a record beside its schema."""

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        return value

    def model_schema(self, schema: Any) -> Json:
        return {**super().model_schema(schema), "class": [schema["cls"]]}


class Definitions:
    """The schemas of records, none of which is a member of a union, and of all records in them:
    ``all``, by name."""

    def __init__(self, *records: type[BaseModel]) -> None:
        wanted: Any = [(record, "validation") for record in records]
        _, made = models_json_schema(wanted, schema_generator=_Generator)
        found = {name: value for name, value in made["$defs"].items() if "class" in value}
        classes = {_short(name): value.pop("class")[0] for name, value in found.items()}
        self._roots = records
        self._names = {record: name for name, record in classes.items()}
        self.all: Json = {}
        for name, value in found.items():
            self.all[_short(name)] = self._record(value, classes[_short(name)])

    def add_texts(self, texts: Texts) -> None:
        """Beside the records that may stand at a key, allow the texts that may."""
        for (base, key), texts_of in texts.items():
            for record in self.below(base):
                value = record["properties"][key]
                rest = {name: value.pop(name) for name in _SAID if name in value}
                parts = [dict(each) for each in alternatives(value)]
                allowed = texts_of(self, self.members(value))
                value.clear()
                value |= {"anyOf": [*allowed, *parts], **rest}

    def of(self, record: type[BaseModel]) -> Json:
        """The definition of a record; changes show in the document."""
        found: Json = self.all[self._names[record]]
        return found

    def ref(self, record: type[BaseModel]) -> str:
        """The JSON Pointer to the definition of a record."""
        return f"{_DEFS}{self._names[record]}"

    def below(self, base: type[BaseModel]) -> list[Json]:
        """The definitions of the records that derive from ``base``."""
        return [self.of(record) for record in self._names if issubclass(record, base)]

    def members(self, value: Json) -> list[Json]:
        """The records that a value may be."""
        found = [self.all.get(_name(each), each) for each in alternatives(value)]
        return [each for each in found if "properties" in each]

    def by_dotted_key(self, record: type[BaseModel], known: Iterable[str], of: Any) -> Json:
        """A mapping from the dotted keys of a record, those of its own that are ``known`` and those
        below them, to values; ``of`` makes the schema of what stands at a key from that of its
        value."""
        keys: dict[str, dict[str, Json]] = {}
        for name in known:
            value = self.of(record)["properties"][name]
            for path, ref in self._below(name, value, f"{self.ref(record)}/properties/{name}"):
                keys.setdefault(path, {})[ref] = {"$ref": ref}
        plain, patterns = {}, {}
        for path, refs in keys.items():
            values = [*refs.values()]
            schema = of(values[0] if len(values) == 1 else {"anyOf": values})
            if "*" in path:
                patterns[f"^{re.escape(path).replace(re.escape('*'), '[^.]+')}$"] = schema
            else:
                plain[path] = schema
        return {
            "type": "object",
            "properties": plain,
            "patternProperties": patterns,
            "additionalProperties": False,
        }

    def keys(self, member: Json) -> list[str]:
        """The dotted keys of a record, as a short form sets them, but that of its kind."""
        below = (self._below(key, value, "") for key, value in member["properties"].items())
        paths = {path for each in below for path, _ in each}
        return sorted(path for path in paths if path != "kind" and "*" not in path)

    def _below(self, path: str, value: Json, ref: str) -> Iterator[tuple[str, str]]:
        """The dotted keys at and below a value at ``path``, '*' for any name or number, each with
        the pointer to its schema; ``ref`` is the pointer to that of the value."""
        yield path, ref
        for number, part in enumerate(alternatives(value)):
            at = part.get("$ref") or (ref if part is value else f"{ref}/anyOf/{number}")
            one = self.all.get(_name(part), part)
            for key, inner in one.get("properties", {}).items():
                yield from self._below(f"{path}.{key}", inner, f"{at}/properties/{key}")
            for each in ("additionalProperties", "items"):
                if isinstance(one.get(each), dict) and one[each]:
                    yield from self._below(f"{path}.*", one[each], f"{at}/{each}")

    def _record(self, made: Json, record: type[BaseModel]) -> Json:
        """What pydantic made of a record, as it is read by people."""
        said, keys = sentences(record), {}
        for key, value in made.get("properties", {}).items():
            plain = self._plain({name: of for name, of in value.items() if name != "title"})
            if key == "kind":
                plain["description"] = summary(record)
            if key in said:
                plain["description"] = said[key]
            if "default" in plain:
                default = self._as_written(plain.pop("default"), plain)
                plain |= {} if default is None or "const" in plain else {"default": default}
            keys[key] = plain
        required = list(made.get("required", []))
        if "const" in keys.get("kind", {}) and "kind" not in required and record not in self._roots:
            required.insert(0, "kind")  # it says which member of a union the record is
        return {
            "title": record.__name__,
            "description": summary(record),
            "type": "object",
            "properties": keys,
            "required": required,
            "additionalProperties": False,
        }

    def _plain(self, value: Any) -> Any:
        """A schema of pydantic's without what is for pydantic alone, quantities as references."""
        if isinstance(value, list):
            return [self._plain(each) for each in value]
        if not isinstance(value, dict):
            return value
        out = {
            str(_ENDS.get(key, key)): self._plain(of)
            for key, of in value.items()
            if key != "discriminator"
        }
        if "unit" in out:
            return self._quantity(out)
        if "$ref" in out:
            out["$ref"] = f"{_DEFS}{_short(_name(out))}"
        if "oneOf" in out or "anyOf" in out:
            parts = out.pop("oneOf", None) or out.pop("anyOf")
            out["anyOf"] = [each for part in parts for each in alternatives(part)]
        return out

    def _quantity(self, value: Json) -> Json:
        """A reference to the definition of a quantity, beside what is said of this one."""
        name = _NAMES[_UNITS[value["unit"]]]
        if "(?=" in value["pattern"]:
            name += "_above_0"
        own = {key: value[key] for key in ("type", "pattern", "examples", "unit")}
        self.all[name] = {"title": name.replace("_", " "), **own}
        return {"$ref": f"{_DEFS}{name}", **{key: value[key] for key in value if key in _SAID}}

    def _as_written(self, default: Any, value: Json) -> Any:
        """A default as a file would have it; None for none, and for a record, whose keys say it."""
        if isinstance(default, dict):
            return None
        for each in alternatives(value):
            unit = self.all.get(_name(each), {}).get("unit")
            if unit and isinstance(default, float | int):
                return format_quantity(default, _UNITS[unit])
        return default


def alternatives(value: Json) -> list[Json]:
    """The schemas of which a value obeys one; the schema itself if there is one only."""
    found: list[Json] = value.get("anyOf") or value.get("oneOf") or [value]
    return found


def _short(name: str) -> str:
    """Of classes of one name, pydantic calls one after its module: 'topology.Torus'."""
    *_, folder, _, record = ["", "", *name.split("__")]
    return f"{folder}.{record}" if folder else record


def _name(value: Json) -> str:
    """The name of the definition that a schema refers to; '' if it refers to none."""
    return str(value.get("$ref", "")).removeprefix(_DEFS)


def sentences(record: type) -> dict[str, str]:
    """What the section Attributes of a class and of those above it says, by name; each as one line
    without the backticks."""
    found: dict[str, str] = {}
    for of in reversed(record.__mro__):
        if section := _SECTION.search(f"{inspect.cleandoc(of.__doc__ or '')}\n"):
            for names, text in _ENTRY.findall(section[1]):
                found |= dict.fromkeys(names.split(", "), _line(text))
    return found


def summary(record: type) -> str:
    """The first paragraph of the class's own docstring, as one line without the backticks."""
    text = inspect.cleandoc(record.__dict__.get("__doc__") or "")
    return _line(text.split("\n\n", maxsplit=1)[0])


def _line(text: str) -> str:
    return " ".join(text.replace("``", "'").replace("`", "'").split())


Texts = Mapping[tuple[type[BaseModel], str], Callable[[Definitions, Sequence[Json]], list[Json]]]
"""By record and key, what may stand there in place of a mapping: from the definitions, and the
records that may stand there."""
