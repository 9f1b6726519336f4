"""Where in the code the time goes: stacks that the recorder looks at, and what doctor says of them;
and cores that a rank may not use."""

import functools
import json
import sys
import textwrap
import threading
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from simshuffle.cli import main
from simshuffle.extensions.doctor.causes import candidate_causes
from simshuffle.extensions.doctor.diagnosis import diagnose
from simshuffle.extensions.doctor.loop import extract_loop
from simshuffle.extensions.doctor.recorder import gil
from simshuffle.extensions.doctor.recorder import places as recorder_places
from simshuffle.extensions.doctor.recorder.meter import RunningMedian, thread_cpu_ns
from simshuffle.extensions.doctor.recorder.places import MAX_PLACES, WRITTEN, PlaceCounts, locate
from simshuffle.extensions.doctor.records.reading import read
from tests.records_made import Training

HERE = Path(__file__).name


def parse_again(text, until):
    while not until.is_set():
        json.loads(text)


def looked_at(target, *arguments, looks=20):
    """The places of a thread that does this, as the recorder lists them."""
    until, places = threading.Event(), PlaceCounts()
    thread = threading.Thread(target=target, args=(*arguments, until))
    thread.start()
    try:
        for _ in range(looks):
            time.sleep(0.01)
            places.look(thread.ident, "transform")
    finally:
        until.set()
        thread.join()
    return places


def test_a_place_is_the_own_function_and_what_it_calls():
    text = json.dumps(dict.fromkeys(map(str, range(20_000)), 1))
    operation, file, function, line, calls, transforms, count = looked_at(
        parse_again, text
    ).most_frequent()[0]
    assert (operation, Path(file).name, function) == ("transform", HERE, "parse_again")
    assert calls == "json.loads"
    assert line in {
        parse_again.__code__.co_firstlineno + 1,
        parse_again.__code__.co_firstlineno + 2,
    }
    assert not transforms
    assert count > 10


def test_a_transform_is_told_by_its_name_and_a_transformer_is_none():
    def transform_image(until):
        until.wait()

    def transformer_block(until):
        until.wait()

    for function, expected in ((transform_image, True), (transformer_block, False)):
        assert [place[5] for place in looked_at(function).most_frequent()] == [expected]


def test_a_line_that_calls_a_transform_makes_what_it_calls_one():
    class Blur:
        def __call__(self, until):
            until.wait()

    class Samples:
        transform = transformer = Blur()

        def sample(self, until):
            self.transform(until)

        def encoded(self, until):
            self.transformer(until)

    for function, expected in ((Samples().sample, True), (Samples().encoded, False)):
        (place,) = looked_at(function).most_frequent()
        assert (place[2].endswith("Blur.__call__"), place[5]) == (True, expected)


def test_50_looks_a_second_cost_less_than_a_hundredth_of_a_core():
    """A stack of 40 functions is deeper than that of most data sets."""

    def deeper(level, until):
        if level:
            deeper(level - 1, until)
        else:
            until.wait()

    until, places = threading.Event(), PlaceCounts()
    thread = threading.Thread(target=deeper, args=(40, until))
    thread.start()
    try:
        places.look(thread.ident, "transform")  # lines are read from their file once
        begin = time.thread_time()
        for _ in range(200):
            places.look(thread.ident, "transform")
        assert 50 * (time.thread_time() - begin) / 200 < 0.01
    finally:
        until.set()
        thread.join()


def test_places_are_bounded_and_threads_that_are_gone_are_no_place():
    places = PlaceCounts()
    places.look(-1, "step")
    assert places.most_frequent() == []
    places.counts = {("step", "a.py", "f", line, "", False): line for line in range(MAX_PLACES)}
    places.look(threading.get_ident(), "step")
    assert len(places.counts) == MAX_PLACES
    assert len(places.most_frequent()) == WRITTEN
    assert places.most_frequent()[0][3] == MAX_PLACES - 1
    assert locate(None) is None


def test_of_other_threads_those_count_that_compute_in_code_of_their_own(monkeypatch):
    if thread_cpu_ns(threading.get_native_id()) == 0:
        pytest.skip("this system does not say what a thread computes")
    monkeypatch.setattr(recorder_places, "BUSY", 0.01)  # a loaded host gives a thread little
    until, places = threading.Event(), PlaceCounts()

    def compute():
        while not until.is_set():
            sum(range(1000))

    def compute_and_rest():
        while not until.is_set():
            sum(range(1000))
            time.sleep(1e-5)  # in most looks

    of_library = functools.partial(deque, iter(until.is_set, True), 0)
    targets = (compute, compute, compute_and_rest, until.wait, of_library)
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            places.look_at_others({threads[0].ident, threading.get_ident()})
            time.sleep(0.05)
        counted = dict(places.counts)
        places.looked_at -= 10**15  # what they computed since is little of that
        places.look_at_others({threads[0].ident, threading.get_ident()})
    finally:
        until.set()
        for thread in threads:
            thread.join()
    functions = {(key[0], key[2].rpartition(".")[2]) for key in counted}
    assert ("other thread", "compute") in functions
    assert functions <= {("other thread", "compute"), ("other thread", "compute_and_rest")}
    resting = compute_and_rest.__code__.co_firstlineno + 3
    assert resting not in {key[3] for key in counted}
    assert 1 <= sum(counted.values()) <= 18  # the first look has no time to compare with
    assert places.counts == counted


# --------------------------------------------------------------------------------- what doctor says


def look(function, count, *, transforms=False, line=16, calls="json.load"):
    place = {"operation": "transform", "file": "/data/train.py", "function": function}
    return {**place, "line": line, "calls": calls, "transforms": transforms, "count": count}


def diagnosed(*looks, about=(), **changes):
    """A training whose workers spend 30 of 35 ms of a sample in their own code."""
    record = Training(transform=30e-3, workers=2, batches=48, **changes).record()
    places = {"places": list(looks)} if looks else {}
    host = {**record.about["host"], **dict(about)}
    return diagnose(replace(record, about={**record.about, **places, "host": host}))


def test_code_of_samples_that_is_no_transform_is_named_by_its_function():
    found = diagnosed(
        look("Images.label", 60), look("Images.label", 20, line=15, calls=""), look("other", 20)
    )
    first = found.causes[0]
    assert first.name == "sample code"
    assert "80 % of that is in Images.label (train.py:16), which calls json.load." in first.sentence
    assert "Images.label (train.py:16)" in found.verdict()
    (cure,) = [remedy for remedy in found.remedies if remedy.cause == "sample code"]
    assert cure.name == "parse once, and store arrays: Images.label (train.py:16)"
    assert not any(
        "transform" in text for text in (first.sentence, *(r.name for r in found.remedies))
    )


@pytest.mark.parametrize(
    ("looks", "name", "where"),
    [
        ((), "transform", ""),  # of a record in which nobody looked
        ((look("RandomCrop.transform", 90, transforms=True),), "transform", "RandomCrop.transform"),
        ((look("Images.label", 3),), "sample code", ""),  # too few looks
        (tuple(look(f"f{n}", 10) for n in range(10)), "sample code", ""),  # nothing stands out
    ],
)
def test_a_place_is_named_where_one_stands_out(looks, name, where, request):
    first = diagnosed(*looks).causes[0]
    assert first.name == name
    assert (where in first.sentence) if where else ("of that is in" not in first.sentence)


def test_a_healthy_loop_is_not_ill_by_its_own_code():
    record = Training().record()
    found = diagnose(replace(record, about={**record.about, "places": [look("Images.label", 90)]}))
    assert found.causes == []
    assert found.verdict().startswith("Healthy")


def bound(*, cores, all_cores, threads=1):
    """Four workers that compute, and wait for the cores that the others have, 80 ms a batch."""
    about = {"cores": cores, "all_cores": all_cores}
    training = Training(workers=4, decode=10e-3, transform=0.0, queued=240e-3, batches=48)
    record = training.record()
    host = {**record.about["host"], **about}
    return diagnose(replace(record, about={**record.about, "host": host, "threads": threads}))


def test_a_rank_that_may_use_one_of_many_cores_is_told_to_ask_for_more():
    found = bound(cores=1, all_cores=96)
    assert "cores" in {cause.name for cause in found.causes}
    names = [remedy.name for remedy in found.remedies]
    assert "the rank may use 1 of 96 cores: give it 5 (srun --cpus-per-task=5, or taskset)" in names
    assert not any("workers, not" in name or "fewer threads" in name for name in names)
    assert not any("the rank may use" in r.name for r in bound(cores=8, all_cores=8).remedies)


def test_two_cores_for_four_workers_that_compute_are_shared():
    """A batch computes 10 ms of each of 8 samples and 5 ms beside: of two cores in place of one the
    four workers get no more than a batch in each 43 ms, of five one in the 30 ms of a step."""
    gains = {}
    for cores in (2, 96):
        (found,) = [r for r in bound(cores=1, all_cores=cores).remedies if "may use" in r.name]
        gains[cores] = found.gain_s
    assert 0 < gains[2] < gains[96]


def sentence_of(name, training, *, about=(), loader=(), looks=()):
    """The sentence on a possible cause of a training with further facts."""
    record = training.record()
    loaders = [{**loader_facts, **dict(loader)} for loader_facts in record.about["loaders"]]
    facts = {"loaders": loaders, "places": list(looks), **dict(about)}
    loop = extract_loop(replace(record, about={**record.about, **facts}))
    (sentence,) = (cause.sentence for cause in candidate_causes(loop) if cause.name == name)
    return sentence


def test_causes_of_settings_name_the_line_that_makes_them():
    loader = {"made_at": ["/data/train.py", "main", 37]}
    for name, training in (
        ("workers", Training(workers=0, transform=10e-3)),
        ("workers anew", Training(workers=2, transform=4e-3, begin=0.5, persistent=False)),
    ):
        sentence = sentence_of(name, training, loader=loader)
        assert sentence.endswith("The loader is made in main (train.py:37)."), sentence
    training = Training(workers=2, transform=4e-3, queued=20e-3)
    about = {"threads": 4, "threads_set_at": ["/data/train.py", "set_up", 12]}
    sentence = sentence_of("cores", training, about=about)
    assert sentence.endswith("Torch gets its 4 threads in set_up (train.py:12).")
    assert "Torch gets" not in sentence_of("cores", training, about={"threads": 4})
    assert "Torch gets" not in sentence_of("cores", training, about={**about, "threads": 1})
    host = {"cores": 1, "all_cores": 8, "memory_nbytes": 64e9}
    sentence = sentence_of("cores", training, about={**about, "host": host})
    assert sentence.endswith("The rank may use 1 of 8 cores.")


def test_a_look_knows_that_another_thread_was_made_to_give_the_interpreter_up():
    until, seen = threading.Event(), []

    def compute():
        while not until.is_set():
            sum(range(1000))

    def see(sees_fetches, sees_others):
        seen.append(sees_others)
        return True

    thread = threading.Thread(target=compute)
    thread.start()
    gil.pause()
    try:
        gil.watch(see)
        deadline = time.monotonic() + 20
        while not any(seen) and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        gil.pause()
        until.set()
        thread.join()
    assert any(seen)


def test_steps_that_dip_name_the_line_in_which_long_steps_were_seen():
    training = Training(checkpoint=(12, 0.4))
    seen = {**look("save_all", 30, line=74, calls="torch.save"), "operation": "long step"}
    sentence = sentence_of("loop dips", training, looks=[seen])
    assert sentence.startswith("Every 12 steps one takes longer, by 0.4 s.")
    assert sentence.endswith("100 % of that is in save_all (train.py:74), which calls torch.save.")


def test_a_running_median_forgets_a_long_start_and_is_exceeded_by_twice_itself():
    median = RunningMedian()
    assert not median.takes_long(10**9)
    median.follow(10_000)
    assert not median.takes_long(20_000)
    for _ in range(7):  # 1.2 to the power of 13 is above ten
        median.follow(900)
        median.follow(1100)
    for _ in range(13):
        median.follow(1000)
    assert median.median_ns == pytest.approx(1000, rel=0.2)
    assert median.takes_long(2500)
    assert not median.takes_long(1500)


def test_slow_fetches_name_the_part_that_makes_them_slow_not_the_longest_one():
    """A shard takes 0.3 s more to open, for 10 batches of 80 ms of collating each."""
    training = Training(batches=60, workers=1, collate=80e-3, shard=(10, 0.3))
    looks = [
        {**look("read_shard", 40, line=24), "operation": "open"},
        {**look("pad", 400, line=15), "operation": "collate"},
    ]
    sentence = sentence_of("loader dips", training, looks=looks)
    assert sentence.startswith("Every 10 batches, in the loader's order, one takes longer.")
    assert "What takes longer is mostly in read_shard (train.py:24)" in sentence


def test_the_thread_that_holds_the_interpreter_is_named_where_it_was_seen():
    training = Training(gil=20e-3, workers=2)
    seen = {**look("watch", 12, line=18), "operation": "other thread"}
    sentence = sentence_of("gil", training, looks=[seen])
    assert sentence.endswith("That thread is mostly in watch (train.py:18).")
    seldom = {**seen, "count": 9}
    assert "That thread" not in sentence_of("gil", training, looks=[seldom])


# ------------------------------------------------------------------------------ a training for real

SCRIPT = """
import json
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 160

    def label(self, index):
        with open("labels.json") as file:
            return json.load(file)[str(index)]

    def __getitem__(self, index):
        return torch.zeros(8), self.label(index)

if __name__ == "__main__":
    torch.set_num_threads(1)
    for images, labels in DataLoader(Images(), batch_size=8, num_workers=WORKERS):
        images.sum().item()
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_the_line_that_parses_a_file_for_every_sample_is_named(workers, here, capfd):
    pytest.importorskip("torch")
    # one parse takes longer than the 5 ms after which a thread has to give the interpreter away
    Path("labels.json").write_text(json.dumps(dict.fromkeys(map(str, range(100_000)), 1)))
    Path("train.py").write_text(textwrap.dedent(SCRIPT.replace("WORKERS", str(workers))))
    assert main(["doctor", "--json", "--out", "found", "--", sys.executable, "train.py"]) == 0
    diagnosis = json.loads(capfd.readouterr().out)["diagnosis"]
    cause = diagnosis["causes"][0]
    assert cause["name"] == "done anew for every sample"
    call = 1 + SCRIPT.split("\n").index("            return json.load(file)[str(index)]")
    place = f"`json.load` in Images.label (train.py:{call})"
    assert f"{place}, called anew for every sample" in cause["sentence"]
    assert cause["share"] > 0.5
    assert not {"transform", "sample code"} & {cause["name"] for cause in diagnosis["causes"]}
    (cure,) = [r for r in diagnosis["remedies"] if r["cause"] == cause["name"]]
    assert cure["name"] == f"do {place} once a worker, and keep what it gives"
    about = read(Path("found")).about
    places = {tuple(about["threads_set_at"]), tuple(about["loaders"][0]["made_at"])}
    text = SCRIPT.split("\n")
    lines = [
        1 + next(number for number, line in enumerate(text) if start in line)
        for start in ("torch.set_num_threads(1)", "in DataLoader(")
    ]
    path = str(Path("train.py").resolve())
    assert places == {(path, "<module>", line) for line in lines}
