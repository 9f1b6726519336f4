"""Files of recorded plans that are damaged, hostile, or of another shape: each is refused where it
is read, by its name."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml

from simshuffle.errors import InputError
from simshuffle.workload.exchange import recording
from simshuffle.workload.exchange.plan import ExchangePlan
from simshuffle.workload.exchange.recording import RecordedPlans, read_plans, write_plans

OWNER = np.array([0, 0, 1, 1, 2, 2], np.int32)
PLAN = ExchangePlan(
    sample=np.array([[0, 2, 4], [1, 3, 5]]),
    target=np.array([[1, 2, 0], [0, 2, 1]]),
    iteration=np.array([0, 1]),
    message=np.array([0, 1]),
)
AFTER = PLAN.apply(OWNER)
ODD = yaml.safe_load((Path(__file__).parents[1] / "data" / "odd_plans.yaml").read_text())


def changed(**parts):
    return ExchangePlan(**{**vars(PLAN), **{name: np.array(part) for name, part in parts.items()}})


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def npy(array):
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asarray(array), version=(1, 0), allow_pickle=True)
    return out.getvalue()


def refused(path, *words):
    with pytest.raises(InputError, match="cannot be read as recorded plans") as caught:
        read_plans(path)
    assert str(path) in str(caught.value)
    for word in words:
        assert word in str(caught.value)


@pytest.fixture
def path(tmp_path) -> Path:
    """Plans of two epochs that are as they should be."""
    again = changed(sample=[[np.flatnonzero(r == AFTER)[k] for r in range(3)] for k in range(2)])
    write_plans(tmp_path / "plans.npz", RecordedPlans(OWNER, [PLAN, again]))
    return tmp_path / "plans.npz"


def test_the_plans_that_the_others_are_made_from_are_read(path):
    found = read_plans(path)
    assert len(found.plans) == 2 and (found.owner == OWNER).all()
    np.savez(path, **arrays(path))  # stored and not packed
    assert len(read_plans(path).plans) == 2


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (changed(sample=[[0, 2, 6], [1, 3, 5]]), "among 6"),
        (changed(sample=[[0, 2, 4], [1, 3, 4]]), "twice"),
        (changed(sample=[[0, 4, 2], [1, 3, 5]]), "does not have"),
        (changed(target=[[1, 1, 0], [0, 2, 1]]), "permutation"),
        (changed(target=[[1, 3, 0], [0, 2, 1]]), "permutation"),
        (changed(iteration=[1, 0]), "go back"),
        (changed(message=[1, 0]), "go back"),
    ],
)
def test_plans_that_no_exchange_makes_are_refused(plan, word, tmp_path):
    write_plans(tmp_path / "plans.npz", RecordedPlans(OWNER, [plan]))
    refused(tmp_path / "plans.npz", word)


def test_what_a_second_epoch_sends_is_what_the_first_left(tmp_path):
    write_plans(tmp_path / "plans.npz", RecordedPlans(OWNER, [PLAN, PLAN]))
    refused(tmp_path / "plans.npz", "epoch 2", "does not have")


def odd_array(values=None, shape=None, fill=0, dtype=None):
    return np.array(values, dtype) if shape is None else np.full(shape, fill, dtype)


@pytest.mark.parametrize("case", ODD)
def test_arrays_of_another_form_are_refused(case, path):
    odd = {name: odd_array(**array) for name, array in ODD[case].items()}
    np.savez(path, **arrays(path) | odd)
    refused(path)


def test_an_array_of_records_is_refused(path):
    steps = np.array([(1, 2)], [("a", int), ("b", int)])
    np.savez(path, **arrays(path) | {"steps": steps})
    refused(path)


def test_every_array_is_needed(path):
    for name, whole in [(name, arrays(path)) for name in arrays(path)]:
        np.savez(path, **{other: array for other, array in whole.items() if other != name})
        refused(path, f"{name}.npy")
        np.savez(path, **whole)


def rezipped(path, how=zipfile.ZIP_DEFLATED, **members):
    """The same file, packed in another way or with members of other bytes."""
    with zipfile.ZipFile(path) as file:
        content = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", how) as file:
        for name, data in (content | {f"{name}.npy": d for name, d in members.items()}).items():
            file.writestr(name, data)


@pytest.mark.parametrize("how", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_another_packing_is_refused(how, path):
    rezipped(path, how)
    refused(path, "another way")


@pytest.mark.parametrize(("at", "value"), [(8, 99), (6, 1), (6, 64), (6, 32), (4, 99)])
def test_zips_that_python_does_not_read_are_refused(at, value, path):
    """Compression 99; encrypted; strong encryption; patched; another version of zip."""
    data = bytearray(path.read_bytes())
    for head, begin in ((b"PK\3\4", at), (b"PK\1\2", at + 2)):
        start = data.find(head)
        while start >= 0:
            data[start + begin] = value
            start = data.find(head, start + 4)
    path.write_bytes(data)
    refused(path)


def test_a_head_that_promises_too_much_is_refused_before_memory_is_taken(path, monkeypatch):
    head = npy(np.zeros((1, 6), np.uint8))
    for shape in ("(1, 99999999999999)", "(99999999,99999999)", "(1, -6)", "(1, 7)", "()"):
        rezipped(path, owner=head.replace(b"(1, 6)", shape.encode())[:60] + head[60:])
        refused(path)
    rezipped(path, owner=b"\x93NUMPY\1\0\xff\xff{" + b" " * 65535)
    refused(path)
    monkeypatch.setattr(recording, "MAX_NUMBERS", 11)
    refused(path)
    monkeypatch.undo()


def test_as_many_numbers_as_that_are_read(path, monkeypatch):
    monkeypatch.setattr(recording, "MAX_NUMBERS", 12)  # samples of two steps of three ranks, twice
    assert len(read_plans(path).plans) == 2
    monkeypatch.setattr(recording, "MAX_NUMBERS", 11)
    refused(path, "more than 11")
    monkeypatch.undo()
    monkeypatch.setattr(recording, "MAX_EPOCHS", 1)
    refused(path, "more than 1 epochs")


def test_members_that_are_no_arrays_are_refused(path):
    pickled = npy(np.array([{}], object))
    for owner in (path.read_bytes(), pickled, b""):  # a zip in a zip
        rezipped(path, owner=owner)
        refused(path)


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "none", Path("/dev/zero"), Path("x" * 5000), Path("a\0b")):
        refused(path)


def test_large_numbers_and_full_types_are_read_back(tmp_path):
    """Samples from 2^8 and 2^16 on need two and three bytes, 2^62 eight; 127 ends int8."""
    plan = ExchangePlan(
        sample=np.array([[255], [256], [65535], [65536]]),
        target=np.zeros((4, 1), np.int32),
        iteration=np.array([0, 1, 2, 127], np.int8),
        message=np.array([0, 1, 2**40, 2**62]),
    )
    written = RecordedPlans(np.zeros(65537, np.int32), [plan, plan])
    write_plans(tmp_path / "plans.npz", written)
    found = read_plans(tmp_path / "plans.npz")
    assert len(found.owner) == 65537 and found.world_size == 1
    for again in found.plans:
        for name in ("sample", "target", "iteration", "message"):
            expected, array = getattr(plan, name), getattr(again, name)
            assert array.dtype == expected.dtype and (array == expected).all(), name
    planes = arrays(tmp_path / "plans.npz")
    assert [len(planes[name]) for name in ("owner", "sample", "iteration", "message")] == [
        1,
        3,
        1,
        8,
    ]
    # a number more than the type has
    iteration = planes["iteration"].copy()
    iteration[0, 3] = 128
    np.savez(tmp_path / "plans.npz", **planes | {"iteration": iteration})
    refused(tmp_path / "plans.npz", "does not fit its type int8")


def test_plans_of_no_epochs_are_of_the_ranks_that_own_samples(path, monkeypatch):
    write_plans(path, RecordedPlans(OWNER, []))
    found = read_plans(path)
    assert found.plans == [] and found.world_size == 3
    write_plans(path, RecordedPlans(OWNER, [PLAN]))
    monkeypatch.setattr(recording, "MAX_EPOCHS", 1)
    assert len(read_plans(path).plans) == 1
