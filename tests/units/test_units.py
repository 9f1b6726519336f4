"""Quantities: what is read, what is refused, and that writing and reading are inverses."""

import math
from typing import Annotated

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import Field, ValidationError, WithJsonSchema

from simshuffle.spec.record import NonNegative, Seconds, Spec
from simshuffle.spec.units import Dimension, UnitError, format_quantity, parse_quantity, readable

B, S, BW, F = Dimension.NBYTES, Dimension.SECONDS, Dimension.BANDWIDTH, Dimension.FREQUENCY

READ = [
    ("0 B", B, 0.0),
    ("1 B", B, 1.0),
    ("110 kB", B, 110_000.0),
    ("1.6 TB", B, 1.6e12),
    ("2 PB", B, 2e15),
    ("4 MiB", B, 4.0 * 1024**2),
    ("1 KiB", B, 1024.0),
    ("384 GiB", B, 412_316_860_416.0),
    ("1 TiB", B, 1024.0**4),
    ("1 PiB", B, 1024.0**5),
    ("8 bit", B, 1.0),
    ("1 kbit", B, 125.0),
    ("1 Mibit", B, 131_072.0),
    ("1e3 B", B, 1000.0),
    ("1E-3 MB", B, 1000.0),
    ("1_000 kB", B, 1e6),
    (".5 kB", B, 500.0),
    ("5. B", B, 5.0),
    ("+3 B", B, 3.0),
    ("-5 MB", B, -5e6),
    ("110kB", B, 110_000.0),
    ("  110   kB  ", B, 110_000.0),
    ("2 s", S, 2.0),
    ("1.5 ms", S, 0.0015),
    ("26 ns", S, 26e-9),
    ("9.6 us", S, 9.6e-6),
    ("9.6 \N{MICRO SIGN}s", S, 9.6e-6),
    ("9.6 \N{GREEK SMALL LETTER MU}s", S, 9.6e-6),
    ("-1 ms", S, -0.001),
    ("10 min", S, 600.0),
    ("1.5 h", S, 5400.0),
    ("264 d", S, 264 * 86_400.0),
    ("1 d / 4", S, 21_600.0),
    ("12.5 GB/s", BW, 12.5e9),
    ("100 Gbit/s", BW, 12.5e9),
    ("1 B/s", BW, 1.0),
    ("1 GiB/s", BW, 1024.0**3),
    ("8 bit/s", BW, 1.0),
    ("45 k/s", F, 45_000.0),
    ("45000 1/s", F, 45_000.0),
    ("2 M/s", F, 2e6),
    ("3 /s", F, 3.0),
    ("110 ms / 64", S, 0.00171875),
    ("110ms/64", S, 0.00171875),
    ("1 s / 3", S, 1 / 3),
    ("6 GB / 1_000", B, 6e6),
    ("100 GB/s / 4", BW, 25e9),
    ("45000 1/s / 9", F, 5000.0),
    ("30 k/s/3", F, 10_000.0),
]


@pytest.mark.parametrize(("text", "dimension", "value"), READ)
def test_a_quantity_has_its_hand_computed_si_value(text, dimension, value):
    assert parse_quantity(text, dimension) == value


REFUSED = {
    "has no unit; expected a quantity in ": [
        *(100, 1.5, 0, True, False, None, ["1 B"], {"value": "1 B"}, b"1 B"),
        *("100", "1.5", " 1e9 ", "-3", "110 / 64"),
    ],
    "is not a number with a unit": [
        *("", "   ", "nan", "inf", "-inf", "nan B", "inf s", "Infinity B/s", "B", "GB 5", "x"),
        *("- 5 B", "--5 B"),
    ],
}


@pytest.mark.parametrize("dimension", list(Dimension))
@pytest.mark.parametrize(
    ("said", "value"), [(said, value) for said, values in REFUSED.items() for value in values]
)
def test_what_is_no_number_with_a_unit_is_refused(said, value, dimension):
    with pytest.raises(UnitError, match=said):
        parse_quantity(value, dimension)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *((f"110 ms / {of}", "is divided by 0; expected a quantity in s") for of in ("0", "00")),
        *(
            (f"110 ms / {of}", "of another kind or unknown")
            for of in ("-4", "6.4", "64 s", "2 / 2")
        ),
    ],
)
def test_a_quantity_is_divided_by_one_whole_number(text, said):
    with pytest.raises(UnitError, match=said):
        parse_quantity(text, S)


SPELLINGS = {
    B: "GBps Gb KB mB uB b byte Mbits B/s s 1/s GB/h EB kiB",
    S: "GBps sec minute hr ks Kis B S Ms s/s B/s k/s",
    BW: "GBps Gbps Gb/s GB B s GB/h GB/S mB/s 1/s k/s /s B/s/s",
    F: "Hz kHz k GB/s bit/s s 1/h K/s 11/s 2/s",
}


@pytest.mark.parametrize(
    ("dimension", "unit"), [(d, unit) for d, units in SPELLINGS.items() for unit in units.split()]
)
def test_a_unit_of_another_kind_or_an_unknown_one_is_refused_by_name(dimension, unit):
    with pytest.raises(UnitError) as caught:
        parse_quantity(f"5 {unit}", dimension)
    said = str(caught.value)
    assert f"'{unit}'" in said
    assert f"expected a quantity in {dimension.unit} such as {dimension.examples}" in said


@pytest.mark.parametrize("dimension", list(Dimension))
def test_the_examples_in_the_messages_can_be_read(dimension):
    for text in dimension.examples.split(", "):
        assert parse_quantity(text.strip("'"), dimension) > 0


WRITTEN = [
    (0.0, B, "0 B"),
    (1.0, B, "1 B"),
    (999.0, B, "999 B"),
    (1000.0, B, "1 kB"),
    (1.6e12, B, "1.6 TB"),
    (0.5, B, "0.5 B"),
    (-5e6, B, "-5 MB"),
    (0.0, S, "0 s"),
    (26e-9, S, "26 ns"),
    (9.6e-6, S, "9.6 us"),
    (0.0015, S, "1.5 ms"),
    (1.0, S, "1 s"),
    (3600.0, S, "3600 s"),
    (12.5e9, BW, "12.5 GB/s"),
    (43_000.0, F, "43 k/s"),
    (2.0, F, "2 1/s"),
    (0.0, F, "0 1/s"),
]


@pytest.mark.parametrize(("value", "dimension", "text"), WRITTEN)
def test_a_value_is_written_with_the_prefix_that_suits_it(value, dimension, text):
    written = format_quantity(value, dimension)
    assert written == text
    assert parse_quantity(written, dimension) == value


positive = st.one_of(
    st.floats(
        min_value=0.0, exclude_min=True, allow_nan=False, allow_infinity=False, allow_subnormal=True
    ),
    st.floats(min_value=1e-12, max_value=1e18),
)


@pytest.mark.parametrize("dimension", list(Dimension))
@given(value=positive)
@example(5e-324)
@example(2.2250738585072014e-308)
@example(1.7976931348623157e308)
@example(0.1)
@example(1 / 3)
@example(math.nextafter(1000.0, 0.0))
@example(9007199254740993.0)
def test_what_is_written_reads_back_to_the_last_bit(dimension, value):
    for exact in (value, -value):
        assert parse_quantity(format_quantity(exact, dimension), dimension).hex() == exact.hex()


@pytest.mark.parametrize("dimension", list(Dimension))
@given(value=st.floats(min_value=1e-9, max_value=1e18), digits=st.integers(1, 12))
def test_a_value_for_people_is_close_to_the_value(dimension, value, digits):
    assert parse_quantity(readable(value, dimension, digits), dimension) == pytest.approx(
        value, rel=0.5000001 * 10.0 ** (1 - digits)
    )


@pytest.mark.parametrize("dimension", list(Dimension))
@given(text=st.text(st.sampled_from("0123456789.eE+-_ kKMGTPmunµiBbits/\x00٣∞"), max_size=14))
@example("1e400 GB")
@example("-1e400 s")
@example("1e999999 GB/s")
@example("1e99999999999999999999 k/s")
def test_any_other_text_is_read_or_refused_but_never_breaks(dimension, text):
    """Nor becomes infinite where a number is too large for a float."""
    try:
        value = parse_quantity(text, dimension)
    except UnitError:
        return
    assert math.isfinite(value)


HINTS = [
    ("110 KB", B, "'kB'"),
    ("1 mb", B, "'Mbit' or 'MB'"),
    ("4 MIB", B, "'MiB'"),
    ("3 kbytes", B, "'kB'"),
    ("16 Gb/s", BW, "'Gbit/s' or 'GB/s'"),
    ("16 Gbps", BW, "'Gbit/s' or 'GB/s'"),
    ("16 KB/s", BW, "'kB/s'"),
    ("85 US", S, "'us'"),
    ("2 sec", S, "'s'"),
    ("43 kHz", F, "'k/s'"),
    ("43 IOPS", F, "'1/s'"),
    ("43 K/s", F, "'k/s'"),
]


@pytest.mark.parametrize(
    ("text", "dimension", "meant"),
    [*HINTS, *(("3 parsecs", S, None), ("3 m", BW, None), ("3 GB", S, None))],
)
def test_a_unit_in_other_letters_or_words_is_told_the_right_ones(text, dimension, meant):
    """And none is guessed for another one."""
    with pytest.raises(UnitError) as caught:
        parse_quantity(text, dimension)
    assert ("did you mean" in str(caught.value)) == (meant is not None)
    assert meant is None or f"did you mean {meant}?" in str(caught.value)


def test_fields_of_one_quantity_keep_what_is_their_own():
    class Copies(Spec):
        first: Annotated[Seconds, WithJsonSchema({"type": "null"}), Field(le=1.0)]
        second: Seconds = Field(description="of the second copy")
        number: NonNegative = Field(description="of copies")

    properties = Copies.model_json_schema()["properties"]
    types = {name: field["type"] for name, field in properties.items()}
    assert types == {"first": "null", "second": "string", "number": "number"}
    assert properties["second"]["description"] == "of the second copy"
    copies = Copies.model_validate({"first": "2 ms", "second": "5 s", "number": 3})
    assert (copies.first, copies.second, copies.number) == (0.002, 5.0, 3.0)
    written = {"first": "2 ms", "second": "5 s", "number": 3.0}
    assert copies.model_dump(mode="json") == written
    with pytest.raises(ValidationError, match="first"):
        Copies.model_validate({"first": "5 s", "second": "5 s", "number": 3})
