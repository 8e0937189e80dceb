"""What can be measured, by name, and `measure`, which fills a table."""

from spiritlevel.measures.ball import Worst, worst_in_ball
from spiritlevel.measures.base import Measure
from spiritlevel.measures.measuring import measure
from spiritlevel.measures.registry import MEASURES, register

__all__ = ["MEASURES", "Measure", "Worst", "measure", "register", "worst_in_ball"]
