"""Records of trainings, our own and those of others: what is read is what was recorded."""

import gzip

import pytest

from simshuffle.errors import InputError
from simshuffle.records.reading import RECORD, read
from simshuffle.records.record import Record, framed


def small():
    """A record of two batches of a rank."""
    columns = {"operation": ["wait", "step"] * 2, "start_s": [0.0, 1.0, 3.0, 3.5]}
    columns |= {"seconds": [1.0, 2.0, 0.5, 2.5], "batch": [0, 0, 1, 1]}
    return Record(framed(columns), {"made_by": "simshuffle", "ranks": 1, "notes": []}, "here")


def test_a_record_is_found_in_the_folder_of_doctor_and_by_its_content(tmp_path):
    made = small()
    made.write(tmp_path / RECORD)
    made.write(tmp_path / "kept.json")
    for path in (tmp_path, tmp_path / RECORD, tmp_path / "kept.json"):
        found = read(path)
        assert found.about == made.about
        assert found.rows.equals(made.rows)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        (b"", "must be a folder of `simshuffle doctor`"),
        (b"hello", "a file that begins b'hello'"),
        (b"PAR1", "must be a record"),
        (b"\x1f\x8bno", "must be whole"),
        (gzip.compress(b"hello"), "a file that begins b'hello'"),
    ],
)
def test_what_is_no_record_is_refused_with_what_is_read(tmp_path, content, why):
    path = tmp_path / "given"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError) as error:
        read(path)
    assert why in str(error.value)
    assert str(path) in str(error.value)


def test_a_folder_of_nothing_is_refused(tmp_path):
    with pytest.raises(InputError, match="a folder without one"):
        read(tmp_path)
