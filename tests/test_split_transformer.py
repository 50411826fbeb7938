"""The Transformers of `torch.nn` are cut between their layers, in any of the ways they can be called."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from freewheel._cores import intra_op_threads
from freewheel.split import split


def encoder(**options):
    layer = nn.TransformerEncoderLayer(8, 2, 12, **{"dropout": 0.0, "batch_first": True, **options})
    return nn.TransformerEncoder(layer, 4, enable_nested_tensor=not options)


class Called(nn.Module):
    """A module that is called with these arguments, made from the tokens."""

    def __init__(self, inner, arguments):
        super().__init__()
        self.embed, self.inner, self.head = nn.Embedding(7, 8), inner, nn.Linear(8, 3)
        self.arguments = arguments

    def forward(self, tokens):
        args, kwargs = self.arguments(self.embed(tokens), tokens)
        return self.head(self.inner(*args, **kwargs))


CAUSAL = nn.Transformer.generate_square_subsequent_mask(5)
NOT_CAUSAL = torch.zeros(5, 5)
BOOLEAN = torch.ones(5, 5, dtype=torch.bool).triu(1)
WAYS = {
    "plain": lambda x, tokens: ((x,), {}),
    "causal mask": lambda x, tokens: ((x, CAUSAL), {}),
    "causal mask and a hint": lambda x, tokens: ((x,), {"mask": CAUSAL, "is_causal": True}),
    "other mask": lambda x, tokens: ((x, NOT_CAUSAL), {}),
    "boolean mask": lambda x, tokens: ((x,), {"mask": BOOLEAN}),
    "padding": lambda x, tokens: ((x,), {"src_key_padding_mask": tokens == 0}),
    "padding and a mask": lambda x, tokens: ((x, BOOLEAN), {"src_key_padding_mask": tokens == 0}),
}
TOKENS = torch.tensor([[1, 2, 3, 0, 0], [4, 5, 6, 1, 2], [3, 1, 2, 6, 0]])
NOT_ALIGNED = torch.tensor([[5, 0, 3, 0, 4], [4, 5, 6, 1, 2], [3, 1, 2, 6, 0]])


def run(stages, x):
    for stage in stages:
        x = stage(x)
    return x


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("example", [TOKENS, None], ids=["example", "no example"])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_an_encoder_is_cut_between_its_layers_and_gives_what_it_gave(way, options, example):
    torch.manual_seed(0)
    model = Called(encoder(**options), WAYS[way])
    stages = split(model, 4, by="parameters", example=example)
    assert [f"inner.layers.{i}" in names for i, names in enumerate(stages.report.names)] == [True] * 4
    assert stages.report.whole == ()
    for tokens in (TOKENS, NOT_ALIGNED):
        assert torch.equal(run(stages, tokens), model(tokens))
        twin = copy.deepcopy(model).eval()
        for stage in stages:
            stage.eval()
        assert torch.equal(run(stages, tokens), twin(tokens))
        with torch.no_grad():  # the fast path packs padded sequences; its numbers are rounded otherwise
            torch.testing.assert_close(run(stages, tokens), twin(tokens), rtol=1e-5, atol=1e-5)
        for stage in stages:
            stage.train()


def test_a_transformer_is_cut_inside_by_itself_and_in_a_sequential():
    torch.manual_seed(0)
    whole = nn.Transformer(8, 2, 2, 2, 12, dropout=0.0, batch_first=True)
    x = (torch.randn(3, 5, 8), torch.randn(3, 4, 8))
    stages = split(whole, 4, example=x, by="parameters")
    assert stages.report.names[1][0].startswith("encoder.layers.1")
    assert torch.equal(run(stages, x), whole(*x))
    chain = nn.Sequential(nn.Embedding(7, 8), encoder(), nn.Linear(8, 3))
    stages = split(chain, 3, by="parameters")
    assert "1.layers.2" in stages.report.names[1]
    assert torch.equal(run(stages, TOKENS), chain(TOKENS))


def test_an_encoder_with_a_forward_of_its_own_is_traced_as_it_is():
    class Doubled(nn.TransformerEncoder):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x) * 2
            return x

    model = Doubled(nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True), 2)
    stages, x = split(model, 2, by="parameters"), torch.randn(3, 5, 8)
    assert "mul" in sum(stages.report.names, ())
    assert torch.equal(run(stages, x), model(x))


@pytest.mark.parametrize(("runtime", "way"), [("simulate", "padding"), ("threads", "other mask")])
def test_a_split_encoder_is_trained_as_plain_pytorch_trains_it(runtime, way):
    """A mask that crosses a cut still needs no gradient: attention would be another kernel's."""
    torch.manual_seed(0)
    model = Called(encoder(), WAYS[way])
    twin, sgd = copy.deepcopy(model), partial(torch.optim.SGD, lr=0.1)
    batches = [(TOKENS, TOKENS % 3), (TOKENS.flip(0), TOKENS.flip(0) % 3)]

    def loss(y, target):
        return F.cross_entropy(y.flatten(0, 1), target.flatten())

    stages = split(model, 3, example=TOKENS, by="parameters")
    fw.Trainer(stages, method="bp", loss=loss, optimizer=sgd, runtime=runtime, threads=1).fit(batches)
    optimizer = sgd(twin.parameters())
    with intra_op_threads(1):
        for x, y in batches:
            optimizer.zero_grad()
            loss(twin(x), y).backward()
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters()))
