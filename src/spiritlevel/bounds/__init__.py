"""What is guaranteed of networks that were not tested, and under which assumptions."""

from spiritlevel.bounds.binary import kl, kl_inverse, kl_inverse_below
from spiritlevel.bounds.pacbayes import (
    catoni,
    dziugaite_roy,
    grid_share,
    maurer,
    mcallester,
    on_grid,
    quadratic,
    thiemann,
)
from spiritlevel.bounds.sampling import drawn, mean_above

__all__ = [
    "catoni",
    "drawn",
    "dziugaite_roy",
    "grid_share",
    "kl",
    "kl_inverse",
    "kl_inverse_below",
    "maurer",
    "mcallester",
    "mean_above",
    "on_grid",
    "quadratic",
    "thiemann",
]
