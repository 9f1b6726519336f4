"""The verdict of a study: its answer, and at most three lines behind the answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simshuffle.report.names import shorten_names


@dataclass(frozen=True)
class Verdict:
    """The sentences of a verdict, in the order in which every place shows them.

    Numbers have units, and intervals stand in tables alone. Only ``measure_next`` names
    keys, which the reader is to change. A text that is '' has no line.
    """

    answer: Sequence[str] = ()  # a sentence for each scale
    why: str = ""  # the cause that decides
    rests_on: str = ""  # what was simulated, and under which assumptions
    measure_next: str = ""  # what is not known yet, with the key or option to change

    def lines(self) -> list[str]:
        """Return the answer, then the other texts behind their labels."""
        texts = {
            "Why": self.why,
            "Rests on": self.rests_on,
            "Measure next": self.measure_next,
        }
        labelled = (f"{label}: {text}" for label, text in texts.items() if text)
        return [*self.answer, *labelled]

    def text(self) -> str:
        """Return the `lines` as one text, with line feeds between them."""
        return "\n".join(self.lines())

    def shorten(self, short_names: Mapping[str, str]) -> Verdict:
        """Return the verdict with short names of runs, from a mapping by full name."""
        texts = (self.why, self.rests_on, self.measure_next)
        return Verdict(
            [shorten_names(line, short_names) for line in self.answer],
            *(shorten_names(text, short_names) for text in texts),
        )

    def as_json(self) -> dict[str, Any]:
        """Return the lines as 'verdict', and the texts by name as 'verdict_parts'."""
        return {"verdict": self.lines(), "verdict_parts": asdict(self)}


def join_sentences(parts: Iterable[str]) -> str:
    """Join phrases to one line: '; ' between them and a '.' at the end; '' for none."""
    line = "; ".join(filter(None, parts))
    return f"{line}." if line else ""


def separate_remedy(sentence: str) -> tuple[str, list[str]]:
    """Split the sentence on caches that still fill into the finding and what to set.

    Args:
        sentence: of `simshuffle.job.plan.warming.warming_sentence`, as folders store it.

    Returns:
        the finding without '.', and a phrase on later epochs; '' and [] for ''.
    """
    finding, _, remedy = sentence.rstrip(".").partition(": set ")
    return finding, [f"later epochs ({remedy})"] if remedy else []
