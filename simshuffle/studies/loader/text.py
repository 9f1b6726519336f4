"""Print loaders and their settings on a terminal. Tables fit 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from rich.table import Table

from simshuffle.report import intervals
from simshuffle.spec.units import Dimension, readable
from simshuffle.studies.loader.tables import (
    ANSWERS,
    DECODING,
    LOOP,
    MAX_LOSS,
    READING,
    SETTING_COLUMNS,
    SETTINGS,
    STORE,
    STORED,
    UNEVEN,
)
from simshuffle.study.verdict import Verdict

Row = Mapping[Any, Any]
_COLUMNS = [name for name in STORED["loaders"].columns if name != "problem"]
COLUMNS_OF_FETCHES = _COLUMNS[:8]
COLUMNS_OF_MIXING = ["loader", *_COLUMNS[8:]]
"""Columns of what is fetched, and of how it mixes."""
MAX_COMPANIONS_FACTOR = 2.0
"""So many times the companions of a random order are worth a sentence."""
MAX_FETCH_FACTOR = 2.0
"""Whoever fetches more than so many times the data set in an epoch is named."""
MIN_EQUAL_SHARE = 0.5
"""Where the end of an epoch mixes fewer shards than this share of the mean, it is said;
as where places vary less than this share of what they can.
"""


def loader_parts(
    loaders: pd.DataFrame, store: pd.DataFrame, facts: Mapping[str, Any], recorded: bool
) -> Iterator[str | Table]:
    """Yield the tables and lines on loaders; for a recorded order also `findings`.

    Tables leave out loaders with a problem; each has a line at the end.

    Args:
        loaders: the table `loaders`.
        store: the table `store`.
        facts: shape, and what a random order gives on it, as ``meta.json`` has them.
        recorded: whether the order was read from a file.
    """
    cache = facts["cache_nbytes"]
    if cache is None:
        cache_text = "without limit"
    else:
        cache_text = "none" if cache == 0 else _format_bytes(cache)
    yield (
        f"{facts['samples']} samples in {facts['shards']} shards, {_format_bytes(facts['nbytes'])};"
        f" nodes: {facts['nodes']}, ranks: {facts['ranks']}, workers of each: {facts['workers']},"
        f" batch: {facts['batch_size']}, epochs: {facts['epochs']}, cache of a node: {cache_text}."
    )
    counted_loaders = loaders[loaders["problem"] == ""]
    yield STORED["loaders"].listing(
        counted_loaders,
        "What all nodes fetch from the remote storage, in the first epoch and in the last",
        COLUMNS_OF_FETCHES,
    )
    yield from _name_excessive_fetches(counted_loaders, facts)
    yield STORE.listing(
        store,
        "The same fetches from an object store (--store): least seconds, their limit, and the"
        " price",
        ("loader", "first_s", "last_s", "limit", "first_usd", "last_usd"),
    )
    mixing_table = STORED["loaders"].listing(
        counted_loaders, "Mixing from epoch to epoch", COLUMNS_OF_MIXING
    )
    random_shares = [
        facts[name] for name in ("batch_companions", "rank_companions", "moves")
    ]
    mixing_table.add_row(
        "(random)", "0", "0", "", *[f"{share:.3g}" for share in random_shares]
    )
    yield mixing_table
    for name, sources in facts.get("mixtures", {}).items():
        yield f"{name}, first epoch: {'; '.join(map(_describe_source, sources))}."
    if recorded:
        for row in counted_loaders.to_dict("records"):
            yield from findings(row, facts)
    for row in loaders[loaders["problem"] != ""].to_dict("records"):
        yield f"{row['loader']}: does not work with these shards and ranks: {row['problem']}"


def _describe_source(source: Row) -> str:
    """Return text on what an epoch has of one source of a mixture."""
    share_text = (
        f"a source has {source['had']:.1%} of the epoch ({source['asked']:.1%}"
        " requested)"
    )
    rows = {"rows again": source["again"], "samples cut off": source["cut_off"]}
    return ", ".join(
        [
            share_text,
            *(f"{count:,} {subject}" for subject, count in rows.items() if count),
        ]
    )


def _name_excessive_fetches(
    loaders: pd.DataFrame, facts: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a sentence that names the loaders which fetch more than `MAX_FETCH_FACTOR`
    times the data set in the first or the last epoch; nothing if there are none.
    """
    data_sets_fetched = loaders[["first_nbytes", "last_nbytes"]].max(axis=1) / max(
        facts["nbytes"], 1
    )
    excessive_loaders = loaders.assign(times=data_sets_fetched)[
        data_sets_fetched > MAX_FETCH_FACTOR
    ]
    if len(excessive_loaders):
        loader_list = ", ".join(
            f"{row['loader']} {row['times']:.3g}"
            for row in excessive_loaders.to_dict("records")
        )
        unit = " or ".join(excessive_loaders["unit"].unique())
        yield (
            f"Fetched in an epoch, in multiples of the data set: {loader_list}. A node fetches a"
            f" whole {unit} for a few samples and drops it before it needs the others. A larger"
            " --cache, or an order that fetches sample by sample, fetches less."
        )


def _format_bytes(nbytes: float) -> str:
    """Return bytes as text with three digits."""
    return readable(nbytes, Dimension.NBYTES, 3)


def findings(row: Row, facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing that a loader does and that is seldom intended.

    Of a single epoch, or if all epochs are equal, mixing is not looked at any further.

    Args:
        row: the row of `loaders` of a loader without a problem.
        facts: shape, and what a random order gives on it.
    """
    num_samples = facts["samples"]
    if row["never"]:
        never = f"{row['never']:.0f} of {num_samples} samples"
        yield f"Never handed out: {never}, in the epoch with most."
    if row["surplus"]:
        yield f"Handed out twice: {row['surplus']:.0f} rows repeat a sample of their epoch."
    if row["imbalance"] > 0:
        share = 100 * row["imbalance"]
        yield f"Ranks are not equal: one has {share:.2g} % more samples than the mean."
    if pd.isna(row["moves"]):
        yield (
            "A single epoch does not show which samples meet again. Record two or"
            " more epochs."
        )
        return
    if row["batch_companions"] == 1 and row["position_entropy"] == 0:
        yield "Every epoch is the same, batch by batch. A sampler of PyTorch needs set_epoch."
        return
    if facts["nodes"] > 1 and row["moves"] == 0:
        yield "No sample ever comes to another node: this is local shuffling among nodes."
    together = {"on a rank": "rank_companions", "in a batch": "batch_companions"}
    if facts["ranks"] > 1 and row["rank_companions"] == 1:
        yield "Every rank has the same samples in every epoch: this is local shuffling."
        del together["on a rank"]
    for location, name in together.items():
        if row[name] > MAX_COMPANIONS_FACTOR * facts[name]:
            pairs = f"{row[name]:.3g} of the pairs, where a random order has {facts[name]:.3g}"
            yield f"Samples stay together {location}: {pairs}."
    if row["position_entropy"] < MIN_EQUAL_SHARE:
        variation = (
            f"their place varies by {row['position_entropy']:.2f} on a scale from 0"
            " to 1"
        )
        yield f"Samples come in the same part of every epoch: {variation}."
    if row["end_shards"] < MIN_EQUAL_SHARE * row["shards"]:
        end_text = f"an iteration has samples of {row['end_shards']:.3g} shards there"
        yield f"The end of an epoch mixes less: {end_text}, and of {row['shards']:.3g} on average."


MAX_MEMORY_SHARE = 0.5
"""Batches that take more than this share of a host's memory are worth a sentence."""
REMEDIES = {
    UNEVEN: "Batches that take long come late: a longer prefetch hides them.",
    READING: "Workers wait for storage: more workers or threads would help.",
    DECODING: "Workers are busy decoding: more workers would help.",
}
"""What helps where workers bind; a resource that all share binds whatever the loader."""


def tuning_parts(
    settings: pd.DataFrame, answers: pd.DataFrame
) -> Iterator[str | Table]:
    """Yield the tables and lines on settings, without the verdict.

    All settings are listed only if there is one run.
    """
    yield from map(_format_keys, answers.to_dict("records"))
    threads = ("threads",) * bool((settings["threads"] > 1).any())
    setting = ("workers", *threads, "prefetch", "samples_per_s", "waiting")
    time_columns = ("stall_s", "first_s", "memory_nbytes", "binds")
    title = "Smallest settings with which loops never wait longer than they must"
    yield ANSWERS.listing(
        answers, title, ("run", "needed_per_s", *setting, *time_columns[2:])
    )
    if len(answers) == 1:
        yield SETTINGS.listing(
            settings, "All settings", (*setting, "stall_every", *time_columns), names=0
        )
    else:
        yield "settings.csv and the figure have all settings; for one run alone, --set sweep={}."
    yield (
        "Times vary as the scenario's jitter and sample sizes say. Only the bottleneck has a"
        " queue. Memory counts batches, but not the worker processes."
    )


def tuning_verdict(settings: pd.DataFrame, answers: pd.DataFrame) -> Verdict:
    """Return the verdict: what each run needs."""
    sentences = (
        _describe_answer(row, settings[settings["run"] == row["run"]])
        for row in answers.to_dict("records")
    )
    return Verdict(
        [sentence for run_sentences in sentences for sentence in run_sentences],
        rests_on="one seed, and the scenario's decode and step times.",
        measure_next=f"{intervals.ERRORS_LEFT_OUT}.",
    )


def _describe_answer(row: Row, run_settings: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on what one run needs.

    The scenario's own setting is named only if it brings fewer samples than the answer,
    by more than `MAX_LOSS`. Memory is named above `MAX_MEMORY_SHARE` of the host's.

    Args:
        row: the row of `answers`.
        run_settings: the rows of `settings` of the run.
    """
    run = row["run"]
    needed_per_s = row["needed_per_s"]
    samples_per_s = row["samples_per_s"]
    setting = _describe_setting(row)
    memory = _format_bytes(row["memory_nbytes"])
    answer_row = run_settings.set_index([*SETTING_COLUMNS]).loc[
        tuple(row[name] for name in SETTING_COLUMNS)
    ]
    if row["binds"] == LOOP:
        busy = 100 * answer_row["resource_s"] / answer_row["step_s"]
        yield (
            f"{run}: {setting}: nothing stalls, at {samples_per_s:.4g} samples/s. The batches"
            f" of a host take {memory}. The busiest shared resource is"
            f" {answer_row['resource']}, in use {busy:.2g} % of the time."
        )
    else:
        yield (
            f"{run}: {setting}: {samples_per_s:.4g} of the {needed_per_s:.4g} samples/s that the"
            " loops could take; no setting that was tried gives more. The bottleneck:"
            f" {row['binds']}."
            f" {REMEDIES.get(row['binds'], 'No setting of the loader changes that.')}"
        )
    for scenario_row in run_settings[run_settings["own"]].to_dict("records"):
        if scenario_row["samples_per_s"] >= (1 - MAX_LOSS) * samples_per_s:
            continue
        stall_every = scenario_row["stall_every"]
        stalls = (
            "" if pd.isna(stall_every) else f", a stall every {stall_every:.3g} steps"
        )
        yield (
            f"{run}: as the scenario has it, {_describe_setting(scenario_row)}:"
            f" {scenario_row['samples_per_s']:.4g} samples/s;"
            f" loops wait {100 * scenario_row['waiting']:.2g} % of the time{stalls}."
            f" The bottleneck: {scenario_row['binds']}."
        )
    if row["memory_nbytes"] > MAX_MEMORY_SHARE * answer_row["host_nbytes"]:
        host_memory = _format_bytes(answer_row["host_nbytes"])
        yield f"{run}: these batches take {memory} of a host's {host_memory} of memory."


def _format_keys(row: Row) -> str:
    """Return the options that request a setting, here and in PyTorch.

    PyTorch's are left out where it has none: several threads, or batches ahead that are
    no multiple of the workers.
    """
    keys = " ".join(
        f"--set workload.loader.{name}={row[name]}" for name in SETTING_COLUMNS
    )
    prefetch_factor, remainder = divmod(row["prefetch"], row["workers"])
    torch_text = (
        f"in PyTorch num_workers={row['workers']},"
        f" prefetch_factor={prefetch_factor}; here "
    )
    return f"{row['run']}: {torch_text if row['threads'] == 1 and not remainder else ''}{keys}"


def _describe_setting(row: Row) -> str:
    """Return a setting in words, such as '2 workers, 4 batches ahead'."""
    workers = row["workers"]
    ahead = row["prefetch"]
    threads = f" of {row['threads']} threads" if row["threads"] > 1 else ""
    plural_endings = "s" * (workers > 1), "es" * (ahead > 1)
    return f"{workers} worker{plural_endings[0]}{threads}, {ahead} batch{plural_endings[1]} ahead"
