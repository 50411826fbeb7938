"""A small GPT on characters, the embedding and the head tied, in two stages; then it writes.

It shows a weight that two stages share, forwards on predicted weights, a one-cycle schedule, clipping, and a callback
for batches. The text is your own, or the help on the language that comes with Python.

    python examples/gpt_characters.py [TEXT]   # minutes; with --quick a few batches
"""

import pydoc_data.topics
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw

QUICK, EPOCHS, STEPS = "--quick" in sys.argv, 6, 64
torch.manual_seed(0)


class GPT(nn.Module):
    """A decoder: blocks with the norm first, learned places, and a head that is the embedding."""

    def __init__(self, letters: int, width: int = 64, blocks: int = 3) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(STEPS, width)
        block = partial(nn.TransformerEncoderLayer, width, 4, 4 * width, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList([block(dropout=0.0, activation="gelu") for _ in range(blocks)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        self.head.weight = self.letters.weight
        self.apply(lambda m: nn.init.normal_(m.weight, std=0.02) if isinstance(m, nn.Embedding) else None)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], device=text.device)
        x = self.letters(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x)).transpose(1, 2)  # (samples, classes, steps), as F.cross_entropy takes it


file = next((each for each in sys.argv[1:] if each != "--quick"), None)
topics = "\n\n".join(pydoc_data.topics.topics.values()).splitlines(keepends=True)
text = Path(file).read_text("utf-8") if file else "".join(line for line in topics if "|" not in line)  # without tables
letters = sorted(set(text))
numbers = torch.tensor([letters.index(letter) for letter in text[: 20_000 if QUICK else None]])
rows = numbers.unfold(0, STEPS + 1, STEPS)  # sequences, each with the letter that follows
first, last = rows[: len(rows) * 9 // 10], rows[len(rows) * 9 // 10 :]
train = fw.data.TensorLoader(first[:, :-1], first[:, 1:], batch_size=32, shuffle=True)  # or any DataLoader
test = fw.data.TensorLoader(last[:, :-1], last[:, 1:], batch_size=64)
stages = fw.split(GPT(len(letters)), 2, example=rows[:32, :-1], by="parameters")
print(stages.report)  # the shared weight belongs to stage 0, and travels with each batch


def show(end: fw.BatchEnd) -> None:
    """Print the loss now and then."""
    if end.step % 25 == 1:
        print(f"batch {end.step:4} of {EPOCHS * len(train)}  loss {end.loss:.3f}", flush=True)


trainer = fw.Trainer(
    stages,
    method=fw.Pipeline(delays=(1, 0), weights="predict"),  # forwards run on the weights that backwards will meet
    loss=F.cross_entropy,
    optimizer=partial(torch.optim.AdamW, lr=3e-3, betas=(0.9, 0.95)),
    scheduler=partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=3e-3, total_steps=EPOCHS * len(train) + 1),
    clip=1.0,
)
trainer.fit(train, EPOCHS, batch_callbacks=[show])

written = last[0, :20].tolist()
for _ in range(10 if QUICK else 400):
    likely = trainer.predict([torch.tensor([written[-STEPS:]])])[0][0, :, -1].div(0.7).softmax(0)
    written.append(int(likely.multinomial(1)))
print("".join(letters[number] for number in written))
score = trainer.evaluate(test)
print(f"\ntest loss {score.loss:.3f} a character, accuracy {score.metric:.1%}")
