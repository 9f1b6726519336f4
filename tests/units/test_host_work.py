"""What an exchange costs the hosts where the schedule leaves it open."""

import pytest

from simshuffle import load_scenario
from simshuffle.job.scenario.host_work import host_work
from simshuffle.workload.exchange import ExchangeSchedule


def of(dataset="imagenet1k", **schedule):
    return host_work(
        ExchangeSchedule(**schedule),
        load_scenario("abci-imagenet1k", {"workload.dataset": dataset}).workload.dataset,
    )


def test_a_decoded_image_is_decoded_pickled_and_encoded():
    work = of(payload="decoded")
    assert work.decode == 1.0e-3
    assert work.pickle == pytest.approx(410e-6)
    assert work.write == 0.46e-3


def test_a_file_is_neither_decoded_nor_encoded_and_soon_pickled():
    work = of(payload="encoded")
    assert work.decode == work.write == 0.0
    assert work.pickle == pytest.approx(10e-6, rel=0.3)  # 110 kB; 104 kB took 7 to 9 us


def test_pickling_is_in_proportion_to_the_bytes_that_are_sent():
    decoded, encoded = of("deepcam", payload="decoded"), of("deepcam", payload="encoded")
    assert decoded.pickle == pytest.approx(410e-6 * 63_700_992 / 562_642)
    assert encoded.pickle == pytest.approx(26e-3, rel=0.02)  # measured: 60.1 MB took 26 to 34 ms


def test_what_the_schedule_says_holds():
    work = of(payload="encoded", decode="1 s", pickle="2 s", write="3 s")
    assert (work.decode, work.pickle, work.write) == (0.0, 2.0, 3.0)  # nothing is decoded
    work = of(payload="decoded", decode="1 s", pickle="0 s", write="0 s")
    assert (work.decode, work.pickle, work.write) == (1.0, 0.0, 0.0)
