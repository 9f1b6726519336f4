"""Odd variants of valid inputs: of nested values, of lines and fields, of bytes. All chance comes
from the generator that is given."""

import copy
import math
import random
import re
from typing import Any

NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 3, 7, 1e-300, 0.5, -0.5, 1.5, 1e9, 10**9, 10**12, 10**18, 2**31, 2**63, 10**40),
    *(1e30, 1e36, 1e308, -1e308, math.inf, -math.inf, math.nan, True, False),
)
TEXTS = (
    *("", " ", "odd", "null", "~", "yes", "1", "-1", "1e400", "nan", "inf", "a" * 300, "ü☃", "\t"),
    *("0 s", "-1 s", "1e400 s", "nan s", "1 GB/s", "0 B", "1e40 B", "5", "5 parsec", "1 s s"),
    *("../..", "/dev/null", "./", "/", "a/b", "x.yaml", "./s.yaml", "s.yaml", "~", "~nobody/x"),
    *("local_shuffle", "global_shuffle:source=ssd", "importance_pair", "a:b=c", "a:b", ":", "a:=1"),
    *("partial_local_shuffle:exchange_fraction=0.3,schedule.overlap=1", "abci", "resnet50", "ring"),
    *("fluid", "packet", "analytic", "iteration", "epoch", "1..2", "a=b;c=d", "=", ";", "|", "x|y"),
    *("a.b.c", ".", "..", "a..b", "sweep", "seed", "workload", "workload.exchange", "include"),
)
OTHERS: tuple[Any, ...] = (None, [], {}, [[]], [{}], {"a": 1}, {"": ""}, {"kind": "odd"}, [1, "a"])
TOKENS = (
    *("&a ", "*a", "!!int ", "!!set ", "!!binary ", "!!python/name:os.x ", "- ", ": ", "? ", "| "),
    *("{", "}", "[", "]", "---\n", "#", '"', "'", "\t", "\0", "\ufeff", "\u2028", "%", "@"),
    *("<", ">", "&amp;", "&#0;", "<!--", "]]>", ",", ",,", ";", "\n\n", "\r", "inf", "1e999"),
    *("-", "9" * 30, "0x1f", "[" * 60, "<a>" * 60, "=", "\udcff", "é", "<<: ", "2001-01-01"),
)


def odd(rng: random.Random) -> Any:
    """A number, text or structure that is valid in some places and odd in most."""
    return copy.deepcopy(rng.choice(rng.choice((NUMBERS, TEXTS, OTHERS))))


def changed_values(values: Any, rng: random.Random) -> Any:
    """Nested values with one to three things replaced, deleted, renamed, copied or nested."""
    out = {"": copy.deepcopy(values)}
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if places := _places(out):
            _change(out, *rng.choice(places), rng)
    return out.get("")


def _places(values: Any) -> list[tuple[Any, Any]]:
    """Every mapping or list, with each of its keys."""
    out: list[tuple[Any, Any]] = []
    left = [values]
    while left:
        at = left.pop()
        for key, value in list(at.items() if isinstance(at, dict) else enumerate(at)):
            out.append((at, key))
            if isinstance(value, dict | list):
                left.append(value)
    return out


def _change(whole: Any, holder: Any, key: Any, rng: random.Random) -> None:
    value = holder[key]
    match rng.randrange(14):
        case 0 | 1 | 2:
            holder[key] = odd(rng)
        case 3:
            del holder[key]
        case 4:
            holder[key] = rng.choice(([value], {"a": value}, [value, value], {"kind": value}))
        case 5 if isinstance(holder, dict):
            new = rng.choice((f"{key}s", str(key).upper(), str(key)[:-1], 3, None, True, 1.5, ""))
            holder[new] = holder.pop(key)
        case 5 | 6:  # a copy of something else
            other, name = rng.choice(_places(whole))
            holder[key] = copy.deepcopy(other[name])
        case 7 if isinstance(holder, dict):
            holder[rng.choice(("odd", "kind", "name", "path", "include", "sweep", "<<"))] = odd(rng)
        case 7:
            holder.append(copy.deepcopy(value))
        case _:
            holder[key] = _near(value, rng)


def _near(value: Any, rng: random.Random) -> Any:
    """A value of the same kind that is a little or much other."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int | float):
        return rng.choice((-value, value + 1, value - 1, value * 1000, value / 3, 0, str(value)))
    if isinstance(value, list):
        return rng.choice((value[::-1], value[:1], value * 3, [], value[1:]))
    if isinstance(value, dict):
        return dict(rng.sample(list(value.items()), rng.randint(0, len(value))))
    numbers = list(re.finditer(r"\d[\d.e+-]*", value))
    if numbers and rng.random() < 0.7:
        found = rng.choice(numbers)
        number = rng.choice(("0", "-1", "1e9", "1e-9", "1e30", "1e308", "nan", "inf", "", "1,5"))
        return value[: found.start()] + number + value[found.end() :]
    return changed_text(value, rng)


def changed_text(text: str, rng: random.Random) -> str:
    """A text with one to three pieces of it deleted, doubled, replaced, or put in."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        first = rng.randrange(len(text) + 1)
        last = min(len(text), first + rng.choice((1, 1, 2, 5, 20)))
        piece = rng.choice((*TOKENS, *TEXTS)) if rng.random() < 0.6 else text[first:last] * 2
        text = text[:first] + rng.choice(("", piece, piece)) + text[rng.choice((first, last)) :]
    return text


def changed_lines(text: str, rng: random.Random) -> str:
    """A text of lines with one to three of them or of their fields changed."""
    lines = text.split("\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                del lines[at]
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[at])
            case 2:
                lines[at] = changed_text(lines[at], rng)
            case 3 if len(lines) > 2:
                lines = lines[: rng.randrange(1, len(lines))]
            case _:
                lines[at] = _other_field(lines[at], rng)
        lines = lines or [""]
    return "\n".join(lines)


def _other_field(line: str, rng: random.Random) -> str:
    """A line with one of its fields replaced, dropped or doubled."""
    fields = re.split(r"([,;|\t]|\s{2,}| )", line)
    at = rng.randrange(0, len(fields), 2)
    fields[at] = rng.choice(
        ("", f"{fields[at]} {fields[at]}", str(rng.choice(NUMBERS)), rng.choice(TEXTS), "x,y", '"')
    )
    return "".join(fields)


def changed_bytes(content: bytes, rng: random.Random) -> bytes:
    """Bytes with a few of them flipped, or cut off, or with others put in."""
    out = bytearray(content)
    match rng.randrange(4):
        case 0:
            return bytes(out[: rng.randrange(len(out) + 1)])
        case 1:
            at = rng.randrange(len(out) + 1)
            return bytes(out[:at] + rng.randbytes(rng.randint(1, 20)) + out[at:])
        case _:
            for _ in range(rng.randint(1, 8)):
                if out:
                    out[rng.randrange(len(out))] = rng.randrange(256)
            return bytes(out)
