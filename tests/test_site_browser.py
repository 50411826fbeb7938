"""The built site in headless Chromium, from the disk: it loads nothing from elsewhere, fits a phone, is readable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from browser import browser as browser, violations
from spread import exhaustive

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["index", "choose", "start/own-model", "methods/fdg", "guides/gpu", "explain/same-bits", "reference/glossary"]
PAGES += ["reference/api/trainer"]
OF_THE_THEME = ("landmark-unique",)  # its navigation on the left is two landmarks of one name
TOO_WIDE = """() => {
  const wide = (element) => element.getBoundingClientRect().right > document.documentElement.clientWidth + 1;
  const scrolls = (element) =>
    element && (getComputedStyle(element).overflowX !== "visible" || scrolls(element.parentElement));
  const found = [...document.querySelectorAll(".md-content *")].filter((e) => wide(e) && !scrolls(e.parentElement));
  return found.map((element) => element.outerHTML.slice(0, 80));
}"""

pytestmark = exhaustive


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_load_nothing_fit_and_can_be_read(site, browser, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: asked.append(request.url))
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert said == []
        found = [each for each in violations(page) if not each.startswith(OF_THE_THEME)]
        assert (name, found, page.evaluate(TOO_WIDE)) == (name, [], [])
        said.clear()  # axe reads the style sheets, which a browser refuses on the disk
    context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_search_works_from_the_disk(site, browser):
    page = browser.new_page()
    page.goto((site / "index.html").as_uri())
    page.locator(".md-search__input").click()
    page.keyboard.type("staleness")
    page.locator(".md-search-result__item", has_text="Staleness corrections").first.wait_for()
    page.close()
