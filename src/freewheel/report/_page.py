"""The page: one HTML file, with everything that it needs in it."""

from __future__ import annotations

import json
import re
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

SCRIPTS = ("dom", "theme", "charts", "overview", "curves", "zoom", "timeline", "stages", "live", "main")
CLOSING = re.compile("[<>&\u2028\u2029]")  # what could end a script, or a line in it


def page(data: dict[str, Any], *, live: bool = False) -> str:
    """The page of what `report_data` has found.

    It loads nothing: styles, scripts, the charting library and the data are in it.

    Args:
        data: What `report_data` returns.
        live: Whether the page asks for `data.json`, beside itself, once a second, and shows what comes.

    Returns:
        The HTML.

    Example:
        >>> html = page({"title": "first", "groups": [], "runs": []})
        >>> html.startswith("<!doctype html>"), "src=" in html[:2000]
        (True, False)
    """
    parts = {
        "title": escape(data["title"]),
        "connect": "'self'" if live else "'none'",
        "style": _file("web/style.css"),
        "data": _as_script(data),
        "vendor": _file("vendor/echarts.min.js"),
        "live": json.dumps(live),
        "script": "\n".join(_file(f"web/{name}.js") for name in SCRIPTS),
    }
    return re.sub(r"@(\w+)@", lambda found: parts[found[1]], _file("web/page.html"))


def _as_script(data: dict[str, Any]) -> str:
    """JSON that nothing in it can end early."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return CLOSING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@cache
def _file(name: str) -> str:
    return files("freewheel.report").joinpath(name).read_text(encoding="utf-8")
