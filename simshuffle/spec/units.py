"""Quantities at the edge: strings with a unit outside, SI floats inside (bytes,
seconds, bytes/s, 1/s).

Decimal arithmetic keeps `format_quantity` and `parse_quantity` exact inverses of each
other. Decimal prefixes are powers of ten, binary ones (Ki, Mi, Gi, Ti) powers of two;
``bit`` is an eighth of a byte and is spelled out. A quantity may be divided by a whole
number, as the time of a batch by its size: '110 ms / 64'.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from enum import Enum

_DECIMAL = {
    "": 0,
    "n": -9,
    "u": -6,
    "µ": -6,
    "μ": -6,
    "m": -3,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
}
_LONG_TIMES = {"min": 60, "h": 3600, "d": 86_400}
"""Seconds of the longer units of time, which are read; seconds are what is written."""
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5}
_NUMBER = re.compile(
    r"^\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*((?!/\s*\d)[^\s].*?)?"
    r"(?:\s*/\s*(\d+(?:_\d+)*))?\s*$"
)


class Dimension(Enum):
    """The dimension of a quantity: its SI unit, and examples of how to write it."""

    NBYTES = ("B", "'110 kB', '4 MiB', '1.6 TB'")
    SECONDS = ("s", "'90 ns', '1.5 ms', '2 s'")
    BANDWIDTH = ("B/s", "'12.5 GB/s', '100 Gbit/s'")
    FREQUENCY = ("1/s", "'45000 1/s', '45 k/s'")

    @property
    def unit(self) -> str:
        """The SI unit as text."""
        return self.value[0]

    @property
    def examples(self) -> str:
        """Two or three valid spellings."""
        return self.value[1]


class UnitError(ValueError):
    """A quantity that cannot be read; the text, such as 'has no unit; expected ...',
    stands behind its name or value.
    """


def _scales(dimension: Dimension) -> dict[str, Decimal]:
    """Map every symbol of a unit of ``dimension`` to its factor to the SI unit."""
    prefixes = {prefix: Decimal(10) ** power for prefix, power in _DECIMAL.items()}
    prefixes |= {prefix: Decimal(1024) ** power for prefix, power in _BINARY.items()}
    if dimension is Dimension.SECONDS:
        small_units = {
            f"{prefix}s": scale for prefix, scale in prefixes.items() if scale <= 1
        }
        return small_units | {
            name: Decimal(seconds) for name, seconds in _LONG_TIMES.items()
        }
    if dimension is Dimension.FREQUENCY:
        return {
            f"{prefix}{digit}/s": prefixes[prefix]
            for digit in ("", "1")
            for prefix in prefixes
        }
    suffix = "/s" if dimension is Dimension.BANDWIDTH else ""
    return {
        f"{prefix}{symbol}{suffix}": scale * factor
        for symbol, factor in (("bit", Decimal(1) / 8), ("B", Decimal(1)))
        for prefix, scale in prefixes.items()
        if scale >= 1
    }


_SCALES = {dimension: _scales(dimension) for dimension in Dimension}


def pattern(dimension: Dimension, positive: bool = False) -> str:
    """Return a regular expression, as JSON Schema has them, of what `parse_quantity`
    reads and is not negative; with ``positive`` not 0 either. Units with blanks inside,
    which `parse_quantity` reads, do not match.
    """
    decimal = [prefix for prefix, power in _DECIMAL.items() if power >= 0]
    prefixes = "|".join(filter(None, [*_BINARY, *decimal]))
    size = f"({prefixes})?(bit|B)"
    small = "|".join(prefix for prefix, power in _DECIMAL.items() if power < 0)
    unit = {
        Dimension.NBYTES: size,
        Dimension.SECONDS: f"(({small})?s|{'|'.join(_LONG_TIMES)})",
        Dimension.BANDWIDTH: f"{size}/s",
        Dimension.FREQUENCY: f"({'|'.join([*_BINARY, *filter(None, _DECIMAL)])})?1?/s",
    }[dimension]
    not_zero = r"(?=[\d_.]*[1-9])" if positive else ""
    number = r"(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?"
    return rf"^\s*\+?{not_zero}{number}\s*{unit}(\s*/\s*\d+(_\d+)*)?\s*$"


def parse_quantity(text: object, dimension: Dimension) -> float:
    """Parse a quantity such as ``'12.5 GB/s'``, or one over a whole number such as
    ``'110 ms / 64'``; return its SI value: bytes, s, bytes/s or 1/s, also from bits.

    A negative value is read, too; the value is finite.

    Raises:
        UnitError: ``text`` is not a string, has no unit, has a unit of another kind, is
            divided by 0, or is too large for a float.
    """
    expected = f"expected a quantity in {dimension.unit} such as {dimension.examples}"
    if isinstance(text, bool) or not isinstance(text, str):
        raise UnitError(f"has no unit; {expected}")
    match = _NUMBER.match(text)
    if match is None:
        raise UnitError(f"is not a number with a unit; {expected}")
    if match[2] is None:
        raise UnitError(f"has no unit; {expected}")
    unit = match[2].replace(" ", "")
    scale = _SCALES[dimension].get(unit)
    if scale is None:
        rule = f"has the unit '{match[2]}', which is of another kind or unknown;"
        raise UnitError(f"{rule}{_hint(unit, dimension)} {expected}")
    divisor = Decimal((match[3] or "1").replace("_", ""))
    if divisor == 0:
        raise UnitError(f"is divided by 0; {expected}")
    try:
        value = float(Decimal(match[1].replace("_", "")) * scale / divisor)
    except ArithmeticError:
        value = math.inf
    if not math.isfinite(value):
        raise UnitError(f"is too large a number; {expected}")
    return value


def written_unit(text: str) -> str:
    """Return the unit of a quantity as it is written, such as 'Gbit/s', known or not;
    '' where there is none, or no number before it.
    """
    match = _NUMBER.match(text)
    return match[2] or "" if match else ""


_WORDS = (
    (r"bps$", "b/s"),
    (r"Bps$", "B/s"),
    (r"(?i)sec(ond)?s?$", "s"),
    (r"(?i)^min(ute)?s?$", "min"),
    (r"(?i)^(hours?|hrs?)$", "h"),
    (r"(?i)^days?$", "d"),
    (r"(?i)(?<=[a-z])bytes?(?=/|$)|^bytes?(?=/|$)", "B"),
    (r"(?i)bits(?=/|$)", "bit"),
    (r"(?i)(hz|i?ops(/s)?)$", "/s"),
)
"""Spellings of units, and their symbols."""


def _hint(unit: str, dimension: Dimension) -> str:
    """Suggest the units of ``dimension`` that an unknown unit may stand for, which is
    written in other letters or words: a text that begins with a blank, '' if there are
    none. A small b may be bits or bytes.
    """
    for word, symbol in _WORDS:
        unit = re.sub(word, symbol, unit)
    unit_in_bits = re.sub(r"(?<!i)b(?=/s$|$)", "bit", unit)
    suggestions = [
        f"'{name if name != '/s' else '1/s'}'"
        for name in _SCALES[dimension]
        if name.lower() in {unit.lower(), unit_in_bits.lower()} and "1" not in name
    ]
    return f" did you mean {' or '.join(suggestions)}?" if suggestions else ""


def format_quantity(value: float, dimension: Dimension) -> str:
    """Format a finite ``value`` (SI) as a text that `parse_quantity` reads back to the
    last bit.

    The unit has the largest decimal prefix that the value reaches; of seconds none is
    above 's'. NaN makes decimal raise an InvalidOperation.
    """
    decimal = Decimal(repr(float(value)))
    if decimal == 0:
        return f"0 {dimension.unit}"
    steps = [("n", -9), ("u", -6), ("m", -3), ("", 0)]
    if dimension is not Dimension.SECONDS:
        steps = [("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15)]
    prefix, power = steps[0]
    for name, exponent in steps:
        if abs(decimal) >= Decimal(10) ** exponent:
            prefix = name
            power = exponent
    number = (decimal / Decimal(10) ** power).normalize()
    unit = "/s" if prefix and dimension is Dimension.FREQUENCY else dimension.unit
    return f"{number:f} {prefix}{unit}"


def readable(value: float, dimension: Dimension, digits: int = 4) -> str:
    """Format a finite ``value`` (SI) for people: rounded to ``digits`` significant
    digits, with the unit of `format_quantity`, such as '1.5 ms'.
    """
    return format_quantity(float(f"{value:.{digits}g}"), dimension)


def readable_count(value: float) -> str:
    """Format a number of things for people: '1.28 M', rounded to three significant
    digits; '900' below 1,000.
    """
    return readable(value, Dimension.FREQUENCY, 3).removesuffix("/s").removesuffix(" 1")
