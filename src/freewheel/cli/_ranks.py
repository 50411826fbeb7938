"""`freewheel train` under torchrun: rank 0 decides and speaks, the others follow in silence."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from freewheel.cli._settings import Settings
from freewheel.runtime import is_one_of_several, of_rank_0, rank_and_size, store_of

PATIENCE = 2.0  # seconds in which rank 0 hears of an error, and says it


def follows() -> bool:
    """Whether another process speaks for this one."""
    return is_one_of_several() and rank_and_size()[0] > 0


def silenced(settings: Settings) -> Settings:
    """The settings of a process that prints and writes nothing but its part of the checkpoints."""
    return replace(settings, quiet=True, compare=False, json=None, save=None)


def as_rank_0(settings: Settings, balance: list[int] | None = None) -> Settings:
    """The settings with what rank 0 has measured or counted: where it has cut the network, and its threads."""
    if settings.runtime_name != "torchrun":
        return settings
    return replace(settings, **of_rank_0("settings", lambda: {"threads": settings.stage_threads, "balance": balance}))


def is_ours() -> bool:
    """Whether it is up to this process to say what went wrong: not if rank 0 has met the same, or has been told."""
    if not is_one_of_several():
        return True
    said = threading.Event()
    asking = threading.Thread(target=_ask, args=(said,), daemon=True)  # a store that is gone may not answer for long
    asking.start()
    asking.join(PATIENCE)
    return not said.is_set()


def _ask(said: threading.Event) -> None:
    """Rank 0 leaves a note; the others look for it for a while."""
    deadline = time.monotonic() + PATIENCE
    store = store_of("said")
    if not follows():
        store.set("error", "yes")
    while follows() and not said.is_set() and time.monotonic() < deadline:
        if store.check(["error"]):
            said.set()
        else:
            time.sleep(0.05)
