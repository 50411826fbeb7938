"""Draws every plan that a page prints: a row per stage, a column per tick."""

from __future__ import annotations

import re
from html import escape
from typing import Any

import freewheel as fw

TICK, ROW, LEFT = 44, 34, 62
KINDS = {"F": "forward", "R": "recompute", "B": "backward"}
DRAWING = re.compile(r"^(?:\.\.\. )?plan [\w-]+: .*\n(?:time .*\n)(?:stage .*\n?)+", re.MULTILINE)
NAMED_SEARCH = '<div class="md-search" data-md-component="search" role="dialog" aria-label="Search">'
BLOCK = re.compile(r"^```(?:python|pycon|text)?\n.*?^```$", re.MULTILINE | re.DOTALL)


def picture(plan: fw.Plan) -> str:
    """Return a plan as SVG, whose colours the page sets.

    Example:
        >>> svg = picture(fw.plan("pipedream", k=2, batches=3))
        >>> svg.count('class="forward"'), svg.count('class="backward"')
        (6, 6)
    """
    cells, stages = plan.cells(), plan.schedule.stages
    width, height = LEFT + TICK * max(cell.end for cell in cells) + 2, ROW * stages
    title = f"Timeline of {plan.schedule.name}, {stages} stages"
    size = f'width="{width:g}" height="{height}" viewBox="0 0 {width:g} {height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(title)}">']
    parts += [f'<text class="stage" x="0" y="{ROW * k + 21}">stage {k}</text>' for k in range(stages)]
    for stage, op, batch, micro, version, begin, end in cells:
        x, y, wide = LEFT + TICK * begin, ROW * stage, TICK * (end - begin)
        number = f"{batch}" if micro is None else f"{batch}.{micro}"
        what = f"{KINDS[op]} of batch {number}, weights of version {version}, stage {stage}"
        parts.append(
            f'<g><title>{what}</title><rect class="{KINDS[op]}" x="{x + 1:g}" y="{y + 1}" width="{wide - 2:g}" '
            f'height="{ROW - 2}" rx="3"/><text x="{x + wide / 2:g}" y="{y + 16}">{number}</text>'
            f'<text class="version" x="{x + wide / 2:g}" y="{y + 28}">v{version}</text></g>'
        )
    return "".join([*parts, "</svg>"])


def with_pictures(markdown: str) -> str:
    """Add the picture of each plan that a block of code prints below the block."""

    def drawn(block: re.Match[str]) -> str:
        texts = [text.group() for text in DRAWING.finditer(block.group()) if not text.group().startswith("...")]
        figures = [f'<div class="timeline" tabindex="0">{picture(fw.Plan.parse(text))}</div>' for text in texts]
        return "\n\n".join([block.group(), *figures]) + ("\n" if figures else "")

    return BLOCK.sub(drawn, markdown)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Draw the plans of a page; called by mkdocs."""
    return markdown if page.file.src_uri.startswith(("source/", "reference/")) else with_pictures(markdown)


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's search dialog for screen readers; called by mkdocs."""
    return output.replace('<div class="md-search" data-md-component="search" role="dialog">', NAMED_SEARCH)
