"""The verb schema: what files and options may hold, for editors and other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simshuffle.cli.common import OUT_FILE, file_in, say
from simshuffle.cli.help import command
from simshuffle.errors import refuse
from simshuffle.studies import verbs
from simshuffle.study.options import COMMAND_LINE, Argument, Option, words

app = typer.Typer()

KNOWN = ("scenario", "study", "topology", *(verb.word for verb in verbs().values()))
"""Kinds of files, and verbs that make a result."""


@command(
    app,
    "Describe",
    "simshuffle schema scenario --out scenario.schema.json",
    "simshuffle schema topology > topology.schema.json",
    "simshuffle schema sweep",
)
def schema(
    what: Annotated[
        str,
        Argument(
            "[scenario|study|topology|VERB]",
            "Whose schema: that of scenarios, of studies of training, of machines, or of the"
            " options of a verb, as its function in Python takes them.",
            complete=words(*KNOWN),
        ),
    ] = "scenario",
    out: Annotated[
        Path | None, Option(OUT_FILE, "What to write; the default is standard output.")
    ] = None,
    force: Annotated[bool, Option("", "Replace the file that is there.")] = False,
) -> None:
    """Print the JSON Schema of a kind of file, for editors.

    Keys, units, defaults and ranges, in draft 2020-12. An editor completes and checks a file that
    names the schema in its first line:
    # yaml-language-server: $schema=scenario.schema.json
    """
    import json

    from simshuffle.cli.files import check_place, write_together

    if what not in KNOWN:
        rule, remedy = f"must be one of {', '.join(KNOWN)}", "Write one of them."
        refuse("schema", rule, repr(what), remedy, COMMAND_LINE)
    if (out := file_in(out, f"{what}.schema.json")) is not None:
        check_place(out, replace=force)
    from simshuffle.cli.schema_files import schema as schema_of

    text = json.dumps(schema_of(what), indent=1, ensure_ascii=False)
    if out is None:
        typer.echo(text)
        return
    (path,) = write_together(out.parent, {out.name: f"{text}\n"})
    typer.echo(f"Written: {path}")
    say(f"In the first line of a {what} file: # yaml-language-server: $schema={path}")
