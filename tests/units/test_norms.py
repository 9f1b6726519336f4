"""Networks without batch norm: their sizes by hand, what they normalise, what they refuse, and that
ranks with them are one network with the batch of all."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from simshuffle.errors import InputError
from simshuffle.studies.training.tables import ABSENT
from simshuffle.train.batch_norm import norm_mode
from simshuffle.train.data import Procedural
from simshuffle.train.emulate import train_run
from simshuffle.train.emulation import Emulation
from simshuffle.train.models import Mlp, ResNet, SmallCnn, Vit, WideResNet
from simshuffle.train.residual import norm_2d
from simshuffle.train.run import Run
from simshuffle.train.samples import Samples
from simshuffle.train.shuffling import description
from simshuffle.train.sources import ArraySource
from simshuffle.train.training import Training
from simshuffle.workload.exchange import GlobalShuffle, LocalShuffle

WITHOUT: list[Any] = [
    SmallCnn(kind="small_cnn", width=4, norm="group"),
    ResNet(kind="resnet", norm="group"),
    ResNet(kind="resnet", norm="group", stem_stride=2),
    Vit(kind="vit", patch_size=4, width=12, heads=3),
]
WITH: list[Any] = [
    Mlp(kind="mlp", width=4),
    SmallCnn(kind="small_cnn", width=4),
    ResNet(kind="resnet"),
    WideResNet(kind="wide_resnet", depth=10, widen_factor=1),
]
LOCAL = LocalShuffle(kind="local_shuffle")


def built(record: Any, shape: tuple[int, ...] = (1, 8, 8), classes: int = 4) -> nn.Module:
    torch.manual_seed(5)
    model: nn.Module = record.build(shape, classes)
    return model.double()


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def source(count: int, shape: tuple[int, ...] = (1, 8, 8)) -> ArraySource:
    rng = np.random.default_rng(3)
    inputs = rng.normal(size=(count, *shape)).astype(np.float32)
    return ArraySource(Samples(inputs, rng.integers(0, 4, count)), dtype=torch.float64)


# ------------------------------------------------------------------------------------ what they are


@pytest.mark.parametrize("record", WITHOUT + WITH, ids=lambda r: r.label)
def test_records_know_whether_their_network_has_batch_norm(record):
    found = norm_mode(built(record), "per_rank") != ABSENT
    assert record.has_batch_norm == found == (record in WITH)


def test_labels_say_what_differs_from_the_usual_network():
    assert [record.label for record in WITHOUT] == [
        "small convolutional network, group norm",
        "ResNet-8, group norm",
        "ResNet-8, stem of stride 2, group norm",
        "ViT of 2 blocks",
    ]
    assert Vit(kind="vit", depth=1).label == "ViT of 1 block"
    assert SmallCnn(kind="small_cnn").label == "small convolutional network"
    assert ResNet(kind="resnet").label == "ResNet-8"


@pytest.mark.parametrize("record", WITHOUT, ids=lambda r: r.label)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 12)])
def test_logits_come_from_the_linear_head(record, shape):
    model, features = built(record, shape, 7), []
    assert [name for name, _ in model.named_children()][-1] == "head"
    model.head.register_forward_pre_hook(lambda _layer, given: features.append(given[0]))
    logits = model(torch.randn(5, *shape).double())
    assert logits.shape == (5, 7)
    assert features[0].shape == (5, model.head.in_features)
    torch.testing.assert_close(model.head(features[0]), logits)


def test_group_norm_has_the_parameters_of_batch_norm():
    """A weight and a bias a channel. Small network on 8 x 8 x 1: 36 + 8, 4 to 8 channels: 288 +
    16, 2 x 2 pixels left: (32 + 1) x 4."""
    model = built(WITHOUT[0])
    assert parameters(model) == 36 + 8 + 288 + 16 + 132 == parameters(built(WITH[1]))
    assert parameters(built(WITHOUT[1])) == parameters(built(WITH[2]))
    assert not list(model.buffers())


def test_vit_size_by_hand():
    """On 28 x 28 x 1 with patches of 7: 49 pixels and a bias to 64 numbers; 16 positions; a block
    has queries, keys, values and a projection (64 + 1) x 4 x 64, a perceptron 64 x 256 + 256 + 256
    x 64 + 64, two layer norms of 128; the last one; and 65 x 10 for the head."""
    block = 4 * 65 * 64 + 64 * 256 + 256 + 256 * 64 + 64 + 2 * 128
    expected = 50 * 64 + 16 * 64 + 2 * block + 128 + 650
    assert expected == 104_970
    assert parameters(Vit(kind="vit").build((1, 28, 28), 10)) == expected
    # 3 channels of 12 x 8 pixels in patches of 4: 6 of them; one block of 8 numbers
    small = Vit(kind="vit", patch_size=4, width=8, depth=1, heads=2).build((3, 12, 8), 5)
    assert parameters(small) == 49 * 8 + 6 * 8 + (4 * 72 + 8 * 32 + 32 + 32 * 8 + 8 + 32) + 16 + 45


@pytest.mark.parametrize(
    ("channels", "groups"),
    [(1, 1), (2, 1), (3, 1), (4, 2), (6, 3), (9, 3), (10, 5), (16, 8), (32, 8), (34, 2), (64, 8)],
)
def test_groups_are_at_most_eight_of_at_least_two_channels(channels, groups):
    layer = norm_2d("group", channels)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


# ----------------------------------------------------------------------------- what they make of it


def test_group_norm_is_that_of_the_paper():
    """Wu and He 2018, equations 1 to 7: mean and variance over the pixels of a group's channels, of
    each sample alone; epsilon 1e-5."""
    x = torch.randn(3, 6, 4, 5, dtype=torch.float64)
    groups = x.reshape(3, 3, 2 * 4 * 5)
    mean = groups.mean(-1, keepdim=True)
    variance = ((groups - mean) ** 2).mean(-1, keepdim=True)
    expected = ((groups - mean) / (variance + 1e-5).sqrt()).reshape(x.shape)
    torch.testing.assert_close(norm_2d("group", 6).double()(x), expected)


def test_a_vit_is_that_of_the_paper():
    """Dosovitskiy et al. 2020, equations 1 to 4, with the mean over patches in place of the class
    token; worked out step by step with plain products."""
    width, heads, patch = 12, 3, 4
    model = built(Vit(kind="vit", patch_size=patch, width=width, heads=heads), (2, 8, 12))
    images = torch.randn(3, 2, 8, 12, dtype=torch.float64)
    # patches row by row, each channel by channel
    patches = [
        images[:, :, y : y + patch, x : x + patch].reshape(3, -1) for y in (0, 4) for x in (0, 4, 8)
    ]
    z = torch.stack(patches, 1) @ model.patches.weight.reshape(width, -1).T + model.patches.bias
    z = z + model.positions
    for block in model.blocks:
        attention, y = (
            block.self_attn,
            F.layer_norm(z, (width,), block.norm1.weight, block.norm1.bias),
        )
        q, k, v = (y @ attention.in_proj_weight.T + attention.in_proj_bias).split(width, -1)
        out = []
        for head in range(heads):
            of = slice(head * width // heads, (head + 1) * width // heads)
            scores = q[..., of] @ k[..., of].transpose(1, 2) / (width / heads) ** 0.5
            out.append(scores.softmax(-1) @ v[..., of])
        z = z + torch.cat(out, -1) @ attention.out_proj.weight.T + attention.out_proj.bias
        y = F.layer_norm(z, (width,), block.norm2.weight, block.norm2.bias)
        y = F.gelu(y @ block.linear1.weight.T + block.linear1.bias)
        z = z + y @ block.linear2.weight.T + block.linear2.bias
    z = F.layer_norm(z, (width,), model.norm.weight, model.norm.bias).mean(1)
    expected = z @ model.head.weight.T + model.head.bias
    torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-12)
    model.eval()
    with torch.no_grad():  # torch takes other kernels here
        torch.testing.assert_close(model(images), expected, rtol=0, atol=1e-12)


def test_blocks_of_a_vit_begin_with_weights_of_their_own():
    first, second = built(WITHOUT[3]).blocks
    assert not torch.equal(first.linear1.weight, second.linear1.weight)


def test_a_stem_of_stride_2_halves_all_that_follows():
    shapes: list[list[torch.Size]] = []
    for stride in (1, 2):
        model = built(ResNet(kind="resnet", stem_stride=stride), (1, 28, 28))
        seen: list[torch.Size] = []
        for layer in (model.conv, *model.blocks):
            layer.register_forward_hook(
                lambda _layer, _given, out, to=seen: to.append(out.shape[2:])
            )
        model(torch.randn(2, 1, 28, 28).double())
        shapes.append(seen)
    assert [size[0] for size in shapes[0]] == [28, 28, 14, 7]
    assert [size[0] for size in shapes[1]] == [14, 14, 7, 4]


# ------------------------------------------------------------------------------------ as many ranks


@pytest.mark.parametrize("record", WITHOUT, ids=lambda r: r.label)
def test_a_sample_is_normalised_whoever_is_beside_it(record):
    model = built(record).train()
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64)
    other = torch.cat([x[:2], 100 + torch.randn(4, 1, 8, 8, dtype=torch.float64)])
    torch.testing.assert_close(model(x)[:2], model(other)[:2], rtol=0, atol=1e-10)


@pytest.mark.parametrize("record", WITHOUT, ids=lambda r: r.label)
def test_four_ranks_are_one_with_the_batch_of_all(record):
    """The same 16 samples in each of three iterations, on one rank or dealt out to four, each with
    its own batch norm if there were one."""
    data, batches = source(48), np.random.default_rng(0).permutation(48).reshape(3, 16)
    after = []
    for ranks in (1, 4):
        training = Training(
            local_batch_size=16 // ranks, momentum=0.9, dtype="float64", batch_norm="per_rank"
        )
        run = Emulation(built(record), data, strategy=LOCAL, world_size=ranks, training=training)
        assert not run.network.statistics_by_rank
        for batch in batches:
            run.step(batch.reshape(-1, ranks), 0.1)
        after.append(run.network.model.state_dict())
    for name, value in after[0].items():
        torch.testing.assert_close(after[1][name], value, rtol=0, atol=1e-12)
    assert not torch.equal(after[0]["head.weight"], built(record).head.weight)


@pytest.mark.parametrize("record", [WITHOUT[0], WITHOUT[3], WITH[1]], ids=lambda r: r.label)
def test_a_run_says_whether_its_ranks_rest_on_samples(record):
    run = Run(
        data=Procedural(kind="procedural", num_samples=32, test_samples=16, classes=4),
        model=record,
        exchange=GlobalShuffle(kind="global_shuffle"),
        world_size=4,
        training=Training(epochs=1, local_batch_size=4, statistics=["own", "pooled"]),
    )
    done, told = train_run(run, device="cpu"), description(run, "", "global")
    has = record in WITH
    assert (done.description["effective_samples"] is not None) == has
    assert told["batch_norm"] == ("per_rank" if has else ABSENT)
    if not has:
        last = done.epochs.iloc[-1]
        assert last["own_accuracy"] == last["pooled_accuracy"]


# ------------------------------------------------------------------------------ what they cannot be


def test_patches_that_do_not_fit_are_refused():
    with pytest.raises(
        InputError,
        match=r"model.patch_size: must divide both sides of the images, 28 x 21 pixels; got 4\."
        r" Use 1 or 7\.",
    ):
        Vit(kind="vit", patch_size=4).build((1, 28, 21), 10)
    with pytest.raises(InputError, match="vit takes images"):
        Vit(kind="vit").build((784,), 10)
