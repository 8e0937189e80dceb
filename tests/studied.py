"""A study of networks, made by hand: what is measured is the gap, blurred by coordinates."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from scipy.stats import kendalltau

from spiritlevel.results.study import Findings, Network, Ranked, Row, Signs

AXES: dict[str, list[Any]] = {
    "width": [32, 64, 128],
    "rate": [0.01, 0.03, 0.1, 0.3],
    "optimizer": ["sgd", "adam"],
}
SEEDS = 5
AT = " @ representative"
# label: title, family, whether nothing moves it, how it hangs on the gap, how much it is blurred,
# and the row with the orbit divided out
MEASURES: dict[str, tuple[str, str, bool, float, float, str]] = {
    "hessian_trace": ("trace", "curvature", False, 2.0, 1.6, "orbit_trace"),
    "orbit_trace": ("least trace on the orbit", "curvature", True, 2.0, 0.5, ""),
    "hessian_spectral": ("spectral norm", "curvature", False, 1.5, 1.2, "orbit_spectral"),
    "orbit_spectral": ("least spectral norm on the orbit", "curvature", True, 1.5, 0.9, ""),
    "keskar(eps=0.0005)": (
        *("Keskar sharpness, eps 0.0005", "sharpness", False, 1.0, 1.5),
        "keskar(eps=0.0005) @ representative",
    ),
    f"keskar(eps=0.0005){AT}": (
        *("Keskar sharpness, eps 0.0005, at the representative", "sharpness"),
        *(True, 1.0, 1.0, ""),
    ),
    "fisher_rao": ("Fisher-Rao norm", "geometry", True, 0.6, 0.7, ""),
    "path_norm": ("path norm", "norms", True, 0.8, 0.4, ""),
    "param_norm": ("norm of the weights", "norms", False, -0.5, 0.6, f"param_norm{AT}"),
    f"param_norm{AT}": ("norm of the weights, at the representative", "norms", True, -0.9, 0.6, ""),
    "gradient_noise": ("gradient noise scale", "gradients", False, 0.0, 1.0, ""),
}
TOLD: Any = {
    "planned": 123,
    "failed": 3,
    "seconds": 4210.0,
    "notes": ["keskar(eps=0.0005) was refused for 4 networks: the loss is not finite in its box"],
    "refused": {},
    "interrupted": "",
    "versions": {"spiritlevel": "0.1.0", "torch": "2.11.0", "python": "3.12.4"},
}


def networks(seed: int = 0, seeds: int = SEEDS) -> tuple[Network, ...]:
    """The gap falls with the width and the rate; every value is positive but for the noise's."""
    draws = np.random.default_rng(seed)
    made = []
    for values in itertools.product(*AXES.values()):
        config = dict(zip(AXES, values, strict=True))
        level = -0.3 * math.log2(config["width"] / 32) - 0.25 * math.log10(config["rate"] / 0.01)
        level += 0.35 * (config["optimizer"] == "adam")
        for number in range(seeds):
            made.append(_network(config, number, level + 0.12 * draws.normal(), draws))
    return tuple(made)


def _network(
    config: dict[str, Any], seed: int, level: float, draws: np.random.Generator
) -> Network:
    gap = 0.06 * math.exp(level)
    numbers = {"gap": gap, "train_error": 0.0, "test_error": gap, "train_loss": 0.01}
    values = {
        label: 20 * math.exp(hangs * level + blur * draws.normal())
        for label, (_, _, _, hangs, blur, _) in MEASURES.items()
    }
    values["gradient_noise"] = float(draws.normal())
    if draws.random() < 0.03:
        values["keskar(eps=0.0005)"] = math.nan
    errors = {label: 0.08 * abs(value) for label, value in values.items() if "orbit" not in label}
    key = "-".join(map(str, (*config.values(), seed)))
    return Network(key, config, seed, numbers, values, errors)


def row(label: str, made: tuple[Network, ...], place: int = 0) -> Row:
    title, family, invariant, _, _, bottom = MEASURES[label]
    tau = _tau(label, made)
    psi = {axis: round(tau * (0.5 + 0.4 * k), 3) for k, axis in enumerate(AXES)}
    gain = _tau(bottom, made) - tau if bottom else None
    return Row(
        *(label, title, family, invariant),
        n=sum(math.isfinite(network.values[label]) for network in made),
        tau=_interval(tau, 0.11),
        tau_a=0.99 * tau,
        p=min(1.0, 4e-4 * 4**place),
        psi=float(np.mean(list(psi.values()))),
        by_axis=psi,
        information=max(0.0, tau**2 / 3),
        signs=Signs(0.5 - tau / 2, min(1.0, 0.8 - tau / 3), 1.0 if tau < 0.5 else 0.9, 68),
        partial=_interval(0.6 * tau, 0.14),
        bottom=bottom,
        gain=None if gain is None else _interval(gain, 0.09),
    )


def _tau(label: str, made: tuple[Network, ...]) -> float:
    pairs = [(n.values[label], n.numbers["gap"]) for n in made if math.isfinite(n.values[label])]
    found: Any = kendalltau(*zip(*pairs, strict=True))
    return float(found.statistic)


def _interval(value: float, half: float) -> Ranked:
    return Ranked(value, max(-1.0, value - half), min(1.0, value + half))


def full(seeds: int = SEEDS, told: Any = TOLD, **more: Any) -> Findings:
    made = networks(seeds=seeds)
    labels = sorted(MEASURES, key=lambda label: -abs(_tau(label, made)))
    rows = tuple(row(label, made, place) for place, label in enumerate(labels))
    given = {"axes": AXES, "controls": ("train_loss", "rate", "width"), "rows": rows}
    return Findings(
        **{"name": "digits", "outcome": "gap", **given, "networks": made, "provenance": told} | more
    )
