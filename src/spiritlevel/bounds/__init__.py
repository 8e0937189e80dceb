"""What is guaranteed of networks that were not tested, and under which assumptions."""

from spiritlevel.bounds.binary import kl, kl_inverse, kl_inverse_below
from spiritlevel.bounds.bits import Description, bits_back
from spiritlevel.bounds.box import FlatBox, flat_box
from spiritlevel.bounds.capacity import vc, vc_dimension
from spiritlevel.bounds.description import occam
from spiritlevel.bounds.gaussian import Gaussian
from spiritlevel.bounds.margins import path, spectral_frobenius, spectral_margin
from spiritlevel.bounds.network import pac_bayes
from spiritlevel.bounds.orbit import LeastDivergence, least_divergence
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
from spiritlevel.bounds.posterior import Recipe
from spiritlevel.bounds.sampling import drawn, mean_above
from spiritlevel.bounds.sharpness import expected_sharpness
from spiritlevel.bounds.stability import hardt_convex, hardt_nonconvex, hardt_strongly_convex

# functions with the names of files come last: the name is then that of the function
from spiritlevel.bounds.pairs import Stability, stability  # isort: skip
from spiritlevel.bounds.survey import survey  # isort: skip

__all__ = [
    "Description",
    "FlatBox",
    "Gaussian",
    "LeastDivergence",
    "Recipe",
    "Stability",
    "bits_back",
    "catoni",
    "drawn",
    "dziugaite_roy",
    "expected_sharpness",
    "flat_box",
    "grid_share",
    "hardt_convex",
    "hardt_nonconvex",
    "hardt_strongly_convex",
    "kl",
    "kl_inverse",
    "kl_inverse_below",
    "least_divergence",
    "maurer",
    "mcallester",
    "mean_above",
    "occam",
    "on_grid",
    "pac_bayes",
    "path",
    "quadratic",
    "spectral_frobenius",
    "spectral_margin",
    "stability",
    "survey",
    "thiemann",
    "vc",
    "vc_dimension",
]
