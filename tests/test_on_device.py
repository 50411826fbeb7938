"""Data on a device: the same batches there, bit for bit, and the same training from them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import freewheel as fw
from checkpoints import resume, saved_at
from freewheel import data
from freewheel.data._loader import generator_for
from freewheel.runtime import Prefetcher, Reader
from rows import ROWS, batches, same_bits, tensors, trainer
from spread import needs_cuda

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
    pytest.importorskip("sklearn")
    here, there = data.load("digits", augment=True), data.load("digits", augment=True, device="cuda")
    for a, b in ((here.train, there.train), (here.test, there.test)):
        assert all(torch.equal(x, u.cpu()) for (x, _), (u, _) in zip(a, b, strict=True))


@contextmanager
def what_waits(mode: str) -> Iterator[None]:
    """Context in which torch warns of, or fails at, what waits for the GPU."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_making_batches_does_not_wait_for_the_gpu():
    it = data.TensorLoader(*images(), batch_size=8, shuffle=True, transform=STANDARD).to("cuda")
    list(it)  # constants are copied once
    with what_waits("error"):
        list(it)


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


# ---- feeding ----

RUNTIMES = ("simulate", "threads", "graph")
WIDTH = 4096  # wide enough for a copy to take longer than the launch of a forward


def stages() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(inplace=True)).cuda(), nn.Linear(16, 3).cuda()]


def wide(count: int = 12, device: str = "cpu") -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(1)
    made = [(torch.randn(256, WIDTH, generator=g), torch.randint(3, (256,), generator=g)) for _ in range(count)]
    return [(x.to(device), y.to(device)) for x, y in made]


class Refills:
    """A loader with one buffer, which it overwrites as soon as it is asked for the next batch."""

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned

    def __iter__(self):
        x, y = torch.empty(256, WIDTH), torch.empty(256, dtype=torch.long)
        x, y = (x.pin_memory(), y.pin_memory()) if self.pinned else (x, y)
        for a, b in wide():
            x.copy_(a), y.copy_(b)
            yield x, y
            x.fill_(float("nan")), y.zero_()


LOADERS = {
    "list": wide,
    "pinned list": lambda: [(x.pin_memory(), y.pin_memory()) for x, y in wide()],
    "half on the gpu": lambda: [(x, y.cuda()) for x, y in wide()],
    "buffer": lambda: Refills(pinned=False),
    "pinned buffer": lambda: Refills(pinned=True),
    "arrays": lambda: ((x.numpy(), y.numpy()) for x, y in wide()),
    "workers": lambda: DataLoader(wide(), batch_size=None, pin_memory=True, num_workers=1),
}


def fitted(runtime: str, loader, method="fdg", **options):
    made = trainer(stages(), method, runtime=runtime)
    history = made.fit(loader, **options)
    return tensors(*made.stages), history.losses, history.metrics


def test_batches_are_read_two_ahead_and_errors_come_in_their_turn():
    cpu, asked = torch.device("cpu"), []

    def items():
        for item in batches(6):
            asked.append(item)
            yield item
        raise RuntimeError("the loader is broken")

    reader = Reader()
    source = (reader.batch(number, item) for number, item in enumerate(items()))
    found = Prefetcher(reader.batch, cpu, cpu)._ahead(source)
    for number in range(6):
        assert next(found).number == number
        assert len(asked) == min(number + 3, 6)
    with pytest.raises(RuntimeError, match="the loader is broken"):
        next(found)


@needs_cuda
@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_trains_as_batches_on_the_gpu_do(runtime, name):
    wanted = fitted("simulate", wide(device="cuda"))
    for _ in range(3):
        found = fitted(runtime, LOADERS[name]())
        assert same_bits(wanted[0], found[0])
        assert wanted[1] == found[1]


@needs_cuda
@pytest.mark.parametrize("method", ["gpipe", "dgl", "asyncfgd", "dfa", "fgd-dp"])
def test_every_kind_of_method_is_fed_alike(method):
    make = next(row.make for row in ROWS if row.name == method)
    results = [
        fitted(runtime, loader, make(2))
        for runtime in ("simulate", "threads")
        for loader in (wide(device="cuda"), wide(), Refills(pinned=False))
    ]
    assert all(same_bits(results[0][0], other[0]) and results[0][1] == other[1] for other in results[1:])


@needs_cuda
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_the_stream_of_the_caller_is_that_of_the_stages(runtime):
    wanted = fitted("simulate", wide(), validate=wide(3), epochs=2)
    stream = torch.cuda.Stream()
    for device in ("cpu", "cuda"):
        loader = wide(device=device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = fitted(runtime, ((x * 1.0, y) for x, y in loader) if device == "cuda" else loader)
            stream.synchronize()
        assert same_bits(fitted("simulate", wide())[0], found[0])
    assert torch.cuda.current_device() == 0
    assert wanted[2] == fitted(runtime, wide(), validate=wide(3, "cuda"), epochs=2)[2]


@needs_cuda
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_resident_set_trains_as_its_copy_on_the_cpu_does(runtime, tmp_path):
    pytest.importorskip("sklearn")
    results = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        digits = data.load("digits", batch_size=100, augment=True, device=device)
        net = [nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU()).cuda(), nn.Linear(20, 10).cuda()]
        made = trainer(net, "pipedream", runtime=runtime)
        history = made.fit(digits.train, 2, validate=digits.test, save_to=tmp_path / device, save_every=11)
        results.append((tensors(*net), history.losses, history.metrics))
        path = next(iter(saved_at(tmp_path / device).values()))
        again = [nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU()).cuda(), nn.Linear(20, 10).cuda()]
        other = "cuda" if device == "cpu" else "cpu"  # a run may go on with its data elsewhere
        resume(path, again, "pipedream", runtime=runtime).fit(
            data.load("digits", batch_size=100, augment=True, device=other).train, 2
        )
        assert same_bits(results[0][0], tensors(*again))
    assert same_bits(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]


@needs_cuda
def test_evaluation_waits_for_the_gpu_as_often_for_many_batches_as_for_few():
    made = trainer(stages(), "bp", metric={"accuracy": fw.accuracy, "mean": lambda output, target: output.mean()})
    counts = []
    for count in (3, 9):
        loader = wide(count, "cuda")
        made.evaluate(loader)
        with what_waits("warn"), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made.evaluate(loader)
        counts.append(len(caught))
    assert counts[0] == counts[1] > 0


def test_a_score_is_the_mean_over_samples_of_numbers_read_at_the_end():
    made = trainer([nn.Linear(6, 3)], "bp", metric={"accuracy": fw.accuracy, "first": lambda out, y: out[0, 0]})
    loader = batches(8)
    score, count = made.evaluate(loader), sum(len(y) for _, y in loader)
    with torch.no_grad():
        outs = [(made.stages[0](x), y) for x, y in loader]
    assert score.samples == count
    assert score.loss == sum(float(F.cross_entropy(out, y)) * len(y) for out, y in outs) / count
    assert score.metrics["accuracy"] == sum(fw.accuracy(out, y) * len(y) for out, y in outs) / count
    assert score.metrics["first"] == sum(float(out[0, 0]) * len(y) for out, y in outs) / count
