"""Data on a device: the same batches there, bit for bit, and the same training from them."""

from __future__ import annotations

import pytest
import torch

import freewheel as fw
from freewheel import data
from freewheel.data._loader import generator_for

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_cuda), pytest.param("cuda:0", marks=needs_cuda)]
NORMALIZE = data.Normalize(mean=(0.49, 0.48, 0.45), std=(0.25, 0.24, 0.26))
STANDARD = data.Compose([data.RandomCrop(padding=2), data.RandomFlip(), NORMALIZE])


def add_noise(images, generator):
    """A transform of one's own, which draws as it goes."""
    return images + torch.rand(images.shape, generator=generator).to(images.device)


def images(count: int = 70) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    shape = (count, 3, 5, 4)
    return torch.randint(256, shape, dtype=torch.uint8, generator=g), torch.randint(9, (count,), generator=g)


def batch_by_batch(it: data.TensorLoader, epoch: int):
    """The batches of an epoch with every number drawn when its batch is made, on the CPU."""
    g = generator_for(it.seed, epoch)
    order = torch.randperm(len(it.images), generator=g) if it.shuffle else torch.arange(len(it.images))
    for rows in order.split(it.batch_size):
        x = it.images[rows]
        yield x if it.transform is None else it.transform(x, g), it.labels[rows]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "transform",
    [None, STANDARD, data.Compose([data.Compose(STANDARD.transforms[:2]), NORMALIZE, add_noise]), add_noise],
    ids=["none", "standard", "mixed", "own"],
)
def test_batches_on_a_device_are_those_of_the_cpu_bit_for_bit(device, transform):
    it = data.TensorLoader(*images(), batch_size=1, shuffle=True, seed=3, transform=transform)  # more than one block
    for size in (1, 32):
        it.batch_size = size
        wanted, found = list(batch_by_batch(it, 4)), list(it.to(device).epoch(4))
        assert len(found) == len(wanted) == len(it)
        for (x, y), (u, v) in zip(wanted, found):
            assert u.device.type == v.device.type == device[:4].rstrip(":")
            assert u.stride() == x.stride()
            assert torch.equal(x, u.cpu())
            assert torch.equal(y, v.cpu())


def test_a_loader_goes_on_with_its_epoch_on_a_device():
    it = data.TensorLoader(*images(), shuffle=True)
    next(iter(it))
    there = it.to("cpu")
    assert torch.equal(next(iter(there))[1], next(it.epoch(1))[1])


def test_a_subclass_with_a_call_of_its_own_is_called():
    class Blank(data.RandomFlip):
        def __call__(self, images, generator):
            return torch.zeros_like(images)

    assert not next(iter(data.TensorLoader(*images(), transform=data.Compose([Blank()]))))[0].any()


def test_a_whole_data_set_on_a_device():
    here, there = data.load("digits", augment=True), data.load("digits", augment=True, device="cpu")
    assert all(torch.equal(x, u) for (x, _), (u, _) in zip(here.train, there.train, strict=True))
    assert here.nbytes == 1797 * 64 + 1797 * 8
    assert here.to("cpu").nbytes == here.nbytes


@needs_cuda
def test_a_whole_data_set_on_a_gpu():
    here, there = data.load("digits", augment=True), data.load("digits", augment=True, device="cuda")
    for a, b in ((here.train, there.train), (here.test, there.test)):
        assert all(torch.equal(x, u.cpu()) for (x, _), (u, _) in zip(a, b, strict=True))


@needs_cuda
def test_making_batches_does_not_wait_for_the_gpu():
    it = data.TensorLoader(*images(), batch_size=8, shuffle=True, transform=STANDARD).to("cuda")
    list(it)  # constants are copied once
    torch.cuda.set_sync_debug_mode("error")
    try:
        list(it)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:99", "device='cuda:99': torch sees "),
        ("gpu", "device='gpu': give cpu, cuda, or a GPU by its number, such as cuda:1"),
        (None, "device=None: give cpu, cuda, or a GPU"),
        ("meta", "device='meta': torch has no such device with values here; use cpu or cuda"),
    ],
)
def test_a_device_that_is_not_there_is_refused(device, message):
    for call in (lambda: fw.data.load("digits", device=device), lambda: data.TensorLoader(*images()).to(device)):
        with pytest.raises(ValueError, match=r".") as caught:
            call()
        assert str(caught.value).startswith(message)
        assert "\n" not in str(caught.value)
