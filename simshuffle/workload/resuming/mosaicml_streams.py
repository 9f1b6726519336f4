"""MosaicML Streaming with several streams: a count of samples."""

from __future__ import annotations

from typing import ClassVar, Literal

from simshuffle.errors import InputError
from simshuffle.workload.orders.mosaicml_streams import MosaicmlStreams
from simshuffle.workload.orders.order import ShardedSet
from simshuffle.workload.resuming.law import Crash, Refused, Resumed, ResumeOf, batches_of
from simshuffle.workload.resuming.streaming import counted_by_rank_0, too_far


class StreamsResume(ResumeOf):
    """``StreamingDataLoader.state_dict`` of rank 0, loaded by all ranks (mosaicml-streaming 0.13.0,
    streaming/base/dataset.py ``_resume``, batching/*.py).

    With ``random`` batches, as one stream does: the samples that all ranks had are taken off the
    front of the order with which the run began. Otherwise the whole epoch is put into batches anew
    for those who read now, and as many batches of all ranks are left out as that count of samples
    fills, rounded down. With the batch of all ranks as large as before, ``stratified`` and
    ``per_stream`` go on where they were; ``device_per_stream`` does with the nodes, ranks and
    batches of before alone. Otherwise what is left out is not what was trained on.

    Attributes:
        kind: its name.
        of: the order.
    """

    kind: Literal["mosaicml_streams"]
    library: ClassVar[str] = "mosaicml-streaming 0.13.0"
    saves: ClassVar[str] = "epoch, samples of all ranks, canonical nodes, nodes at first"
    of: MosaicmlStreams = MosaicmlStreams(kind="mosaicml_streams")

    def resumed(self, data: ShardedSet, crash: Crash, seed: int) -> Resumed | Refused:
        """See `Resume`."""
        after, had = crash.after, counted_by_rank_0(self, data, crash, seed)
        refused = too_far(had, int(self.of.chosen(data, seed).sum()), after)
        if refused is not None and self.of.batching_method == "random":
            return refused
        begun = self.of.of.model_copy(update={"initial_nodes": crash.before.nodes})
        now = self.of.model_copy(update={"of": begun})
        try:
            rest = now.since(data, after, seed, crash.epoch, had)
        except InputError as error:
            problem = error.problems[0]
            batch = problem.path == "initial_nodes"
            return Refused("ValueError: A global batch" if batch else "ValueError", problem.rule)
        return Resumed(batches_of(rest, after))
