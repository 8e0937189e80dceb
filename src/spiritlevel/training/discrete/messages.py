"""Learning rules that come from belief propagation, for the binary perceptron."""

from __future__ import annotations

import numpy as np
from scipy.special import log_ndtr

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.training.discrete.instances import (
    Instance,
    Searched,
    checked_instance,
    generator,
    random_signs,
    searched,
)

MOST = 20.0  # of a field: tanh(20) is 1 in float64
LEAST = 1e-9  # of a variance, where all weights but one are decided


def sbpi(
    instance: Instance,
    *,
    seed: int,
    epochs: int = 1000,
    states: int | None = None,
    share: float = 0.3,
) -> Searched:
    """Integers h, W = sign(h), that move by 2 xi where W.xi <= 0, and settle where it is small.

    Where 0 < W.xi <= 1 (2 for an even number of weights), with the probability `share`, those h
    that agree with xi move away from zero by 2. |h| stays below `states`, an even number near
    sqrt(2 inputs) if None. Patterns come in a new order in each epoch. Baldassi, Braunstein,
    Brunel and Zecchina 2007.
    """
    _only_perceptrons(instance)
    doors.number("epochs", epochs, 1, whole=True)
    doors.number("share", share, 0)
    if share > 1:
        raise SpiritlevelError(f"share={share:g} is a probability; give at most 1")
    most = _odd(states, instance.inputs)
    draws, steps = generator(seed), 0
    h = random_signs((instance.inputs,), draws).astype(np.int64)
    patterns, barely = instance.patterns.astype(np.int64), 2 - instance.inputs % 2
    for _ in range(epochs):
        wrong = False
        for xi in patterns[draws.permutation(len(patterns))]:
            field = int(np.sign(h) @ xi)
            steps += 1
            if field <= 0:
                h, wrong = np.clip(h + 2 * xi, -most, most), True
            elif field <= barely and draws.random() < share:
                h = np.where(h * xi > 0, np.clip(h + 2 * xi, -most, most), h)
        if not wrong:  # no sign moved in the whole epoch
            break
    return searched(instance, np.sign(h), steps)


def _odd(states: int | None, inputs: int) -> int:
    """The largest |h|: odd, so that h is never zero."""
    if states is None:
        states = 2 * max(2, round((inputs / 2) ** 0.5))
    doors.number("states", states, 2, whole=True)
    return 2 * (int(states) // 2) - 1


def rbp(
    instance: Instance, *, seed: int, iterations: int = 1000, reinforcement: float = 0.99
) -> Searched:
    """Belief propagation whose fields remember themselves, until their signs are a solution.

    h_i <- r_t h_i + sum_mu u_mu->i, r_t = 1 - reinforcement^t, with the messages of `message`;
    Braunstein and Zecchina 2006.
    """
    _only_perceptrons(instance)
    doors.number("iterations", iterations, 1, whole=True)
    doors.number("reinforcement", reinforcement, above=0)
    if reinforcement > 1:
        raise SpiritlevelError(f"reinforcement={reinforcement!r}: give a number of at most 1")
    xi = instance.patterns.astype(np.float64)
    h = 1e-3 * generator(seed).standard_normal(instance.inputs)  # breaks the tie at zero
    u, weights, steps = np.zeros_like(xi), np.where(h > 0, 1, -1), 0
    for steps in range(1, iterations + 1):
        u = messages(xi, np.tanh(np.clip(h - u, -MOST, MOST)))
        h = (1 - reinforcement**steps) * h + u.sum(0)
        weights = np.where(h > 0, 1, -1)
        if (instance.patterns @ weights > 0).all():
            break
    return searched(instance, weights, steps)


def messages(xi: np.ndarray, means: np.ndarray) -> np.ndarray:
    """u_mu->i = 1/2 log P(W.xi > 0 | W_i = 1) / P(W.xi > 0 | W_i = -1), the rest of W.xi normal.

    Its mean is sum_j xi_j m_j->mu and its variance sum_j (1 - m_j->mu^2), j other than i.
    """
    mean, variance = xi * means, 1 - means**2
    rest = mean.sum(1, keepdims=True) - mean
    spread = np.sqrt(np.maximum(variance.sum(1, keepdims=True) - variance, LEAST))
    found = (log_ndtr((rest + xi) / spread) - log_ndtr((rest - xi) / spread)) / 2
    return np.clip(found, -MOST, MOST)


def _only_perceptrons(instance: Instance) -> None:
    checked_instance(instance)
    if instance.hidden != 1:
        raise SpiritlevelError(
            f"instance has {instance.hidden} hidden units; this rule is for a perceptron: take "
            "anneal() or replicated_anneal()"
        )
