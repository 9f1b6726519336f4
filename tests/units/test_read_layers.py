"""Reading a read_network of torch layer by layer, against the shipped lists."""

import warnings

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.workload.layers import ModelLayer, as_written, layer_list, read_network
from simshuffle.workload.layers.transformer import LOSS_VALUES

torch = pytest.importorskip("torch")
nn = torch.nn

from simshuffle.train import layers, read_layers  # noqa: E402
from tests.networks import GPT, NETWORKS, ViT  # noqa: E402


@pytest.fixture(scope="module", params=NETWORKS)
def both(request):
    """A read_network read from torch, and the shipped one."""
    build, shape = NETWORKS[request.param]
    with torch.device("meta"):
        module = build()
    dtype = torch.long if len(shape) == 1 else torch.float
    example = torch.empty(2, *shape, dtype=dtype, device="meta")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that torch pads a copy for an even kernel
        return read_layers(module, example, request.param), layer_list(request.param)


def test_a_network_of_torch_is_the_shipped_list(both):
    """Two independent counts: parameters, operations, kernels and strides of every layer that
    computes, and what is kept in all."""
    read, shipped = both

    def working(layers):
        keys = ("kind", "parameters", "flops", "kernel", "stride", "heads")
        return [tuple(getattr(each, key) for key in keys) for each in layers.layers if each.flops]

    assert working(read) == working(shipped)
    assert read.parameters == shipped.parameters
    assert read.gradient_parts == shipped.gradient_parts
    loss = LOSS_VALUES * 50257 * 1024 if shipped.name == "gpt2_small" else 0
    copies = 0.01 if shipped.name == "cosmoflow" else 1e-12  # padded for the even kernel
    assert read.saved == pytest.approx(shipped.saved - loss, rel=copies)


def test_what_is_read_is_written_and_read_back(both):
    read, _ = both
    written = [ModelLayer.model_validate(layer) for layer in as_written(read)]
    assert read_network(read.name, written) == read


def test_tensor_parallelism_splits_what_the_shipped_list_splits():
    for module, example, name in (
        (GPT(1, 16, 2, 8, 30), torch.zeros(2, 8, dtype=torch.long), "gpt2_small"),
        (ViT(1, 16, 2, 32), torch.zeros(2, 3, 224, 224), "vit_b_16"),
    ):
        read = read_layers(module, example).layers
        shipped = layer_list(name).layers
        block = [each.tensor for each in shipped if each.flops][-5:]
        assert [each.tensor for each in read if each.flops][-5:] == block


def test_reading_leaves_the_module_as_it_was():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = {key: value.clone() for key, value in module.state_dict().items()}
    read_layers(module, torch.ones(2, 3, 8, 8))
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert not module[0]._forward_hooks
    assert module(torch.ones(2, 3, 8, 8)).device.type == "cpu"


def test_sizes_do_not_depend_on_the_batch():
    module = ViT(1, 16, 2, 32)
    assert read_layers(module, torch.zeros(1, 3, 224, 224)) == read_layers(
        module, torch.zeros(5, 3, 224, 224)
    )


def test_attention_over_another_sequence():
    """Queries of 6 tokens, keys and values of 4, 2 heads, 8 features: 4 x 6 x 4 x 8 operations."""

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, queries, keys):
            return self.attention(queries, keys, keys)[0]

    read = read_layers(Cross(), (torch.zeros(3, 6, 8), torch.zeros(3, 4, 8)))
    (attention,) = [each for each in read.layers if each.kind == "attention"]
    assert (attention.flops, attention.heads, attention.output) == (4 * 6 * 4 * 8, 2, (8, 6))
    assert read.parameters == 4 * 8 * 8 + 4 * 8


def test_a_gate_and_a_scale():
    """A product of two outputs is a layer; a factor for each channel belongs to what it scales."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return self.scale * (self.one(x) * torch.sigmoid(self.other(x)))

    kinds = [
        (each.kind, each.parameters) for each in read_layers(Gated(), torch.zeros(2, 4)).layers
    ]
    assert kinds == [("linear", 16), ("linear", 16), ("activation", 0), ("other", 4)]


def test_shares_of_seconds_follow_the_same_rule():
    read_network = layer_list("resnet50")
    shares = read_network.shares
    assert shares.shape == (len(read_network),)
    assert shares.sum() == pytest.approx(1.0)
    assert np.array_equal(read_network.seconds(0.3), 0.3 * shares)
    work = np.array([each.flops for each in read_network.layers])
    root = np.sqrt(work)
    assert shares == pytest.approx(0.65 * work / work.sum() + 0.35 * root / root.sum())


@pytest.mark.parametrize(
    ("module", "example", "rule"),
    [
        (nn.Linear(3, 2), torch.zeros(2, 4), "cannot take the example"),
        (nn.Flatten(), torch.zeros(2, 4), "has nothing to train"),
        (nn.Embedding(3, 2), torch.zeros(2, 4), "cannot take the example"),
        (nn.Conv2d(3, 4, 3), torch.zeros(2, 3, 2, 2), "cannot take the example"),
    ],
)
def test_a_module_that_cannot_be_read_is_refused(module, example, rule):
    for read in (layers, read_layers):
        with pytest.raises(InputError, match=rule):
            read(module, example)
