"""MosaicML Streaming with several streams, which saves a count of samples."""

from __future__ import annotations

from typing import ClassVar, Literal

from simshuffle.errors import InputError
from simshuffle.workload.orders.mosaicml_streams import MosaicmlStreams
from simshuffle.workload.orders.order import ShardedSet
from simshuffle.workload.resuming.law import (
    Crash,
    OrderResumptionLaw,
    Refusal,
    ResumedEpoch,
    batches_from_order,
)
from simshuffle.workload.resuming.streaming import refuse_beyond_end, samples_by_rank_0


class StreamsResume(OrderResumptionLaw):
    """``StreamingDataLoader.state_dict`` of rank 0, loaded by all ranks
    (mosaicml-streaming 0.13.0, streaming/base/dataset.py ``_resume``, batching/*.py).

    With ``random`` batches, as one stream does: the samples that all ranks had are
    taken off the front of the order with which the run began. Otherwise the whole epoch
    is put into batches anew for those who read now, and as many batches of all ranks
    are left out as that count of samples fills, rounded down. With the batch of all
    ranks as large as before, ``stratified`` and ``per_stream`` go on where they were;
    ``device_per_stream`` does with the nodes, ranks and batches of before alone.
    Otherwise what is left out is not what was trained on.

    Attributes:
        kind: its name.
        of: the order.
    """

    kind: Literal["mosaicml_streams"]
    library: ClassVar[str] = "mosaicml-streaming 0.13.0"
    saves: ClassVar[str] = (
        "epoch, samples of all ranks, canonical nodes, nodes at first"
    )
    of: MosaicmlStreams = MosaicmlStreams(kind="mosaicml_streams")

    def resume(
        self, data: ShardedSet, crash: Crash, seed: int
    ) -> ResumedEpoch | Refusal:
        """Return the rest of the epoch behind the count of samples, or the error of the
        library.

        The count is that of rank 0, times the ranks. A count beyond the epoch is an
        error with ``random`` batches alone; else the rest is what is left, perhaps
        nothing. What the order refuses of those who read now is an error, too.

        Raises:
            InputError: if the order cannot deal with those who read before.
        """
        readers = crash.readers_after
        num_done = samples_by_rank_0(self, data, crash, seed)
        epoch_size = int(self.of.samples_of_streams(data, seed).sum())
        refusal = refuse_beyond_end(num_done, epoch_size, readers)
        if refusal is not None and self.of.batching_method == "random":
            return refusal
        # the state keeps the nodes with which the run began
        initial_nodes = crash.readers_before.nodes
        stream_order = self.of.of.model_copy(update={"initial_nodes": initial_nodes})
        order = self.of.model_copy(update={"of": stream_order})
        try:
            remaining = order.remaining_order(
                data, readers, seed, crash.epoch, num_done
            )
        except InputError as error:
            problem = error.problems[0]
            is_batch = problem.path == "initial_nodes"
            return Refusal(
                "ValueError: A global batch" if is_batch else "ValueError", problem.rule
            )
        return ResumedEpoch(batches_from_order(remaining, readers))
