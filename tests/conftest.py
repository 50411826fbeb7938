from __future__ import annotations

import pytest
import torch

from freewheel._bfloat16 import UNSUPPORTED, cpu_bfloat16_works


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
