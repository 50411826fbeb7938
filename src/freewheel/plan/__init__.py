"""Plans: what each stage does, in order, as data that is built, checked, drawn and read back."""

from freewheel.plan._actions import DIRECTION, Action, Op
from freewheel.plan._check import PlanError
from freewheel.plan._clock import capacity, channel_of
from freewheel.plan._cut import in_flight, rest
from freewheel.plan._draw import parse
from freewheel.plan._picture import save_picture
from freewheel.plan._plan import Memory, Plan, Versions
from freewheel.plan._schedule import CREDITS, ORDERS, WEIGHTS, Credit, Order, Schedule, Weights
from freewheel.plan._streams import stream

__all__ = [
    "CREDITS",
    "DIRECTION",
    "ORDERS",
    "WEIGHTS",
    "Action",
    "Credit",
    "Memory",
    "Op",
    "Order",
    "Plan",
    "PlanError",
    "Schedule",
    "Versions",
    "Weights",
    "capacity",
    "channel_of",
    "in_flight",
    "parse",
    "rest",
    "save_picture",
    "stream",
]
