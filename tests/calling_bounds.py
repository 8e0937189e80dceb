"""One valid call of every function of bounds."""

from __future__ import annotations

from typing import Any

import torch

import spiritlevel as sl


def calls(net: sl.Objective) -> dict[str, dict[str, Any]]:
    pac = {"error": 0.1, "kl": 5.0, "m": 100}
    norms = {"spectral": [1.0, 2.0], "inputs": 3.0, "width": 4}
    margin = {"error": 0.1, "margin": 0.5, "m": 100}
    slope = {"lipschitz": 1.0, "smoothness": 1.0, "m": 100}
    around = sl.bounds.Gaussian(net.vector, torch.full_like(net.vector, 0.1))
    few = {"init": net.vector * 0.5, "epochs": 1, "draws": 3}
    functions = {
        **dict.fromkeys(("maurer", "mcallester", "quadratic", "thiemann"), pac),
        "catoni": {**pac, "rate": 1.0},
        "dziugaite_roy": {**pac, "scale": sl.bounds.on_grid(0.1)[1]},
        "grid_share": {"delta": 0.05, "index": 3},
        "on_grid": {"scale": 0.1},
        "kl": {"q": 0.1, "p": 0.2},
        **{name: {"error": 0.1, "budget": 0.2} for name in ("kl_inverse", "kl_inverse_below")},
        "drawn": {"error": 0.1, "draws": 10},
        "mean_above": {"values": [0.1, 0.2], "delta": 0.05},
        "expected_sharpness": {
            **{"error": 0.1, "sharpness": 0.1, "norm": 2.0, "sigma": 0.5, "m": 100}
        },
        "occam": {"error": 0.1, "nats": 5.0, "m": 100},
        "vc": {"error": 0.1, "dimension": 30, "m": 100},
        "vc_dimension": {"layers": [(20, 5), (6, 1)]},
        "path": {**margin, "norm": 2.0, "inputs": 3.0, "features": 4, "layers": 2},
        "spectral_margin": {**margin, **norms, "distances": [1.0, 1.0]},
        "spectral_frobenius": {**margin, **norms, "frobenius": [1.5, 2.5]},
        **{name: {**slope, "rates": [0.1]} for name in ("hardt_convex", "hardt_nonconvex")},
        "hardt_strongly_convex": {**slope, "convexity": 0.5, "rate": 0.1},
        "Gaussian": {"mean": net.vector, "spread": torch.ones_like(net.vector)},
        "Recipe": {},
        "least_divergence": {"posterior": around, "prior": around, "shapes": net.shapes},
        "pac_bayes": {**few, "checkpoint": None},
        "survey": {**few, "only": ["vc"], "checkpoint": None},
        "bits_back": few,
        "flat_box": {**few, "draws": 3},
        "stability": {"pairs": 2, "steps": 2},
    }
    functions["flat_box"].pop("epochs")
    return {
        **{f"bounds.{name}": given for name, given in functions.items()},
        "Bounds.plot": {},
        "Bounds.__getitem__": {"name": "maurer"},
    }
