"""The settings of a network, which callbacks may not change: when that would happen depends on timing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

from freewheel._plain import is_plain, is_same
from freewheel.stage import names_in_forward


class Settings:
    """The settings of a network: which weights are trained, and attributes of its modules.

    They are plain values, and of the user's own modules those that a forward of the network uses. What a forward
    assigns to is none: it may count its calls. Of its own module that is none in modules of its class alone; of other
    objects, in all.

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
        kinds = {kind: names_in_forward(kind) for kind in {type(m) for m in names} if not _of_torch(kind)}
        used = set[str]().union(*(each.used for each in kinds.values()))
        others = set[str]().union(*(each.others for each in kinds.values()))
        self.modules: list[tuple[str, nn.Module, set[str]]] = []
        for module, name in names.items():
            found = kinds.get(type(module))
            settings = vars(module).keys() if found is None else (vars(module).keys() & used) - found.own
            self.modules.append((name, module, settings - others))
        parameters: dict[int, tuple[str, nn.Parameter]] = {}
        for prefix, root in roots:
            for name, p in root.named_parameters(prefix=prefix):
                parameters.setdefault(id(p), (name, p))
        self.parameters = list(parameters.values())

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

    def tensors(self) -> Iterator[tuple[str, Any]]:
        """Tensors that the user's own modules hold as attributes which a forward uses, by name."""
        for name, module, settings in self.modules:
            if not _of_torch(type(module)):
                yield from ((f"{name}.{key}", vars(module).get(key)) for key in settings)

    def _read(self) -> dict[tuple[str, str], Any]:
        found: dict[tuple[str, str], Any] = {}
        for name, module, settings in self.modules:
            values = vars(module)
            found |= {(name, key): values.get(key) for key in settings if is_plain(values.get(key))}
        return found | {(name, "requires_grad"): p.requires_grad for name, p in self.parameters}


def _of_torch(kind: type[nn.Module]) -> bool:
    return kind.__module__.startswith("torch.nn.modules.")
