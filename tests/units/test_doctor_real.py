"""A real training under doctor, of two processes that the script starts itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simshuffle.cli import main
from simshuffle.extensions.doctor.recorder.gil import FEW_THREADS
from simshuffle.extensions.doctor.records.reading import read

pytest.importorskip("torch")

SCRIPT = """
import os, pathlib, sys, time
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, Dataset, DistributedSampler

class Slow(Dataset):
    def __len__(self):
        return 2 * 4 * 5000
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.full((4,), float(index)), index % 2

def train(rank, folder):
    torch.set_num_threads(1)
    place = f"file://{folder}/meet"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    data = Slow()
    sampler = DistributedSampler(data, shuffle=False)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1)
    pathlib.Path(folder, f"pid-{rank}").write_text(str(os.getpid()))
    for images, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("ended by itself")

if __name__ == "__main__":
    mp.spawn(train, (os.getcwd(),), nprocs=2)
"""


def test_ranks_that_the_script_starts_are_ended_in_order_and_all_recorded(here, capfd):
    """Of 5000 batches of each, which would take a minute, 1 s is done."""
    Path("train.py").write_text(SCRIPT)
    status = main(["doctor", "--seconds", "1", "--", sys.executable, "train.py"])
    shown, told = capfd.readouterr()
    assert status == 0, told
    assert "ended by itself" not in shown
    record = read(Path("results/doctor-train"))
    assert record.about["ranks"] == 2
    assert record.about["loaders"][0]["num_workers"] == 1
    steps = record.rows_of("step").groupby("rank").size()
    assert list(steps.index) == [0, 1]
    assert steps.min() > 3
    assert len(record.rows_of("sample", "fetch")) > 3  # of workers, that ranks started
    for rank in range(2):
        with pytest.raises(ProcessLookupError):
            os.kill(int(Path(f"pid-{rank}").read_text()), 0)


COUNTING = """
import sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class ThreadCounts(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.tensor([len(sys._current_frames())])

if __name__ == "__main__":
    loader = DataLoader(ThreadCounts(), batch_size=2, num_workers=1)
    print(max(int(count) for batch in loader for count in batch.flatten()))
"""


def test_a_worker_without_threads_of_its_own_gives_the_interpreter_to_who_looks(tmp_path):
    """What sends its batches, and what hands out their memory, are threads of a worker, too. The
    one that looks comes to these."""
    (tmp_path / "count.py").write_text(COUNTING)
    done = subprocess.run(
        [sys.executable, "count.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert int(done.stdout) + 1 <= FEW_THREADS
