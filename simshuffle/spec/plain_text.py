"""Text of other programs as people keep it: with marks of terminals, launchers and
issue trackers around each line, and in encodings of other systems.
"""

from __future__ import annotations

import codecs
import re

_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07\n]*(?:\x07|\x1b\\)")
_TAG = re.compile(r"^\[[^\]\s<>]*\d\]<std(?:out|err|diag)>:? ?")
"""Label of `mpirun --tag-output`: '[1,0]<stdout>:' or '[prterun-host-1@1,0]<stdout>: '."""
_FENCE = re.compile(r"^ {0,8}(?:```+|~~~+)[\w+.-]*[ \t]*$")
_COMMAND = re.compile(
    r"^\s*(?:\[?[\w.-]+@[\w.-]+(?:[:\s][^\]$#%\n]*)?\]?\s*[$#%>]|\$)\s+[\w./~\\\"'-].*$"
)
"""A prompt and a command: '[root@node1 ~]# ibnetdiscover' or '$ ibnetdiscover'."""
_LABELS = (
    re.compile(r"^> ?"),
    re.compile(r"^\s*\d+: ?"),
    re.compile(r'^\[\d+\] (?!\s*")'),
    re.compile(
        r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?[ \t]?"
    ),
    re.compile(r"^[\w.-]+\s*\|(?: |$)"),
    re.compile(r"^[A-Za-z][\w.-]*: ?"),
)
"""Labels of lines: quotes of mail and issues, ranks of `srun --label` and `mpiexec
-prepend-rank`, times, services of compose, hosts of pdsh.
"""
LABELLED_SHARE = 0.8
"""Share of the lines with text that must have a label before labels are taken off; and
of the bytes that must be ASCII in a text of no known encoding.
"""
FEWEST_LABELLED = 4
"""Lines that must have a label, and mean lines for each name of a host or service;
fewer, and labels stay.
"""


def decode(content: bytes) -> str:
    """Decode a text file: UTF-8, or UTF-16 with a byte order mark, which is left out.

    Text with a few bytes of another encoding, such as a sign in the name of a device,
    is read as Latin-1.

    Raises:
        UnicodeDecodeError: the content is neither, and begins as UTF-16, has zero
            bytes, or has less than `LABELLED_SHARE` of ASCII.
    """
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return content.decode("utf-16" if is_wide else "utf-8-sig")
    except UnicodeDecodeError:
        if is_wide or b"\0" in content or share_of_ascii(content) < LABELLED_SHARE:
            raise
        return content.decode("latin-1")


def share_of_ascii(content: bytes) -> float:
    """Return the share, 0 to 1, of the bytes that are printable ASCII, blanks or
    escapes; 0 for no bytes.
    """
    count = sum(32 <= byte < 127 or byte in b"\t\r\n\x1b" for byte in content)
    return count / max(len(content), 1)


def clean_text(text: str) -> str:
    """Remove colours, fences of Markdown, and labels before each line; lines keep their
    numbers.

    Line ends become those of Unix, and a line that is a fence becomes empty. Labels are
    removed only where `strip_label` finds enough of them.
    """
    text = _STYLE.sub("", text).removeprefix("\ufeff")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = [_TAG.sub("", line) for line in text.split("\n")]
    lines = ["" if _FENCE.match(line) else line for line in lines]
    for label in _LABELS:
        lines = strip_label(label, lines)
    return "\n".join(lines)


def strip_label(label: re.Pattern[str], lines: list[str]) -> list[str]:
    """Remove a label from the lines that have it, if they are at least
    `FEWEST_LABELLED` and `LABELLED_SHARE` of those with text.

    Labels that are names (of hosts, of services) must, in the mean, each stand before
    `FEWEST_LABELLED` lines. Otherwise the lines are returned as they are.
    """
    matches = [label.match(line) for line in lines]
    labels = [match.group().strip() for match in matches if match]
    num_written = sum(bool(line.strip()) for line in lines)
    if len(labels) < max(FEWEST_LABELLED, LABELLED_SHARE * num_written):
        return lines
    are_names = labels[0][:1].isalpha()
    if are_names and len(labels) < FEWEST_LABELLED * len(set(labels)):
        return lines
    pairs = zip(lines, matches, strict=True)
    return [line[match.end() :] if match else line for line, match in pairs]


def without_commands(text: str) -> str:
    """Blank the lines that are a prompt and a command; lines keep their numbers."""
    return "\n".join("" if _COMMAND.match(line) else line for line in text.split("\n"))
