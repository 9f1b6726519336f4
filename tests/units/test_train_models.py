"""The networks: their sizes against closed forms and published numbers, what they take, and that
their heads can be found."""

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from simshuffle.errors import InputError
from simshuffle.train.models import Mlp, Model, ResNet, SmallCnn, WideResNet
from simshuffle.train.training import Training

SMALL: list[Any] = [
    Mlp(kind="mlp", width=16),
    SmallCnn(kind="small_cnn", width=4),
    ResNet(kind="resnet", depth=8),
    WideResNet(kind="wide_resnet", depth=10, widen_factor=1),
]


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def mlp_parameters(inputs: int, width: int, layers: int, classes: int) -> int:
    """Linear maps without bias, two numbers a unit for batch norm, and the head."""
    return inputs * width + (layers - 1) * width**2 + layers * 2 * width + (width + 1) * classes


def resnet_parameters(depth: int, channels: int, classes: int) -> int:
    """n blocks of two 3 x 3 convolutions in each stage, of which the first of a stage begins with
    half the channels."""
    n = (depth - 2) // 6
    first = 9 * channels * 16 + 2 * 16
    stages = sum(
        (2 * n - 1) * 9 * c**2 + 9 * c * before + 2 * n * 2 * c
        for before, c in [(16, 16), (16, 32), (32, 64)]
    )
    return first + stages + 65 * classes


def wide_resnet_parameters(depth: int, k: int, channels: int, classes: int) -> int:
    """As above, widened; batch norm before each convolution; a 1 x 1 convolution where the channels
    change; batch norm at the end."""
    n = (depth - 4) // 6
    total, before = 9 * channels * 16, 16
    for c in (16 * k, 32 * k, 64 * k):
        total += 9 * before * c + (2 * n - 1) * 9 * c**2 + (before * c if before != c else 0)
        total += 2 * before + (2 * n - 1) * 2 * c
        before = c
    return total + 2 * before + (before + 1) * classes


@pytest.mark.parametrize(
    ("inputs", "width", "layers"),
    [((64,), 128, 2), ((1, 8, 8), 128, 2), ((5,), 7, 1), ((3, 16, 16), 32, 4)],
)
def test_mlp_size(inputs, width, layers):
    size = 1
    for side in inputs:
        size *= side
    assert parameters(
        Mlp(kind="mlp", width=width, layers=layers).build(inputs, 10)
    ) == mlp_parameters(size, width, layers, 10)


def test_small_cnn_size():
    """16 x 16 x 3: 3 -> 16 -> 32 channels, 4 x 4 pixels left."""
    expected = 9 * 3 * 16 + 2 * 16 + 9 * 16 * 32 + 2 * 32 + (32 * 16 + 1) * 20
    assert parameters(SmallCnn(kind="small_cnn").build((3, 16, 16), 20)) == expected


@pytest.mark.parametrize(
    ("depth", "published"), [(20, 0.27e6), (32, 0.46e6), (44, 0.66e6), (56, 0.85e6), (110, 1.7e6)]
)
def test_resnet_size(depth, published):
    """He et al. 2015, table 6: millions of parameters, rounded to two digits."""
    found = parameters(ResNet(kind="resnet", depth=depth).build((3, 32, 32), 10))
    assert found == resnet_parameters(depth, 3, 10)
    assert found == pytest.approx(published, rel=0.02)


def test_resnet_20_by_hand():
    """464 for the first layer, six convolutions and batch norms in each of three stages, 650 for
    the head."""
    stages = 6 * (2304 + 32) + 4608 + 5 * 9216 + 6 * 64 + 18432 + 5 * 36864 + 6 * 128
    assert (
        parameters(ResNet(kind="resnet", depth=20).build((3, 32, 32), 10))
        == 464 + stages + 650
        == 269722
    )


@pytest.mark.parametrize(
    ("depth", "k", "classes", "published"),
    [(40, 1, 10, 0.6e6), (16, 4, 10, 2.8e6), (28, 10, 10, 36.5e6), (28, 10, 100, 36.5e6)],
)
def test_wide_resnet_size(depth, k, classes, published):
    """Zagoruyko and Komodakis 2016, table 4: millions of parameters, rounded; counted without
    drawing weights."""
    with torch.device("meta"):
        found = parameters(
            WideResNet(kind="wide_resnet", depth=depth, widen_factor=k).build((3, 32, 32), classes)
        )
    assert found == wide_resnet_parameters(depth, k, 3, classes)
    assert found == pytest.approx(published, rel=0.07 if published < 1e6 else 0.02)


@pytest.mark.parametrize("record", SMALL, ids=lambda r: r.kind)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 17, 12)])
def test_logits_come_from_the_linear_head(record, shape):
    """The head's input is the features: one row a sample; its output the logits."""
    model = record.build(shape, 7)
    assert isinstance(model.head, nn.Linear)
    assert [name for name, _ in model.named_children()][-1] == "head"
    features = []
    model.head.register_forward_pre_hook(lambda _layer, given: features.append(given[0]))
    logits = model(torch.randn(4, *shape))
    assert logits.shape == (4, 7)
    assert features[0].shape == (4, model.head.in_features)
    torch.testing.assert_close(model.head(features[0]), logits)
    norms = [type(m) for m in model.modules() if "BatchNorm" in type(m).__name__]
    assert set(norms) <= {nn.BatchNorm1d, nn.BatchNorm2d}
    assert norms


@pytest.mark.parametrize("record", SMALL, ids=lambda r: r.kind)
def test_the_same_seed_gives_the_same_weights(record):
    states = []
    for _ in range(2):
        torch.manual_seed(4)
        states.append(record.build((3, 8, 8), 5).state_dict())
    assert all(torch.equal(states[0][name], value) for name, value in states[1].items())


@pytest.mark.parametrize("record", SMALL[1:], ids=lambda r: r.kind)
@pytest.mark.parametrize("shape", [(64,), (3, 7, 8), (3, 8, 8, 8)])
def test_convolutions_refuse_what_is_no_image(record, shape):
    with pytest.raises(InputError, match=rf"{record.kind} takes images .* at least 8 x 8"):
        record.build(shape, 5)


@pytest.mark.parametrize(
    ("raw", "rule"),
    [
        ({"kind": "resnet", "depth": 18}, "must be 6 n \\+ 2"),
        ({"kind": "wide_resnet", "depth": 20}, "must be 6 n \\+ 4"),
        ({"kind": "mlp", "widht": 3}, "Extra inputs"),
        ({"kind": "transformer"}, "does not match any of the expected tags"),
    ],
)
def test_bad_records_are_refused(raw, rule):
    with pytest.raises(ValidationError, match=rule):
        TypeAdapter(Model).validate_python(raw)


def test_a_basic_block_is_that_of_the_paper():
    """Second stage's first block: every second pixel of the input, zeros in the new channels, plus
    the residual, through ReLU."""
    block = ResNet(kind="resnet", depth=8).build((3, 8, 8), 5).blocks[1].eval()
    x = torch.rand(2, 16, 8, 8)
    inner = block.norm2(block.conv2(torch.relu(block.norm1(block.conv1(x)))))
    shortcut = torch.cat([x[:, :, ::2, ::2], torch.zeros(2, 16, 4, 4)], 1)
    torch.testing.assert_close(block(x), torch.relu(inner + shortcut))


@pytest.mark.parametrize(
    ("scaling", "expected"), [("linear", 0.1 * 4), ("sqrt", 0.1 * 2), ("none", 0.1)]
)
def test_the_peak_learning_rate_follows_the_global_batch(scaling, expected):
    """16 ranks of 64 samples beside a reference of 256: a batch four times as large."""
    training = Training(
        learning_rate=0.1,
        learning_rate_scaling=scaling,
        local_batch_size=64,
        reference_batch_size=256,
    )
    assert training.peak_learning_rate(16) == pytest.approx(expected)
