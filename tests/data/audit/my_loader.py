"""A loader of one's own, which errs where ranks change. With the word `right` it does not."""

import random
import sys


class Loader:
    def __init__(self, run, epoch=0, done=0):
        self.run, self.epoch, self.begun, self.done = run, epoch, epoch, done

    def set_epoch(self, epoch):
        self.epoch, self.done = epoch, self.done if epoch == self.begun else 0

    def __iter__(self):
        order = list(range(sum(self.run.samples)))
        random.Random(f"{self.run.seed} {self.epoch}").shuffle(order)
        if "right" in sys.argv:  # what all ranks did is left out, and the rest is dealt anew
            own = order[self.done :][self.run.rank :: self.run.world_size]
        else:  # a rank leaves out as much of its share as one did, whose share was another
            own = order[self.run.rank :: self.run.world_size][self.done // self.run.ranks_before :]
        for at in range(0, len(own), self.run.batch_size):
            batch = own[at : at + self.run.batch_size]
            self.done += len(batch) * self.run.world_size
            yield batch


def make(run):
    return Loader(run)


def state(loader):
    return {"epoch": loader.epoch, "done": loader.done}


def resume(run, states):
    return Loader(run, **states[0])
