"""One grammar for all verbs, from the options that they declare: what the first argument,
``--out``, ``--set``, ``--json`` and ``--to`` mean is the same everywhere."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from simshuffle.cli import app, main
from simshuffle.cli.common import OUT_FILE, output_file
from simshuffle.extensions.interop.exports.export import FORMATS


def verbs(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every verb below a command, by its whole name."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, inner in command.commands.items():
        yield from verbs(inner, f"{name} {word}".strip())


VERBS = dict(verbs(typer.main.get_command(app)))
FIRST = {
    "SCENARIO": "a scenario: its file, or a name below scenarios/",
    "STUDY": "a study of trainings: its file, or a name",
    "RESULT": "a result folder",
    "SOURCE": "a result folder or a scenario",
    "A": "the same, beside B",
    "NAME": "a machine, or what is made",
    "FILE": "a file of another tool",
    "CASE": "a file with flows",
    "TRACE": "a table of operations of a training job",
    "RECORD|-- COMMAND": "a record of a training, or the command that is recorded",
    "-- COMMAND": "the command that is run",
    "FOLDER": "a folder of the file system that is measured",
    "KIND": "what a figure shows",
    "WORD": "of names and descriptions, which are searched",
    "[scenario|study|topology|VERB]": "whose schema",
}
"""What stands for the first argument, and its one meaning."""
NEITHER = {"machine import": "the file's name is the machine's"}
"""Verbs that write no result folder, whose ``--out`` can be no folder, and why."""


def option(verb: str, flag: str) -> Any:
    found = [of for of in VERBS[verb].params if flag in of.opts and of.opts[0].startswith("-")]
    return found[0] if found else None


def having(flag: str) -> list[str]:
    return [verb for verb in VERBS if option(verb, flag) is not None]


def test_there_are_verbs_to_look_at():
    assert len(VERBS) > 25
    assert all(len(having(flag)) > 5 for flag in ("--out", "--set", "--json", "--to", "--force"))


SAYING = {"results verify"}
"""Verbs that print sentences."""


@pytest.mark.parametrize("verb", VERBS)
def test_arguments_and_options_mean_the_same_everywhere(verb):
    arguments = [of for of in VERBS[verb].params if of.param_type_name == "argument"]
    assert all(of.metavar in FIRST for of in arguments[:1])
    # verbs on results take them as RESULT, wherever it stands
    folders = [of for of in arguments if (of.help or "").startswith("A result folder.")]
    assert {of.metavar for of in folders} <= {"RESULT"}
    if found := option(verb, "--set"):
        said = (found.metavar, found.multiple, found.required, found.help)
        text = "Set a value of the scenario. May be given several times."
        assert said == ("KEY.PATH=VALUE", True, False, text)
    if found := option(verb, "--json"):
        assert found.is_flag and "JSON" in found.help
        # what can be printed as JSON can be printed for a paper
        assert option(verb, "--to") is not None or verb in SAYING
    if option(verb, "--force"):
        assert option(verb, "--out") is not None or verb == "new"


@pytest.mark.parametrize("verb", having("--out"))
def test_out_is_a_folder_or_takes_one(verb):
    metavar = option(verb, "--out").metavar
    assert metavar == ("FILE" if verb in NEITHER else metavar)
    assert verb in NEITHER or metavar in {"FOLDER", OUT_FILE}
    # a result folder is made by the verbs that say what was in it, and by no others
    assert (metavar == "FOLDER") == (option(verb, "--json") is not None and verb not in DRAWING)


DRAWING = {"figure", "machine show"}
"""Verbs that print tables and draw one file."""


# ------------------------------------------------------------------------- what --out does


def test_a_folder_that_is_there_takes_the_verb_s_own_name(tmp_path):
    assert output_file(tmp_path, "a.pdf") == tmp_path / "a.pdf"
    assert output_file(tmp_path / "b.pdf", "a.pdf") == tmp_path / "b.pdf"
    assert output_file(None, "a.pdf") is None


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grammar") / "small"
    size = ["--set", "world_size=8", "--set", "epochs=1"]
    assert main(["run", "quickstart", *size, "--out", str(folder)]) == 0
    return folder


WRITTEN = {
    "figure": (["figure", "breakdown", "RESULT", "--format", "png"], "breakdown.png"),
    "report": (["report", "RESULT"], "small-report.html"),
    "results plot": (["results", "plot", "RESULT"], "breakdown.png"),
    "results export": (["results", "export", "RESULT", "--to", "graphml"], "*.graphml"),
    "machine export": (
        ["machine", "export", "small-fat-tree", "--to", "ibsim"],
        "small-fat-tree.net",
    ),
    "machine show": (["machine", "show", "abci"], "abci.png"),
    "study schema": (["study", "schema", "study"], "study.schema.json"),
    "study replay": (["study", "replay", "CASE"], "case.csv"),
}


def test_every_verb_that_writes_a_file_is_tried():
    assert {verb for verb in having("--out") if option(verb, "--out").metavar == OUT_FILE} == {
        *WRITTEN
    }


@pytest.mark.parametrize("verb", WRITTEN)
def test_every_verb_writes_into_a_folder(verb, result, tmp_path):
    words, name = WRITTEN[verb]
    case = tmp_path / "case.json"
    links, flows = {"capacity": [1e9], "latency": [0]}, {"size": [1e6], "route": [[0]]}
    case.write_text(json.dumps({"links": links, "flows": flows}))
    places = {"RESULT": str(result), "CASE": str(case)}
    out = tmp_path / "out"
    out.mkdir()
    assert main([*(places.get(word, word) for word in words), "--out", str(out)]) == 0
    assert len(list(out.glob(name))) == 1


MACHINE = "small-fat-tree"


@pytest.mark.parametrize("verb", ["results export", "machine export"])
def test_both_exports_know_the_same_formats(verb, tmp_path, capsys):
    """Each format is either written by both, or a format of runs, which the other verb says."""
    small = [f"cluster={MACHINE}", "world_size=8", "workload.allreduce.rings=1"]
    source = ["quickstart", *(word for text in small for word in ("--set", text))]
    source = source if verb == "results export" else [MACHINE]
    for to, kind in FORMATS.items():
        if verb == "results export" and kind.options:
            continue  # a simulation
        out = tmp_path / f"{to}{kind.suffix}"
        status = main([*verb.split(), *source, "--to", to, "--out", str(out)])
        said = capsys.readouterr().err
        assert status == (2 if kind.options else 0), said
        assert out.exists() != bool(kind.options)
        assert not kind.options or f"simshuffle results export SCENARIO --to {to}" in said
