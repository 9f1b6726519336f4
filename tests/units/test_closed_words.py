"""The help of a verb lists the values of every option that has a closed set of them, and the shell
completes them."""

import re
from typing import Any, Literal, get_args, get_origin

import pytest
from typer.main import get_command

from simshuffle.cli import app, main
from simshuffle.cli.new_questions import BY_NAME, CHOICES, STRATEGY_OF_WAY
from simshuffle.fabric.routing import Routing
from simshuffle.studies.congestion.patterns import PATTERNS
from simshuffle.study import registry
from simshuffle.study.options import Words, fields_of, plain_type, words
from simshuffle.workload.exchange import Exchange
from simshuffle.workload.orders import AnyOrder

OPEN = {
    *(
        "N",
        "NET",
        "POINTS",
        "M",
        "S",
        "K",
        "P",
        "T",
        "RANKS",
        "ACCURACY",
        "PRICE",
        "NAME=PRICE,...",
        "SHARE",
        "SIZE",
        "SIZE,...",
        "RATE",
        "TIME",
    ),
    *("FILE", "FILE...", "FILE|FOLDER", "FOLDER", "PATH", "RESULT", "RESULT...", "CASE", "TRACE"),
    *("RECORD|-- COMMAND", "-- COMMAND", "NODESxRANKS", "NODESxRANKS|FORMAT", "N[:N]", "STEP"),
    *("TEXT", "WORD", "HOST HOST", "RUN,...", "HEADING,..."),
    *("E", "NODESxGPUS", "N[:N]"),
    *(
        "KEY=VALUE",
        "KEY.PATH=VALUE",
        "KEY=V1,V2,...",
        "KEY=LOW..HIGH",
        "ADDRESS",
        "M,...",
        "NAME@M",
        "RANK,...",
    ),
    *("SCENARIO", "STUDY", "SOURCE", "A", "B", "NAME[/NAME]", "s3[:KEY=VALUE,...]"),
}
"""What stands for a value of which there are endlessly many, or that names something of the user's
or that `simshuffle list` has."""
NAMES = {
    ("new", "name"): "of what is written",
    ("new", "accelerator"): "of the user's GPUs",
    ("new", "estimated"): "options of new",
    ("new", "measured"): "the same",
    ("new", "data_sheet"): "the same",
    ("results export", "run"): "of the result",
    ("study blame", "run"): "the same",
    ("machine import", "name"): "of what is written",
    ("machine import", "accelerator"): "of the user's step times",
    ("machine calibrate", "accelerator"): "of the user's step times",
    ("doctor", "on"): "a machine, which `simshuffle list` has, or a file",
    ("machine export", "source"): "a machine, which `simshuffle list` has, or a file",
    ("machine show", "source"): "the same",
    ("study collective", "name"): "a scenario or a machine",
}
"""Options whose value is a name that nobody can list, and what it names."""


def verbs(command: Any, above: str = "") -> Any:
    """Every verb by its words."""
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from verbs(each, f"{above}{name} ")
        else:
            yield f"{above}{name}", each


ALL = dict(verbs(get_command(app)))


def listed(verb: str) -> dict[str, Words]:
    """The words of the options of a verb, by their names."""
    found: dict[str, Words] = ALL[verb].callback.words
    return found


def shown(verb: str, capsys: Any, monkeypatch: Any) -> str:
    """The help, without the frames and breaks of lines."""
    monkeypatch.setenv("COLUMNS", "300")
    assert main([*verb.split(), "--help"]) == 0
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


@pytest.mark.parametrize("verb", ALL)
def test_the_help_lists_the_values_of_every_option_that_has_few(verb, capsys, monkeypatch):
    text = shown(verb, capsys, monkeypatch)
    for name, found in listed(verb).items():
        assert found.all(), name
        for word in found.all():
            assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), (name, word)
    open_answers = {name for name, of in BY_NAME.items() if of.kind not in {*CHOICES, "ways"}}
    for parameter in ALL[verb].params:
        known = parameter.is_flag if hasattr(parameter, "is_flag") else False
        known = known or parameter.name in listed(verb) or (verb, parameter.name) in NAMES
        known = known or (verb == "new" and parameter.name in open_answers)
        metavar = (parameter.metavar or "").removeprefix("[")
        metavar = metavar if "[" in metavar else metavar.removesuffix("]")
        if not known:
            assert metavar in OPEN, f"{verb} {parameter.name} {metavar}: list its words, or name it"


def test_nothing_is_excused_that_is_not_there():
    for verb, name in NAMES:
        assert name in {parameter.name for parameter in ALL[verb].params}
        assert name not in listed(verb)


@pytest.mark.parametrize("verb", registry.verbs().values(), ids=lambda verb: verb.name)
def test_declared_choices_are_among_those_that_are_listed(verb):
    """Of an option with `choices`, and of one whose type is a Literal."""
    for field in fields_of(verb.options):
        plain = plain_type(field.type)[0]
        literal = get_args(plain) if get_origin(plain) is Literal else ()
        if declared := {*field.option.choices, *literal}:
            assert set(listed(verb.name)[field.name].all()) == declared


@pytest.mark.parametrize(
    ("verb", "option", "some"),
    [
        ("study loader", "order", {"webdataset", "litdata_full", "own"}),
        ("study loader", "loader", {"restart"}),
        ("study loader", "to", {"latex", "markdown"}),
        ("congestion", "pattern", set(PATTERNS)),
        ("congestion", "routing", {"d_mod_k", "ecmp", "adaptive"}),
        ("machine show", "pattern", {"all_to_all", "half_shift"}),
        ("study oracle", "strategies", {"data", "pipeline", "spatial"}),
        ("study collective", "algorithm", {"ring", "tree", "nccl"}),
        ("study validate", "only", {"testbed"}),
        ("new", "ways", {*STRATEGY_OF_WAY, "fitting"}),
        ("new", "topology", {"fat_tree", "dragonfly", "rail_optimised", "torus"}),
        ("figure", "kind", {"storage"}),
    ],
)
def test_words_are_those_of_the_registry(verb, option, some):
    assert some <= set(listed(verb)[option].all())


@pytest.mark.parametrize("union", [AnyOrder, Routing, Exchange])
def test_the_kinds_of_a_union_are_words(union, monkeypatch):
    monkeypatch.setitem(globals(), "UNION", union)
    found = Words(place=f"{__name__}:UNION").all()
    assert len(found) == len(set(found)) > 5
    assert all(isinstance(word, str) for word in found)


def test_words_complete_what_is_begun():
    assert words("pfs", "ssd", "store")("s") == ["ssd", "store"]
    assert "webdataset" in words(place="simshuffle.workload.orders:AnyOrder")("web")
    assert "imagenet1k" in words(place="simshuffle.spec.library:dataset_names")("imagenet")


def test_what_the_text_names_is_not_listed_twice(capsys, monkeypatch):
    assert shown("new", capsys, monkeypatch).count("Known:") == 0
    assert "cuda:N. Known" not in shown("train", capsys, monkeypatch)
