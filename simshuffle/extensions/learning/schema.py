"""The JSON Schema of the files that ``simshuffle train`` reads."""

from __future__ import annotations

from pydantic import BaseModel

from simshuffle.cli.schema_files import (
    TEXTS,
    definitions_of,
    document,
    kinds_as_text,
    one_or_several,
)
from simshuffle.cli.schema_records import Json, Texts
from simshuffle.errors import InputError, Problem


def study_schema() -> Json:
    """Return the JSON Schema of a study of trainings, as ``simshuffle train`` reads it.

    Raises:
        InputError: what trains is not installed.
    """
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
    texts: Texts = {**TEXTS, **dict.fromkeys(of_kinds, kinds_as_text)}
    definitions = definitions_of(texts, Study, filtering.DataOptimisedStudy)
    keys = definitions.of(Study)["properties"]
    varied = [key for key in keys if key in Run.model_fields]
    keys["runs"]["items"] = definitions.by_dotted_key(Study, varied, one_or_several)
    keys["runs"]["items"]["properties"]["seeds"] = {
        "$ref": f"{definitions.ref(Study)}/properties/seeds"
    }
    kind = {"properties": {"kind": {"const": "data_optimised"}}, "required": ["kind"]}
    root = {
        "if": kind,
        "then": {"$ref": definitions.ref(filtering.DataOptimisedStudy)},
        "else": {"$ref": definitions.ref(Study)},
    }
    return document("A study of simshuffle train", definitions, root)
