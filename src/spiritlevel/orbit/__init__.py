"""What is left of sharpness when the rescalings that change nothing are taken away."""

from spiritlevel.orbit.minimum import OrbitMinimum, balanced, minimum
from spiritlevel.orbit.search import Span, search
from spiritlevel.orbit.supremum import Supremum, supremum

__all__ = ["OrbitMinimum", "Span", "Supremum", "balanced", "minimum", "search", "supremum"]
