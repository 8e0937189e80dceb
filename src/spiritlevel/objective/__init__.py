"""A model, its data and its loss, frozen at one point."""

from spiritlevel.objective.description import described
from spiritlevel.objective.objective import Objective, only_objectives

__all__ = ["Objective", "described", "only_objectives"]
