"""Pictures of the loss, honest about their coordinates."""

from spiritlevel.landscape.alignment import Alignment, aligned
from spiritlevel.landscape.convexity import convexity
from spiritlevel.landscape.interpolation import interpolate
from spiritlevel.landscape.lines import line
from spiritlevel.landscape.planes import plane
from spiritlevel.landscape.spectra import spectra
from spiritlevel.landscape.trajectories import trajectory

__all__ = [
    "Alignment",
    "aligned",
    "convexity",
    "interpolate",
    "line",
    "plane",
    "spectra",
    "trajectory",
]
