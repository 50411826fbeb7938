"""Fixed random feedback: the weights, and hooks on layers."""

from freewheel.feedback._hooks import (
    Layer as Layer,
    detached_inputs as detached_inputs,
    feedback_backward as feedback_backward,
)
from freewheel.feedback._options import FeedbackOptions as FeedbackOptions
from freewheel.feedback._weights import FeedbackWeights as FeedbackWeights
