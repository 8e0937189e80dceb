"""The bound of expected sharpness: how much the loss rises where noise moves the weights."""

from __future__ import annotations

import math

from spiritlevel.base.doors import number
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds.asking import chance, examples, positive, share
from spiritlevel.bounds.pacbayes import GRID, PREMISES, grid_share
from spiritlevel.results.bound import Bound, Term

FIXED = "sigma does not depend on these examples"
ROUNDING = 1e-9  # of a difference of two means that is added to one of them


def expected_sharpness(
    *,
    error: float,
    sharpness: float,
    norm: float,
    sigma: float,
    m: int,
    delta: float = 0.05,
    index: int | None = None,
) -> Bound:
    """error + sharpness + 4 sqrt((norm^2 / (2 sigma^2) + log(2 m / delta)) / m).

    Of E loss(w + n), n ~ N(0, sigma^2 I): `sharpness` is the mean of loss(w + n) on the examples
    less `error`, the loss at w; `norm` is |w - the prior's mean|. With the `index` of sigma on a
    grid, delta is that entry's share. Neyshabur et al. 2017; the 4 is not needed for
    losses in [0, 1], where `mcallester` is the same with 1 / sqrt(2).
    """
    error, m, delta = share("error", error), examples(m), chance("delta", delta)
    sharpness, norm = _doors(error, sharpness, norm)
    sigma = positive("sigma", sigma)
    left = delta if index is None else grid_share(delta, index)
    kl = (norm / sigma) ** 2 / 2
    capacity = 4 * math.sqrt((kl + math.log(2 * m) - math.log(left)) / m)
    terms = {"error": error, "sharpness": sharpness, "kl": kl, "sigma": sigma}
    terms |= {"examples": m, "capacity": capacity}
    if index is not None:
        terms["index"] = int(index)
    return Bound(
        "expected_sharpness",
        "expected sharpness",
        error + sharpness + capacity,
        "mean error of this network with noise on its weights",
        tuple(Term(name, value) for name, value in terms.items()),
        delta,
        (*PREMISES, "the prior is N(its mean, sigma^2 I)", FIXED if index is None else GRID),
        "Neyshabur et al. 2017; McAllester 2003",
    )


def _doors(error: float, sharpness: float, norm: float) -> tuple[float, float]:
    number("sharpness", sharpness)
    number("norm", norm, 0.0)
    sharpness, norm = float(sharpness), float(norm)
    if not -ROUNDING <= error + sharpness <= 1 + ROUNDING:
        raise SpiritlevelError(
            f"error + sharpness = {error + sharpness:g}: give a sharpness with which it is a mean "
            "loss in [0, 1]"
        )
    return sharpness, norm
