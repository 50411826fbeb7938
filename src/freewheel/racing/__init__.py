"""Shared-memory asynchronous SGD: workers that race on one set of weights, and the replay of their races.

These methods have no schedule, and so no plan: they are the one exception from the interpreter of plans.
"""

from freewheel.racing._runtimes import runtime_of

__all__ = ["runtime_of"]
