"""What a comparison answers at first sight: a line for each number of ranks, one table, and names
that no table of keys is needed for."""

import re
from functools import partial

import pandas as pd
import pytest
from rich.table import Table

from simshuffle.report.console import terminal_text
from simshuffle.studies.congestion import answer, details, effort, study, text, verb
from simshuffle.studies.congestion.patterns import PATTERNS, Variant, variants
from simshuffle.studies.congestion.study import STUDY
from simshuffle.studies.congestion.traffic import samples_to_send
from tests.units import test_congestion
from tests.units.test_congestion import compare, options, run, scenario

ALL = Variant("all_to_all")
PAIRS = Variant("pairing_random", "iteration")
LEAF = Variant("pairing_topology", "iteration")


times_of = partial(test_congestion.times_of, world_size=64, unit=1e-3)
"""A table of times from {(bytes set, model): {variant: ms by seed}}."""


def said(times, names=("d_mod_k",)):
    return answer.answer(times, list(names))


FLUID, PACKET = ("full", "fluid"), ("full", "packet")


def test_the_answer_names_times_ranges_seeds_and_models():
    times = times_of(
        {
            FLUID: {ALL: [0.59] * 3, PAIRS: [1.05, 0.83, 1.27], LEAF: [0.68] * 3},
            PACKET: {ALL: [0.7], PAIRS: [1.1]},
        }
    )
    # 1.05 / 0.59 = 1.78
    assert said(times) == (
        "64 ranks: all-to-all 0.590 ms; random pairs 1.05 ms, 1.8 times as long, in"
        " all seeds, by both network models; pairs on one leaf 0.680 ms."
    )


@pytest.mark.parametrize(
    ("fluid", "packet", "expected"),
    [
        ([0.4, 0.4], [0.5], "1.5 times as fast, in all seeds, by both network models"),
        ([0.592, 0.592], [0.59], "equally long (within 1 %), in all seeds, by both network models"),
        ([0.9, 0.3, 0.9], [0.9], "1.5 times as long, in 2 of 3 seeds, by both network models"),
        ([1.18], [0.3], "2 times as long, in one seed only, but the packet model does not show it"),
        ([1.18], None, "2 times as long, in one seed only, by the fluid model alone"),
    ],
)
def test_what_speaks_against_an_answer_is_said(fluid, packet, expected):
    seconds = {FLUID: {ALL: [0.59] * len(fluid), PAIRS: fluid}}
    if packet:
        seconds[PACKET] = {ALL: [0.59], PAIRS: packet}
    assert expected in said(times_of(seconds))


def test_another_winner_on_the_first_bytes_is_said():
    times = times_of(
        {
            FLUID: {ALL: [1.0], PAIRS: [2.0]},
            ("short", "fluid"): {ALL: [1.0], PAIRS: [0.5]},
            ("short", "packet"): {ALL: [1.0], PAIRS: [0.5]},
        }
    )
    assert said(times).endswith(
        "in one seed only, but the fluid model of the first samples alone and the packet model do"
        " not show it."
    )


def test_a_winner_within_what_was_not_simulated_is_none():
    seconds = {FLUID: {ALL: [1.0], PAIRS: [1.05]}}
    assert "1.1 times as long, in one seed only" in said(times_of(seconds, width=0.01))
    wide = said(times_of(seconds, width=0.04))
    assert "uncertain (a part was not simulated)" in wide


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ({PAIRS: [1.0]}, "64 ranks: random pairs 1.00 ms."),
        ({Variant("xor", "iteration"): [1.0]}, "64 ranks: xor 1.00 ms."),
        (
            {LEAF: [1.0], PAIRS: [2.0]},
            "64 ranks: random pairs 2.00 ms; pairs on one leaf 1.00 ms, 2 times as fast, in one"
            " seed only, by the fluid model alone.",
        ),
        (
            {ALL: [0.01], Variant("linear_shift", "iteration"): [0.03]},
            "64 ranks: all-to-all 10.0 us; shift 30.0 us, 3 times as long, in one seed only,"
            " by the fluid model alone.",
        ),
    ],
)
def test_other_patterns_are_answered_for_too(seconds, expected):
    assert said(times_of({FLUID: seconds})) == expected


def test_closed_forms_alone_say_at_least():
    times = times_of({("full", "analytic"): {ALL: [0.5], PAIRS: [1.0]}})
    assert said(times) == "64 ranks: all-to-all at least 0.500 ms; random pairs at least 1.00 ms."


def test_several_routings_are_one_line():
    times = pd.concat(
        times_of({FLUID: {ALL: [1.0], PAIRS: [pairs]}}, routing=routing)
        for routing, pairs in (("d_mod_k", 2.0), ("adaptive", 0.5))
    )
    assert said(times, ("d_mod_k", "adaptive")) == (
        "64 ranks: random pairs compared with all-to-all: 2 times as long (d_mod_k); 2 times as"
        " fast (adaptive)."
    )


# ------------------------------------------------------------------------------------------ printed


@pytest.fixture(scope="module")
def result():
    """All patterns at two numbers of ranks, one of which is odd."""
    settings = options(seeds=2, packet_seeds=1, packets=3000)
    return run([scenario(), scenario(world_size=15)], settings)


def test_what_is_printed_fits_a_screen_and_ends_with_the_answers(result):
    lines = terminal_text(result.parts()).splitlines()
    assert len(lines) <= 40
    assert terminal_text(result.answer()).startswith("8 ranks: all-to-all ")
    assert lines[-1] == terminal_text(result.answer()).splitlines()[-1]
    assert sum(line.startswith(("8 ranks: all", "15 ranks: all")) for line in lines) == 2
    assert sum(line.startswith(f" {PATTERNS['pairing_topology'].label}") for line in lines) == 1


def test_no_key_of_a_table_is_printed(result):
    printed = [str(result), *(part for part in result.details() if isinstance(part, str))]
    keys = [pattern for pattern in PATTERNS if "_" in pattern]
    assert [line for line in printed if any(key in line for key in keys)] == []
    assert {label for label in details.LABELS.values() if "_" in label} == set()
    assert len(set(details.LABELS.values())) == len(variants(PATTERNS))


def test_table_and_answer_have_the_same_numbers(result):
    (table,) = [part for part in STUDY.parts(result) if isinstance(part, Table)]
    assert [str(head.header).split()[-2:] for head in table.columns[1:]] == [
        ["a", "barrier"],
        ["a", "sample"],
        ["a", "barrier"],
        ["an", "iteration"],
        ["an", "epoch"],
    ]
    cells = {
        label: list(row) for label, *row in zip(*(c.cells for c in table.columns), strict=True)
    }
    times = result.tables["times"]
    own = times[(times["world_size"] == 15) & (times["model"] == "fluid")]
    own = own[(own["bytes_set"] == "full") & (own["pattern"] == "pairing_random")]
    median = own[(own["batching"] == "iteration") & ~own["barrier"]]["time_s"].median()
    shown = cells["random pairs"][3].split()[0]
    assert "15 ranks, d_mod_k: us of an exchange" in str(table.title)
    assert float(shown) == pytest.approx(1e6 * median, rel=0.01)
    assert cells["all-to-all"][:4] == [""] * 4
    line = next(line for line in result.verdict() if line.startswith("15 ranks"))
    assert f"random pairs {shown} us" in line


def test_notes_are_said_once_with_their_numbers_of_ranks(result):
    found = list(text.notes(result.tables, result.meta))
    assert sum("xor is left out" in note for note in found) == 1
    assert any(note.startswith("15 ranks: xor is left out") for note in found)
    both = {**result.meta, "message_latency_s": 1e-6}
    del both["messages"]
    assert any("barriers cost nothing" in note for note in text.notes(result.tables, both))


# --------------------------------------------------------------------------------------- the ports


def test_the_time_of_the_ports_by_hand():
    """160 samples of each of 8 ranks, two ranks to a port of 12.5 GB/s, 196,608 bytes each.

    On average a port sends 2 x 20 x 196,608 B / 12.5 GB/s; the busiest one sends more, for sizes
    differ. Both are from the drawn bytes here, to all digits.
    """
    found = compare(
        [scenario(cluster__host__gpus=2, cluster__host__hcas=1)],
        options(network=("analytic",), pattern=("pairing_random",), seeds=2),
    )
    (row,) = found["sets"].to_dict("records")
    assert (row["samples"], row["hosts"]) == (20, 4)
    assert row["port_s"] == pytest.approx(2 * 20 * 196_608 / 12.5e9, rel=0.05)
    sent = samples_to_send(scenario(cluster__host__gpus=2, cluster__host__hcas=1))
    by_port = [sent.nbytes(seed).sum(axis=0).reshape(4, 2).sum(axis=1) for seed in (1, 2)]
    average = sum(nbytes.mean() for nbytes in by_port) / 2 / 12.5e9
    busiest = sum(nbytes.max() for nbytes in by_port) / 2 / 12.5e9
    assert row["port_s"] == pytest.approx(average, rel=1e-12)
    assert row["injection_s"] == pytest.approx(busiest, rel=1e-12)
    (line,) = text.sent_lines(found)
    assert f"{text.seconds_text(average)} through a port on average" in line
    assert f"{text.seconds_text(busiest)} through the busiest port" in line


# -------------------------------------------------------------------------------------- the effort


def test_what_is_simulated_fits_the_budget_unless_all_of_it_is_wanted(monkeypatch):
    few = options(seeds=4, packet_seeds=2)
    whole = study.request(few, [scenario()])
    assert "effort" not in whole.asked
    assert list(text.effort_notes(whole.asked)) == []
    cost = sum(cell.cost for cell in study.cells(whole.values, {}).values())
    monkeypatch.setattr(study, "BUDGET", 0.6 * cost)
    less = study.request(few, [scenario()])
    assert sum(cell.cost for cell in study.cells(less.values, {}).values()) <= 0.6 * cost
    assert less.asked["effort"]["seeds"] < less.asked["effort"]["seeds_asked"] == 4
    (note,) = text.effort_notes(less.asked)
    assert f"{less.asked['effort']['seeds']} of 4 seeds" in note
    assert "--exact simulates all" in note
    exact = study.request(options(seeds=4, packet_seeds=2, exact=True), [scenario()])
    assert "effort" not in exact.asked
    keys = [
        {name: cell.key for name, cell in study.cells(r.values, {}).items()} for r in (whole, exact)
    ]
    assert keys[0] == keys[1]


def test_models_speak_for_and_against_a_winner_once_each():
    seconds = {ALL: [1.0, 1.0, 1.0], PAIRS: [2.0, 0.5, 2.0]}
    other = {ALL: [1.0], PAIRS: [0.5]}
    times = times_of(
        {
            ("full", "analytic"): other,
            FLUID: seconds,
            PACKET: seconds,
            ("short", "fluid"): other,
            ("short", "packet"): other,
        }
    )
    contest = answer.Contest.read(times, ALL, PAIRS)
    assert (contest.ratio, contest.seeds, contest.agreeing) == (2.0, 3, 2)
    assert contest.models == ("fluid", "packet")
    assert contest.opposed == ("fluid, first bytes", "packet")
    # an interval of a fifth of either time: 2 x 0.8 / 1.2 is above 1, and 0.5 x 1.2 / 0.8 below
    wide = answer.Contest.read(times_of({FLUID: seconds}, width=0.2), ALL, PAIRS)
    assert (wide.agreeing, wide.models, wide.opposed) == (2, ("fluid",), ())
    assert answer.Contest.read(times_of({FLUID: seconds}, width=0.4), ALL, PAIRS).agreeing == 0


def test_times_are_printed_in_a_unit_with_three_digits():
    units = [answer.time_unit(seconds)[1] for seconds in (1.0, 0.999, 1e-3, 9e-4, 1e-6, 1e-9)]
    assert units == ["s", "ms", "ms", "us", "us", "us"]
    values = (1234.5, 9.996, 0.012345, 0.0, -1.0)
    assert [answer.digits_of(value) for value in values] == ["1230", "10.0", "0.0123", "0", "0"]
    assert answer.digits_of(12.345, 2) == "12"


def test_the_table_of_times_has_medians_over_seeds():
    """Of three seeds: 2 ms between 1 and 4 ms; on the wire half of that, a message at most 0.1 ms;
    the packet model takes 1.5 times as long on the wire, where it has the same seed."""
    times = times_of({FLUID: {PAIRS: [1.0, 2.0, 4.0]}, PACKET: {PAIRS: [3.0, 3.0]}})
    times["wire_s"] = times["time_s"] / 2
    times["slowdown"], times["flow_p99_s"] = [1.25, 1.5, 3.0, 9.0, 9.0], 1e-4
    later = times_of({FLUID: {ALL: [9.0]}}, world_size=8).assign(slowdown=1.0, flow_p99_s=1.0)
    table = details._times_table({"times": pd.concat([later, times])}, "")
    assert str(table.title) == "64 ranks, fluid model, median over 3 seeds, times in ms"
    cells = {str(column.header): [*column.cells] for column in table.columns}
    assert [text for (text,) in cells.values()] == [
        "random pairs",
        "one message an iteration",
        "2.00",
        "1.00-4.00",
        "1.00",
        "1.50",
        "0.100",
        "2.25",  # 1.5 / 0.5 and 1.5 / 1 ms
    ]


def test_less_is_simulated_step_by_step_and_never_more_than_was_asked_for():
    """131,072 messages of an exchange at first; of seeds and packets as many as were asked for."""

    def rows(**values):
        return [
            (limit.most_messages, limit.packets, limit.seeds, limit.packet_seeds)
            for limit in effort.efforts(options(**values))
        ]

    assert rows(packets=2_000_000, seeds=9, packet_seeds=4) == [
        (0, 2_000_000, 9, 4),
        (131_072, 1_000_000, 5, 4),
        (131_072, 500_000, 5, 4),
        (131_072, 500_000, 3, 3),
        (131_072, 500_000, 2, 2),
        (131_072, 500_000, 1, 1),
        (65_536, 500_000, 1, 1),
        (65_536, 250_000, 1, 1),
    ]
    assert rows(packets=2000, seeds=2, packet_seeds=9)[1:5] == [
        (131_072, 2000, 2, 5),
        (131_072, 2000, 2, 5),
        (131_072, 2000, 2, 3),
        (131_072, 2000, 2, 2),
    ]
    assert rows(packets=2000, seeds=2, packet_seeds=9, exact=True) == [(0, 2000, 2, 9)]
    asked = options(packets=2000, seeds=2, packet_seeds=9)
    first, second, *_ = effort.efforts(asked)
    assert effort.effort_meta(first, asked) == {}
    assert effort.effort_meta(second, asked)["effort"] == {
        "most_messages": 131_072,
        "packets": 2000,
        "seeds": 2,
        "packet_seeds": 5,
        "seeds_asked": 2,
    }


def test_closed_forms_answer_first_where_a_simulation_takes_long(monkeypatch):
    chosen = options(pattern=("all_to_all", "pairing_random"), network=("fluid",))
    request = study.request(chosen, [scenario()])
    assert list(verb.first_answer(chosen, request)) == []
    monkeypatch.setattr(effort, "WORTH_FIRST_ANSWER", 0.0)
    (line,) = verb.first_answer(chosen, request)
    found = re.fullmatch(
        r"8 ranks: all-to-all at least (\S+) us; random pairs at least (\S+) us\.", line
    )
    times = compare([scenario()], options(pattern=chosen.pattern, network=("fluid",), seeds=1))
    simulated = [answer.duration(times["times"], variant).median for variant in (ALL, PAIRS)]
    bounds = [1e-6 * float(bound) for bound in found.groups()]
    assert all(
        0.5 * time < bound < 1.005 * time for bound, time in zip(bounds, simulated, strict=True)
    )


def test_a_result_of_an_earlier_version_was_simulated_whole(tmp_path, monkeypatch):
    chosen = options(pattern=("pairing_random",), network=("analytic",), seeds=1)
    request = study.request(chosen, [scenario()])
    (tmp_path / "scenario.yaml").write_text(request.documents["scenario.yaml"])
    settings = {name: value for name, value in request.asked["settings"].items() if name != "exact"}
    again = verb.repeat(tmp_path, {"settings": settings})
    assert again.asked["settings"]["exact"] is True
