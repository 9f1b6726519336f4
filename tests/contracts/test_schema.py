"""The JSON Schemas of scenario, study and machine files allow what the readers read, and refuse
what they refuse."""

import copy
import json
import sys

import pytest
from jsonschema import Draft202012Validator

from simshuffle.cli import main
from simshuffle.cli.schema_files import schema
from simshuffle.errors import InputError
from simshuffle.job.scenario.reading import _references
from simshuffle.job.scenario.scenario import from_dict, load_scenarios, machine_of
from simshuffle.spec.library import find_file, read_yaml, shipped_folder, shipped_names
from simshuffle.spec.overrides import set_key
from simshuffle.spec.record import quantity_schema
from simshuffle.spec.units import Dimension, UnitError, parse_quantity
from simshuffle.study.options import fields_of, fill_options
from simshuffle.study.registry import verbs
from tests.shared import HAS_EXTENSIONS, needs_extensions

FOLDERS = {"scenario": "scenarios", "topology": "topologies"}
if HAS_EXTENSIONS:
    FOLDERS["study"] = "studies"
SHIPPED = [(what, name) for what, folder in FOLDERS.items() for name in shipped_names(folder)]


@pytest.fixture(scope="module")
def schemas():
    return {what: schema(what) for what in FOLDERS}


@pytest.fixture(scope="module")
def validators(schemas):
    return {what: Draft202012Validator(schemas[what]) for what in FOLDERS}


def told(validator, document):
    """Where a document breaks its schema, and how; without the parts of unions, for people."""
    return [
        f"{error.json_path}: {error.message[:200]}" for error in validator.iter_errors(document)
    ]


@pytest.mark.parametrize("what", FOLDERS)
def test_the_schema_is_one_of_draft_2020_12(schemas, what):
    assert schemas[what]["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    Draft202012Validator.check_schema(schemas[what])


@pytest.mark.parametrize(("what", "name"), SHIPPED)
def test_every_shipped_file_obeys_its_schema(validators, what, name):
    documents = read_yaml(find_file(name, FOLDERS[what]))
    assert documents
    for document in documents:
        assert told(validators[what], document) == []


def test_what_scenarios_and_machines_are_resolved_to_obeys_it_too(validators):
    """All keys are written then, with their defaults."""
    for name in shipped_names("scenarios"):
        for scenario in load_scenarios(shipped_folder("scenarios") / f"{name}.yaml"):
            assert told(validators["scenario"], scenario.to_dict()) == [], name
    for name in shipped_names("topologies"):
        plain = machine_of(name).model_dump(mode="json", exclude_none=True)
        assert told(validators["topology"], plain) == [], name


def quickstart(**values):
    """The shipped scenario with values set by key, full stops written as two underscores."""
    (plain,) = [each.to_dict() for each in load_scenarios("quickstart")]
    for key, value in values.items():
        problems = []
        assert set_key(plain, key.replace("__", "."), copy.deepcopy(value), problems), problems
    return plain


ALLOWED = [
    {"time_tolerance": "1 %"},
    {"cluster": "abci"},
    {"workload__model": "resnet50", "workload__dataset": "imagenet1k"},
    {"workload__exchange": "partial_local_shuffle:exchange_fraction=0.1,schedule.overlap=false"},
    {"workload__exchange": "importance_pair:exchange_fraction=0.3,schedule.kind=authors"},
    {"workload__exchange": {"kind": "importance_exchange", "exchange_fraction": "10 %"}},
    {"workload__allreduce__overlap": "ddp:bucket=50 MiB"},
    {"workload__parallelism": "spatial:ways=4"},
    {"workload__parallelism": {"kind": "spatial", "ways": 4, "grid": [2, 2]}},
    {"cluster__routing": "ecmp:queue_pairs=4"},
    {"cluster__placement": "h[0000-0015]"},
    {"cluster__ssd__iops": {"points": {1: "12 k/s", 32: "300 k/s"}, "interpolation": "linear"}},
    {"cluster__ssd__latency": "0 s"},
    {"sweep": {"world_size": [8, 16], "workload.exchange": ["local_shuffle"]}},
    {"sweep": {"cluster.ssd.latency": ["20 us"], "workload.loader.workers": [1, 2]}},
    {"network": {"kind": "packet", "mtu": "2 KiB"}},
]
REFUSED = [
    {"word_size": 8},
    {"workload__loader__worker": 2},
    {"workload__exchange": {"kind": "local_shufle"}},
    {"workload__exchange": "local_shufle"},
    {"workload__exchange": "partial_local_shuffle:exchange_fracton=0.1"},
    {"workload__exchange": {"kind": "local_shuffle", "exchange_fraction": 0.1}},
    {"workload__parallelism": "spatial:way=4"},
    {"workload__parallelism": {"kind": "pipeline", "stages": 1}},
    {"cluster__topology": {"kind": "star", "hosts": 4}},
    {"cluster__routing": "ecmp:queuepairs=4"},
    {"world_size": -8},
    {"world_size": "8"},
    {"seed": -1},
    {"time_tolerance": 1},
    {"time_tolerance": -0.1},
    {"workload__allreduce__order": "sort"},
    {"workload__dataset": "imagenet"},
    {"cluster__ssd__latency": "-85 us"},
    {"cluster__ssd__latency": 85},
    {"cluster__ssd__latency": "85 GB"},
    {"cluster__ssd__capacity": "0 B"},
    {"cluster__ssd__read_bandwidth": "3 GB"},
    {"cluster__ssd__iops": {"points": {1: "12 kB"}}},
    {"network": {"kind": "fluid", "mtu": "2 KiB"}},
    {"network": {"mtu": "2 KiB"}},
    {"sweep": {"world_sise": [8]}},
    {"sweep": {"workload.loader.worker": [1]}},
    {"sweep": {"world_size": []}},
    {"models": {"mine": {"gradient_size": "1 MB"}}},
]


@pytest.mark.parametrize("values", ALLOWED, ids=str)
def test_what_the_reader_takes_obeys_the_schema(validators, values):
    plain = quickstart(**values)
    assert from_dict(plain, "changed").name == plain["name"]
    # the keys of mappings are texts for JSON
    assert told(validators["scenario"], json.loads(json.dumps(plain))) == []


@pytest.mark.parametrize("values", REFUSED, ids=str)
def test_what_the_reader_refuses_breaks_the_schema(validators, values):
    plain = quickstart(**values)
    with pytest.raises(InputError):
        from_dict(plain, "changed").runs()
    assert told(validators["scenario"], json.loads(json.dumps(plain))) != []


@needs_extensions
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("runs.0.training.learning_rat", 0.1),
        ("runs.0.exchange", ["global_shufle"]),
        ("data.kind", "digit"),
        ("seeds", 0),
        ("training.momentum", -0.5),
        ("epochs", 3),
    ],
)
def test_what_is_wrong_in_a_study_breaks_its_schema(validators, key, value):
    (plain,) = read_yaml(find_file("quick", "studies"))
    *parents, last = key.split(".", 2 if key.startswith("runs") else -1)
    at = plain
    for part in parents:
        at = at[int(part)] if isinstance(at, list) else at[part]
    at[last] = value
    assert told(validators["study"], plain) != []


@pytest.mark.parametrize(("key", "value"), [("hosts", 4), ("ssd.capacity", "1.6 TBs")])
def test_what_is_wrong_in_a_machine_breaks_its_schema(validators, key, value):
    (plain,) = read_yaml(find_file("abci", "topologies"))
    assert set_key(plain, key, value, [])
    assert told(validators["topology"], plain) != []


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("dimension", Dimension)
def test_the_pattern_of_a_quantity_is_what_is_read(dimension, positive):
    numbers = ["1", "0", "0.0", "0.05", ".5", "5.", "1e-3", "1_000", "+2", "-1", "e3", "", "1__0"]
    sizes = ["B", "kB", "KB", "KiB", "kib", "bit", "Mbit", "Gb", "mB"]
    units = [*sizes, "s", "ms", "us", "µs", "ks", "B/s", "GB/s", "Gbit/s", "1/s", "k/s", "/s", "Hz"]
    ends = ["", " / 64", "/1_0", " / x"]
    validator = Draft202012Validator(quantity_schema(dimension, positive))
    for text in (f"{n} {u}{e}" for n in numbers for u in ["", *units] for e in ends):
        try:
            value = parse_quantity(text, dimension)
        except UnitError:
            value = -1.0
        assert validator.is_valid(text) == (value > 0 if positive else value >= 0), text


def test_what_may_be_named_in_a_scenario_may_be_a_text(schemas):
    """The schema knows of every key at which the reader takes a name."""
    known = schemas["scenario"]["$defs"]["Scenario"]["properties"]["sweep"]["properties"]
    for key in _references({}, None):
        items = known[key]["items"]
        for ref in [each["$ref"] for each in items.get("anyOf", [items])]:
            value = schemas["scenario"]
            for step in ref.removeprefix("#/").split("/"):
                value = value[step]
            texts = [part for part in value["anyOf"] if "enum" in part or "pattern" in part]
            assert texts, key


@pytest.mark.parametrize("what", FOLDERS)
def test_every_key_is_described(schemas, what):
    for name, record in schemas[what]["$defs"].items():
        for key, value in record.get("properties", {}).items():
            assert value.get("description"), f"{name}.{key} has no line below Attributes"


@pytest.mark.parametrize("verb", verbs().values(), ids=lambda verb: verb.name)
def test_options_of_a_verb_obey_its_schema(verb):
    of = Draft202012Validator(schema(verb.word))
    needed = {
        field.name: ["x"] if field.name == "files" else "quickstart"
        for field in fields_of(verb.options)
        if field.needed
    }
    assert told(of, needed | {"out": "x", "force": True}) == []
    assert fill_options(verb.options, needed, "test").out is None
    assert told(of, needed | {"wrod": 1}) != []
    assert told(of, needed | {"force": []}) != []
    with pytest.raises(InputError):
        fill_options(verb.options, needed | {"force": []}, "test")


def test_ranges_and_choices_of_options_are_in_the_schema():
    of = Draft202012Validator(schema("run"))
    run = {"scenario": "quickstart"}
    assert told(of, run | {"processes": None, "timeline": "full", "seeds": 3}) == []
    assert all(told(of, run | each) for each in ({"processes": 0}, {"timeline": "some"}))


# ----------------------------------------------------------------------------------------- the verb


def test_the_verb_prints_it_or_writes_it_once(schemas, here, capsys):
    assert main(["study", "schema", "topology"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schemas["topology"]
    assert main(["study", "schema", "topology", "--out", "machine.json", "-q"]) == 0
    assert "Written: machine.json" in capsys.readouterr().out
    assert json.loads((here / "machine.json").read_text()) == printed
    (here / "machine.json").write_text("mine")
    assert main(["study", "schema", "scenario", "--out", "machine.json"]) == 2
    assert "machine.json" in capsys.readouterr().err
    assert (here / "machine.json").read_text() == "mine"
    assert main(["study", "schema", "--out", "machine.json", "--force"]) == 0
    assert json.loads((here / "machine.json").read_text()) == schemas["scenario"]


@needs_extensions
def test_the_schema_of_studies_needs_what_trains(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "simshuffle.train.run", None)
    assert main(["study", "schema", "study"]) == 2
    assert "pip install 'simshuffle[train]'" in capsys.readouterr().err
