"""The last value that a scenario may have, and the first that it may not: of ranks, samples, bytes
and seconds."""

from typing import Any

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.job.scenario.model import PIECES, Layers, ModelProfile, StepTimes
from simshuffle.job.scenario.options import nbytes_of
from simshuffle.study.options import plain_type
from tests.small import small

# 16 hosts of two GPUs
TWO_GPUS = {"cluster__host__gpus": 2, "world_size": 4}
STORE = {"workload__staging": {"source": "object_store", "format": "files"}}


def paths(**values):
    """Return the paths of the problems of a scenario; [] where it has none."""
    try:
        small(**values)
    except InputError as error:
        return [problem.path for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("fits", "exceeds", "path"),
    [
        ({"world_size": 32}, {"world_size": 33}, "world_size"),
        (
            {"workload__dataset__num_samples": 4, "workload__local_batch_size": 1},
            {"workload__dataset__num_samples": 3, "workload__local_batch_size": 1},
            "world_size",
        ),
        # a batch of 10 on each of 4 ranks
        (
            {"workload__dataset__num_samples": 40, "workload__last_batch": "drop"},
            {"workload__dataset__num_samples": 39, "workload__last_batch": "drop"},
            "workload.last_batch",
        ),
        # 2 of 4 ranks on a host, each of which keeps 200 samples of 100 kB
        (
            {"cluster__ssd__capacity": "40 MB"},
            {"cluster__ssd__capacity": "39.9 MB"},
            "workload.exchange",
        ),
        (
            {"cluster__memory__capacity": "40 MB", "workload__staging": {"target": "memory"}},
            {"cluster__memory__capacity": "39 MB", "workload__staging": {"target": "memory"}},
            "workload.exchange",
        ),
        ({"workload__allreduce__rings": 1}, {"workload__allreduce__rings": 2}, None),
        ({**STORE, "cluster__object_store": {}}, STORE, "workload.staging.source"),
        ({"workload__loader": {"workers": 1, "prefetch": 1, "across_epochs": True}},
         {"workload__loader": {"workers": 1, "prefetch": 1, "across_epochs": True},
          "workload__exchange": "partial_local_shuffle:exchange_fraction=0.1"},
         "workload.loader.across_epochs"),
    ],
)  # fmt: skip
def test_the_last_value_fits_and_the_next_does_not(fits, exceeds, path):
    assert paths(**TWO_GPUS | fits) == []
    assert paths(**TWO_GPUS | exceeds) == [path or "workload.allreduce.rings"]


def test_an_option_has_nine_petabytes_at_most():
    assert nbytes_of("--cache", f"{2**53} B") == 2**53
    with pytest.raises(InputError, match="at most 9 PB"):
        nbytes_of("--cache", f"{2**53 + 2} B")


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (int | None, (int, True)),
        (int | str | None, (Any, True)),
        (int | str, (int | str, False)),
        (int, (int, False)),
        (list[int], (list[int], False)),
    ],
)
def test_a_type_without_none_and_whether_it_may_be_that(kind, plain):
    assert plain_type(kind) == plain


def test_what_would_do_instead_of_dropping_all_is_said_in_numbers():
    with pytest.raises(InputError) as raised:
        small(**TWO_GPUS, workload__dataset__num_samples=39, workload__last_batch="drop")
    (problem,) = raised.value.problems
    # a batch of 10 on each of 4 ranks; 3 ranks of 10, or 9 on each of 4
    expected = "at least 40 samples, at most 3 ranks, batches of at most 9, or"
    assert expected in problem.remedy


def test_a_host_whose_cable_is_cut_is_none():
    cut = small(**TWO_GPUS, cluster__faults={"h0003>switch": 0}).cluster
    assert (cut.num_hosts, cut.num_gpus, cut.is_cut) == (15, 30, True)


def test_ranks_fill_hosts_one_after_the_other():
    cluster = small(**TWO_GPUS).cluster
    assert [cluster.hosts_for(ranks) for ranks in (1, 2, 3, 5)] == [1, 1, 2, 3]
    assert [cluster.ranks_per_host(ranks) for ranks in (1, 2, 5)] == [1, 2, 2]
    assert cluster.host_of(5).tolist() == [0, 0, 1, 1, 2]
    assert cluster.domain_of(5).tolist() == [0, 0, 1, 1, 2]
    assert (cluster.num_hosts, cluster.num_gpus) == (16, 32)
    assert (cluster.hosts_per_domain, cluster.domains_for(5)) == (1, 3)


def test_a_background_load_leaves_less_to_read_write_and_open():
    path = "cluster__parallel_file_system"
    values = {f"{path}__read_bandwidth": "4 GB/s", f"{path}__open_rate": "8 k/s"}
    values[f"{path}__background_load"] = 0.25
    pfs = small(**values, **{f"{path}__write_bandwidth": "2 GB/s"}).cluster.parallel_file_system
    assert (pfs.free_bandwidth, pfs.free_write_bandwidth, pfs.free_open_rate) == (3e9, 1.5e9, 6e3)
    pfs = small(**values).cluster.parallel_file_system
    if pfs.write_bandwidth is None:
        assert pfs.free_write_bandwidth == 3e9


def step_times(**values):
    given = {"forward": "1 ms", "backward": "2 ms", "measured_batch": 10, **values}
    return StepTimes.model_validate(given)


def test_fixed_seconds_are_less_than_the_measured_step():
    """Ten samples of 3 ms: a step of 30 ms, and 11.3 ms of it are fixed where nobody says it."""
    assert step_times(fixed="29 ms").per_sample == pytest.approx(0.1e-3)
    with pytest.raises(ValueError, match="fixed must be less"):
        step_times(fixed="30 ms")
    assert step_times().per_sample == pytest.approx((30e-3 - 11.3e-3) / 10)
    # without a measured batch all of it grows, and any fixed part comes on top
    plain = step_times(measured_batch=None, fixed="60 ms")
    assert plain.per_sample == pytest.approx(3e-3)
    batches = np.array([0, 2])
    assert plain.forward_of(batches) == pytest.approx([0.0, 2e-3 + 20e-3])
    assert plain.backward_of(batches) == pytest.approx([0.0, 4e-3 + 40e-3])
    assert plain.inference_of(batches) == pytest.approx([0.0, 2e-3 + 20e-3])
    apart = step_times(measured_batch=None, fixed="60 ms", inference="0.5 ms")
    assert apart.inference_of(batches) == pytest.approx([0.0, 1e-3 + 10e-3])


def model(**values):
    given = {"name": "m", "gradient_size": "400 B", "accelerators": {}, **values}
    return ModelProfile.model_validate(given)


def test_gradients_arrive_from_the_last_layer_on():
    layers = {"parameters": [25, 75], "backward": [3, 1]}
    assert Layers.model_validate(layers).arrival.tolist() == [[0.75, 0.25], [0.25, 1.0]]
    assert model(layers=layers).gradient_arrival.tolist() == [[300.0, 0.25], [100.0, 1.0]]
    equal = model().gradient_arrival
    assert len(equal) == PIECES and equal[0].tolist() == [400 / PIECES, 1 / PIECES]
    assert equal[-1].tolist() == pytest.approx([400 / PIECES, 1.0])


@pytest.mark.parametrize(
    ("parameters", "size", "exact"),
    [
        (1000, "4040 B", 4000),  # off by one per cent
        (1000, "4041 B", None),
        (1000, "1010 B", 1000),
        (1000, "7921 B", 8000),
        (1012, "4 kB", 4048),  # two digits of 4048
        (1012, "3999 B", None),
    ],
)
def test_a_gradient_has_one_two_four_or_eight_bytes_a_parameter(parameters, size, exact):
    layers = {"parameters": [parameters], "backward": [1]}
    if exact is None:
        with pytest.raises(ValueError, match="do not add up"):
            model(layers=layers, gradient_size=size)
        # unless the model says how many parameters its list has
        loose = model(layers=layers, gradient_size=size, num_parameters=parameters)
        assert loose.exact_gradient_size == loose.gradient_size
    else:
        assert model(layers=layers, gradient_size=size).exact_gradient_size == exact


def test_a_network_that_nobody_knows_is_one_layer():
    layer = model(input_size="12 B").one_layer.layers[0]
    assert (layer.input, layer.output, layer.parameters) == ((3,), (3,), 100)
    assert model(input_size="12 B", num_parameters=7).one_layer.parameters == 7
    tiny = model(input_size="1 B", gradient_size="1 B").one_layer
    assert (tiny.input, tiny.parameters, tiny.flops) == ((1,), 1, 1.0)
