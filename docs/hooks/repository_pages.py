"""Pages of the site that are files outside of `docs`: the README, the changelog, the source files that pages link to.

A link in a page is relative to the page's place in the repository, so it works there; here it is turned into one that
works in the site.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "examples/README.md": "start/examples.md",
    "CHANGELOG.md": "reference/changelog.md",
    "CONTRIBUTING.md": "reference/contributing.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".yml": "yaml"}
CODE = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ ]*$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()(?P<path>[^()\s#]*)(?P<anchor>#[^()\s]*)?(?=\))")


def links(text: str) -> Iterator[re.Match[str]]:
    """Yield the relative links of a page, without what only looks like one in code.

    Example:
        >>> [link.group() for link in links("[a](b.md#c), `[d](e.md)`, [f](https://g.org)")]
        ['b.md#c']
    """
    code = [match.span() for match in CODE.finditer(text)]
    for link in LINK.finditer(text):
        if ":" not in link["path"] and not any(begin <= link.start() < end for begin, end in code):
            yield link


def place(page: str) -> str:
    """Return where in the repository a page of the site is.

    Example:
        >>> place("index.md"), place("guides/check.md")
        ('README.md', 'docs/guides/check.md')
    """
    return {there: here for here, there in PAGES.items()}.get(page, f"docs/{page}")


def target(page: str, path: str) -> str:
    """Return the file of the repository that a link of a page leads to.

    Example:
        >>> target("guides/check.md", "../../src/freewheel/check")
        'src/freewheel/check'
    """
    return normpath(str(PurePosixPath(place(page)).parent / path)) if path else place(page)


def in_site(file: str) -> str:
    """Return the page of the site that shows a file of the repository.

    Example:
        >>> in_site("docs/guides/check.md"), in_site("src/freewheel/check"), in_site("LICENSE")
        ('guides/check.md', 'source/src/freewheel/check.md', 'source/LICENSE.md')
    """
    if file.startswith("docs/"):
        return file.removeprefix("docs/")
    return PAGES.get(file) or f"source/{file}.md"


def rewritten(page: str, text: str) -> str:
    """Return a page with links that work in the site.

    Example:
        >>> rewritten("guides/check.md", "[all](../../README.md#more)")
        '[all](../index.md#more)'
    """
    parts, end = [], 0
    for link in links(text):
        if link["path"]:
            there = relpath(in_site(target(page, link["path"])), str(PurePosixPath(page).parent))
            parts += [text[end : link.start()], there, link["anchor"] or ""]
            end = link.end()
    return "".join([*parts, text[end:]])


def source_page(file: str) -> str:
    """Return the page that shows a source file, or lists a folder."""
    path, head = ROOT / file, f"---\nsearch:\n  exclude: true\n---\n# `{file}`\n\n"
    if path.is_dir():
        files = sorted(each.name for each in path.iterdir() if each.is_file() and not each.name.startswith("."))
        return head + "\n".join(f"- [`{name}`]({path.name}/{name}.md)" for name in files) + "\n"
    return f"{head}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}````\n"


def sources(pages: dict[str, str]) -> set[str]:
    """Return the files and folders outside of `docs` that pages link to, with the files of such folders."""
    found = {target(page, link["path"]) for page, text in pages.items() for link in links(text)}
    found = {file for file in found if in_site(file).startswith("source/") and (ROOT / file).exists()}
    folders = [file for file in found if (ROOT / file).is_dir()]
    inside = (each for file in folders for each in (ROOT / file).iterdir() if each.is_file() and each.name[0] != ".")
    return found | {str(each.relative_to(ROOT)) for each in inside}


def on_files(files: Any, config: Any) -> Any:
    """Add the pages; called by mkdocs."""
    from mkdocs.structure.files import File

    pages = {file.src_uri: file.content_string for file in files.documentation_pages()}
    pages |= {there: (ROOT / here).read_text(encoding="utf-8") for here, there in PAGES.items()}
    for there in PAGES.values():
        files.append(File.generated(config, there, content=pages[there]))
    for file in sorted(sources(pages)):
        files.append(File.generated(config, in_site(file), content=source_page(file)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page; called by mkdocs."""
    uri = page.file.src_uri
    if uri.startswith(("source/", "reference/api/")):
        return markdown
    return rewritten(uri, markdown).replace("```python\n>>> ", "```pycon\n>>> ")
