"""The JSON Schema of the files that ``simshuffle train`` reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simshuffle.cli.schema_files import definitions_of, document, one_or_several
from simshuffle.errors import InputError, Problem

if TYPE_CHECKING:
    from pydantic import BaseModel

    from simshuffle.cli.schema_records import Json


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
        rule = "needs what trains"
        remedy = "pip install 'simshuffle[train]'"
        raise InputError(Problem("study", rule, str(error), remedy), "schema") from None
    by_kind: list[tuple[type[BaseModel], str]] = [
        *((Study, key) for key in ("data", "model", "partition", "exchange")),
        (Training, "loss"),
        (filtering.DataOptimisedStudy, "data"),
        (filtering.Extractor, "model"),
        (filtering.Retraining, "model"),
    ]
    definitions = definitions_of(Study, filtering.DataOptimisedStudy, by_kind=by_kind)
    keys = definitions.definition_of(Study)["properties"]
    varied = [key for key in keys if key in Run.model_fields]
    keys["runs"]["items"] = definitions.by_dotted_key(Study, varied, one_or_several)
    keys["runs"]["items"]["properties"]["seeds"] = {
        "$ref": f"{definitions.pointer_to(Study)}/properties/seeds"
    }
    kind = {"properties": {"kind": {"const": "data_optimised"}}, "required": ["kind"]}
    root = {
        "if": kind,
        "then": {"$ref": definitions.pointer_to(filtering.DataOptimisedStudy)},
        "else": {"$ref": definitions.pointer_to(Study)},
    }
    return document("A study of simshuffle train", definitions, root)
