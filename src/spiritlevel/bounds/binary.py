"""The divergence of two coins, and how far apart they can be for its size."""

from __future__ import annotations

import math

from spiritlevel.base.doors import number
from spiritlevel.bounds.asking import endless, share

SERIES = 1e-2  # below, x - log(1 + x) is summed term by term: the difference loses its digits
ROUNDS = 200  # of Newton's method, which ends when it no longer falls


def kl(q: float, p: float) -> float:
    """q log(q / p) + (1 - q) log((1 - q) / (1 - p)), in nats; infinite where p rules out q."""
    share("q", q)
    share("p", p)
    q, p = float(q), float(p)
    if q == p:
        return 0.0
    if p in (0.0, 1.0):
        return math.inf
    if q == 0:
        return -math.log1p(-p)
    if q == 1:
        return -math.log(p)
    # the linear parts cancel, so that what is left of p near q keeps its digits
    return _beyond_linear(q, p) + _beyond_linear(1 - q, 1 - p)


def kl_inverse(error: float, budget: float) -> float:
    """The largest p with kl(error, p) <= budget, by Newton's method from above.

    kl is convex and rising in p > error, so every iterate is an upper bound of the answer.
    """
    share("error", error)
    _size("budget", budget)
    q, budget = float(error), float(budget)
    if q == 1 or budget == math.inf:
        return 1.0
    if q == 0:
        return -math.expm1(-budget)
    if budget == 0:
        return q
    far = (q * math.log(q) - budget) / (1 - q)
    p = min(q + math.sqrt(budget / 2), q * math.exp(far) - math.expm1(far))  # 1 - (1 - q) exp(far)
    for _ in range(ROUNDS):
        if not q < p < 1:
            break
        slope = (p - q) / (p * (1 - p))
        step = (kl(q, p) - budget) / slope
        if step <= 0 or p - step == p:
            break
        p = max(p - step, q)
    return min(max(p, q), 1.0)


def kl_inverse_below(error: float, budget: float) -> float:
    """The least p with kl(error, p) <= budget."""
    share("error", error)
    return 1 - kl_inverse(1 - float(error), budget)


def _beyond_linear(a: float, b: float) -> float:
    """b - a - a log(b / a) >= 0, a and b positive."""
    if abs(b - a) > SERIES * a:
        ratio = b / a
        # of the smallest numbers the ratio is 0 or infinite, its logarithm is not
        rest = math.log(ratio) if 0 < ratio < math.inf else math.log(b) - math.log(a)
        return b - a - a * rest
    x = (b - a) / a
    total, power = 0.0, x * x
    for k in range(2, 12):
        total += power / k
        power *= -x
    return a * total


def _size(name: str, value: float) -> None:
    """Refuse what is negative; infinity is a size."""
    if not endless(value):
        number(name, value, 0.0)
