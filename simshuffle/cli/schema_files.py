"""JSON Schemas (draft 2020-12) of files and of the options of verbs, for editors and
other tools.

They are made from the records that read scenario, study and machine files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pkgutil import resolve_name

from pydantic import BaseModel, TypeAdapter

from simshuffle.cli.schema_records import Definitions, Json, Texts
from simshuffle.fabric.allreduce.base import AllreduceAlgorithm
from simshuffle.fabric.allreduce.nccl import SETS, Nccl
from simshuffle.job.scenario.cluster import PLACEMENTS, Cluster
from simshuffle.job.scenario.model import ModelProfile
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.workload import Workload
from simshuffle.spec.library import catalog_names, shipped_names
from simshuffle.study.options import Options, fields_of
from simshuffle.study.registry import merge_extensions, verbs
from simshuffle.workload.exchange.schedule import SCHEDULE_NAMES, MessageSchedule
from simshuffle.workload.exchange.sending import ShardHolding

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PATH_SCHEMA = {
    "type": "string",
    "title": "path",
    "description": "A file: with its suffix, or beginning with '.', '/' or '~'.",
    "pattern": r"^[./~]|\.(ya?ml|json)$",
}


def schema(kind: str) -> Json:
    """Return the JSON Schema of a kind of file, or of the options of a verb.

    Args:
        kind: 'scenario', 'topology' (a machine) or a kind that an extension reads; or
            the last word of a verb, whose options are taken as its function takes them.

    Raises:
        InputError: the kind of file needs a package that is not installed.
        KeyError: there is no such kind, and no such verb.
    """
    files = {"scenario": schema_of_scenarios, "topology": schema_of_machines}
    if kind in files:
        return files[kind]()
    if kind in merge_extensions().schemas:
        extension_schema: Json = resolve_name(merge_extensions().schemas[kind])()
        return extension_schema
    return schema_of_options(
        {verb.word: verb.options for verb in verbs().values()}[kind]
    )


def schema_of_options(record: type[Options]) -> Json:
    """Return the schema of the options of a verb, as its function takes them.

    null is a choice of an option whose default is None.
    """
    record_schema = TypeAdapter(record).json_schema()
    for field in fields_of(record):
        property_schema = record_schema["properties"][field.name]
        option = field.option
        property_schema["description"] = option.text
        value_schema = property_schema.get("items", property_schema)
        if option.choices:
            value_schema["enum"] = [
                *option.choices,
                *([None] if field.default is None else []),
            ]
        value_schema |= {} if option.low is None else {"minimum": option.low}
        value_schema |= {} if option.high is None else {"maximum": option.high}
    return {"$schema": DRAFT, **record_schema, "additionalProperties": False}


# ---------------------------------------------------------------------------------- kinds of files


def schema_of_scenarios() -> Json:
    """Return the schema of scenario files."""
    definitions = definitions_of(Scenario)
    keys = definitions.definition_of(Scenario)["properties"]
    profile = definitions.definition_of(ModelProfile)
    required = [
        key for key in profile["required"] if key != "name"
    ]  # the key is its name
    keys["models"]["additionalProperties"] = {**profile, "required": required}
    keys["include"] = {
        "description": "files with measured values, which simshuffle machine calibrate writes.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    swept_keys = [key for key in keys if key != "sweep"]
    keys["sweep"] |= definitions.by_dotted_key(Scenario, swept_keys, list_schema)
    return document(
        "A scenario of simshuffle",
        definitions,
        {"$ref": definitions.pointer_to(Scenario)},
    )


def schema_of_machines() -> Json:
    """Return the schema of machine files."""
    definitions = definitions_of(Cluster)
    return document(
        "A machine of simshuffle",
        definitions,
        {"$ref": definitions.pointer_to(Cluster)},
    )


def document(title: str, definitions: Definitions, root: Json) -> Json:
    """Return the schema of a file whose root is ``root``, with all definitions."""
    return {"$schema": DRAFT, "title": title, **root, "$defs": definitions.by_name}


def list_schema(value_schema: Json) -> Json:
    """Return the schema of a list of at least one such value."""
    return {"type": "array", "minItems": 1, "items": value_schema}


def one_or_several(value_schema: Json) -> Json:
    """Return the schema of a value, or of a list of such values."""
    return {"anyOf": [value_schema, list_schema(value_schema)]}


def definitions_of(
    *records: type[BaseModel], by_kind: Iterable[tuple[type[BaseModel], str]] = ()
) -> Definitions:
    """Return the definitions of records, with the texts that may stand for some, and a
    key 'kind' in every schedule of messages.

    Args:
        records: that files hold.
        by_kind: further (record, key) at which ``kind:key=value`` may stand, beside
            `TEXTS`.
    """
    definitions = Definitions(*records)
    for schedule in definitions.definitions_below(MessageSchedule):
        kind = {
            "enum": list(SCHEDULE_NAMES),
            "description": "The schedule whose defaults the other keys have.",
        }
        schedule["properties"] = {"kind": kind, **schedule["properties"]}
    definitions.add_texts({**TEXTS, **dict.fromkeys(by_kind, kinds_as_text)})
    return definitions


# --------------------------------------------------------------------- what may be a text in a file


def kinds_as_text(definitions: Definitions, members: Sequence[Json]) -> list[Json]:
    """Return a list of one schema, of the text ``kind:key=value,key=value``.

    Each kind may set its own keys. ``members`` are definitions of records that have a
    constant kind.
    """
    kinds = {
        member["properties"]["kind"]["const"]: definitions.dotted_keys(member)
        for member in members
    }
    return [short_form(kinds)]


def schedule_as_text(definitions: Definitions, members: Sequence[Json]) -> list[Json]:
    """Return a list of one schema, of a schedule as text: its name, and maybe keys.

    Every name may set the keys of all kinds.
    """
    keys = sorted(
        {key for member in members for key in definitions.dotted_keys(member)}
    )
    return [short_form(dict.fromkeys(SCHEDULE_NAMES, keys))]


def short_form(keys_of_name: Mapping[str, Sequence[str]]) -> Json:
    """Return the schema of a text that is one of the names, and maybe sets its keys.

    What is set is not checked, only that the key is one of the name.
    """
    forms = []
    for name, name_keys in keys_of_name.items():
        pair = rf"\s*({'|'.join(map(re.escape, name_keys))})\s*=[^,]*"
        forms.append(f"{name}(:{pair}(,{pair})*)?" if name_keys else name)
    return {
        "type": "string",
        "title": "short form",
        "description": "Its kind, or kind:key=value,key=value.",
        "pattern": f"^({'|'.join(forms)})$",
        "examples": list(keys_of_name),
    }


def one_of(title: str, words: Iterable[str]) -> Json:
    """Return the schema of a closed set of words."""
    return {"title": title, "enum": list(words)}


_MODEL_NAME_SCHEMA = {
    "type": "string",
    "title": "own",
    "description": "A name below models.",
}
TEXTS: Texts = {
    (Scenario, "cluster"): lambda *_: [
        one_of("shipped", shipped_names("topologies")),
        PATH_SCHEMA,
    ],
    (Scenario, "failures"): lambda definitions, members: [
        one_of("catalog", catalog_names("failures")),
        *kinds_as_text(definitions, members),
    ],
    (Cluster, "routing"): kinds_as_text,
    (Cluster, "placement"): lambda *_: [one_of("rule", PLACEMENTS)],
    (Workload, "dataset"): lambda *_: [one_of("catalog", catalog_names("datasets"))],
    (Workload, "model"): lambda *_: [
        one_of("catalog", catalog_names("models")),
        _MODEL_NAME_SCHEMA,
    ],
    (Workload, "exchange"): kinds_as_text,
    (Workload, "parallelism"): kinds_as_text,
    (ShardHolding, "schedule"): schedule_as_text,
    (AllreduceAlgorithm, "overlap"): kinds_as_text,
    (Nccl, "protocols"): lambda *_: [one_of("set", SETS)],
}
