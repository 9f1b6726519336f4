"""A loader that packs samples by length, so that ranks read different numbers of them. A checkpoint
keeps what is called the same only once: all ranks go on where rank 0 was
(https://github.com/PrimeIntellect-ai/prime-rl/pull/1035). With the word `own` each has its own."""

import sys


class Packed:
    def __init__(self, run, epoch=0, read=0):
        self.run, self.epoch, self.begun, self.read = run, epoch, epoch, read

    def set_epoch(self, epoch):
        self.epoch, self.read = epoch, self.read if epoch == self.begun else 0

    def __iter__(self):
        batch, room = [], self.run.batch_size
        for sample in range(self.run.rank, sum(self.run.samples), self.run.world_size)[self.read :]:
            batch.append(sample)
            self.read += 1
            room -= 1 + sample % 2  # the longer ones are those of odd number
            if room <= 0:
                yield batch
                batch, room = [], self.run.batch_size
        if batch:
            yield batch


def make(run):
    return Packed(run)


def state(loader):
    return {"epoch": loader.epoch, "read": loader.read}


def resume(run, states):
    return Packed(run, **states[run.rank if "own" in sys.argv else 0])
