"""The instructions of a plan and their notation.

| token       | meaning                                                                       |
| ----------- | ----------------------------------------------------------------------------- |
| `F3@1`      | forward batch 3 with weights of version 1                                     |
| `R3@3`      | recompute that forward on the stored input, now with version 3                |
| `B3@1`      | backward of batch 3, the derivative taken at version 1                        |
| `U3@3`      | update number 3, applied to version 3, which makes version 4                  |
| `a3>` `>a3` | send / receive the activations of batch 3 (to / from the neighbours)          |
| `g3>` `>g3` | send / receive the gradient of batch 3 with respect to the activations        |
| `t3>` `>t3` | pass the turn: batch 3 has been forwarded by every later stage                |
| `n3>` `>n3` | gradient norms of this stage and all later ones, towards stage 0              |
| `c3>` `>c3` | the resulting global norm, for clipping, towards the last stage               |
| `r3>` `>r3` | all-reduce of update 3: this replica's contribution / those of the others     |

A dot separates batch and micro-batch: `F3.1@1`. Computations have upper-case letters, messages lower-case ones. A
credit may add its own: see `freewheel.credit`.
"""

from __future__ import annotations

import re
from typing import ClassVar, NamedTuple

Unit = tuple[int, int]  # batch, micro-batch


class Op:
    """An operation of a stage, identified by the text around the batch number; one object per text.

    Args:
        value: An upper-case letter for a computation (`F`), a lower-case one with an arrow for a message (`a>`, `>a`).
        noun: Its name in errors.
        ticks: Whether it takes a column of the timeline.

    Example:
        >>> Op("F") is Op.FORWARD, Op(">g").channel, Op("g>").is_send
        (True, 'g', True)
    """

    __slots__ = ("channel", "is_compute", "is_receive", "is_send", "noun", "ticks", "value")
    _known: ClassVar[dict[str, Op]] = {}

    FORWARD: ClassVar[Op]
    RECOMPUTE: ClassVar[Op]
    BACKWARD: ClassVar[Op]
    UPDATE: ClassVar[Op]

    value: str
    noun: str
    ticks: bool
    channel: str  # the letter of the channel that a message travels on
    is_send: bool
    is_receive: bool
    is_compute: bool

    def __new__(cls, value: str, noun: str = "", ticks: bool = False) -> Op:
        if value in cls._known:
            return cls._known[value]
        if not noun:
            raise ValueError(f"unknown op {value!r}")
        op = cls._known[value] = super().__new__(cls)
        op.value, op.noun, op.ticks = value, noun, ticks
        op.is_send, op.is_receive = value.endswith(">"), value.startswith(">")
        op.is_compute = not (op.is_send or op.is_receive)
        op.channel = value.strip(">")
        return op

    @classmethod
    def known(cls) -> list[Op]:
        """Return all ops, including those added by credits."""
        return list(cls._known.values())

    def __reduce__(self) -> tuple[type[Op], tuple[str, str, bool]]:
        return Op, (self.value, self.noun, self.ticks)

    def __repr__(self) -> str:
        return f"Op({self.value!r})"


Op.FORWARD = Op("F", "forward", ticks=True)
Op.RECOMPUTE = Op("R", "recomputation", ticks=True)
Op.BACKWARD = Op("B", "backward", ticks=True)
Op.UPDATE = Op("U", "update")


class Message:
    """A kind of message between stages: neighbours, or the last one and all others.

    Args:
        letter: Its letter in plans.
        noun: Its name in errors.
        way: Direction: +1 to the next stage, -1 to the previous one, 0 to the other replicas of the stage.
        made_by: The op that produces it.
        needed_by: The op that waits for it.
        broadcast: Whether the last stage sends it to all others directly; `way` is -1 then.
    """

    __slots__ = ("broadcast", "letter", "made_by", "needed_by", "noun", "receive", "send", "way")

    def __init__(
        self,
        letter: str,
        noun: str,
        *,
        way: int,
        made_by: Op | None = None,
        needed_by: Op | None = None,
        broadcast: bool = False,
    ) -> None:
        if len(letter) != 1 or not letter.islower():
            raise ValueError(f"letter={letter!r}: give one lower-case letter")
        if broadcast and way != -1:
            raise ValueError(f"broadcast=True with way={way}: the last stage sends it to all others; give way=-1")
        self.letter, self.noun, self.way, self.broadcast = letter, noun, way, broadcast
        self.made_by, self.needed_by = made_by, needed_by
        self.send, self.receive = Op(f"{letter}>", f"send of the {noun}"), Op(f">{letter}", f"receipt of the {noun}")

    def arrives(self, *, first: bool, last: bool) -> bool:
        """Whether a stage at this position receives it from another."""
        return not (first if self.way > 0 else last)

    def leaves(self, *, first: bool, last: bool) -> bool:
        """Whether a stage at this position sends it to another."""
        return not (last if self.way > 0 else first) and (last or not self.broadcast)

    @property
    def whole_batch(self) -> bool:
        """Whether there is one for all micro-batches of a batch together."""
        return self.broadcast and self.needed_by is Op.UPDATE

    def __repr__(self) -> str:
        return f"Message({self.letter!r})"


ACTIVATION = Message("a", "activation", way=+1, made_by=Op.FORWARD, needed_by=Op.FORWARD)
GRADIENT = Message("g", "gradient", way=-1, made_by=Op.BACKWARD, needed_by=Op.BACKWARD)
TURN = Message("t", "turn", way=-1)
NORMS = Message("n", "norms", way=-1)
CLIP = Message("c", "global norm", way=+1)
SHARE = Message("r", "contribution to the all-reduce", way=0)


class Action(NamedTuple):
    """One instruction of one stage.

    Example:
        >>> str(Action(Op.FORWARD, batch=3, version=1)), str(Action(ACTIVATION.send, batch=3, micro=1))
        ('F3@1', 'a3.1>')
        >>> Action.parse("B3.0@1")
        Action(op=Op('B'), batch=3, version=1, micro=0)
    """

    op: Op
    batch: int
    version: int | None = None
    micro: int | None = None

    @property
    def unit(self) -> Unit:
        """The batch and the micro-batch; 0 without micro-batches."""
        return self.batch, self.micro or 0

    def __str__(self) -> str:
        number = f"{self.batch}" if self.micro is None else f"{self.batch}.{self.micro}"
        if self.op.is_compute:
            return f"{self.op.value}{number}@{self.version}"
        return f"{self.op.channel}{number}>" if self.op.is_send else f"{self.op.value}{number}"

    @classmethod
    def parse(cls, token: str) -> Action:
        """Parse a token; raises `ValueError` if it is invalid."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ValueError(f"cannot read the action {token!r}: write for instance F3@1, B3@1, U3@3, a3> or >g3")
        before, letter, batch, micro, version, after = match.groups()
        compute = letter.isupper()
        if compute != (version is not None) or compute == bool(before or after) or (before and after):
            raise ValueError(
                f"cannot read the action {token!r}: computations take a version (F3@1), messages an arrow (a3> or >a3)"
            )
        text = f"{before or ''}{letter}{after or ''}"
        op = next((op for op in Op.known() if op.value == text), None)
        if op is None:
            raise ValueError(f"cannot read the action {token!r}: unknown op {text!r}")
        return cls(op, int(batch), None if version is None else int(version), None if micro is None else int(micro))


_TOKEN = re.compile(r"(>)?([A-Za-z])(\d+)(?:\.(\d+))?(?:@(\d+))?(>)?")
