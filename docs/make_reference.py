"""What `make reference` runs: writes the pages of docs/reference that are made from the code, and
the stub of the package."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from typer.main import get_command

from simshuffle.cli import app
from simshuffle.cli.help import EXAMPLES
from simshuffle.cli.schema_files import schema
from simshuffle.cli.schema_records import Json, alternatives
from simshuffle.report.columns import MAX_COUNT
from simshuffle.study.functions import PROGRESS, docstring_of, type_of
from simshuffle.study.options import Argument, Field, fields_of
from simshuffle.study.registry import (
    kinds_of,
    merge_extensions,
    own_verbs,
    study_of,
    verbs,
)
from simshuffle.study.schema import LARGEST, Column, unit_of
from simshuffle.study.verb import Verb
from simshuffle.workload.layers import layer_list
from simshuffle.workload.layers.shipped import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))
from benchmarks.doctor_cases.table import text_of  # noqa: E402

RENEWED = "*Made by `make reference` from the code; not written by hand.*"
CASES = """\
Generated trainings that judged `doctor` after its code was frozen
([data](../data/doctor-cases.csv), seed 6, two cores of an AMD EPYC beside other work). What they
are: [my training waits for data](../doctor.md#how-well-it-does-it). A cause counts as true if
mending it gains 15 % of the loop. A gain is the share of a batch that mending the strongest cause
saves. A case is named by seed and number: `python -m benchmarks.doctor_cases --seed 6 --write 13
--out FOLDER` writes its scripts, drawn for the speed of this host."""
SCENARIO = """\
Every key of a scenario file, with its unit, default and range. [Scenario files](../scenario.md)
explains them, and has examples. A machine's file holds what stands here below `cluster`. What has
no default and is not required may be left out. A short form is the kind of a record alone, or
`kind:key=value,key=value`; keys may be dotted. Any dotted key may stand in `sweep`."""
STUDY = """\
Every key of a study, as [`simshuffle train`](../training.md) reads it, with its unit, default and
range. In a block of `runs` any dotted key has a value or a list of values."""
NETWORKS = """\
Networks that `workload.model.layers` may name;
[models](../model-parallelism.md#models-layer-by-layer) explains them. Operations are those of a
forward pass of one sample: two for each multiplication of convolutions, linear layers
and attention. Kept are values of one sample for the backward pass; a value has 4 B, or 2 B in mixed
precision."""
TABLES = """\
The tables of every kind of result folder, with all columns. [Result folders](../tables.md) says
what the rows are, and what else a folder holds. `columns.json` in a folder has the same sentences.
Tables that vary values, as those of `simshuffle sweep`, begin with a column for each of them."""
VERBS = """\
Every verb with its arguments and options, as `simshuffle VERB --help` shows them. [The command
line](../commands.md) says what they have in common."""
STUB = """\
# Made from the options of the studies: `make reference` renews it.
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simshuffle.api import compare as compare
from simshuffle.api import read as read
from simshuffle.api import run as run
from simshuffle.errors import ScenarioError as ScenarioError
from simshuffle.errors import SimshuffleError as SimshuffleError
from simshuffle.job.scenario.scenario import Scenario as Scenario
from simshuffle.job.scenario.scenario import load_scenario as load_scenario
from simshuffle.job.sim.simpy_network import SimpyNetwork as SimpyNetwork
from simshuffle.study.study import Result as Result

"""


def main(folder: Path, stub: Path) -> None:
    """Write the pages into the folder, and the stub of the package."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    stub.write_text(stub_text(own_verbs()), encoding="utf-8")


def pages() -> dict[str, str]:
    """The pages by the names of their files."""
    of_scenario = schema("scenario")
    of_study = schema("study")
    scenario = {"Top level": of_scenario["$defs"]["Scenario"]}
    study = {
        "kind: shuffling": of_study["$defs"]["Study"],
        "kind: data_optimised": of_study["$defs"]["DataOptimisedStudy"],
    }
    return {
        "scenario-keys.md": keys_page(
            "Keys of a scenario", SCENARIO, of_scenario, scenario
        ),
        "study-keys.md": keys_page("Keys of a study", STUDY, of_study, study),
        "networks.md": page("Networks", NETWORKS, _networks()),
        "tables.md": page("Tables", TABLES, _tables()),
        "verbs.md": verbs_page(get_command(app)),
        "doctor-cases.md": page("Judged trainings", CASES, [f"\n{judged_cases()}\n"]),
    }


def judged_cases() -> str:
    """The tables of the judged trainings in docs/data/doctor-cases.csv."""
    with (ROOT / "docs" / "data" / "doctor-cases.csv").open(
        encoding="utf-8", newline=""
    ) as file:
        return text_of(list(csv.DictReader(file)))


# ----------------------------------------------------------------------------------------- Markdown


def page(title: str, about: str, sections: Iterable[str]) -> str:
    """A page with its first paragraph."""
    return f"# {title}\n\n{about}\n\n{RENEWED}\n" + "".join(sections)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; columns without any text are left out."""
    cells = [list(row) for row in rows]
    kept = [k for k in range(len(head)) if any(row[k] for row in cells)]
    lines = [[head[k] for k in kept], ["---" for _ in kept]]
    lines += [[row[k] for k in kept] for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def plain(text: str) -> str:
    """A text whose characters mean nothing to Markdown, on one line; quoted names as code."""
    escaped = re.sub(r"([\\|*<>\[\]`$])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<!\w)'([\w.]+)'(?!\w)", r"`\1`", escaped)


def code(text: str) -> str:
    """A text as code, in a table."""
    return f"`{text.replace('|', chr(92) + '|')}`"


def anchor(heading: str) -> str:
    """What a link names a heading by: lower case, without punctuation, blanks as hyphens."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


# ----------------------------------------------------------------------------------- keys of files


def keys_page(title: str, about: str, schema: Json, roots: Mapping[str, Json]) -> str:
    """The page of a kind of file: ``roots`` are the records that one may be, by their headings."""
    sections = _Sections(schema["$defs"])
    for heading, root in roots.items():
        sections.add(heading, "", root)
    return page(title, about, sections.texts())


class _Sections:
    """A section for each record, in the order in which files name them."""

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
            name = _name(part)
            if "properties" in self._all.get(name, {}):
                yield path, name
            if part.get("type") == "array" and "items" in part:
                yield from self._records(f"{path}.N", part["items"])
            inner = part.get("additionalProperties")
            if isinstance(inner, dict) and "properties" not in part:
                yield from self._records(f"{path}.NAME", inner)

    def texts(self) -> Iterator[str]:
        """The sections."""
        head = ("key", "value", "unit", "default", "range", "meaning")
        for heading, record in self._found:
            rows = [
                self._row(key, value, key in record["required"])
                for key, value in record["properties"].items()
                if "const" not in value
            ]
            keys = f"\n{table(head, rows)}" if rows else ""
            yield f"\n## {heading}\n\n{plain(record.get('description', ''))}\n{keys}"

    def _row(self, key: str, value: Json, required: bool) -> list[str]:
        parts = [
            self._all.get(_name(part), part) | part for part in alternatives(value)
        ]
        default = "required" if required else ""
        if value.get("default") not in (None, "", [], {}):
            default = code(_shown(value["default"]))
        return [
            code(key),
            _joined(map(self._value, alternatives(value))),
            _joined(part.get("unit", "") for part in parts),
            default,
            _joined(map(_range, [value, *parts])),
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
            return (
                "a shipped name"
                if many
                else ", ".join(map(code, map(_shown, part["enum"])))
            )
        if "const" in part:
            return code(_shown(part["const"]))
        return str(part.get("title") or self._of_type(part))

    def _of_type(self, part: Json) -> str:
        kind = part.get("type", "")
        if kind == "array":
            inner = _joined(map(self._value, alternatives(part.get("items", {}))))
            return f"list of {inner}" if inner else "list"
        if kind == "object":
            of = part.get("additionalProperties")
            inner = (
                _joined(map(self._value, alternatives(of)))
                if isinstance(of, dict)
                else ""
            )
            return f"names, each with {inner}" if inner else "mapping"
        if kind == "string":
            return "percent" if "%" in part.get("pattern", "") else "text"
        words = {
            "integer": "whole number",
            "number": "number",
            "boolean": "`true`, `false`",
        }
        return words.get(kind, "" if kind == "null" else "any")


def _joined(texts: Iterable[str]) -> str:
    """Each of the texts once, with commas between them."""
    return ", ".join(dict.fromkeys(filter(None, texts)))


def _name(part: Json) -> str:
    return str(part.get("$ref", "")).removeprefix("#/$defs/")


def _range(part: Json) -> str:
    """The range of a number in words; '' if it has none."""
    if "unit" in part:
        return "above 0" if part.get("title", "").endswith("above 0") else ""
    ends = []
    below = part.get("exclusiveMaximum")
    if "exclusiveMinimum" in part:
        ends.append(f"above {part['exclusiveMinimum']:g}")
    elif "minimum" in part:
        ends.append(f"from {part['minimum']:g}")
    high = part.get("maximum", 2**53)  # which says nothing
    if below is not None:
        ends.append(f"below {below:g}")
    elif high < 2**53:
        ends.append(f"to {high:,}" if isinstance(high, int) else f"to {high:g}")
    return ", ".join(ends) if below is not None else " ".join(ends)


def _shown(value: Any) -> str:
    """A value as YAML has it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)


# ------------------------------------------------------------------------------ networks and tables


def _networks() -> Iterator[str]:
    """A section for each family of networks that come with simshuffle."""
    head = (
        "name",
        "sample",
        "layers",
        "parameters",
        "10^9 operations",
        "10^6 values kept",
    )
    for family in FAMILIES:
        title, _, rest = (family.__doc__ or "").partition("\n\n")
        texts = "\n\n".join(map(plain, [title, *filter(str.strip, rest.split("\n\n"))]))
        rows = [
            [
                code(of.name),
                " x ".join(map(str, of.input)),
                f"{len(of):,}",
                f"{of.parameters:,}",
                f"{of.flops / 1e9:,.2f}",
                f"{of.saved / 1e6:,.2f}",
            ]
            for of in map(layer_list, family.NETWORKS)
        ]
        yield f"\n## {family.__name__.rpartition('.')[2]}\n\n{texts}\n\n{table(head, rows)}"


def _tables() -> Iterator[str]:
    """The tables of result folders, from the schemas of the studies."""
    head = ("column", "kind", "unit", "range", "meaning")
    for kind in kinds_of(own_verbs().values()):
        study = study_of(kind)
        verb = f" of `simshuffle {study.verb}`" if study.verb else ""
        yield f"\n## {kind}\n\nResult folders{verb}; `meta.json` says `kind: {kind}`.\n"
        derived = {name: made.schema for name, made in study.derived.items()}
        for name, of in {**study.stored, **derived}.items():
            follows = "\n\nIt follows from the others." if name in derived else ""
            if of.key:
                follows += (
                    f"\n\nNo two rows have the same {', '.join(map(code, of.key))}."
                )
            columns = table(head, (_column(*column) for column in of.columns.items()))
            yield f"\n### {kind}: {name}{of.suffix}{follows}\n\n{columns}"


def _column(name: str, column: Column) -> list[str]:
    words = {
        "real": "number",
        "count": "whole number",
        "flag": "true or false",
        "text": "text",
    }
    kind = words[column.kind] + (", or empty" if column.empty else "")
    choices = ", ".join(map(code, filter(None, column.choices)))
    if not choices and column.kind in {"real", "count"}:
        choices = "" if column.low <= -LARGEST else f"from {column.low:g}"
        if column.high < (MAX_COUNT if column.kind == "count" else LARGEST):
            choices = f"{choices} to {round(column.high, 6):g}".strip()
    return [code(name), kind, unit_of(name), choices, plain(column.meaning)]


# ------------------------------------------------------------------------------ verbs and functions


def verbs_page(command: Any) -> str:
    """The page of the verbs; ``command`` is the command line, as typer makes it of an app."""
    plugins = verbs().keys() - own_verbs().keys()
    named = [(name, verb) for name, verb in _verbs(command) if name not in plugins]
    sections = (_verb(f"{command.name} {name}", name, verb) for name, verb in named)
    known = [each for each in command.params if not each.name.endswith("completion")]
    return page(
        "Verbs", VERBS, [f"\n## For every verb\n\n{_options(known)}", *sections]
    )


def _verbs(command: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """All verbs in the order of the help, those of groups with the name of the group."""
    for name in command.list_commands(None):
        verb = command.commands[name]
        if hasattr(verb, "commands"):
            yield from _verbs(verb, f"{above}{name} ")
        else:
            yield f"{above}{name}", verb


def _verb(line: str, name: str, verb: Any) -> str:
    """The section of a verb."""
    getattr(verb, "list_words", lambda: None)()  # one that typer alone made has none
    texts = "\n\n".join(map(plain, (verb.help or "").split("\n\n")))
    known = [each for each in verb.params if not getattr(each, "hidden", False)]
    known = [each for each in known if each.name not in {"quiet", "verbose"}]
    arguments = [
        f" {_argument(each)}" for each in known if each.param_type_name == "argument"
    ]
    head, _, examples = (verb.epilog or "").partition(f"{EXAMPLES}\n")
    shown = f"\n```text\n{examples.strip()}\n```\n" if examples else head
    usage = f"```text\n{line}{''.join(arguments)} [OPTIONS]\n```"
    return f"\n## {name}\n\n{texts}\n\n{usage}\n\n{_options(known)}{shown}"


def _argument(parameter: Any) -> str:
    """An argument as a line of usage has it: in brackets where it may be left out."""
    name = (parameter.metavar or parameter.name).strip("[]")
    name += "..." * (parameter.nargs == -1)
    return name if parameter.required else f"[{name}]"


def _options(parameters: Iterable[Any]) -> str:
    return table(("option", "value", "default", "meaning"), map(_option, parameters))


def _option(parameter: Any) -> list[str]:
    default = parameter.default
    shown = default is not None and default is not False and default != []
    if parameter.param_type_name == "argument":
        names = code(_argument(parameter))
        value = ""
    else:
        names = ", ".join(map(code, [*parameter.opts, *parameter.secondary_opts]))
        value = "" if parameter.is_flag else code(parameter.metavar or "TEXT")
    given = code(str(default)) if shown and not callable(default) else ""
    needed = "required" if parameter.required else given
    return [names, value, needed, plain(parameter.help or "")]


def stub_text(verbs: Mapping[str, Verb[Any]]) -> str:
    """The stub of the package: the signatures of the functions that are made from verbs."""
    of_verbs = [_function(verb) for verb in verbs.values() if verb.function]
    imports = [
        f"from {place.replace(':', ' import ')} as {name}\n"
        for name, place in sorted(merge_extensions().functions.items())
        if "." not in name
    ]
    return STUB + "".join([*imports, "\n__version__: str\n\n"]) + "\n".join(of_verbs)


def _function(verb: Verb[Any]) -> str:
    """A function as the stub has it, for editors and type checkers."""
    fields = fields_of(verb.options)
    arguments = [
        _parameter(field) for field in fields if isinstance(field.option, Argument)
    ]
    options = [
        _parameter(field) for field in fields if not isinstance(field.option, Argument)
    ]
    lines = [*arguments, "    *,", *options, f"    {PROGRESS}: bool = True,"]
    text = indent(f'"""{docstring_of(verb)}\n"""', " " * 4)
    return "\n".join([f"def {verb.function}(", *lines, ") -> Result:", text, ""])


def _parameter(field: Field) -> str:
    default = (
        f" = {field.default!r}"
        if isinstance(field.default, int | float | None)
        else " = ..."
    )
    if isinstance(field.default, str):  # as ruff writes it
        default = f' = "{field.default}"'
    return f"    {field.name}: {type_of(field)}{'' if field.needed else default},"


if __name__ == "__main__":
    main(ROOT / "docs" / "reference", ROOT / "simshuffle" / "__init__.pyi")
