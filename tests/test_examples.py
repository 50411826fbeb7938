"""The examples: every script of `examples` runs for a few batches, without a warning, and says what it has learned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spread import exhaustive

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "examples" / "README.md"
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
IN_MAKE_TEST = {"digits_mlp.py", "own_method.py"}
TWO_HOSTS = {"two_hosts.py"}  # started by torchrun
LEARNED = re.compile(r"(accuracy|loss)\b.*\d", re.DOTALL)
WARNINGS = "error,ignore:unbalanced split:UserWarning"


def run(where: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Run Python in a folder, as often as there are commands, with warnings as errors: exit codes, outputs, errors."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": WARNINGS, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started: list[subprocess.Popen[str]] = []
    try:
        for words in commands:
            started.append(subprocess.Popen([sys.executable, *words], cwd=where, env=env, **pipes))
        told = [process.communicate() for process in started]
        return [(process.returncode, out, errors) for process, (out, errors) in zip(started, told)]
    finally:
        for process in started:
            process.kill()
            process.wait()


def marks(script: Path) -> tuple[pytest.MarkDecorator, ...]:
    return () if script.name in IN_MAKE_TEST else (exhaustive,)


ALONE = [pytest.param(s, id=s.stem, marks=marks(s)) for s in SCRIPTS if s.name not in TWO_HOSTS]


@pytest.mark.parametrize("script", ALONE)
def test_runs_for_a_few_batches(script, tmp_path):
    ((code, out, errors),) = run(tmp_path, [str(script), "--quick"])
    assert (code, errors) == (0, "")
    assert LEARNED.search(out), out
    assert not re.search(r"\bnan\b", out), out
    assert re.search(r"\d", out.splitlines()[-1]), "it ends with a figure"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_is_short_and_in_the_table(script):
    text = script.read_text(encoding="utf-8")
    assert text.count("\n") < 80
    assert f"python examples/{script.name}" in text or script.name in TWO_HOSTS, "the docstring says how to run it"
    assert "--quick" in text
    assert len(re.findall(rf"^\| \[`{script.name}`\]\({script.name}\) \|", README.read_text(), re.MULTILINE)) == 1


def test_the_table_has_no_others():
    listed = re.findall(r"^\| \[`(\S+)`\]", README.read_text(), re.MULTILINE)
    assert sorted(listed) == [script.name for script in SCRIPTS]
