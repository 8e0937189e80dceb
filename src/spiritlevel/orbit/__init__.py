"""What is left of sharpness when the rescalings that change nothing are taken away."""

from spiritlevel.orbit.minimum import NORMS, OrbitMinimum, balanced, minimum
from spiritlevel.orbit.program import Problem, Solution, operator_of
from spiritlevel.orbit.representative import Representative, representative
from spiritlevel.orbit.search import Span, search
from spiritlevel.orbit.supremum import Supremum, supremum

__all__ = [
    "NORMS",
    "OrbitMinimum",
    "Problem",
    "Representative",
    "Solution",
    "Span",
    "Supremum",
    "balanced",
    "minimum",
    "operator_of",
    "representative",
    "search",
    "supremum",
]
