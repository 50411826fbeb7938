"""Writing files so that an interruption leaves the old one or the new one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write a file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def write_json(path: Path, value: Any) -> None:
    """Write plain data as JSON."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")
