"""Bounds of a network, made by hand."""

from __future__ import annotations

import math
from typing import Any

from spiritlevel.bounds import maurer, mcallester
from spiritlevel.results.bound import Bound, Bounds, Drawn, Origin, Part, Row, Step, Term

TOLD: Any = {
    "parameters": 2146,
    "examples": 1437,
    "mode": "eval",
    "dtype": "float32",
    "device": "cpu",
    "seed": 0,
    "products": 0.0,
    "seconds": 42.0,
    "notes": ["delta is split: 0.04 for the bound, 0.01 for the draws"],
    "refused": {"spectral_margin": "the network is no chain of layers: 2 inputs meet at add"},
    "interrupted": "",
    "versions": {"spiritlevel": "0.1.0"},
}
PLAIN, LEAST, ABOVE = 180.3, 130.5, 0.0623  # nats, nats, and the largest error of drawn networks


def bound(name: str, title: str, value: float, **more: Any) -> Bound:
    given: dict[str, Any] = {
        "of": "error of this network",
        "terms": (Term("error", 0.0), Term("dimension", 15.3e6)),
        "delta": 0.05,
        "assumptions": ("the examples are independent draws from one distribution",),
        "reference": "Somebody, 2004",
    }
    return Bound(name, title, value, **{**given, **more})


def rows(plain: float = PLAIN, least: float = LEAST) -> tuple[Row, ...]:
    mean = {"of": "mean gap", "delta": None, "trivial": math.inf}
    made = [
        Row(point, of(error=ABOVE, kl=kl, m=1437, delta=0.05))
        for of in (maurer, mcallester)
        for point, kl in (("here", plain), ("orbit", least))
    ]
    return (
        *made,
        Row("here", bound("vc", "VC dimension", 7.31)),
        Row("here", bound("path", "margin over path norm", 1234567.8)),
        Row("balanced", bound("path", "margin over path norm", 345678.9)),
        Row("here", bound("hardt_convex", "stability, convex", 0.25, **mean)),
    )


def origin(**more: Any) -> Origin:
    parts = (
        Part("0.weight", 2048, 140.2, 92.1),
        Part("0.bias", 32, 9.1, 7.9),
        Part("2.weight", 64, 29.4, 28.9),
        Part("2.bias", 2, 1.6, 1.6),
    )
    steps = tuple(
        Step(epoch, 0.1 + 0.8 / epoch, 20.0 + 160 * (1 - 1 / epoch), 0.3 + 0.8 / epoch)
        for epoch in range(1, 41)
    )
    given: dict[str, Any] = {
        "error": Drawn(0.0561, 0.0002, 1000, ABOVE, 0.01),
        "test": Drawn(0.0712, 0.0004, 1000, 0.0761, 0.01),
        "kl": PLAIN,
        "least": LEAST,
        "lower_bound": 130.49,
        "examples": 1437,
        "prior": "the weights before training",
        "prior_scale": 0.1,
        "parts": parts,
        "steps": steps,
    }
    return Origin(**{**given, **more})


def full() -> Bounds:
    return Bounds(rows(), origin(), TOLD)
