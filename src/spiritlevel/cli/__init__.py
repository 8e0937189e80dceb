"""The command: spiritlevel audit, claims, compare, measure, symmetries, sharpen."""

from spiritlevel.cli import auditing, claims, comparing, measuring, symmetries
from spiritlevel.cli.app import app

__all__ = ["app", "auditing", "claims", "comparing", "measuring", "symmetries"]
