"""``workload.model.layers`` as a name, a list of layers, or what is known of them."""

import re
import warnings
from pathlib import Path

import pytest
import yaml

from simshuffle.errors import ScenarioError
from simshuffle.job.plan import findings
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.studies.oracle.request import with_exact_gradients
from simshuffle.workload.layers import layer_list

PAGE = Path(__file__).parents[2] / "docs" / "model-parallelism.md"
KEY = "workload.model.layers"
WIDE = [
    {"name": "a", "kind": "linear", "input": [8], "output": [4], "parameters": 36, "flops": 64},
    {"name": "b", "kind": "activation"},
    {"name": "c", "kind": "linear", "output": [2], "parameters": 10, "flops": 16},
]


def load(layers, parameters=46):
    return load_scenario(
        "quickstart", {KEY: layers, "workload.model.gradient_size": f"{4 * parameters} B"}
    )


def changed(number, **values):
    layers = [dict(layer) for layer in WIDE]
    layers[number] |= values
    return layers


def test_what_is_left_out_follows():
    model = load(WIDE).workload.model
    a, b, c = model.layer_list.layers
    assert [each.predecessors for each in (a, b, c)] == [("input",), ("a",), ("b",)]
    assert [each.output for each in (a, b, c)] == [(4,), (4,), (2,)]
    assert [each.saved for each in (a, b, c)] == [8, 4, 0]  # the ReLU's output is c's input
    assert model.gradient_arrival[:, 0].tolist() == pytest.approx([40, 144])
    assert load(changed(2, saved=5)).workload.model.layer_list.saved == 17


def test_a_list_is_read_back_as_it_was_written(tmp_path):
    scenario, path = load(WIDE), tmp_path / "resolved.yaml"
    path.write_text(yaml.safe_dump(scenario.to_dict()))
    assert load_scenario(str(path)).workload.model == scenario.workload.model


def test_the_example_of_the_page_is_a_network():
    (text,) = re.findall(r"^    layers:\n(?:      - .*\n)+", PAGE.read_text(), re.MULTILINE)
    layers = yaml.safe_load(text)["layers"]
    network = load(layers, sum(each.get("parameters", 0) for each in layers)).workload.model
    conv = network.layer_list.layers[2]
    assert (conv.parameters, conv.flops) == (16 * 16 * 9 + 16, 2 * 16 * 16 * 9 * 32 * 32)


def test_a_name_stands_for_the_shipped_list():
    model = load_scenario("quickstart").workload.model
    assert model.layers == "resnet50"
    assert model.layer_list is layer_list("resnet50")
    # only what is known of the layers: no shapes
    known = load({"parameters": [40, 6], "backward": [1, 2]}).workload.model
    assert known.layer_list is None
    assert known.gradient_arrival[:, 1].tolist() == pytest.approx([2 / 3, 1])
    assert load(None).workload.model.layer_list is None


@pytest.mark.parametrize(
    ("layers", "path", "texts"),
    [
        ("resnet5", "", ["no such list of layers", "Did you mean 'resnet50'"]),
        ([], "", ["at least one layer"]),
        (changed(0, input=None), ".0.input", ["shape of a sample"]),
        (changed(2, input=[5]), ".2.input", ["'c' takes", "b gives", "[4]", "got [5]"]),
        (changed(2, after=["d"]), ".2.after", ["'c' must come after", "Known: input, a, b"]),
        (changed(2, after=["c"]), ".2.after", ["got 'c'"]),
        (changed(1, name="a"), ".1.name", ["unique"]),
        (changed(1, kind="add", after=["input", "a"]), ".1.after", ["'b' adds", "[8], [4]"]),
        (changed(2, kernel=[3]), ".2.kernel", ["each of the 0 extents"]),
        (changed(0, output=[0]), ".0.output.0", ["greater than or equal to 1"]),
        (changed(0, kind="conf"), ".0.kind", ["'conv'"]),
        (changed(0, flop=3), ".0.flop", ["not a known key", "Did you mean 'flops'"]),
        (changed(0, parameters="36"), ".0.parameters", ["whole number"]),
        ([each | {"parameters": 0} for each in WIDE], "", ["something to train"]),
        (3, "", ["must be a list"]),
        ([3], ".0", ["must be a mapping"]),
        ({"parameters": [1], "backwards": [1]}, ".backwards", ["Did you mean 'backward'"]),
    ],
)
def test_what_is_no_network_is_refused(layers, path, texts):
    with pytest.raises(ScenarioError) as raised:
        load(layers)
    assert f"  - {KEY}{path}: " in str(raised.value)
    for text in texts:
        assert text in str(raised.value)


def test_layers_must_add_up_to_the_gradient():
    with pytest.raises(ScenarioError, match="have 46 parameters, which do not add up"):
        load(WIDE, 44)
    assert load_scenario(
        "quickstart", {KEY: "resnet50", "workload.model.gradient_size": "51114064 B"}
    )


@pytest.mark.parametrize(
    ("size", "is_noted"), [("1.22 GB", False), ("1.21 GB", True), ("1.2 GB", True)]
)
def test_a_gradient_size_is_rounded_to_the_parameters_of_the_layers(size, is_noted):
    """ViT-L/16 has 304,326,632 parameters of 4 B: 1.2173 GB, which three digits miss by 0.2 %."""
    values = {KEY: "vit_l_16", "workload.model.gradient_size": size, "sweep": {}}
    scenario = load_scenario("quickstart", values)
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        exact = with_exact_gradients(scenario).workload.model.gradient_size
    assert exact == 304_326_632 * 4
    assert [("1.217 GB" in str(each.message)) for each in noted] == [True] * is_noted
    found = {problem.path: problem for problem in findings.warnings(scenario)}
    assert ("workload.model.gradient_size" in found) == is_noted
