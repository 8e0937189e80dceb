"""The symmetries of a network: found in its graph, moved along, proved."""

from spiritlevel.symmetry.find import symmetries
from spiritlevel.symmetry.group import Generator, Group
from spiritlevel.symmetry.signs import Signs, sign_flips
from spiritlevel.symmetry.units import HeadMap, Units, head_maps, permutations
from spiritlevel.symmetry.verify import Certificate, verify

__all__ = [
    "Certificate",
    "Generator",
    "Group",
    "HeadMap",
    "Signs",
    "Units",
    "head_maps",
    "permutations",
    "sign_flips",
    "symmetries",
    "verify",
]
