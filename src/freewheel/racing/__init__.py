"""Shared-memory asynchronous SGD: workers that race on one set of weights, and replay of recorded races.

These methods have no schedule, hence no plan and no part in the interpreter: they bring their own runner.

    layerwise, hogwild    the methods, one file per family, each with the threads that run it
    _method               what the trainer asks of them
    _pool                 the caller: dealing batches, barriers, cuts; _local: threads; _processes: processes
    _worker               forward, backward and update of a batch
    _interleaving         when each step is made: free, drawn from a seed, or replayed
    _copy                 a copy of the weights: how often its layers change, what other devices send
    _times                λ and τ: overlap, and how long gradients wait
    _memory               shared weights, optimizer steps on them, averages
"""

from freewheel.racing._method import Racing as Racing
from freewheel.racing._times import RaceTimes as RaceTimes
from freewheel.racing.hogwild import LAPSGD as LAPSGD, LPPSGD as LPPSGD, Hogwild as Hogwild
from freewheel.racing.layerwise import AsyncBU as AsyncBU, AsyncLU as AsyncLU
