"""What a random start may have missed: eigenvalues beyond the Ritz values, or more copies of them.

Let x be an eigenvector, A x = mu x, and z = V'x its shares of the basis. A V_m = V_{m+p} C turns
into z'(C - mu I) = 0: p unknowns are left, and |z| <= 1, so the share that x has of the start is at
most what `Krylov.shares` says, and small where polynomials in A made it grow. But a random start
has a share of every eigenvector: if it had to be smaller than all but one start in a thousand would
have it, there is no such x. (van Dorsselaer, Hochstenbach and van der Vorst, 2001)
"""

from __future__ import annotations

import torch
from scipy.special import gammaincinv
from torch import Tensor

from spiritlevel.spectral.krylov import Krylov, Ritz
from spiritlevel.spectral.request import End

CHANCE = 1e-3  # of a start that is blind to an eigenvector
DOUBLINGS = 100


def known(
    krylov: Krylov, ends: list[End], ritz: Ritz, tolerances: Tensor, sure: bool = True
) -> bool:
    """Whether every wanted eigenvalue at these ends is within its tolerance of its Ritz value.

    Without `sure`, whether there are eigenvalues within the tolerances, wanted ones or others.
    """
    members = [i for end in ends for i in end.members]
    small = bool((ritz.residuals[members] <= tolerances[members]).all())
    if not (small and sure):
        return small
    return all(_nothing_missed(krylov, end, ritz, tolerances) for end in ends)


def _nothing_missed(krylov: Krylov, end: End, ritz: Ritz, tolerances: Tensor) -> bool:
    """Whether the end has no eigenvalue but those near its Ritz values, as often as those."""
    far = end.height + max(float(tolerances[end.last]), torch.finfo(torch.float64).tiny)
    near = [
        (end.sign * float(ritz.values[i]), float(tolerances[i]), float(ritz.residuals[i]))
        for i in end.members
    ]
    # Shares fall with the distance from the nearest Ritz value, so the edges tell of what is
    # between; beside a Ritz value itself there may be one more copy of it.
    places = {far, *(v + t for v, t, _ in near), *(v - t for v, t, _ in near)}
    for place in sorted(places | {v + min(r, t) for v, t, r in near}):
        copies = sum(abs(place - v) < 0.99 * t for v, t, _ in near)
        if place < far or copies >= krylov.width:
            continue
        if float(krylov.shares(end.sign * place)[copies]) > least_share(krylov, copies + 1):
            return False
    return True


def least_share(krylov: Krylov, copies: int) -> float:
    """What orthonormal eigenvectors have of a random start at least, but for a small chance.

    A start of b vectors holds a Gaussian matrix of b x j entries for j eigenvectors, and
    P(sigma_min <= t) <= j P(chi_{b-j+1} <= t sqrt(j)).
    """
    freedom = krylov.width - copies + 1
    chi_square = 2 * gammaincinv(freedom / 2, CHANCE / copies)
    return krylov.noise * float(chi_square / copies) ** 0.5


def bounds(krylov: Krylov, groups: list[list[End]], ritz: Ritz, tolerances: Tensor) -> Tensor:
    """How far each wanted eigenvalue can be from its Ritz value; infinite where nothing is known.

    The tolerance, if that is known, or the least power of two times the residual that is.
    """
    least = ritz.residuals.clamp(min=krylov.rounding * float(ritz.values.abs().max()))
    if krylov.complete:
        return least
    found = torch.full_like(least, float("inf"))
    for ends in groups:
        members = [i for end in ends for i in end.members]
        reaches = (2.0**doubling * least for doubling in range(DOUBLINGS))
        for reach in reaches:
            if known(krylov, ends, ritz, reach):
                found[members] = reach[members]
                break
        if known(krylov, ends, ritz, tolerances):
            found[members] = torch.minimum(found, tolerances)[members]
    return found
