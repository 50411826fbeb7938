"""Bad input: each case is answered by one clear line that names the argument and says what to do."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from rows import LOCAL, batches, network, same_bits, tensors

SGD = partial(torch.optim.SGD, lr=0.1)
SHARED = nn.Linear(6, 6)
STATS = nn.BatchNorm1d(6)


def make(stages=None, **options):
    defaults = {"method": "pipedream", "loss": F.cross_entropy, "optimizer": SGD, "threads": 1, "runtime": "simulate"}
    return fw.Trainer(network(2) if stages is None else stages, **{**defaults, **options})


def fit(loader=None, stages=None, epochs=1, fit_options=None, **options):
    return make(stages, **options).fit(batches(4) if loader is None else loader, epochs, **(fit_options or {}))


def one(x, y):
    return [(x, y)]


X, Y = torch.randn(4, 6), torch.tensor([0, 1, 2, 0])


class Nan(nn.Module):
    def forward(self, x):
        return x * float("nan")


class Opaque:
    def __iter__(self):
        return iter(())


def once():
    return iter(batches(3))


# what is done, what the line says
CASES = {
    # methods and plans
    "method unknown": (lambda: fw.method("pipdream"), "unknown method 'pipdream': did you mean 'pipedream'?"),
    "method number": (lambda: fw.method(3), "method=3: give a name such as 'fdg'"),
    "method option unknown": (lambda: fw.method("fdg", shrnk=0.5), "'shrnk': did you mean 'shrink'?"),
    "method option of a method": (lambda: fw.method(fw.FDG(), shrink=0.5), "need a method's name"),
    "fdg shrink 0": (lambda: fw.FDG(shrink=0), "shrink=0: the shrinking factor must be above 0 and at most 1"),
    "fdg shrink 2": (lambda: fw.FDG(shrink=2), "shrink=2: the shrinking factor must be above 0"),
    "fdg order": (lambda: fw.FDG(order="sideways"), "unknown order 'sideways'"),
    # forward gradients
    "distribution unknown": (lambda: fw.FGD(distribution="normal"), "unknown distribution 'normal'"),
    "perturb unknown": (
        lambda: fw.FGD(perturb="activation"),
        "unknown perturb 'activation': did you mean 'activations'?",
    ),
    "tangents 0": (lambda: fw.AsyncFGD(tangents=0), "tangents=0: give 1 or more"),
    "tangents half": (lambda: fw.AsyncFGD(tangents=0.5), "tangents=0.5"),
    "checkpoint word": (lambda: fw.FGD(checkpoint="no"), "checkpoint='no': give True or False"),
    "scale negative": (lambda: fw.FGD(scale=-1), "scale=-1: give a factor on tangents"),
    "scale word": (lambda: fw.FGD(scale="x"), "scale='x': give a factor on tangents"),
    "scale pattern": (
        lambda: fw.FGD(scale={"fc.*": -2}),
        "scale['fc.*']=-2: give a factor on tangents (0 freezes), a number, 0 or more",
    ),
    "scale key": (lambda: fw.FGD(scale={3: 1}), "key of scale=3: give patterns of parameter names"),
    "scale nan": (lambda: fw.FGD(scale=float("nan")), "scale=nan"),
    "scale by epoch": (lambda: fit(method=fw.FGD(scale=lambda epoch: "x")), "scale='x': give a factor on tangents"),
    "direction number": (lambda: fw.FGD(direction=3), "direction=3: give a function of (batch, stage, params)"),
    "direction twice": (lambda: fw.FGD(direction=dict, tangents=2), "tangents=2 with a direction"),
    "direction dp": (lambda: fw.FGDDP(direction=dict), "direction with 'fgd-dp'"),
    "direction list": (
        lambda: fit(method=fw.FGD(direction=lambda b, s, p: [])),
        "direction(batch, stage, params)=[]: it must return a dict of tangents by parameter name",
    ),
    "direction name": (
        lambda: fit(method=fw.FGD(direction=lambda b, s, p: {"w": X})),
        "direction returned 'w', which is not a trainable parameter of this stage",
    ),
    "direction shape": (
        lambda: fit(method=fw.FGD(direction=lambda b, s, p: dict.fromkeys(p, X))),
        "it must return a tensor of shape (12, 6)",
    ),
    "replicas 0": (lambda: fw.FGDDP(replicas=0), "replicas=0: give 1 or more"),
    "sync micro 0": (lambda: fw.FGDSync(micro=0), "micro=0: give 1 or more"),
    "steps 0": (lambda: fw.AsyncFGD(steps=0), "steps=0: give 1 or more"),
    "steps of rows": (lambda: fit(method=fw.FGD(steps=7)), "6 time steps"),
    "forward recompute": (
        lambda: fw.Pipeline(credit="forward", delays=(1, 0), weights="recompute"),
        "weights='recompute': credit='forward' has no backwards",
    ),
    "forward shrink": (
        lambda: fw.Pipeline(credit="forward", delays=(1, 0), corrections=[fw.Shrink(0.5)]),
        "Shrink has no meaning with credit='forward'",
    ),
    "chain in time": (lambda: fw.Pipeline(delays=(0, 0), along=1), "along=1: give 0, the samples"),
    "credit number": (lambda: fw.Pipeline(credit=3, delays=(0,)), "credit=3: give a name such as 'chain'"),
    "credit class": (lambda: fw.Pipeline(credit=fw.Forward, delays=(0,)), "give a name such as 'chain', or a credit"),
    "own distribution": (lambda: fw.FGD(distribution=3), "distribution=3: give a name such as 'gaussian'"),
    "recurrent linear": (lambda: fw.Recurrent(nn.Linear(2, 2)), "bias=True): give an nn.RNN"),
    "recurrent time first": (lambda: fw.Recurrent(nn.GRU(2, 2)), "batch_first=True"),
    "gpipe micro 0": (lambda: fw.GPipe(micro=0), "micro=0: give 1 or more"),
    "gpipe micro float": (lambda: fw.GPipe(micro=2.5), "micro=2.5: give a whole number"),
    "1f1b micro bool": (lambda: fw.OneFOneB(micro=True), "micro=True: give a whole number"),
    "dsp half given": (lambda: fw.DSP(p=(1, 0)), "give both, or neither and a delay"),
    "dsp both ways": (lambda: fw.DSP(p=(1, 0), m=(2, 0), delay=2), "give either the delay or p and m"),
    "dsp delay 1": (lambda: fw.DSP(delay=1), "delay=1: give 2 or more"),
    "dsp lengths": (lambda: fw.DSP(p=(1, 0), m=(4, 2, 0)), "they need the same length"),
    "dsp p of a middle stage": (
        lambda: fw.DSP(p=(1, 0, 0), m=(4, 2, 0)),
        "p_1 = 0 violates p_k > 0 for k < K-1",
    ),
    "dsp p of the last": (lambda: fw.DSP(p=(1, 1, 1), m=(4, 2, 0)), "p_2 = 1 violates p_(K-1) = 0"),
    "dsp m of the last": (lambda: fw.DSP(p=(1, 1, 0), m=(6, 4, 2)), "m_2 = 2 violates m_(K-1) = 0"),
    "dsp q": (
        lambda: fw.DSP(p=(1, 1, 0), m=(3, 2, 0)),
        "q_1 = m_0 - p_0 - m_1 = 3 - 1 - 2 = 0 violates q_k > 0",
    ),
    "dsp numbers": (lambda: fw.DSP(p=(1.5, 0), m=(2, 0)), "p[0]=1.5: give a whole number"),
    "dsp stages": (lambda: fw.plan("dsp", k=4, p=(1, 1, 0), m=(4, 2, 0)), "are for 3 stages, but there are 4"),
    "pipemare anneal": (lambda: fw.PipeMare(anneal=-1), "anneal=-1: give a number of updates"),
    "pipemare decay": (lambda: fw.PipeMare(decay=1.0), "decay=1.0: the decay must lie between 0 and 1"),
    "pipeline credit": (lambda: fw.Pipeline(credit="debit", delays=(0,)), "unknown credit 'debit'"),
    "pipeline order": (
        lambda: fw.Pipeline(order="back", delays=(0,)),
        "unknown order 'back': did you mean 'backward'?",
    ),
    "pipeline weights": (lambda: fw.Pipeline(weights="stach", delays=(0,)), "did you mean 'stash'?"),
    "pipeline delays number": (lambda: fw.Pipeline(delays=2), "delays=2: give one whole number for each stage"),
    "pipeline delays negative": (lambda: fw.Pipeline(delays=(1, -1)), "delays[1]=-1: give 0 or more"),
    "pipeline delays text": (lambda: fw.Pipeline(delays="10"), "delays[0]='1': give a whole number, 0 or more"),
    "pipeline delays increase": (lambda: fw.Pipeline(delays=(0, 1)), "stage 1 would learn later (1) than stage 0 (0)"),
    "pipeline delays count": (lambda: fw.plan(fw.Pipeline(delays=(1, 0)), k=3), "are for 2 stages, but there are 3"),
    "pipeline micro late": (lambda: fw.Pipeline(delays=(1, 0), micro=2), "micro-batches need zero delays"),
    "pipeline queues 0": (
        lambda: fw.Pipeline(delays=(1, 0), queues=[(0, 1)]),
        "every queue needs a length of 1 or more",
    ),
    "pipeline queues count": (
        lambda: fw.plan(fw.Pipeline(delays=(1, 0), queues=[(1, 1)] * 2), k=2),
        "2 stages have 1 boundaries",
    ),
    "pipeline corrections": (lambda: fw.Pipeline(delays=(1, 0), corrections=[0.5]), "corrections=0.5: give a list"),
    "compensation of recomputed": (
        lambda: fw.Pipeline(delays=(1, 0), weights="recompute", corrections=[fw.DelayCompensation()]),
        "DelayCompensation has no meaning with weights='recompute'",
    ),
    "discrepancy of stashed": (
        lambda: fw.Pipeline(delays=(1, 0), corrections=[fw.Discrepancy()]),
        "Discrepancy has no meaning with weights='stash': use weights='current'",
    ),
    "accumulate 0": (lambda: fw.Accumulate(0), "every=0: give 1 or more"),
    "compensation negative": (lambda: fw.DelayCompensation(-1), "strength=-1: the compensation needs"),
    "plan k 0": (lambda: fw.plan("fdg", k=0), "k=0: give 1 or more"),
    "plan k text": (lambda: fw.plan("fdg", k="3"), "k='3': give a whole number"),
    "plan batches 0": (lambda: fw.plan("fdg", k=2, batches=0), "batches=0: give 1 or more"),
    "plan slack": (lambda: fw.plan("fdg", k=2, slack=-1), "slack=-1: give 0 or more"),
    # stages
    "stages a model": (lambda: make(nn.Sequential(nn.Linear(6, 3))), "stages is one Sequential: cut it first"),
    "stages empty": (lambda: make([]), "stages is empty"),
    "stages none": (lambda: make(iter([])), "give a list of modules"),
    "stages of something": (lambda: make([nn.Linear(6, 3), "head"]), "stages[1] is a str, not a torch.nn.Module"),
    "stages share": (lambda: make([SHARED, nn.Sequential(SHARED)]), "stages 0 and 1 share a parameter or buffer"),
    "stages share buffers": (lambda: make([STATS, STATS]), "share a parameter or buffer"),
    "stages without values": (
        lambda: make([nn.Linear(6, 3, device="meta")]),
        "stages[0]: 'weight' is on the meta device and has no values",
    ),
    "stages scripted": (
        lambda: make([nn.Sequential(torch.jit.ScriptModule(), nn.Linear(6, 3))]),
        "stages[0]: 0 is compiled by torch.jit",
    ),
    "stages frozen": (lambda: make([nn.ReLU(), nn.Flatten()]), "there is nothing to train"),
    # trainer arguments
    "runtime": (lambda: make(runtime="thread"), "unknown runtime 'thread': did you mean 'threads'?"),
    "trainer method": (lambda: make(method="gpip"), "did you mean 'gpipe'?"),
    "no loss, no optimizer": (lambda: fw.Trainer([nn.Linear(6, 3)]), "Trainer without loss and optimizer: give both"),
    "option misspelt": (
        lambda: make(optimiser=None),
        "unknown option of Trainer: 'optimiser': did you mean 'optimizer'?",
    ),
    "clip nan": (lambda: make(clip=math.nan), "clip=nan: give the largest gradient norm, a number above 0"),
    "loss missing": (lambda: make(loss=None), "loss=None: give a function of the output and the target"),
    "metric": (lambda: make(metric="accuracy"), "metric='accuracy': give a function"),
    "optimizer made": (
        lambda: make(optimizer=SGD([nn.Parameter(torch.ones(1))])),
        "nesterov: False weight_decay: 0 ): give a factory",
    ),
    "optimizer name": (lambda: make(optimizer="sgd"), "optimizer='sgd': give a factory"),
    "optimizer gives none": (
        lambda: make(optimizer=lambda p: None),
        "optimizer(parameters of stage 0)=None: it must return",
    ),
    "optimizer lbfgs": (lambda: make(optimizer=torch.optim.LBFGS), "optimizer returned an LBFGS"),
    "optimizer dict short": (lambda: make(optimizer={0: SGD}), "optimizer has no factory for stage 1"),
    "optimizer dict long": (
        lambda: make(optimizer={0: SGD, 1: SGD, 2: SGD}),
        "a factory for stage 2, but the stages are 0 to 1",
    ),
    "scheduler": (lambda: make(scheduler=3), "scheduler=3: give a factory"),
    "seed": (lambda: make(seed=-1), "seed=-1: give 0 or more"),
    "seed none": (lambda: make(seed=None), "seed=None: give a whole number"),
    "threads 0": (lambda: make(threads=0), "threads=0: give 1 or more"),
    "slack": (lambda: make(slack=-2), "slack=-2: give 0 or more"),
    "slow list": (lambda: make(slow=[0.5]), "slow=[0.5]: give {stage: (probability, factor)}"),
    "slow stage": (lambda: make(slow={2: (0.5, 1)}), "slow has stage 2, but the stages are 0 to 1"),
    "slow name": (lambda: make(slow={"a": (0.5, 1)}), "slow has stage 'a', but the stages are 0 to 1"),
    "slow number": (lambda: make(slow={0: 0.5}), "slow[0]=0.5: give a probability and a factor"),
    "slow text": (lambda: make(slow={0: ("a", 1)}), "slow[0]='a': give a number"),
    "slow probability": (lambda: make(slow={0: (20, 1)}), "slow[0]: the probability is 20, give one from 0 to 1"),
    "slow factor": (lambda: make(slow={1: (0.5, -1)}), "slow[1]: the factor is -1, give 0 or more"),
    "slow nan": (lambda: make(slow={1: (float("nan"), 1)}), "slow[1]=nan: give a number"),
    "clip 0": (lambda: make(clip=0), "clip=0: give the largest gradient norm, a number above 0"),
    "clip text": (lambda: make(clip="1"), "clip='1': give the largest gradient norm"),
    "clip scope": (lambda: make(clip=1.0, clip_scope="all"), "clip_scope='all': give 'stage' or 'global'"),
    "clip scope alone": (lambda: make(clip_scope="global"), "clip_scope='global' without a clip"),
    "clip global late": (
        lambda: make(clip=1.0, clip_scope="global"),
        "at no time do the stages hold gradients of the same",
    ),
    "clip global collected": (
        lambda: make(method=fw.Pipeline(delays=(0, 0), corrections=[fw.Accumulate(2)]), clip=1.0, clip_scope="global"),
        "clip_scope='global' with Accumulate",
    ),
    "pipeline queues number": (lambda: fw.Pipeline(delays=(0, 0), queues=3), "queues=3: give a pair of lengths"),
    "pipeline corrections number": (lambda: fw.Pipeline(delays=(0, 0), corrections=3), "corrections=3: give a list"),
    "bp option": (lambda: fw.method("bp", micro=2), "'micro': (none is known)"),
    "autocast half": (lambda: make(autocast=torch.float16), "only torch.bfloat16 is supported"),
    "autocast current": (lambda: make(autocast=torch.bfloat16, method="pipemare"), "autocast with weights='current'"),
    "method stages": (lambda: make(method=fw.Pipeline(delays=(2, 1, 0))), "are for 3 stages, but there are 2"),
    # fit arguments
    "epochs 0": (lambda: fit(epochs=0), "epochs=0: give 1 or more"),
    "epochs float": (lambda: fit(epochs=1.5), "epochs=1.5: give a whole number"),
    "loader number": (lambda: fit(loader=7), "loader is a int: give something that can be iterated"),
    "loader empty": (lambda: fit(loader=[]), "loader gave no batches: it is empty"),
    "loader opaque": (lambda: fit(loader=Opaque()), "loader gave no batches: it is empty"),
    "loader once": (lambda: fit(loader=once(), epochs=2), "loader gave no batches a second time"),
    "loader a generator": (
        lambda: fit(loader=(batch for batch in batches(3)), epochs=2),
        "loader is a generator, which gives its batches once, but epochs=2",
    ),
    "fit without gradients": (torch.no_grad()(lambda: fit()), "fit within torch.no_grad()"),
    "fit in inference mode": (torch.inference_mode()(lambda: fit()), "fit within torch.no_grad() or torch.inference"),
    "fit under autocast": (
        torch.autocast("cpu", dtype=torch.bfloat16)(lambda: fit()),
        "fit within torch.autocast, which stages in other threads",
    ),
    "loader of tensors": (
        lambda: fit(loader=[X]),
        "loader gave a Tensor as batch 0: it must give pairs (input, target)",
    ),
    "loader of triples": (lambda: fit(loader=[(X, Y, Y)]), "loader gave a tuple of length 3 as batch 0"),
    "loader without tensors": (lambda: fit(loader=one("text", Y)), "an input without any tensor as batch 0 (str)"),
    "loader of nothing": (lambda: fit(loader=one(X[:0], Y[:0])), "loader gave an empty batch as batch 0"),
    "callback": (lambda: fit(fit_options={"callbacks": ["stop"]}), "callbacks holds 'stop'"),
    "validate empty": (lambda: fit(fit_options={"validate": []}), "loader gave no batches"),
    "evaluate empty": (lambda: make().evaluate([]), "loader gave no batches"),
    # what comes out of stages and losses
    "shape": (
        lambda: fit(one(torch.randn(4, 5), Y)),
        "stage 0 failed in the forward of batch 0: RuntimeError: mat1 and mat2",
    ),
    "dtype": (lambda: fit(one(X.double(), Y)), "stage 0 failed in the forward of batch 0: RuntimeError"),
    "classes": (
        lambda: fit(one(X, Y + 9)),
        "stage 1 failed in the forward of batch 0: IndexError: Target 9 is out of bounds",
    ),
    "sizes": (
        lambda: fit(one(X, Y[:3])),
        "stage 1 failed in the forward of batch 0: ValueError: Expected input batch_size",
    ),
    "loss vector": (
        lambda: fit(loss=lambda out, y: out.mean(1)),
        "loss returned a torch.float32 tensor of shape (9,): it must return a tensor without dimensions",
    ),
    "loss number": (
        lambda: fit(loss=lambda out, y: 1.0),
        "loss returned a float: it must return a tensor without dimensions",
    ),
    "loss nan": (lambda: fit(stages=[nn.Linear(6, 3), Nan()]), "the loss is nan: lower the learning rate"),
    "loss infinite": (lambda: fit(loss=lambda out, y: out.sum() / 0), "FloatingPointError: the loss is"),
    "data nan": (lambda: fit(one(X * float("inf"), Y)), "the loss is nan"),
    "micro of dict": (
        lambda: fit(one({"x": X, "n": torch.tensor(3)}, Y), method=fw.GPipe(micro=2)),
        "this input is not a tensor of 4 rows",
    ),
    "micro target": (
        lambda: fit(one(X, torch.tensor(1)), method=fw.GPipe(micro=2)),
        "this target is not a tensor of 4 rows",
    ),
    "single sample": (
        lambda: fit(one(X[:1], Y[:1])),
        "stage 0 failed in the forward of batch 0: ValueError: Expected more than 1",
    ),
}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.replace(" ", "-"))
def test_one_clear_line(case):
    act, line = CASES[case]
    with pytest.raises((ValueError, TypeError, fw.StageError)) as caught:
        act()
    message = str(caught.value)
    assert line in message
    assert "\n" not in message or isinstance(caught.value, fw.PlanError)


def test_there_are_enough_of_them():
    assert len(CASES) >= 80


def test_a_failed_run_leaves_the_trainer_usable():
    """What was learned before the error stays, and the next run starts with an empty pipeline."""
    for runtime in LOCAL:
        stages = network(2)
        made = make(stages, runtime=runtime, method="fdg")
        with pytest.raises(fw.StageError):
            made.fit([*batches(6), (torch.randn(4, 5), Y)])
        before = tensors(*stages)
        assert all(type(p) is nn.Parameter for s in stages for p in s.parameters())
        made.fit(batches(6))
        assert not same_bits(before, tensors(*stages))
