"""Node lists as Slurm writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simshuffle.errors import InputError
from simshuffle.spec.hostlist import expand_node_list


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a[1-3,5],b", ["a1", "a2", "a3", "a5", "b"]),
        ("node[001-003,020]", ["node001", "node002", "node003", "node020"]),
        ("a[8-11]", ["a8", "a9", "a10", "a11"]),
        ("a[08-11]", ["a08", "a09", "a10", "a11"]),
        ("a[098-101]", ["a098", "a099", "a100", "a101"]),
        ("a[3,1]", ["a3", "a1"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("a[1-2].cluster , b-1", ["a1.cluster", "a2.cluster", "b-1"]),
        ("[7]", ["7"]),
    ],
)
def test_a_list_stands_for_its_names_in_order(text, names):
    assert expand_node_list(text) == names


@given(
    st.lists(
        st.tuples(
            st.from_regex(r"[a-z]{1,3}", fullmatch=True), st.integers(0, 900), st.integers(0, 30)
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(1, 4),
)
def test_ranges_keep_the_zeros_of_their_lower_end(ranges, width):
    text = ",".join(f"{name}[{low:0{width}d}-{low + more:0{width}d}]" for name, low, more in ranges)
    expected = [f"{name}{low + i:0{width}d}" for name, low, more in ranges for i in range(more + 1)]
    assert expand_node_list(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", ",", "a,", ",a", "a,,b", "a b", "a[", "a]", "[a[1]]", "a[[1]]"),
        *("a[]", "a[1", "a[3-1]", "a[1-]", "a[-1]", "a[x]", "a[1-2-3]", "a[1,]", "a[١]"),
    ],
)
def test_what_is_no_list_is_refused(text):
    with pytest.raises(InputError) as caught:
        expand_node_list(text)
    (problem,) = caught.value.problems
    assert problem.path == "" and problem.rule and problem.remedy
    assert problem.value == repr(text)


@pytest.mark.parametrize(
    "text", ["a[0-999999999999999999]", "a[0-999]b[0-999]", "a[0-9999]," * 25 + "b", "a[1-5,1-6]"]
)
def test_lists_are_bounded(text):
    with pytest.raises(InputError, match="at most"):
        expand_node_list(text, 10) if len(text) < 12 else expand_node_list(text)
    assert len(expand_node_list("a[1-5,1-5]", 10)) == 10
    assert len(str(expand_node_list("a[0-199999]"))) > 200_000
