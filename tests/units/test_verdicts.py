"""The sentences of verdicts: those of tests/golden/verdicts.txt, in one order, without keys that
nobody is to change."""

import re

import pytest

from simshuffle.study.verdict import Verdict, join_sentences, separate_remedy
from tests.golden.make_verdicts import RENEW, judge_by_hand, read_sections

SECTIONS = read_sections()
LABELS = ("Why: ", "Rests on: ", "Measure next: ")
KEY = re.compile(r"\b(cluster|workload|network|recovery|failures|jobs|background)\.[a-z]\w+")


def label_of(line):
    """The place of a line's label in the order of labels; -1 for a line of the answer."""
    return next((index for index, label in enumerate(LABELS) if line.startswith(label)), -1)


def test_the_verdicts_by_hand_are_those_of_the_golden_file():
    verdicts = dict(judge_by_hand())
    for title, verdict in verdicts.items():
        assert SECTIONS[title] == verdict.lines(), f"{title}: {RENEW}"
    others = SECTIONS.keys() - verdicts.keys()
    assert all(": tiny " in title for title in others)


@pytest.mark.parametrize("title", SECTIONS)
def test_the_answer_stands_first_and_at_most_three_lines_behind_it(title):
    labels = [label_of(line) for line in SECTIONS[title]]
    assert labels[0] == -1
    assert labels == sorted(labels)
    behind = [label for label in labels if label >= 0]
    assert len(set(behind)) == len(behind) <= 3
    assert all(line == line.strip() and line[-1] in ".)" for line in SECTIONS[title])


@pytest.mark.parametrize("title", SECTIONS)
def test_only_what_to_measure_next_names_keys(title):
    lines = [line for line in SECTIONS[title] if not line.startswith("Measure next: ")]
    assert [line for line in lines if KEY.search(line)] == []
    # intervals are numbers of tables
    assert [line for line in lines if " ± " in line or "interval" in line] == []


def test_a_text_that_is_empty_has_no_line_and_names_are_shortened_everywhere():
    verdict = Verdict(["a long @8 wins."], rests_on="a long @8.", measure_next="a long @8 again.")
    short = verdict.shorten({"a long @8": "a @8"})
    assert short.lines() == ["a @8 wins.", "Rests on: a @8.", "Measure next: a @8 again."]
    assert Verdict().lines() == []
    assert short.as_json() == {
        "verdict": short.lines(),
        "verdict_parts": {
            "answer": ["a @8 wins."],
            "why": "",
            "rests_on": "a @8.",
            "measure_next": "a @8 again.",
        },
    }
    assert join_sentences(["", "a", "b"]) == "a; b." and join_sentences([""]) == ""


def test_what_folders_store_of_caches_that_still_fill_is_split():
    stored = "Not steady yet: a fills its cache: set epochs: 3."
    assert separate_remedy(stored) == (
        "Not steady yet: a fills its cache",
        ["later epochs (epochs: 3)"],
    )
    assert separate_remedy("") == ("", [])
