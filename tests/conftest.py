from __future__ import annotations

from pathlib import Path

import pytest
import torch

from freewheel._bfloat16 import UNSUPPORTED, cpu_bfloat16_works

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:
    pass  # tests that need it say so
else:
    # A loaded machine is slow, which is no fault of a test. `make test` tries the same examples every time.
    slow_is_fine = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("quick", max_examples=100, derandomize=True, database=None, **slow_is_fine)
    settings.register_profile("exhaustive", max_examples=2000, **slow_is_fine)
    settings.load_profile("quick")

collect_ignore = ["conftest.py"]


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the option of pytest-timeout where that is missing: tests then run without a limit."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "seconds for a test, which nothing measures here")


def pytest_configure(config: pytest.Config) -> None:
    """Declare its mark, too."""
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout: seconds for a test, which nothing measures here")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files without a test for a GPU where only those run: there may be nothing but torch and pytest."""
    only_cuda = config.option.markexpr.split()[:1] == ["cuda"]
    if only_cuda and collection_path.suffix == ".py" and "needs_cuda" not in collection_path.read_text("utf-8"):
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none."""
    for item in items if not torch.cuda.is_available() else ():
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device here"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cpu_bfloat16():
    """For tests that compute in bfloat16 on the CPU."""
    if not cpu_bfloat16_works():
        pytest.skip(UNSUPPORTED)
