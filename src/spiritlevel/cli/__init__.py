"""The command: spiritlevel audit, claims, compare, measure, report, symmetries, sharpen."""

from spiritlevel.cli import audit as auditing
from spiritlevel.cli import claims, symmetries
from spiritlevel.cli import compare as comparing
from spiritlevel.cli import measure as measuring
from spiritlevel.cli import report as reporting
from spiritlevel.cli.app import app

__all__ = ["app", "auditing", "claims", "comparing", "measuring", "reporting", "symmetries"]
