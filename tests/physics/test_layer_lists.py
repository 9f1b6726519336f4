"""Networks as lists of layers: published counts, and sums by hand.

Parameters are as torchvision, pytorch-image-models and the authors' own graphs have them, to the
last one. Operations are the multiplications that torchvision and the papers list.
"""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simshuffle.errors import InputError
from simshuffle.job.scenario.model import ModelProfile
from simshuffle.spec.library import catalog_entry, catalog_names
from simshuffle.workload.layers import (
    INPUT,
    SHIPPED,
    Layer,
    LayerList,
    ModelLayer,
    layer_list,
    read_network,
)
from simshuffle.workload.layers.build import Builder
from simshuffle.workload.layers.transformer import LOSS_VALUES, gpt, transformer_block
from simshuffle.workload.parallelism.cutting import crossings

PARAMETERS = {
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "resnext50": 25_028_904,
    "resnet50_chainer": 25_557_096,
    "vgg16": 138_357_544,
    "vgg16_chainer": 169_814_824,
    "alexnet": 61_100_840,
    "alexnet_chainer": 62_378_344,
    "wrn_28_10": 36_536_884,
    "inception_v4": 41_296_516,
    "inception_v4_imagenet": 42_679_816,
    "densenet161": 28_681_000,
    "deepcam": 56_454_720,
    "cosmoflow": 5_597_604,
    "gpt2_small": 124_439_808,
    "vit_b_16": 86_567_656,
    "vit_l_16": 304_326_632,
    "vit_h_14": 632_045_800,
}
"""Published, or counted by others from the authors' code."""
MULTIPLICATIONS = {
    "resnet50": (4.089, 0.001),
    "resnet101": (7.801, 0.001),
    "resnet152": (11.514, 0.001),
    "resnext50": (4.230, 0.001),
    "vgg16": (15.47, 0.001),
    "alexnet": (0.714, 0.001),
    "wrn_28_10": (5.243, 0.001),
    "inception_v4_imagenet": (12.28, 0.005),
    "densenet161": (7.728, 0.001),
    "deepcam": (1966 / 6, 0.001),
    "vit_b_16": (17.56, 0.002),
    "vit_l_16": (61.55, 0.002),
    "vit_h_14": (167.295, 0.002),
}
"""10^9 of a forward pass, as listed by torchvision (ViT: with the attention's), by
pytorch-image-models, and in the catalog's sources; and how near."""
SIZES = {"1.3b": 1.3, "2.7b": 2.7, "6.7b": 6.7, "13b": 13.0, "175b": 175.0}


def network(name):
    return layer_list(name)


@pytest.mark.parametrize("name", PARAMETERS)
def test_published_parameters_to_the_last_one(name):
    assert network(name).parameters == PARAMETERS[name]


INPUTS = {
    **dict.fromkeys(("resnet50", "vgg16", "alexnet", "densenet161"), (3, 224, 224)),
    **dict.fromkeys(("vit_b_16", "vit_l_16"), (3, 224, 224)),
    "vgg16_chainer": (3, 226, 226),
    "alexnet_chainer": (3, 227, 227),
    "wrn_28_10": (3, 32, 32),
    "inception_v4": (3, 32, 32),
    "inception_v4_imagenet": (3, 299, 299),
    "deepcam": (16, 768, 1152),
    "cosmoflow": (4, 128, 128, 128),
    "cosmoflow_512": (4, 512, 512, 512),
}


@pytest.mark.parametrize("name", INPUTS)
def test_a_sample_has_the_published_extents(name):
    assert network(name).input == INPUTS[name]


@pytest.mark.parametrize(
    ("name", "extents"),
    [
        # 299, 149, 147, 73, 71 and 35 pixels behind windows of 3, then reduced by windows of 3
        ("inception_v4_imagenet", {"a0.": 35, "b0.": 17, "c0.": 8}),
        # of 32 the first convolution takes 2; the last reduction is padded
        ("inception_v4", {"a0.": 30, "b0.": 14, "c0.": 7}),
        # halved by the first convolution and the pooling, and between stages
        ("resnet50", {"stage1.": 56, "stage2.block1": 28, "stage4.block1": 7}),
        ("resnet50_chainer", {"stage1.": 56, "stage2.block1": 28, "stage4.block1": 7}),
        ("wrn_28_10", {"stage1.": 32, "stage2.block1": 16, "stage3.block1": 8}),
    ],
)
def test_extents_behind_reductions(name, extents):
    for start, pixels in extents.items():
        outputs = [each.output for each in network(name).layers if each.name.startswith(start)]
        assert outputs and {output[1:] for output in outputs} == {(pixels, pixels)}, start


@pytest.mark.parametrize("name", MULTIPLICATIONS)
def test_published_operations(name):
    published, within = MULTIPLICATIONS[name]
    assert network(name).flops / 2e9 == pytest.approx(published, rel=within)


@pytest.mark.parametrize("size", SIZES)
def test_gpt_has_the_size_of_its_name(size):
    assert network(f"gpt_{size}").parameters / 1e9 == pytest.approx(SIZES[size], rel=0.02)


def test_operations_of_gpt_are_those_of_its_authors():
    """Narayanan et al., arXiv 2104.04473, equation 3: 96 s L h^2 (1 + s / 6 h + V / 16 L h) for a
    sequence with recomputation, a quarter of it forward but for the logits, which are not
    recomputed: 2 s h V forward."""
    s, blocks, h, words = 2048, 24, 2048, 51200
    forward = 24 * s * blocks * h**2 * (1 + s / (6 * h)) + 2 * s * h * words
    assert network("gpt_1.3b").flops == pytest.approx(forward, rel=1e-12)


def test_a_transformer_block_keeps_what_korthikanti_counts():
    """Korthikanti et al., arXiv 2205.05198, equation 1: s b h (34 + 5 a s / h) bytes of a block, at
    2 B a value and 1 B of a mask; equation 2 and the text below it outside of blocks: a dropout's
    mask, the input of the last norm and of the logits, and the loss in 4 B."""
    s, h, a, words = 64, 32, 4, 100
    net = Builder("block", (h, s))
    transformer_block(net, a, 4 * h, dropout=True)
    assert 2 * net.finish().saved == pytest.approx(s * h * (34 + 5 * a * s / h), rel=1e-12)
    whole = gpt("two", blocks=2, width=h, heads=a, tokens=s, words=words)
    outside = s * h + 2 * s * h + 2 * s * h + 4 * s * words
    assert LOSS_VALUES * 2 == 4
    assert 2 * whole.saved == pytest.approx(2 * s * h * (34 + 5 * a * s / h) + outside, rel=1e-12)


def test_what_a_small_network_keeps_by_hand():
    """A convolution keeps its input, a norm the convolution's output, a ReLU its own, which the
    next convolution and the shortcut take too; a pooling keeps that and places as two values."""
    net = Builder("small", (3, 8, 8))
    net.conv(4)
    net.norm()
    start = net.relu()
    net.add(net.conv(4), start)
    net.pool(2, 2)
    net.linear(5)
    image, inner, pooled = 3 * 64, 4 * 64, 4 * 16
    kept = [each.saved for each in net.finish().layers]
    assert kept == [image, inner, inner, 0, 0, inner + 2 * pooled, pooled]


def test_the_reach_of_a_dilated_convolution():
    """Three taps at a distance of 6 reach over 13 pixels."""
    pyramid = [each for each in network("deepcam").layers if each.name.startswith("pyramid.conv")]
    assert [each.kernel for each in pyramid[:4]] == [(1, 1), (13, 13), (25, 25), (37, 37)]
    assert {each.output for each in pyramid[:4]} == {(256, 48, 72)}


def test_paradl_trains_its_own_cosmoflow():
    """Convolutions by hand, without bias: 4 x 16 x 27 + ... + 256 x 128 x 8; 512^3 voxels end as
    128 x 5^3 values, 256^3 as 128 x 3^3, in front of linear layers of 2048, 256 and 4."""
    for name, end in (("cosmoflow_256", 3), ("cosmoflow_512", 5)):
        layers = network(name)
        taps = ((4, 16, 3), (16, 32, 3), (32, 64, 3), (64, 128, 3))
        taps += ((128, 256, 2), (256, 256, 2), (256, 128, 2))
        convolutions = sum(a * b * k**3 for a, b, k in taps)
        linear = (128 * end**3 + 1) * 2048 + 2049 * 256 + 257 * 4
        assert layers.parameters == convolutions + linear


# --------------------------------------------------------------------------------- every network


@pytest.mark.parametrize("name", SHIPPED)
def test_shapes_chain_and_groups_hold_all_parameters(name):
    layers = network(name)
    parameters, shares = layers.gradient_parts
    assert sum(parameters) == layers.parameters
    assert sum(shares) == pytest.approx(1.0, abs=1e-3)
    assert layers.shares.sum() == pytest.approx(1.0)
    crossed, _ = crossings(layers)
    assert crossed[0] == math.prod(layers.input)
    assert crossed[-1] == 0


@pytest.mark.parametrize("name", catalog_names("models"))
def test_every_model_of_the_catalog_names_its_own_list(name):
    model = catalog_entry("models", name)
    assert model["layers"] == name
    assert model["num_parameters"] == network(name).parameters


def test_an_unknown_network_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'resnet152'"):
        layer_list("resnet15")


# ------------------------------------------------------------------------------------- random ones


@st.composite
def chains(draw, fewest=1):
    """Layers of 2 x 2 pixels that take one or two of those before them."""
    layers, shapes = [], {INPUT: (draw(st.integers(1, 4)), 2, 2)}
    for number in range(draw(st.integers(fewest, 12))):
        after = draw(st.lists(st.sampled_from([*shapes]), min_size=1, max_size=2, unique=True))
        channels = sum(shapes[each][0] for each in after)
        output = (draw(st.integers(1, 4)), 2, 2)
        layer = Layer(f"l{number}", "conv", tuple(after), (channels, 2, 2), output)
        layers.append(layer)
        shapes[layer.name] = output
    return LayerList("random", tuple(layers), shapes[INPUT])


@given(chains())
@settings(max_examples=60, deadline=None)
def test_what_crosses_a_cut_is_what_is_taken_beyond_it(layers):
    """Counted the other way round, output by output: the last that takes it stands beyond."""
    crossed, _ = crossings(layers)
    last = {INPUT: -1}
    for number, layer in enumerate(layers.layers):
        last |= dict.fromkeys(layer.predecessors, number)
    sizes = [(INPUT, -1, math.prod(layers.input))]
    sizes += [(each.name, k, each.outputs) for k, each in enumerate(layers.layers)]
    for cut in range(len(layers) + 1):
        expected = sum(size for name, k, size in sizes if k < cut <= last.get(name, -1))
        assert crossed[cut] == expected


@given(chains(2), st.data())
@settings(max_examples=40, deadline=None)
def test_a_layer_that_takes_another_shape_is_named(layers, data):
    number = data.draw(st.integers(1, len(layers) - 1))
    wrong = layers.layers[number]
    wrong = Layer(wrong.name, "conv", wrong.predecessors, (wrong.input[0] + 1, 2, 2), wrong.output)
    changed = (*layers.layers[:number], wrong, *layers.layers[number + 1 :])
    written = [
        ModelLayer(
            name=each.name,
            kind=each.kind,
            after=list(each.predecessors),
            input=list(each.input),
            output=list(each.output),
            parameters=1,
        )
        for each in changed
    ]
    with pytest.raises(InputError) as refused:
        read_network("wrong", written)
    (problem,) = refused.value.problems
    right = str(list(layers.layers[number].input))
    assert problem.path == f"{number}.input"
    assert wrong.name in problem.rule
    assert problem.value == str(list(wrong.input))
    assert right in problem.remedy


def test_attention_is_that_of_the_layer_with_most_tokens():
    """A vision transformer of two resolutions: 64 tokens in one layer, 16 in the other."""
    layers = [
        SimpleNamespace(heads=heads, flops=flops, output=(8, tokens))
        for heads, flops, tokens in ((4, 3.0, 64), (4, 1.0, 16), (0, 4.0, 256))
    ]
    network = SimpleNamespace(layers=layers, flops=8.0)
    model = SimpleNamespace(layer_list=network)
    assert ModelProfile.attention.fget(model) == (64, 0.5)
