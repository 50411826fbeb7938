"""ResNet-20 on CIFAR-10 by FDG in two stages, by the recipe of its paper in proportion, with crops and flips.

A run that was stopped, by whatever, goes on from its last checkpoint when it is started again, to the same weights bit
for bit. On a GPU the stages are compiled and run as CUDA graphs.

    python examples/resnet_cifar10.py [FOLDER]  # FOLDER/cifar-10-batches-bin; an hour; with --quick made-up images
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

import freewheel as fw

QUICK = "--quick" in sys.argv
FOLDER = Path(next((each for each in sys.argv[1:] if each != "--quick"), "data"))
CHECKPOINTS = Path("runs", "resnet-cifar10-quick" if QUICK else "resnet-cifar10")
EPOCHS = 2 if QUICK else 30
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

recipe = fw.recipes.find("fdg", data="cifar10", model="resnet-20", stages=2).scaled(epochs=EPOCHS)
print(f"{recipe.source}: {recipe.optimizer_settings()}, {recipe.schedule}")

if QUICK:
    data = fw.data.load("synthetic", batch_size=16, train_limit=64, test_limit=64, device=DEVICE)
elif (FOLDER / "cifar-10-batches-bin").is_dir():
    data = fw.data.load("cifar10", root=FOLDER, batch_size=recipe.batch_size, device=DEVICE)
else:
    sys.exit(
        f"{FOLDER}/cifar-10-batches-bin is missing: unpack https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz "
        f"in {FOLDER}, or name the folder that has it, or try made-up images with --quick"
    )
print(data.description)

torch.manual_seed(0)
model = fw.models.build("resnet-20", **data.shapes).to(DEVICE)
stages = fw.split(model, at=["layer2.0"])  # where fw.split(model, 2, example=data.example()) cuts it, by measured time
print(stages.report)


def show(end: fw.EpochEnd) -> None:
    """Print a line for each epoch."""
    epoch = end.record
    busy = f", stages busy {' and '.join(f'{share:.0%}' for share in epoch.busy)}" if epoch.busy else ""
    score = f"loss {epoch.loss:.3f}  test accuracy {epoch.validation.metric:.1%}"
    print(f"epoch {epoch.epoch + 1:2}  {score}  {epoch.images_per_second:.0f} images/s{busy}", flush=True)


options = {
    "method": fw.FDG(shrink=0.2),  # as in table III of the paper
    "loss": F.cross_entropy,
    "runtime": "auto",
    "compile": DEVICE == "cuda",  # on a CPU it pays with the runtime "processes"
    **recipe.trainer_options(batches=len(data.train)),  # the optimizer and the step sizes
}
resumed = any(CHECKPOINTS.glob("checkpoint-*"))
trainer = fw.Trainer.resume(CHECKPOINTS, stages, **options) if resumed else fw.Trainer(stages, **options)
print(f"runtime {trainer.runtime.name}; goes on from {trainer.resumed_from or 'fresh weights'}")
if trainer.unfinished or not resumed:
    trainer.fit(data.train, EPOCHS, validate=data.test, callbacks=[show], save_to=CHECKPOINTS)
score = trainer.evaluate(data.test)
print(f"test loss {score.loss:.3f}, accuracy {score.metric:.1%}")
