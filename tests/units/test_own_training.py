"""Trainings of a model, data, loss and optimiser of the caller's: what they give, and what is said
about those that cannot be trained."""

import re
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

from simshuffle.cli import main
from simshuffle.errors import InputError, SimshuffleWarning, SimulationError
from simshuffle.spec.rng import stream
from simshuffle.studies.training.study import STUDY
from simshuffle.study import executors
from simshuffle.study.standing import Standing
from simshuffle.study.study import Result
from simshuffle.train import EmulatedRun, cell, emulate, train_study
from simshuffle.train.cell import OwnTraining
from simshuffle.train.emulate import train_materials
from simshuffle.train.own import mark_of
from simshuffle.train.sources import DatasetSource
from simshuffle.train.training import Training, TrainingOptions
from tests.drawn import laid_out

LAGGING = "importance_exchange:exchange_fraction=0.5,lagging=true"


pytestmark = pytest.mark.usefixtures("one_thread")


def tensors(count: int = 64) -> TensorDataset:
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(count, 6)).astype(np.float32)
    return TensorDataset(
        torch.from_numpy(inputs), torch.from_numpy((inputs[:, 0] > 0).astype(np.int64))
    )


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def emulated(**values: Any) -> EmulatedRun:
    torch.manual_seed(3)
    how = {"world_size": 4, "epochs": 2, "local_batch_size": 4, **values}
    return emulate(network(), tensors(), tensors(20), **how)


def weights(run: EmulatedRun) -> list[torch.Tensor]:
    return [weight.detach() for weight in run.model.parameters()]


# ----------------------------------------------------------------------------------------- the loss


def test_a_loss_is_trained_on_evaluated_with_and_taken_for_importance():
    """Twice the cross-entropy at half the learning rate: the same weights, twice the losses."""
    how = {"strategy": LAGGING, "weight_decay": 0.0, "dtype": "float64"}
    plain = emulated(learning_rate=0.1, **how)
    double = emulated(
        learning_rate=0.05,
        loss=lambda output, target: 2 * F.cross_entropy(output, target, reduction="none"),
        **how,
    )
    for one, other in zip(weights(plain), weights(double), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
    for column in ("train_loss", "own_loss", "pooled_loss"):
        np.testing.assert_allclose(double.epochs[column], 2 * plain.epochs[column], rtol=1e-10)
    np.testing.assert_allclose(double.importance["mean"], 2 * plain.importance["mean"], rtol=1e-10)


def test_a_module_of_torch_is_a_loss():
    smooth = emulated(loss=nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1))
    assert smooth.status == "done"
    assert not torch.equal(weights(smooth)[0], weights(emulated())[0])


def centred(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(output, target, reduction="none")
    return losses - losses.mean() + 1


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (F.cross_entropy, "one number for each sample.*reduction='none'"),
        (nn.CrossEntropyLoss(), "one number for each sample.*got shape \\(\\)"),
        (lambda output, target: output, "one number for each sample.*got shape \\(4, 2\\)"),
        (lambda output, target: 0.0, "one number for each sample.*got a float"),
        (
            partial(F.mse_loss, reduction="none"),
            "cannot take outputs and targets.*outputs \\(4, 2\\)",
        ),
        (centred, "must depend on that sample only.*got centred"),
        (lambda o, t: F.cross_entropy(o.detach(), t, reduction="none"), "must have a gradient"),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_that_cannot_be_trained_with_is_refused_at_once(loss, told):
    with pytest.raises(InputError, match=f"loss: .*{told}"):
        emulated(loss=loss)


# ------------------------------------------------------------------------------------ the optimiser


def test_an_optimizer_that_is_sgd_trains_as_sgd_to_the_last_bit():
    how = {"epochs": 3, "warmup_epochs": 1, "learning_rate_scaling": "sqrt"}
    plain = emulated(learning_rate=0.3, momentum=0.5, weight_decay=0.01, **how)
    factory = partial(torch.optim.SGD, lr=0.3, momentum=0.5, weight_decay=0.01, foreach=True)
    own = emulated(optimizer=factory, **how)
    for one, other in zip(weights(plain), weights(own), strict=True):
        assert torch.equal(one, other)
    assert own.description["learning_rate"] == plain.description["learning_rate"]
    assert own.epochs.learning_rate.tolist() == plain.epochs.learning_rate.tolist()


def test_adam_on_one_rank_is_adam():
    """Whole batches of all samples, so that their order does not matter; without decay."""
    how = {"world_size": 1, "local_batch_size": 64, "epochs": 5, "decay": "none"}
    own = emulated(optimizer=partial(torch.optim.Adam, lr=0.02), dtype="float64", **how)
    torch.manual_seed(3)
    model = network().double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    inputs, targets = (part for part in tensors().tensors)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(model(inputs.double()), targets).backward()
        optimizer.step()
    for one, other in zip(weights(own), model.parameters(), strict=True):
        torch.testing.assert_close(one, other.detach(), rtol=0, atol=1e-10)


def test_groups_keep_their_ratio_under_warm_up_and_decay():
    """A group of a learning rate next to nothing stays where it was."""

    def groups(parameters: Iterator[nn.Parameter]) -> torch.optim.Optimizer:
        first, *others = parameters
        slow = {"params": [first], "lr": 1e-30}
        return torch.optim.SGD([{"params": others}, slow], lr=0.1)

    torch.manual_seed(3)
    begin = network()[0].weight.detach().clone()
    run = emulated(optimizer=groups, warmup_epochs=1)
    found = weights(run)
    assert torch.equal(found[0], begin)
    assert not torch.equal(found[2], weights(emulated(optimizer=groups, epochs=1))[2])
    assert run.description["learning_rate"] == 0.1


@pytest.mark.parametrize(
    ("optimizer", "values", "told"),
    [
        (partial(torch.optim.Adam, rate=1), {}, "optimizer: cannot be made.*rate"),
        (lambda parameters: None, {}, "optimizer: must make a torch.optim.Optimizer.*NoneType"),
        (lambda p: torch.optim.SGD(list(p)[1:], lr=1.0), {}, "hold all weights.*0.weight"),
        (partial(torch.optim.SGD, lr=0.0), {}, "optimizer: must have a learning rate lr above 0"),
        (torch.optim.LBFGS, {}, "optimizer: must step without a closure; got LBFGS"),
        (torch.optim.Adam, {"learning_rate": 0.1}, "learning_rate: is not used beside an opti"),
        (torch.optim.Adam, {"momentum": 0.1, "nesterov": True}, "2 problems"),
    ],
)
def test_an_optimizer_that_cannot_be_used_is_refused(optimizer, values, told):
    with pytest.raises(InputError, match=told):
        emulated(optimizer=optimizer, **values)


# ---------------------------------------------------------------------------------------- the study

STRATEGIES = ["local_shuffle", "partial_local_shuffle:exchange_fraction=0.5"]
HOW = {"world_size": 4, "epochs": 2, "local_batch_size": 4, "learning_rate": 0.1, "device": "cpu"}


class Net(nn.Sequential):
    def __init__(self, width: int = 8) -> None:
        super().__init__(nn.Linear(6, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def test_an_editor_knows_all_fields_of_a_training():
    assert TrainingOptions.__annotations__.keys() == Training.model_fields.keys() - {"loss"}


def study(model: Any = Net, train: Any = None, **values: Any) -> Result:
    how = HOW | {"strategies": STRATEGIES, "seeds": 2, "progress": False}
    if "optimizer" in values:
        del how["learning_rate"]
    return train_study(model, tensors() if train is None else train, tensors(20), **how | values)


def test_a_study_is_its_runs_one_by_one():
    result = study()
    runs = result.tables["runs"]
    assert len(runs) == 4
    assert set(runs["status"]) == {"done"}
    assert set(runs["model"] + " on " + runs["data"]) == {"Net on TensorDataset"}
    for row in runs.to_dict("records"):
        torch.manual_seed(int(stream(row["seed"], "weights").integers(2**63 - 1)))
        how = HOW | {"strategy": STRATEGIES[row["strategy"] == "partial"], "seed": row["seed"]}
        single = emulate(Net(), tensors(), tensors(20), **how)
        epochs = result.tables["epochs"].query("run == @row['run']").reset_index(drop=True)
        for column in ("train_loss", "own_loss", "own_accuracy", "moved"):
            assert epochs[column].tolist() == single.epochs[column].tolist()
    summary = result.derived["summary"].query("statistics == 'own'")
    assert summary["seeds"].tolist() == [2, 2]
    assert summary["low"].notna().all()


def test_a_folder_has_plans_and_names_what_only_python_has(tmp_path, capsys):
    result = study(world_size=[4, 8], model_name="small net", data_name="noise")
    folder = result.save(tmp_path / "mine")
    assert (folder / "accuracy_world_size.png").is_file()
    assert len(list((folder / "plans").iterdir())) == 4
    assert "Trained: small net on noise." in (folder / "report.txt").read_text()
    # the file of the study names what no file can hold
    assert main(["train", str(folder / "study.yaml")]) == 2
    assert "data: must be given from Python; got noise" in capsys.readouterr().err


def test_nothing_is_said_of_batch_norm_where_the_network_has_none(tmp_path):
    how = {"strategies": ["global_shuffle", "local_shuffle"], "epochs": 1}
    over = {"partition": ["sorted", "random"]}
    result = study(network, world_size=[4, 8], over=over, **how)
    assert set(result.tables["runs"]["batch_norm"]) == {"absent"}
    folder = result.save(tmp_path / "mine")
    said = (folder / "report.txt").read_text()
    assert "\n partition=random, M = 4 " in said
    drawn = [axes.get_title() for each in figures_of(result) for axes in laid_out(each).axes]
    assert "M = 4\npartition=sorted" in drawn
    for word in ("batch norm", "batch-norm", "statistics"):
        assert word not in (said + "".join(drawn)).lower()
    runs = {run["batch_norm"] for run in result.meta["runs"].values()}
    assert runs == {emulated().description["batch_norm"]} == {"absent"}
    plain, normal = (STUDY.texts["report.txt"](study(kind, **how)) for kind in (network, Net))
    assert "\n M = 4 " in plain
    assert re.search("\n  (No difference|Local shuffle).* M = 4", plain)
    assert "\n Batch norm per rank, M = 4 " in normal
    assert "with the statistics 'own'" in normal


def figures_of(result: Result) -> list[Any]:
    return list(STUDY.figures(result).values())


def test_seeds_draw_weights_and_strategies_share_them():
    result = study(strategies=["local_shuffle", "global_shuffle"], learning_rate=1e-30, seeds=3)
    accuracies = result.tables["runs"].groupby("seed")["pooled_loss"]
    assert (accuracies.nunique() <= 2).all()  # but for batch norm's statistics
    assert accuracies.first().nunique() == 3
    untouched = study(
        lambda: nn.Sequential(nn.Linear(6, 2)), strategies=STRATEGIES, learning_rate=1e-30, seeds=3
    )
    losses = untouched.tables["runs"].groupby("seed")["own_loss"]
    assert (losses.nunique() == 1).all()
    assert losses.first().nunique() == 3


def test_lists_by_dotted_key_are_combined():
    result = study(over={"training.local_batch_size": [2, 4]}, seeds=[7])
    variants = result.tables["runs"]["variant"].tolist()
    assert sorted(variants) == ["local_batch_size=2"] * 2 + ["local_batch_size=4"] * 2


def test_finished_runs_are_found_again_under_their_version_alone(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(
        cell,
        "train_materials",
        lambda run, *rest, **how: done.append(run.seed) or train_materials(run, *rest, **how),
    )

    def runs(**values: Any) -> int:
        before = len(done)
        study(**{"version": "1", "kept_in": tmp_path, **values})
        return len(done) - before

    assert runs() == 4
    assert runs() == 0
    assert runs(seeds=3) == 2
    assert runs(version="2") == 4
    assert runs(optimizer=partial(torch.optim.SGD, lr=0.1)) == 4
    assert runs(optimizer=partial(torch.optim.SGD, lr=0.2)) == 4
    assert runs(loss=nn.CrossEntropyLoss(reduction="none")) == 4
    assert runs(model=lambda: Net(9)) == 4
    assert runs(train=tensors(60)) == 4
    assert runs(version="", kept_in=None) == 4
    with pytest.raises(InputError, match="version: is needed with kept_in"):
        runs(version="")


def test_processes_give_the_same_and_need_no_importable_model(monkeypatch):
    monkeypatch.setattr(executors, "WORTH_PROCESSES", 0.0)
    width = 8

    class Inner(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 2))

    one, two = (study(Inner, processes=count).tables["epochs"] for count in (1, 2))
    timed = ["importance_s"]
    pd.testing.assert_frame_equal(
        one.drop(columns=timed, errors="ignore"), two.drop(columns=timed, errors="ignore")
    )


class Locked(TensorDataset):
    def __init__(self) -> None:
        super().__init__(*tensors().tensors)
        self.lock = threading.Lock()


def test_what_cannot_be_sent_to_a_process_is_said(monkeypatch):
    monkeypatch.setattr(executors, "WORTH_PROCESSES", 0.0)
    with pytest.raises(
        SimulationError, match=r"cannot be sent to another process .*lock.*: use one process"
    ):
        study(train=Locked(), processes=2)
    assert set(study(train=Locked(), processes=1).tables["runs"]["status"]) == {"done"}


def test_progress_is_told():
    told: list[Standing] = []
    study(progress=told.append)
    assert told[-1].done == told[-1].total == 4
    assert any(0 < share < 1 for each in told for share in each.running.values())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"model": Net()}, "model: must make a new torch.nn.Module.*got a Net. Pass model=lambda"),
        ({"model": lambda: None}, "model: must make a new torch.nn.Module"),
        ({"model": lambda: nn.Linear(5, 2)}, "model: cannot take the samples"),
        ({"world_size": [4, 65]}, "world_size: must not exceed the number of training samples, 64"),
        ({"strategies": ["global_shufle"]}, "- strategies.*must be one of"),
        ({"strategies": [0.1]}, "- strategies: must be"),
        ({"strategies": []}, "- strategies: "),
        ({"world_size": "4"}, "- world_size: must be a whole number"),
        ({"over": {"training.learning_rate": 0.1}}, r"over.training.learning_rate: must be a list"),
        ({"over": {"partition": ["shard"]}}, "- over.partition.*must be one of"),
        ({"model": nn.Flatten}, "model: must have weights that can be trained"),
        ({"loss": "cross_entropy"}, "loss: must be a function of outputs.*got a str"),
        (
            {"optimizer": torch.optim.SGD(network().parameters(), lr=0.1)},
            "optimizer: must be a function that makes an optimiser.*got a SGD",
        ),
        ({"optimizer": lambda given: torch.optim.SGD([], lr=0.1)}, "optimizer.*empty parameter"),
        ({"train": TensorDataset(tensors().tensors[0])}, "train: items must be pairs.*its label"),
        ({"seeds": 0}, "seeds: must be a list of whole numbers"),
        ({"epoch": 3}, "training.epoch: is not a known key.*epochs"),
        ({"over": {"training.epoch": [1]}}, "training.epoch"),
        ({"device": "tpu"}, "device: cannot be used"),
    ],
)
def test_a_study_that_cannot_be_trained_is_refused_before_the_first_run(values, told):
    with pytest.raises(InputError, match=told):
        study(**values)


def test_a_local_batch_larger_than_a_shard_is_warned_of():
    told = "local batch size 17 is larger than the 16 samples of a rank .64 samples, 4 ranks"
    with pytest.warns(SimshuffleWarning, match=told):
        emulated(local_batch_size=17, epochs=1)
    with pytest.warns(SimshuffleWarning, match=told):
        study(local_batch_size=17, epochs=1, seeds=1)
    emulated(local_batch_size=16, epochs=1)


def test_the_command_line_says_it_in_a_line(here, capsys):
    values = ["seeds=1", "training.epochs=1", "world_size=128", "training.local_batch_size=20"]
    assert main(["train", "quick", *(f"--set={value}" for value in values)]) == 0
    told = capsys.readouterr().err
    assert told.count("Warning: The local batch size 20 is larger than the 12 samples of a ra") == 1


def test_rows_of_tensors_are_the_items_one_by_one():
    class Items(TensorDataset):
        pass

    whole, items = (DatasetSource(kind(*tensors().tensors)) for kind in (TensorDataset, Items))
    assert whole.targets.tolist() == items.targets.tolist()
    for one, other in zip(
        whole.batch(np.array([3, 1, 3])), items.batch(np.array([3, 1, 3])), strict=True
    ):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_weights_of_every_type_tell_trainings_apart():
    """numpy has no bfloat16."""
    train = DatasetSource(tensors(), name="train")
    marks = set()
    for bias in (0.0, 1.0):
        net = network().to(torch.bfloat16)
        with torch.no_grad():
            list(net.parameters())[-1].fill_(bias)
        custom = OwnTraining(network, tensors(), tensors(), F.cross_entropy, None)
        marks.add(mark_of(net, custom, train, train))
    assert len(marks) == 2
