"""All pages of the reference, by the names of their files."""

from __future__ import annotations

from typing import Any

from simshuffle.reference import keys, networks, tables, verbs
from simshuffle.reference.schema import schema

SCENARIO = """\
Every key of a scenario file, with its unit, default and range. [Scenario files](../scenario.md)
explains them, and has examples. A machine's file holds what stands here below `cluster`. What has
no default and is not required may be left out. A short form is the kind of a record alone, or
`kind:key=value,key=value`; keys may be dotted. Any dotted key may stand in `sweep`."""
STUDY = """\
Every key of a study, as [`simshuffle train`](../training.md) reads it, with its unit, default and
range. In a block of `runs` any dotted key has a value or a list of values."""


def pages(command: Any) -> dict[str, str]:
    """The pages; ``command`` is the command line, as typer makes it of an app."""
    scenario, study = schema("scenario"), schema("study")
    return {
        "scenario-keys.md": keys.page(
            "Keys of a scenario", SCENARIO, scenario, {"Top level": scenario["$defs"]["Scenario"]}
        ),
        "study-keys.md": keys.page(
            "Keys of a study",
            STUDY,
            study,
            {
                "kind: shuffling": study["$defs"]["Study"],
                "kind: data_optimised": study["$defs"]["DataOptimisedStudy"],
            },
        ),
        "networks.md": networks.page(),
        "tables.md": tables.page(),
        "verbs.md": verbs.page(command),
    }
