"""A model of Hugging Face transformers, made from a configuration: nothing is downloaded.

A small vision transformer learns real handwritten digits in three stages, from batches that are dicts. One epoch is
traced: who computed and who waited. `runs/digits-vit.json` can be opened at https://ui.perfetto.dev.

    python examples/hugging_face.py            # a minute; with --quick a few batches
"""

import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import freewheel as fw

try:
    from transformers import ViTConfig, ViTForImageClassification
except ImportError:
    sys.exit("transformers cannot be imported: pip install transformers, with no torchvision or one that fits torch")

QUICK = "--quick" in sys.argv
EPOCHS = 1 if QUICK else 15
torch.manual_seed(0)

config = ViTConfig(
    image_size=8,
    patch_size=2,
    num_channels=1,
    hidden_size=64,
    num_hidden_layers=6,
    num_attention_heads=4,
    intermediate_size=128,
    num_labels=10,
)
model = ViTForImageClassification(config)


def samples(loader):
    """Return a data set of dicts, as the package `datasets` has them."""
    return [{"pixel_values": x, "labels": y} for images, labels in loader for x, y in zip(images, labels)]


digits = fw.data.load("digits", train_limit=320 if QUICK else None)
train = DataLoader(samples(digits.train), batch_size=32, shuffle=True, drop_last=True)
test = DataLoader(samples(digits.test), batch_size=128)
stages = fw.split(model, 3, example=digits.example(), by="parameters")  # between the blocks of transformers
print(stages.report)

trainer = fw.Trainer(
    stages,
    method="pipedream",
    loss=lambda out, labels: F.cross_entropy(out.logits, labels),  # `out` is what the model returns
    metric={"accuracy": lambda out, labels: (out.logits.argmax(-1) == labels).float().mean()},
    optimizer=partial(torch.optim.AdamW, lr=2e-3),
    scheduler=partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=2e-3, total_steps=(EPOCHS + 1) * len(train)),
    inputs="pixel_values",  # the keys of a batch
    targets="labels",
    clip=1.0,
)


def show(end: fw.EpochEnd) -> None:
    """Print a line for each epoch."""
    epoch = end.record
    print(f"epoch {epoch.epoch + 1:2}  loss {epoch.loss:.3f}  test accuracy {epoch.validation.metric:.1%}", flush=True)


trainer.fit(train, EPOCHS, validate=test, callbacks=[show])
trace = trainer.fit(train, trace=True).trace  # goes on for one more epoch
Path("runs").mkdir(exist_ok=True)
trace.save("runs/digits-vit.json")
for stage, share in enumerate(trace.shares()):
    waited = f"waited {share['before']:.0%} for the stage before, {share['after']:.0%} for the one after"
    print(f"stage {stage}  computed {share['compute']:.0%} of the time, {waited}")
score = trainer.evaluate(test)
print(f"test loss {score.loss:.3f}, accuracy {score.metric:.1%}")
