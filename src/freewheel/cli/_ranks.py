"""`freewheel train` under torchrun: rank 0 decides and prints, the others follow in silence."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from freewheel.cli._settings import Settings
from freewheel.cli._train_options import TrainOptions
from freewheel.runtime import is_one_of_several, of_rank_0, rank_and_size, store_of

REPORT_SECONDS = 10.0  # that rank 0 has to report an error


def follows() -> bool:
    """Whether another process prints for this one."""
    return is_one_of_several() and rank_and_size()[0] > 0


def silenced(options: TrainOptions) -> TrainOptions:
    """The options of a process that prints nothing, and writes nothing but its snapshots."""
    return replace(options, quiet=True, compare=False, json=None, save=None, write_config=None, run_dir=None)


def as_rank_0(settings: Settings, cut: tuple[int, ...] = ()) -> Settings:
    """The settings with what rank 0 has measured or counted: its threads, and where it has cut the network."""
    options = settings.options
    if options.runtime != "torchrun":
        return settings
    split = None if cut else options.split  # the cut is made: nothing is left to balance
    measured = of_rank_0("settings", lambda: {"threads": options.threads, "balance": cut, "split": split})
    return replace(settings, options=replace(options, **measured))


def reports_errors() -> bool:
    """Whether this process should print its error: not if rank 0 has printed one."""
    if not is_one_of_several():
        return True
    reported = threading.Event()
    asking = threading.Thread(target=_ask_rank_0, args=(reported,), daemon=True)  # a lost store may block for long
    asking.start()
    asking.join(REPORT_SECONDS)
    return not reported.is_set()


def _ask_rank_0(reported: threading.Event) -> None:
    """As rank 0, leave a note in the store; as another rank, look for it for a while."""
    deadline = time.monotonic() + REPORT_SECONDS
    store = store_of("said")
    if not follows():
        store.set("error", "yes")
    while follows() and not reported.is_set() and time.monotonic() < deadline:
        if store.check(["error"]):
            reported.set()
        else:
            time.sleep(0.05)
