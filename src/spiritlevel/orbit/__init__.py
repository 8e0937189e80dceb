"""What is left of sharpness when the rescalings that change nothing are taken away."""

from spiritlevel.orbit.minimum import OrbitMinimum, balanced, minimum

__all__ = ["OrbitMinimum", "balanced", "minimum"]
