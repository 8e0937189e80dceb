"""What can be measured, by name, and `measure`, which fills a table."""

from spiritlevel.measures.ball import Worst, worst_in_ball
from spiritlevel.measures.base import Measure
from spiritlevel.measures.measuring import measure
from spiritlevel.measures.registry import MEASURES, register
from spiritlevel.measures.table import Row, Table

__all__ = ["MEASURES", "Measure", "Row", "Table", "Worst", "measure", "register", "worst_in_ball"]
