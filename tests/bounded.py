"""Bounds of a network, made by hand."""

from __future__ import annotations

import math
from typing import Any

from spiritlevel.results.bound import (
    Bound,
    Bounds,
    Drawn,
    Origin,
    Part,
    Row,
    Step,
    Term,
)

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
DRAWN = "error of networks drawn from the posterior"


def bound(name: str, title: str, value: float, **more: Any) -> Bound:
    given: dict[str, Any] = {
        "of": DRAWN,
        "terms": (Term("error", 0.0623), Term("kl", 130.5), Term("m", 1437.0)),
        "delta": 0.05,
        "assumptions": ("the examples are independent draws from one distribution",),
        "reference": "Somebody, 2004",
    }
    return Bound(name, title, value, **{**given, **more})


def rows() -> tuple[Row, ...]:
    plain = {"of": "error of this network", "delta": 0.05}
    scale = {"of": "complexity", "delta": None, "trivial": math.inf}
    return (
        Row("here", bound("maurer", "PAC-Bayes-kl", 0.21371)),
        Row("orbit", bound("maurer", "PAC-Bayes-kl", 0.18112)),
        Row("here", bound("mcallester", "McAllester", 0.2951)),
        Row("orbit", bound("mcallester", "McAllester", 0.2644)),
        Row("here", bound("vc", "VC dimension", 7.31, **plain)),
        Row("here", bound("path", "path norm", 1234567.8, **scale)),
        Row("balanced", bound("path", "path norm", 345678.9, **scale)),
    )


def origin(**more: Any) -> Origin:
    parts = (
        Part("0.weight", 2048, 140.2, 92.1),
        Part("0.bias", 32, 9.1, 7.9),
        Part("2.weight", 64, 29.4, 28.9),
        Part("2.bias", 2, 1.6, 1.6),
    )
    steps = tuple(
        Step(epoch, 0.9 / epoch, 20.0 + 160 * (1 - 1 / epoch), 0.2 + 0.8 / epoch)
        for epoch in range(1, 41)
    )
    given: dict[str, Any] = {
        "error": Drawn(0.0561, 0.0002, 1000, 0.0623, 0.01),
        "test": Drawn(0.0712, 0.0004, 1000, 0.0761, 0.01),
        "kl": 180.3,
        "least": 130.5,
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
