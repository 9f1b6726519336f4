"""Laws of an object store, by hand.

Latency, connections and request rates: Amazon S3 user guide, performance guidelines and design
patterns. Prices: US East, June 2026. Tries: mean of a geometric distribution, 1 / (1 - p).
"""

import pytest

from simshuffle.job.scenario.storage import ObjectStore

PLAIN = {"latency": "0.1 s", "connection_bandwidth": "100 MB/s", "request_rate": "1 k/s"}


def test_a_request_takes_its_first_byte_and_its_bytes():
    store = ObjectStore(**PLAIN)
    assert store.request_seconds(0.0) == pytest.approx(0.1)
    assert store.request_seconds(50e6) == pytest.approx(0.1 + 0.5)


def test_a_request_that_fails_every_other_time_is_sent_twice():
    store = ObjectStore(**PLAIN, retry_share=0.5, retry_delay="1 s")
    assert store.tries == 2.0
    # two first bytes, and one wait between them
    assert store.request_seconds(50e6) == pytest.approx(2 * 0.1 + 1.0 + 0.5)


def test_a_million_small_objects_wait_for_connections_and_then_for_the_rate():
    """10^6 objects of 100 kB: 0.1 s and 1 ms each. On 64 connections 1,578 s; on 1,000 the 1,000 a
    second of a prefix bind."""
    store = ObjectStore(**PLAIN)
    few = store.least_seconds(1e6, 1e11, 64)
    assert few["connections"] == pytest.approx(1e6 * 0.101 / 64)
    assert max(few, key=few.get) == "connections"
    many = store.least_seconds(1e6, 1e11, 1000)
    assert many["requests"] == pytest.approx(1000.0)
    assert max(many, key=many.get) == "requests"
    assert ObjectStore(**PLAIN, prefixes=10).least_seconds(1e6, 1e11, 1000)[
        "requests"
    ] == pytest.approx(100.0)


def test_large_objects_wait_for_bytes():
    store = ObjectStore(**PLAIN, bandwidth="10 GB/s")
    bound = store.least_seconds(1000, 1e11, 1000)  # 1,000 objects of 100 MB
    assert bound["bandwidth"] == pytest.approx(10.0)
    assert bound["connections"] == pytest.approx(1.1)


def test_errors_ask_more_of_the_rate_and_cost_more():
    plain, failing = ObjectStore(**PLAIN), ObjectStore(**PLAIN, retry_share=0.2)
    rates = [store.least_seconds(1000, 0.0, 10)["requests"] for store in (plain, failing)]
    assert rates[1] / rates[0] == pytest.approx(1.25)
    assert failing.charge(1000, 0.0) / plain.charge(1000, 0.0) == pytest.approx(1.25)


def test_what_an_epoch_costs():
    """ImageNet-1K file by file: 1,281,167 requests at 0.0004 dollars a thousand are 51 cents. Out
    of the region, its 141 GB at 0.09 dollars are 12.68 more."""
    assert ObjectStore().charge(1_281_167, 141e9) == pytest.approx(0.5125, rel=1e-3)
    outside = ObjectStore(price_per_gigabyte=0.09).charge(1_281_167, 141e9)
    assert outside == pytest.approx(0.5125 + 12.69, rel=1e-3)


def test_nothing_takes_no_time():
    store = ObjectStore()
    assert set(store.least_seconds(0, 0.0, 8).values()) == {0.0}
    assert store.charge(0, 0.0) == 0.0


def test_what_is_left_out_says_where_it_is_from():
    assert "5,500" in ObjectStore().source["request_rate"]
    assert "request_rate" not in ObjectStore(request_rate="1 k/s").source
