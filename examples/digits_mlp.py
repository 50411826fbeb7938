"""The smallest whole example: a perceptron in three stages learns real handwritten digits, and no stage waits.

It splits a network by its parameters, prints the plan, trains by FDG on threads, stops when the test accuracy no longer
rises, and goes back to the best epoch.

    python examples/digits_mlp.py              # seconds; with --quick a few batches
"""

import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw

QUICK = "--quick" in sys.argv
torch.manual_seed(0)

data = fw.data.load("digits", batch_size=64, train_limit=320 if QUICK else None)  # they come with scikit-learn
print(data.description)

model = nn.Sequential(
    nn.Flatten(),
    *(nn.Linear(64, 256), nn.ReLU()),
    *(nn.Linear(256, 256), nn.ReLU()),
    *(nn.Linear(256, 256), nn.ReLU()),
    *(nn.Linear(256, 256), nn.ReLU()),
    nn.Linear(256, 10),
)
stages = fw.split(model, 3, by="parameters")  # or at=["3", "7"], or example=data.example(): by measured time
print(stages.report)

method = fw.FDG(shrink=0.5)  # or "pipedream", "bp", or any other name that `freewheel methods` lists
print(fw.plan(method, k=3, batches=4))  # F1@0: the forward of batch 1 on the weights after 0 updates; B: backward


def show(end: fw.EpochEnd) -> None:
    """Print a line for each epoch."""
    epoch = end.record
    print(f"epoch {epoch.epoch + 1:2}  loss {epoch.loss:.4f}  test accuracy {epoch.validation.metric:.1%}", flush=True)


best = fw.KeepBest(monitor="accuracy")
trainer = fw.Trainer(
    stages,
    method=method,
    loss=F.cross_entropy,
    optimizer=partial(torch.optim.SGD, lr=0.05, momentum=0.9),  # made for each stage, of its parameters
    runtime="threads",  # "processes" or "torchrun" give the same weights, bit for bit
    seed=0,
)
history = trainer.fit(
    data.train,
    epochs=2 if QUICK else 30,
    validate=data.test,
    callbacks=[show, best, fw.EarlyStopping(monitor="accuracy", patience=5)],
)

model.load_state_dict(best.weights())  # the stages hold the layers of the model: training them has trained it
score = trainer.evaluate(data.test)
late = ", ".join(f"{updates:.1f}" for updates in history.epochs[-1].staleness)
print(f"{history.batches} batches; the stages learned from gradients that were {late} updates old")
print(f"test accuracy {score.metric:.1%}, after epoch {best.epoch + 1}")
