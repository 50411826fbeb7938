"""Runtimes: who runs a stage, and how messages travel; all share one interpreter."""

from freewheel.runtime._auto import Auto
from freewheel.runtime._channels import SHUTDOWN_SECONDS as SHUTDOWN_SECONDS, ClosedError as ClosedError
from freewheel.runtime._cut import Snapshot as Snapshot
from freewheel.runtime._errors import (
    LostError as LostError,
    StageError as StageError,
    decode_error as decode_error,
    encode_error as encode_error,
)
from freewheel.runtime._feed import Feed as Feed, Start as Start
from freewheel.runtime._generators import recall as recall, remember as remember, seeded as seeded
from freewheel.runtime._graph import Graphs
from freewheel.runtime._interpreter import NOT_FINITE as NOT_FINITE, Interpreter as Interpreter
from freewheel.runtime._micro_batches import split_samples as split_samples
from freewheel.runtime._peaks import largest_worker as largest_worker, note_peaks as note_peaks
from freewheel.runtime._prefetch import Prefetcher as Prefetcher, common as common
from freewheel.runtime._processes import Processes
from freewheel.runtime._ranks import (
    check_started as check_started,
    is_one_of_several as is_one_of_several,
    is_started as is_started,
    of_rank_0 as of_rank_0,
    rank_and_size as rank_and_size,
    store_of as store_of,
)
from freewheel.runtime._reading import Batch as Batch, Reader as Reader
from freewheel.runtime._run import Cut as Cut, LocalRun as LocalRun, Outcome as Outcome, Run as Run
from freewheel.runtime._runtime import Runtime as Runtime, RuntimeChoice as RuntimeChoice
from freewheel.runtime._settings import deterministic_convolutions as deterministic_convolutions
from freewheel.runtime._simulate import Simulate
from freewheel.runtime._spec import Before as Before, RunSpec as RunSpec
from freewheel.runtime._straggler import is_slow as is_slow
from freewheel.runtime._threads import Threads, chosen_streams as chosen_streams
from freewheel.runtime._torchrun import Torchrun
from freewheel.runtime._wiring import PREFETCH as PREFETCH
from freewheel.runtime._workers import (
    check_guarded as check_guarded,
    diagnosed as diagnosed,
    end_with_caller as end_with_caller,
    end_workers as end_workers,
    run_worker as run_worker,
    unblock_interrupts as unblock_interrupts,
    worker_context as worker_context,
    worker_name as worker_name,
)

RUNTIMES: dict[str, Runtime] = {
    "simulate": Simulate(),
    "graph": Graphs(),
    "threads": Threads(),
    "processes": Processes(),
    "torchrun": Torchrun(),
    "auto": Auto(),
}
