"""Files are read exactly or refused, epochs repeat exactly, and augmentation gives only what it says."""

from __future__ import annotations

import gzip
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st

from freewheel import data

IMAGES = "train-images-idx3-ubyte"
LABELS = "train-labels-idx1-ubyte"


def idx(items: torch.Tensor) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in items.shape)
    return bytes([0, 0, 8, items.dim()]) + sizes + bytes(items.flatten().tolist())


def pixels(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def bytes_of(*labels: int) -> torch.Tensor:
    return torch.tensor(labels, dtype=torch.uint8)


def write_mnist(root: Path, folder: str = "MNIST", *, zipped: bool = False) -> Path:
    """A tiny MNIST: 6 images to train, 3 to test, of 5x4."""
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for split, labels in (("train", (0, 1, 2, 3, 4, 9)), ("t10k", (7, 8, 9))):
        for name, items in (
            ("images-idx3", pixels(len(labels), 5, 4)),
            ("labels-idx1", bytes_of(*labels)),
        ):
            file = raw / f"{split}-{name}-ubyte{'.gz' if zipped else ''}"
            file.write_bytes(gzip.compress(idx(items)) if zipped else idx(items))
    return raw


def write_cifar(root: Path) -> Path:
    """A tiny CIFAR-10: two rows in each of the six files; the labels say which."""
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    for i in range(6):
        name = f"data_batch_{i + 1}.bin" if i < 5 else "test_batch.bin"
        rows = torch.cat([bytes_of(i, 9).view(2, 1), pixels(2, 3072, seed=i)], dim=1)
        (folder / name).write_bytes(bytes(rows.flatten().tolist()))
    return folder


def write_cifar100(root: Path) -> Path:
    """A tiny CIFAR-100: three rows to train, two to test, of a coarse label, a fine one and an image."""
    folder = root / "cifar-100-binary"
    folder.mkdir()
    for name, coarse, fine in (("train", (19, 0, 7), (99, 20, 3)), ("test", (4, 19), (0, 55))):
        rows = [bytes_of(*coarse).view(-1, 1), bytes_of(*fine).view(-1, 1), pixels(len(fine), 3072, seed=len(fine))]
        (folder / f"{name}.bin").write_bytes(bytes(torch.cat(rows, dim=1).flatten().tolist()))
    return folder


# ---- readers ----


@pytest.mark.parametrize("zipped", [False, True], ids=["plain", "gz"])
def test_mnist_is_read_exactly(tmp_path, zipped):
    raw = write_mnist(tmp_path, zipped=zipped)
    images, labels = data.read_mnist(raw, "train")
    assert torch.equal(images, pixels(6, 5, 4).unsqueeze(1))
    assert labels.dtype == torch.int64
    assert labels.tolist() == [0, 1, 2, 3, 4, 9]
    assert data.read_mnist(str(raw), "t10k")[1].tolist() == [7, 8, 9]


def test_a_plain_file_goes_before_a_packed_one(tmp_path):
    (tmp_path / "x").write_bytes(idx(bytes_of(1)))
    (tmp_path / "x.gz").write_bytes(gzip.compress(idx(bytes_of(2))))
    assert data.read_idx(tmp_path / "x", dims=1).tolist() == [1]


def test_cifar10_is_read_exactly(tmp_path):
    folder = write_cifar(tmp_path)
    images, labels = data.read_cifar10(folder / "data_batch_3.bin")
    assert torch.equal(images, pixels(2, 3072, seed=2).view(2, 3, 32, 32))
    assert labels.tolist() == [2, 9]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (IMAGES, None, "train-images-idx3-ubyte is missing: put an idx3-ubyte file, plain or .gz, there"),
        (LABELS, None, "train-labels-idx1-ubyte is missing: put an idx1-ubyte file, plain or .gz, there"),
        (IMAGES, b"", "is empty: put an idx3-ubyte file"),
        (LABELS, b"", "is empty: put an idx1-ubyte file"),
        (IMAGES, idx(bytes_of(1, 2)), "begins with 00000801: an idx3-ubyte file begins with 00000803"),
        (LABELS, idx(pixels(2, 1, 1)), "begins with 00000803: an idx1-ubyte file begins with 00000801"),
        (IMAGES, b"\x1f\x8b\x08\x00junk", "begins with 1f8b0800"),
        (IMAGES, b"\x00\x00\x0d\x03" + bytes(12), "begins with 00000d03"),
        (IMAGES, b"\x00\x00", "begins with 0000:"),
        (IMAGES, idx(pixels(6, 5, 4))[:10], "is truncated: its header has 10 of 16 bytes"),
        (IMAGES, idx(pixels(6, 5, 4))[:-1], "is truncated: it has 135 bytes, its header says 136"),
        (IMAGES, idx(pixels(6, 5, 4)) + b"x", "is too long: it has 137 bytes, its header says 136"),
        (LABELS, idx(bytes_of(1, 2, 3))[:-2], "is truncated: it has 9 bytes, its header says 11"),
        (IMAGES, idx(pixels(0, 5, 4)), "has no items: its header says 0 x 5 x 4"),
        (IMAGES, idx(pixels(6, 0, 4)), "has no items: its header says 6 x 0 x 4"),
        (LABELS, idx(bytes_of(1, 2)), "has 6 images, train-labels-idx1-ubyte has 2 labels"),
        (LABELS, idx(bytes_of(0, 1, 2, 3, 4, 10)), "contains the label 10: labels must be from 0 to 9"),
        (IMAGES + ".gz", gzip.compress(idx(pixels(6, 5, 4)))[:-12], "is not a complete gzip file"),
        (IMAGES + ".gz", b"no gzip at all", "is not a complete gzip file"),
        (IMAGES + ".gz", b"", "ubyte.gz is empty"),
        (IMAGES, idx(pixels(6, 6, 6)), "has train and t10k images of different sizes: 6x6 and 5x4"),
    ],
)
def test_a_broken_mnist_is_refused_in_one_line(tmp_path, name, content, message):
    raw = write_mnist(tmp_path)
    (raw / name.removesuffix(".gz")).unlink()
    if content is not None:
        (raw / name).write_bytes(content)
    with pytest.raises(FileNotFoundError if content is None else ValueError) as caught:
        data.load("mnist", root=tmp_path)
    assert message in str(caught.value)
    assert str(raw) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_cifar100_is_read_exactly_with_fine_or_coarse_labels(tmp_path):
    file = write_cifar100(tmp_path) / "train.bin"
    images, fine = data.read_cifar100(file)
    assert torch.equal(images, pixels(3, 3072, seed=3).view(3, 3, 32, 32))
    assert fine.tolist() == [99, 20, 3]
    assert data.read_cifar100(str(file), labels="coarse")[1].tolist() == [19, 0, 7]
    for labels, classes, test in ((None, 100, [0, 55]), ("coarse", 20, [4, 19])):
        loaded = data.load("cifar100", root=tmp_path, labels=labels, batch_size=2)
        assert (loaded.classes, loaded.in_shape, loaded.test.labels.tolist()) == (classes, (3, 32, 32), test)
        assert len(loaded.train.transform.transforms) == 3  # crops and flips are its default
        mean = torch.tensor([0.5071, 0.4865, 0.4409]).view(3, 1, 1)
        std = torch.tensor([0.2673, 0.2564, 0.2762]).view(3, 1, 1)
        expected = (pixels(2, 3072, seed=2).view(2, 3, 32, 32) / 255 - mean) / std
        torch.testing.assert_close(next(iter(loaded.test))[0], expected)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.bin", None, "train.bin is missing: put a file of the binary version of CIFAR-100 there"),
        ("test.bin", bytes(3073), "is truncated: it has 3073 bytes, not a multiple of a row's 3074"),
        ("test.bin", bytes([20, 0]) + bytes(3072), "contains the label 20: labels must be from 0 to 19"),
        ("train.bin", bytes([0, 100]) + bytes(3072), "contains the label 100: labels must be from 0 to 99"),
    ],
)
def test_a_broken_cifar100_is_refused_in_one_line(tmp_path, name, content, message):
    folder = write_cifar100(tmp_path)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(FileNotFoundError if content is None else ValueError) as caught:
        data.load("cifar100", root=tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data_batch_4.bin", None, "data_batch_4.bin is missing: put a batch of the binary version"),
        ("test_batch.bin", None, "test_batch.bin is missing"),
        ("data_batch_1.bin", b"", "data_batch_1.bin is empty"),
        ("data_batch_1.bin", bytes(3072), "is truncated: it has 3072 bytes, not a multiple of a row's 3073"),
        ("test_batch.bin", bytes([10]) + bytes(3072), "contains the label 10: labels must be from 0 to 9"),
    ],
)
def test_a_broken_cifar10_is_refused_in_one_line(tmp_path, name, content, message):
    folder = write_cifar(tmp_path)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(FileNotFoundError if content is None else ValueError) as caught:
        data.load("cifar10", root=tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- loader ----


def loader(count: int = 10, **kwargs) -> data.TensorLoader:
    return data.TensorLoader(torch.arange(float(count)).view(-1, 1, 1, 1), torch.arange(count), **kwargs)


def order(batches) -> list[int]:
    return [int(label) for _, labels in batches for label in labels]


@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**70),
    epoch=st.integers(0, 10**6),
)
def test_an_epoch_holds_each_image_once_and_repeats(count, batch_size, shuffle, drop_last, seed, epoch):
    drop_last = drop_last and batch_size <= count
    it = loader(count, batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
    batches = list(it.epoch(epoch))
    assert len(batches) == len(it)
    assert all(torch.equal(x.flatten(), y.float()) for x, y in batches)
    assert all(len(y) == batch_size for _, y in batches[:-1])
    seen = order(batches)
    left_out = count % batch_size if drop_last else 0
    assert len(seen) == len(set(seen)) == count - left_out
    assert seen == order(it.epoch(epoch))
    if not shuffle:
        assert seen == list(range(count - left_out))


def test_iterating_goes_on_to_the_next_epoch():
    it = loader(shuffle=True, batch_size=4)
    epochs = [order(it) for _ in range(3)]
    assert len({tuple(e) for e in epochs}) == 3
    assert epochs == [order(it.epoch(e)) for e in range(3)]
    assert order(it) == order(it.epoch(3))


def test_an_epoch_is_its_own_even_when_another_is_under_way():
    it = loader(shuffle=True, batch_size=4)
    first, second = iter(it), iter(it)
    next(first)
    assert order(second) == order(it.epoch(1))
    assert order(first) == order(it.epoch(0))[4:]


def test_seeds_and_epochs_differ_and_do_not_overlap():
    orders = {(s, e): tuple(order(loader(shuffle=True, seed=s).epoch(e))) for s in range(5) for e in range(5)}
    assert len(set(orders.values())) == 25


def test_iterating_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    list(loader(shuffle=True, transform=data.Compose([data.RandomCrop(), data.RandomFlip()])))
    assert torch.equal(before, torch.get_rng_state())


def test_augmentation_repeats_with_the_epoch():
    it = data.TensorLoader(
        pixels(8, 3, 6, 6), torch.arange(8), batch_size=4, shuffle=True, transform=data.RandomCrop(padding=2)
    )
    first, again, other = (torch.cat([x for x, _ in it.epoch(e)]) for e in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: loader(batch_size=0), ValueError, "batch_size=0: give 1 or more"),
        (lambda: loader(batch_size=2.0), TypeError, "batch_size=2.0: give a whole number"),
        (lambda: loader(shuffle=1), TypeError, "shuffle=1: give True or False"),
        (lambda: loader(seed=None), TypeError, "seed=None: give a whole number"),
        (lambda: loader().epoch(-1), ValueError, "epoch=-1: give 0 or more"),
        (lambda: loader(3, batch_size=4, drop_last=True), ValueError, "leaves no batch of 3 images"),
        (lambda: loader(0), ValueError, "images must not be empty"),
        (lambda: data.TensorLoader(torch.zeros(3), torch.zeros(2)), ValueError, "the same length, got 3 and 2"),
        (lambda: data.TensorLoader([1], torch.zeros(1)), TypeError, "images must be a tensor"),
        (lambda: data.TensorLoader(torch.zeros(1), torch.tensor(1)), TypeError, "labels must be a tensor"),
        (lambda: data.RandomCrop(padding=-1), ValueError, "padding=-1: give 0 or more"),
        (lambda: data.RandomFlip(p=2), ValueError, "p=2: give a probability from 0 to 1"),
        (lambda: data.RandomFlip(p="x"), TypeError, "p='x': give a probability from 0 to 1"),
        (lambda: data.Normalize(mean=(0.0,), std=()), ValueError, "mean and std must have the same length"),
        (lambda: data.Normalize(mean=(0.0,), std=(0.0,)), ValueError, "std and scale must be above 0"),
        (lambda: data.Compose([3]), TypeError, "transforms must be functions"),
        (
            lambda: data.RandomCrop()(torch.zeros(3, 8, 8), torch.Generator()),
            ValueError,
            "RandomCrop takes images of (count, channels, height, width), got (3, 8, 8)",
        ),
        (
            lambda: data.Normalize(mean=(0.0,), std=(1.0,))(torch.zeros(1, 3, 2, 2), torch.Generator()),
            ValueError,
            "Normalize has 1 channels, the images have 3",
        ),
        (lambda: data.read_mnist(".", "test"), ValueError, "split must be 'train' or 't10k', got 'test'"),
        (lambda: data.load("digit"), ValueError, "unknown data set 'digit': did you mean 'digits'?"),
        (lambda: data.load(7), TypeError, "name=7: give the name of a data set, such as 'digits'"),
        (lambda: data.load("mnist"), ValueError, "data set 'mnist' is read from files: pass root="),
        (lambda: data.load("mnist", root=3), TypeError, "root=3: give the path of a folder"),
        (lambda: data.load("cifar10", root="no/such"), FileNotFoundError, "root no/such is not a folder"),
        (lambda: data.load("digits", batch_size=-1), ValueError, "batch_size=-1: give 1 or more"),
        (lambda: data.load("digits", train_limit=0), ValueError, "train_limit=0: give 1 or more"),
        (lambda: data.load("digits", test_limit=1.5), TypeError, "test_limit=1.5: give a whole number"),
        (lambda: data.load("digits", augment="yes"), TypeError, "augment='yes': give True or False"),
        (lambda: data.load("digits", shape=(1, 8, 8)), ValueError, "shape is only for 'synthetic': leave it out"),
        (lambda: data.load("digits", classes=10), ValueError, "classes is only for 'synthetic'"),
        (lambda: data.load("synthetic", augment=True), ValueError, "'synthetic' has no augmentation"),
        (lambda: data.load("digits-rows", augment=True), ValueError, "'digits-rows' has no augmentation"),
        (lambda: data.load("cifar10", labels="fine"), ValueError, "labels is only for 'cifar100': leave it out"),
        (lambda: data.load("cifar100", labels="rough"), ValueError, "unknown labels 'rough': (known: coarse, fine)"),
        (lambda: data.load("digits-rows", steps=8), ValueError, "steps is only for 'text' and 'imdb'"),
        (lambda: data.load("text", shape=(8,)), ValueError, "shape is only for 'synthetic': leave it out"),
        (lambda: data.load("text"), ValueError, "data set 'text' is read from a file: pass root=, a text file"),
        (
            lambda: data.load("synthetic", shape=(8, 8)),
            ValueError,
            "give three whole numbers (channels, height, width)",
        ),
        (lambda: data.load("synthetic", shape=8), TypeError, "give three whole numbers (channels, height, width)"),
        (lambda: data.load("synthetic", shape=(1, 0, 8)), ValueError, "shape[1]=0: give 1 or more"),
        (lambda: data.load("synthetic", classes=1), ValueError, "classes=1: give 2 or more"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- augmentation ----

shapes = st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6))
seeds = st.integers(0, 2**32 - 1)


@given(shape=shapes, padding=st.integers(0, 4), seed=seeds)
def test_each_crop_is_one_of_the_windows(shape, padding, seed):
    images = pixels(*shape, seed=seed)
    cropped = data.RandomCrop(padding=padding)(images, torch.Generator().manual_seed(seed))
    assert cropped.dtype == images.dtype
    assert cropped.shape == images.shape
    height, width = shape[2:]
    for image, crop in zip(F.pad(images, [padding] * 4), cropped, strict=True):
        places = [(y, x) for y in range(2 * padding + 1) for x in range(2 * padding + 1)]
        assert any(torch.equal(image[:, y : y + height, x : x + width], crop) for y, x in places)


@given(shape=shapes, seed=seeds)
def test_each_flip_is_the_image_or_its_mirror(shape, seed):
    images = pixels(*shape, seed=seed)
    flipped = data.RandomFlip()(images, torch.Generator().manual_seed(seed))
    for image, flip in zip(images, flipped, strict=True):
        assert torch.equal(image, flip) or torch.equal(image.flip(-1), flip)


def test_every_window_is_drawn_and_flips_are_even():
    marked = torch.zeros(4000, 1, 3, 3)
    marked[:, :, 1, 1] = 1
    crops = data.RandomCrop(padding=1)(marked, torch.Generator().manual_seed(0))
    assert crops.sum(0)[0].min() > 4000 / 9 * 0.8
    ramp = torch.arange(2.0).view(1, 1, 1, 2).expand(4000, 1, 1, 2)
    flips = data.RandomFlip()(ramp, torch.Generator().manual_seed(0))
    assert flips[:, 0, 0, 0].mean().item() == pytest.approx(0.5, abs=0.05)


def test_images_are_not_changed_in_place():
    images = torch.randn(4, 1, 5, 5)
    before = images.clone()
    steps = [data.RandomCrop(), data.RandomFlip(p=1.0), data.Normalize(mean=(1.0,), std=(2.0,), scale=1.0)]
    data.Compose(steps)(images, torch.Generator())
    assert torch.equal(images, before)


# ---- data sets ----


def test_digits_are_split_evenly_and_normalised():
    digits = data.load("Digits", batch_size=100)
    assert (digits.name, digits.classes, digits.in_shape) == ("digits", 10, (1, 8, 8))
    assert (len(digits.train), len(digits.test)) == (15, 4)
    train = [torch.cat(part) for part in zip(*digits.train)]
    test = [torch.cat(part) for part in zip(*digits.test)]
    assert (len(train[1]), len(test[1])) == (1437, 360)
    share = test[1].bincount() / (train[1].bincount() + test[1].bincount())
    assert ((share - 0.2).abs() < 0.01).all()
    assert train[0].dtype == torch.float32
    assert train[0].mean().item() == pytest.approx(0, abs=1e-5)
    assert train[0].std().item() == pytest.approx(1, abs=1e-5)


def test_the_split_of_digits_does_not_depend_on_the_seed():
    a, b = data.load("digits", seed=0), data.load("digits", seed=1)
    assert torch.equal(a.test.images, b.test.images)
    assert torch.equal(a.train.labels, b.train.labels)
    assert order(a.train) != order(b.train)
    assert order(a.test) == order(b.test)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs scikit-learn: pip install 'freewheel\[cli\]'"):
        data.load("digits")


@pytest.mark.parametrize(
    ("name", "folder", "mean", "std"),
    [("mnist", "MNIST", 0.1307, 0.3081), ("fashion-mnist", "FashionMNIST", 0.2860, 0.3530)],
)
def test_mnist_is_normalised_by_the_published_numbers(tmp_path, name, folder, mean, std):
    write_mnist(tmp_path, folder, zipped=True)
    loaded = data.load(name, root=str(tmp_path), batch_size=2)
    assert (loaded.name, loaded.classes, loaded.in_shape) == (name, 10, (1, 5, 4))
    assert (len(loaded.train), len(loaded.test)) == (3, 2)
    images = torch.cat([x for x, _ in loaded.test])
    torch.testing.assert_close(images, (pixels(3, 1, 5, 4) / 255 - mean) / std)


def test_cifar10_is_augmented_unless_told_otherwise(tmp_path):
    write_cifar(tmp_path)
    plain = data.load("cifar10", root=tmp_path, augment=False)
    standard = data.load("cifar10", root=tmp_path)
    assert (plain.classes, plain.in_shape) == (10, (3, 32, 32))
    assert plain.train.images.dtype == torch.uint8
    assert sorted(plain.train.labels.tolist()) == [0, 1, 2, 3, 4, 9, 9, 9, 9, 9]
    assert plain.test.labels.tolist() == [5, 9]
    (a, _), (b, _) = next(iter(plain.train)), next(iter(standard.train))
    assert a.shape == b.shape
    assert not torch.equal(a, b)
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    std = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
    expected = (pixels(2, 3072, seed=5).view(2, 3, 32, 32) / 255 - mean) / std
    for loaded in (plain, standard):
        torch.testing.assert_close(torch.cat([x for x, _ in loaded.test]), expected)


def test_a_crop_of_cifar10_is_padded_with_black(tmp_path):
    write_cifar(tmp_path)
    images, _ = next(iter(data.load("cifar10", root=tmp_path, seed=1).train))
    black = (0 - 0.4914) / 0.2470
    assert images[:, 0].min().item() == pytest.approx(black, abs=1e-5)
    edges = torch.stack([images[:, 0, 0], images[:, 0, -1], images[:, 0, :, 0], images[:, 0, :, -1]])
    assert torch.isclose(edges, torch.tensor(black)).all(-1).any()


def test_limits_take_the_first_images(tmp_path):
    write_mnist(tmp_path)
    loaded = data.load("mnist", root=tmp_path, train_limit=2, test_limit=100)
    assert loaded.train.labels.tolist() == [0, 1]
    assert loaded.test.labels.tolist() == [7, 8, 9]


def test_augmented_digits_keep_their_shape():
    images, _ = next(iter(data.load("digits", augment=True, train_limit=8).train))
    assert images.shape == (8, 1, 8, 8)


def test_synthetic_is_seeded_and_can_be_learned():
    made = data.load("synthetic", shape=(2, 6, 5), classes=4, train_limit=200, test_limit=60, seed=3)
    same = data.load("synthetic", shape=(2, 6, 5), classes=4, train_limit=200, test_limit=60, seed=3)
    other = data.load("synthetic", shape=(2, 6, 5), classes=4, train_limit=200, test_limit=60, seed=4)
    assert torch.equal(made.train.images, same.train.images)
    assert not torch.equal(made.train.images, other.train.images)
    assert (made.classes, made.in_shape, len(made.test.images)) == (4, (2, 6, 5), 60)
    # The nearest class mean of the training images tells the test images apart.
    means = torch.stack([made.train.images[made.train.labels == c].mean(0) for c in range(4)])
    nearest = torch.cdist(made.test.images.flatten(1), means.flatten(1)).argmin(1)
    assert (nearest == made.test.labels).float().mean() > 0.9


def test_rows_of_digits_are_the_digits():
    rows, digits = data.load("digits-rows", seed=4), data.load("digits", seed=4)
    assert (rows.name, rows.classes, rows.in_shape) == ("digits-rows", 10, (8, 8))
    for one, other in ((rows.train, digits.train), (rows.test, digits.test)):
        for (x, y), (images, labels) in zip(one, other, strict=True):
            assert torch.equal(x, images[:, 0])
            assert torch.equal(y, labels)


@pytest.mark.parametrize("as_folder", [True, False], ids=["folder", "file"])
def test_a_text_is_read_with_the_next_character_for_a_target(tmp_path, as_folder):
    (tmp_path / "a.txt").write_text("abcab cab\nabcabä", encoding="utf-8")
    loaded = data.load("text", root=tmp_path if as_folder else tmp_path / "a.txt", steps=3, batch_size=2)
    assert (loaded.name, loaded.vocabulary, loaded.classes, loaded.in_shape) == ("text", "\n abcä", 6, (3,))
    assert loaded.train.images.dtype == torch.int64
    letters = [
        ["".join(loaded.vocabulary[i] for i in row) for row in part.tolist()]
        for part in (loaded.train.images, loaded.train.labels, loaded.test.images, loaded.test.labels)
    ]
    assert letters == [["abc", "ab ", "cab", "\nab"], ["bca", "b c", "ab\n", "abc"], ["cab"], ["abä"]]
    x, y = next(iter(loaded.train))
    assert x.shape == y.shape == (2, 3)


def test_the_last_tenth_of_a_text_is_to_test(tmp_path):
    (tmp_path / "a.txt").write_text("".join(chr(97 + i % 26) for i in range(64 * 40 + 1)))
    loaded = data.load("text", root=tmp_path)
    assert (loaded.train.images.shape, loaded.test.images.shape, loaded.classes) == ((36, 64), (4, 64), 26)
    assert data.load("text", root=tmp_path, train_limit=5).train.images.shape == (5, 64)


@pytest.mark.parametrize(
    ("files", "root", "error", "message"),
    [
        ({}, "", ValueError, "must contain one .txt file, found none: pass the path of the file itself"),
        ({"a.txt": b"", "b.txt": b""}, "", ValueError, "must contain one .txt file, found a.txt, b.txt: pass"),
        ({}, "a.txt", FileNotFoundError, "a.txt is missing: pass a text file, or a folder that contains one"),
        ({"a.txt": b"ab\xff"}, "", ValueError, "a.txt is not UTF-8 text (byte 2): save it as UTF-8"),
        ({"a.txt": b""}, "", ValueError, "has 0 characters: two sequences of 64 and the character after them need 129"),
        ({"a.txt": b"x" * 128}, "a.txt", ValueError, "has 128 characters: two sequences of 64"),
    ],
)
def test_a_bad_text_is_refused_in_one_line(tmp_path, files, root, error, message):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(error) as caught:
        data.load("text", root=tmp_path / root)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_data_is_frozen():
    made = data.load("synthetic", shape=(1, 2, 2))
    with pytest.raises(FrozenInstanceError):
        made.name = "other"


def test_names_are_those_that_load_knows():
    images = ("digits", "digits-rows", "mnist", "fashion-mnist", "cifar10", "cifar100")
    assert data.names() == (*images, "tiny-imagenet", "imagenet", "folder", "text", "imdb", "synthetic")


# ---- held-out samples ----


def test_held_out_samples_are_the_same_for_every_seed_and_never_augmented():
    whole = data.load("digits")
    one, two = (data.load("digits", validation=0.2, augment=True, seed=seed) for seed in (0, 1))
    assert one.validation is not None
    assert two.validation is not None
    assert len(one.validation.labels) == round(0.2 * len(whole.train.labels))
    assert torch.equal(one.validation.images, two.validation.images)
    rows = [tuple(image.flatten().tolist()) for loader in (one.train, one.validation) for image in loader.images]
    assert sorted(rows) == sorted(tuple(image.flatten().tolist()) for image in whole.train.images)
    scored = torch.cat([x for x, _ in one.validation])
    assert torch.equal(scored, torch.cat([x for x, _ in two.validation]))
    assert whole.test.transform is not None
    assert torch.equal(scored, whole.test.transform(one.validation.images, torch.Generator()))
    for share, message in (
        (1.0, "validation=1 holds out 1437 of 1437"),
        (1e-9, "validation=1e-09 holds out 0 of 1437"),
    ):
        with pytest.raises(ValueError, match=message):
            data.load("digits", validation=share)
    with pytest.raises(ValueError, match=r"validation=-0\.1: give the share of the training samples to hold out"):
        data.load("digits", validation=-0.1)
