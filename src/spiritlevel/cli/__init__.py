"""The command: spiritlevel audit, compare, measure, symmetries, sharpen."""

from spiritlevel.cli import auditing, comparing, measuring, symmetries
from spiritlevel.cli.app import app

__all__ = ["app", "auditing", "comparing", "measuring", "symmetries"]
