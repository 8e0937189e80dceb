"""The symmetries of a network: found in its graph, moved along, proved."""

from spiritlevel.symmetry.find import symmetries
from spiritlevel.symmetry.group import Generator, Group
from spiritlevel.symmetry.signs import Signs, sign_flips
from spiritlevel.symmetry.tracing.operations import OPERATIONS
from spiritlevel.symmetry.tracing.record import Operation
from spiritlevel.symmetry.tracing.registry import register_operation, unregister_operation
from spiritlevel.symmetry.units import HeadMap, Units, head_maps, permutations
from spiritlevel.symmetry.verify import Certificate, verify

__all__ = [
    "OPERATIONS",
    "Certificate",
    "Generator",
    "Group",
    "HeadMap",
    "Operation",
    "Signs",
    "Units",
    "head_maps",
    "permutations",
    "register_operation",
    "sign_flips",
    "symmetries",
    "unregister_operation",
    "verify",
]
