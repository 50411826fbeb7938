"""Benchmarks: measurements that anyone can repeat."""

from freewheel.bench._async import asynchronous as asynchronous
from freewheel.bench._forward import forward as forward
from freewheel.bench._gpu import gpu as gpu
from freewheel.bench._memory import memory as memory
from freewheel.bench._speed import speed as speed
from freewheel.bench._straggler import straggler as straggler
from freewheel.bench._transport import transport as transport
