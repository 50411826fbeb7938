"""The settings of a network, which callbacks may not change: when that would happen depends on timing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from freewheel._plain import is_plain, is_same
from freewheel.stage import attributes_read


class Settings:
    """The settings of a network: which weights are trained, and attributes of its modules.

    Of the user's own modules they are the plain values that a forward of the network uses and does not assign to: a
    forward may count its calls, and what it does not use is no setting.

    Args:
        network: The whole network.
        stages: The modules of the stages, before they are trained.
        loss: The loss.

    Example:
        >>> layer = nn.Dropout(0.5)
        >>> with Settings(layer, [layer]).untouched():
        ...     layer.p = 0.1
        Traceback (most recent call last):
            ...
        ValueError: a callback changed p of stages[0] while batches are under way: call fit once for each setting
    """

    def __init__(self, network: nn.Module, stages: Sequence[nn.Module], loss: Any = None) -> None:
        roots = [(f"stages[{k}]", stage) for k, stage in enumerate(stages)]
        roots += [("loss", loss)] if isinstance(loss, nn.Module) else []
        roots += [("model", network)]  # modules that have been traced are in no stage
        names: dict[nn.Module, str] = {}
        for prefix, root in roots:
            for name, module in root.named_modules(prefix=prefix):
                names.setdefault(module, name)
        used = set[str]().union(*(attributes_read(kind) for kind in {type(m) for m in names} if not _of_torch(kind)))
        self._modules = [(name, m, None if _of_torch(type(m)) else used & vars(m).keys()) for m, name in names.items()]
        parameters: dict[int, tuple[str, nn.Parameter]] = {}
        for prefix, root in roots:
            for name, p in root.named_parameters(prefix=prefix):
                parameters.setdefault(id(p), (name, p))
        self._parameters = list(parameters.values())

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Reject a change by a callback inside the context."""
        before = self._read()
        yield
        changed = next((key for key, value in self._read().items() if not is_same(before.get(key), value)), None)
        if changed is not None:
            name, attribute = changed
            raise ValueError(
                f"a callback changed {attribute} of {name} while batches are under way: call fit once for each setting"
            )

    def _read(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {}
        for name, module, used in self._modules:
            values = vars(module)
            found |= {(name, a): values.get(a) for a in (values if used is None else used) if is_plain(values.get(a))}
        return found | {(name, "requires_grad"): p.requires_grad for name, p in self._parameters}


def _of_torch(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("torch.nn.modules.")
