"""How often bounds are wrong, where the truth is known: no more often than they say.

Each is drawn 2,000 times. Of k violations the upper end of the exact binomial interval, at 99.9 %,
has to be below delta; bounds that leave out what they pay for are caught by the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.special import rel_entr
from scipy.stats import beta, norm

from spiritlevel import bounds
from spiritlevel.results.bound import Bound

TIMES = 2000
DELTA = 0.2  # large, so that violations would be seen


def most_often(violations: int) -> float:
    """The largest probability that so few violations are likely for (Clopper & Pearson)."""
    return float(beta.ppf(0.999, violations + 1, TIMES - violations))


def check(broken: np.ndarray) -> None:
    assert broken.shape == (TIMES,)
    k = int(broken.sum())
    assert most_often(k) <= DELTA, f"{k} of {TIMES}: up to {most_often(k):.3f}, delta {DELTA}"


# Networks drawn from a posterior ------------------------------------------------------------------

EXAMPLES, CLASSIFIERS, CELLS = 40, 400, 60


@cache
def posteriors() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Error, risk and divergence from the uniform prior of posteriors over 400 classifiers.

    Inputs are one of 60, each classifier is wrong on some. "gibbs" weighs by the errors; "worst"
    knows the risks, and looks for classifiers whose error is far below: bounds hold for it too.
    """
    draws = np.random.default_rng(0)
    chances = draws.dirichlet(np.ones(CELLS))
    wrong = draws.random((CELLS, CLASSIFIERS)) < draws.uniform(0.02, 0.5, CLASSIFIERS)
    risks = chances @ wrong
    errors = draws.multinomial(EXAMPLES, chances, TIMES) @ wrong / EXAMPLES
    off = rel_entr(errors, risks) + rel_entr(1 - errors, 1 - risks)
    logits = {
        "gibbs": -EXAMPLES * errors,
        "worst": 3 * EXAMPLES * np.where(errors < risks, off, 0),
    }
    found = {}
    for name, values in logits.items():
        q = np.exp(values - values.max(1, keepdims=True))
        q /= q.sum(1, keepdims=True)
        kl = (q * np.log(np.maximum(q, 1e-300) * CLASSIFIERS)).sum(1)
        found[name] = ((q * errors).sum(1), q @ risks, np.maximum(kl, 0))
    return found


def violations(bound: Callable[..., Bound], name: str, **given: Any) -> np.ndarray:
    rows = zip(*posteriors()[name], strict=True)
    return np.array(
        [
            bound(error=min(e, 1), kl=kl, m=EXAMPLES, delta=DELTA, **given).value < risk
            for e, risk, kl in rows
        ]
    )


@pytest.mark.parametrize("posterior", ["gibbs", "worst"])
@pytest.mark.parametrize(
    ("bound", "given_"),
    [
        (bounds.maurer, {}),
        (bounds.mcallester, {}),
        (bounds.quadratic, {}),
        (bounds.thiemann, {}),
        (bounds.thiemann, {"rate": 1.0}),
        (bounds.catoni, {"rate": 1.0}),
        (bounds.dziugaite_roy, {"scale": bounds.on_grid(1.0)[1]}),
    ],
)
def test_pac_bayes(bound: Callable[..., Bound], given_: dict[str, Any], posterior: str) -> None:
    check(violations(bound, posterior, **given_))


def test_a_bound_that_forgets_the_divergence_is_caught() -> None:
    def forgetful(*, kl: float, **given: Any) -> Bound:
        return bounds.maurer(kl=0.0, **given)

    assert violations(forgetful, "worst").mean() > DELTA


# One classifier of a class ------------------------------------------------------------------------

POINTS = 100
NOISE = 0.2
CUTS = np.arange(65) / 64  # 1 where x > cut; the truth is at 1/2, but for noise


@cache
def thresholds() -> tuple[np.ndarray, np.ndarray]:
    """Counts of wrong examples of every threshold, (draws, cuts), and the true risks."""
    draws = np.random.default_rng(1)
    chance = np.where(np.arange(64) < 32, NOISE, 1 - NOISE)  # of label 1 in each interval
    x = draws.multinomial(POINTS, np.full(64, 1 / 64), TIMES)
    ones = draws.binomial(x, chance)
    ones_below = np.concatenate([np.zeros((TIMES, 1), int), ones.cumsum(1)], 1)
    zeros_above = (x - ones)[:, ::-1].cumsum(1)[:, ::-1]
    zeros_above = np.concatenate([zeros_above, np.zeros((TIMES, 1), int)], 1)
    return ones_below + zeros_above, NOISE + (1 - 2 * NOISE) * np.abs(CUTS - 0.5)


def of_counts(bound: Callable[..., Bound], **given: Any) -> np.ndarray:
    """Whether any threshold has a risk above its bound, in each draw."""
    values = [
        bound(error=k / POINTS, m=POINTS, delta=DELTA, **given).value for k in range(POINTS + 1)
    ]
    counts, risks = thresholds()
    return np.any(np.array(values)[counts] < risks, axis=1)


def test_the_toy_is_right() -> None:
    counts, risks = thresholds()
    stderr = np.sqrt(risks * (1 - risks) / (POINTS * TIMES))
    assert (np.abs(counts.mean(0) / POINTS - risks) < 5 * stderr).all()


def test_a_dimension() -> None:
    """All thresholds at once, a class of the dimension 1."""
    check(of_counts(bounds.vc, dimension=1))


def test_a_description() -> None:
    check(of_counts(bounds.occam, nats=math.log(len(CUTS))))
    assert of_counts(bounds.occam, nats=0.0).mean() > DELTA  # one number of 65 for nothing


# Means of drawn numbers ---------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["coins", "flat", "rare"])
def test_means(kind: str) -> None:
    draws = np.random.default_rng(2)
    size = (TIMES, 30)
    values, mean = {
        "coins": ((draws.random(size) < 0.3).astype(float), 0.3),
        "flat": (draws.uniform(0, 0.2, size), 0.1),
        "rare": ((draws.random(size) < 0.04).astype(float), 0.04),  # most draws hold few or none
    }[kind]
    check(np.array([bounds.mean_above(row, DELTA) < mean for row in values]))
    errors = values.mean(1)
    check(np.array([bounds.drawn(error=e, draws=30, delta=DELTA) < mean for e in errors]))
    assert (errors < mean).mean() > DELTA  # the mean itself is no bound


# Norms and noise ----------------------------------------------------------------------------------

CORNERS = np.array([(a, b) for a in (1.0, -1.0) for b in (1.0, -1.0)])
ANGLES = np.linspace(0.1, 2 * math.pi + 0.1, 16, endpoint=False)
LINES = np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1)  # linear classifiers of norm 1
MARGIN = 0.05


@cache
def lines(m: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares of examples by cell in each draw, margins (cells, lines), and the cells' chances.

    The label is the sign of the first input, but for noise.
    """
    labels = np.concatenate([np.sign(CORNERS[:, 0]), -np.sign(CORNERS[:, 0])])
    chances = np.repeat([(1 - NOISE) / 4, NOISE / 4], 4)
    margins = labels[:, None] * (np.concatenate([CORNERS, CORNERS]) @ LINES.T)
    return np.random.default_rng(3).multinomial(m, chances, TIMES) / m, margins, chances


def of_lines(bound: Callable[[float, np.ndarray], Bound], m: int) -> np.ndarray:
    """Whether any line errs more than its bound; and that the bound says something."""
    cells, margins, chances = lines(m)
    errors, risks = cells @ (margins <= MARGIN), chances @ (margins <= 0)
    # the value is the error and a number that all draws share
    over = np.array([bound(0.0, line).value for line in LINES])
    assert over.min() < 0.5
    return np.any(errors + over < risks, axis=1)


def test_spectral_norms() -> None:
    m = 10**12
    given: Any = {"margin": MARGIN, "spectral": [1.0], "width": 2, "m": m, "delta": DELTA}

    def bound(error: float, line: np.ndarray) -> Bound:
        inputs = math.sqrt(2 * m)
        return bounds.spectral_margin(error=error, distances=[1.0], inputs=inputs, **given)

    check(of_lines(bound, m))


def test_path_norms() -> None:
    given: Any = {"margin": MARGIN, "inputs": 1.0, "features": 2, "layers": 1, "classes": 1}

    def bound(error: float, line: np.ndarray) -> Bound:
        size = float(np.abs(line).sum())
        return bounds.path(error=error, norm=size, m=10**5, delta=DELTA, **given)

    check(of_lines(bound, 10**5))


def test_spectral_and_frobenius_norms() -> None:
    given: Any = {"margin": MARGIN, "spectral": [1.0], "frobenius": [1.0], "width": 2}

    def bound(error: float, line: np.ndarray) -> Bound:
        inputs = math.sqrt(2)
        return bounds.spectral_frobenius(error=error, inputs=inputs, m=10**9, delta=DELTA, **given)

    check(of_lines(bound, 10**9))


def test_expected_sharpness() -> None:
    """Errors of lines with noise are a normal distribution's: nothing is drawn but the data."""
    m, sigma = 2000, 0.3
    cells, margins, chances = lines(m)
    noisy = norm.cdf(-margins / (sigma * math.sqrt(2)))
    errors, means = cells @ (margins <= 0), cells @ noisy
    given: Any = {"norm": 1.0, "sigma": sigma, "m": m, "delta": DELTA}
    over = bounds.expected_sharpness(error=0.0, sharpness=0.0, **given).value
    one = bounds.expected_sharpness(
        error=errors[0, 0], sharpness=means[0, 0] - errors[0, 0], **given
    )
    assert one.value == pytest.approx(means[0, 0] + over)
    assert over < 0.5
    check(np.any(means + over < chances @ noisy, axis=1))
