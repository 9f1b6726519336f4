"""Token data: documents of random length, packed into sequences, the samples of a
language model.

What follows: the ranges of a file in which a sample is read, its bytes, and its
computing.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from simshuffle.errors import InputError, Problem
from simshuffle.spec.arrays import Floats, Ints64
from simshuffle.spec.record import Count, Fraction, NonNegative, Spec
from simshuffle.spec.rng import stream

COUNTED = 2**14
"""Sequences that are packed to count what follows of a packing."""
MOST_DOCUMENTS = 2**16
"""Documents that are drawn for them at most."""

MeanTokens = Annotated[NonNegative, Field(ge=1, le=2**24)]
"""Tokens of a document in the mean."""


class DocumentLength(Spec):
    """Tokens of a document: log-normal, rounded, at least 1.

    Attributes:
        mean: tokens of a document.
        std: standard deviation of the same; 0 for documents that are all alike.
    """

    mean: MeanTokens
    std: NonNegative


class TokenSource(Spec):
    """A corpus in a blend of corpora.

    Attributes:
        name: of the corpus.
        weight: its part of the sequences of an epoch, in any unit.
        tokens: that it has; at least those of one sequence.
        document_length: of its documents; if left out that of 'tokens'.
    """

    name: str
    weight: NonNegative
    tokens: Count
    document_length: DocumentLength | None = None


class Tokens(Spec):
    """Documents packed into sequences of ``sequence_length`` tokens.

    ``concatenate`` puts the documents one behind the other and cuts every S tokens.
    ``pad`` has one document a sequence, cut off after S tokens and filled up to them.
    ``best_fit`` cuts documents every S tokens and puts what is left of each, the
    longest first, to where the least room is left that is enough.

    Attributes:
        sequence_length: S, tokens of a sequence, which is a sample.
        bytes_per_token: in the file.
        document_length: of the documents, unless their source says its own.
        packing: how documents become sequences: 'concatenate', 'pad' or 'best_fit'.
        shuffled: what stands in random order: 'documents', so that each piece of one is
            a range of a file, read by itself; or 'sequences' that were packed before,
            padding and all, each of which is one range.
        attention: whether each token of a sequence attends to all of it ('full'), or to
            those of its own document ('documents'), which takes less the shorter
            documents are.
        attention_share: of the computing of a sequence of S tokens, that of attention
            to all of it; if left out by the operations of the model's layers.
        normalised: whether the model's step times are of a mean sequence of these data;
            if false of one whose tokens attend to all of it.
        sources: corpora that are blended; if left out one, which is as large as an
            epoch.
    """

    sequence_length: Annotated[int, Field(ge=2, le=2**24)]
    bytes_per_token: Literal[2, 4] = 2
    document_length: DocumentLength
    packing: Literal["concatenate", "pad", "best_fit"] = "concatenate"
    shuffled: Literal["documents", "sequences"] = "documents"
    attention: Literal["full", "documents"] = "full"
    attention_share: Fraction | None = None
    normalised: bool = False
    sources: list[TokenSource] = Field(default_factory=list)

    @model_validator(mode="after")
    def _check_sources(self) -> Tokens:
        """Refuse sources without weight, with equal names, or shorter than a
        sequence.
        """
        names = [source.name for source in self.sources]
        if self.sources and not sum(source.weight for source in self.sources) > 0:
            rule = "must have a weight above 0"
            remedy = "Write weight: 1 for one of them."
            raise InputError(Problem("sources", rule, "none", remedy))
        for source in self.sources:
            if names.count(source.name) > 1:
                rule = "must each have a name of its own"
                remedy = "Rename one of them."
                raise InputError(
                    Problem("sources", rule, f"several '{source.name}'", remedy)
                )
            if source.tokens < self.sequence_length:
                rule = f"must have the {self.sequence_length} tokens of a sequence at least"
                remedy = "Leave the source out, or lower sequence_length."
                value = f"{source.tokens} of '{source.name}'"
                raise InputError(Problem("sources", rule, value, remedy))
        return self

    @property
    def blended(self) -> list[Blended]:
        """The corpora, each with its share of the sequences; one without a name or
        tokens if no sources are given.
        """
        sources = self.sources or [
            TokenSource.model_construct(name="", weight=1.0, tokens=0)
        ]
        total_weight = sum(source.weight for source in sources)
        packed = (self.sequence_length, self.packing)
        corpora = []
        for source in sources:
            length = source.document_length or self.document_length
            share = source.weight / total_weight
            corpora.append(
                Blended(
                    source.name, share, source.tokens, *packed, length.mean, length.std
                )
            )
        return corpora

    @property
    def ranges(self) -> float:
        """Ranges of a file that a sample is read in, in the mean: a request each."""
        if self.shuffled == "sequences":
            return 1.0
        return sum(corpus.share * corpus.pieces for corpus in self.blended)

    @property
    def useful(self) -> float:
        """Share of the tokens of a sequence that are no padding, in the mean."""
        return (
            sum(corpus.share * corpus.useful for corpus in self.blended)
            / self.sequence_length
        )

    @property
    def nbytes(self) -> tuple[float, float]:
        """Bytes of a sample in storage: mean and standard deviation. Padding is among
        them but where documents are read one by one.
        """
        if not self._uneven:
            return float(self.sequence_length * self.bytes_per_token), 0.0
        parts = [
            (corpus.share, corpus.count_packing().tokens) for corpus in self.blended
        ]
        mean = sum(share * tokens.mean() for share, tokens in parts)
        square = sum(share * (tokens**2.0).mean() for share, tokens in parts)
        spread = math.sqrt(max(square - mean**2, 0.0))
        return float(mean) * self.bytes_per_token, spread * self.bytes_per_token

    def draw_nbytes(self, rng: np.random.Generator, count: int) -> Floats:
        """Draw the bytes in storage of ``count`` samples: (count,).

        Draws nothing from ``rng`` if all samples have equal bytes.
        """
        if not self._uneven:
            return np.full(count, self.nbytes[0])
        return (self._draw_sequences(rng, count).tokens * self.bytes_per_token).astype(
            np.float64
        )

    def draw_work(
        self, rng: np.random.Generator, count: int, attention_share: float
    ) -> Floats | None:
        """Draw the computing of ``count`` samples, as a multiple of what the model's
        step times say: (count,); None if it is 1 for all.

        With an ``rng`` in the same state, the samples are those of `draw_nbytes`.

        Args:
            rng: draws the sequences.
            count: samples.
            attention_share: share of attention in the computing of a whole sequence.
        """
        if self.attention == "full":
            return None
        # (1 - a) + a of the sum of l^2 over S^2
        attended = self._draw_sequences(rng, count).squares / self.sequence_length**2
        work = 1.0 - attention_share * (1.0 - attended)
        if self.normalised:
            work /= 1.0 - attention_share * (1.0 - self._attended)
        return work

    def mean_work(self, attention_share: float) -> float:
        """Return the mean of `draw_work`; 1 where that is None."""
        if self.attention == "full" or self.normalised:
            return 1.0
        return 1.0 - attention_share * (1.0 - self._attended)

    @property
    def _attended(self) -> float:
        """Share of the pairs of tokens of a sequence that are of one document, in the
        mean.
        """
        pairs = sum(
            corpus.share * corpus.count_packing().squares.mean()
            for corpus in self.blended
        )
        return float(pairs) / self.sequence_length**2

    @property
    def _uneven(self) -> bool:
        """True if samples differ in bytes: padding is stored only where it was packed
        before.
        """
        return self.packing != "concatenate" and self.shuffled == "documents"

    def _draw_sequences(self, rng: np.random.Generator, count: int) -> Packed:
        """Draw ``count`` of the packed sequences, with replacement, each of a source
        drawn by weight.
        """
        parts = [corpus.count_packing() for corpus in self.blended]
        sizes = np.array([len(part.tokens) for part in parts])
        part_of_sequence = rng.choice(
            len(parts), count, p=[corpus.share for corpus in self.blended]
        )
        within = (rng.random(count) * sizes[part_of_sequence]).astype(np.int64)
        columns = zip(
            *((part.pieces, part.tokens, part.squares) for part in parts), strict=True
        )
        joined = Packed(*map(np.concatenate, columns))
        return joined.select((np.cumsum(sizes) - sizes)[part_of_sequence] + within)


@dataclass(frozen=True)
class Blended:
    """The sequences of one corpus."""

    name: str  # of the corpus; '' if it is the only one
    share: float  # of all sequences
    tokens: int  # that the corpus has; 0 where nobody says it
    sequence_length: int  # S
    packing: str  # see `Tokens`
    # mean, std: tokens of a document
    mean: float
    std: float

    def count_packing(self) -> Packed:
        """Return at most `COUNTED` sequences packed from fixed random documents;
        cached, and equal in every scenario.
        """
        return _count_packing(self.sequence_length, self.packing, self.mean, self.std)

    @property
    def pieces(self) -> float:
        """Pieces of documents in a sequence, in the mean. Between two tokens that
        follow one another a document ends with probability 1 / mean, whatever the
        distribution; a window of S tokens has S - 1 such places. Where documents are
        all alike, every g-th place alone can be such an end, g their greatest common
        divisor with S, and a window then begins at one.
        """
        if self.packing == "concatenate":
            equal_lengths = self.std == 0.0
            step = (
                math.gcd(self.sequence_length, round(self.mean)) if equal_lengths else 1
            )
            return 1.0 + (self.sequence_length - step) / self.mean
        return float(self.count_packing().pieces.mean())

    @property
    def useful(self) -> float:
        """Tokens of a sequence that are no padding, in the mean."""
        if self.packing == "concatenate":
            return float(self.sequence_length)
        return float(self.count_packing().tokens.mean())

    def epochs(self, num_samples: int) -> float:
        """Return the number of times that an epoch of ``num_samples`` sequences of all
        corpora goes through this corpus, a real number.

        The corpus must say its tokens. With 'pad' a document is gone through by its
        sequence, whatever is cut off.
        """
        tokens_consumed = self.mean if self.packing == "pad" else self.useful
        return self.share * num_samples * tokens_consumed / self.tokens


@lru_cache(maxsize=64)
def _count_packing(
    sequence_length: int, packing: str, mean: float, std: float
) -> Packed:
    """Return at most `COUNTED` sequences packed from fixed random documents; cached.

    Documents are `MOST_DOCUMENTS` at most. If more sequences come out, every k-th is
    returned.

    Args:
        sequence_length: S, tokens of a sequence.
        packing: a key of `PACKINGS`.
        mean: tokens of a document in the mean.
        std: their standard deviation.
    """
    needed = (
        COUNTED if packing == "pad" else math.ceil(COUNTED * sequence_length / mean)
    )
    documents = min(max(needed, 2**10), MOST_DOCUMENTS)
    lengths = draw_lengths(stream(0, "documents"), mean, std, documents)
    return PACKINGS[packing](lengths, sequence_length).every_kth(COUNTED)


def repeated_shares(epochs: float) -> tuple[float, float]:
    """Return, of a corpus gone through ``epochs`` times, the share of what is read that
    was read before, and the share of the corpus that is never read.
    """
    return (1.0 - 1.0 / epochs if epochs > 1 else 0.0), max(1.0 - epochs, 0.0)


# --------------------------------------------------------------- documents packed, one by one

LONGEST = 2**40
"""Tokens that a document has at most."""


@dataclass(frozen=True)
class Packed:
    """Sequences, each array (sequences,)."""

    pieces: Ints64  # number of pieces of documents
    tokens: Ints64  # number of tokens that are no padding
    squares: Floats  # sum over the pieces of their tokens squared

    def select(self, which: Ints64) -> Packed:
        """Return the sequences at the positions ``which``, in that order."""
        return Packed(self.pieces[which], self.tokens[which], self.squares[which])

    def every_kth(self, count: int) -> Packed:
        """Return every k-th sequence from the first on, at most ``count``; k is their
        number // ``count``, at least 1.
        """
        stride = max(len(self.pieces) // count, 1)
        return self.select(np.arange(0, len(self.pieces), stride)[:count])


def draw_lengths(
    rng: np.random.Generator, mean: float, std: float, count: int
) -> Ints64:
    """Draw (count,) tokens of documents: log-normal, rounded, from 1 to `LONGEST`."""
    variance = math.log1p((std / mean) ** 2)
    drawn = rng.lognormal(math.log(mean) - variance / 2, math.sqrt(variance), count)
    return np.rint(drawn).clip(1, LONGEST).astype(np.int64)


def concatenate(lengths: Ints64, room: int) -> Packed:
    """Put documents one behind the other, and cut them every ``room`` tokens.

    Tokens left at the end are no sequence, unless there is no other: the one sequence
    is then filled up with a further piece. At most 2**10 sequences a document, in the
    mean, are returned.
    """
    ends = np.cumsum(lengths)
    count = max(int(ends[-1]) // room, 1)
    cuts = np.arange(1, min(count, len(lengths) * 2**10) + 1) * room
    edges = np.union1d(ends[ends < cuts[-1]], cuts)
    sizes = np.diff(edges, prepend=0)
    return _of_pieces(sizes, (edges - 1) // room)


def pad(lengths: Ints64, room: int) -> Packed:
    """Pack each document into a sequence of its own, cut off after ``room`` tokens."""
    tokens = np.minimum(lengths, room)
    return _of_pieces(tokens, np.arange(len(tokens)))


def best_fit(lengths: Ints64, room: int) -> Packed:
    """Cut documents every ``room`` tokens, and put what is left of each, the longest
    first, where the least room is left that is enough.

    Sequences are in a fixed random order. Of a document at most 2**10 full ones count.
    """
    full_by_document, remainders = np.divmod(lengths, room)
    num_full = int(full_by_document.clip(max=2**10).sum())
    sequence_of_piece = _places(
        np.sort(remainders[remainders > 0])[::-1].tolist(), room
    )
    sizes = np.concatenate(
        [np.full(num_full, room), np.sort(remainders[remainders > 0])[::-1]]
    )
    packed = _of_pieces(
        sizes, np.concatenate([np.arange(num_full), sequence_of_piece + num_full])
    )
    # whole ones come first: mix them, as those of a file are
    return packed.select(np.random.default_rng(0).permutation(len(packed.pieces)))


PACKINGS: dict[str, Callable[[Ints64, int], Packed]] = {
    "concatenate": concatenate,
    "pad": pad,
    "best_fit": best_fit,
}
"""Functions by the name of a packing: of tokens by document, and of a sequence."""


def _places(sizes: list[int], room: int) -> Ints64:
    """Return (pieces,) the sequence, from 0, to which each piece goes: the one with the
    least room that is enough, else a new one.
    """
    capacities: list[int] = []  # what is left somewhere, ascending
    having: dict[int, list[int]] = defaultdict(list)
    place = []
    count = 0
    for size in sizes:
        index = bisect_left(capacities, size)
        if index == len(capacities):
            capacity = room
            sequence = count
            count = count + 1
        else:
            capacity = capacities[index]
            sequence = having[capacity].pop()
            if not having[capacity]:
                del capacities[index]
        place.append(sequence)
        room_left = capacity - size
        if room_left:
            if not having[room_left]:
                insort(capacities, room_left)
            having[room_left].append(sequence)
    return np.array(place, np.int64)


def _of_pieces(sizes: Ints64, sequence: Ints64) -> Packed:
    """Count the sequences of pieces.

    Args:
        sizes: (pieces,) tokens of each piece.
        sequence: (pieces,) the sequence, from 0, to which each piece belongs.
    """
    squares = sizes.astype(np.float64) ** 2
    return Packed(
        np.bincount(sequence),
        np.bincount(sequence, sizes).astype(np.int64),
        np.bincount(sequence, squares).astype(np.float64),
    )
