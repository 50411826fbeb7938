"""The parameters that the graph of a loss reaches."""

from __future__ import annotations

from torch import Tensor

from freewheel.check._copies import Network
from freewheel.check._plain import MismatchError
from freewheel.credit import contents
from freewheel.plan import Schedule


def check_leaves(loss: Tensor, network: Network, schedule: Schedule) -> None:
    """Refuse a loss or a stage that reaches parameters past its module, through a closure or a global name.

    The copies' graph then holds parameters of the network itself. In the last stage, if it learns without delay, these
    are the weights that it trains.
    """
    names = network.names
    reached = {id(leaf) for leaf in contents([loss]).leaves} & set(names)
    last = {id(p) for p in network.stages[-1].parameters()} if not schedule.delays[-1] else set()
    foreign = [name for key, name in names.items() if key in reached - last]
    if foreign:
        raise MismatchError(
            f"the loss or a stage uses {foreign[0]!r} past its module, where no gradient can follow: use weight_decay "
            "of the optimizer in place of a penalty in the loss, and give a stage its weights as parameters"
        )
