"""Distributions of tangents, one file each."""

from freewheel._errors import of_type, one_of
from freewheel.tangents.distributions._distribution import Distribution as Distribution
from freewheel.tangents.distributions.gaussian import Gaussian as Gaussian
from freewheel.tangents.distributions.rademacher import Rademacher as Rademacher
from freewheel.tangents.distributions.sphere import Sphere as Sphere

DISTRIBUTIONS: dict[str, type[Distribution]] = {"gaussian": Gaussian, "rademacher": Rademacher, "sphere": Sphere}


def find_distribution(given: str | Distribution) -> Distribution:
    """Return a distribution by name; a `Distribution` is returned unchanged."""
    if not isinstance(given, str):
        return of_type("distribution", given, Distribution, "give a name such as 'gaussian', or a fw.Distribution")
    one_of("distribution", given, DISTRIBUTIONS)
    return DISTRIBUTIONS[given]()
