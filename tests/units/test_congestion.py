"""The comparison of exchange patterns: the bytes, the verdict, the ablation, the tables, the
figures and the command."""

import math
import shutil
from itertools import product

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from simshuffle.cli import main
from simshuffle.fabric.network import Analytic
from simshuffle.job.plan import wiring
from simshuffle.job.scenario.scenario import load_scenario
from simshuffle.studies.congestion import cell, details, figures, text
from simshuffle.studies.congestion.patterns import PATTERNS, Variant, variants
from simshuffle.studies.congestion.study import STUDY, request, scenarios
from simshuffle.studies.congestion.tables import STORED, hottest, utilisation
from simshuffle.studies.congestion.traffic import samples_to_send
from simshuffle.studies.congestion.verb import CongestionOptions
from simshuffle.studies.congestion.verdict import (
    CORNERS,
    PRACTICE,
    QUESTIONS,
    SWITCHES,
    ablation,
    comparisons,
    judged_variants,
    verdicts,
    verdicts_over_routings,
)
from simshuffle.study import engine
from tests.drawn import laid_out, rows_of
from tests.small import PLAIN, small

VALUES = {
    "cluster": "small-fat-tree",
    "workload.allreduce.rings": 1,
    "world_size": 8,
    "workload.dataset.num_samples": 1600,
    "workload.exchange": "partial_local_shuffle:exchange_fraction=0.1,schedule=authors",
}
ARGUMENTS = [
    "quickstart",
    *(part for key, value in VALUES.items() for part in ("--set", f"{key}={value}")),
]
COUNTED = {"messages": {}}  # in `meta.json` where what messages cost is
FEW = [*ARGUMENTS, "--seeds", "2", "--packet-seeds", "1", "--packets", "100000"]
EXCHANGE = "partial_local_shuffle:exchange_fraction=0.1,schedule=authors"


def scenario(**values):
    return load_scenario(
        "quickstart", VALUES | {key.replace("__", "."): value for key, value in values.items()}
    )


def options(**values):
    return CongestionOptions(scenario="quickstart", **values)


def run(scenarios, settings):
    return engine.run(STUDY, request(settings, scenarios))


def compare(scenarios, settings):
    return run(scenarios, settings).tables


@pytest.fixture(scope="module")
def tables():
    """Two world sizes, two models, two seeds."""
    return compare(
        [scenario(), scenario(world_size=16)], options(seeds=2, packet_seeds=2, packets=10**9)
    )


# ---------------------------------------------------------------------------------------- the bytes


def test_a_rank_sends_its_share_in_the_pace_of_the_exchange():
    sent = samples_to_send(small(workload__exchange=EXCHANGE))
    # 800 samples, 8 ranks, a tenth: 10 each; batches of 10, so one an iteration
    assert sent.count == 10
    assert sent.iteration.tolist() == list(range(10))
    # 2.5 of each: 2 in the first epoch, and 3 in the next
    assert samples_to_send(small(workload__exchange=EXCHANGE.replace("0.1", "0.025"))).count == 2
    assert sent.nbytes(1) == pytest.approx(np.full((10, 8), 500e3), rel=1e-12)  # decoded
    encoded = samples_to_send(small(workload__exchange=f"{EXCHANGE},schedule.payload=encoded"))
    assert encoded.nbytes(1) == pytest.approx(np.full((10, 8), 100e3), rel=1e-12)


def test_sizes_follow_the_law_of_the_data_set_and_differ_between_seeds():
    sent = samples_to_send(scenario(workload__dataset__num_samples=400_000))
    nbytes = sent.nbytes(1)
    assert nbytes.shape == (5000, 8)
    assert nbytes.mean() == pytest.approx(196_608, rel=0.01)
    assert nbytes.std() / nbytes.mean() == pytest.approx(7100 / 30769, rel=0.03)
    assert np.array_equal(nbytes, sent.nbytes(1))
    assert not np.any(nbytes == sent.nbytes(2))


def test_a_shortened_set_is_the_beginning_of_the_full_one():
    full = samples_to_send(
        scenario()
    )  # 20 samples of 48 packets from each of 8 ranks: 7680 packets
    assert full.shorten(7680, 4096.0) is full
    short = full.shorten(7000, 4096.0)
    assert (short.bytes_set, short.count, short.share) == ("short", 18, 1.0)
    assert np.array_equal(short.nbytes(1), full.nbytes(1)[:18])
    short = full.shorten(384, 4096.0)  # samples are cut where few are too many
    # two iterations of floor(3.2 (i + 1)) samples: 3 + 3
    assert (short.count, short.iteration.tolist()) == (6, [0, 0, 0, 1, 1, 1])
    assert short.share == pytest.approx(384 / (6 * 8 * 48), rel=1e-12)
    assert short.nbytes(1) == pytest.approx(full.nbytes(1)[:6] * short.share, rel=1e-12)


def alike(world_size):
    """Samples all of one size, eight from each rank."""
    dataset = PLAIN["workload.dataset"] | {"num_samples": 80 * world_size}
    return scenario(world_size=world_size, workload__dataset=dataset)


def of_shifts(**settings):
    """The result of shifts alone on 16 ranks whose samples are alike."""
    few = options(pattern=("linear_shift",), seeds=2, packet_seeds=2, packets=10**9, **settings)
    return run([alike(16)], few)


def test_equal_sizes_hide_what_packets_cost_in_staged_shifts_and_that_is_said():
    """Packets of equal messages go in step: they are as fast as the fluid model. Sizes that differ
    by up to 10 % show what they cost."""
    ratios, said = {}, {}
    for jitter in (0.0, 0.1):
        result = of_shifts(jitter=jitter)
        times = result.tables["times"]
        of_variant = times[(times["batching"] == "iteration") & ~times["barrier"]]
        median = of_variant.groupby("model")["time_s"].median()
        ratios[jitter] = median["packet"] / median["fluid"]
        (said[jitter],) = text.size_notes(result.tables, result.meta)
    assert ratios[0.0] == pytest.approx(1.0, abs=0.01)
    assert ratios[0.1] > 1.05
    assert "vary by up to 10 %, drawn by the seed" in said[0.1]
    assert "All samples have one size" in said[0.0] and "--jitter 0.1" in said[0.0]
    fluid = of_shifts(network=("fluid",))
    assert list(text.size_notes(fluid.tables, fluid.meta)) == []


def test_alike_samples_are_jittered_for_the_packet_model_alone():
    sent = samples_to_send(alike(16))
    jittered = sent.with_jitter(0.1).nbytes(1)
    assert sent.has_equal_sizes
    assert not sent.with_jitter(0.1).has_equal_sizes
    assert jittered.min() >= 0.9 * sent.mean_nbytes
    assert jittered.max() <= 1.1 * sent.mean_nbytes
    assert jittered.std() / sent.mean_nbytes == pytest.approx(0.1 / math.sqrt(3), rel=0.15)
    assert np.array_equal(jittered, sent.with_jitter(0.1).nbytes(1))
    assert not np.any(jittered == sent.with_jitter(0.1).nbytes(2))
    for models, jitter in ((("fluid", "packet"), 0.1), (("packet",), 0.1), (("fluid",), 0.0)):
        asked = request(options(network=models), [alike(16)])
        assert {job.samples.jitter for job in asked.values} == {jitter}
    drawn = samples_to_send(scenario())  # their sizes differ by 23 % already
    assert drawn.with_jitter(0.1) is drawn


# -------------------------------------------------------------------------------------- the verdict

A, B = QUESTIONS[0]


def times_of(seconds, world_size=8, routing="d_mod_k", unit=1.0, width=0.0):
    """A table of times: {(bytes_set, model): {variant: times by seed}}. ``width`` is the share of
    the time by which an interval is wide to either side."""
    rows = [
        {
            "world_size": world_size,
            "routing": routing,
            "bytes_set": bytes_set,
            "pattern": v.pattern,
            "batching": v.batching,
            "barrier": v.barrier,
            "model": model,
            "seed": seed,
            "time_s": unit * time,
            "wire_s": unit * time,
            "low_s": unit * time * (1 - width),
            "high_s": unit * time * (1 + width),
            "bound_s": 1.0,
        }
        for (bytes_set, model), of_variant in seconds.items()
        for v, of_seed in of_variant.items()
        for seed, time in enumerate(of_seed, 1)
    ]
    return pd.DataFrame(rows).reindex(columns=list(STORED["times"].columns))


def judged(seconds):
    table = comparisons(times_of(seconds))
    (verdict,) = verdicts(table).to_dict("records")
    return table.to_dict("records"), verdict


def test_a_winner_in_all_seeds_of_both_models_is_stable():
    rows, verdict = judged(
        {
            ("full", "fluid"): {A: [1, 2, 3], B: [2, 4, 9]},
            ("full", "packet"): {A: [1, 1], B: [3, 2]},
        }
    )
    assert [row["ratio_median"] for row in rows] == [0.5, pytest.approx(5 / 12)]
    assert [(row["ratio_min"], row["ratio_max"]) for row in rows] == [
        (pytest.approx(1 / 3), 0.5),
        (pytest.approx(1 / 3), 0.5),
    ]
    assert [row["seeds"] for row in rows] == [3, 2]
    assert [row["share"] for row in rows] == [1.0, 1.0]
    assert (verdict["winner"], verdict["verdict"], verdict["reason"]) == ("a", "stable", "")
    assert (verdict["a"], verdict["b"]) == ("all_to_all", "pairing_random all")


FULL, PACKET, SHORT = ("full", "fluid"), ("full", "packet"), ("short", "fluid")
SURE, OTHER = {A: [1, 1], B: [2, 2]}, {A: [2, 2], B: [1, 1]}
OFTEN = {A: [1.0] * 10, B: [2.0] * 9 + [0.5]}
SELDOM = {A: [1.0] * 10, B: [2.0] * 8 + [0.5] * 2}


@pytest.mark.parametrize(
    ("seconds", "winner", "verdict", "reason"),
    [
        ({FULL: SURE, PACKET: OTHER}, "a", "unstable", "fluid and packet disagree"),
        (
            {FULL: SELDOM, PACKET: OFTEN},
            *("a", "unstable", "holds in only 80 % of the seeds (fluid)"),
        ),
        (
            {FULL: OTHER, SHORT: SURE, ("short", "packet"): SURE},
            *("b", "unstable", "the first samples alone give another winner"),
        ),
        ({FULL: SURE}, "a", "unchecked", "not compared by the packet model"),
        (
            {FULL: {A: [1], B: [2]}, PACKET: {A: [1], B: [3]}},
            *("a", "unchecked", "fluid: one seed, which does not show chance"),
        ),
    ],
)
def test_what_speaks_against_a_winner_is_its_reason(seconds, winner, verdict, reason):
    found = judged(seconds)[1]
    assert (found["winner"], found["verdict"], found["reason"]) == (winner, verdict, reason)


def test_models_are_held_against_each_other_on_the_seeds_they_share():
    # on all of its seeds fluid says b, on those of packet it says a, as packet does
    fluid, packet = {A: [1, 1, 4, 4, 4], B: [2, 2, 1, 1, 1]}, {A: [1, 1], B: [2, 2]}
    rows, verdict = judged({("full", "fluid"): fluid, ("full", "packet"): packet})
    assert [(row["winner"], row["shared"]) for row in rows] == [("b", "a"), ("a", "a")]
    assert "disagree" not in verdict["reason"]
    assert verdict["verdict"] == "unstable"


@pytest.mark.parametrize(
    ("ratio", "winner"),
    [(1.0, "equal"), (1.009, "equal"), (0.991, "equal"), (1.02, "b"), (0.98, "a")],
)
def test_a_per_cent_is_no_difference(ratio, winner):
    rows, _ = judged({("full", "fluid"): {A: [ratio], B: [1.0]}})
    assert rows[0]["winner"] == winner


def test_the_analytic_model_has_no_say():
    table = comparisons(times_of({("full", "analytic"): {A: [1.0], B: [2.0]}}))
    assert table.empty
    assert verdicts(table).empty


def test_what_is_compared_comes_in_whole_questions():
    every = set(variants(PATTERNS))
    assert judged_variants(every) <= every
    assert {v for question in QUESTIONS for v in question} | set(CORNERS) <= judged_variants(every)
    assert judged_variants(variants(["pairing_random"])) == set()
    assert PRACTICE in judged_variants(variants(["random_permutations", "linear_shift"]))


# ------------------------------------------------------------------------------------- what decides


def corners(time):
    """Times of the eight corners; ``time`` takes the switches: no barriers, together, one
    partner."""
    states = product((False, True), repeat=3)
    return {corner: [time(*state)] * 3 for state, corner in zip(states, CORNERS, strict=True)}


def ablated(seconds):
    return ablation(times_of({FULL: seconds})).set_index("switch")


def test_factors_that_are_independent_are_found_whatever_the_order():
    table = ablated(corners(lambda b, m, p: 0.8**b * 0.5**m * 1.25**p))
    columns = ["alone", "alone_min", "alone_max", "last", "mean"]
    for switch, factor in zip((*SWITCHES, "all three"), (0.8, 0.5, 1.25, 0.5), strict=True):
        assert table.loc[switch, columns].tolist() == pytest.approx([factor] * 5)


def test_what_two_switches_do_only_together_is_shared_between_them():
    table = ablated(corners(lambda b, m, p: 0.25 if b and m else 1.0)).loc[list(SWITCHES)]
    assert table["alone"].tolist() == pytest.approx([1.0, 1.0, 1.0])
    assert table["last"].tolist() == pytest.approx([0.25, 0.25, 1.0])
    assert table["mean"].tolist() == pytest.approx([0.5, 0.5, 1.0])


def test_other_partners_are_switched_alone():
    shift = Variant("linear_shift", "sample", barrier=True)
    table = ablated(corners(lambda b, m, p: 2.0) | {shift: [1.0, 1.5, 3.0]})
    row = table.loc["linear_shift alone"]
    assert row[["alone", "alone_min", "alone_max"]].tolist() == pytest.approx([0.75, 0.5, 1.5])
    assert "xor alone" not in table.index
    assert math.isnan(row["last"])


def test_without_all_corners_nothing_is_said():
    seconds = corners(lambda b, m, p: 1.0)
    del seconds[CORNERS[3]]
    assert ablated(seconds).empty


# --------------------------------------------------------------------------------------- the tables


def test_every_model_gets_the_same_bytes(tables):
    sent = tables["times"].groupby(["world_size", "seed"])["nbytes"]
    assert (sent.max() / sent.min()).max() == pytest.approx(1.0, rel=1e-12)
    assert sent.mean().groupby("world_size").mean().tolist() == pytest.approx(
        tables["sets"]["nbytes"].tolist(), rel=1e-12
    )
    bounds = tables["times"].groupby(["world_size", "pattern", "batching", "seed"])["bound_s"]
    assert (bounds.max() == bounds.min()).all()


def test_every_variant_is_run_by_fluid_and_what_is_judged_by_packet(tables):
    every = variants(PATTERNS)
    runs = tables["times"].groupby(["world_size", "model"]).size()
    assert runs.tolist() == [2 * len(every), 2 * len(judged_variants(every))] * 2


def test_times_are_those_of_the_busiest_link_or_longer(tables):
    by_model = tables["times"].groupby("model")["slowdown"].min()
    assert by_model["fluid"] > 1 - 1e-9
    # where the latencies before and behind the link are those of different messages
    assert by_model["packet"] > 0.999
    whole = tables["times"][tables["times"]["batching"] == "all"]
    assert whole["flow_max_s"].to_numpy() == pytest.approx(whole["wire_s"].to_numpy(), rel=1e-12)
    assert (tables["times"]["flow_p50_s"] <= tables["times"]["flow_p99_s"]).all()
    assert (tables["times"]["flow_p99_s"] <= tables["times"]["flow_max_s"]).all()


def test_utilisation_is_bytes_over_capacity_and_time(tables):
    link = utilisation(tables).iloc[7]
    seconds = 12.5e9 * link["wire_s"]
    assert link["utilisation"] == pytest.approx(link["nbytes"] / seconds, rel=1e-12)
    # equal shares of everything but the host's own go out on its port
    row = tables["tiers"].query("pattern == 'all_to_all' and tier == 'host>leaf'").iloc[0]
    time = tables["times"].query("pattern == 'all_to_all'").iloc[0]
    assert row["links"] == 8
    share = time["nbytes"] / 8 / 12.5e9 / time["wire_s"]
    assert row["mean_utilisation"] == pytest.approx(share, rel=1e-12)
    assert row["mean_utilisation"] < row["max_utilisation"] < 1 + 1e-9


def test_the_hottest_links_come_first(tables):
    found = hottest(tables)
    for _, rows in found.groupby(["world_size", "pattern", "batching", "barrier", "model"]):
        assert rows["place"].tolist() == list(range(1, 11))
        assert rows["utilisation"].is_monotonic_decreasing
        assert rows["link"].is_unique


def test_messages_and_barriers_are_counted(tables):
    times = tables["times"].query("world_size == 8")
    columns = ["pattern", "batching", "barrier"]
    counts = {
        tuple(row[column] for column in columns): (row["messages"], row["barriers"])
        for row in times.drop_duplicates(columns).to_dict("records")
    }
    assert counts["all_to_all", "all", False] == (56, 0)
    assert counts["pairing_random", "sample", True] == (160, 19)
    assert counts["pairing_random", "iteration", True] == (48, 5)
    assert counts["pairing_random", "all", False] == (8, 0)


def test_another_seed_gives_other_tables():
    settings = options(network=("fluid",), seeds=1)
    first, other = (compare([scenario(seed=seed)], settings) for seed in (1, 2))
    assert [name for name in first if first[name].equals(other[name])] == []


def test_runs_that_cannot_differ_are_not_repeated(monkeypatch):
    made, exchange = [], cell.build_exchange
    monkeypatch.setattr(
        cell,
        "build_exchange",
        lambda variant, *rest, **more: (made.append(variant), exchange(variant, *rest, **more))[1],
    )
    # one sample an iteration: batches of one iteration are batches of one sample
    alike = small(workload__exchange=EXCHANGE)
    few = options(pattern=("linear_shift", "pairing_random"), network=("analytic",), seeds=3)
    found = compare([alike], few)
    assert len(found["times"]) == 2 * 5 * 3
    assert len(made) == 3 + 3 * 3  # of the shift once for all seeds, as all samples have one size
    pairing = found["times"].query("pattern == 'pairing_random' and barrier")
    one, other = (
        pairing.loc[pairing["batching"] == batching, "time_s"].tolist()
        for batching in ("sample", "iteration")
    )
    assert one == other


def test_the_packet_model_gets_shortened_bytes_and_so_does_its_rival():
    found = compare([scenario()], options(seeds=2, packet_seeds=1, packets=2000))
    full, short = (found["times"].query(f"bytes_set == '{name}'") for name in ("full", "short"))
    assert set(full["model"]) == {"fluid"}
    assert sorted(set(full["seed"])) == [1, 2]
    assert set(short["model"]) == {"fluid", "packet"}
    assert set(short["seed"]) == {1}
    (row,) = found["sets"][found["sets"]["bytes_set"] == "short"].to_dict("records")
    assert row["byte_share"] == pytest.approx(2000 / 7680, abs=0.05)
    assert row["nbytes"] == pytest.approx(short["nbytes"].iloc[0], rel=1e-12)


def test_all_to_all_is_left_out_where_its_messages_are_too_many_packets():
    result = run([scenario()], options(seeds=1, packet_seeds=1, packets=50))
    found = result.tables
    times = found["times"]
    assert "all_to_all" not in set(times.query("model == 'packet'")["pattern"])
    assert set(times.query("pattern == 'all_to_all'")["bytes_set"]) == {"full"}
    assert any("needs --packets 56 or more" in line for line in text.notes(found, COUNTED))


@pytest.mark.parametrize(
    ("models", "patterns", "expected"),
    [
        (("packet",), ("pairing_random",), 5),  # alone it does all that is asked
        (("packet",), ("all_to_all", "pairing_random"), 6),
        (("fluid", "packet"), ("pairing_random",), 5),  # nothing can be judged
        (("fluid", "packet"), ("all_to_all", "pairing_random"), 4),  # three questions
    ],
)
def test_what_the_packet_model_is_run_for(models, patterns, expected):
    chosen = options(network=models, pattern=patterns, seeds=1, packet_seeds=1)
    found = compare([scenario()], chosen)
    assert (found["times"]["model"] == "packet").sum() == expected


def test_a_pattern_of_too_many_packets_is_left_to_the_fluid_model():
    both = options(network=("fluid", "packet"), pattern=("all_to_all",), packets=50, seeds=1)
    assert compare([scenario()], both)["times"]["model"].tolist() == ["fluid"]


# ------------------------------------------------------------------------------------- the routings

ROUTINGS = ("d_mod_k", "ecmp:queue_pairs=2", "adaptive")


@pytest.fixture(scope="module")
def routed():
    """The result under three routings, two world sizes, fluid alone."""
    settings = options(
        pattern=("all_to_all", "random_permutations", "pairing_random"),
        network=("fluid",),
        seeds=2,
        routing=ROUTINGS,
    )
    return run([scenario(), scenario(world_size=16)], settings)


def test_every_routing_gets_the_same_bytes_and_rows_of_its_own(routed):
    times = routed.tables["times"]
    assert list(times["routing"].unique()) == list(ROUTINGS)
    assert times.groupby("routing").size().nunique() == 1
    runs = ["world_size", "pattern", "batching", "barrier", "seed"]
    assert (times.groupby(runs)["nbytes"].nunique() == 1).all()
    assert set(routed.tables["sets"]["routing"]) == set(routed.tables["links"]["routing"])
    # the scenario's own is d_mod_k, and is not named then
    own = options(pattern=("all_to_all", "pairing_random"), network=("fluid",), seeds=2)
    alone = compare([scenario(), scenario(world_size=16)], own)["times"]
    wanted = times[(times["routing"] == "d_mod_k") & times["pattern"].isin(own.pattern)]
    pd.testing.assert_frame_equal(alone, wanted.reset_index(drop=True), check_exact=True)
    # with 16 ranks on two leaf switches a hash piles pairs up, and the least loaded link does not
    whole = times[(times["world_size"] == 16) & (times["pattern"] == "pairing_random")]
    slowest = whole[whole["batching"] == "all"].groupby("routing")["slowdown"].max()
    assert slowest["adaptive"] == pytest.approx(1.0)
    of_routing = whole[whole["batching"] == "all"].groupby("routing")["time_s"].max()
    assert of_routing["adaptive"] < of_routing["d_mod_k"]


def test_runs_of_several_routings_are_told_apart():
    settings = options(pattern=("pairing_random",), network=("analytic",), routing=ROUTINGS)
    jobs = request(settings, [scenario()]).values
    labels = [run.label for job in jobs for run, _ in job.runs()]
    assert len(set(labels)) == len(labels) == 3 * 5 * 5
    variant = "random pairs, one message a sample, with a barrier"
    assert labels[0] == f"8 ranks, d_mod_k: {variant}, analytic, seed 1"
    assert len({job.sent_cell.label for job in jobs}) == 3
    (one,) = request(options(routing=("ecmp:queue_pairs=1",)), [scenario()]).values
    assert (one.routing, one.name) == ("ecmp", "8 ranks")


def test_messages_do_not_depend_on_what_was_asked_before():
    """Adaptive routes look at what was sent. Cells come in any order, and share the network."""
    (job,) = request(options(routing=("adaptive",)), [scenario(world_size=16)]).values
    runs = [run for run, _ in job.runs() if run.variant.pattern.startswith("pairing")]
    first = [cell.build_traffic(run).flows.routes.tobytes() for run in runs]
    again = [cell.build_traffic(run).flows.routes.tobytes() for run in reversed(runs)]
    assert first == again[::-1]


@pytest.mark.parametrize("routing", ["adaptive", "ecmp:queue_pairs=16", "random_static"])
def test_no_link_of_a_route_is_left_out(routing):
    (job,) = request(options(routing=(routing,)), [scenario(world_size=16)]).values
    fabric = cell.build_fabric(job.place)
    src = np.tile(np.arange(16), 60)
    dst = (src + np.repeat(np.arange(60) % 15 + 1, 16)) % 16
    routes = fabric.resources.with_fresh_routes().message(src, dst)[0]
    names = fabric.resources.links.names
    wanted = [[names[link] for link in route if link >= 0] for route in routes.tolist()]
    found = fabric.routes(src, dst).tolist()
    assert [[fabric.links.name(link) for link in route if link >= 0] for route in found] == wanted


def test_the_switches_are_cabled_once_for_all_routings():
    cell.build_fabric.cache_clear()
    wiring._build_wiring.cache_clear()
    compare([scenario()], options(network=("fluid",), seeds=2, routing=ROUTINGS))
    assert cell.build_fabric.cache_info().misses == 3
    assert wiring._build_wiring.cache_info().misses == 1


def test_what_holds_under_all_routings():
    def of(routing, a, b, model="fluid"):
        return times_of({("full", model): {A: a, B: b}}, routing=routing)

    def judged_over(*tables):
        (row,) = verdicts_over_routings(verdicts(comparisons(pd.concat(tables)))).to_dict("records")
        return row

    sure, other, torn = ([1, 1], [2, 2]), ([2, 2], [1, 1]), ([1, 1], [2, 0.5])
    both = judged_over(of("d_mod_k", *sure), of("ecmp", *sure))
    assert (both["winner"], both["routings"], both["unstable"], both["holds"]) == ("a", 2, 0, True)
    apart = judged_over(of("d_mod_k", *sure), of("ecmp", *other))
    assert (apart["winner"], apart["holds"]) == ("differs", False)
    assert apart["winners"] == "d_mod_k: a, unchecked; ecmp: b, unchecked"
    loose = judged_over(of("d_mod_k", *sure), of("ecmp", *torn), of("min_hop", *torn))
    assert (loose["routings"], loose["unstable"], loose["holds"]) == (3, 2, False)


def test_the_verdict_says_for_which_routings_it_holds(routed, tables):
    judged = {**tables, "verdicts": verdicts(comparisons(tables["times"]))}
    assert list(details.routing_lines(judged)) == ["Verdicts are for the routing d_mod_k."]
    said = [part for part in STUDY.details(routed) if isinstance(part, str)]
    assert "Under all routings (d_mod_k, ecmp:queue_pairs=2, adaptive):" in said
    practice = "random permutations, one message a sample, with a barrier"
    assert f"  16 ranks, all-to-all or {practice}: all-to-all is faster. HOLDS." in said
    # what was sent is said once for all of them
    assert sum("8 ranks on 8 hosts" in line for line in said) == 1
    differing = routed.derived["routings"].query("not holds")
    for row in differing.to_dict("records"):
        wire = ", wire alone" if row["counted"] == "wire" else ""
        question = f"{details.LABELS[row['a']]} or {details.LABELS[row['b']]}"
        at = said.index(f"  {row['world_size']} ranks{wire}, {question}: DOES NOT HOLD.")
        assert said[at + 1].startswith("    d_mod_k: ")
        assert said[at + 3].startswith("    adaptive: ")


def test_figures_show_every_routing(routed):
    figure = laid_out(figures.times_chart(routed.tables))
    routing_names = [ax.get_title().split("\n")[-1] for ax in figure.axes]
    assert list(dict.fromkeys(routing_names)) == list(ROUTINGS)
    # one title for all rows: titles of rows would run into each other
    assert figure.get_supylabel() == "time of an exchange (s) with messages, fluid"
    assert not any(ax.get_ylabel() for ax in figure.axes)
    single = laid_out(figures.times_chart(one_size(routed.tables)))
    assert [ax.get_title() for ax in single.axes] == list(ROUTINGS)
    heat = laid_out(figures.heat_chart(routed.tables))
    rows = [label.get_text() for label in heat.axes[0].get_yticklabels()]
    assert [row for row in rows if row.startswith("all-to-all")] == [
        f"all-to-all ({name})" for name in ROUTINGS
    ]


def test_contention_is_time_over_that_of_messages_on_their_own(tables):
    times = tables["times"]
    assert times["self_contention"].to_numpy() == pytest.approx(
        (times["wire_s"] / times["alone_s"]).to_numpy()
    )
    runs = times.groupby(["world_size", "bytes_set", "pattern", "batching", "barrier", "seed"])
    assert (runs["alone_s"].nunique() == 1).all()
    small = times[(times["world_size"] == 8) & (times["model"] == "fluid")]
    whole = small[(small["batching"] == "all") & (small["seed"] == 1)].set_index("pattern")
    # 16 messages from the four hosts of a leaf to those of the other, over two spines
    assert whole.loc["all_to_all", "first_contention"] == 8.0
    assert 7.0 < whole.loc["all_to_all", "self_contention"] <= 8.5
    assert whole.loc["pairing_topology", "self_contention"] == pytest.approx(1.0)
    assert whole.loc["pairing_topology", "first_contention"] == 1.0


# -------------------------------------------------------------------------------------- the figures


def words(figure):
    texts = [t.get_text() for t in figure.findobj(lambda artist: hasattr(artist, "get_text"))]
    return " | ".join(texts)


def test_the_times_over_world_sizes_show_every_pattern_with_units(tables):
    chart = figures.times_chart(tables)
    figure = laid_out(chart)
    shown = words(figure)
    for pattern in PATTERNS.values():
        assert pattern.label in shown
    ax = figure.axes[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    colour = figures.COLOURS["pairing_random"].lower()
    (line,) = [
        line
        for line in ax.lines
        if line.get_linestyle() == "--" and to_hex(line.get_color()) == colour
    ]
    chosen = tables["times"].query(
        "pattern == 'pairing_random' and batching == 'sample' and barrier and model == 'fluid'"
    )
    assert line.get_ydata() == pytest.approx(
        chosen.groupby("world_size")["time_s"].median().to_numpy()
    )
    assert list(line.get_xdata()) == [8, 16]
    rate = ax.lines[0]
    assert (rate.get_linestyle(), rate.get_linewidth()) == ("-", 2.4)
    assert rate.get_ydata() == pytest.approx(tables["sets"]["injection_s"].to_numpy())


def one_size(tables):
    return {name: table[table["world_size"] == 16] for name, table in tables.items()}


def test_a_single_world_size_shows_all_variants_side_by_side(tables):
    single = one_size(tables)
    chart = figures.times_chart(single)
    figure = laid_out(chart)
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()].count("a sample, barrier") == len(
        PATTERNS
    ) - 1
    points = [line.get_xdata() for line in ax.lines if line.get_linestyle() == "None"]
    medians = {round(float(value), 9) for value in np.concatenate(points)}
    expected = (
        single["times"].groupby(["pattern", "batching", "barrier", "model"])["time_s"].median()
        / single["sets"]["injection_s"].iloc[0]
    )
    assert medians == {round(value, 9) for value in expected}


def test_the_heat_map_shows_every_link_of_every_tier(tables):
    chart = figures.heat_chart(tables)
    figure = laid_out(chart)
    titles = [ax.get_title() for ax in figure.axes if ax.get_title()]
    assert titles == ["host>leaf (16)", "leaf>spine (8)", "spine>leaf (8)", "leaf>host (16)"]
    tiers = {"host>leaf": 16, "leaf>spine": 8, "spine>leaf": 8, "leaf>host": 16}
    for number, (tier, count) in enumerate(tiers.items()):
        cells = rows_of(chart, "cell", number)
        values = cells.pivot(index="y", columns="x", values="value").to_numpy()
        (drawn,) = [each for each in figure.axes[number].collections if len(each.get_paths()) > 1]
        assert len(drawn.get_facecolor()) == values.size
        assert values.shape == (len(variants(PATTERNS)), count)
        assert np.all(np.diff(values, axis=1) <= 0)
        first = tables["tiers"].query(
            f"tier == '{tier}' and world_size == 16 and pattern == 'all_to_all'"
            " and model == 'fluid' and seed == 1"
        )
        assert values[0].mean() == pytest.approx(first["mean_utilisation"].iloc[0])


def test_tiers_are_drawn_in_the_order_of_a_route():
    assert figures.sort_tiers_upwards(
        ["host>leaf", "leaf>host", "memory", "fbb>spine", "spine>fbb", "leaf>fbb", "fbb>leaf"]
    ) == ["host>leaf", "leaf>fbb", "fbb>spine", "spine>fbb", "fbb>leaf", "leaf>host", "memory"]
    assert figures.sort_tiers_upwards(["memory"]) == ["memory"]


# -------------------------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A result folder made by the command."""
    place = tmp_path_factory.mktemp("congestion") / "out"
    assert main(["congestion", *FEW, "--out", str(place)]) == 0
    return place


def test_patterns_models_and_world_sizes_are_chosen(tmp_path, capsys):
    chosen = "--pattern pairing_topology --pattern xor --network analytic --world-size 6,4"
    words = ["congestion", *ARGUMENTS, *chosen.split(), "--seeds", "1"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    times = pd.read_csv(tmp_path / "out" / "times.csv")
    assert times["model"].unique().tolist() == ["analytic"]
    assert times.groupby("world_size")["pattern"].unique().map(list).to_dict() == {
        4: ["xor", "pairing_topology"],
        6: ["pairing_topology"],
    }
    assert "6 ranks: xor is left out, as it needs a power of two." in capsys.readouterr().out


def test_world_sizes_come_from_the_sweep_and_nothing_else_does():
    swept = scenarios("paper/congestion-imagenet1k", {}, [])
    assert [single.world_size for single in swept] == [128, 256, 512, 1024, 2048]
    assert [single.sweep for single in swept] == [{}] * 5
    assert [single.world_size for single in scenarios("quickstart", {}, [])] == [64]
    assert [single.world_size for single in scenarios("quickstart", {}, [32, 16, 32])] == [16, 32]
    # 64, the scenario's own, would not fit
    fitting = {"cluster": "small-fat-tree", "workload.allreduce.rings": 1}
    assert scenarios("quickstart", fitting, [8])[0].world_size == 8
    assert scenarios("paper/congestion-deepcam", {}, [128])[0].workload.dataset.name == "deepcam"


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("times.csv", lambda t: t.head(0)),
        ("times.csv", lambda t: t.head(1)),
        ("times.csv", lambda t: t.assign(seed=[0, *t["seed"][1:]])),
        ("times.csv", lambda t: t.assign(seed=[3, *t["seed"][1:]])),
        ("times.csv", lambda t: pd.concat([t, t])),
        ("times.csv", lambda t: t.assign(time_s=0.0)),
        ("times.csv", lambda t: t.assign(pattern="odd")),
        ("times.csv", lambda t: t.assign(world_size=9)),
        ("sets.csv", lambda t: t.head(0)),
        ("links.parquet", lambda t: t[t["pattern"] != "xor"]),
        ("links.parquet", lambda t: t.assign(tier="odd")),
        ("tiers.parquet", lambda t: t.tail(1)),
        ("tiers.parquet", lambda t: t.assign(links=2**40)),
        ("tiers.parquet", lambda t: t.assign(links=1)),
    ],
)
def test_tables_that_do_not_fit_together_are_refused(name, change, finished, tmp_path, capsys):
    folder = shutil.copytree(finished, tmp_path / "damaged")
    path = folder / name
    if path.suffix == ".csv":
        change(pd.read_csv(path)).to_csv(path, index=False)
    else:
        change(pd.read_parquet(path)).to_parquet(path, index=False)
    assert main(["results", "plot", str(folder)]) == 2
    message = capsys.readouterr().err
    assert path.name in message or "must fit the other files" in message


def test_a_model_leaves_the_flows_as_they_are_for_the_next_one():
    (job,) = request(options(network=("fluid",), seeds=1), [scenario()]).values
    for run, _ in job.runs():
        fabric, nbytes = cell.build_fabric(run.place), run.samples.nbytes(1)
        rng = np.random.default_rng(1)
        traffic = cell.build_exchange(
            run.variant, fabric, nbytes, run.samples.iteration, rng=rng, importance=rng.random(8)
        )
        posted = traffic.flows.earliest_post.copy()
        cell.completion_seconds(traffic, Analytic().finish_times(fabric.links, traffic.flows))
        assert np.array_equal(traffic.flows.earliest_post, posted), run.label
