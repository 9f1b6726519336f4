"""Data sets to train on: what is loaded, that difficulty can be set, and what is said about files
that are not as they should be."""

import hashlib

import numpy as np
import pytest
from PIL import Image
from pydantic import TypeAdapter
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestCentroid

from simshuffle.errors import InputError
from simshuffle.train.data import (
    Cifar10,
    Cifar100,
    Classification,
    Data,
    Digits,
    ImageFolder,
    Procedural,
)
from simshuffle.train.samples import (
    balanced_labels,
    channel_statistics,
    replace_labels,
    split_samples,
)


def procedural(**keys):
    return Procedural(
        kind="procedural", **{"num_samples": 1024, "test_samples": 2048, "classes": 16} | keys
    )


def centroid_accuracy(record):
    """Accuracy in percent of the nearest class mean."""
    data = record.load()
    flat = [part.inputs.reshape(len(part), -1) for part in (data.train, data.test)]
    return 100 * NearestCentroid().fit(flat[0], data.train.targets).score(
        flat[1], data.test.targets
    )


def write_cifar10(folder, rows=20, seed=0):
    """A set in the published binary form with ``rows`` images a file; returns all rows by name."""
    rng, out = np.random.default_rng(seed), {}
    folder.mkdir(parents=True, exist_ok=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        labels = (np.arange(rows) % 10)[:, None]
        out[name] = np.hstack([labels, rng.integers(0, 256, (rows, 3072))]).astype(np.uint8)
        out[name].tofile(folder / name)
    return out


def write_cifar100(folder, tested=40):
    rng, out = np.random.default_rng(0), {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train.bin", 5 * tested), ("test.bin", tested)):
        fine = np.arange(rows)[:, None] % 100
        out[name] = np.hstack([fine // 5, fine, rng.integers(0, 256, (rows, 3072))]).astype(
            np.uint8
        )
        out[name].tofile(folder / name)
    return out


def write_images(folder, classes=("ant", "bee"), count=5, size=(12, 9), ending="png", mode="RGB"):
    for number, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for i in range(count):
            colour = {"RGB": (50 * number, 10 * i, 200), "L": 50 * number + i}[mode]
            Image.new(mode, size, colour).save(folder / name / f"{i}.{ending}")


# ---------------------------------------------------------------------------------------- preparing


def test_a_split_has_its_share_of_every_label_and_uses_every_sample_once():
    targets = np.repeat([0, 1, 2], [101, 50, 7])
    train, test = split_samples(targets, 0.3, np.random.default_rng(0))
    assert sorted([*train, *test]) == list(range(158))
    assert len(test) == 47  # the whole part of 0.3 x 158
    share = np.bincount(targets[test]) / [101, 50, 7]
    assert np.abs(share * [101, 50, 7] - 0.3 * np.array([101, 50, 7])).max() < 1


def test_wrong_labels_are_wrong_and_as_many_as_said():
    targets = balanced_labels(1000, 7, np.random.default_rng(1))
    noisy = replace_labels(targets, 7, 0.25, np.random.default_rng(2))
    assert (noisy != targets).sum() == 250
    assert set(noisy) == set(range(7))
    assert np.bincount(targets).max() - np.bincount(targets).min() == 1


def test_channel_statistics_are_those_of_the_bytes():
    inputs = np.random.default_rng(0).integers(0, 256, (5000, 2, 3, 3)).astype(np.uint8)
    inputs[:, 1] = 51
    mean, std = channel_statistics(inputs)
    assert mean == pytest.approx([inputs[:, 0].mean() / 255, 0.2])
    assert std == pytest.approx([inputs[:, 0].std() / 255, 1.0])


# ---------------------------------------------------------------------------------------- in memory


@pytest.mark.parametrize(
    "record",
    [Digits(kind="digits"), procedural(), Classification(kind="classification")],
    ids=lambda r: r.kind,
)
def test_a_set_in_memory_is_scaled_float32_and_the_same_on_every_call(record):
    data, again = record.load(), record.load()
    for part, same in ((data.train, again.train), (data.test, again.test)):
        assert part.inputs.dtype == np.float32
        assert part.targets.dtype == np.int64
        assert part.inputs.tobytes() == same.inputs.tobytes()
        assert part.targets.tobytes() == same.targets.tobytes()
        assert set(part.targets) == set(range(data.classes))
        assert abs(part.inputs.mean()) < 0.1
        assert part.inputs.std() == pytest.approx(1, abs=0.1)
    other = record.model_copy(update={"seed": 1}).load()
    assert other.train.inputs.tobytes() != data.train.inputs.tobytes()


def test_digits_are_split_by_share_and_shaped_as_asked():
    data, flat = (
        Digits(kind="digits", test_share=0.25).load(),
        Digits(kind="digits", test_share=0.25, flat=True).load(),
    )
    assert data.train.inputs.shape == (1348, 1, 8, 8)
    assert data.test.inputs.shape == (449, 1, 8, 8)
    assert np.array_equal(flat.train.inputs, data.train.inputs.reshape(-1, 64))


def test_label_noise_leaves_test_labels_and_all_images_alone():
    for clean in (
        Digits(kind="digits"),
        procedural(),
        Classification(kind="classification", num_samples=1000),
    ):
        one, two = clean.load(), clean.model_copy(update={"label_noise": 0.3}).load()
        assert np.array_equal(one.train.inputs, two.train.inputs)
        assert np.array_equal(one.test.targets, two.test.targets)
        assert (one.train.targets != two.train.targets).sum() == round(0.3 * len(one.train))


def test_classes_may_have_a_long_tail_in_training_alone():
    even, tail = (procedural(classes=5, num_samples=3100, imbalance=of).load() for of in (1, 16))
    # 16, 8, 4, 2 and 1 of 31
    assert np.bincount(tail.train.targets).tolist() == [1600, 800, 400, 200, 100]
    assert np.array_equal(even.test.inputs, tail.test.inputs)
    assert np.array_equal(even.test.targets, tail.test.targets)


def test_a_group_of_images_may_be_rare_in_training_alone():
    still = {"noise": 0.0, "contrast": 0.0, "shift": 0, "prototypes": 3, "classes": 2}
    even, rare = (procedural(num_samples=2000, rare_share=of, **still).load() for of in (None, 0.1))

    def shares(data, label):
        images = data.inputs[data.targets == label].reshape((data.targets == label).sum(), -1)
        return np.sort(np.unique(images, axis=0, return_counts=True)[1] / len(images))

    for label in (0, 1):
        assert shares(even.train, label) == pytest.approx([1 / 3] * 3, abs=0.07)
        assert shares(rare.train, label) == pytest.approx([0.05, 0.05, 0.9], abs=0.04)
    assert np.array_equal(even.test.inputs, rare.test.inputs)
    assert np.array_equal(even.train.targets, rare.train.targets)


def test_procedural_images_are_the_same_bytes_as_ever():
    """Of integers and single correctly rounded operations: the bytes must be the same on every
    machine (numpy's streams are stable)."""
    data = procedural(
        num_samples=64, test_samples=32, noise=0.0, channels=2, image_size=6, prototypes=2
    ).load()
    assert hashlib.sha256(data.train.inputs.tobytes()).hexdigest()[:16] == "5c05bde608d250a1"


def test_procedural_samples_are_shifted_templates_with_contrast():
    data = procedural(
        noise=0.0, contrast=0.0, shift=0, prototypes=1, channels=2, image_size=7
    ).load()
    images = {int(label): data.train.inputs[data.train.targets == label] for label in range(16)}
    for own in images.values():
        assert (own == own[0]).all()
        assert own[0].mean() == pytest.approx(0, abs=1e-6)
        assert own[0].std() == pytest.approx(1, abs=1e-6)
    shifted = procedural(
        noise=0.0, contrast=0.0, shift=1, prototypes=1, channels=2, image_size=7
    ).load()
    for label, template in images.items():
        allowed = {
            np.roll(template[0], (a, b), (1, 2)).tobytes() for a in (-1, 0, 1) for b in (-1, 0, 1)
        }
        assert {
            image.tobytes() for image in shifted.train.inputs[shifted.train.targets == label]
        } == allowed


def test_procedural_test_part_and_templates_stay_when_the_training_part_grows():
    small, large = procedural().load(), procedural(num_samples=2000, label_noise=0.5).load()
    assert np.array_equal(small.test.inputs, large.test.inputs)
    assert np.array_equal(small.test.targets, large.test.targets)
    assert procedural(flat=True).load().train.inputs.shape == (1024, 64)


def test_procedural_gets_harder_with_noise_classes_label_noise_and_shifts():
    """The nearest class mean loses at least three points from each setting to the next one."""
    ladders = [
        [procedural(noise=noise) for noise in (0.5, 1.5, 3.0, 6.0)],
        [procedural(classes=classes, noise=2.0) for classes in (4, 16, 64)],
        [procedural(label_noise=share, noise=2.0) for share in (0.0, 0.5, 0.8)],
        [procedural(shift=shift, noise=2.0) for shift in (0, 1, 2)],
        [procedural(prototypes=number, noise=2.0) for number in (1, 3, 9)],
    ]
    for ladder in ladders:
        accuracies = [centroid_accuracy(record) for record in ladder]
        assert (np.diff(accuracies) < -3).all(), accuracies
    assert centroid_accuracy(procedural(noise=1000.0)) == pytest.approx(100 / 16, abs=2.5)


def test_procedural_difficulty_holds_for_another_classifier():
    accuracies = []
    for noise in (0.5, 1.5, 3.0):
        data = procedural(noise=noise, flat=True).load()
        model = LogisticRegression(C=0.01, max_iter=300).fit(data.train.inputs, data.train.targets)
        accuracies.append(100 * model.score(data.test.inputs, data.test.targets))
    assert (np.diff(accuracies) < -5).all(), accuracies


@pytest.mark.parametrize(("values", "telling", "rank"), [({}, 16, 32), ({"redundant": 3}, 19, 29)])
def test_some_features_tell_classes_apart_and_redundant_ones_add_no_dimension(
    values, telling, rank
):
    data = Classification(kind="classification", **values).load()
    assert (data.train.inputs.shape, data.test.inputs.shape) == ((8192, 32), (2048, 32))
    # about 512 samples a class: the means of noise are within 6/sqrt(512) = 0.27
    means = [data.train.inputs[data.train.targets == label].mean(axis=0) for label in range(16)]
    assert (np.abs(means).max(axis=0) > 0.27).sum() == telling
    assert np.linalg.matrix_rank(data.train.inputs) == rank


def test_classification_gets_harder_as_clusters_come_closer():
    def accuracy(separation):
        return centroid_accuracy(
            Classification(
                kind="classification", separation=separation, num_samples=2000, classes=4
            )
        )

    assert accuracy(2.0) > accuracy(1.0) + 3 > accuracy(0.3) + 6


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"kind": "procedural", "rare_share": 0.1}, "needs at least 2 prototypes"),
        ({"kind": "procedural", "imbalance": 0.5}, "greater than or equal to 1"),
        ({"kind": "procedural", "detail": 9, "image_size": 8}, "detail must not exceed image_size"),
        (
            {"kind": "classification", "informative": 3, "classes": 16},
            "2 to the power of informative",
        ),
        ({"kind": "classification", "features": 10}, "at least informative"),
        ({"kind": "digits", "test_share": 1.0}, "less than or equal to 0.9"),
        ({"kind": "imagenet"}, "imagenet"),
    ],
)
def test_records_that_cannot_be_are_refused(keys, says):
    with pytest.raises(ValueError, match=says):
        TypeAdapter(Data).validate_python(keys)


def test_a_procedural_set_that_would_fill_the_memory_is_refused_at_once():
    with pytest.raises(
        InputError,
        match=(
            r"num_samples: the samples must fit into 8 GB of memory; got 275 GB\. Lower num_samples"
        ),
    ):
        procedural(num_samples=2**30).load()
    with pytest.raises(InputError, match="Lower classes or prototypes"):
        procedural(num_samples=16, classes=100_000, prototypes=1000).load()


# -------------------------------------------------------------------------------------------- CIFAR


def test_cifar10_is_read_as_published(tmp_path):
    rows = write_cifar10(tmp_path / "cifar-10-batches-bin")
    data = Cifar10(kind="cifar10", path=str(tmp_path)).load()
    train = np.concatenate([rows[f"data_batch_{i}.bin"] for i in range(1, 6)])
    assert data.train.inputs.shape == (100, 3, 32, 32)
    assert data.train.inputs.dtype == np.uint8
    assert np.array_equal(data.train.targets, train[:, 0])
    # the green plane, row 2, column 5
    assert data.test.inputs[3, 1, 2, 5] == rows["test_batch.bin"][3, 1 + 1024 + 2 * 32 + 5]
    assert data.mean == pytest.approx(data.train.inputs.mean((0, 2, 3)) / 255)
    assert data.std == pytest.approx(data.train.inputs.std((0, 2, 3)) / 255)
    assert data.classes == 10


def test_cifar10_can_be_a_balanced_subset(tmp_path):
    write_cifar10(tmp_path)
    data = Cifar10(kind="cifar10", path=str(tmp_path), num_samples=30).load()
    assert np.array_equal(np.bincount(data.train.targets), [3] * 10)
    assert len(data.test) == 20
    with pytest.raises(InputError, match=r"must not exceed the 100 training images; got 101"):
        Cifar10(kind="cifar10", path=str(tmp_path), num_samples=101).load()


@pytest.mark.parametrize(("labels", "column", "classes"), [("coarse", 0, 20), ("fine", 1, 100)])
def test_cifar100_has_fine_and_coarse_labels(tmp_path, labels, column, classes):
    rows = write_cifar100(tmp_path / "cifar-100-binary")
    data = Cifar100(kind="cifar100", path=str(tmp_path), labels=labels).load()
    assert np.array_equal(data.train.targets, rows["train.bin"][:, column])
    assert np.array_equal(data.train.inputs.reshape(200, -1), rows["train.bin"][:, 2:])
    assert data.classes == classes


def refused(record, *texts):
    with pytest.raises(InputError) as error:
        record.load()
    for text in texts:
        assert text in str(error.value)
    assert error.value.problems[0].remedy


def test_cifar_files_that_are_not_as_published_are_refused(tmp_path):
    record = Cifar10(kind="cifar10", path=str(tmp_path / "set"))
    refused(record, "must be a folder", str(tmp_path / "set"), "binary version of CIFAR-10")
    rows = write_cifar10(tmp_path / "set")
    batch = tmp_path / "set" / "data_batch_3.bin"
    batch.write_bytes(batch.read_bytes()[:-100])
    refused(
        record, "data_batch_3.bin must be whole rows of 3073 bytes; got 61360 bytes", "truncated"
    )
    rows["data_batch_3.bin"][:-2].tofile(batch)
    refused(record, "data_batch_3.bin must have 20 rows", "got 18 rows")
    batch.write_bytes(b"")
    refused(record, "data_batch_3.bin must be whole rows", "got 0 bytes")
    rows["data_batch_3.bin"][4, 0] = 77
    rows["data_batch_3.bin"].tofile(batch)
    refused(record, "labels of data_batch_3.bin must be below 10; got 77 in row 4")
    batch.unlink()
    refused(record, "must hold data_batch_3.bin", str(tmp_path / "set"))


def test_cifar100_of_another_form_is_refused(tmp_path):
    rows = write_cifar100(tmp_path)
    record = Cifar100(kind="cifar100", path=str(tmp_path))
    rows["train.bin"][:-1].tofile(tmp_path / "train.bin")
    refused(record, "train.bin must have 200 rows")
    rows["train.bin"][:, 0] = 20
    rows["train.bin"].tofile(tmp_path / "train.bin")
    refused(record, "labels of train.bin must be below 20")


# -------------------------------------------------------------------------------- folders of images


def folder(path, **keys):
    return ImageFolder(kind="image_folder", path=str(path), **{"image_size": 6} | keys)


def test_an_image_folder_is_read_with_classes_by_name(tmp_path):
    write_images(tmp_path / "train", classes=("bee", "ant"))
    write_images(tmp_path / "val", classes=("ant",), count=3, ending="jpg")
    (tmp_path / "train" / "ant" / "notes.txt").write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    data = folder(tmp_path).load()
    assert data.train.inputs.shape == (10, 3, 6, 6)
    assert data.train.inputs.dtype == np.uint8
    assert np.array_equal(data.train.targets, [0] * 5 + [1] * 5)
    # bee was written first: its red is 0
    assert data.train.inputs[7, :, 0, 0].tolist() == [0, 20, 200]
    assert data.train.inputs[2, :, 0, 0].tolist() == [50, 20, 200]
    assert np.array_equal(data.test.targets, [0] * 3)
    assert data.mean[2] == pytest.approx(200 / 255)


def test_an_image_folder_without_parts_is_split(tmp_path):
    write_images(tmp_path, count=10, mode="L")
    data = folder(tmp_path, test_share=0.3, channels=1).load()
    assert data.train.inputs.shape == (14, 1, 6, 6)
    assert np.bincount(data.test.targets).tolist() == [3, 3]
    again = folder(tmp_path, test_share=0.3, channels=1).load()
    assert np.array_equal(again.test.inputs, data.test.inputs)
    assert not np.array_equal(
        folder(tmp_path, test_share=0.3, channels=1, seed=1).load().test.inputs, data.test.inputs
    )


def test_images_of_every_mode_become_rgb(tmp_path):
    write_images(tmp_path)
    for number, mode in enumerate(("1", "L", "LA", "P", "RGBA")):
        Image.new(mode, (5, 5)).save(tmp_path / "ant" / f"mode-{number}.png")
    clear = Image.new("P", (4, 4))
    clear.putpalette([value for value in range(256) for _ in range(3)])
    clear.putdata(list(range(16)))
    clear.save(tmp_path / "ant" / "transparent.png", transparency=bytes([0, 16, 200]))
    Image.new("I;16", (5, 5), 40_000).save(tmp_path / "bee" / "sixteen.png")
    data = folder(tmp_path).load()
    assert len(data.train) + len(data.test) == 17
    values = np.concatenate([data.train.inputs, data.test.inputs])[:, :, 0, 0].tolist()
    assert [40_000 // 256] * 3 in values
    Image.new("F", (5, 5), 0.5).save(tmp_path / "bee" / "float.tif")
    refused(folder(tmp_path), "float.tif", "mode F have no known range")


def test_unreadable_images_are_named(tmp_path):
    write_images(tmp_path / "train")
    path = tmp_path / "train" / "bee" / "3.png"
    whole = path.read_bytes()
    for content in (b"", b"no image at all", whole[: len(whole) // 2]):
        path.write_bytes(content)
        refused(folder(tmp_path), str(path), "every image must be readable", "Repair or remove")


def test_trees_that_are_no_image_folder_are_refused(tmp_path):
    refused(folder(tmp_path / "nowhere"), "must be a folder", "train/CLASS/IMAGE")
    refused(folder(tmp_path), "at least two classes", "no images")
    write_images(tmp_path / "train", classes=("ant",))
    refused(folder(tmp_path), "at least two classes", "got ant")
    (tmp_path / "train" / "bee").mkdir()
    refused(folder(tmp_path), "every class must have images", "got bee")
    write_images(tmp_path / "train", classes=("cat",))
    (tmp_path / "train" / "bee").rmdir()
    write_images(tmp_path / "test", classes=("ant", "dog"))
    refused(folder(tmp_path), "classes of the test part", "got dog")


def test_a_folder_too_large_for_memory_is_refused_before_any_image_is_read(tmp_path):
    write_images(tmp_path)
    (tmp_path / "ant" / "0.png").write_bytes(b"broken")
    refused(
        folder(tmp_path, memory_limit="1 kB"),
        "data.memory_limit: the samples must fit into 1e-06 GB",
        "raise memory_limit",
    )
