"""Fixed random feedback: what is sent back, the weights it goes through, and layers that pass gradients on so."""

from freewheel.feedback._config import SIGNALS, Feedback, Signal
from freewheel.feedback._layers import Layer, cut_off, padding_of, passing_back
from freewheel.feedback._weights import FeedbackWeights

__all__ = [
    "SIGNALS",
    "Feedback",
    "FeedbackWeights",
    "Layer",
    "Signal",
    "cut_off",
    "padding_of",
    "passing_back",
]
