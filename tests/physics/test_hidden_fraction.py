"""The largest hidden exchange fraction, where it can be worked out by hand."""

import math
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from simshuffle.job.plan.hidden import (
    added_seconds,
    bounds_without_exchange,
    largest_hidden_fraction,
    unexchanged_seconds,
)
from simshuffle.job.scenario.host_work import host_work
from simshuffle.studies.mechanisms.border import (
    ExchangePoint,
    _bracket,
    _interpolate_number,
    approach_border,
    is_monotone,
    next_number,
    number_interval,
    search_exactly,
)
from simshuffle.studies.mechanisms.hiding import STUDY, first_answer, request
from simshuffle.studies.mechanisms.points import Points
from simshuffle.studies.mechanisms.variants import (
    BARRIERS,
    HOST_WORK,
    READS,
    VARIANTS,
    WIRE,
    WRITES,
    coarse,
    with_variant,
    work,
)
from simshuffle.studies.mechanisms.verb import HidingOptions
from simshuffle.study import engine
from tests.small import small

FREE = dict.fromkeys(("read", "decode", "pickle", "zero_buffer", "draw", "write", "remove"), "0 s")
MEMORY = {
    "workload__staging": {"target": "memory"},
    "cluster__memory__bandwidth": "1000000 TB/s",
    "cluster__memory__capacity": "1 TB",
}


def exchange(**schedule):
    return {
        "kind": "partial_local_shuffle",
        "exchange_fraction": 0.1,
        "schedule": FREE | {"payload": "decoded"} | schedule,
    }


def asked(scenario, sizes, variants, tolerance, **more):
    options = {"world_size": sizes, "variant": variants, "tolerance": tolerance, **more}
    return request(HidingOptions(scenario=scenario, **options))


def found(scenario, tolerance, way="own"):
    wanted = asked(scenario, [scenario.world_size], [way], tolerance, exact=True)
    tables = engine.run(STUDY, wanted).tables
    return tables["limits"].iloc[0], tables["points"]


def test_work_of_a_millisecond_a_sample_is_hidden_up_to_the_tolerance():
    # 1 ms of reading for each sample, which the training loop waits for; all samples alike. Beside
    # it only the message after the last iteration shows, for nothing comes behind which it could
    # hide: 1.3 us and 500 kB at 10 GB/s
    scenario = small(workload__exchange=exchange(read="1 ms"), **MEMORY)
    limit, points = found(scenario, 0.02)
    assert limit["samples"] == math.floor((0.02 * limit["baseline_s"] - 51.3e-6) / 1e-3)
    assert limit["samples"] > 3
    assert limit["exchange_fraction"] == pytest.approx(limit["samples"] / 100)
    assert limit["steady"]
    assert limit["bottleneck"] == "host work: read"
    assert limit["saved_s"] == pytest.approx(1e-3 * (limit["samples"] + 1), rel=1e-3)
    alone = points[points["removed"] == ""]
    assert (alone["epoch_s"] - limit["baseline_s"]).to_numpy() == pytest.approx(
        51.3e-6 + 1e-3 * alone["samples"].to_numpy(), rel=1e-3
    )


def test_closed_forms_and_a_few_simulations_find_the_same():
    # as above: 1 ms a sample, so that 2 % of the epoch hide 20 samples for each second of it
    scenario = small(workload__exchange=exchange(read="1 ms"), **MEMORY)
    wanted = asked(scenario, [scenario.world_size], [], 0.02)
    own = engine.run(STUDY, wanted).tables["limits"].iloc[0]
    assert own["way"] == "own"
    by_hand = math.floor((0.02 * own["baseline_s"] - 51.3e-6) / 1e-3)
    assert own["samples"] == by_hand
    assert own["samples_low"] <= by_hand <= own["samples_high"]
    assert own["bottleneck"] == "host work: read"
    # before a simulation: a permutation of 8 ranks leaves one in place in the mean, and nothing is
    # known of the last message
    alone = bounds_without_exchange(scenario)
    allowed = 0.02 * unexchanged_seconds(alone)
    assert added_seconds(alone, with_variant(scenario, "own", 8, {})) == pytest.approx(7e-3)
    (line,) = first_answer(asked(scenario, [scenario.world_size], ["wire"], 0.02).values)
    assert f"own {math.floor(allowed / 0.875e-3)} %" in line  # of 100 samples
    assert "wire 100 %" in line


@pytest.mark.parametrize(
    ("values", "off"),
    [
        ({"cluster__ssd__write_bandwidth": "200 MB/s"}, 0.15),
        ({"workload__exchange__schedule__read": "0.3 ms"}, 0.05),
    ],
)
def test_closed_forms_are_near_where_storing_takes_longest_and_where_sending_does(values, off):
    """Storing hides behind allreduces and slower ranks, sending behind nothing. Closed forms say
    more: one rank of 8 keeps its sample in a step, but seldom the slowest one."""
    scenario = small(
        workload__exchange="partial_local_shuffle:exchange_fraction=0.1",
        workload__dataset__num_samples=4000,
        workload__allreduce__overlap="ddp",
        workload__jitter={"compute": 0.05, "read": 0},
        cluster__memory={"capacity": "2 TB", "bandwidth": "200 GB/s"},
        **values,
    )
    simulated = found(scenario, 0.01)[0]["exchange_fraction"]
    assert simulated < largest_hidden_fraction(scenario, 0.01) < (1 + off) * simulated


@pytest.mark.parametrize("start", [1, 40, 800, 5000])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_a_few_simulations_hold_the_border_in_their_interval(start, noise):
    # 1 ms a sample, 0.7305 s allowed; what is simulated is off by the noise, whose size it knows
    tried = []

    def simulated(number):
        tried.append(number)
        return ExchangePoint(1e-3 * number + noise * (-1) ** len(tried), noise)

    border = approach_border(simulated, 0.7305, 5000, start, affordable=lambda number: True)
    assert border.low <= 730 <= border.high
    assert border.samples == pytest.approx(730, rel=0.01 if not noise else 0.08)
    assert border.high - border.low <= (2 + 16 if not noise else 120)
    assert len(tried) <= 8


def test_without_room_for_a_second_simulation_the_interval_grows_with_the_distance():
    border = approach_border(
        lambda n: ExchangePoint(1e-3 * n, 0.0), 0.7305, 5000, 500, affordable=lambda n: False
    )
    assert border.samples == 730
    assert (border.low, border.high) == (615, 845)  # half of the distance of 230


@pytest.mark.parametrize(
    ("linear", "interval", "numbers"), [(4, (1, 3), [4]), (3, (2, 2), [4, 2, 3])]
)
def test_few_samples_add_as_much_each_and_need_one_simulation(linear, interval, numbers):
    """1 ms each, 2.5 ms allowed. Off by a tenth of the distance of 2, or found to the last one."""
    tried = []

    def simulated(number):
        tried.append(number)
        return ExchangePoint(1e-3 * number, 0.0)

    border = approach_border(simulated, 2.5e-3, 90, 4, affordable=lambda _: True, linear=linear)
    assert (border.samples, tried) == (2, numbers)
    assert (border.low, border.high) == interval


@pytest.mark.parametrize(("noise", "low"), [(0.0, 550), (0.4, 405)])
def test_all_samples_are_hidden_for_sure_only_where_as_many_were_simulated(noise, low):
    """500 add 0.5 s, and 600 would add less than is allowed. Half of the distance of 100 may be
    off; if 500 may add 0.9 s, 500 x 0.73 / 0.9 = 405.6 are all that is sure."""
    border = approach_border(
        lambda n: ExchangePoint(1e-3 * n, noise), 0.73, 600, 500, affordable=lambda n: False
    )
    assert border.samples == 600
    assert (border.low, border.high) == (low, 600)


def test_a_wire_that_fits_into_an_iteration_is_hidden_whole():
    limit, _ = found(small(workload__exchange=exchange(), **MEMORY), 0.05)
    assert limit["samples"] == limit["samples_of_rank"] == 100
    assert limit["exchange_fraction"] == 1.0
    assert limit["bottleneck"] == ""
    assert math.isnan(limit["over_s"])


def test_a_wire_that_does_not_is_named_with_the_tier_that_binds():
    # 500 kB over 10 MB/s take 50 ms; an iteration has 10 of them at most
    scenario = small(
        workload__exchange=exchange(),
        cluster__topology__link_bandwidth="10 MB/s",
        world_size=8,
        **MEMORY,
    )
    limit, _ = found(scenario, 0.01)
    assert limit["samples"] < 100
    assert limit["bottleneck"] == WIRE
    assert limit["tier"] in {"host>leaf", "leaf>host"}


def test_writes_are_named_where_the_ssd_is_slow():
    scenario = small(
        workload__exchange=exchange(),
        cluster__ssd__write_bandwidth="5 MB/s",
        cluster__memory__page_cache="1 GB",
    )
    limit, _ = found(scenario, 0.01)
    assert limit["bottleneck"] == WRITES


def test_reads_are_named_where_the_ssd_is_what_the_training_waits_for():
    # no page cache; the SSD needs 20 ms for each of the 200 samples of its one rank: one that is
    # sent is one more read. The last may be read while the epoch ends
    scenario = small(
        workload__exchange=exchange(),
        cluster__ssd__read_bandwidth="5 MB/s",
        cluster__ssd__write_bandwidth="1000000 PB/s",
        world_size=4,
    )
    limit, points = found(scenario, 0.055)
    assert limit["baseline_s"] == pytest.approx(200 * 20e-3, rel=0.06)
    assert limit["samples"] - math.floor(0.055 * limit["baseline_s"] / 20e-3) in {0, 1}
    assert limit["bottleneck"] == READS
    assert limit["saved_s"] == pytest.approx(limit["over_s"], rel=0.01)
    without = points[points["removed"] == READS].iloc[0]
    # the training is faster too, and that is not counted as saved
    assert without["epoch_s"] < 0.3 * limit["baseline_s"]
    assert without["added"] == pytest.approx(0.0, abs=1e-4)


def test_what_no_removal_saves_is_not_blamed_on_any(monkeypatch):
    monkeypatch.setattr("simshuffle.studies.mechanisms.points.coarse", lambda scenario: {WIRE: {}})
    limit, _ = found(small(workload__exchange=exchange(read="1 ms"), **MEMORY), 0.02)
    assert limit["bottleneck"] == "none by itself"
    assert limit["saved_s"] == 0.0
    assert limit["tier"] == ""


def test_what_costs_nothing_is_not_removed():
    assert set(coarse(small(workload__exchange=exchange(), **MEMORY))) == {WIRE}
    both = small(workload__exchange=exchange(barriers="message", pickle="1 ms"))
    assert set(coarse(both)) == {BARRIERS, HOST_WORK, WRITES, WIRE}
    assert set(work(both)) == {HOST_WORK, "pickle"}
    encoded = small(
        workload__exchange={
            "kind": "partial_local_shuffle",
            "exchange_fraction": 0.1,
            "schedule": {"payload": "encoded"},
        }
    )
    assert "decode" not in work(encoded)
    assert "write" not in work(encoded)


@pytest.mark.parametrize("payload", ["decoded", "encoded"])
def test_without_the_wire_all_host_work_is_as_before(payload):
    scenario = small(
        workload__exchange={
            "kind": "partial_local_shuffle",
            "exchange_fraction": 0.1,
            "schedule": {"payload": payload},
        }
    )
    without = scenario.with_values(coarse(scenario)[WIRE])
    before, now = (
        host_work(s.workload.exchange.schedule, s.workload.dataset) for s in (scenario, without)
    )
    assert asdict(now) == pytest.approx(asdict(before))
    assert without.workload.dataset.decoded_size.mean == 1.0


def test_limits_are_in_the_order_of_sizes_and_ways():
    scenario = small(workload__exchange=exchange(), **MEMORY)
    limits = engine.run(STUDY, asked(scenario, [8, 4], ["own", "wire"], 0.05)).tables["limits"]
    assert list(zip(limits["world_size"], limits["way"], strict=True)) == [
        (4, "own"),
        (4, "wire"),
        (8, "own"),
        (8, "wire"),
    ]


@pytest.mark.parametrize("power", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("most", [1, 2, 7, 40])
def test_the_border_is_found_wherever_it_is(most, power):
    for border in range(most + 1):
        tried = []

        def added(count, border=border, tried=tried):
            tried.append(count)
            return (count / (border + 0.5)) ** power

        assert search_exactly(added, 1.0, most) == (border, True)
        assert len(set(tried)) == len(tried) <= 2 + 3 * math.log2(most + 1)


def test_a_line_is_followed_to_its_border():
    tried = []
    assert search_exactly(lambda count: tried.append(count) or 1e-3 * count, 0.7305, 100_000) == (
        730,
        True,
    )
    assert len(tried) <= 7


def test_a_step_is_found_by_halving():
    assert search_exactly(lambda count: 0.0 if count <= 777 else 1e6, 0.01, 1000) == (777, True)


def test_hiding_that_is_not_monotone_is_found_out():
    assert search_exactly(lambda count: 1.0 if count in {4, 5} else 0.0, 0.5, 16) == (3, False)
    assert search_exactly(lambda count: 1.0 if count in {2, 3} else -0.1, 0.5, 5) == (
        5,
        True,
    )  # not tried
    assert search_exactly(lambda count: 1.0 if count == 5 else 0.0, 0.5, 5) == (4, True)


def test_what_the_ssd_has_no_room_for_is_not_tried():
    # a rank keeps 100 samples of 100 kB; half as many more fit
    scenario = small(workload__exchange=exchange(), cluster__ssd__capacity="15 MB")
    limit, points = found(scenario, 0.5)
    assert limit["samples_of_rank"] == 50
    assert points["samples"].max() == 50
    assert limit["exchange_fraction"] == pytest.approx(0.5)


@pytest.mark.parametrize("way", VARIANTS)
def test_what_a_way_costs_can_be_removed_one_by_one(way):
    """Each removal is a valid scenario, whatever named schedule the way begins with."""
    scenario = with_variant(small(world_size=2), way, 10, {})
    removals = coarse(scenario) | work(scenario)
    assert removals
    for changes in removals.values():
        assert with_variant(small(world_size=2), way, 10, changes) != scenario


@pytest.mark.parametrize(("exact", "names"), [(False, ["write", "pickle"]),
                                              (True, ["write", "pickle", "decode"])])  # fmt: skip
def test_the_costliest_kinds_of_host_work_are_removed_alone(exact, names):
    """A search with a limit removes two kinds; reading costs a quarter of writing, no more."""
    costs = {"read": "1 ms", "decode": "2 ms", "pickle": "3 ms", "write": "4 ms"}
    scenario = small(workload__exchange=exchange(**costs))
    search = SimpleNamespace(_cell=SimpleNamespace(is_exact=exact))
    assert list(Points._host_work_removals(search, scenario)) == names


@pytest.mark.parametrize(
    ("samples", "highest", "beyond", "expected"),
    [
        # 400 add 0.4 s within 40 ms, or 40 samples at 1 ms each; 460 are 60 further: half of it is
        # 30, and together they are off by 50
        (460, 1000, 0.5, (410, 510)),
        (340, 1000, 0.5, (290, 390)),
        (460, 1000, 0.0, (420, 500)),
        (460, 500, 0.5, (410, 500)),
        # of 20, 100 are the nearest, which add 0.2 s within 40 ms: 20, and half of 80 is 40
        (20, 1000, 0.5, (0, 65)),
        (240, 1000, 0.5, (167, 313)),
        (260, 1000, 0.5, (179, 341)),
    ],
)
def test_the_interval_of_a_number_follows_from_the_nearest_point(
    samples, highest, beyond, expected
):
    """240 are 140 from 100: 20 and 70 make 72.8; 260 are 140 from 400: 40 and 70 make 80.6."""
    points = {0: ExchangePoint(0.0, 0.0), 100: ExchangePoint(0.2, 0.04)}
    points[400] = ExchangePoint(0.4, 0.04)
    assert number_interval(samples, points, 0.5, highest, beyond) == expected


def test_the_interval_of_a_number_without_a_slope_is_all_or_nothing():
    nothing = {0: ExchangePoint(0.0, 0.0)}
    assert number_interval(7, nothing, 0.5, 9) == (7, 7)
    for over in (0.0, -0.1):
        assert number_interval(7, nothing | {5: ExchangePoint(over, 0.1)}, 0.5, 9) == (0, 9)
    # all nine: five add just what is allowed, or more
    assert number_interval(9, nothing | {5: ExchangePoint(0.25, 0.25)}, 0.5, 9) == (7, 9)
    assert number_interval(9, nothing | {5: ExchangePoint(0.25, 0.375)}, 0.5, 9) == (4, 9)


@pytest.mark.parametrize(
    ("seconds", "highest", "expected"),
    [
        ({0: 0.0}, 90, 1),
        ({0: 0.0, 4: 0.125}, 90, 32),  # 1 s at 8 times as many
        ({0: 0.0, 4: 0.0625}, 90, 64),
        ({0: 0.0, 4: 0.01}, 90, 64),  # at most 16 times as many
        ({0: 0.0, 4: 0.0}, 90, 64),
        ({0: 0.0, 4: 0.9}, 90, 8),  # at least twice
        ({0: 0.0, 4: 0.125}, 20, 20),
    ],
)
def test_the_next_number_while_all_are_hidden(seconds, highest, expected):
    assert next_number(seconds, 1.0, max(seconds), highest + 1, highest) == expected


@pytest.mark.parametrize(
    ("tolerance", "expected"), [(0.75, 8), (0.25, 5), (1.25, 11), (0.3, 5), (0.5, 6)]
)
def test_the_next_number_between_two_is_on_their_line_or_the_middle(tolerance, expected):
    """4 add 0.25 s and 12 add 1.25 s, an eighth of a second each."""
    seconds = {0: 0.0, 4: 0.25, 12: 1.25, 90: 9.0}
    assert next_number(seconds, tolerance, 4, 12, 100) == expected
    assert next_number({0: 0.0, 4: 0.25, 13: 1.25}, tolerance, 4, 13, 100) == 8


def test_the_border_lies_between_a_hidden_number_and_the_first_that_is_not():
    seconds = {0: 0.0, 10: 0.5, 20: 2.0, 30: 0.1, 40: 1.0}
    points = {number: ExchangePoint(over, 0.0) for number, over in seconds.items()}
    assert _bracket(points, 1.0, 100) == (10, 20)
    assert _bracket(points, 2.0, 100) == (40, 101)
    # half a second more of 1.5 s between ten numbers
    assert _interpolate_number(points, 1.0, 10, 20, 100) == pytest.approx(10 + 10 / 3)
    assert _interpolate_number(points, 1.0, 10, 101, 100) == 20.0
    assert _interpolate_number(points, 1.0, 30, 101, 100) == 100
    assert _interpolate_number(points, 1.0, 0, 101, 100) == 100
    assert is_monotone(seconds, 2.0, 40) and not is_monotone(seconds, 1.0, 40)
    assert is_monotone({4: 1.0, 5: 1.5}, 1.0, 4) and not is_monotone({5: 1.0, 4: 1.5}, 1.0, 4)
