"""An allreduce that has a machine to itself, by the size of its buffer, as all_reduce_perf of
nccl-tests measures and prints it."""

from simshuffle.collective.bench import SIZES, Bench, Chosen, bench, bench_of, sizes
from simshuffle.collective.measurement import Measurement, Row, measure

__all__ = [
    "SIZES",
    "Bench",
    "Chosen",
    "Measurement",
    "Row",
    "bench",
    "bench_of",
    "measure",
    "sizes",
]
