"""The page of runs in a browser: it draws what it should, moves as it should, and can be read by everyone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from browser import browser as browser, colours, opened, theme_colour
from command_line import good

SECTIONS = ("overview", "curves", "timeline", "time", "staleness", "memory", "configuration")
TRAIN = ("--epochs", "2", "--limit", "200", "--at", "pool", "--threads", "1", "--no-compare", "-q")
DESKTOP, PHONE = 1280, 390


def trained(folder: Path, *arguments: str) -> Path:
    good("train", *TRAIN, "--run-dir", str(folder), *arguments)
    return folder


def reported(folder: Path, *runs: Path) -> Path:
    good("report", *map(str, runs), "--out", str(folder / "page.html"))
    return folder / "page.html"


@pytest.fixture(scope="module")
def cpu(tmp_path_factory) -> Path:
    """The page of a run on a CPU, with a trace."""
    folder = tmp_path_factory.mktemp("cpu")
    run = trained(folder / "run", "--method", "fdg", "--validation", "0.2", "--runtime", "threads", "--trace")
    return reported(folder, run)


def filled(page, *, run: Path) -> None:
    """All sections are there, each with what belongs in it."""
    assert page.locator("section").evaluate_all("(all) => all.map((each) => each.id)") == list(SECTIONS)
    for curve in page.locator("#curves figure").all():
        lines = curve.locator("svg path[stroke-width='2']")
        assert lines.count() >= 1, curve.inner_text()
        assert all(line.get_attribute("d").count("L") >= 1 or "C" in line.get_attribute("d") for line in lines.all())
    for which in ("measured", "planned"):
        drawn = colours(page, which)
        for name in ("forward", "backward"):
            assert drawn.get(theme_colour(page, name), 0) > 500, (which, name)
    for name in ("time", "staleness"):
        assert page.locator(f"#{name} svg path[fill]").count() > 3
    assert "MiB" in page.locator("#memory").inner_text()
    facts = json.loads((run / "run.json").read_text())
    assert page.locator("#configuration pre").first.inner_text() == facts["repeat"]


def test_the_page_of_a_run_is_whole_and_loads_nothing(cpu, browser):
    assert cpu.stat().st_size < 2_000_000
    with opened(browser, cpu) as page:
        filled(page, run=cpu.parent / "run")
        assert page.locator(".missing").count() == 0
