"""The options of `freewheel train`, each declared once: name, type, default, panel, metavar and help."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from freewheel.cli._options import declare, several
from freewheel.cli._transfer import DEFAULTS

DATA = Group("Data", sort_key=1)
NETWORK = Group("Network and stages", sort_key=2)
RUN = Group("Method and runtime", sort_key=3)
STEP = Group("Optimizer", sort_key=4)
SCHEDULE = Group("Step size schedule", sort_key=5)
TRANSFER = Group("Transfer, for forward gradients", sort_key=6)
RUNS = Group("Recipe, end and number of runs", sort_key=7)
CHECKPOINTS = Group("Config and checkpoints", sort_key=8)
OUT = Group("Output", sort_key=9)
TRACED = 2000  # batches, where no others are asked for


@Parameter(name="*")  # the fields are options of the command itself
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What can be typed after `freewheel train`, or written to the file of `--config`."""

    data: Annotated[
        str,
        declare(
            DATA,
            "NAME",
            "digits, digits-rows, mnist, fashion-mnist, cifar10, cifar100, tiny-imagenet, imagenet, folder (of "
            "images), text, imdb, synthetic, or FILE.py:FUNCTION.",
        ),
    ] = "digits"
    data_root: Annotated[Path | None, declare(DATA, "DIR", "Folder with the files; digits needs none.")] = None
    limit: Annotated[int | None, declare(DATA, "N", "Train on the first N samples only.")] = None
    test_limit: Annotated[int | None, declare(DATA, "N", "Test on the first N test samples only.")] = None
    validation: Annotated[
        float | None,
        declare(
            DATA,
            "X",
            "Share of the training samples that is held out and scored after every epoch; the test samples are then "
            "scored once, at the end. Default: 0.1 with --lr-grid, else 0.",
        ),
    ] = None
    augment: Annotated[
        bool | None, declare(DATA, "", "Random crops and flips; default: for CIFAR and the image folders only.")
    ] = None
    labels: Annotated[str | None, declare(DATA, "KIND", "fine or coarse labels of cifar100; default: fine.")] = None
    size: Annotated[
        int | None, declare(DATA, "N", "Make NxN images of the files of imagenet and folder; default: 224.")
    ] = None
    workers: Annotated[
        int | None, declare(DATA, "N", "Processes that read imagenet and folder; default: 4; they change no batch.")
    ] = None
    steps: Annotated[
        int | None, declare(DATA, "N", "Sequence length; default: 64 characters for text, 200 words for imdb.")
    ] = None
    words: Annotated[int | None, declare(DATA, "N", "Vocabulary size of imdb; default: 20,000.")] = None
    batch_size: Annotated[int | None, declare(DATA, "N", "Samples in a batch; default: 64, or 75 for imdb.")] = None

    model: Annotated[
        str | None,
        declare(NETWORK, "NAME", "Such as resnet-20, or FILE.py:FUNCTION; default: one that suits data and method."),
    ] = None
    loss: Annotated[
        str | None, declare(NETWORK, "FILE.py:FUNCTION", "The loss of output and target; default: cross entropy.")
    ] = None
    resize: Annotated[
        int | None, declare(NETWORK, "N", "Enlarge images to NxN first, for networks made for large ones.")
    ] = None
    hidden: Annotated[
        int | None, declare(NETWORK, "N", "Width of rnn, gru and lstm; default: 32, or 256 for imdb.")
    ] = None
    pretrained: Annotated[Path | None, declare(NETWORK, "FILE", "Start from the weights in this state_dict.")] = None
    stages: Annotated[
        int | None,
        declare(NETWORK, "K", "Number of stages; default: one per core, 2 to 4, or one per torchrun process.", "-k"),
    ] = None
    split: Annotated[
        str | None,
        declare(NETWORK, "BY", "Balance stages by measured time, forward (for forward gradients) or parameters."),
    ] = None
    at: Annotated[tuple[str, ...], declare(NETWORK, "LAYER", "Start a stage at this layer; repeatable.")] = ()
    balance: Annotated[
        tuple[int, ...],
        declare(NETWORK, "N...", "Layers in each stage, such as 9 8, instead of balancing.", consume_multiple=True),
    ] = ()

    method: Annotated[str, declare(RUN, "NAME", "One of `freewheel methods`.")] = "pipedream"
    option: Annotated[tuple[str, ...], declare(RUN, "NAME=VALUE", "An option of the method; repeatable.", "-o")] = ()
    runtime: Annotated[
        str | None,
        declare(
            RUN,
            "NAME",
            "threads, processes, graph (CUDA graphs, on one GPU), torchrun (if started by it), simulate, or auto, the "
            "default with --device cuda. All give the same weights, except for methods that race.",
        ),
    ] = None
    replicas: Annotated[
        int, declare(RUN, "R", "Copies of the pipeline that learn together, each from its shard of every batch.")
    ] = 1
    threads: Annotated[
        int | None, declare(RUN, "N", "Intra-op threads per stage; default: the cores divided by the stages.")
    ] = None
    slack: Annotated[int, declare(RUN, "N", "Extra length of the queues; never changes the result.")] = 0
    overlap: Annotated[
        bool,
        declare(
            RUN,
            "",
            "Methods that recompute, such as dsp: forward a batch on a second thread, beside the backward of an older "
            "one, where every stage has the cores for it; never changes the result.",
        ),
    ] = False
    check: Annotated[
        bool, declare(RUN, "", "Compare the stages with the whole network on a few samples before training.")
    ] = True
    compile: Annotated[
        bool | None,
        declare(RUN, "", "Compile every stage, once for each shape of its input; default: in long runs on one GPU."),
    ] = None
    device: Annotated[
        str, declare(RUN, "NAME", "cpu, cuda, or several that the stages take in turn: cuda:0,cuda:1.")
    ] = "cpu"
    slow: Annotated[
        tuple[str, ...],
        declare(RUN, "STAGE:P:FACTOR", "Slow a stage down with probability P; repeatable; never changes the result."),
    ] = ()

    epochs: Annotated[int, declare(STEP, "N", "Passes over the training data.")] = 10
    optimizer: Annotated[
        str | None, declare(STEP, "NAME", "sgd, adam or adamw; default: sgd, or adam for forward gradients and imdb.")
    ] = None
    lr: Annotated[
        float | None,
        declare(STEP, "X", "Step size; default: 0.05 for sgd, 0.001 otherwise (forward gradients: 0.0001 and 0.003)."),
    ] = None
    momentum: Annotated[float | None, declare(STEP, "X", "Momentum of sgd; default: 0.9.")] = None
    weight_decay: Annotated[
        float | None, declare(STEP, "X", "Default: 0.0005 for sgd, 0.01 for adamw, 0 for adam.")
    ] = None
    clip: Annotated[float | None, declare(STEP, "X", "Largest norm of a stage's gradient.")] = None
    bf16: Annotated[bool, declare(STEP, "", "Run forwards in bfloat16.")] = False
    seed: Annotated[int, declare(STEP, "N", "Seed of the weights and of the order of samples.")] = 0

    schedule: Annotated[
        str | None,
        declare(SCHEDULE, "NAME", "cosine, multistep or constant; default: cosine, or multistep with --milestones."),
    ] = None
    milestones: Annotated[
        tuple[int, ...],
        declare(
            SCHEDULE,
            "N...",
            "Epochs after which the step size is multiplied by --gamma.",
            consume_multiple=True,
            converter=several,
        ),
    ] = ()
    gamma: Annotated[float | None, declare(SCHEDULE, "X", "Its factor at a milestone; default: 0.1.")] = None
    t_max: Annotated[
        int | None, declare(SCHEDULE, "N", "Epochs of the cosine after the warm-up; default: all that are left.")
    ] = None
    warmup_epochs: Annotated[int | None, declare(SCHEDULE, "N", "Epochs of warm-up; default: 0.")] = None
    warmup_lr: Annotated[float | None, declare(SCHEDULE, "X", "Step size of the warm-up, or at its start.")] = None
    warmup: Annotated[
        str | None, declare(SCHEDULE, "NAME", "Whether it is constant, or linear up to --lr; default: constant.")
    ] = None
    schedule_every: Annotated[
        str | None,
        declare(
            SCHEDULE,
            "NAME",
            "Whether the step size changes every epoch or every batch; default: batch, or epoch with --milestones.",
        ),
    ] = None

    transfer: Annotated[
        bool, declare(TRANSFER, "", "Train the classifier first, then gradually a few layers with it.")
    ] = False
    transfer_layers: Annotated[
        tuple[str, ...],
        declare(TRANSFER, "PATTERN", f"Parameters of those layers; repeatable; default: '{DEFAULTS['layers']}'."),
    ] = ()
    transfer_warmup: Annotated[
        int | None, declare(TRANSFER, "N", f"Epochs of the classifier alone; default: {DEFAULTS['warmup']}.")
    ] = None
    transfer_ramp: Annotated[
        int | None, declare(TRANSFER, "N", f"Epochs in which the layers' scale grows; default: {DEFAULTS['ramp']}.")
    ] = None
    transfer_peak: Annotated[
        float | None, declare(TRANSFER, "X", f"Their scale from then on; default: {DEFAULTS['peak']}.")
    ] = None

    recipe: Annotated[
        str | None,
        declare(
            RUNS,
            "NAME",
            "Train as a paper does: fdg, dsp, async-lu, asyncfgd, or one of `freewheel recipes`. Other options "
            "override it.",
        ),
    ] = None
    early_stopping: Annotated[
        int | None,
        declare(RUNS, "N", "End after N epochs without a better accuracy (with --loss, without a smaller loss)."),
    ] = None
    target: Annotated[
        float | None, declare(RUNS, "X", "End at this accuracy, such as 0.9, and report the time to it.")
    ] = None
    lr_grid: Annotated[
        tuple[float, ...],
        declare(
            RUNS,
            "X...",
            "Train with each step size, and take the best on held-out samples.",
            consume_multiple=True,
            converter=several,
        ),
    ] = ()
    seeds: Annotated[
        int | None,
        declare(RUNS, "N", "Train with N seeds, from --seed on, and report median, mean and deviation; default: 1."),
    ] = None

    config: Annotated[
        Path | None, declare(CHECKPOINTS, "FILE", "Read options from this TOML file; typed ones override it.")
    ] = None
    write_config: Annotated[
        Path | None,
        declare(CHECKPOINTS, "FILE", "Write a config that repeats the run here, too."),
    ] = None
    checkpoints: Annotated[
        bool, declare(CHECKPOINTS, "", "Save checkpoints of the running pipeline in the folder of the run.")
    ] = True
    save_to: Annotated[Path | None, declare(CHECKPOINTS, "DIR", "Save them here instead, also under torchrun.")] = None
    save_every: Annotated[
        int | str | None,
        declare(
            CHECKPOINTS,
            "N",
            "Batches between checkpoints, or epoch; default: epoch, or as many epochs as take about half a minute. One "
            "is saved at the end, too.",
        ),
    ] = None
    resume: Annotated[
        Path | None,
        declare(
            CHECKPOINTS,
            "DIR",
            "Continue this run, or from the last checkpoint in this folder, bit for bit, with its own options.",
        ),
    ] = None

    run_dir: Annotated[
        Path | None,
        declare(OUT, "DIR", "Write the run into this folder; default: runs/METHOD-MODEL-DATA-N."),
    ] = None
    run: Annotated[
        bool,
        declare(OUT, "", "Write a folder for the run: its config, history, figures, checkpoints, weights and trace."),
    ] = True
    trace: Annotated[
        bool, declare(OUT, "", f"Record what each stage does, and when, in the first {TRACED:,} batches.", negative=())
    ] = False
    trace_batches: Annotated[
        str | None, declare(OUT, "A:B", "Record batches A to B-1 instead, counted from 0; implies --trace.")
    ] = None
    compare: Annotated[bool, declare(OUT, "", "Time plain PyTorch on one core before and after.")] = True
    json: Annotated[Path | None, declare(OUT, "FILE", "Write all measurements to this file.")] = None
    save: Annotated[Path | None, declare(OUT, "FILE", "Write the trained weights to this file (a state_dict).")] = None
    quiet: Annotated[bool, declare(OUT, "", "Print the closing lines only.", "-q", negative=())] = False
