"""The pages run as tests; one uses a library that imports torchvision."""

import sys
from pathlib import Path

import pytest

collect_ignore = ["conftest.py"]


@pytest.fixture(autouse=True)
def operators_of_torchvision(request: pytest.FixtureRequest) -> None:
    """Declare what torchvision needs, where it is built for another device."""
    if request.node.name == "own-model.md":
        sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
        from vision import declare_operators

        declare_operators()
