"""What a DataLoader of torch hands out is recorded as it hands it out."""

import numpy as np
import pandas as pd
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from torch.utils.data import (  # noqa: E402
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

from simshuffle.cli import main  # noqa: E402
from simshuffle.errors import InputError  # noqa: E402
from simshuffle.train import recorded_order  # noqa: E402
from simshuffle.workload.orders import DistributedSampler as Order  # noqa: E402
from simshuffle.workload.orders import Readers, ShardedSet  # noqa: E402


class Photos(Dataset):
    """48 samples that nobody may read."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        raise AssertionError("it was read")


class Stream(IterableDataset):
    """12 texts, every second one for each of two workers."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, 12, step):
            yield {"text": f"t{number}", "number": torch.tensor(number)}


def number_of(sample):
    return sample["number"]


def loaders(ranks=2, workers=2):
    samplers = [DistributedSampler(Photos(), ranks, rank, seed=3) for rank in range(ranks)]
    return samplers, [
        DataLoader(Photos(), batch_size=4, sampler=sampler, num_workers=workers)
        for sampler in samplers
    ]


def test_a_distributed_sampler_is_recorded_as_its_order_says(tmp_path):
    samplers, of_ranks = loaders()

    def set_epoch(epoch):
        for sampler in samplers:
            sampler.set_epoch(epoch)

    table = recorded_order(of_ranks, 2, tmp_path / "order.parquet", set_epoch=set_epoch)
    readers = Readers(nodes=1, ranks=2, workers=2, batch_size=4)
    data = ShardedSet(np.full(4, 12), np.full(4, 1e6))
    for epoch in range(2):
        wanted = Order(kind="distributed_sampler").epoch(data, readers, 3, epoch)
        of = table[table["epoch"] == epoch].sort_values(["rank", "worker", "position"])
        rows = np.lexsort((wanted.position, wanted.worker, wanted.rank))
        for name in ("rank", "worker", "position", "sample"):
            assert of[name].tolist() == getattr(wanted, name)[rows].tolist()


def test_a_forgotten_set_epoch_is_found(here, capsys):
    recorded_order(loaders(workers=0)[1], 2, "order.csv")
    assert (
        main(["study", "loader", "--check", "order.csv", "--batch-size", "4", "--out", "found"])
        == 0
    )
    assert "Every epoch is the same, batch by batch" in capsys.readouterr().out
    (row,) = pd.read_csv("found/loaders.csv").to_dict("records")
    assert (row["batch_companions"], row["position_entropy"]) == (1.0, 0.0)


def test_the_loader_is_itself_again(tmp_path):
    loader = DataLoader(Photos(), batch_size=4)
    recorded_order(loader, 1, tmp_path / "order.csv", rank=1)
    with pytest.raises(AssertionError, match="it was read"):
        next(iter(loader))
    assert (tmp_path / "order.csv").read_text().splitlines()[:2] == [
        "epoch,rank,worker,position,sample",
        "0,1,0,0,0",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "order.csv"]


def test_an_iterable_data_set_says_its_numbers(tmp_path):
    loader = DataLoader(Stream(), batch_size=2, num_workers=2)
    table = recorded_order(loader, 1, tmp_path / "order.csv", number=number_of)
    by_worker = table.groupby("worker")["sample"].apply(list)
    assert by_worker[0] == [0, 2, 4, 6, 8, 10]
    assert by_worker[1] == [1, 3, 5, 7, 9, 11]
    # two batches of one sample each, in turn: 0 2 | 1 3 | 4 6 ...
    assert table["sample"].tolist()[:6] == [0, 2, 1, 3, 4, 6]
    assert table.groupby("worker")["position"].apply(list)[1] == list(range(6))


@pytest.mark.parametrize(
    ("keep", "epochs", "name", "said"),
    [
        (Stream(), 1, "order.csv", "number="),
        (Photos(), 0, "order.csv", "epochs"),
        (Photos(), 1, "order.txt", ".parquet"),
        (Photos(), 1, "there.csv", "must not exist"),
        (Photos(), 1, "none/order.csv", "folder that exists"),
    ],
)
def test_what_cannot_be_recorded_is_refused(keep, epochs, name, said, tmp_path):
    (tmp_path / "there.csv").write_text("mine")
    with pytest.raises(InputError, match=said):
        recorded_order(DataLoader(keep, batch_size=2), epochs, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["there.csv"]
