"""What can be measured, by name, and `measure`, which fills a table."""

from spiritlevel.measures.registry import MEASURES, Measure, measure
from spiritlevel.measures.table import Row, Table

__all__ = ["MEASURES", "Measure", "Row", "Table", "measure"]
