"""Fixed random feedback: the weights it goes through, and layers that pass gradients on through them."""

from freewheel.feedback._hooks import Layer, cut_off, padding_of, passing_back
from freewheel.feedback._options import FeedbackOptions
from freewheel.feedback._weights import FeedbackWeights

__all__ = ["FeedbackOptions", "FeedbackWeights", "Layer", "cut_off", "padding_of", "passing_back"]
