"""What tangents are drawn from, one file each."""

from freewheel._errors import of_type, unknown
from freewheel.tangents.distributions._distribution import Distribution
from freewheel.tangents.distributions.gaussian import Gaussian
from freewheel.tangents.distributions.rademacher import Rademacher
from freewheel.tangents.distributions.sphere import Sphere

DISTRIBUTIONS: dict[str, type[Distribution]] = {"gaussian": Gaussian, "rademacher": Rademacher, "sphere": Sphere}


def find_distribution(given: str | Distribution) -> Distribution:
    """Returns a distribution by its name; a distribution passes through."""
    if not isinstance(given, str):
        return of_type("distribution", given, Distribution, "give a name such as 'gaussian', or a fw.Distribution")
    if given not in DISTRIBUTIONS:
        raise unknown("distribution", given, DISTRIBUTIONS)
    return DISTRIBUTIONS[given]()


__all__ = ["DISTRIBUTIONS", "Distribution", "Gaussian", "Rademacher", "Sphere", "find_distribution"]
