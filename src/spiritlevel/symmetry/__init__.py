"""The symmetries of a network: found in its graph, moved along, proved."""

from spiritlevel.symmetry.find import symmetries
from spiritlevel.symmetry.group import Generator, Group

__all__ = ["Generator", "Group", "symmetries"]
