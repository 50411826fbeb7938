"""Plans: the ordered actions of each stage, as data that is built, checked, drawn and parsed."""

from freewheel.plan._actions import ACTIVATION, CLIP, GRADIENT, NORMS, SHARE, TURN, Action, Message, Op, Unit
from freewheel.plan._check import PlanError, StageRules
from freewheel.plan._clock import capacity, routes
from freewheel.plan._credit import CREDITS, PlanCredit
from freewheel.plan._cut import in_flight, rest
from freewheel.plan._draw import parse
from freewheel.plan._picture import save_picture
from freewheel.plan._plan import Memory, Plan, Versions
from freewheel.plan._schedule import ORDERS, WEIGHTS, Order, Schedule, WeightPolicy
from freewheel.plan._streams import delayed, flushed, followed_up, forward_only, stream

__all__ = [
    "ACTIVATION",
    "CLIP",
    "CREDITS",
    "GRADIENT",
    "NORMS",
    "ORDERS",
    "SHARE",
    "TURN",
    "WEIGHTS",
    "Action",
    "Memory",
    "Message",
    "Op",
    "Order",
    "Plan",
    "PlanCredit",
    "PlanError",
    "Schedule",
    "StageRules",
    "Unit",
    "Versions",
    "WeightPolicy",
    "capacity",
    "delayed",
    "flushed",
    "followed_up",
    "forward_only",
    "in_flight",
    "parse",
    "rest",
    "routes",
    "save_picture",
    "stream",
]
