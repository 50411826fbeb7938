from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings

from freewheel._bfloat16 import UNSUPPORTED, cpu_bfloat16_works

collect_ignore = ["conftest.py"]

# A loaded machine is slow, which is no fault of a test. `make test` tries the same examples every time.
slow_is_fine = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=100, derandomize=True, database=None, **slow_is_fine)
settings.register_profile("exhaustive", max_examples=2000, **slow_is_fine)
settings.load_profile("quick")


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
