"""Emulated ranks against real ones: processes of torch.distributed (gloo), DistributedDataParallel,
samples that really travel.

Both begin with the same weights and shards. After 5 epochs of 7 iterations, or of most cases 3,
with unequal shards and a last local batch that is smaller, the weights must be the same to
rounding, and in every epoch every rank must have trained on the same samples in the same order.

What rounding may do is worked out for each case, and rests on no machine (`Rounding`):

- A sum of n terms in whatever order differs by at most (n - 1) u of the sum of their absolute
  values from the exact one, u = 2**-24 in float32 and 2**-53 in float64 (Higham, Accuracy and
  Stability of Numerical Algorithms, 2002, section 4.2). Roundings that are independent of each
  other leave about sqrt(n) u (Higham and Mary 2019, SIAM J. Sci. Comput. 41(5), A2815).
- How far such an error has grown after all steps is measured in float64: every value that a layer
  passes on, its gradient and every weight is changed at random by a known amount, and the weights
  at the end are compared with those of the unchanged training.

Both trainings, on real and on emulated ranks, are compared with the emulated one in float64.
ReLU and max pooling have kinks, at which a rounding error turns a gradient on or off: a change of
2**-19 moves a weight of the small CNN by 0.04 within 17 steps. No tolerance holds there. The
networks in float32 therefore have SiLU and mean pooling; those in float64 stay as they are.
"""

import functools
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from simshuffle.train import models, residual
from simshuffle.train.emulate import initial_model, train_run
from simshuffle.train.emulation import Emulation
from simshuffle.train.iterations import epoch_samples
from simshuffle.train.network import torch_dtype
from simshuffle.train.run import Run
from simshuffle.train.samples import Augmentation, Samples, TrainingSet
from simshuffle.train.sources import ArraySource
from tests.preloaded import fork_ranks, run_ranks

UNIT_ROUNDOFF = {"float32": 2.0**-24, "float64": 2.0**-53}
DISTURBANCE = {"float32": 2.0**-20, "float64": 2.0**-33}
"""Relative change of every value from which the growth of an error is taken: in float32 larger than
a rounding error, so that what depends on the order of losses depends on rounding if it changes; in
float64 so small that no kink comes in between, and 2**20 times as large as rounding."""
DISTURBED_TRAININGS = 2
SECONDS = 240
PARTIAL = {"kind": "partial_local_shuffle", "exchange_fraction": 0.3}
IS = {"kind": "importance_exchange", "exchange_fraction": 0.3}
PAIR = {"kind": "importance_pair", "exchange_fraction": 0.3}
FAST = {"payload": "encoded", "barriers": "none"}


def case(
    exchange: dict[str, Any],
    *,
    transport: str = "isend",
    model: str = "mlp",
    storage: bool = False,
    epochs: int = 3,
    size: int = 8,
    **training: Any,
) -> dict[str, Any]:
    fields = {
        "epochs": epochs,
        "local_batch_size": 8,
        "learning_rate": 0.05,
        "warmup_epochs": 1,
        "dtype": "float64",
        "evaluate_every": epochs,
    }
    return {
        "exchange": exchange,
        "transport": transport,
        "model": model,
        "size": size,
        "storage": storage,
        "training": fields | training,
    }


CASES = {
    "global": case({"kind": "global_shuffle"}),
    "global from SSDs": case({"kind": "global_shuffle", "source": "ssd"}, storage=True),
    "local": case({"kind": "local_shuffle"}),
    "partial": case(PARTIAL, storage=True, epochs=5),
    "partial, float32": case(PARTIAL | {"schedule": FAST}, dtype="float32", epochs=5),
    "partial, all_to_all": case(PARTIAL, transport="all_to_all"),
    "partial, no overlap, drop_last": case(
        PARTIAL | {"schedule": {"overlap": False, "barriers": "iteration"}}, drop_last=True
    ),
    "everything exchanged": case(PARTIAL | {"exchange_fraction": 1.0, "schedule": FAST}),
    "oldest": case(PARTIAL | {"selection": "oldest", "schedule": FAST}, epochs=5),
    "IS": case(IS),
    "IS, pass in training mode": case(
        IS | {"schedule": FAST}, importance_pass="train", statistics_momentum=0.3, drop_last=True
    ),
    "IS, float32": case(IS | {"schedule": FAST}, dtype="float32"),
    "ILag": case(IS | {"lagging": True, "schedule": FAST}),
    "ILag, drop_last": case(IS | {"lagging": True, "schedule": FAST}, drop_last=True),
    "IS-Pair": case(PAIR, storage=True),
    "IS-Pair, float32": case(PAIR, dtype="float32"),
    "IS-Pair, all_to_all": case(PAIR, transport="all_to_all"),
    "ILag-Pair": case(PAIR | {"lagging": True}),
    "synchronised batch norm, images": case(
        PARTIAL | {"schedule": FAST}, batch_norm="sync", model="small_cnn"
    ),
    "synchronised in pairs, images": case(
        PARTIAL | {"schedule": FAST}, batch_norm="sync", sync_ranks=2, model="small_cnn"
    ),
    "no batch norm": case(PARTIAL | {"schedule": FAST}, batch_norm="none"),
    "images": case(PARTIAL | {"schedule": FAST}, model="small_cnn"),
    **{
        f"28 x 28, {model}, {dtype}": case(
            PARTIAL | {"schedule": FAST},
            model=model,
            size=28,
            dtype=dtype,
            local_batch_size=4,
        )
        for model in ("small_cnn", "resnet")
        for dtype in ("float32", "float64")
    },
    "local negatives": case(PARTIAL | {"schedule": FAST}, loss={"kind": "contrastive"}),
    "gathered negatives": case(
        PARTIAL | {"schedule": FAST}, loss={"kind": "contrastive", "negatives": "gathered"}
    ),
}


ALSO_ON_TWO = [
    "global",
    "local",
    "partial",
    "partial, all_to_all",
    "IS",
    "ILag",
    "IS-Pair",
    "ILag-Pair",
    *(name for name in CASES if name.startswith("28")),
]


def cases(world_size: int) -> list[str]:
    """All of them on 4 ranks, fewer on 2."""
    return list(CASES) if world_size == 4 else ALSO_ON_TWO


def data_of(name: str) -> TrainingSet:
    """203 samples, which neither 2 nor 4 ranks share evenly; of 28 x 28 pixels 67."""
    rng, size = np.random.default_rng(7), CASES[name]["size"]
    count = 203 if size == 8 else 67
    labels = rng.integers(0, 5, count)
    if CASES[name]["model"] == "mlp":
        inputs = (rng.normal(size=(203, 12)) + labels[:, None] * 0.5).astype(np.float32)
        train = Samples(inputs, labels)
        test, views = Samples(inputs[:40], labels[:40]), Augmentation((1, 3, 4), 1, 0.5, 0.5)
        return TrainingSet("numbers", train, test, 5, augmentation=views)
    images = (
        rng.integers(0, 200, (count, 1, size, size)).astype(np.uint8)
        + (labels * 10).astype(np.uint8)[:, None, None, None]
    )
    return TrainingSet(
        "images", Samples(images, labels), Samples(images[:40], labels[:40]), 5, (0.4,), (0.3,)
    )


def run_of(name: str, world_size: int) -> Run:
    chosen = CASES[name]
    sizes = {"mlp": {"width": 16}, "small_cnn": {"width": 4}, "resnet": {"depth": 8}}
    raw = {
        "data": {"kind": "digits"},
        "model": {"kind": chosen["model"], **sizes[chosen["model"]]},
        "exchange": chosen["exchange"],
        "world_size": world_size,
        "seed": 3,
    }
    return Run.model_validate({**raw, "training": chosen["training"]})


def smooth_rectified(norm: nn.Module, x: torch.Tensor, added: Any = None) -> torch.Tensor:
    """SiLU of ``x`` through the batch norm ``norm``, plus ``added``: for `rectify_norm`."""
    output = norm(x)
    return nn.functional.silu(output if added is None else output + added)


@contextmanager
def networks(name: str) -> Iterator[None]:
    """Build narrow networks meanwhile, and smooth ones where the case trains in float32.

    A ResNet of a quarter of the channels has the same layers in the same order. Its convolutions,
    on which most of the time would go, cost a sixteenth.
    """
    with patch.object(residual, "WIDTHS", (4, 8, 16)):
        if CASES[name]["training"]["dtype"] == "float64":
            yield
            return
        with smooth_layers():
            yield


@contextmanager
def smooth_layers() -> Iterator[None]:
    """Build networks without kinks meanwhile."""
    with (
        patch.object(nn, "ReLU", nn.SiLU),
        patch.object(nn, "MaxPool2d", nn.AvgPool2d),
        patch.object(models, "rectify_norm", smooth_rectified),
        patch.object(residual, "rectify_norm", smooth_rectified),
    ):
        yield


# ------------------------------------------------------------------------------------ on every rank


def serve(rank: int, world_size: int, folder: Path) -> None:
    """One process: all cases one after the other; the weights and what the rank trained on go to
    ``folder``."""
    import torch.distributed as dist

    from simshuffle.train.distributed import train_distributed

    folder = folder / str(world_size)
    folder.mkdir(exist_ok=True)
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world_size,
        timeout=limit,
    )
    for number, name in enumerate(cases(world_size)):
        chosen, found = CASES[name], {}
        data = data_of(name)

        def watch(training, epoch, found=found, data=data):
            scheduler = training.scheduler
            scheduler.verify()
            order = np.array(scheduler.sampler.order)
            found[f"order{epoch}"] = order
            found[f"owner{epoch}"] = np.array(scheduler.owner)
            if scheduler.strategy.kind != "global_shuffle":
                held = scheduler.dataset.store.samples()
                assert (held == np.flatnonzero(scheduler.owner == rank)).all()
                for sample in held:
                    given, label = scheduler.dataset[int(sample)]
                    assert (given == data.train.inputs[sample]).all()
                    assert label == data.train.targets[sample]
            found.update(
                {
                    f"weight {key}": value.detach().numpy().copy()
                    for key, value in training.model.named_parameters()
                }
            )
            found.update(
                {
                    f"buffer {key}": value.numpy().copy()
                    for key, value in training.model.named_buffers()
                }
            )

        storage = folder / f"storage{number}" if chosen["storage"] else None
        with networks(name):
            record = train_distributed(
                run_of(name, world_size),
                data=data,
                transport=chosen["transport"],
                storage=storage,
                watcher=watch,
            )
        if record is not None:
            found |= {
                name: record.epochs[name].to_numpy()
                for name in record.epochs
                if name.endswith("_accuracy")
            }
            found["columns"] = np.array(record.epochs.columns, dtype=str)
            found["loss"] = record.epochs["train_loss"].to_numpy()
            found["moved"] = record.epochs["moved"].to_numpy()
        np.savez(folder / f"{number}-{rank}.npz", **found)
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """The folder with what four processes did, and then two of them."""
    return run_ranks(__file__, tmp_path_factory, 2 * SECONDS)


# ----------------------------------------------------------------------------------- emulated ranks


class Disturbance:
    """Changes each value at random, by at most ``size`` of itself."""

    def __init__(self, size: float, seed: int) -> None:
        self.size, self._generator = size, torch.Generator().manual_seed(seed)

    def disturb(self, values: torch.Tensor) -> torch.Tensor:
        """``values``, changed."""
        draws = torch.rand(values.shape, generator=self._generator, dtype=values.dtype)
        return values * (1 + self.size * (2 * draws - 1))

    def watch(self, emulation: Emulation) -> None:
        """Disturb what each layer passes on, its gradient, and gradients and values of weights."""
        for layer in emulation.network.model.modules():
            if not list(layer.children()):
                layer.register_forward_hook(self._disturb_output)
        emulation.optimizer.register_step_pre_hook(self._disturb_gradients)
        emulation.optimizer.register_step_post_hook(self._disturb_weights)

    def _disturb_output(self, layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        output = self.disturb(output)
        if output.requires_grad:
            output.register_hook(self.disturb)
        return output

    def _disturb_gradients(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for weight in optimizer.param_groups[0]["params"]:
            weight.grad = self.disturb(weight.grad)

    @torch.no_grad()
    def _disturb_weights(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for weight in optimizer.param_groups[0]["params"]:
            weight.copy_(self.disturb(weight))


@dataclass(frozen=True)
class EmulatedTraining:
    """A training on emulated ranks.

    Attributes:
        numbers: what rounding changes: weights, statistics of each rank, and by epoch the loss and
            the importance (N,) in nats where there is one.
        orders: of each epoch, the samples (n, M), and the owner (N,) of each sample after it.
        samples_moved: in each epoch.
        steps: of the optimiser.
        longest_sum: terms of the longest sum in a step.
    """

    numbers: dict[str, np.ndarray]
    orders: list[tuple[np.ndarray, np.ndarray]]
    samples_moved: list[int]
    steps: int
    longest_sum: int


def emulate(
    name: str, world_size: int, dtype: str, disturbance: Disturbance | None = None
) -> EmulatedTraining:
    """Train a case on emulated ranks in ``dtype``."""
    run, data = run_of(name, world_size), data_of(name)
    training = run.training.model_copy(update={"dtype": dtype})
    source = ArraySource(data.train, data.mean, data.std, dtype=torch_dtype(training))
    with networks(name):
        emulation = Emulation(
            initial_model(run, data),
            source,
            strategy=run.exchange,
            world_size=world_size,
            training=training,
            owner=run.partition.owner(data.train.targets, world_size, run.rng("partition")),
            seed=run.seed,
            augmentation=data.augmentation,
        )
    outputs = [1]  # values of a sample and channel that layers pass on

    def note_size(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        outputs.append(math.prod(output.shape[2:]))

    for layer in emulation.network.model.modules():
        layer.register_forward_hook(note_size)
    if disturbance is not None:
        disturbance.watch(emulation)

    numbers: dict[str, np.ndarray] = {}
    orders, samples_moved = [], []
    with networks(name):
        for epoch in range(1, training.epochs + 1):
            outcome = emulation.epoch()
            samples = epoch_samples(outcome.shards, drop_last=training.drop_last)
            orders.append((samples, emulation.owner.copy()))
            samples_moved.append(outcome.plan.samples_moved)
            numbers[f"loss {epoch}"] = np.array(outcome.train_loss)
            if outcome.importance is not None:
                numbers[f"importance {epoch}"] = outcome.importance
    for key, weight in emulation.weights().items():
        numbers[f"weight {key}"] = weight.double().numpy()
    for rank in range(world_size):
        for key, buffer in emulation.model(rank).named_buffers():
            numbers[f"buffer {key} of rank {rank}"] = buffer.double().numpy()

    features = max(weight[0].numel() for weight in emulation.weights().values() if weight.ndim > 1)
    values_of_channel = training.local_batch_size * world_size * max(outputs)
    return EmulatedTraining(
        numbers,
        orders,
        samples_moved,
        training.epochs * len(emulation.batch_sizes),
        max(features, values_of_channel),
    )


@dataclass(frozen=True)
class Rounding:
    """A training in float64, and how far one in another type may be from it.

    Attributes:
        reference: the training on emulated ranks in float64.
        tolerance: of each of its numbers.
    """

    reference: EmulatedTraining
    tolerance: dict[str, float]


def largest_difference(numbers: Any, reference: Any) -> float:
    """The largest absolute difference of two arrays."""
    return float(np.abs(numbers - reference).max())


def derive_rounding(name: str, world_size: int) -> Rounding:
    """Train a case in float64, undisturbed and disturbed.

    A rounding error of a step is at most 2 sqrt(n) u of each value, n the terms of the longest sum.
    Errors grow in proportion, so the growth of the disturbance is that of the rounding errors. The
    number that is compared has been rounded itself, and so has that of the reference.
    """
    dtype = CASES[name]["training"]["dtype"]
    reference, size = emulate(name, world_size, "float64"), DISTURBANCE[dtype]
    rounding = 2 * math.sqrt(reference.longest_sum) * UNIT_ROUNDOFF[dtype]
    grown = dict.fromkeys(reference.numbers, 0.0)
    for seed in range(DISTURBED_TRAININGS):
        disturbed = emulate(name, world_size, "float64", Disturbance(size, seed))
        check_orders(disturbed, reference)
        for key, number in reference.numbers.items():
            growth = largest_difference(disturbed.numbers[key], number) / size
            grown[key] = max(grown[key], growth * rounding)
    both = 1 + UNIT_ROUNDOFF["float64"] / UNIT_ROUNDOFF[dtype]
    tolerance = {
        key: both * (grown[key] + rounding * float(np.abs(number).max()))
        for key, number in reference.numbers.items()
    }
    return Rounding(reference, tolerance)


def check_orders(training: EmulatedTraining, reference: EmulatedTraining) -> None:
    """See that every rank trained on the same samples in the same order."""
    assert training.samples_moved == reference.samples_moved
    for orders, expected in zip(training.orders, reference.orders, strict=True):
        for order, expected_order in zip(orders, expected, strict=True):
            np.testing.assert_array_equal(order, expected_order)


# ---------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def rounding():
    """`derive_rounding`, once for each case."""
    return functools.cache(derive_rounding)


EVERY_CASE = [(world_size, name) for world_size in (2, 4) for name in cases(world_size)]


@pytest.mark.parametrize(("world_size", "name"), EVERY_CASE)
def test_real_ranks_do_what_emulated_ones_do(real, rounding, world_size, name):
    found = [
        dict(np.load(real / str(world_size) / f"{cases(world_size).index(name)}-{rank}.npz"))
        for rank in range(world_size)
    ]
    derived = rounding(name, world_size)
    reference, tolerance = derived.reference, derived.tolerance
    for epoch, (samples, owner) in enumerate(reference.orders, 1):
        for rank in range(world_size):
            length = len(found[rank][f"order{epoch}"])
            np.testing.assert_array_equal(found[rank][f"order{epoch}"], samples[:length, rank])
            np.testing.assert_array_equal(found[rank][f"owner{epoch}"], owner)
        loss = found[0]["loss"][epoch - 1]
        assert loss == pytest.approx(
            float(reference.numbers[f"loss {epoch}"]), rel=0, abs=tolerance[f"loss {epoch}"]
        )
    assert list(found[0]["moved"]) == reference.samples_moved
    assert any(reference.samples_moved) == bool(run_of(name, world_size).exchange.fraction)
    assert reference.steps >= (35 if name in {"partial", "partial, float32"} else 15)
    for key, number in reference.numbers.items():
        kind, _, place = key.partition(" ")
        if kind == "buffer":
            path, _, rank = place.partition(" of rank ")
            assert largest_difference(found[int(rank)][f"buffer {path}"], number) <= tolerance[key]
        elif kind == "weight":
            for rank in range(world_size):
                assert largest_difference(found[rank][key], number) <= tolerance[key], (key, rank)


@pytest.mark.parametrize(
    ("world_size", "name"), [case for case in EVERY_CASE if case[1].endswith("float32")]
)
def test_emulated_ranks_in_float32_do_what_they_do_in_float64(rounding, world_size, name):
    derived = rounding(name, world_size)
    single = emulate(name, world_size, "float32")
    check_orders(single, derived.reference)
    for key, number in derived.reference.numbers.items():
        assert largest_difference(single.numbers[key], number) <= derived.tolerance[key], key


@pytest.mark.parametrize("name", ["IS, float32", "IS-Pair, float32"])
def test_rounding_changes_no_order_of_importance(rounding, name):
    derived, run = rounding(name, 4), run_of(name, 4)
    owner = run.partition.owner(data_of(name).train.targets, 4, run.rng("partition"))
    for epoch, (_, next_owner) in enumerate(derived.reference.orders, 1):
        importance = derived.reference.numbers[f"importance {epoch}"]
        for rank in range(4):
            gaps = np.diff(np.sort(importance[owner == rank]))
            assert gaps.min() > 2 * derived.tolerance[f"importance {epoch}"]
        owner = next_owner


@pytest.mark.parametrize("name", ["partial, float32", "IS, float32", "28 x 28, small_cnn, float32"])
def test_a_sample_more_or_less_is_more_than_rounding(rounding, name):
    """One sample has the label of another class, as if a rank had trained on another sample."""
    derived = rounding(name, 4)
    data = data_of(name)
    data.train.targets[5] = (data.train.targets[5] + 1) % data.classes
    with patch(f"{__name__}.data_of", lambda _: data):
        wrong = emulate(name, 4, "float64")
    for key, number in derived.reference.numbers.items():
        if key.startswith(("weight", "loss")):
            assert largest_difference(wrong.numbers[key], number) > 3 * derived.tolerance[key], key


@pytest.mark.parametrize(
    "name",
    [
        "partial",
        "IS",
        "synchronised batch norm, images",
        "synchronised in pairs, images",
        "local negatives",
    ],
)
def test_their_tables_are_the_same(real, name):
    run, data = run_of(name, 4), data_of(name)
    emulated = train_run(run, data=data).epochs
    found = np.load(real / "4" / f"{cases(4).index(name)}-0.npz")
    for statistics in ("own", "rank0", "pooled", "recalibrated"):
        np.testing.assert_allclose(
            found[f"{statistics}_accuracy"], emulated[f"{statistics}_accuracy"], rtol=1e-9
        )
    assert list(found["columns"]) == list(emulated.columns)


def serve_both(rank: int) -> None:
    """All four ranks, and then two of them."""
    serve(rank, 4, Path(sys.argv[1]))
    if rank < 2:
        serve(rank, 2, Path(sys.argv[1]))


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_ranks(4, serve_both)
