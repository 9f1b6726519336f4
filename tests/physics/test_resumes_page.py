"""The table of docs/reference/resuming.md: every loader at three changes, and by how many cases of
the real library its law is held. docs/resuming.md has some of its rows."""

import json
import re
from itertools import groupby
from pathlib import Path

import pytest

import simshuffle
from tests.resumes.record import RECORDED
from tests.shared import shared_folder

DOCS = Path(__file__).parents[2] / "docs"
SHAPE = {
    "resume_at": 12,
    "from_": "8x8",
    "samples": 16_384,
    "shards": 1024,
    "batch_size": 8,
    "epochs": 2,
}
SHRUNK, UNCHANGED, WORKERS = "8x8 to 7x8", "8x8 to 8x8", "8x8 to 8x8, 8 to 6 workers"
IN_ORDER = {"same": "same", "permuted": "other order", "other": "whole"}
HELD_BY = {  # by the beginning of the name
    "own": "own",
    "torch, no state": "torch_restart",
    "torchdata nodes": "torchdata_nodes",
    "torchdata": "stateful_dataloader",
    "torchft": "torchft_loader",
    "accelerate": "skip_first_batches",
    "transformers": "transformers_trainer",
    "lightning": "lightning_trainer",
    "mosaicml_streams": "mosaicml_streams",
    "mosaicml": "mosaicml_streaming",
    "litdata": "litdata_streaming",
    "webdataset": "webdataset_tars",
    "hugging_face": "hugging_face",
    "torchtitan": "hugging_face",
    "interleaved": "hugging_face_interleave",
    "megatron": "megatron_bridge",
    "energon": "energon",
    "levanter": "source",
    "ray_train": "source",
}


def held_by(loader: str) -> str:
    """What the law of a loader is held against."""
    name = next(of for start, of in HELD_BY.items() if loader.startswith(start))
    if name == "own":
        return "10,000 histories"
    if name == "source":
        return "its source"
    cases = len(json.loads((RECORDED / f"{name}.json").read_text()))
    # the library's own functions hand out the batches of these, without its processes
    return f"{cases} {'calls' if name == 'mosaicml_streams' else 'kills'}"


def told(row) -> str:
    """A row of `resumes` in a few words."""
    if row["outcome"] == "refuses":
        return "refuses"
    more = int(row["twice"] - row["twice_whole"])
    counts = [f"{count:,} {what}" for count, what in ((int(row["lost"]), "lost"), (more, "again"))]
    known = [count for count in counts if not count.startswith("0 ")]
    if row["outcome"] == "begins again":
        return ", ".join(["begins again", *(of for of in known if "lost" in of)])
    return ", ".join(known) or {"same": "same", "permuted": "other order"}.get(
        row["continues"], "0"
    )


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    shape = SHAPE | {"out": shared_folder(tmp_path_factory) / "resumes"}  # cells of the page's too
    tables = [
        simshuffle.loader(**shape, workers=8, to=("8x8", "7x8")).tables["resumes"],
        simshuffle.loader(**SHAPE, workers="8:6").tables["resumes"],
    ]
    of = [row for table in tables for row in table.to_dict("records")]
    return {(row["loader"], row["change"]): row for row in of}


def lines(rows) -> list[str]:
    """The lines of the page: loaders of which the same is said share one."""
    loaders = dict.fromkeys(loader for loader, _ in rows)
    cells = {
        loader: [*(told(rows[loader, of]) for of in (UNCHANGED, SHRUNK, WORKERS)), held_by(loader)]
        for loader in loaders
    }
    return [
        f"| {' · '.join(loader for loader, _ in of)} | {' | '.join(said)} |"
        for said, of in groupby(cells.items(), key=lambda item: item[1])
    ]


def rows_of_page(name) -> list[str]:
    """Return the rows of the table of a page of docs/, without its head."""
    table = (DOCS / name).read_text().split("| held by |")[1].split("\n\n")[0]
    return re.findall(r"^\| .*", table, re.MULTILINE)


def test_the_pages_have_these_numbers(rows):
    every_row = lines(rows)
    assert rows_of_page("reference/resuming.md") == every_row
    shown = rows_of_page("resuming.md")
    assert len(shown) > 5
    assert set(shown) <= set(every_row)


def test_the_shard_of_ranks_that_are_gone_is_read_again():
    # 96 samples on 4 ranks: 24 are gone with one, and go to 3 ranks of 24, who keep theirs
    law = "own:strategy=local_shuffle"
    shape = {"resume_at": 2, "from_": "4x1", "to": ("3x1",), "samples": 96, "batch_size": 4}
    row = simshuffle.loader(**shape, loader=(law,)).tables["resumes"].iloc[0]
    assert (row["requests"], row["nbytes"]) == (24, 24 * 100_000)
    assert "24 samples of ranks that are gone are read again, and 0 are sent" in row["says"]


def test_a_bare_error_is_explained():
    shape = {"resume_at": 2, "from_": "1x4", "samples": 96, "batch_size": 4, "workers": "4:2"}
    tables = simshuffle.loader(**shape, loader=("stateful_dataloader", "energon")).tables
    said = tables["resumes"]["says"].tolist()
    why = "the number of workers is another", "ranks x workers are others"
    assert said[0] == f"It refuses to go on: AssertionError: {why[0]}."
    assert any(of in said[1] for of in why)
