"""What `freewheel train` chooses where nothing is asked for: network, batch size, optimizer and step size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freewheel._errors import one_of
from freewheel.cli._own import is_own
from freewheel.cli._traits import tangents_of, uses_feedback, uses_forward_gradients
from freewheel.methods import Pipeline
from freewheel.recipes import OPTIMIZERS

if TYPE_CHECKING:
    from freewheel.cli._train_options import TrainOptions

# The defaults of each optimizer; those of sgd were tried on digits with delays of up to three batches.
SETTINGS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4},
    "adam": {"lr": 1e-3, "weight_decay": 0.0},
    "adamw": {"lr": 1e-3, "weight_decay": 1e-2},
}
# Forward gradients are noisy. Step sizes tried on digits, by what the tangents perturb.
FORWARD_LR: dict[str, dict[str, float]] = {
    "weights": {"sgd": 1e-4, "adam": 3e-3, "adamw": 3e-3},
    "activations": {"sgd": 3e-4, "adam": 3e-4, "adamw": 3e-4},
}
# Feedback scales gradients differently. Step sizes that suit all four methods on digits.
FEEDBACK_LR: dict[str, float] = {"sgd": 0.02, "adam": 2e-3, "adamw": 2e-3}
SEQUENCES = ("digits-rows", "text", "imdb")
MODELS = {  # by data set
    "digits": "digits-cnn",
    "digits-rows": "rnn",
    "tiny-imagenet": "resnet-18",
    "imagenet": "resnet-18-imagenet",
    "folder": "resnet-18-imagenet",
    "text": "rnn",
    "imdb": "lstm",
}
RECURRENT = ("rnn", "gru", "lstm")
BATCH_SIZE = 64
IMDB_BATCH_SIZE, IMDB_HIDDEN = 75, 256  # of the Async LU paper (section 4.2, table 10)


def network_defaults(options: TrainOptions, pipeline: Pipeline) -> dict[str, Any]:
    """The network, its width and the batch size."""
    if options.pretrained is not None and options.model is None:
        raise ValueError(f"--pretrained {options.pretrained} without --model: say which network the weights are of")
    data = options.data.lower()
    # Deep networks learn slowly from forward gradients and from feedback, or not at all.
    shallow = (uses_forward_gradients(pipeline) or uses_feedback(pipeline)) and data not in SEQUENCES
    model = options.model or ("fcs-tanh" if shallow else MODELS.get(data, "resnet-20"))
    recurrent = model.lower() in RECURRENT
    if options.hidden is not None and not recurrent:
        raise ValueError(f"--hidden {options.hidden}: {model} has none, it is for {', '.join(RECURRENT)}")
    imdb = data == "imdb"
    batch_size = IMDB_BATCH_SIZE if imdb else BATCH_SIZE
    return {
        "model": model,
        "hidden": IMDB_HIDDEN if options.hidden is None and imdb and recurrent else options.hidden,
        "batch_size": batch_size if options.batch_size is None and not is_own(options.data) else options.batch_size,
    }


def optimizer_defaults(options: TrainOptions, pipeline: Pipeline) -> dict[str, Any]:
    """The optimizer and its settings; refuses settings that it does not have."""
    forward, feedback = uses_forward_gradients(pipeline), uses_feedback(pipeline)
    adaptive = forward or feedback or pipeline.credit.name == "synthetic" or options.data.lower() == "imdb"
    name = ("adam" if adaptive else "sgd") if options.optimizer is None else options.optimizer
    one_of("optimizer", name, OPTIMIZERS)
    takes = SETTINGS[name]
    if options.momentum is not None and "momentum" not in takes:
        raise ValueError(f"--momentum {options.momentum:g}: {name} has none, it is for sgd")
    chosen = dict(takes)
    if forward:
        chosen["lr"] = FORWARD_LR[tangents_of(pipeline).perturb][name]
    if feedback:
        chosen["lr"] = FEEDBACK_LR[name]
    given = {setting: getattr(options, setting) for setting in takes}
    out = {"optimizer": name, **chosen, **{key: value for key, value in given.items() if value is not None}}
    return {**out, "lr": None} if options.lr_grid else out
