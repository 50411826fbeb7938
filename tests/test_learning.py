"""Learning without true gradients: whole trainings, seeded and in one thread, so that they always end the same way."""

from __future__ import annotations

import re
import textwrap
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from spread import exhaustive


def train(
    model: nn.Sequential, data: fw.data.Data, method: fw.Method, *, epochs: int, lr: float, **cut: Any
) -> fw.Score:
    trainer = fw.Trainer(
        fw.split(model, **cut),
        check=False,
        method=method,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.Adam, lr=lr),
        scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=epochs * len(data.train)),
        runtime="simulate",
        seed=0,
        threads=1,
    )
    trainer.fit(data.train, epochs, progress=False)
    return trainer.evaluate(data.test)


def digits_net(layers: int) -> nn.Sequential:
    torch.manual_seed(0)
    hidden = [part for _ in range(layers) for part in (nn.Linear(64, 64), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(64, 10))


@exhaustive
def test_asyncfgd_learns_digits() -> None:
    score = train(digits_net(1), fw.data.load("digits"), fw.AsyncFGD(), epochs=60, lr=1e-2, at=["3"])
    assert score.metric is not None
    assert score.metric >= 0.8


@exhaustive
def test_moved_activations_learn_digits_sooner() -> None:
    method = fw.AsyncFGD(perturb="activations")
    score = train(digits_net(2), fw.data.load("digits"), method, epochs=20, lr=2.5e-3, at=["3", "5"])
    assert score.metric is not None
    assert score.metric >= 0.85


@exhaustive
def test_heads_learn_digits() -> None:
    torch.manual_seed(0)
    model = fw.models.build("digits-cnn")
    score = train(model, fw.data.load("digits"), fw.DGL(hidden=64), epochs=6, lr=5e-3, k=3, by="parameters")
    assert score.metric is not None
    assert score.metric >= 0.96


@exhaustive
def test_predicted_gradients_teach_the_first_stages_digits() -> None:
    """With two stages that learn from predictions the last one does better than with two that stay as they are."""
    scores = []
    for method in (fw.BP(), fw.DNI(labels=True)):
        model = digits_net(2)
        if not scores:
            for part in model[:5]:
                part.requires_grad_(False)
        scores.append(train(model, fw.data.load("digits"), method, epochs=20, lr=1e-3, at=["3", "5"]).metric or 0.0)
    assert scores[1] >= 0.9
    assert scores[1] > scores[0] + 0.05


@exhaustive
def test_a_recurrent_net_learns_digits_row_by_row() -> None:
    torch.manual_seed(0)
    method = fw.AsyncFGD(steps=2, tangents=4)
    data = fw.data.load("digits-rows")
    score = train(fw.models.build("rnn"), data, method, epochs=25, lr=5e-3, k=2, by="parameters")
    assert score.metric is not None
    assert score.metric >= 0.5


@exhaustive
def test_a_recurrent_net_learns_which_letter_comes_next(tmp_path: Path) -> None:
    """Better than one that knows how frequent each letter is; the text is what a module of Python has to say."""
    words = re.findall("[a-z]+", Path(textwrap.__file__).read_text().lower())
    (tmp_path / "words.txt").write_text(" ".join(words))
    data = fw.data.load("text", root=tmp_path, steps=16, batch_size=16)
    share = data.test.labels.flatten().bincount().double() / data.test.labels.numel()
    unigram = torch.special.entr(share).sum().item()
    torch.manual_seed(0)
    model = fw.models.build("rnn", num_classes=data.classes, in_shape=data.in_shape, hidden=12)
    score = train(model, data, fw.AsyncFGD(steps=2, tangents=4), epochs=10, lr=2e-2, k=2, by="parameters")
    assert score.loss < unigram - 0.05
