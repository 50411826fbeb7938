"""Architectures that people write, split by `fw.split`."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from habits._habit import CHAIN, FORWARD, RACES, Case, Habit, vectors


class Net(nn.Module):
    """A body over three tokens of width 8, between an embedding and a head."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(2, 8), body, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(self.embed(x.view(x.shape[0], 3, 2)).tanh()).mean(1))


class Masked(nn.Module):
    """An encoder that is called with a mask."""

    def __init__(self, inner: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, self.mask)


class Padded(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[:, 2] = True
        return self.inner(x, src_key_padding_mask=padding)


class Both(nn.Module):
    """An encoder and a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.both(x, x.flip(1), tgt_mask=torch.ones(3, 3, dtype=torch.bool).triu(1))


class Residual(nn.Module):
    """With a scale of its own for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.scale = nn.Linear(8, 8), nn.Linear(8, 8), nn.Parameter(torch.full((8,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.scale * self.b(F.gelu(self.a(x)))


class Blocks(nn.Module):
    def __init__(self, blocks: nn.ModuleList | nn.ModuleDict) -> None:
        super().__init__()
        self.blocks = blocks

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks.values() if isinstance(self.blocks, nn.ModuleDict) else self.blocks:
            x = block(x)
        return x


class Tokens(nn.Module):
    """A class token and positions, as in a vision transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 4, 8))
        self.block, self.norm = Residual(), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.position
        return self.norm(self.block(x + x.mean(1, keepdim=True)))[:, :1]


class Branches(nn.Module):
    """Side by side, then joined; and a gate from the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.gate = nn.Linear(8, 4), nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.left(x).relu(), self.right(x).tanh()], dim=-1)
        return y * self.gate(y.mean(1, keepdim=True)).sigmoid()


class Standardized(nn.Linear):
    """Uses its weight twice in one forward."""

    def forward(self, input: Tensor) -> Tensor:
        weight = (self.weight - self.weight.mean(1, keepdim=True)) / self.weight.std(1, keepdim=True)
        return F.linear(input, weight, self.bias)


class UShape(nn.Module):
    """Features of all levels are kept in a list for the way back."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(16, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(x).relu()
            kept.append(x)
        for layer in self.up:
            x = layer(torch.cat([x, kept.pop()], dim=-1)).tanh()
        return x


class Window(nn.Module):
    """Attention with a bias for relative positions, from a table by an index in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.table = nn.Linear(8, 24), nn.Linear(8, 8), nn.Parameter(torch.randn(5, 2))
        place = torch.arange(3)
        self.register_buffer("index", place[:, None] - place[None] + 2, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(t, t, 2).permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.unsqueeze(0))
        return x + self.out(y.transpose(1, 2).reshape(n, t, c))


def layer() -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)


def case(body: Callable[[], nn.Module]) -> Case:
    torch.manual_seed(0)
    batches = vectors()
    return Case(fw.split(Net(body()), 3, example=batches[0][0], by="parameters"), batches)


def encoder() -> Case:
    return case(lambda: nn.TransformerEncoder(layer(), 3))


def causal_encoder() -> Case:
    return case(lambda: Masked(nn.TransformerEncoder(layer(), 3), torch.ones(3, 3, dtype=torch.bool).triu(1)))


def padded_encoder() -> Case:
    return case(lambda: Padded(nn.TransformerEncoder(layer(), 3)))


def encoder_and_decoder() -> Case:
    return case(Both)


def module_list() -> Case:
    return case(lambda: Blocks(nn.ModuleList(Residual() for _ in range(4))))


def module_dict() -> Case:
    return case(lambda: Blocks(nn.ModuleDict({f"level{i}": Residual() for i in range(4)})))


def blocks_in_a_sequential() -> Case:
    return case(lambda: nn.Sequential(Residual(), nn.Sequential(Residual(), Residual())))


def tokens() -> Case:
    return case(Tokens)


def branches() -> Case:
    return case(lambda: nn.Sequential(Branches(), Branches()))


def standardized() -> Case:
    return case(lambda: nn.Sequential(Standardized(8, 8), nn.ReLU(), Standardized(8, 8), nn.ReLU()))


def u_shape() -> Case:
    return case(UShape)


def window() -> Case:
    return case(lambda: nn.Sequential(Window(), Window()))


METHODS = (*CHAIN, *FORWARD, *RACES)
NETS = {
    "nn.TransformerEncoder, split": encoder,
    "nn.TransformerEncoder with a causal mask, split": causal_encoder,
    "nn.TransformerEncoder with padding, split": padded_encoder,
    "nn.Transformer, split": encoder_and_decoder,
    "blocks in a ModuleList, split": module_list,
    "blocks in a ModuleDict, split": module_dict,
    "blocks in a Sequential, split": blocks_in_a_sequential,
    "class token and positions, split": tokens,
    "branches that are joined, split": branches,
    "a weight used twice in one layer, split": standardized,
    "features kept in a list for the way back, split": u_shape,
    "attention with relative positions, split": window,
}
HABITS = [Habit(name, make, methods=METHODS) for name, make in NETS.items()]
