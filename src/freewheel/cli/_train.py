"""`freewheel train`: train a network in stages, and say how it went."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from freewheel.cli._options import option_flag
from freewheel.cli._output import say
from freewheel.cli._ranks import follows, silenced
from freewheel.cli._resume import settings_of_run
from freewheel.cli._run import run, write
from freewheel.cli._settings import Settings
from freewheel.cli._transfer import DEFAULTS

INTERRUPTED = 130
DATA, NETWORK, RUN, STEP, OUT = "Data", "Network and stages", "Method and runtime", "Optimizer", "Output"
TRANSFER, CHECKPOINTS = "Transfer, by forward gradients", "Checkpoints"


def train(
    ctx: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="digits, digits-rows, mnist, fashion-mnist, cifar10, text, imdb or synthetic.",
            rich_help_panel=DATA,
        ),
    ] = "digits",
    data_root: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the files; digits needs none.", rich_help_panel=DATA),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Train on the first N images only.", rich_help_panel=DATA),
    ] = None,
    test_limit: Annotated[
        int | None,
        typer.Option(metavar="N", help="Score on the first N test images only.", rich_help_panel=DATA),
    ] = None,
    augment: Annotated[
        bool | None,
        typer.Option("--augment/--no-augment", help="Random crops and flips; on for cifar10.", rich_help_panel=DATA),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Length of a sequence; 64 characters of text, 200 words of imdb if not given.",
            rich_help_panel=DATA,
        ),
    ] = None,
    words: Annotated[
        int | None,
        typer.Option(metavar="N", help="Vocabulary of imdb; 20,000 if not given.", rich_help_panel=DATA),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Images in a batch; 64 if not given, 75 for imdb.", rich_help_panel=DATA),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Such as resnet-20; if not given, one that suits the data and the method.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    resize: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Enlarge images to NxN first, for networks made for large ones.", rich_help_panel=NETWORK
        ),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Width of rnn, gru and lstm; 32 if not given, 256 for imdb.", rich_help_panel=NETWORK
        ),
    ] = None,
    pretrained: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Begin with the weights of this state_dict.", rich_help_panel=NETWORK),
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option(
            "--stages",
            "-k",
            metavar="K",
            help="Number of stages; one a core, 2 to 4, if not given, or one a process of torchrun.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            metavar="BY",
            help="Balance the stages by time (measured; for forward gradients, forward) or by parameters.",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(metavar="LAYER", help="Begin a stage at this layer; may be repeated.", rich_help_panel=NETWORK),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="NAME", help="One of `freewheel methods`.", rich_help_panel=RUN)
    ] = "pipedream",
    option: Annotated[list[str] | None, option_flag(RUN)] = None,
    transfer: Annotated[
        bool,
        typer.Option(
            "--transfer", help="Train the classifier first, then a few layers more and more.", rich_help_panel=TRANSFER
        ),
    ] = False,
    transfer_layers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help=f"Names of those layers' parameters; may be repeated; '{DEFAULTS['layers']}' if not given.",
            rich_help_panel=TRANSFER,
        ),
    ] = None,
    transfer_warmup: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"Epochs of the classifier alone; {DEFAULTS['warmup']} if not given.",
            rich_help_panel=TRANSFER,
        ),
    ] = None,
    transfer_ramp: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"Epochs in which the scale of the layers grows; {DEFAULTS['ramp']} if not given.",
            rich_help_panel=TRANSFER,
        ),
    ] = None,
    transfer_peak: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help=f"Their scale from then on; {DEFAULTS['peak']} if not given.",
            rich_help_panel=TRANSFER,
        ),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="threads, processes, torchrun (if started by that), or simulate; all give the same weights, but for "
            "methods that race.",
            rich_help_panel=RUN,
        ),
    ] = None,
    replicas: Annotated[
        int,
        typer.Option(
            metavar="R",
            help="Copies of all stages that learn together, each from its part of every batch.",
            rich_help_panel=RUN,
        ),
    ] = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Intra-op threads of each stage; the cores shared out if not given.",
            rich_help_panel=RUN,
        ),
    ] = None,
    slack: Annotated[
        int,
        typer.Option(metavar="N", help="Extra length of the queues; never changes the result.", rich_help_panel=RUN),
    ] = 0,
    device: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="cpu, cuda, or several for the stages in turn: cuda:0,cuda:1.", rich_help_panel=RUN
        ),
    ] = "cpu",
    slow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STAGE:PROBABILITY:FACTOR",
            help="Slow a stage down at random, for study; may be repeated; never changes the result.",
            rich_help_panel=RUN,
        ),
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", help="Passes over the images.", rich_help_panel=STEP)] = 10,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="sgd, adam or adamw; if not given, sgd, or adam for forward gradients and imdb.",
            rich_help_panel=STEP,
        ),
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Step size; if not given, 0.05 for sgd, 0.001 else (forward gradients: 0.0001 and 0.003).",
            rich_help_panel=STEP,
        ),
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(metavar="X", help="Of sgd; 0.9 if not given.", rich_help_panel=STEP),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(metavar="X", help="0.0005 for sgd, 0.01 for adamw if not given.", rich_help_panel=STEP),
    ] = None,
    schedule: Annotated[
        str, typer.Option(metavar="NAME", help="cosine or constant step size.", rich_help_panel=STEP)
    ] = "cosine",
    clip: Annotated[
        float | None,
        typer.Option(metavar="X", help="Largest norm of a stage's gradient.", rich_help_panel=STEP),
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Forward in bfloat16.", rich_help_panel=STEP)] = False,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Of the weights and the order of images.", rich_help_panel=STEP)
    ] = 0,
    save_to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Save the running pipeline there, again and again.", rich_help_panel=CHECKPOINTS
        ),
    ] = None,
    save_every: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="After so many batches; after each epoch if not given.", rich_help_panel=CHECKPOINTS
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Go on from the last checkpoint there, to the same bits; takes no other settings.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare/--no-compare",
            help="Time plain PyTorch on one core, before and after.",
            rich_help_panel=OUT,
        ),
    ] = True,
    json: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all that was measured there.", rich_help_panel=OUT),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the trained weights there (a state_dict).", rich_help_panel=OUT),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print the closing lines alone.", rich_help_panel=OUT)
    ] = False,
) -> None:
    """Train a network in stages; with no options, on digits, in seconds."""
    given = {name: value for name, value in locals().items() if name != "ctx"}
    if resume is None:
        settings = Settings(**given)
    else:
        sources = {name: ctx.get_parameter_source(name) for name in given}
        typed = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
        settings = settings_of_run(resume, given, typed)
    if follows():
        run(silenced(settings))
        return
    outcome = run(settings)
    if not quiet:
        outcome.show_epochs()
    for line in chain(outcome.lines(), write(outcome)):
        say(line)
    if outcome.history.interrupted:
        raise typer.Exit(INTERRUPTED)
