"""Scheduler, local storage and samples of real ranks: what goes wrong is told on all ranks, and no
sample is lost."""

import copy
import json
import os
import sys
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from simshuffle.errors import InputError
from simshuffle.train.batch_norm import ConvertedNorm
from simshuffle.train.distributed import (
    ExchangeError,
    ImageFolder,
    Scheduler,
    ShardDataset,
    data_parallel,
)
from simshuffle.train.distributed.carrying import faults
from simshuffle.train.distributed.group import list_samples
from simshuffle.train.distributed.network import SyncedBatchNorm
from simshuffle.train.distributed.storage import FolderStore, decode, encode
from simshuffle.train.distributed.transport import messages_of
from simshuffle.workload.exchange import ExchangePlan
from tests.preloaded import PATIENCE, Preloaded, fork_ranks, run_ranks

SECONDS = 240
ROOT = Path(__file__).parents[2]
COUNT = 41
"""Samples, which three ranks do not share evenly."""


def dataset(count: int = COUNT) -> TensorDataset:
    inputs = torch.arange(count * 3, dtype=torch.float64).reshape(count, 3)
    return TensorDataset(inputs, torch.arange(count) % 4)


def tree(root: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(COUNT):
        folder = root / f"class{number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (6 + number % 3, 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:03d}.{'jpg' if number % 2 else 'png'}")


# ---------------------------------------------------- three processes, one scenario after the other


def epoch(scheduler: Scheduler, number: int) -> list[int]:
    """An epoch without training; what this rank read."""
    scheduler.scheduling(number)
    pending: tuple = ([], [])
    for _ in range(len(scheduler.batch_sizes)):
        scheduler.synchronize(*pending)
        pending = scheduler.communicate()
    scheduler.synchronize(*pending)
    read = scheduler.sampler.order.tolist()
    scheduler.clean_local_storage()
    return read


def refused(action) -> str:
    try:
        action()
    except (InputError, ExchangeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def warned(action) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in told]


def storage_error(rank: int, folder: Path) -> dict:
    shard = ShardDataset(dataset(), folder / "storage")
    scheduler = Scheduler(shard, 4, 0.5)
    put, before = shard.store.write, shard.store.samples().tolist()

    def broken(sample, content):
        raise OSError(28, "No space left on device")

    if rank == 1:
        shard.store.write = broken
    error = refused(lambda: epoch(scheduler, 1))
    after = shard.store.samples().tolist()
    scheduler.verify()
    shard.store.write = put
    read = epoch(scheduler, 1)
    scheduler.verify()
    return {
        "error": error,
        "before": before,
        "after": after,
        "again": read,
        "moved": shard.store.samples().tolist() != before,
    }


def damage(rank: int, folder: Path) -> dict:
    shard = ShardDataset(dataset(), folder / "storage")
    scheduler = Scheduler(shard, 4, strategy="local_shuffle")
    mine = [shard.store.samples().tolist(), None, None]
    lists = scheduler.ranks.gather(np.array(mine[0]))
    missing, twice, broken = int(lists[0][0]), int(lists[1][0]), int(lists[2][0])
    if rank == 0:
        shard.store.remove(missing)
        shard.store.write(twice, encode(dataset()[twice]))
    if rank == 2:
        content = bytearray(shard.store.get(broken))
        content[-1] ^= 1
        shard.store.write(broken, bytes(content))
    return {
        "error": refused(scheduler.verify),
        "missing": missing,
        "twice": twice,
        "broken": broken,
    }


def mismatch(rank: int, folder: Path) -> dict:
    return {"error": refused(lambda: Scheduler(ShardDataset(dataset(COUNT + (rank == 2))), 4, 0.5))}


def no_room(rank: int, folder: Path) -> dict:
    shard = ShardDataset(dataset(), folder / "storage")
    shard.store.free_space = lambda: ("host:1", 1000)
    return {
        "error": refused(lambda: Scheduler(shard, 4, 0.5)),
        "written": len(shard.store.samples()),
    }


def peak(rank: int, folder: Path) -> dict:
    shard = ShardDataset(dataset(), folder / "storage")
    scheduler = Scheduler(shard, 4, 0.4, transport="all_to_all")
    most = []
    for number in range(1, 6):
        scheduler.scheduling(number)
        for _ in scheduler.batch_sizes:
            scheduler.synchronize()
            scheduler.communicate()
        scheduler.synchronize()
        most.append(len(shard.store.samples()))
        scheduler.clean_local_storage()
        scheduler.verify()
    return {"most": most, "sizes": np.bincount(scheduler.owner).tolist()}


def once(rank: int, folder: Path) -> dict:
    scheduler = Scheduler(ShardDataset(dataset()), 4, 0.5)
    scheduler.scheduling(1)
    send, receive = scheduler.communicate()  # once an epoch; the rest is carried out at its end
    scheduler.synchronize(send, receive)
    again = (
        refused(lambda: scheduler.synchronize(send, receive)) if send or receive else "InputError"
    )
    told = warned(scheduler.clean_local_storage)
    scheduler.verify()
    return {
        "told": told,
        "again": again,
        "owner": scheduler.owner.tolist(),
        "planned": scheduler.plan.samples_moved,
    }


def images(rank: int, folder: Path) -> dict:
    if rank == 0:
        tree(folder / "tree")
    dist.barrier()
    out = {}
    for payload in ("encoded", "decoded"):
        strategy = (
            "partial_local_shuffle:exchange_fraction=0.6,"
            f"schedule.payload={payload},schedule.barriers=none"
        )
        shard = ImageFolder(folder / "tree", folder / f"storage-{payload}", transform=np.asarray)
        scheduler = Scheduler(shard, 4, strategy=strategy)
        for number in (1, 2, 3):
            epoch(scheduler, number)
        scheduler.verify()
        out[payload] = {
            int(s): [shard[int(s)][0].tolist(), shard[int(s)][1]] for s in shard.store.samples()
        }
    return out | {"classes": shard.classes}


def checkpoint(rank: int, folder: Path) -> dict:
    def made() -> Scheduler:
        strategy = "importance_pair:exchange_fraction=0.3,lagging=true,selection=oldest"
        return Scheduler(ShardDataset(dataset(), folder / "storage", seed=5), 4, strategy=strategy)

    def train(scheduler, number):
        scheduler.scheduling(number)
        scheduler.record_losses(torch.from_numpy(1.0 + scheduler.sampler.order))
        order = scheduler.sampler.order.tolist()
        scheduler.clean_local_storage()
        return order

    first = made()
    for number in (1, 2):
        train(first, number)
    first.losses.share(first.ranks)
    torch.save(first.state_dict(), folder / f"state{rank}")
    straight = [train(first, number) for number in (3, 4)]
    second = made()
    second.load_state_dict(torch.load(folder / f"state{rank}", weights_only=True))
    resumed = [train(second, number) for number in (3, 4)]
    second.verify()
    return {"straight": straight, "resumed": resumed}


def forgotten(rank: int, folder: Path) -> dict:
    fresh = Scheduler(
        ShardDataset(dataset()), 4, strategy="importance_exchange:exchange_fraction=0.3"
    )
    lagging = Scheduler(
        ShardDataset(dataset()),
        4,
        strategy="importance_exchange:exchange_fraction=0.3,lagging=true",
    )
    epoch(lagging, 1)
    model = nn.Linear(3, 4).double()
    if rank != 1:
        fresh.measure_importance(model)
    return {
        "fresh": refused(lambda: fresh.scheduling(1)),
        "lagging": refused(lambda: lagging.scheduling(2)),
    }


WAYS = {
    "global": "global_shuffle",
    "local": "local_shuffle",
    "partial": "partial_local_shuffle:exchange_fraction=0.5",
    "no overlap": "partial_local_shuffle:exchange_fraction=0.5,schedule.overlap=false",
    "IS": "importance_exchange:exchange_fraction=0.4",
    "ILag-Pair": "importance_pair:exchange_fraction=0.4,lagging=true",
}


def looped(rank: int, folder: Path) -> dict:
    """Two epochs by the authors' calls and by the loop: weights, shards and what was read."""

    def begin(strategy: str, name: str):
        torch.manual_seed(0)
        shard = ShardDataset(dataset(), folder / name)
        scheduler = Scheduler(shard, 4, strategy=strategy)
        model = data_parallel(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double())
        return scheduler, model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step(scheduler, model, optimizer, batch, wait=lambda: None):
        losses = nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
        optimizer.zero_grad()
        losses.mean().backward()
        wait()
        optimizer.step()
        scheduler.record_losses(losses)
        return batch[0].tolist()

    def by_calls(scheduler, model, optimizer, number):
        scheduler.scheduling(number)
        loader = DataLoader(scheduler.dataset, batch_size=4, sampler=scheduler.sampler)
        read = []
        for batch in loader:
            read.append(step(scheduler, model, optimizer, batch, scheduler.synchronize))
            scheduler.communicate()
        scheduler.clean_local_storage()
        return read

    def by_loop(scheduler, model, optimizer, number):
        return [step(scheduler, model, optimizer, batch) for batch in scheduler.epoch(number)]

    def trained(strategy: str, an_epoch, name: str):
        scheduler, model, optimizer = begin(strategy, name)
        read = []
        for number in (1, 2, 3):
            if scheduler.strategy.inference_pass:
                scheduler.measure_importance(model)
            read.append(an_epoch(scheduler, model, optimizer, number))
        scheduler.verify()
        weights = [weight.tolist() for weight in model.parameters()]
        return {"weights": weights, "owner": scheduler.owner.tolist(), "read": read}

    return {
        name: [trained(way, by_calls, f"{name}-calls"), trained(way, by_loop, f"{name}-loop")]
        for name, way in WAYS.items()
    }


def unlike(rank: int, folder: Path) -> dict:
    """Loaders that differ from the scheduler, and loops that are left."""

    def made(**values) -> tuple[Scheduler, DataLoader]:
        scheduler = Scheduler(ShardDataset(dataset()), 4, 0.5)
        how = {"batch_size": 4, "sampler": scheduler.sampler, **values}
        return scheduler, DataLoader(scheduler.dataset, **how)

    def ended(scheduler, loader) -> int:
        return sum(1 for _ in scheduler.epoch(scheduler.epochs_done + 1, loader))

    out = {}
    scheduler, loader = made(batch_size=8)
    out["larger"] = warned(lambda: ended(scheduler, loader))
    out["only once"] = warned(lambda: ended(scheduler, loader))
    scheduler.verify()
    scheduler, loader = made(batch_size=2, drop_last=True)
    out["smaller"] = warned(lambda: ended(scheduler, loader))
    scheduler, loader = made()
    out["same"] = warned(lambda: ended(scheduler, loader))
    scheduler, loader = made(sampler=None)
    out["sampler"] = refused(lambda: scheduler.epoch(1, loader))
    out["large"] = warned(lambda: Scheduler(ShardDataset(dataset()), 15, 0.5))
    out["whole"] = warned(lambda: Scheduler(ShardDataset(dataset()), 14, 0.5))
    scheduler, loader = made()
    for _ in scheduler.epoch(1):
        break
    out["left"] = refused(lambda: next(iter(scheduler.epoch(2))))
    out["told"] = warned(scheduler.clean_local_storage)
    out["goes on"] = ended(scheduler, loader)
    scheduler.verify()
    by_hand, loader = made(batch_size=8)

    def authors() -> None:
        by_hand.scheduling(1)
        for _ in loader:
            by_hand.synchronize()
            by_hand.communicate()
        by_hand.clean_local_storage()

    out["by hand"] = warned(authors)
    mean = refused(lambda: by_hand.scheduling(2) or by_hand.record_losses(torch.tensor(0.5)))
    return {**out, "mean": mean}


def death(rank: int, folder: Path) -> dict:
    """Rank 2 ends in the middle of the exchange. The last scenario, because the process group is
    broken then."""
    shard = ShardDataset(dataset(), folder / "storage")
    scheduler = Scheduler(shard, 4, 0.9)
    scheduler.scheduling(1)
    scheduler.synchronize(*scheduler.communicate())
    if rank == 2:
        os._exit(0)

    def rest():
        for _ in range(len(scheduler.batch_sizes)):
            scheduler.synchronize(*scheduler.communicate())
        scheduler.clean_local_storage()

    return {"error": refused(rest)}


SCENARIOS = [
    storage_error,
    damage,
    mismatch,
    no_room,
    peak,
    once,
    images,
    checkpoint,
    forgotten,
    looped,
    unlike,
    death,
]


def serve(rank: int, folder: Path) -> None:
    limit = timedelta(seconds=SECONDS)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=3, timeout=limit
    )
    for scenario in SCENARIOS:
        place = folder / scenario.__name__
        place.mkdir(exist_ok=True)
        found = scenario(rank, place)
        (place / f"found{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """The folder of three ranks, with what each found in each scenario."""
    return run_ranks(__file__, tmp_path_factory, SECONDS)


def of(folder, scenario, ranks=(0, 1, 2)):
    place = folder / scenario.__name__
    return [json.loads((place / f"found{rank}.json").read_text()) for rank in ranks]


def test_a_sample_that_cannot_be_stored_is_told_on_all_ranks_and_none_is_lost(three):
    found = of(three, storage_error)
    for each in found:
        assert each["error"].startswith("ExchangeError: rank 1: sample")
        assert "No space left on device" in each["error"]
        assert each["before"] == each["after"]
        assert each["moved"]
    assert sorted(sample for each in found for sample in each["before"]) == list(range(COUNT))


def test_verify_names_what_is_missing_twice_there_and_damaged_on_all_ranks(three):
    for each in of(three, damage):
        assert f"missing: {each['missing']} (should be on rank 0)" in each["error"]
        assert f"more than once: {each['twice']} (on ranks 0, 1)" in each["error"]
        assert f"damaged on rank 2: {each['broken']}" in each["error"]


@pytest.mark.parametrize(
    ("scenario", "key", "told"),
    [
        (mismatch, "error", "must be the same on all ranks; got 41 on rank 0, 42 on rank 2"),
        (no_room, "error", "the shards of 3 ranks must fit on host:1"),
        (forgotten, "fresh", "importance: must be measured for epoch 1; got none on rank 1"),
        (forgotten, "lagging", "of all samples of epoch 1 must be recorded"),
        (unlike, "sampler", "loader: must use the sampler of the scheduler"),
        (unlike, "left", "cannot be scheduled while another one is under way"),
        (unlike, "mean", "loss: must be one number for each sample, shape (n,)"),
    ],
)
def test_what_is_wrong_is_told_on_all_ranks(three, scenario, key, told):
    assert [told in each[key] for each in of(three, scenario)] == [True] * 3


def test_nothing_is_written_of_shards_that_do_not_fit_and_a_loop_that_was_left_goes_on(three):
    assert [each["written"] for each in of(three, no_room)] == [0] * 3
    assert [each["goes on"] for each in of(three, unlike)] == [4] * 3


def test_at_most_1_plus_q_of_a_shard_is_stored(three):
    for rank, each in enumerate(of(three, peak)):
        shard = each["sizes"][rank]
        assert max(each["most"]) <= shard + round(0.4 * COUNT / 3) + 1
        assert max(each["most"]) > shard


def test_what_a_loop_leaves_over_is_exchanged_at_the_end_of_the_epoch(three):
    found = of(three, once)
    assert found[0]["planned"] > 0
    assert len({str(each["owner"]) for each in found}) == 1
    assert all(each["again"].startswith("InputError") for each in found)
    assert "communicate() was called 1 times in an epoch of 4 iterations" in found[0]["told"][0]
    assert [len(each["told"]) for each in found] == [1, 0, 0]


def test_images_travel_as_files_or_as_pixels(three):
    found = of(three, images)
    folder = three / "images" / "tree"
    files = [path for name in found[0]["classes"] for path in sorted((folder / name).iterdir())]
    for payload in ("encoded", "decoded"):
        held = {int(sample): item for each in found for sample, item in each[payload].items()}
        assert sorted(held) == list(range(COUNT))
        for sample, path in enumerate(files):
            with Image.open(path) as image:
                assert held[sample] == [
                    np.asarray(image.convert("RGB")).tolist(),
                    found[0]["classes"].index(path.parent.name),
                ]


def test_a_checkpoint_goes_on_as_if_nothing_had_happened(three):
    for each in of(three, checkpoint):
        assert each["straight"] == each["resumed"]


@pytest.mark.parametrize("name", WAYS)
def test_the_loop_gives_what_the_authors_calls_give_to_the_last_bit(three, name):
    for each in of(three, looped):
        by_calls, by_loop = each[name]
        assert by_calls == by_loop
        assert len(by_loop["read"]) == 3
        assert np.isfinite(np.concatenate([np.ravel(w) for w in by_loop["weights"]])).all()
    assert len({str(each[name][1]["weights"]) for each in of(three, looped)}) == 1


def test_loaders_that_differ_are_warned_of_once_and_on_rank_0_alone(three):
    first, *others = of(three, unlike)
    assert first["larger"] == ["batch_size is 8 in the loader, 4 in the scheduler: make both equal"]
    assert first["only once"] == first["same"] == first["whole"] == []
    (told,) = first["smaller"]
    assert "batch_size is 2 in the loader, 4" in told
    assert "drop_last is True in the loader, False" in told
    (told,) = first["large"]
    assert "The local batch size 15 is larger than the 14 samples of a rank (41 samples, 3" in told
    (told,) = first["by hand"]
    assert (
        "communicate() was called 2 times in an epoch of 4 iterations, local batches of 4" in told
    )
    names = ("larger", "smaller", "large", "told", "by hand")
    assert not any(each[name] for each in others for name in names)


def test_no_sample_is_lost_when_a_process_dies(three):
    for each in of(three, death, (0, 1)):
        assert each["error"].startswith("ExchangeError")
        assert "No sample was removed" in each["error"]
    held = {
        int(path.name)
        for rank in range(3)
        for path in (three / "death" / "storage" / f"rank-{rank:05d}").iterdir()
    }
    assert held == set(range(COUNT))


# -------------------------------------------------------------------------------------- one process


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A process group of this process alone."""
    dist.init_process_group(
        "gloo",
        init_method=f"file://{tmp_path_factory.mktemp('alone')}/meeting",
        rank=0,
        world_size=1,
    )
    yield
    dist.destroy_process_group()


def test_without_a_process_group():
    with pytest.raises(InputError, match="process group: must be initialised"):
        ShardDataset(dataset())


def scheduler(*arguments, source=None, **keys):
    return Scheduler(ShardDataset(dataset() if source is None else source), *arguments, **keys)


def weighted(weights, *, begins=False):
    of = scheduler(10, 0.0, source=labelled(), weights=weights)
    return of.scheduling(1) if begins else of


def measured(parts):
    of = scheduler(4, source=TensorDataset(*[torch.zeros(8, 3)] * parts), strategy=IMPORTANCE)
    of.measure_importance(nn.Linear(3, 2))


IMPORTANCE = "importance_exchange:exchange_fraction=0.5"
REFUSED = {
    "either a fraction or a strategy": lambda: scheduler(4),
    "transport: must be one of isend, all_to_all; got 'carrier pigeon'": lambda: scheduler(
        4, 0.1, transport="carrier pigeon"
    ),
    "- fraction: should be less than or equal to 1": lambda: scheduler(4, 1.5),
    r"- strategy\.exchange_fraction: should be less": lambda: scheduler(
        4, strategy="importance_pair:exchange_fraction=1.5"
    ),
    "- batch_size: should be greater than or equal to 1": lambda: scheduler(0, 0.5),
    "dataset: must be a ShardDataset; got TensorDataset": lambda: Scheduler(dataset(), 4, 0.5),
    r"partition\.kind": lambda: ShardDataset(dataset(), partition="alphabetical"),
    "must be the labels of all": lambda: Scheduler(
        ShardDataset(dataset(), partition="sorted"), 4, 0.5
    ),
    r"must be a number for each of the 1000 samples; got shape \(7,\)": lambda: weighted(
        np.ones(7)
    ),
    "weights: must be finite and not negative": lambda: weighted(np.full(1000, -1.0)),
    "weights: must be finite and not neg": lambda: weighted(np.full(1000, np.nan)),
    "rank 0 has no sample with a weight above 0": lambda: weighted(np.zeros(1000), begins=True),
    "pairs .input, target.; got 1 values. Give each sample its label": lambda: measured(1),
    "must give pairs .input, target.; got 3 values": lambda: measured(3),
    "must hold images in a folder for each class": lambda: ImageFolder(ROOT / "docs" / "data"),
    "No such file": lambda: ImageFolder(ROOT / "nowhere"),
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_cannot_be_scheduled_is_refused(alone, told):
    with pytest.raises(InputError, match=told):
        REFUSED[told]()


def test_a_synchronised_norm_may_have_no_bias(alone):
    """As torch's own on one rank."""
    layer = nn.BatchNorm1d(3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    synced = copy.deepcopy(layer)
    ConvertedNorm.change(synced, SyncedBatchNorm)
    synced.group = None
    batch = torch.arange(12.0).reshape(4, 3) ** 2
    torch.testing.assert_close(synced(batch), layer(batch))


def tree_of_images(folder: Path) -> Path:
    """Two classes of one image each, of 16-bit grey, and a hidden folder."""
    for number, name in enumerate((".thumbnails", "ants", "bees")):
        (folder / name).mkdir(parents=True)
        grey = np.full((2, 2), 256 * (40 + number) + 7, np.uint16)
        Image.fromarray(grey).save(folder / name / "one.png")
    return folder


def test_hidden_folders_are_no_classes_and_16_bit_grey_keeps_its_upper_byte(alone, tmp_path):
    shard = ImageFolder(tree_of_images(tmp_path / "tree"), tmp_path / "s", transform=np.asarray)
    assert shard.classes == ["ants", "bees"]
    found = {label: np.unique(pixels).tolist() for pixels, label in (shard[0], shard[1])}
    assert found == {0: [41], 1: [42]}


def test_a_class_without_images_is_refused_by_name(alone, tmp_path):
    tree = tree_of_images(tmp_path / "tree")
    (tree / "wasps").mkdir()
    with pytest.raises(InputError, match="folder for each class; got wasps without any"):
        ImageFolder(tree, tmp_path / "s")


LABELS = np.repeat([0, 1, 2], [600, 300, 100])


def labelled() -> TensorDataset:
    return TensorDataset(torch.arange(1000.0)[:, None], torch.tensor(LABELS))


def test_classes_are_balanced_by_weights(alone):
    """Draws of a rank that holds all: each class a third of 1,000, within five deviations of 15."""
    first, again = (weighted(1 / np.bincount(LABELS)[LABELS]) for _ in range(2))
    orders = []
    for number in (1, 2):
        read = [int(target) for _, targets in first.epoch(number) for target in targets]
        assert np.bincount(read) == pytest.approx([1000 / 3] * 3, abs=75)
        orders.append(first.sampler.order.tolist())
    assert orders[0] != orders[1]
    # with replacement: of 1,000 draws of one in 100, each of the rare ones comes 3.3 times
    assert max(np.bincount(orders[0])[900:]) > 1
    again.scheduling(1)
    assert again.sampler.order.tolist() == orders[0]


def test_a_weight_of_none_is_never_drawn_and_without_weights_all_are(alone):
    drawn, plain = weighted((LABELS == 1).astype(float)), weighted(None)
    for of in (drawn, plain):
        of.scheduling(1)
    assert set(LABELS[drawn.sampler.order]) == {1}
    assert sorted(plain.sampler.order) == list(range(1000))


FAILING = """
import torch, torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from simshuffle.train.distributed import Scheduler, ShardDataset
dist.init_process_group("gloo")
shard = ShardDataset(TensorDataset(torch.arange(100.0)))
scheduler = Scheduler(shard, 5, 0.1)
if dist.get_rank() == 2 and "{what}" == "alone":
    raise RuntimeError("out of memory")
if "{what}" == "alone":
    dist.barrier()
loader = DataLoader(shard, 5, sampler=WeightedRandomSampler([1.0] * 100, 100))
scheduler.epoch(1, loader)
"""
RANKS = """
import os, signal, sys
sys.path.insert(0, {root!r})
import torch.distributed as dist
from tests.preloaded import fork_ranks

def work(rank):
    os.environ.update(RANK=str(rank), WORLD_SIZE="4")
    with open("script.py") as script:
        exec(compile(script.read(), "script.py", "exec"), {{"__name__": "__main__"}})

# the ranks meet at a store in a process of its own: it has threads, and a fork of a process keeps
# every lock that one of its threads held, so that a rank could wait for ever
reader, writer = os.pipe()
server = os.fork()
if not server:
    signal.alarm({patience})
    store = dist.TCPStore("localhost", 0, 4, is_master=True, wait_for_workers=False)
    os.write(writer, str(store.port).encode())
    signal.pause()
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=os.read(reader, 16).decode())
os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True")
try:
    fork_ranks(4, work)
except SystemExit as end:
    os.kill(server, signal.SIGKILL)
    os._exit(end.code)
"""


def failed(preloaded: Preloaded, tmp_path: Path, what: str) -> list[str]:
    """What four ranks print that fail."""
    script = tmp_path / "script.py"
    script.write_text(FAILING.replace("{what}", what))
    # torch's own log says at times that a peer has gone, which is no line of ours
    quiet = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = preloaded.python(RANKS.format(root=str(ROOT), patience=PATIENCE), tmp_path, **quiet)
    assert done.status == 1
    return done.stderr.decode().splitlines()


def test_four_ranks_that_fail_alike_say_it_once_without_a_traceback(preloaded, tmp_path):
    head, problem, place = failed(preloaded, tmp_path, "all")
    assert head == "scheduler: 1 problem"
    assert "WeightedRandomSampler" in problem and "Scheduler(weights=)" in problem
    assert place.endswith("script.py, line 13)")


def test_the_rank_that_failed_first_says_it_and_the_others_a_line(preloaded, tmp_path):
    told = failed(preloaded, tmp_path, "alone")
    assert [line for line in told if line.startswith("[rank2]")][-1].endswith("out of memory")
    others = [line for line in told if not line.startswith("[rank2]")]
    assert len(others) <= 3
    assert all(line.startswith(("rank 0: ", "rank 1: ", "rank 3: ")) for line in others)


def test_a_backend_without_all_to_all_is_named(alone, monkeypatch):
    def lacking(*arguments, **more):
        raise RuntimeError("ProcessGroup does not support alltoall")

    monkeypatch.setattr(dist, "all_to_all_single", lacking)
    with pytest.raises(InputError, match="gloo has no all_to_all_single"):
        Scheduler(ShardDataset(dataset()), 4, 0.5, transport="all_to_all")


def test_the_order_of_calls(alone):
    scheduler = Scheduler(ShardDataset(dataset()), 4, 0.5)
    with pytest.raises(InputError, match="has no order yet"):
        list(scheduler.sampler)
    with pytest.raises(InputError, match="communicate: needs an epoch"):
        scheduler.communicate()
    with pytest.raises(InputError, match="must be 1: epochs are numbered from 1"):
        scheduler.scheduling(0)
    scheduler.scheduling(1)
    with pytest.raises(InputError, match="between epochs"):
        scheduler.verify()
    with pytest.raises(InputError, match="while another one is under way"):
        scheduler.scheduling(2)
    scheduler.clean_local_storage()
    scheduler.verify()


# of fork, from Python 3.12 on: gloo has threads
@pytest.mark.filterwarnings("default:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_reads_what_the_sampler_names(alone, tmp_path, workers):
    shard = ShardDataset(
        dataset(), tmp_path / "storage", transform=lambda item: (item[0] + 1, item[1])
    )
    scheduler = Scheduler(shard, 4, 0.5)
    loader = DataLoader(
        shard,
        batch_size=4,
        sampler=scheduler.sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
    )
    for number in (1, 2):
        scheduler.scheduling(number)
        inputs = torch.cat([given for given, _ in loader])
        assert torch.equal(inputs, dataset().tensors[0][scheduler.sampler.order.astype(int)] + 1)
        scheduler.clean_local_storage()
    del loader


def test_unstaged_samples_come_from_the_source(alone, tmp_path):
    shard = ShardDataset(dataset(), tmp_path / "storage")
    scheduler = Scheduler(shard, 4, strategy="global_shuffle")
    assert not shard.staged
    assert not (tmp_path / "storage").exists()
    scheduler.scheduling(1)
    assert scheduler.communicate() == ([], [])
    assert torch.equal(shard[7][0], dataset()[7][0])
    scheduler.clean_local_storage()


def test_items_as_bytes_and_back():
    item = (
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        np.float32(1.5),
        7,
        np.arange(4)[::2],
        b"raw",
        "text",
        None,
        True,
        0.1,
    )
    back = decode(encode(item))
    assert torch.equal(back[0], item[0])
    assert back[0].dtype == torch.bfloat16
    np.testing.assert_array_equal(back[3], item[3])
    assert back[1:3] + back[4:] == item[1:3] + item[4:]
    assert decode(encode(b"alone")) == b"alone"
    with pytest.raises(InputError, match="pickle"):
        encode((Image.new("RGB", (2, 2)), 1))


def test_a_sample_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    store = FolderStore(tmp_path / "samples")
    store.write(3, b"old")

    def failing(self, content):
        with self.open("wb") as file:
            file.write(content[:1])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", failing)
    for sample in (3, 4):
        with pytest.raises(OSError, match="No space"):
            store.write(sample, b"new")
    monkeypatch.undo()
    assert store.samples().tolist() == [3]
    assert store.get(3) == b"old"
    assert [path.name for path in (tmp_path / "samples").iterdir()] == ["000000000003"]
    (tmp_path / "samples" / "thesis.tex").touch()
    with pytest.raises(InputError, match=r"something else than samples: thesis\.tex"):
        FolderStore(tmp_path / "samples")


def test_messages_of_a_rank():
    plan = ExchangePlan(
        sample=np.array([[0, 10, 20], [1, 11, 21], [2, 12, 22]]),
        target=np.array([[1, 2, 0], [1, 2, 0], [0, 2, 1]]),
        iteration=np.array([0, 0, 2]),
        message=np.array([0, 0, 1]),
    )
    (together,) = messages_of(plan, 0, 0)
    assert (together.destination, together.source) == (1, 2)
    assert (together.sent.tolist(), together.received.tolist()) == ([0, 1], [20, 21])
    assert messages_of(plan, 1, 0) == []
    (kept,) = messages_of(plan, 2, 0)
    assert kept.destination == kept.source == 0


def test_what_is_wrong_with_shards():
    owner = np.array([0, 0, 1, 1])
    good = [np.array([0, 1]), np.array([2, 3])]
    assert faults(good, owner) == []
    assert faults([np.array([0, 2]), np.array([1, 3])], owner) == [
        "misplaced: 1 (on rank 1 instead of 0), 2 (on rank 0 instead of 1)"
    ]
    assert faults([np.array([0, 1, 9]), np.array([2])], owner) == [
        "not in the data set, but on rank 0: 9",
        "missing: 3 (should be on rank 1)",
    ]


def test_of_many_samples_ten_are_listed_with_or_without_texts():
    first_ten = ", ".join(map(str, range(10)))
    assert list_samples(range(10)) == first_ten
    assert list_samples(range(12)) == f"{first_ten} and 2 more"
    texts = [f"rank {sample}" for sample in range(12)]
    first_ten = ", ".join(f"{sample} (rank {sample})" for sample in range(10))
    assert list_samples(range(12), texts) == f"{first_ten} and 2 more"


def test_the_loop_of_the_page_is_that_of_the_script_that_runs():
    root = Path(__file__).parents[2]
    script = (root / "simshuffle" / "train" / "distributed" / "example.py").read_text()
    page = (root / "docs" / "distributed.md").read_text()
    loop = page.partition("```py\n")[2].partition("```")[0]
    assert "scheduler.communicate()" in loop
    assert loop in script


if __name__ == "__main__":
    torch.set_num_threads(1)
    fork_ranks(3, lambda rank: serve(rank, Path(sys.argv[1])))
