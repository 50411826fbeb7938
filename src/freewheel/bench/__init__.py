"""Benchmarks: measurements that anyone can repeat."""

from freewheel.bench._async import asynchronous
from freewheel.bench._forward import forward
from freewheel.bench._memory import memory
from freewheel.bench._speed import speed
from freewheel.bench._straggler import straggler
from freewheel.bench._transport import transport

__all__ = ["asynchronous", "forward", "memory", "speed", "straggler", "transport"]
