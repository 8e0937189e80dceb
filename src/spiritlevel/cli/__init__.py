"""The command: spiritlevel audit, bound, claims, compare, landscape, measure, report, and more."""

from importlib.metadata import entry_points

from spiritlevel.cli import audit as auditing
from spiritlevel.cli import bound as bounding
from spiritlevel.cli import claims, symmetries
from spiritlevel.cli import compare as comparing
from spiritlevel.cli import landscape as drawing
from spiritlevel.cli import measure as measuring
from spiritlevel.cli import report as reporting
from spiritlevel.cli import study as studying
from spiritlevel.cli import train as training
from spiritlevel.cli import watch as watching
from spiritlevel.cli.app import app, join

join(entry_points(group="spiritlevel.commands"))

__all__ = [
    "app",
    "auditing",
    "bounding",
    "claims",
    "comparing",
    "drawing",
    "measuring",
    "reporting",
    "studying",
    "symmetries",
    "training",
    "watching",
]
