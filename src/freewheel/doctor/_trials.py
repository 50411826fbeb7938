"""What is tried, with what helps where it does not work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

SECONDS = 120.0  # for one trial
AT_A_TIME = 2


@dataclass(frozen=True)
class Trial:
    """Something to try.

    Args:
        name: Its name, in `WORK`.
        remedy: What helps where it does not work.
        core: Whether nothing can be trained without it.
        needs: An earlier trial without which there is nothing to try.
    """

    name: str
    remedy: str
    core: bool = False
    needs: str = ""

    @property
    def command(self) -> list[str]:
        """The process that tries it."""
        return [sys.executable, "-m", "freewheel.doctor", self.name]


@dataclass(frozen=True)
class Finding:
    """What a trial has found.

    Args:
        name: The name of the trial.
        works: Whether it works; None for what is not here.
        note: What was found, or what went wrong.
        remedy: What helps; empty if it works.
    """

    name: str
    works: bool | None
    note: str
    remedy: str


NO_GPU = "train with --device cpu; or compare the driver that nvidia-smi names with the CUDA of this PyTorch"
TRIALS = (
    Trial("training", "install PyTorch again: pip install --force-reinstall torch", core=True),
    Trial("processes", "train with --runtime threads"),
    Trial("shared memory", "in a container, give it more: docker run --shm-size=1g"),
    Trial("gloo", "train on one host; or ask what blocks connections to 127.0.0.1"),
    Trial("bfloat16", "leave out --bf16; or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment"),
    Trial("torch.compile", "leave out --compile; or install a C++ compiler: apt-get install g++"),
    Trial("CUDA", NO_GPU),
    Trial("CUDA graphs", "train with --runtime threads", needs="CUDA"),
    Trial("NCCL", "train with --runtime threads; or give fw.Trainer(transport='gloo')", needs="CUDA"),
)


def try_all(trials: Sequence[Trial] = TRIALS, *, seconds: float = SECONDS) -> Iterator[Finding]:
    """Try all, some at a time; each in a process that may crash, hang or print what it likes.

    Example:
        >>> [found] = try_all([TRIALS[2]])
        >>> found.name
        'shared memory'
    """
    processes: list[subprocess.Popen[str]] = []
    pool = ThreadPoolExecutor(AT_A_TIME)
    try:
        found: dict[str, Future[Finding]] = {}
        for trial in trials:  # they are begun in this order: what a trial needs was tried before
            found[trial.name] = pool.submit(_try, trial, found.get(trial.needs), seconds, processes)
        for each in found.values():
            yield each.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in list(processes):
            _kill(process)
        pool.shutdown()


def _try(
    trial: Trial, needed: Future[Finding] | None, seconds: float, processes: list[subprocess.Popen[str]]
) -> Finding:
    if needed is not None and not needed.result().works:
        return Finding(trial.name, None, f"needs {trial.needs}", "")
    process = subprocess.Popen(
        trial.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    processes.append(process)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        works, note = False, f"no answer within {seconds:g} s"
    else:
        works, note = _answer(process.returncode, out, err)
    finally:
        _kill(process)  # with all that it has started
        process.communicate()
        processes.remove(process)
    return Finding(trial.name, works, note, trial.remedy if works is False else "")


def _answer(code: int, out: str, err: str) -> tuple[bool | None, str]:
    r"""What the process of a trial has said, or how it died.

    Example:
        >>> _answer(0, 'noise\n{"works": true, "note": ""}\n', "")
        (True, '')
        >>> _answer(-signal.SIGILL, "", ""), _answer(3, "", "a\nb\n")
        ((False, 'its process dies of SIGILL (Illegal instruction)'), (False, 'its process ends with 3: b'))
    """
    if code < 0:
        return False, f"its process dies of {signal.Signals(-code).name} ({signal.strsignal(-code)})"
    try:
        found = json.loads(out.strip().splitlines()[-1])
        return found["works"], found["note"]
    except (ValueError, KeyError, TypeError, IndexError):
        last = err.strip().splitlines()[-1:]
        return False, f"its process ends with {code}{''.join(f': {line}' for line in last)}"


def _kill(process: subprocess.Popen[str]) -> None:
    """End a process and all that it has started."""
    with suppress(ProcessLookupError, PermissionError):  # none is left
        os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
