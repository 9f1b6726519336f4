"""Ways to divide training against hand sums, published laws, and each other.

GPipe: Huang et al., arXiv 1811.06965. 1F1B: Narayanan et al., arXiv 2104.04473. Megatron-LM:
Shoeybi et al., arXiv 1909.08053; what its activations take: Korthikanti et al., arXiv 2205.05198.
ZeRO: Rajbhandari et al., arXiv 1910.02054. Halos, filters and channels: ParaDL, Kahira et al., HPDC
2021, arXiv 2104.09075.
"""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from simshuffle.workload.layers import INPUT, Layer, LayerList, layer_list
from simshuffle.workload.layers.transformer import gpt
from simshuffle.workload.parallelism import (
    Channel,
    Data,
    DividedWorkload,
    Filter,
    Pipeline,
    ShardedData,
    Spatial,
    Tensor,
    list_candidates,
    parallelism_name,
)
from simshuffle.workload.parallelism.base import find_divisors
from simshuffle.workload.parallelism.candidates import even_grid
from simshuffle.workload.parallelism.cutting import (
    block_starts,
    crossings,
    piece_starts,
    saved_values,
    stage_starts,
)
from simshuffle.workload.parallelism.pipeline import largest_divisor

# s of one collective, and of one byte of it; all different, so that none stands in for another
ALPHA = {
    "allreduce": 3e-3,
    "allgather": 5e-3,
    "reduce_scatter": 7e-3,
    "alltoall": 11e-3,
    "gather": 13e-3,
    "halo": 17e-3,
    "send": 19e-3,
    "send_back": 23e-3,
}
BETA = {name: alpha * 1e-2 for name, alpha in ALPHA.items()}


def seconds_of(node):
    return node.count * ALPHA[node.collective] + node.nbytes * BETA[node.collective]


def message(collective, values, count=1):
    """s of FP32 values."""
    return count * ALPHA[collective] + 4 * values * BETA[collective]


def nothing(node):
    return 0.0


def conv(name, after, inputs, outputs, extents=(8, 8), kernel=3, **values):
    return Layer(
        name,
        "conv",
        (after,),
        (inputs, *extents),
        (outputs, *extents),
        parameters=inputs * outputs * kernel ** len(extents),
        kernel=(kernel,) * len(extents),
        stride=(1,) * len(extents),
        saved=inputs * float(np.prod(extents)),
        **values,
    )


# 3 x 8 x 8 pixels, a convolution to 4 channels, one to 8, a linear layer to 10 classes
TOY = LayerList(
    "toy",
    (
        conv("one", INPUT, 3, 4),
        conv("two", "one", 4, 8),
        Layer("three", "linear", ("two",), (8, 8, 8), (10,), 5120, saved=512),
    ),
    (3, 8, 8),
)
PARAMETERS = (108, 288, 5120)
FORWARD, BACKWARD = np.array([1.0, 2.0, 4.0]), np.array([8.0, 16.0, 32.0])
BATCH, UPDATE = 2, 0.5


def job(layers=TOY, world_size=2, batch=BATCH, fixed=0.0, buckets=None, **values):
    count = len(layers)
    forward, backward = values.pop("forward", FORWARD), values.pop("backward", BACKWARD)
    if count != len(forward):
        forward, backward = np.ones(count), 2 * np.ones(count)
    return DividedWorkload(
        layers=layers,
        forward=forward,
        backward=backward,
        fixed=fixed,
        update=UPDATE,
        batch=batch,
        world_size=world_size,
        gradient_nbytes=4.0,
        input_nbytes=4.0 * np.prod(layers.input),
        buckets=buckets,
    )


def seconds(way, of=None, most=None):
    return way.step(of or job(), most).costs(seconds_of).seconds


def nodes(way, of, label, collective=None):
    return [
        node
        for node in way.step(of).nodes
        if node.label == label and collective in (None, node.collective)
    ]


# ---------------------------------------------------------------------- hand sums of a toy network


def test_data():
    sums = message("allreduce", sum(PARAMETERS))
    assert seconds(Data()) == pytest.approx(BATCH * (7 + 56) + sums + UPDATE)


def test_spatial():
    """A row of the input of each convolution, and of the gradient of the second one's output; the
    linear layer is computed by both members for both their samples."""
    samples = 2 * BATCH
    divided, alike = samples * (3 + 24) / 2, samples * (4 + 32)
    sent = (
        message("alltoall", BATCH * 3 * 64)
        + message("halo", samples * 3 * 8)
        + message("halo", samples * 4 * 8)
        + message("allgather", samples * 8 * 64)
        + message("halo", samples * 8 * 8)
        + message("allreduce", sum(PARAMETERS))
    )
    assert seconds(Spatial(ways=2)) == pytest.approx(divided + alike + sent + UPDATE)


def test_a_group_whose_first_member_hands_on_all_samples():
    """Every member receives whole samples, of 3 x 8 x 8 pixels, in place of its rows of them."""
    samples = 2 * BATCH
    dealt, handed = message("alltoall", BATCH * 3 * 64), message("send", samples * 3 * 64)
    plain = seconds(Spatial(ways=2))
    whole = Spatial(ways=2, input_bandwidth="1 GB/s")
    assert seconds(whole) == pytest.approx(plain - dealt + handed)
    (sent,) = nodes(whole, job(), "input")
    assert (sent.group, sent.nbytes) == ("input", 4 * samples * 3 * 64)


def test_a_group_that_sums_its_gradients_before_all_ranks_do():
    """Every weight of the toy network once among the two members, once among all four ranks."""
    of, sums = job(world_size=4), message("allreduce", sum(PARAMETERS))
    assert seconds(Spatial(ways=2, group_sum=True), of) == pytest.approx(
        seconds(Spatial(ways=2), of) + sums
    )
    sent = nodes(Spatial(ways=2, group_sum=True), of, "gradients")
    assert [node.group for node in sent] == ["members", "all"]
    # a single group has summed all there is to sum
    (alone,) = nodes(Spatial(ways=4, group_sum=True), of, "gradients")
    assert alone.group == "all"


def test_rows_that_are_no_multiple_are_shared_out_as_evenly_as_can_be():
    """Of the 7 rows of the last stage of ResNet-50 a member has two of four."""
    layers = layer_list("resnet50")
    division = Spatial(ways=4).division(layers)
    last = next(n for n, each in enumerate(layers.layers) if each.output[1:] == (7, 7))
    assert division.work_share[last] == pytest.approx(2 / 7)
    assert division.work_share[0] == pytest.approx(1 / 4)
    assert division.work_share[-1] == 1


def test_spatial_of_the_first_convolutions_alone():
    layers = layer_list("cosmoflow_256")
    names = [each.kind for each in layers.layers]
    third = [n for n, kind in enumerate(names) if kind == "conv"][2]
    division = Spatial(ways=4, convolutions=2).division(layers)
    assert (division.work_share[:third] < 1).all() and (division.work_share[third:] == 1).all()
    (gathered,) = (each for each in division.forward if each.label == "activations")
    assert gathered.values[third] == layers.layers[third].inputs
    assert (Spatial(ways=4, convolutions=99).division(layers).work_share < 1).sum() > third


def test_candidates_have_the_bus_bandwidth_of_what_they_are_like():
    like = Spatial(ways=4, bus_bandwidth="450 MB/s", step_latency="2 us")
    found = list_candidates(layer_list("resnet50"), 8, 4, 4, like)
    assert found["data+filter (4)"].bus_bandwidth == 450e6
    assert found["data+filter (4)"].step_latency == pytest.approx(2e-6)


def test_filter():
    """ParaDL's three parts of each output but the last: one to gather it, two to sum the gradient
    of what takes it."""
    samples = 2 * BATCH
    sent = message("allgather", samples * 3 * 64)
    for values in (4 * 64, 8 * 64):
        sent += message("allgather", samples * values) + message("allreduce", samples * values)
    whole = samples * 63 / 2 + sent + UPDATE / 2
    assert seconds(Filter(ways=2)) == pytest.approx(whole)
    sums = message("allreduce", sum(PARAMETERS) / 2)
    assert seconds(Filter(ways=2), job(world_size=4)) == pytest.approx(whole + sums)


def test_channel():
    """The first layer takes the sample and is not divided."""
    samples = 2 * BATCH
    sent = message("allgather", samples * 3 * 64)
    for outputs in (8 * 64, 10):
        sent += message("allreduce", samples * outputs)
    for inputs in (4 * 64, 8 * 64):
        sent += message("allgather", samples * inputs)
    update = UPDATE * (108 + 5408 / 2) / 5516
    whole = samples * (9 + 54 / 2) + sent + update
    assert seconds(Channel(ways=2)) == pytest.approx(whole)


def test_pipeline():
    """Two stages, (one, two) and (three), two microbatches of two samples: the second stage begins
    when the first microbatch is there, and the first ends after the last gradient."""
    way = Pipeline(stages=2, microbatches=2, schedule="gpipe")
    there = message("send", 2 * 512)
    back = message("send_back", 2 * 512)
    inputs = message("gather", BATCH * 3 * 64)
    whole = inputs + 2 * 3 + there + 2 * (2 * 4) + 2 * (2 * 32) + back + 2 * 24
    assert seconds(way) == pytest.approx(whole + UPDATE * (108 + 288) / 5516)
    # of two groups, the first members sum the gradients of the first stage, the second ones theirs
    sums = nodes(way, job(world_size=4), "gradients")
    assert [(n.group, n.member, n.nbytes) for n in sums] == [
        ("data", 0, 4 * 396),
        ("data", 1, 4 * 5120),
    ]


def test_a_slow_link_holds_up_a_pipeline():
    """Six microbatches go over one link one after the other, each longer than it is computed."""
    of = job(chain(2), 2, batch=3, forward=np.full(2, 0.01), backward=np.full(2, 0.02))
    way = Pipeline(stages=2, microbatches=6, schedule="gpipe")
    there, back = message("send", 8), message("send_back", 8)
    assert min(there, back) > 0.02
    passes = 0.01 + 6 * there + 0.01 + 0.02 + 6 * back + 0.02
    inputs = message("gather", 3 * 8)
    assert seconds(way, of) == pytest.approx(inputs + passes + UPDATE / 2)


@pytest.mark.parametrize("stage", [1, 2])
def test_sharded_data_after_the_passes(stage):
    sums = message("reduce_scatter", sum(PARAMETERS)) + message("allgather", sum(PARAMETERS))
    whole = BATCH * 63 + sums + UPDATE / 2
    assert seconds(ShardedData(stage=stage)) == pytest.approx(whole)


def test_sharded_data_layer_by_layer():
    """All but the first gather and the last reduce-scatter hide where computing takes long: the
    gather of a block lasts while the one before it computes."""
    first = message("allgather", PARAMETERS[0])
    last = message("reduce_scatter", PARAMETERS[0])
    quick = job(forward=10 * FORWARD, backward=10 * BACKWARD)
    costs = ShardedData(stage=3).step(quick).costs(seconds_of)
    whole = first + 10 * BATCH * 63 + last + UPDATE / 2
    # the last block's gather of the backward pass waits for nothing that is computed
    assert costs.seconds == pytest.approx(whole)
    assert costs.exposed == pytest.approx(first + last)
    slow = job(forward=0 * FORWARD, backward=0 * BACKWARD)
    sent = sum(2 * message("allgather", n) + message("reduce_scatter", n) for n in PARAMETERS)
    assert seconds(ShardedData(stage=3), slow) == pytest.approx(sent + UPDATE / 2)


def test_weights_are_gathered_one_block_ahead():
    """While the first block computes, the weights of the second come, and not yet those of the
    third; so does the first summed gradient wait for a gather before it."""
    of = job(forward=np.array([100.0, 0, 0]), backward=0 * BACKWARD)
    found = [message("allgather", n) for n in PARAMETERS]
    sums = [message("reduce_scatter", n) for n in PARAMETERS]
    whole = found[0] + BATCH * 100 + found[2] + sum(found) + sum(sums) + UPDATE / 2
    assert found[1] < BATCH * 100
    assert seconds(ShardedData(stage=3), of) == pytest.approx(whole)


BLOCK = LayerList(
    "block",
    (
        Layer("norm", "norm", (INPUT,), (16, 5), (16, 5), 32, saved=80),
        Layer("up", "linear", ("norm",), (16, 5), (64, 5), 1024, saved=80, tensor="column"),
        Layer("gelu", "activation", ("up",), (64, 5), (64, 5), saved=320),
        Layer("down", "linear", ("gelu",), (64, 5), (16, 5), 1024, saved=320, tensor="row"),
        Layer("add", "add", (INPUT, "down"), (32, 5), (16, 5)),
    ),
    (16, 5),
)


def test_tensor():
    """Norm and sum are computed by both members alike, what is between the matrices is not."""
    samples = 2 * BATCH
    alike, divided = 2 * 3.0, 3 * 3.0
    sums = 2 * message("allreduce", samples * 80)
    rest = message("allgather", samples * 80) + UPDATE * (32 + 1024) / 2080
    way = Tensor(ways=2)
    assert seconds(way, job(BLOCK)) == pytest.approx(samples * (alike + divided / 2) + sums + rest)


def test_tensor_with_sequence():
    """Every sum is a reduce-scatter and an allgather; everything is divided."""
    layers = replace(BLOCK, input=(16, 6), layers=tuple(_longer(each) for each in BLOCK.layers))
    samples = 2 * BATCH
    sums = 2 * (message("allgather", samples * 96) + message("reduce_scatter", samples * 96))
    rest = message("allgather", samples * 96) + UPDATE * (32 + 1024) / 2080
    way = Tensor(ways=2, sequence=True)
    assert not list(way.problems(layers, 2, BATCH))
    assert seconds(way, job(layers)) == pytest.approx(samples * 15 / 2 + sums + rest)


def _longer(layer):
    return replace(layer, input=(layer.input[0], 6), output=(layer.output[0], 6))


def test_gradients_are_summed_beside_the_backward_pass():
    """Two buckets: one of 5120 parameters after the linear layer, one of the rest at the end."""
    buckets = np.array([[4 * 5120, 32 / 56], [4 * 396, 1.0]])
    first, last = (message("allreduce", n) for n in (5120, 396))
    costs = Data().step(job(buckets=buckets)).costs(seconds_of)
    assert first < BATCH * 24
    assert costs.seconds == pytest.approx(BATCH * 63 + last + UPDATE)
    assert costs.hidden == pytest.approx(first)
    # in a group, what is divided takes half as long, and the bucket is there after the same layer
    samples, of = 2 * BATCH, job(buckets=buckets, world_size=4)
    done = [n for n in Filter(ways=2).step(of).nodes if n.label in ("backward", "gradients")]
    before = done[: [n.label for n in done].index("gradients")]
    assert sum(n.seconds for n in before) == pytest.approx(samples * 32 / 2)
    assert sum(n.nbytes for n in done) == pytest.approx(4 * 5516 / 2)


# ---------------------------------------------------------------------------------- published laws


def test_a_halo_is_one_row_of_each_neighbour():
    """3x3 on 64 x 224 x 224 in FP32: 224 x 64 x 4 B, to each side."""
    layers = LayerList(
        "pixels",
        (conv("one", INPUT, 3, 64, (224, 224)), conv("two", "one", 64, 64, (224, 224))),
        (3, 224, 224),
    )
    way = Spatial(ways=4, group_batch=1)
    of = job(layers, world_size=4, batch=0.25)
    halos = [node.nbytes for node in nodes(way, of, "halo")]
    assert halos == [224 * 3 * 4, 57_344, 57_344]
    grid = Spatial(ways=4, grid=[2, 2], group_batch=1)
    halos = nodes(grid, of, "halo")
    assert [node.nbytes for node in halos] == [112 * n * 4 for n in (3, 3, 64, 64, 64, 64)]
    assert [(node.row, node.stride) for node in halos[:2]] == [(2, 2), (2, 1)]


def chain(count):
    """Layers that are all alike, linear on 8 features."""
    names = [INPUT, *(f"layer{n}" for n in range(count))]
    layers = [
        Layer(name, "linear", (after,), (8,), (8,), 64, saved=8) for after, name in pairwise(names)
    ]
    return LayerList("chain", tuple(layers), (8,))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "microbatches"), [(4, 8), (4, 4), (3, 2), (2, 7)])
def test_the_bubble_of_a_pipeline(schedule, stages, microbatches):
    """(p - 1) / (m + p - 1) of the step (arXiv 1811.06965, section 2.3; arXiv 2104.04473, 2.2)."""
    way = Pipeline(stages=stages, microbatches=microbatches, schedule=schedule)
    of = replace(job(chain(3 * stages), stages, batch=microbatches), update=0.0)
    costs = way.step(of).costs(nothing)
    share = (stages - 1) / (microbatches + stages - 1)
    assert costs.bubble / costs.seconds == pytest.approx(share)
    assert costs.compute == pytest.approx(microbatches * stages * 9)


@pytest.mark.parametrize("stages", [2, 5])
def test_what_stages_keep_in_each_schedule(stages):
    """A stage of GPipe has m microbatches between forward and backward pass, stage s of 1F1B at
    most p - s + 1 (arXiv 2104.04473, section 2.2.1), counted in the step itself."""
    count, of = 3 * stages, job(chain(stages), stages, batch=3)
    kept = {}
    for schedule in ("gpipe", "1f1b"):
        way = Pipeline(stages=stages, microbatches=count, schedule=schedule)
        waiting, most = np.zeros(stages, int), np.zeros(stages, int)
        for node in way.step(of).nodes:
            if node.label in ("forward", "backward"):
                waiting[node.member] += 1 if node.label == "forward" else -1
                most = np.maximum(most, waiting)
        expected = [count] * stages if schedule == "gpipe" else list(range(stages, 0, -1))
        assert most.tolist() == expected
        kept[schedule] = way.memory(of).activations
    assert kept["gpipe"] / kept["1f1b"] == count / stages
    assert kept["1f1b"] == stages * 8 * 4  # of microbatches of one sample


def test_every_microbatch_starts_its_kernels():
    of = job(chain(4), 4, batch=8, fixed=3.0)
    for count, factor in ((4, 1), (16, 1.5)):
        way = Pipeline(stages=4, microbatches=count, compute_factor=factor)
        compute = way.step(of).costs(nothing).compute
        assert compute == pytest.approx(32 * 3 * factor + count * 3.0 / 4 + UPDATE / 4)


def test_megatron_sums_four_times_in_a_block():
    """Two in each pass, of b s h values each; one for the embedding, one for the logits."""
    of = job(gpt("small", blocks=3, width=64, heads=4, tokens=32, words=512), 8, batch=2)
    way = Tensor(ways=4, precision="mixed")
    for label in ("activations", "activation_gradients"):
        sums = nodes(way, of, label)
        assert [node.collective for node in sums] == ["allreduce"] * (2 * 3 + 1)
        assert {node.nbytes for node in sums} == {4 * 2 * 32 * 64 * 2}


@pytest.mark.parametrize("recompute", [False, True])
def test_what_a_block_of_a_transformer_keeps(recompute):
    """s b h (34 + 5 a s / h) B; (10 + 24 / t + ...) with tensor parallelism, all over t with
    sequence parallelism (arXiv 2205.05198, table 2). Recomputed, only the inputs of attention and
    perceptron stay: 2 x 2 s b h."""
    tokens, width, heads, ways = 32, 64, 4, 4
    scale, scores = tokens * width, 5 * heads * tokens / width

    def of_a_block(way, group):
        more, less = (
            way.memory(
                job(
                    gpt("some", blocks=n, width=width, heads=heads, tokens=tokens, words=512),
                    4,
                    1 / group,
                )
            ).activations
            for n in (4, 3)
        )
        return (more - less) / scale

    same = {"precision": "mixed", "recompute": recompute}
    whole, tensor = of_a_block(Data(**same), 1), of_a_block(Tensor(ways=ways, **same), ways)
    sequence = of_a_block(Tensor(ways=ways, sequence=True, **same), ways)
    if recompute:
        assert (whole, tensor, sequence) == pytest.approx((4, 4, 4 / ways))
    else:
        assert whole == pytest.approx(34 + scores)
        assert tensor == pytest.approx(10 + (24 + scores) / ways)
        assert sequence == pytest.approx((34 + scores) / ways)


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120), (1, 31.4), (2, 16.6), (3, 1.88)])
def test_zero_keeps_what_its_figure_says(stage, gigabytes):
    """7.5e9 parameters in mixed precision with Adam on 64 GPUs (arXiv 1910.02054, figure 1)."""
    layers = replace(chain(1), layers=(replace(chain(1).layers[0], parameters=7_500_000_000),))
    state = {"precision": "mixed", "optimiser": "adam"}
    way = ShardedData(stage=stage, **state) if stage else Data(**state)
    memory = way.memory(job(layers, 64))
    model = memory.weights + memory.gradients + memory.optimiser
    assert model / 1e9 == pytest.approx(gigabytes, abs=0.05)


@pytest.mark.parametrize(("stage", "volume"), [(1, 2), (2, 2), (3, 3)])
def test_zero_sends_two_or_three_times_the_model(stage, volume):
    """arXiv 1910.02054, section 7."""
    found = ShardedData(stage=stage).step(job()).nodes
    sent = sum(node.nbytes for node in found if node.group == "all")
    assert sent == volume * 4 * sum(PARAMETERS)


# ------------------------------------------------------------------------------------- each other


WAYS = [
    Data(),
    ShardedData(stage=2),
    ShardedData(stage=3),
    Spatial(ways=2),
    Filter(ways=2),
    Channel(ways=2),
    Pipeline(stages=2),
    Pipeline(stages=2, schedule="gpipe"),
    Tensor(ways=2),
]
IDS = [f"{way.short_name}-{n}" for n, way in enumerate(WAYS)]


@pytest.mark.parametrize("kind", [Spatial, Filter, Channel, Tensor])
@pytest.mark.parametrize("buckets", [None, np.array([[4e3, 0.3], [18064.0, 1.0]])])
def test_a_group_of_one_is_data_parallel(kind, buckets):
    alone = kind.model_construct(ways=1)
    of = job(buckets=buckets, fixed=0.3)
    assert seconds(alone, of) == pytest.approx(seconds(Data(), of))
    assert alone.memory(of).total == Data().memory(of).total
    ranks = ShardedData(stage=1).step(replace(of, world_size=1)).costs(nothing)
    assert ranks.compute == pytest.approx(Data().step(of).costs(nothing).compute)


@st.composite
def networks(draw):
    """Chains of layers, some of which tensor parallelism divides; with the times of each."""
    count = draw(st.integers(2, 8))
    marks = draw(st.lists(st.sampled_from(["", "column", "row"]), min_size=count, max_size=count))
    if not any(marks):
        marks[-1] = "column"
    layers, after = [], INPUT
    for number, mark in enumerate(marks):
        kernel = (draw(st.sampled_from([1, 3])),) * 2
        name = f"layer{number}"
        layers.append(
            Layer(
                name, "conv", (after,), (4, 8, 8), (4, 8, 8), 16, 1.0, kernel, (1, 1), 256.0, mark
            )
        )
        after = name
    times = st.lists(st.floats(0.01, 10), min_size=count, max_size=count)
    forward, backward = np.array(draw(times)), np.array(draw(times))
    return DividedWorkload(
        LayerList("drawn", tuple(layers), (4, 8, 8)),
        forward,
        backward,
        draw(st.sampled_from([0.0, 0.5])),
        0.25,
        draw(st.integers(1, 4)),
        4,
        4.0,
        1024.0,
    )


@settings(max_examples=25, deadline=None)
@given(of=networks(), most=st.integers(1, 6))
@pytest.mark.parametrize("way", WAYS, ids=IDS)
def test_parts_of_a_step_add_up(way, of, most):
    step = way.step(of)
    costs = step.costs(seconds_of)
    assert costs.compute + costs.bubble + costs.exposed == pytest.approx(costs.seconds, rel=1e-12)
    assert min(costs.compute, costs.bubble, costs.exposed, costs.hidden) >= 0
    assert costs.seconds >= max(n.seconds or seconds_of(n) for n in step.nodes if n.collective)
    for number, node in enumerate(step.nodes):
        assert all(0 <= before < number for before in node.predecessors)
    together = way.step(of, most)
    assert len(together.nodes) <= len(step.nodes) or way.short_name == "pipeline"
    if way.short_name != "ZeRO":  # which overlaps more with smaller pieces
        assert together.costs(seconds_of).seconds == pytest.approx(costs.seconds)
    assert together.costs(nothing).compute == pytest.approx(step.costs(nothing).compute)


@settings(max_examples=20, deadline=None)
@given(of=networks(), factor=st.sampled_from([1.0, 1.5]))
def test_divided_layers_take_their_part(of, factor):
    """Of all samples of a group, every member computes 1/ways of all layers."""
    way = Filter(ways=2, compute_factor=factor)
    whole = 2 * of.batch * float(of.forward.sum() + of.backward.sum())
    compute = way.step(of).costs(nothing).compute
    assert compute == pytest.approx(factor * whole / 2 + of.fixed + of.update / 2)


@settings(max_examples=20, deadline=None)
@given(of=networks(), repeated=st.sampled_from([0.0, 0.25, 1.0]), ways=st.sampled_from([2, 4]))
def test_what_is_repeated_is_not_divided(of, repeated, ways):
    """Amdahl, AFIPS 1967: of a time T on one, T (r + (1 - r) / p) is left on p; all samples of a
    group are as many times those of a rank."""
    whole = ways * of.batch * float(of.forward.sum() + of.backward.sum())
    compute = Filter(ways=ways, repeated=repeated).step(of).costs(nothing).compute
    left = repeated + (1 - repeated) / ways
    assert compute == pytest.approx(left * whole + of.fixed + of.update / ways)


@settings(max_examples=30, deadline=None)
@given(of=networks(), stages=st.integers(2, 4), count=st.integers(1, 9))
def test_microbatches_may_go_together(of, stages, count):
    """GPipe's microbatches between the first and the last as one take as long as each by itself,
    whatever the stages and what they send."""
    stages = min(stages, len(of.layers))
    way = Pipeline(stages=stages, microbatches=count, schedule="gpipe")
    alone, together = way.step(of), way.step(of, 8)
    assert together.costs(seconds_of).seconds == pytest.approx(alone.costs(seconds_of).seconds)
    for values in ("nbytes", "seconds"):
        sums = [sum(getattr(node, values) for node in each.nodes) for each in (alone, together)]
        assert sums[0] == pytest.approx(sums[1])


def test_recomputing_adds_a_forward_pass_and_what_it_sends():
    of = job(fixed=0.3)
    forward = BATCH * 7 + 0.1
    assert seconds(Data(recompute=True), of) - seconds(Data(), of) == pytest.approx(forward)
    again = 2 * BATCH * 7 / 2 + 0.1
    for values in (4 * 64, 8 * 64):
        again += message("allgather", 2 * BATCH * values)
    difference = seconds(Filter(ways=2, recompute=True), of) - seconds(Filter(ways=2), of)
    assert difference == pytest.approx(again)


def test_memory_is_divided_as_the_model_is():
    of = job(world_size=4)
    data, samples = Data().memory(of), 2 * BATCH
    assert data.weights == data.gradients == data.optimiser == 4 * 5516
    assert data.activations == 4 * BATCH * (192 + 256 + 512)
    spatial = Spatial(ways=2).memory(of)
    assert spatial.weights == data.weights
    assert spatial.activations == 4 * samples * ((192 + 256) / 2 + 512)
    assert spatial.buffers == 4 * samples * 512
    divided = replace(TOY, layers=TOY.layers[:2])  # halos on two sides, none is gathered
    assert Spatial(ways=2).memory(job(divided)).buffers == 4 * samples * 2 * 4 * 8
    filtered = Filter(ways=2).memory(of)
    assert filtered.weights == data.weights / 2
    assert filtered.activations == 2 * data.activations
    pipeline = Pipeline(stages=2, microbatches=2).memory(of)
    assert pipeline.weights == 4 * 5120
    sharded = [ShardedData(stage=stage).memory(of) for stage in (1, 2, 3)]
    assert [each.optimiser for each in sharded] == [5516] * 3
    assert [each.gradients for each in sharded] == [4 * 5516, 5516, 5516]
    assert [each.weights for each in sharded] == [4 * 5516, 4 * 5516, 5516]
    assert sharded[2].buffers == 4 * (288 + 5120)


# ------------------------------------------------------------------------------ cuts and candidates


def test_stages_take_about_equally_long():
    assert stage_starts(np.array([1.0, 1, 1, 1, 4, 1, 1, 1, 1]), 3) == [0, 4, 5]
    assert stage_starts(np.array([9.0, 1, 1]), 3) == [0, 1, 2]
    assert stage_starts(np.zeros(3), 2)[0] == 0
    rng = np.random.default_rng(5)
    for _ in range(20):
        times = rng.random(7)
        starts = stage_starts(times, 3)
        best = min(
            max(times[:i].sum(), times[i:j].sum(), times[j:].sum())
            for i in range(1, 6)
            for j in range(i + 1, 7)
        )
        assert np.add.reduceat(times, starts).max() == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("name", ["resnet50", "densenet161", "gpt2_small"])
def test_what_crosses_every_cut(name):
    layers = layer_list(name)
    values, _ = crossings(layers)
    for cut in range(1, len(layers), 7):
        given = {each.name: each.outputs for each in layers.layers[:cut]}
        given[INPUT] = math.prod(layers.input)
        taken = {name for each in layers.layers[cut:] for name in each.predecessors}
        assert values[cut] == sum(size for name, size in given.items() if name in taken)


def test_blocks_are_those_of_the_network():
    """16 blocks of a ResNet-50, what is before and the linear layer after them."""
    assert len(block_starts(layer_list("resnet50"))) == 16 + 2
    layers = layer_list("vgg16")
    starts = block_starts(layers)
    assert len(starts) == 13 + 3
    assert {layers.layers[start].kind for start in starts} == {"conv", "linear"}
    layers = layer_list("resnet50")
    ones = np.ones(len(layers))
    plain, none = saved_values(layers, ones, (0, len(layers)), recompute=False)
    stored, working = saved_values(layers, ones, (0, len(layers)), recompute=True)
    assert (plain, none) == (pytest.approx(layers.saved), 0)
    assert stored + working < plain / 2
    # of the toy, a block is a layer, which saves its input; had the last saved more, that came back
    more = replace(TOY, layers=(*TOY.layers[:2], replace(TOY.layers[2], saved=600)))
    assert saved_values(more, np.ones(3), (0, 3), recompute=True) == (192 + 256 + 512, 600 - 512)
    # the last two layers of it, of which one GPU keeps half
    half = np.full(3, 0.5)
    assert saved_values(more, half, (1, 3), recompute=True) == (128 + 256, 300 - 256)
    assert saved_values(more, half, (1, 2), recompute=False) == (128, 0)


@pytest.mark.parametrize(
    ("way", "name", "world_size", "path", "remedy"),
    [
        (Spatial(ways=112), "resnet50", 112, "ways", "Use 56."),
        (Spatial(ways=128), "resnet50", 128, "ways", "Use 64."),
        (Spatial(ways=4), "resnet50", 6, "ways", "Use 3."),
        (Filter(ways=128), "resnet50", 128, "ways", "Use 64."),
        (Channel(ways=5), "resnet50", 8, "ways", "Use 4."),
        (Pipeline(stages=64), "vgg16", 64, "stages", "Use 32."),
        (Pipeline(stages=4, microbatches=7), "vgg16", 4, "microbatches", "Use 8."),
        (Tensor(ways=2), "resnet50", 8, "ways", "Use another strategy, such as 'data'."),
        (Tensor(ways=8), "gpt2_small", 24, "ways", "Use 6."),
        (Filter(ways=2, group_batch=100), "vgg16", 4, "group_batch", "Use 8."),
        (Filter(ways=2, group_batch=9), "vgg16", 4, "group_batch", "Use 8."),
        (Filter(ways=7), "vgg16", 5, "ways", "Use 5."),
    ],
    ids=str,
)
def test_what_cannot_be_is_named_with_the_nearest_that_can(way, name, world_size, path, remedy):
    problems = list(way.problems(layer_list(name), world_size, 4))
    assert [(each.path, each.remedy) for each in problems] == [(f"parallelism.{path}", remedy)]


def test_a_grid_is_of_all_members():
    with pytest.raises(ValidationError, match="product of grid"):
        Spatial(ways=4, grid=[2, 3])
    with pytest.raises(ValidationError):
        Filter(ways=1)


def test_what_is_tried_when_nobody_says():
    layers = layer_list("resnet50")
    assert list(list_candidates(layers, 1, 32, 4)) == ["data"]
    found = list_candidates(layers, 16, 32, 4, template=Data(precision="mixed", recompute=True))
    assert list(found) == [
        *("data", "ZeRO-1", "ZeRO-2", "ZeRO-3", "spatial", "filter", "channel", "pipeline"),
        *(f"data+{kind} (2)" for kind in ("spatial", "filter", "channel", "pipeline")),
        *(f"data+{kind} (4)" for kind in ("spatial", "filter", "channel", "pipeline")),
    ]
    assert all(way.precision == "mixed" and way.recompute for way in found.values())
    assert {parallelism_name(way, 16) for way in found.values()} == set(found)
    assert found["data+spatial (4)"].grid == [2, 2]
    kinds = {way.kind for way in list_candidates(layer_list("gpt2_small"), 8, 4, 8).values()}
    assert kinds == {"data", "sharded_data", "tensor", "pipeline"}


@pytest.mark.parametrize(
    ("seconds", "most", "starts"),
    [
        # middles at 0.5, 1.5, 3 and 6 of 8 s: halves, then thirds of the time
        ([1, 1, 2, 4], 2, [0, 3]),
        ([1, 1, 2, 4], 3, [0, 2, 3]),
        ([4, 1, 1, 2], 2, [0, 1]),
        ([1, 6, 1], 2, [0, 1]),  # the middle of the long one is that of all
        ([0, 0, 0, 0], 2, [0, 2]),
        ([1, 1, 2, 4], 4, [0, 1, 2, 3]),
        ([1, 1, 2, 4], None, [0, 1, 2, 3]),
    ],
)
def test_layers_go_together_in_pieces_of_about_equal_time(seconds, most, starts):
    assert piece_starts(np.array(seconds, float), most).tolist() == starts


@pytest.mark.parametrize(
    ("seconds", "stages", "starts"),
    [
        ([1, 1, 2, 4], 2, [0, 3]),
        ([4, 2, 1, 1], 2, [0, 1]),
        ([3, 3, 2, 2, 2], 2, [0, 2]),
        ([5, 1, 1, 5], 3, [0, 1, 3]),
        ([1, 1, 1, 9], 3, [0, 2, 3]),  # each has a layer
        ([9, 1, 1, 1], 4, [0, 1, 2, 3]),
        ([2, 2, 3, 1, 1, 3], 3, [0, 2, 4]),
    ],
)
def test_the_longest_stage_takes_as_little_as_it_can(seconds, stages, starts):
    assert stage_starts(np.array(seconds, float), stages) == starts


def test_divisors():
    assert find_divisors(12) == [2, 3, 4, 6, 12]
    assert (find_divisors(36)[4], find_divisors(7), find_divisors(1)) == (9, [7], [])
    divisors = [largest_divisor(12, limit) for limit in (0, 1, 5, 6, 11, 12, 99)]
    assert divisors == [1, 1, 4, 6, 6, 12, 12]
    assert largest_divisor(7.5, 9) == 1


@pytest.mark.parametrize(
    ("extents", "members", "grid"),
    [
        ((8, 8), 4, [2, 2]),
        ((8, 4), 8, [4, 2]),
        ((4, 8), 8, [2, 4]),
        ((9, 9), 6, [2, 3]),  # 2 along the first, then 3 along what is longer
        ((8, 8, 8), 8, [2, 2, 2]),
        ((8, 4), 4, None),  # parts are as long as wide after the first cut: all along one
        ((64,), 4, None),
        ((), 4, None),
    ],
)
def test_members_lie_along_the_longest_sides(extents, members, grid):
    assert even_grid(extents, members) == grid


def test_groups_that_are_tried_divide_the_ranks_and_fit_a_host():
    """Six GPUs: 2 and 4, and the divisors 2, 3 and 6; of 12 ranks all of these are a part."""
    layers = LayerList(
        "two", (Layer("a", "conv", (INPUT,), (4, 24, 24), (12, 24, 24), 9),), (4, 24, 24)
    )

    def sizes(world_size, gpus):
        found = list_candidates(layers, world_size, 8, gpus)
        ways = {name: way.group_size(world_size) for name, way in found.items()}
        return sorted({size for name, size in ways.items() if "data+spatial" in name})

    assert sizes(12, 6) == [2, 3, 4, 6]
    assert sizes(24, 8) == [2, 4, 8]
    assert sizes(8, 8) == [2, 4]  # all ranks are one group, without data parallelism
    assert sizes(9, 6) == [3]
    assert [*list_candidates(layers, 1, 8, 8)] == ["data"]
