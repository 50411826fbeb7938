"""ImageNet and Tiny-ImageNet from image files: what is read, cropped and flipped, with any number of workers."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import freewheel as fw
from checkpoints import goes_on
from command_line import freewheel
from freewheel import data
from freewheel._torchvision import import_torchvision
from freewheel.data._loader import generator_for
from spread import exhaustive, needs_cuda, rarely

import_torchvision("a test")
from PIL import Image  # noqa: E402
from torchvision import transforms  # noqa: E402
from torchvision.transforms.functional import pil_to_tensor, to_pil_image  # noqa: E402

MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def image(seed: int, height: int, width: int, *, gray: bool = False) -> Any:
    shape = (1 if gray else 3, height, width)
    return to_pil_image(torch.randint(256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)))


def write(path: Path, picture: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)


def write_folder(root: Path, sizes: tuple[int, ...] = (40, 30, 24)) -> Path:
    """Three classes, three images of each to train and one to test, of different sizes and modes."""
    for i, name in enumerate(("cat", "dog", "eel")):
        for j, side in enumerate(sizes):
            write(root / "train" / name / f"{j}.png", image(10 * i + j, side, 60 - side, gray=j == 1))
        write(root / "val" / name / "x.jpeg", image(100 + i, 33, 50))
    return root


def write_tiny(root: Path, *, sorted_by_class: bool = False) -> Path:
    """Two classes of Tiny-ImageNet, in its own layout: two images of each to train, three to test."""
    folder = root / "tiny-imagenet-200"
    for i, name in enumerate(("n01", "n02")):
        for j in range(2):
            write(folder / "train" / name / "images" / f"{name}_{j}.png", image(2 * i + j, 64, 64, gray=i == j))
        (folder / "train" / name / f"{name}_boxes.txt").write_text(f"{name}_0.png\t0\t0\t62\t62\n")
    lines: list[str] = []
    for j, name in enumerate(("n02", "n01", "n02")):
        within = Path(name) if sorted_by_class else Path("images")
        write(folder / "val" / within / f"val_{j}.png", image(50 + j, 64, 64))
        lines.append(f"val_{j}.png\t{name}\t0\t32\t44\t62\n")
    if not sorted_by_class:
        (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    return folder


def whole(loader: data.Loader, epoch: int = 0) -> tuple[Tensor, Tensor]:
    images, labels = zip(*loader.epoch(epoch))
    return torch.cat(images), torch.cat(labels)


def pixels(images: Tensor) -> Tensor:
    return ((images * STD + MEAN) * 255).round().to(torch.uint8)


# ---- image by image ----


def test_a_test_image_is_resized_and_cropped_at_its_center(tmp_path: Path) -> None:
    write_folder(tmp_path)
    loaded = data.load("folder", root=tmp_path, size=28, workers=0, batch_size=2)
    assert (loaded.classes, loaded.class_names, loaded.in_shape) == (3, ("cat", "dog", "eel"), (3, 28, 28))
    assert loaded.description == "folder: 9 images to train, 3 to test, 3x28x28, 3 classes, batches of 2"
    images, labels = whole(loaded.test)
    assert labels.tolist() == [0, 1, 2]
    usual = transforms.Compose(
        [transforms.Resize(32), transforms.CenterCrop(28), transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    )
    expected = [usual(Image.open(tmp_path / "val" / name / "x.jpeg")) for name in ("cat", "dog", "eel")]
    torch.testing.assert_close(images, torch.stack(expected))


def test_a_training_image_is_a_random_part_that_depends_on_seed_epoch_and_file(tmp_path: Path) -> None:
    write_folder(tmp_path)
    loader = data.load("folder", root=tmp_path, size=16, workers=0, batch_size=4, seed=7).train
    order = torch.randperm(9, generator=generator_for(7, 3))
    images, labels = whole(loader, 3)
    assert labels.tolist() == [int(i) // 3 for i in order]
    mirrored = 0
    for found, i in zip(pixels(images), order.tolist(), strict=True):
        picture = Image.open(tmp_path / "train" / ("cat", "dog", "eel")[i // 3] / f"{i % 3}.png").convert("RGB")
        torch.manual_seed(generator_for(7, 3, i).initial_seed())
        crop = pil_to_tensor(transforms.RandomResizedCrop(16)(picture))
        mirrored += torch.equal(found, crop.flip(-1))
        assert torch.equal(found, crop) or torch.equal(found, crop.flip(-1))
    assert 0 < mirrored < 9
    assert not torch.equal(whole(loader, 4)[0].sum(0), images.sum(0))


def test_workers_change_no_batch_and_serve_several_epochs_at_once(tmp_path: Path) -> None:
    write_folder(tmp_path)
    options = {"root": tmp_path, "size": 12, "batch_size": 2, "seed": 1}
    plain, shared = (data.load("folder", workers=workers, **options).train for workers in (0, 2))
    before = torch.get_rng_state()
    for epoch in (0, 1):
        assert all(map(torch.equal, whole(plain, epoch), whole(shared, epoch)))
    abandoned = shared.epoch(5)
    next(abandoned)
    other = shared.epoch(2)
    next(other)
    assert all(map(torch.equal, next(abandoned), list(plain.epoch(5))[1]))
    abandoned.close()
    assert all(map(torch.equal, whole(plain, 6), whole(shared, 6)))
    assert len(list(other)) == len(plain) - 1
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_cuda)])
def test_batches_on_a_device_are_those_of_the_cpu_bit_for_bit(tmp_path: Path, device: str) -> None:
    write_folder(tmp_path)
    loaded = data.load("folder", root=tmp_path, size=12, workers=0, batch_size=2)
    next(iter(loaded.train))
    there = loaded.to(device)
    images, labels = whole(there.train, 1)
    assert images.device.type == labels.device.type == device
    assert all(map(torch.equal, (images.cpu(), labels.cpu()), whole(loaded.train, 1)))
    assert there.train.state_dict() == {"epoch": 1}


def test_without_augmentation_training_images_are_those_of_testing(tmp_path: Path) -> None:
    write_folder(tmp_path)
    shutil.rmtree(tmp_path / "val")
    shutil.copytree(tmp_path / "train", tmp_path / "test")
    loaded = data.load("folder", root=tmp_path, size=20, workers=0, augment=False, batch_size=9)
    order = torch.randperm(9, generator=generator_for(0, 0))
    images, _ = whole(loaded.train)
    assert torch.equal(images, whole(loaded.test)[0][order])


def test_held_out_images_are_cropped_as_those_of_testing(tmp_path: Path) -> None:
    write_folder(tmp_path)
    shutil.rmtree(tmp_path / "val")
    shutil.copytree(tmp_path / "train", tmp_path / "val")
    loaded = data.load("folder", root=tmp_path, size=20, workers=0, validation=0.4, batch_size=3)
    assert loaded.validation is not None
    assert (loaded.train.samples, loaded.validation.samples) == (5, 4)
    images, labels = whole(loaded.validation, 2)
    tested, classes = whole(loaded.test)
    found = [[i for i in range(9) if torch.equal(image, tested[i])] for image in images]
    assert [classes[i] for (i,) in found] == labels.tolist()
    assert sorted([*labels.tolist(), *whole(loaded.train)[1].tolist()]) == classes.tolist()


def test_limits_take_the_classes_in_turn_and_imagenet_has_a_folder_of_its_own(tmp_path: Path) -> None:
    write_folder(tmp_path / "imagenet")
    loaded = data.load("imagenet", root=tmp_path, size=8, workers=0, train_limit=4, test_limit=2)
    assert [Path(path).parent.name for path in loaded.train.files.paths] == ["cat", "dog", "eel", "cat"]
    assert (loaded.train.samples, loaded.test.samples, loaded.nbytes) == (4, 2, 0)
    assert data.load("imagenet", root=tmp_path / "imagenet", size=8, workers=0).in_shape == (3, 8, 8)


@pytest.mark.parametrize("runtime", ["threads", pytest.param("processes", marks=exhaustive)])
def test_runs_resume_on_the_same_batches_with_other_workers(tmp_path: Path, runtime: str) -> None:
    write_folder(tmp_path / "images")
    workers = iter([0, 0, 1])

    def loader() -> data.Loader:
        options = {"size": 8, "batch_size": 4, "seed": 3, "workers": next(workers, 0)}
        return data.load("folder", root=tmp_path / "images", **options).train

    def stages(seed: int) -> list[torch.nn.Module]:
        torch.manual_seed(seed)
        return list(fw.models.stages("convs-tanh", num_classes=3, in_shape=(3, 8, 8)))

    sgd = partial(torch.optim.SGD, lr=0.01)
    runtimes = ("simulate", runtime)
    goes_on(
        tmp_path,
        lambda: "pipedream",
        stages,
        every=4,
        runtimes=runtimes,
        data=loader,
        epochs=2,
        plain=True,
        optimizer=sgd,
    )


# ---- in memory ----


@pytest.mark.parametrize("sorted_by_class", [False, True], ids=["own layout", "sorted"])
def test_tiny_imagenet_is_read_exactly(tmp_path: Path, sorted_by_class: bool) -> None:
    folder = write_tiny(tmp_path, sorted_by_class=sorted_by_class)
    loaded = data.load("tiny-imagenet", root=tmp_path, batch_size=3)
    assert (loaded.classes, loaded.class_names, loaded.in_shape) == (2, ("n01", "n02"), (3, 64, 64))
    train, test = loaded.train, loaded.test
    assert isinstance(train, data.TensorLoader)
    assert isinstance(test, data.TensorLoader)
    assert train.labels.tolist() == [0, 0, 1, 1]
    for i, found in enumerate(train.images):
        name = ("n01", "n02")[i // 2]
        picture = Image.open(folder / "train" / name / "images" / f"{name}_{i % 2}.png").convert("RGB")
        assert torch.equal(found, pil_to_tensor(picture))
    seeds, labels = ([51, 50, 52], [0, 1, 1]) if sorted_by_class else ([50, 51, 52], [1, 0, 1])
    assert test.labels.tolist() == labels
    assert torch.equal(test.images, torch.stack([pil_to_tensor(image(seed, 64, 64)) for seed in seeds]))
    mean, std = torch.tensor([0.4802, 0.4481, 0.3975]), torch.tensor([0.2770, 0.2691, 0.2821])
    expected = (test.images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    torch.testing.assert_close(whole(test)[0], expected)
    assert [type(step).__name__ for step in train.transform.transforms] == ["RandomCrop", "RandomFlip", "Normalize"]
    assert train.transform.transforms[0].padding == 4
    first = data.load("tiny-imagenet", root=folder, train_limit=2, test_limit=1)
    assert (first.train.labels.tolist(), first.test.samples) == ([0, 1], 1)


# ---- what is refused ----

TINY, FOLDER = "tiny-imagenet", "folder"


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:60])


def change(root: Path, what: str) -> None:
    tiny = root / "tiny-imagenet-200"
    match what:
        case "no val":
            shutil.rmtree(root / "val")
        case "flat val":
            shutil.rmtree(root / "val")
            write(root / "val" / "ILSVRC2012_val_00000001.JPEG", image(0, 20, 20))
        case "empty class":
            (root / "train" / "cow").mkdir()
        case "new class":
            write(root / "val" / "cow" / "x.png", image(0, 20, 20))
        case "broken":
            truncate(root / "val" / "dog" / "x.jpeg")
        case "no train":
            shutil.rmtree(tiny / "train")
        case "list":
            (tiny / "val" / "val_annotations.txt").write_text("val_0.png\tn07\t0\t0\t1\t1\n")
        case "no list":
            (tiny / "val" / "val_annotations.txt").unlink()
        case "missing":
            (tiny / "val" / "images" / "val_1.png").unlink()
        case "large":
            write(tiny / "val" / "images" / "val_1.png", image(0, 65, 64))


@pytest.mark.parametrize(
    ("name", "what", "message"),
    [
        (FOLDER, "no val", "val is missing: put a folder for each class there, with its images"),
        (FOLDER, "flat val", "val must have a folder for each class, with its images: Couldn't find any class folder"),
        (FOLDER, "empty class", "train must have a folder for each class, with its images: Found no valid file for"),
        (FOLDER, "new class", "has the class 'cow' to test, but not to train: give both the same classes"),
        (FOLDER, "broken", "x.jpeg is not an image that PIL can read ("),
        (TINY, "no train", "train is missing: put a folder for each class there"),
        (TINY, "list", "val_annotations.txt, line 1, must be a file, its class and a box between tabs"),
        (TINY, "no list", "val has 1 classes, not the 2 of train: restore it"),
        (TINY, "missing", "val_1.png is not an image that PIL can read ("),
        (TINY, "large", "val_1.png is 64x65: images of tiny-imagenet are 64x64; use 'folder' for others"),
    ],
)
@pytest.mark.parametrize("workers", [0, rarely(1)])
def test_broken_folders_are_refused_in_one_line(tmp_path, name, what, message, workers):
    (write_folder if name == FOLDER else write_tiny)(tmp_path)
    change(tmp_path, what)
    options = {"size": 16, "workers": workers} if name == FOLDER else {}
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        whole(data.load(name, root=tmp_path, **options).test)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: data.load("imagenet"), "data set 'imagenet' is read from files: pass root=, the folder that holds"),
        (lambda: data.load("folder", root="."), "train is missing: put a folder for each class there"),
        (lambda: data.load("folder", root=".", size=0), "size=0: give 1 or more"),
        (lambda: data.load("imagenet", root=".", workers=-1), "workers=-1: give 0 or more"),
        (lambda: data.load("cifar100", root=".", workers=1), "workers is only for 'imagenet' and 'folder'"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(tmp_path, monkeypatch, call, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- the command line ----


def test_the_command_line_trains_on_folders(tmp_path: Path) -> None:
    write_folder(tmp_path)
    shared = "train --epochs 1 --stages 2 --threads 1 --no-compare --split parameters --batch-size 3 --runtime simulate"
    folder = f"--data folder --data-root {tmp_path} --size 16 --workers 0 --model convs-relu"
    result = freewheel(*shared.split(), *folder.split())
    assert result.exit_code == 0, result.output
    assert "data     folder: 9 images to train, 3 to test, 3x16x16, 3 classes, batches of 3" in result.stdout
    refused = freewheel(*shared.split(), *folder.replace("--size 16", "--size 0").split())
    assert "--size=0: give 1 or more" in refused.output
