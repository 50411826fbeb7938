"""The examples: every script of `examples` runs for a few batches, without a warning, and says what it has learned."""

from __future__ import annotations

import os
import re
import socket
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
PREPARED = (  # Python's arguments for a script that imports transformers, which imports torchvision
    "-c",
    f"""
import runpy, sys
sys.path.append({str(ROOT / "tests")!r})
from vision import declare_operators
declare_operators()
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
""",
)
WARNINGS = "error,ignore:unbalanced split:UserWarning"


def run(where: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Run Python in a folder, as often as there are commands, with warnings as errors: exit codes, outputs, errors."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": WARNINGS, "OMP_NUM_THREADS": "1"}
    env |= {"GLOO_SOCKET_IFNAME": "lo"}
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
    imports = PREPARED if "transformers" in script.read_text() else ()
    ((code, out, errors),) = run(tmp_path, [*imports, str(script), "--quick"])
    assert (code, errors) == (0, "")
    assert LEARNED.search(out), out
    assert not re.search(r"\bnan\b", out), out
    assert re.search(r"\d", out.splitlines()[-1]), "it ends with a figure"
    assert {path.name for path in tmp_path.iterdir()} <= {"runs"}, "git ignores that folder in a clone"


@exhaustive
def test_two_hosts_give_the_same_network(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torchrun = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    where = ["--master-addr=127.0.0.1", f"--master-port={port}"]
    script = [str(ROOT / "examples" / "two_hosts.py"), "--quick"]
    (code, lead, errors), (other_code, other, other_errors) = run(
        tmp_path, *([*torchrun, f"--node-rank={host}", *where, *script] for host in range(2))
    )
    assert (code, other_code) == (0, 0), errors + other_errors
    assert [line.split()[:2] for line in lead.splitlines()] == [["epoch", "1"], ["epoch", "2"], ["rank", "0"]]
    found = [re.search(r"rank (\d) on \S+: stage (\d), test accuracy (.*)", text).groups() for text in (lead, other)]
    assert [each[:2] for each in found] == [("0", "0"), ("1", "1")]
    assert found[0][2] == found[1][2]


@exhaustive
@pytest.mark.parametrize("name", ["lstm_imdb.py", "resnet_cifar10.py"])
def test_absent_data_is_told_in_one_line(name, tmp_path):
    ((code, _, errors),) = run(tmp_path, [str(ROOT / "examples" / name), str(tmp_path)])
    assert code == 1
    (line,) = errors.splitlines()
    assert line.startswith(f"{tmp_path}/")
    assert re.search(r"is missing: unpack .*https://.* --quick$", line)


def test_an_absent_package_is_told_in_one_line(tmp_path):
    absent = "import runpy, sys; sys.modules['transformers'] = None; runpy.run_path(sys.argv[1], run_name='__main__')"
    ((code, out, errors),) = run(tmp_path, ["-c", absent, str(ROOT / "examples" / "hugging_face.py")])
    assert (code, out) == (1, "")
    assert re.fullmatch(r"transformers cannot be imported: pip install transformers, .*\n", errors)


@exhaustive
def test_without_torchrun_two_hosts_says_how_to_start_it(tmp_path):
    ((code, out, errors),) = run(tmp_path, [str(ROOT / "examples" / "two_hosts.py")])
    assert (code, out) == (1, "")
    assert "torchrun --nnodes 2 --node-rank 1" in errors
    assert "Traceback" not in errors


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
