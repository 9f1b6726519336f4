"""From records to the definitions of a JSON Schema.

They hold what pydantic says of types, with units, defaults as files write them, and the
sentences of docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from simshuffle.spec.units import Dimension, format_quantity

Json = dict[str, Any]
_DEFINITIONS_PATH = "#/$defs/"
_DESCRIPTIVE_KEYS = ("description", "default")
"""Of a schema, what says nothing of which values there may be."""
_NAME_OF_DIMENSION = {
    Dimension.NBYTES: "size",
    Dimension.SECONDS: "time",
    Dimension.BANDWIDTH: "bandwidth",
    Dimension.FREQUENCY: "frequency",
}
_DIMENSION_OF_UNIT = {dimension.unit: dimension for dimension in Dimension}
_SECTION = re.compile(r"^Attributes:\n((?:    .*\n?|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^ {4}(\w+(?:, \w+)*): (.*\n(?: {8}.*\n)*)", re.MULTILINE)
_KEYWORD_OF_LIMIT = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


class SchemaGenerator(GenerateJsonSchema):
    """A generator that keeps the order of keys, and the class of a record beside its
    schema.
    """

    def sort(self, value: Any, parent_key: str | None = None) -> Any:
        """Return the keys in their own order."""
        return value

    def model_schema(self, schema: Any) -> Json:
        """Return the schema of a record, with its class in a list at key 'class'."""
        return {**super().model_schema(schema), "class": [schema["cls"]]}


class Definitions:
    """The JSON Schemas of records that belong to no union, and of all records inside
    them.

    Attributes:
        by_name: the definitions, by the name of the record (`short_name`); and those of
            quantities, such as 'size' and 'time_above_0'.
    """

    def __init__(self, *records: type[BaseModel]) -> None:
        """Make the definitions of the ``records`` of a document and of those inside."""
        record_modes: Any = [(record, "validation") for record in records]
        _, generated = models_json_schema(
            record_modes, schema_generator=SchemaGenerator
        )
        record_schemas = {
            name: value
            for name, value in generated["$defs"].items()
            if "class" in value
        }
        classes = {
            short_name(name): value.pop("class")[0]
            for name, value in record_schemas.items()
        }
        self._roots = records
        self._names = {record: name for name, record in classes.items()}
        self.by_name: Json = {}
        for name, value in record_schemas.items():
            self.by_name[short_name(name)] = self.record_definition(
                value, classes[short_name(name)]
            )

    def add_texts(self, texts: Texts) -> None:
        """Allow texts in place of the records that may stand at some keys.

        Changes the definitions in place. The key of a record is changed in all records
        that derive from it, too; texts come before records.
        """
        for (base, key), texts_of in texts.items():
            for record in self.definitions_below(base):
                value = record["properties"][key]
                descriptions = {
                    name: value.pop(name) for name in _DESCRIPTIVE_KEYS if name in value
                }
                record_alternatives = [
                    dict(alternative) for alternative in alternatives(value)
                ]
                allowed = texts_of(self, self.members(value))
                value.clear()
                value |= {"anyOf": [*allowed, *record_alternatives], **descriptions}

    def definition_of(self, record: type[BaseModel]) -> Json:
        """Return a record's definition itself; changes to the definition are kept."""
        definition: Json = self.by_name[self._names[record]]
        return definition

    def pointer_to(self, record: type[BaseModel]) -> str:
        """Return the JSON Pointer to the definition of a record."""
        return f"{_DEFINITIONS_PATH}{self._names[record]}"

    def definitions_below(self, base: type[BaseModel]) -> list[Json]:
        """Return the definitions of ``base``, if there is one, and of records that
        derive from it.
        """
        return [
            self.definition_of(record)
            for record in self._names
            if issubclass(record, base)
        ]

    def members(self, value: Json) -> list[Json]:
        """Return the definitions of the records that a value may be; [] if it is none.

        Other types among its alternatives are left out.
        """
        definitions = [
            self.by_name.get(referenced_name(alternative), alternative)
            for alternative in alternatives(value)
        ]
        return [
            alternative for alternative in definitions if "properties" in alternative
        ]

    def by_dotted_key(
        self, record: type[BaseModel], names: Iterable[str], wrap: Any
    ) -> Json:
        """Return the schema of a mapping from the dotted keys of a record to values.

        Args:
            record: its keys, and those below them, may be keys of the mapping.
            names: the keys of the record that count.
            wrap: makes the schema of what stands at a key from that of its value.

        Returns:
            An object that allows no other keys. Keys below any name or number are
            patterns.
        """
        keys: dict[str, dict[str, Json]] = {}
        for name in names:
            value = self.definition_of(record)["properties"][name]
            for path, pointer in self.walk_keys(
                name, value, f"{self.pointer_to(record)}/properties/{name}"
            ):
                keys.setdefault(path, {})[pointer] = {"$ref": pointer}
        properties = {}
        patterns = {}
        for path, pointers in keys.items():
            values = [*pointers.values()]
            schema = wrap(values[0] if len(values) == 1 else {"anyOf": values})
            if "*" in path:
                patterns[f"^{re.escape(path).replace(re.escape('*'), '[^.]+')}$"] = (
                    schema
                )
            else:
                properties[path] = schema
        return {
            "type": "object",
            "properties": properties,
            "patternProperties": patterns,
            "additionalProperties": False,
        }

    def dotted_keys(self, member: Json) -> list[str]:
        """Return the dotted keys of a record that a short form may set, sorted.

        The kind, and keys below any name or number, are left out.
        """
        keys_of_property = (
            self.walk_keys(key, value, "")
            for key, value in member["properties"].items()
        )
        paths = {path for key_paths in keys_of_property for path, _ in key_paths}
        return sorted(path for path in paths if path != "kind" and "*" not in path)

    def walk_keys(
        self, path: str, value: Json, pointer: str
    ) -> Iterator[tuple[str, str]]:
        """Yield the dotted keys at and below a value, each with the pointer to its
        schema.

        Args:
            path: dotted key of the value; '*' stands for any name or number.
            value: its schema.
            pointer: JSON Pointer to the schema.
        """
        yield path, pointer
        for index, part in enumerate(alternatives(value)):
            part_pointer = part.get("$ref") or (
                pointer if part is value else f"{pointer}/anyOf/{index}"
            )
            part_schema = self.by_name.get(referenced_name(part), part)
            for key, inner in part_schema.get("properties", {}).items():
                yield from self.walk_keys(
                    f"{path}.{key}", inner, f"{part_pointer}/properties/{key}"
                )
            for container in ("additionalProperties", "items"):
                if (
                    isinstance(part_schema.get(container), dict)
                    and part_schema[container]
                ):
                    yield from self.walk_keys(
                        f"{path}.*",
                        part_schema[container],
                        f"{part_pointer}/{container}",
                    )

    def record_definition(self, generated: Json, record: type[BaseModel]) -> Json:
        """Return the definition of a record, from the schema that pydantic generated.

        Descriptions are of docstrings, and defaults as files have them; null and
        mappings are left out as defaults. A kind is required in records that are not
        those of the document. Quantities are added to `by_name`.
        """
        sentence_of_key = sentences(record)
        keys = {}
        for key, value in generated.get("properties", {}).items():
            key_schema = self.simplify(
                {name: member for name, member in value.items() if name != "title"}
            )
            if key == "kind":
                key_schema["description"] = summary(record)
            if key in sentence_of_key:
                key_schema["description"] = sentence_of_key[key]
            if "default" in key_schema:
                default = self.default_in_file(key_schema.pop("default"), key_schema)
                key_schema |= (
                    {}
                    if default is None or "const" in key_schema
                    else {"default": default}
                )
            keys[key] = key_schema
        required = list(generated.get("required", []))
        if (
            "const" in keys.get("kind", {})
            and "kind" not in required
            and record not in self._roots
        ):
            required.insert(0, "kind")  # it says which member of a union the record is
        return {
            "title": record.__name__,
            "description": summary(record),
            "type": "object",
            "properties": keys,
            "required": required,
            "additionalProperties": False,
        }

    def simplify(self, value: Any) -> Any:
        """Return a schema without pydantic's own keys, and with quantities as
        references.

        Unions are 'anyOf' without nesting. Quantities are added to `by_name`.
        """
        if isinstance(value, list):
            return [self.simplify(member) for member in value]
        if not isinstance(value, dict):
            return value
        simplified = {
            str(_KEYWORD_OF_LIMIT.get(key, key)): self.simplify(member)
            for key, member in value.items()
            if key != "discriminator"
        }
        if "unit" in simplified:
            return self.refer_to_quantity(simplified)
        if "$ref" in simplified:
            simplified["$ref"] = (
                f"{_DEFINITIONS_PATH}{short_name(referenced_name(simplified))}"
            )
        if "oneOf" in simplified or "anyOf" in simplified:
            parts = simplified.pop("oneOf", None) or simplified.pop("anyOf")
            simplified["anyOf"] = [
                alternative for part in parts for alternative in alternatives(part)
            ]
        return simplified

    def refer_to_quantity(self, value: Json) -> Json:
        """Return a reference to the definition of a quantity, which is added to
        `by_name`.

        It has the description and the default of ``value``.
        """
        name = _NAME_OF_DIMENSION[_DIMENSION_OF_UNIT[value["unit"]]]
        if "(?=" in value["pattern"]:
            name += "_above_0"
        quantity_schema = {
            key: value[key] for key in ("type", "pattern", "examples", "unit")
        }
        self.by_name[name] = {"title": name.replace("_", " "), **quantity_schema}
        return {
            "$ref": f"{_DEFINITIONS_PATH}{name}",
            **{key: value[key] for key in value if key in _DESCRIPTIVE_KEYS},
        }

    def default_in_file(self, default: Any, value: Json) -> Any:
        """Return a default as a file has it, a quantity with its unit.

        None for none, and for a record: its keys have theirs.
        """
        if isinstance(default, dict):
            return None
        for alternative in alternatives(value):
            unit = self.by_name.get(referenced_name(alternative), {}).get("unit")
            if unit and isinstance(default, float | int):
                return format_quantity(default, _DIMENSION_OF_UNIT[unit])
        return default


def alternatives(value: Json) -> list[Json]:
    """Return the schemas of which a value obeys one; the schema itself if there is one
    only.
    """
    schemas: list[Json] = value.get("anyOf") or value.get("oneOf") or [value]
    return schemas


def short_name(name: str) -> str:
    """Return the short name of pydantic's name of a definition.

    'Torus', or 'topology.Torus' if classes share it.
    """
    *_, folder, _, record = ["", "", *name.split("__")]
    return f"{folder}.{record}" if folder else record


def referenced_name(value: Json) -> str:
    """Return the name of the definition that a schema refers to; '' if to none."""
    return str(value.get("$ref", "")).removeprefix(_DEFINITIONS_PATH)


def sentences(record: type) -> dict[str, str]:
    """Return the sentences in the section Attributes of a class and of its ancestors,
    by name of the attribute.

    Those of the class come before those of its ancestors. Each is one line with ' in
    place of backticks.
    """
    sentence_of_name: dict[str, str] = {}
    for ancestor in reversed(record.__mro__):
        if section := _SECTION.search(f"{inspect.cleandoc(ancestor.__doc__ or '')}\n"):
            for names, text in _ENTRY.findall(section[1]):
                sentence_of_name |= dict.fromkeys(names.split(", "), plain_line(text))
    return sentence_of_name


def summary(record: type) -> str:
    """Return the first paragraph of a class's own docstring, as one line with ' in
    place of backticks; '' if it has none.
    """
    text = inspect.cleandoc(record.__dict__.get("__doc__") or "")
    return plain_line(text.split("\n\n", maxsplit=1)[0])


def plain_line(text: str) -> str:
    """Return a text as one line, with ' in place of backticks."""
    return " ".join(text.replace("``", "'").replace("`", "'").split())


Texts = Mapping[
    tuple[type[BaseModel], str], Callable[[Definitions, Sequence[Json]], list[Json]]
]
"""By record and key, what may stand there in place of a mapping: from the definitions,
and the records that may stand there.
"""
