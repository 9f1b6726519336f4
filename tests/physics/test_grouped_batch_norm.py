"""Batch norm by rank against its definition: one ordinary batch norm for each rank, run in a plain
loop."""

import copy

import pytest
import torch
from torch import nn

from simshuffle.errors import InputError
from simshuffle.train.batch_norm import (
    apply_mode,
    batch_norm_layers,
    group_by_rank,
    ordinary_copy,
    pool_statistics,
    rectify_norm,
    scale_and_shift_only,
)
from simshuffle.train.rank_kernels import supports_kernels

RANKS, LOCAL, CHANNELS = 3, 4, 5
LAYERS = {
    "1d": (nn.BatchNorm1d, ()),
    "1d with length": (nn.BatchNorm1d, (6,)),
    "2d": (nn.BatchNorm2d, (3, 2)),
    # more numbers than a compiled kernel takes together
    "2d, channels last": (nn.BatchNorm2d, (13, 9)),
    "3d": (nn.BatchNorm3d, (2, 3, 2)),
}
VARIANTS = {
    "as by default": {},
    "slow": {"momentum": 0.01, "eps": 1e-3},
    "cumulative": {"momentum": None},
    "without scale": {"affine": False},
    "no running statistics": {"track_running_stats": False},
}


pytestmark = pytest.mark.usefixtures("one_thread")


def by_loop(layers: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    """Row j M + r is of rank r: ``layers[r]`` gets the rows of rank r."""
    out = torch.empty_like(x)
    for rank, layer in enumerate(layers):
        out[rank :: len(layers)] = layer(x[rank :: len(layers)])
    return out


def pair(kind: str, variant: str) -> tuple[nn.Module, list[nn.Module], tuple[int, ...]]:
    """A layer by rank, and an ordinary one for each rank, with the same random weights; and the
    shape of a batch."""
    make, spatial = LAYERS[kind]
    layer = make(CHANNELS, dtype=torch.float64, **VARIANTS[variant])
    if layer.weight is not None:
        nn.init.normal_(layer.weight)
        nn.init.normal_(layer.bias)
    alone = [copy.deepcopy(layer) for _ in range(RANKS)]
    return layer, alone, (RANKS * LOCAL, CHANNELS, *spatial)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", LAYERS)
def test_by_rank_is_one_batch_norm_for_each_rank(kind, variant):
    """Output, gradients and running statistics over several batches, and evaluation with each
    rank's own statistics."""
    layer, alone, shape = pair(kind, variant)
    rows = group_by_rank(layer, RANKS)
    rows.expect(0, RANKS, RANKS * LOCAL)
    for batch in range(3):
        x = torch.randn(shape, dtype=torch.float64) * (batch + 1) + torch.arange(RANKS).repeat(
            LOCAL
        ).view(-1, *[1] * (len(shape) - 1))
        x = ordered(kind, x)
        assert supports_kernels(x) == (kind in {"1d", "2d, channels last"})
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        seed = torch.randn(shape, dtype=torch.float64)
        mine, looped = layer(ours), by_loop(alone, theirs)
        (mine * seed).sum().backward()
        (looped * seed).sum().backward()
        torch.testing.assert_close(mine, looped, rtol=0, atol=1e-12)
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)
    for name, weight in layer.named_parameters():
        summed = sum(dict(a.named_parameters())[name].grad for a in alone)
        torch.testing.assert_close(weight.grad, summed, rtol=0, atol=1e-12)
    for name, buffer in layer.named_buffers():
        torch.testing.assert_close(
            buffer, torch.stack([dict(a.named_buffers())[name] for a in alone]), rtol=0, atol=1e-12
        )
    if layer.running_mean is not None:
        layer.eval()
        for a in alone:
            a.eval()
        torch.testing.assert_close(layer(x), by_loop(alone, x), rtol=0, atol=1e-12)
        with torch.no_grad():
            torch.testing.assert_close(layer(x), by_loop(alone, x), rtol=0, atol=1e-12)


def ordered(kind: str, x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last) if "last" in kind else x


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("kind", ["1d", "2d", "2d, channels last"])
def test_rectified_is_the_same_as_a_sum_and_a_rectifier_after_it(kind, added):
    """Where 0 comes out nothing goes back, as with torch's own; the gradient comes in another order
    in memory than the input."""
    layer, alone, shape = pair(kind, "as by default")
    group_by_rank(layer, RANKS).expect(0, RANKS, RANKS * LOCAL)
    layer.weight.data[0] = layer.bias.data[0] = 0.0  # so that exactly 0 comes out
    for one in alone:
        one.load_state_dict(ordinary_copy(layer, 0).state_dict())
    given = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]
    if added:
        given[1][:, 0] = 0
    mine = [ordered(kind, each).clone().requires_grad_() for each in given]
    theirs = [each.clone().requires_grad_() for each in given]
    seed = torch.randn(shape, dtype=torch.float64)
    for training in (True, False):
        layer.train(training)
        for one in alone:
            one.train(training)
        ours = rectify_norm(layer, mine[0], mine[1] if added else None)
        sum_ = by_loop(alone, theirs[0])
        expected = torch.relu(sum_ + theirs[1] if added else sum_)
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-12)
        assert (ours == 0).any() and (ours > 0).any()
        (ours * seed).sum().backward()
        (expected * seed).sum().backward()
    for one, other in list(zip(mine, theirs, strict=True))[: 1 + added]:
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-12)
    for name, weight in layer.named_parameters():
        summed = sum(dict(a.named_parameters())[name].grad for a in alone)
        torch.testing.assert_close(weight.grad, summed, rtol=0, atol=1e-12)


def test_what_is_no_number_goes_through_a_rectifier():
    """So that a training that leaves the finite numbers is seen to do so."""
    layer = nn.BatchNorm1d(2)
    group_by_rank(layer, 1).expect(0, 1, 3)
    x = torch.tensor([[1.0, float("nan")], [2.0, 0.0], [4.0, 0.0]])
    assert rectify_norm(layer, x).isnan().all(0).tolist() == [False, True]


def test_float32_is_as_exact_as_torchs_own():
    """Over many places, of a mean of 100 deviations: inputs are known to 100 x 2^-24 = 6e-6
    deviations, and the mean is rounded as they are."""
    torch.manual_seed(0)
    layer = nn.BatchNorm2d(8)
    group_by_rank(layer, 2).expect(0, 2, 16)
    x = (torch.randn(16, 8, 28, 28) + 100).contiguous(memory_format=torch.channels_last)
    exact = by_loop([nn.BatchNorm2d(8).double() for _ in range(2)], x.double())
    own = by_loop([nn.BatchNorm2d(8) for _ in range(2)], x)
    error = (layer(x) - exact).abs().max()
    assert error < 2e-5
    assert error < 2 * (own - exact).abs().max()


def test_a_part_of_the_ranks_touches_the_statistics_of_these_alone():
    layer, alone, _ = pair("2d", "cumulative")
    rows = group_by_rank(layer, RANKS)
    x = torch.randn(2 * LOCAL, CHANNELS, 3, 3, dtype=torch.float64)
    rows.expect(1, 2, 2 * LOCAL)  # ranks 1 and 2
    torch.testing.assert_close(layer(x), by_loop(alone[1:], x), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        layer.running_var, torch.stack([a.running_var for a in alone]), rtol=0, atol=1e-12
    )
    assert layer.num_batches_tracked.tolist() == [0, 1, 1]


def test_by_hand():
    """Two ranks of two samples: rank 0 has 1 and 3 (mean 2, variance 1, unbiased 2), rank 1 has 10
    and 10 (variance 0)."""
    layer = nn.BatchNorm1d(1, eps=1.0, dtype=torch.float64)
    group_by_rank(layer, 2).expect(0, 2, 4)
    out = layer(torch.tensor([[1.0], [10.0], [3.0], [10.0]], dtype=torch.float64))
    expected = torch.tensor([[-1 / 2**0.5], [0.0], [1 / 2**0.5], [0.0]], dtype=torch.float64)
    torch.testing.assert_close(out.detach(), expected, rtol=0, atol=1e-14)
    torch.testing.assert_close(
        layer.running_mean, torch.tensor([[0.2], [1.0]], dtype=torch.float64)
    )
    torch.testing.assert_close(
        layer.running_var, torch.tensor([[0.9 + 0.2], [0.9]], dtype=torch.float64)
    )


def test_pooled_statistics_are_those_of_all_values_together():
    """Law of total variance: groups of equal size, biased variances."""
    values = (
        torch.randn(7, 11, 4, dtype=torch.float64)
        + torch.arange(7.0, dtype=torch.float64)[:, None, None]
    )
    mean, variance = pool_statistics(values.mean(1), values.var(1, correction=0))
    torch.testing.assert_close(mean, values.view(-1, 4).mean(0), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        variance, values.view(-1, 4).var(0, correction=0), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("rank", [None, 2])
def test_ordinary_gives_torchs_own_layers_back(rank):
    model = nn.Sequential(nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)).double()
    group_by_rank(model, RANKS).expect(0, RANKS, RANKS * LOCAL)
    model(torch.randn(RANKS * LOCAL, 3, 2, 2, dtype=torch.float64))
    before = copy.deepcopy(model.state_dict())
    plain = ordinary_copy(model, rank)
    assert type(plain[1]) is nn.BatchNorm2d
    fresh = nn.Sequential(nn.Conv2d(3, CHANNELS, 1), nn.BatchNorm2d(CHANNELS)).double()
    # names and shapes are those of the model that it was made from
    fresh.load_state_dict(plain.state_dict())
    mean = before["1.running_mean"].mean(0) if rank is None else before["1.running_mean"][rank]
    torch.testing.assert_close(plain[1].running_mean, mean, rtol=0, atol=0)
    plain.eval()(torch.randn(1, 3, 2, 2, dtype=torch.float64))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", LAYERS)
def test_none_leaves_scale_and_shift(kind):
    layer, _, shape = pair(kind, "as by default")
    scale_and_shift_only(layer)
    x = torch.randn(shape, dtype=torch.float64)
    by_channel = (-1, *[1] * (len(shape) - 2))
    torch.testing.assert_close(
        layer(x), x * layer.weight.view(by_channel) + layer.bias.view(by_channel)
    )
    assert [name for name, _ in layer.named_parameters()] == ["weight", "bias"]
    assert not batch_norm_layers(layer)


def test_none_without_scale_is_nothing_at_all():
    layer = nn.BatchNorm1d(3, affine=False)
    scale_and_shift_only(layer)
    x = torch.randn(4, 3)
    assert torch.equal(layer(x), x)


def test_sync_leaves_the_model_as_it_is():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.SyncBatchNorm(3))
    apply_mode(model, "sync", 4)
    assert [type(m) for m in model] == [nn.BatchNorm1d, nn.SyncBatchNorm]


class Own(nn.BatchNorm1d):
    """Somebody's own batch norm."""


class Centre(nn.Module):
    """A layer that keeps a running mean of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(3))


@pytest.mark.parametrize("mode", ["per_rank", "none"])
@pytest.mark.parametrize(
    "layer",
    [
        nn.SyncBatchNorm(3),
        nn.InstanceNorm1d(3, track_running_stats=True),
        Own(3),
        Own(3, track_running_stats=False),
        Centre(),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_layers_whose_statistics_cannot_be_grouped_are_named(layer, mode):
    model = nn.Sequential(nn.BatchNorm1d(3), nn.ModuleDict({"inner": layer}))
    with pytest.raises(
        InputError, match=rf"1\.inner: keeps statistics.*{type(layer).__name__}.*batch_norm: sync"
    ) as caught:
        apply_mode(model, mode, 2)  # type: ignore[arg-type]
    assert len(caught.value.problems) == 1
    assert type(model[0]) is nn.BatchNorm1d  # nothing was changed


def test_layers_that_keep_no_statistics_pass():
    apply_mode(
        nn.Sequential(nn.InstanceNorm1d(3), nn.GroupNorm(1, 3), nn.LayerNorm(3)), "per_rank", 2
    )


@pytest.mark.parametrize("mode", ["per_rank", "sync", "none"])
def test_lazy_layers_must_have_seen_a_batch(mode):
    model = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())
    with pytest.raises(
        InputError, match=r"0: has no weights yet; got LazyLinear\. Give the model one batch"
    ):
        apply_mode(model, mode, 2)  # type: ignore[arg-type]
    model(torch.zeros(2, 3))
    apply_mode(model, mode, 2)  # type: ignore[arg-type]


def test_a_layer_that_sees_other_rows_than_the_batch_has_is_named():
    class Folded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(x.view(-1, 2)).view(len(x), -1)

    model = Folded()
    group_by_rank(model, 2).expect(0, 2, 4)
    with pytest.raises(
        InputError,
        match=(
            r"norm: batch norm by rank needs one row for each sample \(4 of this batch\); got 12"
            r" rows.*sync"
        ),
    ):
        model(torch.randn(4, 6))


def test_a_layer_used_twice_is_one_layer():
    norm = nn.BatchNorm1d(3).double()
    model = nn.Sequential(norm, nn.Linear(3, 3).double(), norm)
    alone = [copy.deepcopy(model) for _ in range(2)]
    group_by_rank(model, 2).expect(0, 2, 8)
    x = torch.randn(8, 3, dtype=torch.float64)
    torch.testing.assert_close(model(x), by_loop(alone, x), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        norm.running_var, torch.stack([a[0].running_var for a in alone]), rtol=0, atol=1e-12
    )
