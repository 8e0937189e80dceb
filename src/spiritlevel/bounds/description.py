"""Occam's bound: of a network that can be written down in few nats."""

from __future__ import annotations

import math

from spiritlevel.bounds.asking import chance, divergence, examples, share
from spiritlevel.bounds.binary import kl_inverse
from spiritlevel.results.bound import Bound, Term


def occam(*, error: float, nats: float, m: int, delta: float = 0.05) -> Bound:
    """The largest p with kl(error, p) <= (nats + log(1 / delta)) / m.

    For all codewords of one prefix-free code at once: Kraft's sum of exp(-nats) is at most 1, and
    each has its share of delta in Chernoff's inequality, from one side. Langford 2005, the Occam's
    razor bound; Blumer et al. 1987.
    """
    error, nats = share("error", error), divergence(nats, "nats")
    m, delta = examples(m), chance("delta", delta)
    budget = (nats - math.log(delta)) / m
    return Bound(
        "occam",
        "Occam's razor",
        kl_inverse(error, budget),
        "error of the network that is written down",
        (
            Term("error", error),
            Term("nats", nats),
            Term("examples", m),
            Term("budget", budget),
        ),
        delta,
        (
            "the examples are drawn independently from one distribution, and so are new ones",
            "the loss of an example lies in [0, 1]",
            "the code is prefix-free and was fixed before the examples were seen",
            "the error is that of the network as it is written down, with its rounded weights",
        ),
        "Langford 2005; Blumer et al. 1987",
    )
