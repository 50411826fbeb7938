"""torchvision, which other libraries import, where its operators may not fit the installed torch."""

from __future__ import annotations

from contextlib import suppress

from freewheel._torchvision import import_torchvision


def declare_operators() -> None:
    """Let other libraries import torchvision, if there is one."""
    with suppress(ModuleNotFoundError):
        import_torchvision("a test")
