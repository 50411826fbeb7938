"""What the pages tell to type: command lines parse, options exist, configs are read, scripts run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from command_line import freewheel
from freewheel.cli._app import app
from freewheel.cli._config import read_config
from spread import exhaustive

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])
FENCE = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```[ ]*$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
STARTS = re.compile(r"^(?:\.venv/bin/|torchrun .* -m )?freewheel(?:\.cli)? +(?=[a-z-])")
OF_OTHERS = {  # programs that are not ours
    "--standalone",
    "--nproc-per-node",
    "--nnodes",
    "--node-rank",
    "--master-addr",
    "--master-port",
    "--max-restarts",
    "--constraint",
    "--quick",
    "--runtimes",
}
GONE = {"CHANGELOG.md"}  # names what there was


class Block(NamedTuple):
    language: str
    text: str


def blocks(text: str) -> list[Block]:
    return [Block(match[2], match[3]) for match in FENCE.finditer(text)]


def command_lines(text: str) -> list[str]:
    """What begins with `freewheel` in blocks and within the text, without comments and the program's name."""
    lines = [line for block in blocks(text) for line in block.text.replace("\\\n", " ").splitlines()]
    lines += [code.replace("\n", " ") for code in INLINE.findall(FENCE.sub("", text)) if "…" not in code]
    return [
        line[match.end() :].split("  #")[0].strip() for line in lines if (match := STARTS.match(line.strip() + " "))
    ]


def parsed(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse a command line as the app does, without running it and without reading the files that it names."""
    monkeypatch.setattr(app["train"], "config", ())
    tokens = [re.sub(r"^[KNR]$", "2", token) for token in shlex.split(line)]
    if "..." not in tokens and tokens[0] not in ("--help", "--version", "COMMAND"):
        app.parse_args([token for token in tokens if token != "--debug"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_parse(page, monkeypatch):
    for line in command_lines(page.read_text(encoding="utf-8")):
        try:
            parsed(line, monkeypatch)
        except Exception as error:
            pytest.fail(f"freewheel {line}: {error}")


def test_wrong_command_lines_are_found(monkeypatch):
    text = "Type `freewheel train --epoks 3`.\n```bash\nfreewheel plan fdg \\\n  --stages 3   # a plan\n```\n"
    right, wrong = command_lines(text)
    parsed(right, monkeypatch)
    with pytest.raises(Exception, match="epoks"):
        parsed(wrong, monkeypatch)


def test_options_in_the_text_exist():
    commands = ["train", "evaluate", "report", "plan", "methods", "recipes", "reproduce"]
    commands += [f"bench {name}" for name in app["bench"] if not name.startswith("-")]
    known = {"--help", "--version", "--debug", *OF_OTHERS}
    for command in [*commands, *(name for name in app if not name.startswith("-"))]:
        known |= set(re.findall(r"--[a-z][a-z0-9-]+", freewheel(*command.split(), "--help").stdout))
    for page in PAGES:
        if page.name not in GONE:
            told = INLINE.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
            found = {option for code in told for option in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", code)}
            assert found <= known, f"{page}: {sorted(found - known)}"


def test_configs_are_read(tmp_path):
    path = tmp_path / "config.toml"
    found = [
        block.text for page in PAGES for block in blocks(page.read_text(encoding="utf-8")) if block.language == "toml"
    ]
    for text in found:
        path.write_text(text)
        assert read_config(path)
    assert found


def scripts(page: Path) -> list[str]:
    """The blocks of Python without prompts, which doctest does not run."""
    python = [
        block.text for block in blocks(page.read_text(encoding="utf-8")) if block.language in ("python", "py", "pycon")
    ]
    return [text for text in python if ">>> " not in text]


@exhaustive
@pytest.mark.parametrize("page", [page for page in PAGES if scripts(page)], ids=lambda page: page.stem)
def test_scripts_run(page, tmp_path):
    for text in scripts(page):
        path = tmp_path / "script.py"
        path.write_text(text)
        done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@exhaustive
@pytest.mark.parametrize(
    ("page", "written"), [("five-minutes.md", "runs/both.html"), ("own-model.md", "runs/fdg-net-net-1/weights.pt")]
)
def test_the_commands_of_the_start_run(page, written, tmp_path, monkeypatch):
    """Every command, one after the other, as a newcomer types them; a script is the file `net.py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FREEWHEEL_RUNS", "runs")
    path = ROOT / "docs" / "start" / page
    for text in scripts(path):
        (tmp_path / "net.py").write_text(text)
    for block in (block for block in blocks(path.read_text(encoding="utf-8")) if block.language == "bash"):
        for line in block.text.splitlines():
            done = freewheel(*shlex.split(line.removeprefix("freewheel ")))
            assert done.exit_code == 0, f"{line}: {done.stderr}"
    assert (tmp_path / written).exists()


def test_the_readme_fits_on_two_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90
