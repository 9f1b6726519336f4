"""JSON Schemas (draft 2020-12) of scenario, study and machine files and of the options of verbs,
from the records that read them; for editors, which complete and check, and for other tools."""

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
PATH = {
    "type": "string",
    "title": "path",
    "description": "A file: with its suffix, or beginning with '.', '/' or '~'.",
    "pattern": r"^[./~]|\.(ya?ml|json)$",
}


def schema(what: str) -> Json:
    """Return the JSON Schema of a kind of file: 'scenario', 'topology' (a machine) or one that an
    extension reads; or of the options of a verb, by its last word, as its function takes them.

    Raises:
        InputError: the kind of file needs a package that is not installed.
        KeyError: there is no such kind, and no such verb.
    """
    files = {"scenario": _of_scenarios, "topology": _of_machines}
    if what in files:
        return files[what]()
    if what in merge_extensions().schemas:
        made: Json = resolve_name(merge_extensions().schemas[what])()
        return made
    return _of_options({verb.word: verb.options for verb in verbs().values()}[what])


def _of_options(record: type[Options]) -> Json:
    made = TypeAdapter(record).json_schema()
    for field in fields_of(record):
        of, option = made["properties"][field.name], field.option
        of["description"] = option.text
        each = of.get("items", of)
        if option.choices:
            each["enum"] = [*option.choices, *([None] if field.default is None else [])]
        each |= {} if option.low is None else {"minimum": option.low}
        each |= {} if option.high is None else {"maximum": option.high}
    return {"$schema": DRAFT, **made, "additionalProperties": False}


# ---------------------------------------------------------------------------------- kinds of files


def _of_scenarios() -> Json:
    definitions = definitions_of(Scenario)
    keys = definitions.of(Scenario)["properties"]
    profile = definitions.of(ModelProfile)
    required = [key for key in profile["required"] if key != "name"]  # the key is its name
    keys["models"]["additionalProperties"] = {**profile, "required": required}
    keys["include"] = {
        "description": "files with measured values, which simshuffle machine calibrate writes.",
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
    }
    swept = [key for key in keys if key != "sweep"]
    keys["sweep"] |= definitions.by_dotted_key(Scenario, swept, _list_of)
    return document("A scenario of simshuffle", definitions, {"$ref": definitions.ref(Scenario)})


def _of_machines() -> Json:
    definitions = definitions_of(Cluster)
    return document("A machine of simshuffle", definitions, {"$ref": definitions.ref(Cluster)})


def document(title: str, definitions: Definitions, root: Json) -> Json:
    """Return the schema of a file whose root is ``root``, with all definitions."""
    return {"$schema": DRAFT, "title": title, **root, "$defs": definitions.all}


def _list_of(values: Json) -> Json:
    return {"type": "array", "minItems": 1, "items": values}


def one_or_several(values: Json) -> Json:
    """Return the schema of one of the values, or of a list of them."""
    return {"anyOf": [values, _list_of(values)]}


def definitions_of(
    *records: type[BaseModel], by_kind: Iterable[tuple[type[BaseModel], str]] = ()
) -> Definitions:
    """Return the definitions of records, with the texts that may stand for some.

    Args:
        records: that files hold.
        by_kind: further (record, key) at which ``kind:key=value`` may stand, beside `TEXTS`.
    """
    definitions = Definitions(*records)
    for schedule in definitions.below(MessageSchedule):
        kind = {"enum": list(SCHEDULE_NAMES), "description": "Whose defaults the other keys have."}
        schedule["properties"] = {"kind": kind, **schedule["properties"]}
    definitions.add_texts({**TEXTS, **dict.fromkeys(by_kind, _kinds_as_text)})
    return definitions


# --------------------------------------------------------------------- what may be a text in a file


def _kinds_as_text(definitions: Definitions, members: Sequence[Json]) -> list[Json]:
    """``kind:key=value,key=value``, as `simshuffle.spec.library.by_kind` reads it."""
    kinds = {each["properties"]["kind"]["const"]: definitions.keys(each) for each in members}
    return [_short_form(kinds)]


def _schedule_as_text(definitions: Definitions, members: Sequence[Json]) -> list[Json]:
    keys = sorted({key for each in members for key in definitions.keys(each)})
    return [_short_form(dict.fromkeys(SCHEDULE_NAMES, keys))]


def _short_form(keys: Mapping[str, Sequence[str]]) -> Json:
    """A text that is one of the names, and maybe sets its keys."""
    forms = []
    for name, known in keys.items():
        pair = rf"\s*({'|'.join(map(re.escape, known))})\s*=[^,]*"
        forms.append(f"{name}(:{pair}(,{pair})*)?" if known else name)
    return {
        "type": "string",
        "title": "short form",
        "description": "Its kind, or kind:key=value,key=value.",
        "pattern": f"^({'|'.join(forms)})$",
        "examples": list(keys),
    }


def _one_of(title: str, words: Iterable[str]) -> Json:
    return {"title": title, "enum": list(words)}


_OWN_MODEL = {"type": "string", "title": "own", "description": "A name below models."}
TEXTS: Texts = {
    (Scenario, "cluster"): lambda *_: [_one_of("shipped", shipped_names("topologies")), PATH],
    (Scenario, "failures"): lambda definitions, members: [
        _one_of("catalog", catalog_names("failures")),
        *_kinds_as_text(definitions, members),
    ],
    (Cluster, "routing"): _kinds_as_text,
    (Cluster, "placement"): lambda *_: [_one_of("rule", PLACEMENTS)],
    (Workload, "dataset"): lambda *_: [_one_of("catalog", catalog_names("datasets"))],
    (Workload, "model"): lambda *_: [_one_of("catalog", catalog_names("models")), _OWN_MODEL],
    (Workload, "exchange"): _kinds_as_text,
    (Workload, "parallelism"): _kinds_as_text,
    (ShardHolding, "schedule"): _schedule_as_text,
    (AllreduceAlgorithm, "overlap"): _kinds_as_text,
    (Nccl, "protocols"): lambda *_: [_one_of("set", SETS)],
}
