"""Transfer with forward gradients: a network that knows the digits 0 to 5 learns 6 to 9 without a backward pass.

Backpropagation trains the first network; its weights go to a file, from which others load all but the head. By
`fw.Transfer` the classifier learns first, and then the norms as well, in two stages of which none waits.

    python examples/transfer.py                # a minute; with --quick a few batches
"""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import freewheel as fw

QUICK = "--quick" in sys.argv
FILE = Path("runs", "digits-0-to-5.pt")
FILE.parent.mkdir(exist_ok=True)
data = fw.data.load("digits", train_limit=320 if QUICK else None)


def only(first: int, last: int) -> list[fw.data.TensorLoader]:
    """Return loaders of some of the digits, to train and to test; the first of them is class 0."""
    loaders = []
    for loader in (data.train, data.test):
        images, labels = map(torch.cat, zip(*loader))
        some = (labels >= first) & (labels <= last)
        options = {"batch_size": 32, "shuffle": loader.shuffle}
        loaders.append(fw.data.TensorLoader(images[some], labels[some] - first, **options))
    return loaders


def network(classes: int) -> torch.nn.Sequential:
    """Return a network with fresh weights: eight convolutions with BatchNorm, and a classifier."""
    torch.manual_seed(0)
    return fw.models.build("digits-cnn", num_classes=classes, in_shape=data.in_shape)


def accuracy(model, method, digits, epochs: int, lr: float) -> float:
    """Train a network in two stages; returns its accuracy on the test images."""
    steps = epochs * len(digits[0])
    trainer = fw.Trainer(
        fw.split(model, 2, by="parameters"),
        method=method,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.Adam, lr=lr),
        scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=steps),
    )
    trainer.fit(digits[0], epochs)
    return trainer.evaluate(digits[1]).metric


first = network(classes=6)
found = accuracy(first, "bp", only(0, 5), epochs=1 if QUICK else 6, lr=0.003)
torch.save(first.state_dict(), FILE)
print(f"digits 0 to 5, backpropagation: test accuracy {found:.1%}, weights in {FILE}")

alone = fw.Transfer(classifier="fc.*", peak=0.0)
norms = fw.Transfer(classifier="fc.*", layers="bn*", warmup=10, ramp=10, peak=0.3)
for name, pretrained, scale in (
    ("from fresh weights", False, 1.0),
    ("the classifier alone", True, alone),
    ("the classifier, then the norms", True, norms),
):
    model = network(classes=4)
    loaded = fw.models.load_pretrained(model, FILE) if pretrained else "nothing loaded"
    method = fw.AsyncFGD(perturb="activations", scale=scale)  # in every epoch, of every parameter: how far it is moved
    found = accuracy(model, method, only(6, 9), epochs=1 if QUICK else 60, lr=0.01)
    print(f"digits 6 to 9, forward gradients, {name}: test accuracy {found:.1%}  ({loaded})", flush=True)
