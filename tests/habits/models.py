"""Habits of whole models: tied weights, shapes read and checked in forward, functions in place of layers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from habits._habit import FEEDBACK, HEADS, METHODS, Case, Habit, refuse, vectors

WORDS = 11


def split(model: nn.Module, batches: list, **options) -> Case:
    """A model in three stages."""
    return Case(fw.split(model, 3, example=batches[0][0], by="parameters"), batches, **options)


def whole(case: Case) -> None:
    """Train the model that was split, in plain PyTorch."""
    model = case.stages.model
    model.train()
    optimizer = case.optimizer(model.parameters())
    for x, y in case.batches:
        optimizer.zero_grad()
        case.loss(model(**x) if isinstance(x, dict) else model(x), y).backward()
        optimizer.step()


def texts(count: int = 6) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    out = [tuple(torch.randint(WORDS, (8, 5), generator=g) for _ in range(2)) for _ in range(count)]
    return [*out[:-1], tuple(t[:6] for t in out[-1])]


def images(count: int = 5) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 1, 8, 8, generator=g), torch.randint(3, (8,), generator=g)) for _ in range(count)]


def pictures(count: int = 5) -> list[tuple[Tensor, Tensor]]:
    return [(x, x.tanh()) for x, _ in images(count)]


def over_words(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.flatten(0, -2), target.flatten())


def of_first(out: tuple[Tensor, ...], target: Tensor) -> Tensor:
    return over_words(out[0], target)


def made_by_model(out: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return out[1]


# -- tied weights -----------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self, padding: int | None = None) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(WORDS, 8, padding_idx=padding), nn.Linear(8, 8)
        self.head = nn.Linear(8, WORDS)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(x + torch.tanh(self.body(x)))


class TiedByFunction(Tied):
    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return F.linear(x + torch.tanh(self.body(x)), self.embed.weight, self.head.bias)


class CalledTwice(nn.Module):
    """A layer that two stages call, and a table that both of them read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.step, self.middle, self.last = (nn.Linear(6, 6) for _ in range(4))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.step(torch.tanh(self.first(x)) * self.scale))
        x = torch.tanh(self.step(torch.tanh(self.middle(x)) * self.scale))
        return self.last(x)


# -- nanoGPT ----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()  # noqa: N806
        q, k, v = self.qkv(x).split(C, dim=2)
        q, k, v = (t.view(B, T, 2, C // 2).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(B, T, C))


class GPTBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(8), Attention(), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block_size = 8
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(WORDS, 8),
                "wpe": nn.Embedding(self.block_size, 8),
                "h": nn.ModuleList(GPTBlock() for _ in range(3)),
                "ln_f": nn.LayerNorm(8),
            }
        )
        self.lm_head = nn.Linear(8, WORDS, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        device = idx.device
        _, t = idx.size()
        assert t <= self.block_size, f"Cannot forward sequence of length {t}"
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        x = self.transformer.wte(idx) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = None if targets is None else F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


# -- what forward does ------------------------------------------------------------------------------------------------


class Three(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)


class ReadsShapes(Three):
    def forward(self, x: Tensor) -> Tensor:
        n, width = x.shape
        assert width == 6
        if n > 1000:
            raise ValueError("too many")
        noise = torch.zeros(n, width, dtype=x.dtype, device=x.device)
        h = torch.tanh(self.a(x) + torch.arange(width, device=x.device) / width)
        h = torch.tanh(self.b(h) + noise)
        return self.c(h.view(n, 2, width // 2).flatten(1))


class WithoutGradient(Three):
    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.a(x))
        with torch.no_grad():
            factor = torch.tanh(self.b(x))
        return self.c(torch.tanh(self.b(h)) * factor)


class Doubled(torch.autograd.Function):
    """Doubles its input, and triples the gradient: only who calls it gets that right."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 3 * gradient

    @staticmethod
    def jvp(ctx, tangent: Tensor) -> Tensor:
        return 3 * tangent


class OwnFunction(Three):
    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == 6
        return self.c(torch.tanh(self.b(Doubled.apply(torch.tanh(self.a(x))))))


# -- functions in place of layers -------------------------------------------------------------------------------------


class Mnist(nn.Module):
    """The example of PyTorch, smaller."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 4, 3, 1), nn.Conv2d(4, 4, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.fc1, self.fc2 = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = torch.flatten(self.dropout1(F.max_pool2d(x, 2)), 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.up, self.out = nn.Conv2d(8, 4, 3, padding=1), nn.Conv2d(4, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = F.relu(self.down(x))
        low = torch.tanh(self.middle(F.max_pool2d(high, 2)))
        low = F.interpolate(low, size=high.shape[-2:], mode="nearest")
        return self.out(F.relu(self.up(torch.cat([low, high], 1))))


def seeded(kind, *args) -> nn.Module:
    torch.manual_seed(0)
    return kind(*args)


def tied() -> Case:
    return split(seeded(Tied), texts(), loss=over_words)


def tied_padded() -> Case:
    return split(seeded(Tied, 0), texts(), loss=over_words)


def tied_by_function() -> Case:
    return split(seeded(TiedByFunction), texts(), loss=over_words)


def called_twice() -> Case:
    batches = vectors()
    return Case(fw.split(seeded(CalledTwice), at=["middle", "last"], example=batches[0][0]), batches)


def nano_gpt() -> Case:
    return split(seeded(NanoGPT), texts(), loss=of_first)


def nano_gpt_with_loss() -> Case:
    batches = [({"idx": x, "targets": y}, y) for x, y in texts()]
    return split(seeded(NanoGPT), batches, loss=made_by_model)


def reads_shapes() -> Case:
    return split(seeded(ReadsShapes), vectors())


def without_gradient() -> Case:
    return split(seeded(WithoutGradient), vectors())


def own_function() -> Case:
    return split(seeded(OwnFunction), vectors())


def mnist() -> Case:
    return split(seeded(Mnist), images(), loss=F.nll_loss)


def mnist_with_dropout() -> Case:
    return split(seeded(Mnist, 0.25), images(), loss=F.nll_loss)


def unet() -> Case:
    return split(seeded(UNet), pictures(), loss=F.mse_loss)


SHARED = refuse("which several stages use", *HEADS, *FEEDBACK)
NO_STACK = refuse("is not a plain stack of layers", "dfa")
HABITS = [
    Habit("tied embedding and head", tied, SHARED, plain=whole),
    Habit("tied embedding with padding", tied_padded, SHARED, plain=whole),
    Habit("tied embedding used by a function", tied_by_function, SHARED, plain=whole),
    Habit("a layer called in several stages", called_twice, SHARED, plain=whole),
    Habit("nanoGPT", nano_gpt, SHARED, plain=whole),
    Habit("nanoGPT that computes its loss", nano_gpt_with_loss, SHARED, plain=whole),
    Habit("shapes read and checked in forward", reads_shapes, NO_STACK, plain=whole),
    Habit("no_grad within forward", without_gradient, NO_STACK, plain=whole),
    Habit("an autograd function within forward", own_function, plain=whole),
    Habit("the MNIST example", mnist, plain=whole),
    Habit("the MNIST example with dropout", mnist_with_dropout, plain=None),
    Habit("a U-Net with functions", unet, NO_STACK, plain=whole, methods=[m for m in METHODS if m != "dgl"]),
]
