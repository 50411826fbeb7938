"""The pages: no link or anchor leads nowhere, and the reference has an entry for each public name."""

import importlib
import inspect
import re
import sys
from dataclasses import fields
from pathlib import Path

import griffe
import markdown
import pytest

import freewheel as fw

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "docs" / "hooks"))
import api_pages  # noqa: E402
import docstrings  # noqa: E402
import repository_pages  # noqa: E402

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")])


def anchors(page: Path) -> set[str]:
    """What can follow a `#`, as the hosts of repositories and the site write it."""
    text = repository_pages.CODE.sub(
        lambda code: code.group().strip("`") if "\n" not in code.group() else "", page.read_text()
    )
    headings = re.findall(r"^#+ +(.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain}


def dead(page: Path) -> list[str]:
    """The links of a page that lead nowhere."""
    found = []
    for link in repository_pages.links(page.read_text(encoding="utf-8")):
        there = (page.parent / link["path"]).resolve() if link["path"] else page
        anchor = (link["anchor"] or "")[1:]
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            found.append(link.group())
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page):
    assert dead(page) == []


def test_a_dead_link_and_a_dead_anchor_are_found(tmp_path):
    (tmp_path / "there.md").write_text("# A head\n```\n# none\n```\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md#a-head) [b](gone.md) [c](there.md#none) [d](#page) `[e](code.md)`\n# Page\n")
    assert dead(page) == ["gone.md", "there.md#none"]


def unread(text: str) -> list[str]:
    """The lines of a page that the site shows as text, though they are meant as items of a list or rows of a table."""
    html = markdown.markdown(text, extensions=["tables", "md_in_html", "pymdownx.superfences"])
    shown = re.sub(r"<(pre|code)\b.*?</\1>", "code", html, flags=re.DOTALL)
    return re.findall(r"(?:^|>)((?:[-*] |\d\. |\| ).*)", shown, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_and_tables_are_those_of_the_site(page):
    """The site's Markdown needs an empty line before a list, and four spaces before what belongs to an item."""
    assert unread(page.read_text(encoding="utf-8")) == []


def test_a_list_without_an_empty_line_before_it_is_found():
    assert unread("Text:\n- one\n- two\n") == ["- one", "- two</p>"]
    assert unread("```\ncode\n```\n- `one`\n") == ["- code</p>"]
    assert unread("Text:\n\n- one\n  more\n- two\n") == []


def test_docstrings_link_to_nothing_outside_of_the_code():
    """A page of the reference has another place than its module: relative links would break there."""
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"\]\([^)\s]+\.md", path.read_text(encoding="utf-8")), path


def test_every_public_name_has_an_entry_and_a_docstring():
    pages = {page: api_pages.page_text(page) for page in api_pages.PAGES}
    for name in (name for name in vars(fw) if not name.startswith("_") and not inspect.ismodule(vars(fw)[name])):
        found = (f"`freewheel.{name}`", f"::: freewheel.{name}\n", f"heading: freewheel.{name}\n")
        assert any(each in text for each in found for text in pages.values()), name
    for names in api_pages.entries().values():
        for name in filter(api_pages.has_docstring, names):
            package, _, last = name.rpartition(".")
            assert inspect.getdoc(getattr(importlib.import_module(package), last)), name


def test_no_entry_of_a_class_or_function_shows_a_package_of_that_name():
    """`fw.plan` and `fw.split` are functions, `freewheel.plan` and `freewheel.split` in imports packages."""
    read = griffe.load("freewheel", search_paths=[ROOT / "src"])
    for page in api_pages.PAGES:
        for name in re.findall(r"^::: freewheel\.(\S+)", api_pages.page_text(page), re.MULTILINE):
            assert not read[name].is_module, name


def test_the_reference_tells_what_a_trainer_takes_and_every_option_of_a_method():
    """`Trainer` takes options and no config, and methods inherit options that a reader of one docstring misses."""
    extensions = griffe.load_extensions(docstrings.Docstrings, "dataclasses")
    read = griffe.load("freewheel", search_paths=[ROOT / "src"], extensions=extensions)
    made = read["trainer._trainer.Trainer.__init__"]
    assert [(each.name, each.kind.value) for each in made.parameters][2:] == [("options", "variadic keyword")]
    for method in fw.METHODS.values():
        text = read[f"{method.__module__}.{method.__name__}".removeprefix("freewheel.")].docstring.value
        described = set(re.findall(r"^    (\w+):", text, re.MULTILINE))
        assert {field.name for field in fields(method)} <= described, method


def test_every_package_has_a_page():
    folders = {init.parent.name for init in (ROOT / "src" / "freewheel").glob("*/__init__.py")}
    assert folders - api_pages.PAGES.keys() == {"cli", "bench"}


def test_the_glossary_has_each_word_once_in_order():
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / "reference" / "glossary.md").read_text(), re.MULTILINE)[2:]
    assert len(set(rows)) == len(rows) > 50
    assert rows == sorted(rows, key=str.lower)


def test_what_the_glossary_finds_in_the_code_is_there():
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    packages = {"fw": "freewheel", **{page: f"freewheel.{page}" for page in api_pages.PAGES}}
    names = re.findall(r"`(\w+)\.([\w.]+)[`(]", text.partition("| --- |")[2])
    found = [(packages[first], rest) for first, rest in names if first in packages]
    assert len(found) > 50
    for package, rest in found:
        parts = rest.split(".")
        while parts and parts[0].startswith("_"):
            package = f"{package}.{parts.pop(0)}"
        there = importlib.import_module(package)
        for part in parts:
            assert hasattr(there, part) or part in there.__annotations__, f"{package}.{rest}"
            there = getattr(there, part, None)


def test_every_page_is_linked_from_another():
    found = {
        (page.parent / link["path"]).resolve()
        for page in PAGES
        for link in repository_pages.links(page.read_text(encoding="utf-8"))
    }
    assert [page for page in PAGES if page not in found and page != ROOT / "README.md"] == []


def numbers(text: str) -> set[str]:
    """The numbers of a text, without those of links."""
    return set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?!\w)", re.sub(r"\]\([^)]*\)", "]", text)))


def test_the_numbers_of_the_readme_are_those_of_the_pages_it_links():
    readme, page = ROOT / "README.md", None
    rows = re.findall(r"^\| (?!what|---).*$", readme.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 4
    for row in rows:
        page = next((ROOT / link["path"] for link in repository_pages.links(row)), page)
        assert numbers(row) <= numbers(page.read_text(encoding="utf-8")), row


def test_the_accuracies_of_methods_are_those_of_one_page():
    """The page of each method and the one for choosing repeat the medians of `measured/accuracy.md`."""
    table = (ROOT / "docs" / "measured" / "accuracy.md").read_text(encoding="utf-8")
    medians = re.findall(r"^\| `([\w-]+)` \| (\d\d\.\d) .*?\| (\d\d\.\d) ", table, re.MULTILINE)
    told = {name: (two, four) for name, two, four in medians if name != "dgl"}  # which has a table of its own
    assert {"gpipe", "ddg", "fr", "pipedream", "pipemare", "fdg", "dsp"} == set(told)
    choose = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8")
    for name, (two, four) in told.items():
        page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
        assert f"*Accuracy* on digits, K = 2 and 4: {two} and {four} %" in page, name
        (row,) = re.findall(rf"^\| \[`{name}`\].*", choose, re.MULTILINE)
        assert f"| {four} |" in row, row
