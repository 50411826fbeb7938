"""The API reference: a page for each package, with an entry for each name that it exports."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[2] / "src" / "freewheel"
PAGES = {
    "trainer": "Training",
    "split": "Splitting",
    "methods": "Methods",
    "credit": "Credit",
    "corrections": "Corrections",
    "tangents": "Tangents",
    "feedback": "Feedback weights",
    "racing": "Races",
    "plan": "Plans",
    "stage": "Stages",
    "runtime": "Runtimes",
    "checkpoint": "Checkpoints",
    "runs": "Runs",
    "trace": "Traces",
    "report": "Reports",
    "watch": "Watching",
    "data": "Data",
    "models": "Models",
    "recipes": "Recipes",
    "reproduce": "The papers' tables",
    "check": "The check",
    "doctor": "The doctor",
}
HOMELESS = "trainer"  # the page of what is in no package
MODULES = ("data", "models", "recipes")  # typed as they are: `fw.data.load`
FIRST = ("Trainer", "RunConfig", "History", "split", "method", "Pipeline", "plan", "Plan", "load", "build", "find")
FOLDER = "reference/api"
FOR_EXTENSIONS = "For extensions"


def exported(package: str) -> dict[str, str]:
    """Return the public names of a package (`""`: freewheel itself), each with the package that it comes from.

    Example:
        >>> exported("")["Plan"], exported("plan")["Op"], exported("")["accuracy"]
        ('plan', 'plan', 'trainer')
    """
    found = {}
    for node in ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            home = node.module.split(".")[1] if "." in node.module else ""
            found |= {name.asname: home for name in node.names if name.asname is not None and home}
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = package
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = package
    public = {name: home for name, home in found.items() if not name.startswith("_")}
    return {name: home if home in PAGES else HOMELESS for name, home in public.items()}


@cache
def entries() -> dict[str, list[str]]:
    """Return the entries of each page, once: what users type, most important first, then what extensions import.

    Example:
        >>> "freewheel.Plan" in entries()["plan"], "freewheel.plan.Op" in entries()["plan"]
        (True, True)
    """
    top = exported("")
    pages = {page: [f"freewheel.{name}" for name, home in top.items() if home == page] for page in PAGES}
    for page, names in pages.items():
        names += [f"freewheel.{page}.{name}" for name in exported(page) if name not in top]
        names.sort(key=lambda name: (not is_typed(name), *_place(name.rpartition(".")[2])))
    return pages


def _place(name: str) -> tuple[int, ...]:
    return (FIRST.index(name),) if name in FIRST else (len(FIRST),)


def is_typed(name: str) -> bool:
    """Whether users type a name as `fw.NAME` or `fw.data.NAME`; the others are for extensions.

    Example:
        >>> is_typed("freewheel.FDG"), is_typed("freewheel.data.load"), is_typed("freewheel.plan.Op")
        (True, True, False)
    """
    _, package, *rest = name.split(".")
    return not rest or package in MODULES


def page_text(page: str) -> str:
    """Return the page of a package."""
    about = ast.get_docstring(ast.parse((SOURCE / page / "__init__.py").read_text(encoding="utf-8"))) or ""
    about = re.sub(r"(?m)(?:^    .*\n?)+", lambda block: f"\n```text\n{block.group().rstrip()}\n```\n", about)
    typed = [name for name in entries()[page] if is_typed(name)]
    others = [name for name in entries()[page] if not is_typed(name)]
    parts = [f"# {PAGES[page]}", about, *_described(typed, level=2)]
    if typed and others:
        parts += [f"## {FOR_EXTENSIONS}", f"Import these from `freewheel.{page}`."]
    return "\n\n".join([*parts, *_described(others, level=3 if typed else 2)]) + "\n"


def _described(names: list[str], *, level: int) -> list[str]:
    """The entries of names; what has no docstring of its own comes last, with its value."""
    found = [_entry(name, level) for name in names if has_docstring(name)]
    values = [f"- `{name}` {{ #{name} }}: {_value(name)}" for name in names if not has_docstring(name)]
    return [*found, *([f"{'#' * level} Values and types", "\n".join(values)] if values else [])]


def _entry(name: str, level: int) -> str:
    """The entry of a class or a function; `fw.plan` and `fw.split` have the names of packages, which hide them."""
    package = name.rpartition(".")[2]
    if is_typed(name) and package in PAGES:
        where = f"freewheel.{exported('')[package]}.{package}"
        return f"[](){{ #{name} }}\n\n::: {where}\n    options:\n      heading_level: {level}\n      heading: {name}"
    return f"::: {name}\n    options:\n      heading_level: {level}"


def has_docstring(name: str) -> bool:
    """Whether a name has a docstring of its own: classes and functions have, tables and types have not."""
    found = inspect.unwrap(_found(name))
    return inspect.isclass(found) or inspect.isfunction(found)


def _found(name: str) -> Any:
    package, _, last = name.rpartition(".")
    return getattr(import_module(package), last)


def _value(name: str) -> str:
    found = _found(name)
    if isinstance(found, dict):
        return "a dict of " + ", ".join(f"`{key}`" for key in found)
    shown = re.sub(r"freewheel\.[\w.]*\.|typing\.|collections\.abc\.", "", repr(found))
    return f"`{shown}`"


def index_text() -> str:
    """Return the page that lists all names."""
    rows = ["# API", "`fw` is `import freewheel as fw`. What users type:", ""]
    rows += _listed(typed=True)
    rows += [f"## {FOR_EXTENSIONS}", "What [extensions](../../guides/extending.md) and other tools import:", ""]
    return "\n".join([*rows, *_listed(typed=False)])


def _listed(*, typed: bool) -> list[str]:
    rows = []
    for page, title in PAGES.items():
        names = [f"[`{_typed(name)}`]({page}.md#{name})" for name in entries()[page] if is_typed(name) == typed]
        rows += [f"**[{title}]({page}.md)**: {', '.join(names)}", ""] if names else []
    return rows


def _typed(name: str) -> str:
    return name.replace("freewheel.", "fw." if is_typed(name) else "", 1)


def on_config(config: Any) -> Any:
    """Put the pages into the navigation; called by mkdocs."""
    section = next(part["Reference"] for part in config.nav if "Reference" in part)
    api = next(part for part in section if "API" in part)
    typed = [page for page in PAGES if any(map(is_typed, entries()[page]))]
    others = [page for page in PAGES if page not in typed]
    pages, more = ([{PAGES[page]: f"{FOLDER}/{page}.md"} for page in group] for group in (typed, others))
    api["API"] = [api["API"], *pages, {FOR_EXTENSIONS: more}]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; called by mkdocs."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, f"{FOLDER}/index.md", content=index_text()))
    for page in PAGES:
        files.append(File.generated(config, f"{FOLDER}/{page}.md", content=page_text(page)))
    return files


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Link names such as `fw.Trainer` to their entries, and docstrings to pages; called by mkdocs."""
    if page.file.src_uri.startswith("source/"):
        return html
    if page.file.src_uri.startswith(FOLDER):
        html = re.sub(r"\bdocs/([\w/-]+)\.md\b", lambda page: _link(page[1]), html)
    return linked(html)


def _link(page: str) -> str:
    """A link from the reference to a page, with its title."""
    title = (SOURCE.parents[1] / "docs" / f"{page}.md").read_text(encoding="utf-8").partition("\n")[0]
    return f'<a href="../../{page}.html">{title.removeprefix("# ")}</a>'


def linked(html: str) -> str:
    """Link each `fw.NAME` in code within the text that is no link and no heading yet.

    Example:
        >>> linked("<p><code>fw.FDG(shrink=0.5)</code></p>")
        '<p><autoref identifier="freewheel.FDG" optional><code>fw.FDG(shrink=0.5)</code></autoref></p>'
    """
    known = {*exported(""), *PAGES}

    def link(match: re.Match[str]) -> str:
        first = (match["name"] or "").partition(".")[0]
        if first not in known:
            return match.group()
        return f'<autoref identifier="freewheel.{match["name"]}" optional>{match.group()}</autoref>'

    skipped = r"<(?P<tag>a|pre|h\d)\b.*?</(?P=tag)>"
    code = r"<code>fw\.(?P<name>\w+(?:\.[A-Za-z]\w*)?)(?:\([^<]*)?</code>"
    return re.sub(f"{skipped}|{code}", link, html, flags=re.DOTALL)
