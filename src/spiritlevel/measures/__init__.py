"""What can be measured, by name, and `measure`, which fills a table."""

from spiritlevel.measures.base import Measure
from spiritlevel.measures.measuring import measure
from spiritlevel.measures.registry import MEASURES, register
from spiritlevel.witnesses.worst import Worst, worst_in_ball

__all__ = ["MEASURES", "Measure", "Worst", "measure", "register", "worst_in_ball"]
