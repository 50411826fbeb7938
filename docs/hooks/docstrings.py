"""Docstrings say `Example:`, which the reader of docstrings knows as `Examples:`."""

from __future__ import annotations

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Read `Example:` as a section of code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of a docstring; called for each object that is read."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("Example:\n", "Examples:\n")
