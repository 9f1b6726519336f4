"""The layers of a network: from a torch module, in the catalog, and in a scenario."""

from typing import Any

import numpy as np
import pytest

from simshuffle.errors import InputError
from simshuffle.job.scenario.model import FIXED, StepTimes
from simshuffle.job.scenario.scenario import load_scenario

torch = pytest.importorskip("torch")
nn = torch.nn

from simshuffle.train import layers  # noqa: E402


def test_parameters_and_shares_by_hand():
    """A 3 x 3 convolution of 2 to 4 channels on 8 x 8 pixels, 72 weights x 64 = 4608
    multiplications; its norm counts with it; then 4 to 2, 72 x 64; then 128 x 3 = 384."""
    network = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.Conv2d(4, 2, 3, padding=1),
        nn.Flatten(),
        nn.Linear(128, 3),
    )
    found = layers(network, torch.zeros(2, 2, 8, 8))
    assert found["parameters"] == [72 + 8, 72 + 2, 384 + 3]
    work = [4608, 4608, 384]
    roots = [each**0.5 for each in work]
    shares = [
        0.65 * w / sum(work) + 0.35 * r / sum(roots) for w, r in zip(work, roots, strict=True)
    ]
    assert found["backward"] == pytest.approx(shares, abs=1e-6)
    assert sum(found["backward"]) == pytest.approx(1.0, abs=1e-5)


def test_a_shared_layer_is_ready_after_its_first_use():
    """The gradient of what is used twice is whole when the backward pass comes to the first; its
    second use, a third of the pass, comes before that of the one between."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.once, self.twice = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)

        def forward(self, x: Any) -> Any:
            return self.twice(self.once(self.twice(x)))

    found = layers(Shared(), torch.zeros(1, 5))
    assert found["parameters"] == [25, 25]
    assert found["backward"] == pytest.approx([1 / 3, 2 / 3], abs=1e-6)


def test_what_is_never_called_is_ready_last():
    class Loose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.loose = nn.Linear(4, 4, bias=False), nn.Linear(7, 1, bias=False)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    network = Loose()
    assert layers(network, torch.zeros(1, 4))["parameters"] == [7, 16]


def test_embeddings_cost_no_multiplications():
    network = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2, bias=False))
    found = layers(network, torch.zeros(3, 5, dtype=torch.long))
    assert found["parameters"] == [40, 8]
    assert found["backward"][0] < 1e-3


@pytest.mark.parametrize(
    ("network", "rule"),
    [(nn.Linear(3, 2), "cannot take the example"), (nn.Flatten(), "has nothing to train")],
)
def test_networks_that_cannot_be_read_are_refused(network, rule):
    with pytest.raises(InputError) as raised:
        layers(network, torch.zeros(2, 4))
    assert rule in raised.value.problems[0].rule


def test_buckets_of_resnet50():
    """MB, and share of the backward pass: the last layer is larger than the first bucket."""
    model = load_scenario("quickstart", {"workload.allreduce.overlap": "ddp"}).workload
    parts = model.allreduce.overlap.parts(model.model.gradient_arrival)  # type: ignore[union-attr]
    assert (parts[:, 0] / 1e6).round(1).tolist() == [8.2, 31.5, 26.3, 26.6, 9.7]
    assert parts[:, 1].round(2).tolist() == [0.0, 0.1, 0.17, 0.49, 1.0]


def test_gradients_in_half_precision_have_the_same_layers():
    scenario = load_scenario("quickstart", {"workload.model.gradient_size": "51114064 B"})
    arrival = scenario.workload.model.gradient_arrival
    assert arrival[:, 0].sum() == pytest.approx(51114064)


def step_times(**seconds: float) -> StepTimes:
    return StepTimes.model_validate({key: f"{value!r} s" for key, value in seconds.items()})


def test_step_times_with_a_fixed_part():
    """DGX-2H: 208 images in 131.7 ms, 65 in 52.7 ms: c1 = 0.5524 ms, c0 = 16.79 ms; so 39 images
    take 38.3 ms and not 39 / 208 of 131.7 (24.7)."""
    slope = (131.7e-3 - 52.7e-3) / (208 - 65)
    fixed = 131.7e-3 - 208 * slope
    times = step_times(forward=slope / 3, backward=2 * slope / 3, fixed=fixed)

    def step(of: StepTimes, samples: int) -> float:
        batch = np.array(samples)
        return float(of.forward_of(batch) + of.backward_of(batch))

    assert step(times, 208) == pytest.approx(131.7e-3)
    assert step(times, 39) == pytest.approx(38.3e-3, rel=2e-3)
    assert step(times, 0) == 0.0
    # the prior: the measured batch takes as long as measured, a smaller one longer than its share
    each = 131.7e-3 / 208
    known = step_times(forward=each / 3, backward=each / 1.5).model_copy(
        update={"measured_batch": 208}
    )
    assert step(known, 208) == pytest.approx(131.7e-3)
    assert step(known, 39) == pytest.approx(FIXED + 39 / 208 * (131.7e-3 - FIXED))
    tiny = step_times(forward=1e-6, backward=2e-6).model_copy(update={"measured_batch": 10})
    assert tiny.fixed_seconds == pytest.approx(15e-6)
