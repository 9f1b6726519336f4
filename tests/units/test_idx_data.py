"""IDX files as training data: what is loaded, and what is said of files that are not as they should
be."""

import gzip
import struct

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter

from simshuffle.errors import InputError
from simshuffle.train import data_idx
from simshuffle.train.data import Data, FashionMnist, Idx
from simshuffle.train.data_idx import PACKAGED
from simshuffle.train.emulate import check_run, train_run
from simshuffle.train.models import Mlp
from simshuffle.train.partition import SortedPartition
from simshuffle.train.run import Run
from simshuffle.train.sources import ArraySource
from simshuffle.train.training import Training
from simshuffle.workload.exchange import LocalShuffle

NAMES = {
    (part, what): f"{start}-{what}-idx{count}-ubyte"
    for part, start in (("train", "train"), ("test", "t10k"))
    for what, count in (("images", 3), ("labels", 1))
}


def idx(array):
    """The bytes of an IDX file, as yann.lecun.com/exdb/mnist describes it."""
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return head + array.astype(np.uint8).tobytes()


def arrays(classes=4, height=5, width=3, seed=0):
    """A small set: 40 training and 12 test images, labels in turn."""
    rng = np.random.default_rng(seed)
    out = {}
    for part, count in (("train", 40), ("test", 12)):
        out[part, "images"] = rng.integers(0, 256, (count, height, width)).astype(np.uint8)
        out[part, "labels"] = (np.arange(count) % classes).astype(np.uint8)
    return out


def write(folder, of=None, *, names=None, packed=()):
    of = arrays() if of is None else of
    folder.mkdir(parents=True, exist_ok=True)
    for key, array in of.items():
        name, content = (names or NAMES)[key], idx(array)
        if key in packed:
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
        else:
            (folder / name).write_bytes(content)
    return of


def record(folder, **keys):
    return Idx(kind="idx", path=str(folder), **keys)


def refused(of, *texts):
    with pytest.raises(InputError) as error:
        of.load()
    for text in texts:
        assert text in str(error.value)
    problem = error.value.problems[0]
    assert problem.path.startswith("data")
    assert problem.value
    assert problem.remedy
    return problem


# ----------------------------------------------------------------------------------- what is loaded


@pytest.mark.parametrize("packed", [(), tuple(NAMES)], ids=["plain", "gz"])
def test_a_set_is_read_as_described(tmp_path, packed):
    of = write(tmp_path / "shapes", packed=packed)
    data = record(tmp_path / "shapes").load()
    assert data.name == "shapes"
    assert data.train.inputs.shape == (40, 1, 5, 3)
    assert data.train.inputs.dtype == np.uint8
    assert data.train.targets.dtype == np.int64
    for part, samples in (("train", data.train), ("test", data.test)):
        assert np.array_equal(samples.inputs[:, 0], of[part, "images"])
        assert np.array_equal(samples.targets, of[part, "labels"])
    assert data.mean == pytest.approx([of["train", "images"].mean() / 255])
    assert data.std == pytest.approx([of["train", "images"].std() / 255])
    assert data.classes == 4


def test_bytes_written_by_hand_are_the_pixels_meant(tmp_path):
    """Two training images of 2 x 3 pixels, and one for testing; written out."""
    (tmp_path / "train-images-idx3-ubyte").write_bytes(
        bytes.fromhex("00000803 00000002 00000002 00000003 000102030405 0a0b0c0d0e0f")
    )
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(bytes.fromhex("00000801 00000002 0100"))
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(
        bytes.fromhex("00000803 00000001 00000002 00000003 ffffffffffff")
    )
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(bytes.fromhex("00000801 00000001 01"))
    data = record(tmp_path).load()
    assert data.train.inputs.tolist() == [[[[0, 1, 2], [3, 4, 5]]], [[[10, 11, 12], [13, 14, 15]]]]
    assert data.train.targets.tolist() == [1, 0]
    assert data.test.inputs.tolist() == [[[[255] * 3] * 2]]
    assert data.test.targets.tolist() == [1]
    # the mean of 0..5 and 10..15 is 7.5, their variance 5² + 35/12
    assert data.mean == pytest.approx([7.5 / 255])
    assert data.std == pytest.approx([np.sqrt(25 + 35 / 12) / 255])


def test_plain_and_compressed_files_may_be_mixed_and_names_do_not_decide(tmp_path):
    of = write(tmp_path, packed=[("train", "images")])
    # as a browser that unpacks what it loads leaves it
    labels = tmp_path / NAMES["test", "labels"]
    labels.rename(labels.with_name(f"{labels.name}.gz"))
    data = record(tmp_path).load()
    assert np.array_equal(data.train.inputs[:, 0], of["train", "images"])
    assert np.array_equal(data.test.targets, of["test", "labels"])


def test_names_of_emnist_and_its_labels_from_1_are_taken(tmp_path):
    of = arrays()
    for part in ("train", "test"):
        of[part, "labels"] = of[part, "labels"] + 1
    names = {
        (part, what): f"emnist-letters-{part}-{name.partition('-')[2]}"
        for (part, what), name in NAMES.items()
    }
    write(tmp_path, of, names=names, packed=tuple(NAMES))
    data = record(tmp_path).load()
    assert data.classes == 4
    assert np.array_equal(data.train.targets, np.arange(40) % 4)
    assert np.array_equal(data.test.targets, np.arange(12) % 4)


def test_flat_samples_are_the_same_numbers_as_vectors(tmp_path):
    write(tmp_path)
    image, flat = record(tmp_path).load(), record(tmp_path, flat=True).load()
    assert flat.train.inputs.shape == (40, 15)
    assert (flat.mean, flat.std) == (image.mean, image.std)
    sources = [ArraySource(data.test, data.mean, data.std) for data in (image, flat)]
    (images, _), (vectors, _) = (source.batch(np.arange(12)) for source in sources)
    assert torch.equal(vectors, images.flatten(1))
    expected = (image.test.inputs[7, 0, 4, 1] / 255 - image.mean[0]) / image.std[0]
    assert vectors[7, 13].item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(sources[1].collate([sources[1].items[7]])[0][0], vectors[7])


def test_a_subset_has_its_share_of_each_label_and_its_own_statistics(tmp_path):
    of = write(tmp_path)
    data = record(tmp_path, num_samples=20).load()
    assert np.bincount(data.train.targets).tolist() == [5] * 4
    assert len(data.test) == 12
    assert data.mean == pytest.approx([data.train.inputs.mean() / 255])
    whole = {
        image.tobytes(): label
        for image, label in zip(*(of["train", k] for k in ("images", "labels")), strict=True)
    }
    assert [whole[image.tobytes()] for image in data.train.inputs] == data.train.targets.tolist()
    again, other = (record(tmp_path, num_samples=20, seed=s).load() for s in (0, 1))
    assert np.array_equal(again.train.inputs, data.train.inputs)
    assert not np.array_equal(other.train.inputs, data.train.inputs)
    refused(record(tmp_path, num_samples=41), "must not exceed the 40 training images; got 41")


def test_ranks_that_never_see_a_class_train(tmp_path):
    """Shards sorted by label: each of four ranks has one class of four."""
    write(tmp_path)
    run = Run(
        data=record(tmp_path, flat=True),
        model=Mlp(kind="mlp", width=4),
        partition=SortedPartition(kind="sorted"),
        exchange=LocalShuffle(kind="local_shuffle"),
        world_size=4,
        training=Training(epochs=1, local_batch_size=5),
    )
    check_run(run)
    assert train_run(run, device="cpu").status == "done"


# ---------------------------------------------------------------------------------- what is refused


def test_folders_without_the_four_files_are_refused(tmp_path):
    refused(record(tmp_path / "nowhere"), "folder that can be read", "nowhere", "train-images-idx3")
    write(tmp_path / "set")
    refused(record(tmp_path / "set" / NAMES["train", "images"]), "folder that can be read")
    for key in (("train", "labels"), ("test", "images")):
        (tmp_path / "set" / NAMES[key]).unlink()
    refused(
        record(tmp_path / "set"),
        "must hold train-labels-idx1-ubyte, t10k-images-idx3-ubyte, plain or .gz",
    )


def test_two_sets_in_one_folder_are_refused(tmp_path):
    write(tmp_path)
    (tmp_path / "emnist-digits-train-labels-idx1-ubyte").write_bytes(b"")
    refused(
        record(tmp_path), "has several files of train labels", "Give each data set its own folder"
    )


@pytest.mark.parametrize("key", NAMES, ids="-".join)
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gz"])
def test_cut_and_too_long_files_are_refused(tmp_path, key, packed):
    of = write(tmp_path)
    path, whole, count = tmp_path / NAMES[key], idx(of[key]), of[key].size
    head = len(whole) - count

    def content(of):
        path.write_bytes(gzip.compress(of) if packed else of)

    content(whole[:-1])
    says = f"must hold the {count} values that it announces; got {count - 1}"
    refused(record(tmp_path), f"{path.name} {says}")
    content(whole + b"\0")
    refused(record(tmp_path), f"{path.name} must hold the {count} values", "got more")
    content(whole[: head - 1])
    refused(record(tmp_path), f"{path.name} must name {head // 4 - 1} sizes above 0")
    content(b"")
    refused(record(tmp_path), f"{path.name} must be an IDX file", "got first bytes none")


def test_files_of_another_form_are_refused(tmp_path):
    write(tmp_path)
    images, labels = (tmp_path / NAMES["train", what] for what in ("images", "labels"))
    good = images.read_bytes()
    for content, says in (
        (b"\x89PNG" + good, "got first bytes 89 50 4e 47"),
        (b"\0\0\x0d\x03" + good[4:], "got type 0x0d in 3 dimensions"),  # floats
        (b"\0\0\x08\x04" + good[4:], "got type 0x08 in 4 dimensions"),  # colours
        (b"\x03\x08\0\0" + good[4:], "got first bytes 03 08 00 00"),  # the other byte order
        (good[:4] + b"\0\0\0\0" + good[8:], "must name 3 sizes above 0"),
    ):
        images.write_bytes(content)
        refused(record(tmp_path), images.name, says)
    images.write_bytes(labels.read_bytes())
    labels.write_bytes(good)
    problem = refused(
        record(tmp_path), f"{images.name} must be an IDX file of images", "got labels"
    )
    assert problem.remedy == "Exchange the names of images and labels."


def test_broken_gzip_files_are_refused(tmp_path):
    of = write(tmp_path, packed=tuple(NAMES))
    path = tmp_path / f"{NAMES['train', 'images']}.gz"
    whole = path.read_bytes()
    says = f"{path.name} must be readable, and complete if compressed"
    wrong_sum = whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:]
    garbled = whole[:10] + b"\xff" * 20 + whole[30:]
    for content in (whole[:-9], whole[: len(whole) // 2], wrong_sum, garbled, whole + b"more"):
        path.write_bytes(content)
        refused(record(tmp_path), says, "Take or make the file again")
    path.write_bytes(whole)
    assert len(record(tmp_path).load().train) == len(of["train", "images"])


@pytest.mark.parametrize(
    ("key", "change", "says"),
    [
        (("train", "labels"), lambda of: of[:-1], "each image; got 39 labels of 40 images"),
        (("test", "images"), lambda of: of[:11], "each image; got 12 labels of 11 images"),
        (("test", "images"), lambda of: of.mT, "the same size; got 5 x 3 and 3 x 5 pixels"),
        (("test", "labels"), lambda of: of + 5, "those of the training part; got 5, 6, 7, 8"),
        (("train", "labels"), lambda of: 0 * of, "at least two labels; got only 0"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, key, change, says):
    of = arrays()
    write(tmp_path, of | {key: change(of[key])})
    refused(record(tmp_path), says)


def test_a_file_that_announces_more_than_memory_holds_is_refused_unread(tmp_path):
    of = write(tmp_path)
    path = tmp_path / NAMES["train", "images"]
    head = struct.pack(">4B3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    path.write_bytes(gzip.compress(head + of["train", "images"].tobytes()))
    refused(record(tmp_path), "the samples must fit into 8 GB of memory; got 7.92e+19 GB")


# ------------------------------------------------------------------------------------ Fashion-MNIST


def test_another_set_is_not_taken_for_fashion_mnist(tmp_path):
    write(tmp_path)
    problem = refused(
        FashionMnist(kind="fashion_mnist", path=str(tmp_path)),
        "train-images-idx3-ubyte, uncompressed, must have the published SHA-256, c59f468a",
    )
    assert "If this is another data set, use kind: idx." in problem.remedy


def test_where_the_package_is_not_installed_the_remedy_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(data_idx, "PACKAGED", tmp_path / "nowhere")
    problem = refused(FashionMnist(kind="fashion_mnist"), "data.path: is needed, since")
    assert "apt install dataset-fashion-mnist" in problem.remedy


def test_the_kinds_are_read_from_files():
    read = TypeAdapter(Data).validate_python
    assert read({"kind": "fashion_mnist"}).path is None
    with pytest.raises(ValueError, match="Field required"):
        read({"kind": "idx"})


installed = pytest.mark.skipif(
    not PACKAGED.is_dir(), reason="needs Debian's package dataset-fashion-mnist"
)


@installed
def test_fashion_mnist_is_as_published():
    """Xiao et al. 2017, section 2: 60,000 and 10,000 images of 28 x 28 pixels, 6,000 and 1,000 of
    each of 10 labels. The first image of each part is an ankle boot, label 9."""
    data = FashionMnist(kind="fashion_mnist").load()
    assert data.name == "Fashion-MNIST"
    assert data.train.inputs.shape == (60_000, 1, 28, 28)
    assert np.bincount(data.train.targets).tolist() == [6000] * 10
    assert np.bincount(data.test.targets).tolist() == [1000] * 10
    assert data.train.targets[0] == data.test.targets[0] == 9
    # what torchvision's tutorials normalise with: 0.2860 and 0.3530
    assert data.mean == pytest.approx([0.2860], abs=5e-5)
    assert data.std == pytest.approx([0.3530], abs=5e-5)
    with gzip.open(PACKAGED / "train-images-idx3-ubyte.gz") as file:
        first = np.frombuffer(file.read(16 + 784), np.uint8, offset=16)
    assert np.array_equal(data.train.inputs[0].ravel(), first)


@installed
def test_one_changed_pixel_of_fashion_mnist_is_found(tmp_path):
    for path in PACKAGED.iterdir():
        (tmp_path / path.name).symlink_to(path)
    name = "t10k-labels-idx1-ubyte"
    with gzip.open(PACKAGED / f"{name}.gz") as file:
        content = bytearray(file.read())
    (tmp_path / name).write_bytes(content)  # plain: the same set
    assert (
        len(FashionMnist(kind="fashion_mnist", path=str(tmp_path), num_samples=100).load().train)
        == 100
    )
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    refused(
        FashionMnist(kind="fashion_mnist", path=str(tmp_path)), f"{name}, not compressed, must have"
    )
