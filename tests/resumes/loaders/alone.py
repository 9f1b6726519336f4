"""What loaders of whole trainers have in common: ranks that are alone, and a trainer that waits."""

import os
import queue
import threading


def alone():
    """Forget the variables of torchrun: ranks that say nothing to each other about their data need
    no process group."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        os.environ.pop(name, None)


def workers(run, least=0):
    """As many as are asked for where these are few; on other ranks ``least``, where no order
    depends on them."""
    return run.workers if run.workers * run.world_size <= 4 else least


class Waiting:
    """A trainer in a thread of its own, as a loader: at the end of each step it calls `step`, and
    waits until the next batch is asked for. Each epoch of a rank is all that the trainer trains on
    until its epoch of that number ends."""

    def __init__(self, fit, save):
        self.epoch, self.save = 0, save
        self._fit, self._thread = fit, None
        self._batches, self._asked, self._next = queue.Queue(), queue.Queue(), None

    def step(self, epoch, batch):
        self._batches.put((epoch, batch))
        self._asked.get()

    def _run(self):
        try:
            self._fit()
            self._batches.put(None)
        except BaseException as error:  # noqa: BLE001 - told to the rank
            self._batches.put(error)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
            self._next = self._batches.get()
        while self._next is not None:
            if isinstance(self._next, BaseException):
                raise self._next
            epoch, batch = self._next
            if epoch > self.epoch:
                return
            yield batch
            self._asked.put(None)
            self._next = self._batches.get()
