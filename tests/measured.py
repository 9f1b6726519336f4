"""A testbed that was never built: measurements as they would be if the network were the fluid
one."""

from datetime import UTC, datetime

from simshuffle.extensions.calibration.validation.testbed import TcpOverhead, finish_times
from simshuffle.extensions.calibration.validation.testbed_patterns import PATTERNS
from simshuffle.study import engine
from simshuffle.study.study import Result
from simshuffle_testbed.hosts import Measured
from simshuffle_testbed.measure import FIT, GLOO, NO_TORCH, Measurement, Run, Settings
from simshuffle_testbed.study import STUDY, request

DATE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
OVERHEAD = TcpOverhead(0.95, 0.002)


def runs_of(wanted: Settings, times: float = 1.0, late: float = 0.0) -> list[Run]:
    """Runs that are ``times`` as slow as the fluid network, but for those of the fit, in which a
    process was woken ``late`` s too late."""
    runs = []
    for repetition in range(1, wanted.repetitions + 1):
        for name in wanted.patterns:
            finish = finish_times(wanted.testbed, wanted.pattern(name), OVERHEAD)
            slower = finish * (1.0 if name in FIT else times)
            runs.append(Run(name, repetition, Measured(slower.tolist(), 0.1, late, 0.5, 0.0)))
    return runs


def tiny() -> Measurement:
    """Few patterns, one of which was left out; every run was held up first, and measured again."""
    names = (*FIT, "all_to_all", "pairs_across")
    left_out = {"gloo_partial": NO_TORCH}
    wanted = Settings(nbytes=200_000, repetitions=1, patterns=names, left_out=left_out)
    runs = [*runs_of(wanted, times=3.0, late=99.0), *runs_of(wanted, times=1.1)]
    return Measurement(wanted, runs, DATE)


def result(times: float = 1.0, late: float = 0.0) -> Result:
    """All patterns that need no torch, three times each."""
    names = tuple(name for name in PATTERNS if name not in GLOO)
    left_out = dict.fromkeys(GLOO, NO_TORCH)
    wanted = Settings(nbytes=1_000_000, repetitions=3, patterns=names, left_out=left_out)
    return engine.run(STUDY, request(Measurement(wanted, runs_of(wanted, times, late), DATE)))
