"""What every result is: plain data that prints, writes and reads itself, without a model."""

from spiritlevel.results.audit import Audit
from spiritlevel.results.bound import Bound, Bounds
from spiritlevel.results.certificate import Certificate
from spiritlevel.results.claims import Claims
from spiritlevel.results.comparison import Comparison
from spiritlevel.results.forecast import Forecast
from spiritlevel.results.history import History
from spiritlevel.results.landscape import Line, Surface
from spiritlevel.results.result import Result, load
from spiritlevel.results.spectra import Spectra
from spiritlevel.results.study import Findings
from spiritlevel.results.symmetry import Sharpening, Symmetries
from spiritlevel.results.table import Table

__all__ = [
    "Audit",
    "Bound",
    "Bounds",
    "Certificate",
    "Claims",
    "Comparison",
    "Findings",
    "Forecast",
    "History",
    "Line",
    "Result",
    "Sharpening",
    "Spectra",
    "Surface",
    "Symmetries",
    "Table",
    "load",
]
