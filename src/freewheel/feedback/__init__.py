"""Fixed random feedback: the weights, and hooks on layers."""

from freewheel.feedback._hooks import Layer, detached_inputs, feedback_backward
from freewheel.feedback._options import FeedbackOptions
from freewheel.feedback._weights import FeedbackWeights

__all__ = ["FeedbackOptions", "FeedbackWeights", "Layer", "detached_inputs", "feedback_backward"]
