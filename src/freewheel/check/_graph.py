"""The parameters that an autograd graph reaches."""

from __future__ import annotations

from torch import Tensor

from freewheel.check._copies import Network
from freewheel.check._plain import MismatchError
from freewheel.plan import Schedule


def check_leaves(loss: Tensor, network: Network, schedule: Schedule) -> None:
    """Refuse a loss or a stage that reaches parameters past its module, through a closure or a global name.

    The copies' graph then holds parameters of the network itself. In the last stage, if it learns without delay, these
    are the weights that it trains.
    """
    names = network.names
    reached = {id(leaf) for leaf in leaves_of(loss)} & set(names)
    last = {id(p) for p in network.stages[-1].parameters()} if not schedule.delays[-1] else set()
    foreign = [name for key, name in names.items() if key in reached - last]
    if foreign:
        raise MismatchError(
            f"the loss or a stage uses {foreign[0]!r} past its module, where no gradient can follow: use weight_decay "
            "of the optimizer in place of a penalty in the loss, and give a stage its weights as parameters"
        )


def leaves_of(tensor: Tensor) -> list[Tensor]:
    """Return the leaves of a tensor's graph that collect gradients.

    Example:
        >>> import torch
        >>> weight = torch.ones(2, requires_grad=True)
        >>> [leaf is weight for leaf in leaves_of((weight * 3).sum())]
        [True]
    """
    found, seen, pending = [], set(), [tensor.grad_fn]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # only of nodes that collect gradients
        if variable is not None:
            found.append(variable)
        pending += [parent for parent, _ in node.next_functions]
    return found
