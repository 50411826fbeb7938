"""Habits of writing modules: what happens inside a stage, in its forward and its backward."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

from habits._habit import FEEDBACK, FORWARD, METHODS, RACES, Case, Habit, refuse, seeded, vectors

NOT_A_STACK = "is not a plain stack of layers"
NO_ATTENTION = "is a MultiheadAttention: feedback supports"


class Attention(nn.Module):
    """Causal self-attention with the fused function, as GPTs write it."""

    def __init__(self, dropout: float = 0.0, mask: Tensor | None = None) -> None:
        super().__init__()
        self.qkv, self.dropout, self.mask = nn.Linear(8, 24), dropout, mask

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).split(8, dim=-1))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, self.mask, dropout, is_causal=self.mask is None)
        return x + y.transpose(1, 2).flatten(-2)


class ByHand(Attention):
    """The same, without the fused function."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).split(8, dim=-1))
        future = torch.ones(x.shape[1], x.shape[1]).triu(1).bool()
        scores = (q @ k.transpose(-2, -1) / math.sqrt(4)).masked_fill(future, -math.inf)
        return x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)


class SelfAttention(nn.MultiheadAttention):
    """Self-attention with the layer of the library, and a mask that leaves one step nothing to look at."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x + super().forward(x, x, x, attn_mask=lonely(), need_weights=False)[0]


class Mean(nn.Module):
    """The mean over the steps."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def lonely() -> Tensor:
    """A mask of which one row is -inf."""
    return torch.zeros(4, 4).index_fill(0, torch.tensor(2), -math.inf)


def encoder_layer(dropout: float) -> nn.Module:
    return nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)


def between(make: Any, *args: Any) -> Case:
    """Three stages of sequences, with a module of the habit in the first two."""
    stages = seeded(
        lambda: nn.Sequential(nn.Linear(6, 8), make(*args)),
        lambda: nn.Sequential(nn.Linear(8, 8), make(*args)),
        lambda: nn.Sequential(Mean(), nn.Linear(8, 3)),
    )
    return Case(stages, sequences())


def sequences() -> list[tuple[Tensor, Tensor]]:
    """Batches of sequences of four steps."""
    return [(x.unflatten(1, (4, 6)), y) for x, y in vectors(width=24)]


def attention() -> Case:
    return between(Attention)


def attention_by_hand() -> Case:
    return between(ByHand)


def attention_with_dropout() -> Case:
    return between(Attention, 0.3)


def attention_fully_masked() -> Case:
    return between(Attention, 0.0, lonely())


def multihead_attention_fully_masked() -> Case:
    return between(lambda: SelfAttention(8, 2, batch_first=True))


def transformer() -> Case:
    return between(encoder_layer, 0.0)


def transformer_with_dropout() -> Case:
    return between(encoder_layer, 0.2)


class Later(nn.Module):
    """Dropout that begins with the fourth batch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return F.dropout(x, 0.5) if self.calls > 3 else x


class Depth(nn.Module):
    """Stochastic depth: a block that is skipped at random, by a number drawn in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        keep = torch.rand(len(x), 1) < 0.5
        return x + keep * self.layer(x)


class Noise(nn.Module):
    """Gaussian noise on the activations."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.1 * torch.randn_like(x)


class Gumbel(nn.Module):
    """A sample of classes through which gradients pass."""

    def forward(self, x: Tensor) -> Tensor:
        return F.gumbel_softmax(x, hard=True) + x


def in_the_middle(make: Any, *args: Any) -> Case:
    """Three stages of vectors, with a module of the habit in each."""
    stages = seeded(
        lambda: nn.Sequential(nn.Linear(6, 8), make(*args), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(8, 8), make(*args), nn.Tanh()),
        lambda: nn.Sequential(make(*args), nn.Linear(8, 3)),
    )
    return Case(stages, vectors())


def dropout_that_begins_later() -> Case:
    return in_the_middle(Later)


def stochastic_depth() -> Case:
    return in_the_middle(Depth)


def noise() -> Case:
    return in_the_middle(Noise)


def gumbel_softmax() -> Case:
    return in_the_middle(Gumbel)


def rrelu() -> Case:
    return in_the_middle(nn.RReLU)


def alpha_dropout() -> Case:
    return in_the_middle(nn.AlphaDropout)


class Checkpointed(nn.Module):
    """A block that is run again in the backward, to save memory."""

    def __init__(self, reentrant: bool | None, dropout: float) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 8))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) if self.reentrant is None else checkpoint(self.block, x, use_reentrant=self.reentrant)


class Unregistered(nn.Module):
    """A layer whose weights are also in a list and in a dict, and used from there."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.layer, self.plain = nn.Linear(8, 8), plain
        self.weights, self.biases = [self.layer.weight], {"bias": self.layer.bias}

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if self.plain else F.linear(x, self.weights[0], self.biases["bias"])


class Closure(nn.Module):
    """A layer whose weight is also in a tuple, and used from there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.weights = (self.layer.weight,)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, *self.weights, self.layer.bias)


class Recurrent(nn.LSTM):
    """A recurrent layer, whose weights are also in a list of its own."""

    def forward(self, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return super().forward(x)[0]


def checkpointed() -> Case:
    return in_the_middle(Checkpointed, False, 0.3)


def checkpointed_reentrant() -> Case:
    return in_the_middle(Checkpointed, True, 0.3)


def not_checkpointed() -> Case:
    return in_the_middle(Checkpointed, None, 0.3)


def checkpointed_without_dropout() -> Case:
    return in_the_middle(Checkpointed, False, 0.0)


def parameters_in_lists() -> Case:
    return in_the_middle(Unregistered, False)


def parameters_in_lists_not_used() -> Case:
    return in_the_middle(Unregistered, True)


def parameters_in_tuples() -> Case:
    return in_the_middle(Closure)


def lstm() -> Case:
    return between(lambda: Recurrent(8, 8, batch_first=True))


def mask(gradient: Tensor) -> Tensor:
    """A gradient of which a half is held still."""
    return gradient * (torch.arange(gradient.numel()) % 2).view(gradient.shape)


class Masked(nn.Linear):
    """A layer with hooks on its gradient."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.weight.register_hook(mask)
        self.weight.register_hook(partial(torch.mul, 0.5))


class MaskedForward(nn.Linear):
    """The same, by what the forward makes of its weight."""

    def forward(self, x: Tensor) -> Tensor:
        part = 0.5 * mask(torch.ones_like(self.weight))
        return F.linear(x, part * self.weight + (1 - part) * self.weight.detach(), self.bias)


def masked() -> Case:
    return in_the_middle(Masked)


def masked_by_the_forward() -> Case:
    return in_the_middle(MaskedForward, 8, 8)


def step_in_backward() -> Case:
    case = in_the_middle(nn.Linear, 8, 8)
    case.stages[0][1].weight.register_post_accumulate_grad_hook(nn.Parameter.zero_)  # pyright: ignore
    return case


class HookedModules(nn.Module):
    """A layer with hooks on modules and on an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.layer.register_forward_pre_hook(doubled_input)
        self.layer.register_forward_hook(halved_output)
        self.layer.register_full_backward_hook(clipped)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        if y.requires_grad:
            y.register_hook(twice)
        return y


def doubled_input(module: nn.Module, args: tuple[Tensor]) -> Tensor:
    return 2 * args[0]


def halved_output(module: nn.Module, args: Any, out: Tensor) -> Tensor:
    return 0.5 * out


def clipped(module: nn.Module, inputs: tuple[Tensor | None, ...], outputs: Any) -> tuple[Tensor | None, ...]:
    return tuple(None if g is None else g.clamp(-0.01, 0.01) for g in inputs)


def twice(gradient: Tensor) -> Tensor:
    return 2 * gradient


def hooked_modules() -> Case:
    return in_the_middle(HookedModules)


class Weighted(nn.Module):
    """A loss with weights, which must be trained, and a mean that it keeps."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        loss = F.cross_entropy(out * self.temperature, target)
        self.seen += 0.1 * (loss.detach() - self.seen)
        return loss


def loss_with_parameters() -> Case:
    case = in_the_middle(nn.Identity)
    case.loss = Weighted()
    return case


def loss_with_buffers() -> Case:
    case = in_the_middle(nn.Identity)
    case.loss = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 1.0, 2.0]), label_smoothing=0.1)
    return case


def detached(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out, target).detach()


@torch.no_grad()
def without_gradients(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out, target)


def loss_detached() -> Case:
    return replace(in_the_middle(nn.Identity), loss=detached)


def loss_under_no_grad() -> Case:
    return replace(in_the_middle(nn.Identity), loss=without_gradients)


class Tokens(nn.Module):
    """The embeddings of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(11, 8), nn.Embedding(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens(x) + self.positions(torch.arange(x.shape[1]))


def next_token(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(out.reshape(-1, 11), target.reshape(-1))


def language_model() -> Case:
    stages = seeded(
        lambda: nn.Sequential(Tokens(), Attention()),
        lambda: nn.Sequential(Attention(), nn.LayerNorm(8)),
        lambda: nn.Sequential(Attention(), nn.Linear(8, 11, bias=False)),
    )
    g = torch.Generator().manual_seed(1)
    texts = [torch.randint(11, (8, 5), generator=g) for _ in range(6)]
    return Case(stages, [(text[:, :-1], text[:, 1:]) for text in texts], next_token)


def segmentation() -> Case:
    stages = seeded(
        lambda: nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU()),
        lambda: nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU()),
        lambda: nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(6, 4, 1)),
    )
    g = torch.Generator().manual_seed(1)
    images = [torch.randn(8, 3, 4, 4, generator=g) for _ in range(6)]
    return Case(stages, [(x, (x.argmax(1) + (x[:, 0] > 1)).long()) for x in images])


def regression() -> Case:
    stages = seeded(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(8, 1), nn.Flatten(0)),
    )
    return Case(stages, [(x, x.sum(1)) for x, _ in vectors()], F.mse_loss)


class ByName(nn.Module):
    """A layer that is given its input by name."""

    def __init__(self, named: bool) -> None:
        super().__init__()
        self.layer, self.named = nn.Linear(8, 8), named

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(input=x) if self.named else self.layer(x)


class HeadFirst(nn.Module):
    """A last stage that registers its last layer first."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(8, 3), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).tanh())


def layers_by_name() -> Case:
    return in_the_middle(ByName, True)


def layers_by_position() -> Case:
    return in_the_middle(ByName, False)


def layers_out_of_order() -> Case:
    return Case(seeded(lambda: nn.Linear(6, 8), nn.Tanh, HeadFirst), vectors())


def compiled() -> Case:
    case = in_the_middle(nn.Dropout, 0.3)
    return replace(case, stages=[torch.compile(stage, backend="eager") for stage in case.stages])


def not_compiled() -> Case:
    return in_the_middle(nn.Dropout, 0.3)


class Square(torch.autograd.Function):
    """A square with a derivative written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradients[0]


class Squared(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Square.apply(x)  # pyright: ignore[reportReturnType]


class Penalized(nn.Module):
    """A layer that uses its own gradient by the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x if x.requires_grad else x.detach().requires_grad_()
            y = self.layer(x).tanh()
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y + gradient


class Partly(nn.Module):
    """Parts without gradients: frozen, unused, detached and under no_grad; and one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused, self.watched = (nn.Linear(8, 8) for _ in range(3))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            mean = self.watched(x).mean()
        return self.layer(self.layer(self.frozen(x)).tanh()) - mean + 0.1 * x.detach()


class Fourier(nn.Module):
    """A layer with complex weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(5, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8)


class Centered(nn.Module):
    """A layer that keeps a mean in a buffer, changed in place or replaced, and uses it."""

    mean: Tensor

    def __init__(self, replaces: bool) -> None:
        super().__init__()
        self.layer, self.replaces = nn.Linear(8, 8), replaces
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        new = y.detach().mean(0)
        if self.replaces:
            self.mean = 0.9 * self.mean + 0.1 * new
        else:
            self.mean.mul_(0.9).add_(new, alpha=0.1)
        return y - self.mean


class InPlace(nn.Module):
    """A layer whose output is changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        y += 1
        y[:, 0] = 0.5
        return F.relu_(y)


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


def parametrized() -> nn.Module:
    return nn.Sequential(
        parametrize.register_parametrization(nn.Linear(8, 8), "weight", Symmetric()),
        parametrizations.weight_norm(nn.Linear(8, 8)),
        parametrizations.spectral_norm(nn.Linear(8, 8)),
    )


def custom_functions() -> Case:
    return in_the_middle(Squared)


def gradients_in_forward() -> Case:
    return in_the_middle(Penalized)


def parts_without_gradients() -> Case:
    return in_the_middle(Partly)


def complex_weights() -> Case:
    return in_the_middle(Fourier)


def buffers_changed() -> Case:
    return in_the_middle(Centered, False)


def buffers_replaced() -> Case:
    return in_the_middle(Centered, True)


def activations_in_place() -> Case:
    return in_the_middle(InPlace)


def parametrizations_of_weights() -> Case:
    return in_the_middle(parametrized)


def cumulative_batch_norm() -> Case:
    return in_the_middle(partial(nn.BatchNorm1d, 8, momentum=None))


def double_precision() -> Case:
    case = in_the_middle(nn.LayerNorm, 8)
    return replace(case, stages=[s.double() for s in case.stages], batches=[(x.double(), y) for x, y in case.batches])


class Bag(nn.Module):
    """Embeddings with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.bag = nn.Embedding(11, 8, sparse=True), nn.EmbeddingBag(11, 8, mode="sum", sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(x).mean(1) + self.bag(x)


def sparse_gradients() -> Case:
    stages = seeded(Bag, lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh()), lambda: nn.Linear(8, 3))
    g = torch.Generator().manual_seed(1)
    texts = [(torch.randint(11, (8, 5), generator=g), torch.randint(3, (8,), generator=g)) for _ in range(6)]
    return Case(stages, texts, optimizer=partial(torch.optim.SGD, lr=0.1))


def adam_of_all_kinds() -> Case:
    adam = partial(torch.optim.AdamW, lr=0.01, amsgrad=True, maximize=False, weight_decay=0.1, fused=True)
    return replace(in_the_middle(nn.LayerNorm, 8), optimizer=adam)


def no_decay_of_vectors(parameters: Any) -> torch.optim.Optimizer:
    matrices, vectors = ([p for p in parameters if (p.dim() > 1) is wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0, "lr": 0.02}]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=0.05)


def parameter_groups() -> Case:
    return replace(in_the_middle(nn.LayerNorm, 8), optimizer=no_decay_of_vectors)


GONE = "under weights='current' the weights of its forward are gone"
REDONE = "is not the one found in plain PyTorch"
HOOKED = "module '1.layer' of stages.0. has a backward hook"
HABITS = [
    Habit(
        "activation checkpointing",
        checkpointed,
        refuse(GONE, "pipemare"),
        twin=not_checkpointed,
        plain=None,
        methods=[m for m in METHODS if m not in RACES],
    ),
    Habit(
        "reentrant activation checkpointing",
        checkpointed_reentrant,
        refuse(GONE, "pipemare")
        | refuse("CheckpointFunction has no forward", *FORWARD)
        | refuse("use_reentrant=True, which learns nothing where", "dfa"),
        twin=not_checkpointed,
        plain=None,
        methods=[m for m in METHODS if m not in (*RACES, "dgl")],
    ),
    Habit(
        "activation checkpointing without dropout",
        checkpointed_without_dropout,
        refuse(GONE, "pipemare"),
    ),
    Habit(
        "parameters also in lists and dicts",
        parameters_in_lists,
        refuse(NOT_A_STACK, "dfa"),
        twin=parameters_in_lists_not_used,
    ),
    Habit(
        "parameters also in tuples",
        parameters_in_tuples,
        refuse("stages.0. uses its parameter '1.layer.weight' through a variable", "pipedream", "fa")
        | refuse(NOT_A_STACK, "dfa"),
    ),
    Habit(
        "gradient masks by hooks on parameters",
        masked,
        refuse("parameter '1.weight' of stages.0. has a gradient hook", *FORWARD, *RACES),
        twin=masked_by_the_forward,
    ),
    Habit("post-accumulate-grad hooks", step_in_backward, refuse("parameter '1.weight' of stages.0. has a post-acc")),
    Habit(
        "hooks on modules and activations", hooked_modules, refuse(HOOKED, *FORWARD, "fa") | refuse(NOT_A_STACK, "dfa")
    ),
    Habit("a loss with parameters", loss_with_parameters, refuse("loss has parameters", "dgl", "dfa")),
    Habit("a loss with buffers", loss_with_buffers, refuse("loss of a batch is not the mean", "gpipe")),
    Habit("a detached loss", loss_detached, refuse("loss returned a tensor without a graph")),
    Habit("a loss under no_grad", loss_under_no_grad, refuse("loss returned a tensor without a graph")),
    Habit("a language model", language_model, refuse(NOT_A_STACK, "dfa")),
    Habit(
        "segmentation of images",
        segmentation,
        refuse("loss does not take an output of shape .*, that of a head at stage 0", "dgl"),
    ),
    Habit("regression of one number", regression),
    Habit("layers called by name", layers_by_name, twin=layers_by_position),
    Habit("layers registered out of order", layers_out_of_order),
    Habit(
        "compiled stages",
        compiled,
        refuse("is compiled by torch.compile", "pipemare", *FORWARD, "fa", *RACES) | refuse(NOT_A_STACK, "dfa"),
        twin=not_compiled,
        plain=None,
    ),
    Habit("autograd functions of one's own", custom_functions, refuse("Square has no forward derivative", *FORWARD)),
    Habit(
        "gradients within the forward",
        gradients_in_forward,
        refuse("bypasses the dual pass", *FORWARD) | refuse(NOT_A_STACK, "dfa"),
    ),
    Habit(
        "parts without gradients",
        parts_without_gradients,
        refuse(NOT_A_STACK, "dfa"),
        still=("unused", "watched"),
    ),
    Habit("complex weights", complex_weights, refuse("is a Fourier: feedback supports", *FEEDBACK)),
    Habit("buffers changed in place", buffers_changed, refuse(REDONE, "fr", "dsp") | refuse(NOT_A_STACK, "dfa")),
    Habit(
        "buffers replaced",
        buffers_replaced,
        refuse(REDONE, "fr", "dsp") | refuse(NOT_A_STACK, "dfa") | refuse("is replaced in forward", *RACES),
    ),
    Habit("activations changed in place", activations_in_place, refuse(NOT_A_STACK, "dfa")),
    Habit(
        "parametrizations",
        parametrizations_of_weights,
        refuse("is a ParametrizationList: feedback", *FEEDBACK) | refuse(REDONE, "fr", "dsp"),
        still=("original0",),
        processes=False,  # torch does not pickle them
    ),
    Habit("batch norm with a cumulative mean", cumulative_batch_norm, still=("0.bias", "1.weight")),
    Habit("double precision", double_precision),
    Habit(
        "sparse gradients",
        sparse_gradients,
        refuse("is a EmbeddingBag: feedback supports", *FEEDBACK) | refuse("_embedding_bag has no forward", *FORWARD),
    ),
    Habit("a fused optimizer", adam_of_all_kinds),
    Habit("parameter groups", parameter_groups),
    Habit("recurrent layers", lstm, refuse("is a Recurrent: feedback supports", *FEEDBACK)),
    # It counts its forwards, and these methods have two for each batch, or a copy for each worker.
    Habit(
        "dropout that begins later",
        dropout_that_begins_later,
        refuse("not the one found", "fr", "dsp") | refuse("changes with each forward", *RACES),
        plain=None,
    ),
    Habit("stochastic depth", stochastic_depth, refuse(NOT_A_STACK, "dfa"), plain=None),
    Habit("noise on activations", noise, plain=None),
    Habit("gumbel softmax", gumbel_softmax, plain=None),
    Habit("random slopes of a relu", rrelu, plain=None),
    Habit("alpha dropout", alpha_dropout, plain=None),
    Habit("fused attention", attention, refuse(NOT_A_STACK, "dfa"), twin=attention_by_hand),
    Habit("fused attention with dropout", attention_with_dropout, refuse(NOT_A_STACK, "dfa"), plain=None),
    Habit("fused attention of fully masked rows", attention_fully_masked, refuse(NOT_A_STACK, "dfa")),
    Habit(
        "multihead attention of fully masked rows",
        multihead_attention_fully_masked,
        refuse("is a SelfAttention: feedback supports", *FEEDBACK),
    ),
    Habit("transformer layers", transformer, refuse(NO_ATTENTION, *FEEDBACK)),
    Habit("transformer layers with dropout", transformer_with_dropout, refuse(NO_ATTENTION, *FEEDBACK), plain=None),
]
