"""What is left of sharpness when the rescalings that change nothing are taken away."""

from spiritlevel.orbit.minimum import NORMS, OrbitMinimum, balanced, minimum
from spiritlevel.orbit.program import Problem, Solution, operator_of
from spiritlevel.orbit.proofs import Choice, Proof
from spiritlevel.orbit.representative import Representative, representative
from spiritlevel.orbit.search import Span, search
from spiritlevel.orbit.supremum import Supremum, supremum
from spiritlevel.orbit.worst import WorstCase, worst_case

__all__ = [
    "NORMS",
    "Choice",
    "OrbitMinimum",
    "Problem",
    "Proof",
    "Representative",
    "Solution",
    "Span",
    "Supremum",
    "WorstCase",
    "balanced",
    "minimum",
    "operator_of",
    "representative",
    "search",
    "supremum",
    "worst_case",
]
