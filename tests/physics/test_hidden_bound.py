"""The largest exchange that closed forms hide, by hand."""

from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.hidden import PARTIAL, largest_hidden_fraction
from tests.small import small


def test_a_fraction_is_hidden_until_its_host_work_is_the_tolerance():
    """Nothing runs beside the exchange: a rank that sends q of its 100 samples works q times what
    one costs. At 1 % of the epoch that is Q = 0.01 t / (100 w)."""
    scenario = small(workload__exchange="partial_local_shuffle:exchange_fraction=0.5")
    alone, exchanging = bounds(small()), bounds(scenario)
    work = exchanging.exchange.work / exchanging.exchange.samples
    by_hand = 0.01 * alone.epoch / (100 * work)
    assert 0.1 < by_hand < 0.9
    assert 0.95 * by_hand <= largest_hidden_fraction(scenario, 0.01) <= by_hand


def test_an_allreduce_hides_what_a_rank_stores_meanwhile():
    """With gradients summed beside the backward pass, an iteration's allreduce hides that a rank
    stores what it received, for all iterations but the last: 100 Q (w - 0.9 s) = 0.01 t."""
    values = {"workload__allreduce__overlap": "ddp"}
    scenario = small(workload__exchange="partial_local_shuffle:exchange_fraction=0.5", **values)
    alone, exchanging = bounds(small(**values)), bounds(scenario)
    work = exchanging.exchange.work / exchanging.exchange.samples
    stored = 7 / 8 * scenario.cluster.ssd.write_seconds(100e3)  # one of 8 keeps its sample
    assert 10 * stored < alone.allreduce / 10
    by_hand = 0.01 * (alone.epoch + alone.passes.slowed) / (100 * (work - 0.9 * stored))
    assert 0.1 < by_hand < 1
    assert 0.95 * by_hand <= largest_hidden_fraction(scenario, 0.01) <= by_hand


def test_all_or_nothing_may_be_hidden():
    scenario = small(workload__exchange=PARTIAL)
    assert largest_hidden_fraction(scenario, 1.0) == 1.0
    slow = small(workload__exchange=PARTIAL, workload__exchange__schedule__read="1 s")
    assert largest_hidden_fraction(slow, 0.01) == 0.0
