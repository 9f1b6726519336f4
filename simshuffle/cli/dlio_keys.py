"""The keys of DLIO's YAML: which decide a number, which decide none, and how values are
read.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simshuffle.cli.new_machine import yaml_scalar
from simshuffle.errors import Problem
from simshuffle.spec.library import suggest_nearest

UNUSED_KEYS = (
    "model", "framework", "output", "profiling", "metric", "checkpoint", "evaluation", "hydra",
    "storage", "workflow.generate_data", "workflow.profiling", "workflow.debug",
    "dataset.data_folder", "dataset.file_prefix", "dataset.num_files_eval",
    "dataset.num_subfolders_train", "dataset.num_subfolders_eval", "dataset.keep_files",
    "dataset.generation_buffer_size", "dataset.compression_level", "dataset.chunk_size",
    "dataset.record_element_bytes", "dataset.hdf5.max_shape", "dataset.hdf5.num_dset_per_record",
    "reader.batch_size_eval", "reader.computation_threads", "reader.multiprocessing_context",
    "reader.pin_memory", "reader.shuffle_size", "reader.dont_use_mmap", "reader.file_access",
    "reader.read_type", "reader.data_loader_sampler",
)  # fmt: skip
"""Keys, and sections, that decide nothing of reading and pausing: names, generation,
evaluation, and how a framework is called. `READ_KEYS` keys of these sections count
first.
"""
NEUTRAL_VALUES = (None, False, 0, -1, "", "none", "off", "default")
"""Values with which a key of `SENTENCE_OF_UNUSED_KEY` or `RULE_OF_REFUSED_KEY` asks for
nothing.
"""
SENTENCE_OF_UNUSED_KEY = {
    "workflow.checkpoint": (
        "checkpoints are not written; the utilisation and the samples/s of DLIO leave them out, too"
    ),
    "workflow.evaluation": (
        "there is no evaluation between epochs; the utilisation of DLIO leaves it out, too"
    ),
    "dataset.parquet": "all columns of a record are read, and all samples of a row group used",
    "reader.transfer_size": "a request reads whole samples",
}
"""Keys that do not change seconds of an epoch, its utilisation or its samples/s, or
change them by less than the model knows; and what happens in their place.
"""
RULE_OF_REFUSED_KEY = {
    "dataset.compression": (
        "must be none: the workload file tells neither compressed sizes nor the cost of unpacking",
        "Write none, and set record_length_bytes to the stored bytes of a sample.",
    ),
    "dataset.enable_chunking": (
        "must be false: chunks decide how many bytes are read in addition to a sample",
        "Write false: then exactly the bytes of a sample are read.",
    ),
    "dataset.hdf5.chunk_dims": (
        "must be left out: chunks decide how many bytes are read in addition to a sample",
        "Leave it out: then exactly the bytes of a sample are read.",
    ),
    "reader.data_loader_classname": (
        "must be left out: the workload file does not tell what your own loader does",
        "Leave it out: then samples are read as by DLIO's own loader.",
    ),
    "reader.reader_classname": (
        "must be left out: the workload file does not tell what your own reader does",
        "Leave it out: then samples are read as by DLIO's own reader.",
    ),
}
"""Keys that decide a number which cannot be simulated: rule and remedy."""
DECIDING_SECTIONS = ("dataset", "reader", "train")
"""Sections whose keys decide numbers: one that is nearly a key of DLIO is a slip of the
pen.
"""
MIN_SLIP_SIMILARITY, MAX_SLIP_LENGTH = 0.9, 2
"""A slip of the pen is at least so similar to the key that is meant (difflib), and
differs in length by at most so many letters.
"""
READ_KEYS = {
    "dataset": (
        "format", "num_files_train", "num_samples_per_file", "record_length", "record_length_bytes",
        "record_length_stdev", "record_length_bytes_stdev", "record_length_resize",
        "record_length_bytes_resize", "record_dims", "record_element_type", "parquet",
        "compression", "enable_chunking",
    ),
    "reader": (
        "data_loader", "batch_size", "read_threads", "prefetch_size", "preprocess_time",
        "preprocess_time_stdev", "odirect", "transformed_record_dims",
        "transformed_record_element_type", "file_shuffle", "sample_shuffle",
    ),
    "train": (
        "computation_time", "computation_time_stdev", "epochs", "seed", "total_training_steps",
        "seed_change_epoch",
    ),
}  # fmt: skip
"""Keys that decide a number, by section."""
MIN_MEAN_IN_STDEVS = 3.0
"""Mean over standard deviation from which on draws of a normal time that are negative,
which DLIO takes as positive, change the mean by less than 0.03 %.
"""


def normal_moments(mean: float, stdev: float) -> tuple[float, float]:
    """Return mean and standard deviation (s) of |x| for a normal x, as DLIO sleeps it.

    E|x| = s sqrt(2/pi) exp(-m^2/2s^2) + m erf(m / (s sqrt 2)); E x^2 = m^2 + s^2
    (Leone, Nelson & Nottingham, Technometrics 3, 1961). DLIO: ``sleep`` of
    dlio_benchmark/utils/utility.py.
    """
    if mean >= MIN_MEAN_IN_STDEVS * stdev:
        return mean, stdev
    ratio = mean / stdev
    # |x| of a normal x has the folded normal law
    folded = stdev * math.sqrt(2 / math.pi) * math.exp(-(ratio**2) / 2)
    folded += mean * math.erf(ratio / math.sqrt(2))
    return folded, math.sqrt(max(mean**2 + stdev**2 - folded**2, 0.0))


DISTRIBUTIONS: dict[str, tuple[tuple[str, ...], Callable[..., tuple[float, float]]]] = {
    "normal": (("mean", "stdev"), normal_moments),
    "uniform": (
        ("min", "max"),
        lambda low, high: ((low + high) / 2, abs(high - low) / 12**0.5),
    ),
    "gamma": (
        ("shape", "scale"),
        lambda shape, scale: (shape * scale, shape**0.5 * scale),
    ),
    "exponential": (("scale",), lambda scale: (scale, scale)),
    "poisson": (("lam",), lambda lam: (lam, lam**0.5)),
}
"""By the name of a distribution: its parameters in DLIO, and the function that returns
mean and standard deviation of these, in this order.
"""


@dataclass
class DlioKeys:
    """The values of a file of DLIO by dotted key, the keys that were read, and their
    problems.

    Methods that read a value mark its keys in ``read_keys``, and collect problems
    instead of raising them.
    """

    value_of_key: dict[str, Any]
    read_keys: set[str] = field(default_factory=set)
    problems: list[Problem] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)  # sentences
    # sentences 'key: ...' on what was left out beside `SENTENCE_OF_UNUSED_KEY`
    unused_sentences: list[str] = field(default_factory=list)

    def get(self, *names: str) -> Any:
        """Return the value of the first of several names of one key that has one.

        None if there is none, or only null. All names count as read from then on.
        """
        self.read_keys.update(names)
        return next(
            (
                self.value_of_key[name]
                for name in names
                if self.value_of_key.get(name) is not None
            ),
            None,
        )

    def add_problem(self, key: str, rule: str, value: Any, remedy: str) -> None:
        """Note that the value of a key breaks a rule; nothing is raised.

        A value of None is not quoted, and a long one is cut to 80 characters.
        """
        self.problems.append(
            Problem(key, rule, "" if value is None else f"{value!r:.80}", remedy)
        )

    def read_number(
        self,
        *names: str,
        default: float | None = None,
        minimum: float = 0.0,
        example: str = "1",
    ) -> float:
        """Return a number of at least ``minimum``.

        A wrong one, and a missing one without default, is noted as a problem, and 1
        stands for it.

        Args:
            names: dotted keys of the number, of which the first that is there counts.
                Problems name the first one.
            default: in place of a missing number, whatever ``minimum``; None if it is
                required.
            minimum: the smallest number that is valid.
            example: a valid number, for the error.
        """
        value = self.get(*names)
        if value is None and default is not None:
            return default
        number = finite_number(value)
        if number is not None and number >= minimum:
            return number
        rule = (
            "is required"
            if value is None
            else f"must be a number, at least {minimum:g}"
        )
        self.add_problem(names[0], rule, value, f"For example {example}.")
        return 1.0

    def read_whole(
        self, *names: str, default: int | None = None, minimum: int = 1
    ) -> int:
        """Return a whole number of at least ``minimum``, as `read_number` does.

        Numbers between are noted as problems, and 1 stands for them.
        """
        number = self.read_number(
            *names, default=default, minimum=minimum, example=str(max(minimum, 4))
        )
        if float(number).is_integer():  # so is what stands for a wrong one
            return int(number)
        self.add_problem(
            names[0], "must be a whole number", self.get(*names), "Round it."
        )
        return 1

    def read_time(self, name: str, default: float | None = None) -> tuple[float, float]:
        """Return mean and standard deviation (s) of a time, drawn or constant.

        A missing deviation is 0, and a normal time is that of `normal_moments`. An
        unknown distribution is noted as a problem, and stands for 1 s without
        deviation.

        Args:
            name: dotted key of a number, or of a section with type and parameters.
            default: mean (s) of a missing time; None if it is required. In a section it
                does not count: all parameters but stdev are required there.
        """
        if not any(key.startswith(f"{name}.") for key in self.value_of_key):
            mean = self.read_number(name, default=default, example="0.323")
            return normal_moments(mean, self.read_number(f"{name}_stdev", default=0.0))
        kind = self.get(f"{name}.type") or "normal"
        if kind not in DISTRIBUTIONS:
            remedy = suggest_nearest(str(kind), list(DISTRIBUTIONS))
            self.add_problem(
                f"{name}.type", "must be a distribution of DLIO", kind, remedy
            )
            return 1.0, 0.0
        parameter_names, moments = DISTRIBUTIONS[kind]
        # DLIO puts NAME_stdev in the place of NAME.stdev; other distributions have none
        stdev = self.get(f"{name}_stdev")
        values = []
        for parameter in parameter_names:
            is_spread = parameter == "stdev"
            extra_names = [f"{name}_stdev"] if is_spread and stdev is not None else []
            default = 0.0 if is_spread else None
            values.append(
                self.read_number(*extra_names, f"{name}.{parameter}", default=default)
            )
        return moments(*values)

    def add_key_problems(self) -> None:
        """Add a problem for each key that cannot be simulated or is a slip of the pen.

        A slip is nearly the name of a key that decides a number. Read all values
        before: keys that were read are no slips.
        """
        for name, value in self.value_of_key.items():
            is_neutral = not isinstance(value, list) and value in NEUTRAL_VALUES
            if name in RULE_OF_REFUSED_KEY and not is_neutral:
                rule, remedy = RULE_OF_REFUSED_KEY[name]
                self.add_problem(name, rule, value, remedy)
            elif intended_key := self.find_intended_key(name):
                rule = "is no key of DLIO"
                self.add_problem(name, rule, value, f"Did you mean '{intended_key}'?")

    def find_intended_key(self, name: str) -> str | None:
        """Return the key that ``name`` is a slip of the pen for; else None.

        It is None for names that were read, that are known, or that decide nothing.
        """
        section = name.split(".", maxsplit=1)[0]
        is_deciding = section in DECIDING_SECTIONS and not _is_below(name, UNUSED_KEYS)
        if not is_deciding or name in self.read_keys:
            return None
        known_keys = {f"{section}.{key}" for key in READ_KEYS[section]}
        known_keys |= {key for key in self.read_keys if key.startswith(f"{section}.")}
        leaf_keys = known_keys - parent_keys(known_keys)
        if _is_below(name, (*leaf_keys, *SENTENCE_OF_UNUSED_KEY, *RULE_OF_REFUSED_KEY)):
            return None
        similar_keys = [
            key
            for key in sorted(known_keys)
            if abs(len(key) - len(name)) <= MAX_SLIP_LENGTH
        ]
        key_without_section = {key.removeprefix(section): key for key in similar_keys}
        closest = difflib.get_close_matches(
            name.removeprefix(section), key_without_section, 1, MIN_SLIP_SIMILARITY
        )
        return key_without_section[closest[0]] if closest else None

    def describe_unused_keys(self) -> list[str]:
        """Return a sentence for each key or section that a scenario cannot hold.

        ``unused_sentences`` come first. Keys that were read, have one of
        `NEUTRAL_VALUES` or are among `UNUSED_KEYS` have no sentence. An unknown key has
        one, too.
        """
        sentences = {text.split(":")[0]: text for text in self.unused_sentences}
        for name, value in self.value_of_key.items():
            if name in self.read_keys or (
                not isinstance(value, list) and value in NEUTRAL_VALUES
            ):
                continue
            unused_key = next(
                (key for key in SENTENCE_OF_UNUSED_KEY if _is_below(name, (key,))), None
            )
            if unused_key is not None:
                sentences[unused_key] = (
                    f"{unused_key}: {SENTENCE_OF_UNUSED_KEY[unused_key]}"
                )
            elif not _is_below(name, UNUSED_KEYS):
                sentences[name] = f"{yaml_scalar(name)}: is not known, and is left out"
        return list(sentences.values())


def _is_below(name: str, keys: tuple[str, ...]) -> bool:
    """Return whether a dotted key is one of ``keys`` or stands below one."""
    return any(name == key or name.startswith(f"{key}.") for key in keys)


def parent_keys(keys: set[str]) -> set[str]:
    """Return the keys below which others of ``keys`` stand."""
    return {key for key in keys if any(child.startswith(f"{key}.") for child in keys)}


def finite_number(value: Any) -> float | None:
    """Return a value as a finite number; None for what is none.

    A text such as 1e-3 is one, a flag is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
