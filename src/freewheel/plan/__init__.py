"""Plans: the ordered actions of each stage, as data that is built, checked, drawn and parsed."""

from freewheel.plan._actions import (
    ACTIVATION as ACTIVATION,
    CLIP as CLIP,
    GRADIENT as GRADIENT,
    NORMS as NORMS,
    SHARE as SHARE,
    TURN as TURN,
    Action as Action,
    Message as Message,
    Op as Op,
    Unit as Unit,
)
from freewheel.plan._cells import Cell as Cell
from freewheel.plan._check import PlanError as PlanError, StageRules as StageRules
from freewheel.plan._clock import capacity as capacity, routes as routes
from freewheel.plan._credit import CREDITS as CREDITS, PlanCredit as PlanCredit
from freewheel.plan._cut import in_flight as in_flight, rest as rest
from freewheel.plan._draw import parse as parse
from freewheel.plan._picture import save_picture as save_picture
from freewheel.plan._plan import Memory as Memory, Plan as Plan, Versions as Versions
from freewheel.plan._schedule import (
    ORDERS as ORDERS,
    OVER_TIME as OVER_TIME,
    WEIGHTS as WEIGHTS,
    Order as Order,
    OverTime as OverTime,
    Schedule as Schedule,
    WeightPolicy as WeightPolicy,
)
from freewheel.plan._streams import (
    delayed as delayed,
    flushed as flushed,
    followed_up as followed_up,
    forward_only as forward_only,
    stream as stream,
)
