"""Opens the page of runs in headless Chromium, which has no network; what it says and what it asks for is recorded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
TO_INSTALL = (
    "no Chromium is installed here: apt-get install chromium, or set FREEWHEEL_NO_BROWSER=1 to leave out these tests"
)
# Colours to look for in a canvas, by what they stand for: see `style.css`.
DRAWN = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const counts = {};
  for (let i = 0; i < data.length; i += 4) {
    const key = "#" + [0, 1, 2].map((j) => data[i + j].toString(16).padStart(2, "0")).join("");
    counts[key] = (counts[key] ?? 0) + 1;
  }
  return counts;
}"""
Window = tuple[float, float]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module."""
    if os.environ.get("FREEWHEEL_NO_BROWSER"):
        pytest.skip("FREEWHEEL_NO_BROWSER is set")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.fail(TO_INSTALL, pytrace=False)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path)
        yield started
        started.close()


@contextmanager
def opened(browser: Browser, path: Path, *, width: int = 1280, height: int = 900, **options: Any) -> Iterator[Page]:
    """The page in a file, in a window of its own; afterwards it must have complained of nothing and loaded nothing.

    Args:
        browser: The browser.
        path: The file.
        width: Of the window.
        height: Of the window.
        **options: More of Playwright's options of a context, such as `color_scheme="dark"`.
    """
    context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
    said, asked = [], []
    try:
        page = context.new_page()
        page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: said.append(f"error: {error}"))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        yield page
    finally:
        context.close()
    assert said == []
    assert asked == [path.as_uri()]


def violations(page: Page) -> list[str]:
    """What axe finds wrong, each in a line: the rule, and the elements."""
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run(document, { resultTypes: ['violations'] })")["violations"]
    return [f"{rule['id']}: {[node['target'] for node in rule['nodes']]}" for rule in found]


def window(page: Page, which: str) -> Window:
    """The part of a timeline that is visible, in its units."""
    begin, end = page.locator(f"#{which}-timeline").get_attribute("data-window").split()
    return float(begin), float(end)


def frame(page: Page) -> None:
    """Waits until what has changed is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def colours(page: Page, which: str) -> dict[str, int]:
    """The pixels of each colour in a timeline."""
    return page.locator(f"#{which}-timeline canvas").first.evaluate(DRAWN)


def theme_colour(page: Page, name: str) -> str:
    """A colour of the theme that is shown."""
    return page.evaluate(f"() => getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
