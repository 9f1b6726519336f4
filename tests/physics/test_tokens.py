"""Token data: how documents are packed, what a sequence is read in and takes to compute, and how
often an epoch goes through each source. Each law by hand, or against a plain count."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from simshuffle.job.derived_values import derive_values
from simshuffle.job.lowering.reads import compute_factor
from simshuffle.job.plan.bounds import bounds
from simshuffle.job.plan.epochs import Reads, plan_epochs, sample_nbytes
from simshuffle.job.scenario.model import StepTimes
from simshuffle.job.scenario.scenario import Scenario, from_dict, load_scenario
from simshuffle.job.scenario.tokens import (
    PACKINGS,
    Packed,
    Tokens,
    draw_lengths,
    repeated_shares,
)
from simshuffle.job.sim.simulate import simulate
from tests.small import seconds, small

ALIKE = {"mean": 300, "std": 0}
EITHER = {
    "sequence_length": 1000,
    "document_length": {"mean": 1000, "std": 0},
    "attention": "documents",
    "attention_share": 0.5,
    "sources": [
        {"name": "whole", "weight": 1, "tokens": 100_000},
        {
            "name": "halves",
            "weight": 3,
            "tokens": 2_400_000,
            "document_length": {"mean": 500, "std": 0},
        },
    ],
}
"""Sequences of one document of 1000 tokens, or of two of 500: 1 and 1/2 of all pairs of tokens, so
1 and 3/4 of the computing."""
LATENCY = {
    "cluster__parallel_file_system__latency": "10 ms",
    "cluster__parallel_file_system__latency_spread": 0,
    "workload__exchange": "global_shuffle:source=pfs",
    "workload__loader": {"workers": 1, "prefetch": 1},
}


def tokens(**values: Any) -> Tokens:
    given = {"sequence_length": 1000, "document_length": ALIKE, **values}
    return Tokens.model_validate(given)


def dataset(**values: Any) -> dict[str, Any]:
    return {"name": "tokens", "num_samples": 800, "tokens": values}


def of_tokens(values: dict[str, Any], **more: Any) -> Scenario:
    return small(workload__dataset=dataset(**values), **more)


# ---------------------------------------------------------------------------------------- packing


def packed(packing: str, lengths: list[int], room: int) -> list[tuple[int, ...]]:
    found = PACKINGS[packing](np.array(lengths), room)
    return [
        (int(pieces), int(kept), int(squares))
        for pieces, kept, squares in zip(found.pieces, found.tokens, found.squares, strict=True)
    ]


def test_documents_are_cut_where_a_sequence_ends():
    # aaab bbbb cccc, and one token is left
    assert packed("concatenate", [3, 5, 5], 4) == [(2, 4, 10), (1, 4, 16), (1, 4, 16)]


def test_a_padded_document_is_cut_off():
    assert packed("pad", [3, 5, 4], 4) == [(1, 3, 9), (1, 4, 16), (1, 4, 16)]


def test_the_best_fit_is_where_the_least_room_is_left():
    # 13 is cut to 10 and 3; 7, 6 begin sequences, 4 goes to 6, one 3 to 7, the other is left alone
    expected = {(1, 10, 100): 1, (2, 10, 52): 1, (2, 10, 58): 1, (1, 3, 9): 1}
    assert Counter(packed("best_fit", [13, 7, 3, 6, 4], 10)) == expected


def test_pieces_fill_equal_rooms_one_after_the_other():
    """6 and 6 leave 4 each, which two of 4 fill; 3 begins another, to which 2 goes. A document of
    20 tokens is two sequences, and nothing of it is left."""
    expected = {(1, 10, 100): 2, (2, 10, 52): 2, (2, 5, 13): 1}
    assert Counter(packed("best_fit", [6, 4, 2, 20, 6, 4, 3], 10)) == expected
    # of 2,000 sequences of one document 1,024 are counted
    assert packed("best_fit", [20_000], 10) == [(1, 10, 100)] * 1024
    assert packed("concatenate", [20_000], 10) == [(1, 10, 100)] * 1024


def test_too_little_for_a_sequence_is_filled_up():
    assert packed("concatenate", [3], 10) == [(2, 10, 9 + 49)]
    assert packed("concatenate", [3, 7], 10) == [(2, 10, 9 + 49)]


def test_every_third_of_ten_sequences():
    numbers = np.arange(10)
    found = Packed(numbers, numbers + 10, numbers + 0.5)
    assert found.every_kth(3).pieces.tolist() == [0, 3, 6]
    assert found.every_kth(4).tokens.tolist() == [10, 12, 14, 16]
    assert found.every_kth(20).squares.tolist() == (numbers + 0.5).tolist()


def test_drawn_documents_have_their_mean_and_deviation():
    lengths = draw_lengths(np.random.default_rng(3), 300, 150, 40_000)
    # errors of 150 / 200 = 0.75 and, of a log-normal one, some 1 % of 150
    assert lengths.mean() == pytest.approx(300, abs=2.5)
    assert lengths.std() == pytest.approx(150, rel=0.04)
    assert draw_lengths(np.random.default_rng(3), 1, 3, 1000).min() == 1


def test_bytes_of_two_sources_by_hand():
    """A quarter of 400 tokens and the rest of 800: 700 in the mean, 300 and 100 off."""
    sources = [
        {"name": "a", "weight": 1, "tokens": 5000, "document_length": {"mean": 400, "std": 0}},
        {"name": "b", "weight": 3, "tokens": 5000, "document_length": {"mean": 800, "std": 0}},
    ]
    both = tokens(packing="pad", bytes_per_token=4, sources=sources)
    deviation = 4 * math.sqrt(0.25 * 300**2 + 0.75 * 100**2)
    assert both.nbytes == pytest.approx((2800.0, deviation))
    assert both.useful == pytest.approx(0.7)
    drawn = both.draw_nbytes(np.random.default_rng(0), 4000)
    assert set(drawn.tolist()) == {1600.0, 3200.0}
    assert drawn.mean() == pytest.approx(2800, abs=4 * deviation / math.sqrt(4000))
    assert tokens().draw_nbytes(np.random.default_rng(0), 3).tolist() == [2000.0] * 3


@pytest.mark.parametrize("kind", ["log-normal", "geometric", "either"])
def test_pieces_of_a_window_whatever_the_distribution(kind):
    """A document ends between two tokens with probability 1 / mean: 1 + (S - 1) / mean pieces."""
    rng = np.random.default_rng(1)
    lengths = {
        "log-normal": lambda: draw_lengths(rng, 300, 900, 20_000),
        "geometric": lambda: rng.geometric(1 / 300, 10_000),
        "either": lambda: rng.choice([1, 999], 10_000),
    }[kind]()
    found = PACKINGS["concatenate"](lengths, 512)
    # a plain count: the document of every token, window by window
    of = np.repeat(np.arange(len(lengths)), lengths)[: len(found.pieces) * 512].reshape(-1, 512)
    assert (found.pieces == 1 + (np.diff(of, axis=1) != 0).sum(axis=1)).all()
    assert found.pieces.mean() == pytest.approx(1 + 511 / lengths.mean(), rel=5e-3)
    law = tokens(sequence_length=512, document_length={"mean": lengths.mean(), "std": 1})
    assert law.ranges == pytest.approx(1 + 511 / lengths.mean(), rel=1e-12)


def test_pairs_of_tokens_of_one_document():
    """Of geometric documents two tokens d apart are of one with probability q^d."""
    lengths = np.random.default_rng(2).geometric(1 / 200, 60_000)
    apart, q = np.arange(1, 1024), 1 - 1 / 200
    expected = 1024 + 2 * ((1024 - apart) * q**apart).sum()
    found = PACKINGS["concatenate"](lengths, 1024).squares.mean()
    assert found == pytest.approx(expected, rel=0.02)


def test_documents_that_are_alike_end_at_some_places_alone():
    """Windows of 1000 begin 0, 100 or 200 tokens into documents of 300: 4 pieces each, not 4.33."""
    assert tokens().ranges == 4.0
    assert (PACKINGS["concatenate"](np.full(30, 300), 1000).pieces == 4).all()
    assert tokens(sequence_length=900).ranges == 3.0


# ------------------------------------------------------------------------------ requests and bytes


def test_sequences_packed_before_are_one_range_and_keep_their_padding():
    padded = {"packing": "pad", "bytes_per_token": 4}
    assert tokens(shuffled="sequences").ranges == tokens(packing="pad").ranges == 1.0
    assert tokens(**padded).nbytes == (1200.0, 0.0)
    assert tokens(**padded, shuffled="sequences").nbytes == (4000.0, 0.0)
    assert tokens(packing="pad").useful == pytest.approx(0.3)


@pytest.mark.parametrize(("shuffled", "ranges"), [("documents", 4), ("sequences", 1)])
def test_each_range_is_a_request(shuffled, ranges):
    """10 samples of 10 ms a range, read one after the other before the first step; of the SSD each
    range takes its latency too."""
    values = {"sequence_length": 1000, "document_length": ALIKE, "shuffled": shuffled}
    scenario = of_tokens(values, **LATENCY, world_size=1)
    phases = simulate(scenario).phases
    first = phases[(phases["phase"] == "io") & (phases["iteration"] == 1)]
    took = (first["end_s"] - first["start_s"]).item()
    assert took == pytest.approx(10 * ranges * 10e-3, rel=1e-3)
    assert bounds(scenario).first_batch == pytest.approx(took, rel=5e-3)  # and copied
    local = {**LATENCY, "workload__exchange": "local_shuffle", "cluster__ssd__latency": "10 ms"}
    assert bounds(of_tokens(values, **local)).first_batch == pytest.approx(took, rel=5e-3)


def test_the_whole_set_is_opened_once():
    links = simulate(
        of_tokens({"sequence_length": 1000, "document_length": ALIKE}, **LATENCY)
    ).links
    opens = links[links["tier"] == "pfs.open"]
    # 4 requests of 800 samples of 10 ms, on 8 ranks at once
    assert (opens["mean_utilisation"] * opens["capacity"]).item() == pytest.approx(1 / 4, rel=0.2)


# -------------------------------------------------------------------------------------- computing


def test_samples_compute_what_their_documents_ask_for():
    """Each rank as long as its batches say, each iteration as long as the slowest."""
    scenario = of_tokens(EITHER, world_size=4)
    step = 0.9083e-3 + 1.817e-3
    work = scenario.workload.draw_work(scenario.rng("sample_size"))
    assert work is not None
    assert set(work.tolist()) == {1.0, 0.75}
    assert (work == 0.75).mean() == pytest.approx(0.75, abs=0.05)
    plan = next(plan_epochs(scenario, sample_nbytes(scenario)))
    expected = work[plan.shards.order].reshape(4, 20, 10).sum(axis=2).T * step  # (iterations, M)
    timeline = simulate(scenario)
    for rank in range(4):
        passes = [seconds(timeline, phase)[rank] for phase in ("forward", "backward")]
        assert sum(passes) == pytest.approx(expected[:, rank].sum(), rel=1e-9)
        waiting = (expected.max(axis=1) - expected[:, rank]).sum()
        waited = seconds(timeline, "wait_allreduce")[rank]
        assert waited == pytest.approx(waiting, rel=1e-3, abs=1e-6)
    assert expected.std() > 0
    mean = bounds(scenario).compute - 20 * 0.5679e-3
    assert mean == pytest.approx(200 * step * (0.25 + 0.75 * 0.75))
    assert mean < expected.max(axis=1).sum()


def test_the_fixed_part_is_the_same_for_all():
    """10 ms fixed and 10 samples of 1 ms, computed in half: 15 of 20 ms. An empty batch is none."""
    times = StepTimes.model_validate({"forward": "0.4 ms", "backward": "0.6 ms", "fixed": "10 ms"})
    samples = np.array([[10, 0]])
    work = np.array([[0.5, 1.0]])
    reads = Reads(samples, samples * 1.0, samples, samples * 1.0, work=work)
    factor = compute_factor(np.random.default_rng(0), 0.0, reads, times)
    assert factor.tolist() == [[0.75, 1.0]]


def test_step_times_may_be_of_a_mean_sequence():
    found = of_tokens({**EITHER, "normalised": True}).workload
    work = found.draw_work(np.random.default_rng(0))
    assert work is not None
    assert sorted(set(work.tolist())) == pytest.approx([0.75 / 0.8125, 1 / 0.8125])
    assert found.mean_work == 1.0
    assert of_tokens(EITHER).workload.mean_work == pytest.approx(0.8125)
    assert (
        of_tokens({**EITHER, "attention": "full"}).workload.draw_work(np.random.default_rng(0))
        is None
    )


def test_bytes_and_computing_are_of_the_same_samples():
    """A padded document of l tokens: 2 l bytes, and l^2 of S^2 pairs."""
    values = {
        "sequence_length": 1000,
        "document_length": {"mean": 400, "std": 300},
        "packing": "pad",
        "attention": "documents",
        "attention_share": 1,
    }
    scenario = of_tokens(values)
    nbytes = sample_nbytes(scenario)
    work = scenario.workload.draw_work(scenario.rng("sample_size"))
    assert work == pytest.approx((nbytes / 2000) ** 2)
    assert len(set(nbytes.tolist())) > 100
    stored = scenario.workload.dataset.stored
    assert nbytes.mean() == pytest.approx(stored.mean, rel=0.1)
    assert nbytes.std() == pytest.approx(stored.spread, rel=0.1)


def test_the_share_of_attention_by_operations():
    """24 blocks of 24 S h^2 without and 4 S^2 h with attention; 2 S h words of the logits."""
    width, length = 2048, 2048
    scores = 24 * 4 * length**2 * width
    others = 24 * 24 * length * width**2 + 2 * length * width * 51200
    found = load_scenario("gpt-tokens").workload
    assert found.attention_share == pytest.approx(scores / (scores + others))
    assert found.model.attention == (2048, found.attention_share)


# --------------------------------------------------------------------------------------- blending


def test_how_often_an_epoch_goes_through_each_source():
    """800 sequences: 200 of 100,000 tokens, twice through it; 600 of 2,400,000, a quarter of it."""
    whole, halves = tokens(**EITHER).blended
    assert (whole.share, halves.share) == (0.25, 0.75)
    assert (whole.epochs(800), halves.epochs(800)) == (2.0, 0.25)
    assert repeated_shares(2.0) == (0.5, 0.0)
    assert repeated_shares(0.25) == (0.0, 0.75)
    assert repeated_shares(1.0) == (0.0, 0.0)
    # a document a sequence, whatever is cut off and filled up
    padded = tokens(**{**EITHER, "packing": "pad"}).blended
    assert [each.epochs(800) for each in padded] == [2.0, 0.125]
    # pieces by source: one; two
    assert [each.pieces for each in (whole, halves)] == [1.0, 2.0]
    assert tokens(**EITHER).ranges == pytest.approx(1.75)


def test_what_follows_is_shown():
    shown = derive_values(of_tokens(EITHER))
    assert shown["sequence of tokens, in the mean"].startswith("1.75 ranges of a file, no padding,")
    assert "0.8125 of the computing" in shown["sequence of tokens, in the mean"]
    assert shown["source whole"] == (
        "0.25 of all sequences, 2 times through it, 0.5 of it read before, 1 ranges a sequence"
    )
    assert "0.25 times through it, 0.75 of it never read, 2 ranges" in shown["source halves"]


def test_written_back_sizes_still_follow():
    scenario = of_tokens(EITHER)
    again = from_dict(scenario.to_dict(), "again")
    assert again == scenario
    longer = again.with_values({"workload.dataset.tokens.bytes_per_token": 4})
    assert longer.workload.dataset.stored.mean == 2 * scenario.workload.dataset.stored.mean
    assert math.isclose(scenario.workload.dataset.nbytes, 800 * 2000)
