"""The instructions of a plan: what a stage can do, and how each is written.

| token     | meaning                                                                  |
| --------- | ------------------------------------------------------------------------ |
| `F3@1`    | forward batch 3 with weights of version 1                                |
| `R3@3`    | redo that forward on the stored input, now with version 3                |
| `B3@1`    | backward of batch 3, the derivative taken at version 1                   |
| `U3@3`    | update number 3, applied to version 3 (and so making version 4)          |
| `S3@3`    | fit number 3 of the predictor of gradients, to what has come for batch 3 |
| `a3>` `>a3` | send / receive the activations of batch 3 (to / from the neighbours)   |
| `g3>` `>g3` | send / receive the gradient of batch 3 with respect to the activations |
| `d3>` `>d3` | the directional derivative of batch 3, going from the last stage to the first |
| `e3>` `>e3` | the error of batch 3 at the output, going from the last stage to the first  |
| `t3>` `>t3` | pass the turn: batch 3 has been forwarded by every later stage         |
| `n3>` `>n3` | gradient norms of this stage and all later ones, going to stage 0      |
| `c3>` `>c3` | the clipping coefficient made from them, going to the last stage       |
| `r3>` `>r3` | this replica's share of update 3, going to the stage's other replicas / theirs |

A micro-batch follows its batch after a dot: `F3.1@1`.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple


class Op(Enum):
    """What a stage can do; the value is the text around the batch number."""

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    UPDATE = "U"
    FIT = "S"
    SEND_ACTIVATION = "a>"
    RECEIVE_ACTIVATION = ">a"
    SEND_GRADIENT = "g>"
    RECEIVE_GRADIENT = ">g"
    SEND_DERIVATIVE = "d>"
    RECEIVE_DERIVATIVE = ">d"
    SEND_ERROR = "e>"
    RECEIVE_ERROR = ">e"
    SEND_TURN = "t>"
    RECEIVE_TURN = ">t"
    SEND_NORMS = "n>"
    RECEIVE_NORMS = ">n"
    SEND_CLIP = "c>"
    RECEIVE_CLIP = ">c"
    SEND_SHARE = "r>"
    RECEIVE_SHARES = ">r"

    # Enum members are compared by identity, so that looking an action up costs no hashing of strings.
    __hash__ = object.__hash__

    @property
    def is_send(self) -> bool:
        """Whether this op puts a message into a channel."""
        return self.value.endswith(">")

    @property
    def is_receive(self) -> bool:
        """Whether this op takes a message out of a channel."""
        return self.value.startswith(">")

    @property
    def is_compute(self) -> bool:
        """Whether this op is work rather than a message."""
        return ">" not in self.value

    @property
    def channel(self) -> str:
        """The letter of the channel a message travels on: `a`, `g`, `d`, `e`, `t`, `n`, `c` or `r`."""
        return self.value.strip(">")


# The way each kind of message travels: +1 towards the last stage, -1 towards the first, 0 to the same stage elsewhere.
DIRECTION = {"a": +1, "g": -1, "d": -1, "e": -1, "t": -1, "n": -1, "c": +1, "r": 0}


class Action(NamedTuple):
    """One instruction of one stage.

    Example:
        >>> str(Action(Op.FORWARD, batch=3, version=1)), str(Action(Op.SEND_ACTIVATION, batch=3, micro=1))
        ('F3@1', 'a3.1>')
        >>> Action.parse("B3.0@1")
        Action(op=<Op.BACKWARD: 'B'>, batch=3, version=1, micro=0)
    """

    op: Op
    batch: int
    version: int | None = None
    micro: int | None = None

    def __str__(self) -> str:
        number = f"{self.batch}" if self.micro is None else f"{self.batch}.{self.micro}"
        if self.op.is_compute:
            return f"{self.op.value}{number}@{self.version}"
        return f"{self.op.channel}{number}>" if self.op.is_send else f"{self.op.value}{number}"

    @classmethod
    def parse(cls, token: str) -> Action:
        """The action a token stands for; raises `ValueError` for anything else."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(f"cannot read the action {token!r}: write for instance F3@1, B3@1, U3@3, a3> or >g3")
        before, letter, batch, micro, version, after = match.groups()
        compute = letter in "FRBUS"
        if compute != (version is not None) or compute == bool(before or after) or (before and after):
            raise ValueError(
                f"cannot read the action {token!r}: F, R, B, U, S take a version (F3@1), messages an arrow (a3> or >a3)"
            )
        op = Op(f"{before or ''}{letter}{after or ''}")
        return cls(op, int(batch), None if version is None else int(version), None if micro is None else int(micro))


_TOKEN = re.compile(r"(>)?([FRBUSagdetncr])(\d+)(?:\.(\d+))?(?:@(\d+))?(>)?")
