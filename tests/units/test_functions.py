"""The functions of Python are the verbs: the same options, the same results, the same refusals."""

import inspect
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

import simshuffle
from simshuffle.cli import main
from simshuffle.errors import InputError
from simshuffle.study.functions import function_of
from simshuffle.study.options import fields_of
from simshuffle.study.registry import own_verbs, read_folder, verbs
from simshuffle.study.study import Result

DATA = Path(__file__).parents[1] / "data"
ASKED = yaml.safe_load((DATA / "functions.yaml").read_text().replace("{data}", str(DATA)))
LOCAL = ASKED["sweep"]["given"]["set"]
FUNCTIONS = {verb.function: verb for verb in own_verbs().values() if verb.function}


def words_of(values):
    """The values of a scenario or a study as options set them."""
    return [
        word
        for name in ("set", "set_study")
        for key, value in values.get(name, {}).items()
        for word in (f"--{name.replace('_', '-')}", f"{key}={json.dumps(value)}")
    ]


def test_every_function_is_compared_with_its_verb():
    assert {*ASKED} == {*FUNCTIONS}


@pytest.mark.usefixtures("cells_kept")
@pytest.mark.parametrize("name", ASKED)
def test_a_function_gives_what_its_verb_writes(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ASKED[name]["given"]
    words = [*ASKED[name]["words"].split(), *words_of(given)]
    result = getattr(simshuffle, name)(**given, progress=False)
    assert isinstance(result, Result)
    assert not (tmp_path / "results").exists() or name == "tta"  # whose training is kept
    assert main([*FUNCTIONS[name].name.split(), *words, "--out", "out", "--quiet"]) == 0
    written = read_folder(tmp_path / "out")
    assert written.meta["fingerprint"] == result.meta["fingerprint"]
    kept_here = read_folder(result.save(tmp_path / "here", draw=False))
    measured = {
        (table, column)
        for table, schema in result.study.schemas(result.meta).items()
        for column, of in schema.columns.items()
        if of.measured
    }
    for table in result.study.stored:
        kept = [c for c in result.tables[table] if (table, c) not in measured]
        left, right = (of.tables[table][kept].astype(str) for of in (kept_here, written))
        pd.testing.assert_frame_equal(left, right)


def test_every_function_has_the_options_of_its_verb():
    for name, verb in FUNCTIONS.items():
        signature = inspect.signature(getattr(simshuffle, name))
        assert {*signature.parameters} == {f.name for f in fields_of(verb.options)} | {"progress"}
        assert name in dir(simshuffle) and name in simshuffle.__all__


def test_a_function_hides_no_module():
    package = Path(simshuffle.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix in {"", ".py"}}
    assert not modules & {*FUNCTIONS, "compare", "run", "read"}


@pytest.mark.parametrize(
    ("name", "given", "problem"),
    [
        ("sweep", {"scenario": "nosuch"}, "nosuch"),
        ("sweep", {"scenario": "quickstart", "seeds": "many"}, "seeds: should be a valid integer"),
        ("sweep", {"scenario": "quickstart", "seeds": 0}, "seeds: must be at least 1"),
        ("loader", {"samples": 0}, "samples: must be at least 1"),
        ("hiding", {"scenario": "quickstart", "tolerance": 2}, "tolerance: must be 0 to 1"),
        ("accuracy", {"scenario": "quickstart", "momentum": 0}, "momentum: must be 0.001 to 1"),
        ("oracle", {"scenario": "paper/oracle", "budget_memory": "much"}, "budget_memory: "),
    ],
)
def test_what_is_wrong_is_said_in_the_words_of_the_function(name, given, problem):
    with pytest.raises(InputError) as refused:
        getattr(simshuffle, name)(**given, progress=False)
    assert problem in str(refused.value)
    assert not any(of.path.startswith("--") for of in refused.value.problems)


def test_an_argument_that_there_is_not_is_refused_as_python_does():
    with pytest.raises(TypeError, match="unexpected keyword argument 'sead'"):
        simshuffle.sweep("quickstart", sead=1)
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        _ = simshuffle.sweeep


def test_a_result_is_printed_and_drawn_by_name(tmp_path):
    result = simshuffle.sweep("quickstart", over={"seed": [1, 2]}, set=LOCAL, progress=False)
    assert "seed" in str(result)
    assert result.figure().get_figwidth() > 3
    assert len(result.table("sweep")) == 2
    with pytest.raises(InputError, match="There are "):
        result.figure("nosuch")
    with pytest.raises(InputError, match="There are sweep"):
        result.table("nosuch")


def test_two_results_of_a_program_are_compared():
    scenario = simshuffle.load_scenario("quickstart", LOCAL)
    a, b = simshuffle.run(scenario), simshuffle.run(scenario.with_values({"seed": 7}))
    found = simshuffle.compare(a, b)
    assert found.asked["key"].tolist() == ["seed"]
    assert "Inputs that differ" in str(found) and "<table" in found._repr_html_()
    assert simshuffle.compare(scenario, b).asked["key"].tolist() == ["seed"]


def test_a_function_is_documented_like_its_verb():
    function = function_of(FUNCTIONS["sweep"])
    assert function.__name__ == "sweep"
    assert "over: Values of a key" in function.__doc__


class _EntryPoint:
    """Of another distribution, whose module names a verb."""

    def load(self):
        made = replace(FUNCTIONS["sizes"], name="study counted", function="counted", kinds={})
        return SimpleNamespace(VERBS=(made,))


def test_a_study_of_another_distribution_is_found_by_its_entry_point(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "simshuffle.study.registry.entry_points",
        lambda group: asked.append(group) or [_EntryPoint()],
    )
    found = verbs.__wrapped__()
    assert asked == ["simshuffle.studies"]
    assert {*found} == {*own_verbs(), "study counted"}


def test_the_plugin_of_the_testbed_has_a_verb_and_a_function_and_no_place_in_the_stub():
    assert {*verbs()} == {*own_verbs(), "machine testbed"}
    assert inspect.signature(simshuffle.testbed).parameters["leaves"].default == 2
    stub = Path(simshuffle.__file__).with_suffix(".pyi").read_text()
    assert "def sweep" in stub
    assert "def testbed" not in stub


WITHOUT_PLUGINS = """
import importlib.metadata, sys
importlib.metadata.entry_points = lambda group: []
import simshuffle
from simshuffle.cli import main
assert main(["machine", "testbed", "--quick"]) == main(["results", "show", sys.argv[1]]) == 2
simshuffle.testbed
"""


def test_who_lacks_a_plugin_is_told_how_to_get_it(tmp_path):
    (tmp_path / "meta.json").write_text('{"kind": "testbed"}')
    words = [sys.executable, "-c", WITHOUT_PLUGINS, str(tmp_path)]
    told = subprocess.run(words, check=False, capture_output=True, text=True, timeout=900).stderr
    assert "testbed: is a plugin, which is not installed" in told
    assert "AttributeError: module 'simshuffle' has no attribute 'testbed'" in told
    assert told.count("pip install ./plugins/testbed in a checkout") == 3


def test_run_takes_a_name_as_its_verb_does():
    by_name = simshuffle.run("quickstart")
    assert by_name.tables["epochs"]["run"].nunique() == 3
