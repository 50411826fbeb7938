"""The settings of a network, which callbacks may not change: when that would happen depends on timing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from freewheel._plain import PLAIN


class Settings:
    """The settings of a network: which weights are trained, and the attributes of torch's own modules.

    Modules of the user may change their attributes in a forward, and are not watched.

    Args:
        stages: The modules of the stages, before they are trained.
        loss: The loss.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> with Settings([layer]).untouched():
        ...     layer.p = 0.1
        Traceback (most recent call last):
            ...
        ValueError: a callback changed p of stages[0] while batches are under way: call fit once for each setting
    """

    def __init__(self, stages: Sequence[nn.Module], loss: Any = None) -> None:
        roots = [(f"stages[{k}]", stage) for k, stage in enumerate(stages)]
        roots += [("loss", loss)] if isinstance(loss, nn.Module) else []
        modules = [pair for prefix, stage in roots for pair in stage.named_modules(prefix=prefix)]
        self._modules = [(name, m) for name, m in modules if type(m).__module__.startswith("torch.nn.modules.")]
        self._parameters = [pair for prefix, stage in roots for pair in stage.named_parameters(prefix=prefix)]

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Reject a change by a callback inside the context."""
        before = self._read()
        yield
        changed = next((key for key, value in self._read().items() if before.get(key) != value), None)
        if changed is not None:
            name, attribute = changed
            raise ValueError(
                f"a callback changed {attribute} of {name} while batches are under way: call fit once for each setting"
            )

    def _read(self) -> dict[tuple[str, str], Any]:
        settings = {(n, a): value for n, m in self._modules for a, value in vars(m).items() if type(value) in PLAIN}
        return settings | {(name, "requires_grad"): p.requires_grad for name, p in self._parameters}
