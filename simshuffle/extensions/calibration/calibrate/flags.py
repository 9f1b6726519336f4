"""Command lines of benchmarks, as they print them."""

from __future__ import annotations

import re
import shlex

_SHORT_FLAG = re.compile(r"(-[A-Za-z])=?(\S*)")
_NBYTES = re.compile(
    r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(?:i?b)?|b(?:ytes)?)?", re.IGNORECASE
)
_POWERS = {"k": 10, "m": 20, "g": 30, "t": 40}


def parse_flags(text: str) -> dict[str, str]:
    """Return the flags of a command line, each with its value; '' if it has none, all
    values joined by commas if a short flag comes again.

    A value stands behind a short flag, after a blank or an equals sign or directly: '-t
    1m', '-t=1m', '-t1m'; so '-wr' is '-w' with the value 'r'. A long flag has its value
    after an equals sign; if it comes again, the last one counts. Dashes are part of the
    name. Other words, such as the program, are dropped.
    """
    try:
        words = shlex.split(text)
    except ValueError:  # a quote without end
        words = text.split()
    flags: dict[str, str] = {}
    last_flag = ""
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            flags[name], last_flag = value, ""
        elif match := _SHORT_FLAG.fullmatch(word):
            last_flag = match[1]
            flags[last_flag] = ",".join(
                filter(None, (flags.get(last_flag, ""), match[2]))
            )
        elif last_flag:
            flags[last_flag] = ",".join(filter(None, (flags[last_flag], word)))
            last_flag = ""
    return flags


def parse_nbytes(text: str) -> float | None:
    """Return the bytes of a size such as '4096', '1m' or '2 GiB', in powers of 1024;
    None for another text.
    """
    match = _NBYTES.fullmatch(text.strip())
    if match is None:
        return None
    return float(match[1]) * 2.0 ** _POWERS.get((match[2] or "").lower(), 0)
