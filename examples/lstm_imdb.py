"""An LSTM on film reviews by Async LU, as in its paper: workers race on one set of weights, without a plan or a lock.

It reads the IMDb reviews as they are distributed, ends when the test loss no longer falls, and prints how stale the
gradients of each layer were. Races depend on timing: two runs differ.

    python examples/lstm_imdb.py [FOLDER]      # FOLDER/aclImdb; ten minutes; with --quick a few made-up reviews
"""

import json
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F

import freewheel as fw

QUICK = "--quick" in sys.argv
FOLDER = Path(next((each for each in sys.argv[1:] if each != "--quick"), "data"))
EPOCHS = 2 if QUICK else 4
torch.manual_seed(0)

if QUICK:
    FOLDER = Path(tempfile.mkdtemp())
    for number in range(160):
        kind, words = (("neg", "a dull and endless film"), ("pos", "a warm and clever film"))[number % 2]
        file = FOLDER / "aclImdb" / ("train" if number < 120 else "test") / kind / f"{number}_1.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(words)
for name in ("train", "test"):  # a JSON object a line, which fw.data.load reads
    lines, reviews = FOLDER / "imdb" / f"{name}.jsonl", FOLDER / "aclImdb" / name
    if not lines.exists() and not reviews.is_dir():
        sys.exit(
            f"{reviews} is missing: unpack aclImdb_v1.tar.gz of https://ai.stanford.edu/~amaas/data/sentiment "
            f"in {FOLDER}, or name the folder that has it, or try made-up reviews with --quick"
        )
    if not lines.exists():
        files = [(label, file) for label, kind in enumerate(("neg", "pos")) for file in (reviews / kind).glob("*.txt")]
        found = [json.dumps({"text": file.read_text("utf-8"), "label": label}) for label, file in sorted(files)]
        lines.parent.mkdir(exist_ok=True)
        lines.write_text("\n".join(found))

data = fw.data.load("imdb", root=FOLDER, batch_size=10 if QUICK else 75, steps=100)
print(data.description)
model = fw.models.build("lstm", hidden=128, vocabulary=len(data.vocabulary), **data.shapes)


def show(end: fw.EpochEnd) -> None:
    """Print a line for each epoch."""
    epoch = end.record
    print(f"epoch {epoch.epoch + 1}  loss {epoch.loss:.4f}  test accuracy {epoch.validation.metric:.1%}", flush=True)


trainer = fw.Trainer(
    [model],  # one network: a race has no stages
    method=fw.AsyncLU(forward_workers=1, backward_workers=1),
    loss=F.cross_entropy,
    optimizer=partial(torch.optim.Adam, lr=1e-3),
    scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=EPOCHS * len(data.train)),
)
history = trainer.fit(data.train, EPOCHS, validate=data.test, callbacks=[show, fw.EarlyStopping(patience=2)])

for name, layer in history.epochs[-1].layers.items():
    late = f"{layer.staleness:.2f} updates late on average, {layer.stalest} at most"
    print(f"{name:13} {layer.finished} updates in the last epoch, {late}")
score = trainer.evaluate(data.test)
print(f"test loss {score.loss:.3f}, accuracy {score.metric:.1%}")
