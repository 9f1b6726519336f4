"""JSON Schemas (draft 2020-12) of scenario, study and machine files and of the options of verbs,
from the records that read them; for editors, which complete and check, and for other tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, TypeAdapter

from simshuffle.cli.schema_records import Definitions, Json, Texts
from simshuffle.errors import InputError, Problem
from simshuffle.fabric.allreduce.base import AllreduceAlgorithm
from simshuffle.fabric.allreduce.nccl import SETS, Nccl
from simshuffle.job.scenario.cluster import PLACEMENTS, Cluster
from simshuffle.job.scenario.model import ModelProfile
from simshuffle.job.scenario.scenario import Scenario
from simshuffle.job.scenario.workload import Workload
from simshuffle.spec.library import catalog_names, shipped_names
from simshuffle.study.options import Options, fields_of
from simshuffle.study.registry import verbs
from simshuffle.workload.exchange.schedule import NAMES, MessageSchedule
from simshuffle.workload.exchange.sending import ShardHolding

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PATH = {
    "type": "string",
    "title": "path",
    "description": "A file: with its suffix, or beginning with '.', '/' or '~'.",
    "pattern": r"^[./~]|\.(ya?ml|json)$",
}


def schema(what: str) -> Json:
    """The JSON Schema of a kind of file: 'scenario', 'study' (what `simshuffle train` reads) or
    'topology' (a machine); or of the options of a verb, by its last word, as its function takes
    them. Raises an InputError for a study where training is not installed, a KeyError for anything
    else."""
    files = {"scenario": _of_scenarios, "study": _of_studies, "topology": _of_machines}
    if what in files:
        return files[what]()
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
    definitions = _definitions(_TEXTS, Scenario)
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
    return _document("A scenario of simshuffle", definitions, {"$ref": definitions.ref(Scenario)})


def _of_machines() -> Json:
    definitions = _definitions(_TEXTS, Cluster)
    return _document("A machine of simshuffle", definitions, {"$ref": definitions.ref(Cluster)})


def _of_studies() -> Json:
    try:
        from simshuffle.extensions.learning.filtering import record as filtering
        from simshuffle.train.run import Run
        from simshuffle.train.study import Study
        from simshuffle.train.training import Training
    except ImportError as error:
        rule, remedy = "needs what trains", "pip install 'simshuffle[train]'"
        raise InputError(Problem("study", rule, str(error), remedy), "schema") from None
    of_kinds: list[tuple[type[BaseModel], str]] = [
        *((Study, key) for key in ("data", "model", "partition", "exchange")),
        (Training, "loss"),
        (filtering.DataOptimisedStudy, "data"),
        (filtering.Extractor, "model"),
        (filtering.Retraining, "model"),
    ]
    texts: Texts = {**_TEXTS, **dict.fromkeys(of_kinds, _kinds_as_text)}
    definitions = _definitions(texts, Study, filtering.DataOptimisedStudy)
    keys = definitions.of(Study)["properties"]
    varied = [key for key in keys if key in Run.model_fields]
    keys["runs"]["items"] = definitions.by_dotted_key(Study, varied, _one_or_several)
    keys["runs"]["items"]["properties"]["seeds"] = {
        "$ref": f"{definitions.ref(Study)}/properties/seeds"
    }
    kind = {"properties": {"kind": {"const": "data_optimised"}}, "required": ["kind"]}
    root = {
        "if": kind,
        "then": {"$ref": definitions.ref(filtering.DataOptimisedStudy)},
        "else": {"$ref": definitions.ref(Study)},
    }
    return _document("A study of simshuffle train", definitions, root)


def _document(title: str, definitions: Definitions, root: Json) -> Json:
    return {"$schema": DRAFT, "title": title, **root, "$defs": definitions.all}


def _list_of(values: Json) -> Json:
    return {"type": "array", "minItems": 1, "items": values}


def _one_or_several(values: Json) -> Json:
    return {"anyOf": [values, _list_of(values)]}


def _definitions(texts: Texts, *records: type[BaseModel]) -> Definitions:
    """Those of records, with the texts that may stand for some."""
    definitions = Definitions(*records)
    for schedule in definitions.below(MessageSchedule):
        kind = {"enum": list(NAMES), "description": "Whose defaults the other keys have."}
        schedule["properties"] = {"kind": kind, **schedule["properties"]}
    definitions.add_texts(texts)
    return definitions


# --------------------------------------------------------------------- what may be a text in a file


def _kinds_as_text(definitions: Definitions, members: Sequence[Json]) -> list[Json]:
    """``kind:key=value,key=value``, as `simshuffle.spec.library.by_kind` reads it."""
    kinds = {each["properties"]["kind"]["const"]: definitions.keys(each) for each in members}
    return [_short_form(kinds)]


def _schedule_as_text(definitions: Definitions, members: Sequence[Json]) -> list[Json]:
    keys = sorted({key for each in members for key in definitions.keys(each)})
    return [_short_form(dict.fromkeys(NAMES, keys))]


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
_TEXTS: Texts = {
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
