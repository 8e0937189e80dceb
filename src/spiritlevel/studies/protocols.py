"""Protocols of the literature as studies: small on two cores, full on a GPU.

>>> from spiritlevel.studies.protocols import PROTOCOLS
>>> PROTOCOLS["width"].study().name
'width'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.results.study import Network
from spiritlevel.studies import recipes
from spiritlevel.studies.directions import Direction, Reported, direction
from spiritlevel.studies.study import Study

SMALL: dict[str, Any] = {"data": "digits", "epochs": 400}
FULL: dict[str, Any] = {"data": "fashion", "examples": 5000, "epochs": 600}
SETTINGS: dict[str, Any] = {"tol": 1e-2, "rtol": 0.05, "compile": False}


@dataclass(frozen=True)
class Protocol:
    """A grid, what is measured, and what its source reports of it."""

    title: str
    source: str
    axes: dict[str, Any]  # of both sizes
    measures: tuple[str, ...]
    reported: tuple[Reported, ...]
    small: dict[str, Any]
    full: dict[str, Any]
    representative: tuple[str, ...] = ()
    outcome: str = "test_error"

    def study(self, *, full: bool = False, seeds: int = 5) -> Study:
        """The study, on the embedded digits, or full: on Fashion-MNIST (SPIRITLEVEL_DATA)."""
        sized = {**FULL, **self.full} if full else {**SMALL, **self.small}
        name = next(name for name, one in PROTOCOLS.items() if one is self)
        return Study(
            f"{name}, full" if full else name,
            recipes.grid(**{**sized, **self.axes}),
            recipes.train,
            self.measures,
            seeds,
            self.outcome,
            representative=self.representative,
            settings=SETTINGS,
            together=recipes.together,
            train_many=recipes.train_many,
        )

    def directions(self, study: Study, networks: Sequence[Network]) -> list[Direction]:
        """What the networks of its study say of each thing that was reported."""
        return [direction(networks, one, study.axes) for one in self.reported]


def protocol(name: str) -> Protocol:
    """The protocol of this name."""
    if name not in PROTOCOLS:
        raise SpiritlevelError(f"no protocol {name!r}; there are: {', '.join(PROTOCOLS)}")
    return PROTOCOLS[name]


CURVED = ("hessian_spectral", "hessian_trace", "orbit_spectral", "orbit_trace")
SHARP, TESTED = "hessian_spectral", "test_error"

PROTOCOLS: dict[str, Protocol] = {
    "batch": Protocol(
        "small against large batches at one training loss",
        "Keskar et al. (2017)",
        {"optimizer": "adam", "times": 0.1, "depth": 2},
        ("keskar", "keskar(eps=5e-4)", "gradient_norm", *CURVED),
        (
            Reported("batch", "keskar"),
            Reported("batch", TESTED),
        ),
        {"width": 64, "batch": [16, 144], "stop": 0.01},
        {"width": 256, "batch": [32, 500], "stop": 0.01},
        representative=("keskar",),
    ),
    "batch_until_no_improvement": Protocol(
        "small against large batches until the loss stops falling",
        "Keskar et al. (2017)",
        {"optimizer": "adam", "times": 0.1, "depth": 2, "patience": 10},
        ("keskar", "keskar(eps=5e-4)", "gradient_norm", *CURVED),
        (
            Reported("batch", "keskar"),
            Reported("batch", TESTED),
        ),
        {"width": 64, "batch": [16, 144], "epochs": 150},
        {"width": 256, "batch": [32, 500], "epochs": 150},
        representative=("keskar",),
    ),
    "width": Protocol(
        "one hidden layer of any width",
        "Neyshabur et al. (2015)",
        {"depth": 1, "times": 0.3},
        ("parameter_count", "parameter_norm", "path_norm", *CURVED),
        (Reported("width", TESTED, less=True),),
        {"width": [8, 32, 128], "stop": 0.05},
        {"width": [16, 64, 256, 1024], "stop": 0.05},
    ),
    "labels": Protocol(
        "true, partly random and random labels",
        "Zhang et al. (2017), Neyshabur et al. (2017)",
        {"labels": [0.0, 0.5, 1.0], "optimizer": "adam", "times": 0.1},
        ("expected_sharpness", "pac_bayes_flatness", "pac_bayes_orig", "parameter_norm", *CURVED),
        (
            Reported("labels", TESTED),
            Reported("labels", "pac_bayes_orig"),
            Reported("labels", "parameter_norm"),
        ),
        {"width": 128, "stop": 0.05},
        {"width": 512, "stop": 0.05},
        representative=("expected_sharpness", "pac_bayes_orig"),
    ),
    "rate_over_batch": Protocol(
        "the ratio of rate to batch",
        "Jastrzebski et al. (2018)",
        {"depth": 2},
        ("lambda_max", "hessian_frobenius", *CURVED),
        (
            Reported("rate_over_batch", "lambda_max", less=True),
            Reported("rate_over_batch", TESTED, less=True),
        ),
        {
            "width": 64,
            "rate": [0.01, 0.03, 0.1],
            "batch": [16, 64, 256],
            "stop": 0.02,
            "epochs": 1500,
        },
        {
            "width": 128,
            "rate": [0.005, 0.015, 0.045],
            "batch": [32, 96, 288],
            "stop": 0.02,
            "epochs": 1500,
        },
    ),
    "optimizers": Protocol(
        "plain and sharpness-aware descent at one training loss",
        "Foret et al. (2021)",
        {"optimizer": ["sgd", "sam"], "times": 0.3},
        CURVED,
        (
            Reported("optimizer", SHARP, less=True),
            Reported("optimizer", TESTED, less=True),
        ),
        {"width": 64, "stop": 0.02},
        {"width": 128, "stop": 0.05},
    ),
    "local_entropy": Protocol(
        "plain descent and Entropy-SGD at one training loss",
        "Chaudhari et al. (2017)",
        {"optimizer": ["sgd", "entropy-sgd"]},
        CURVED,
        (Reported("optimizer", SHARP, less=True),),
        {"width": 64, "stop": 0.05},
        {"width": 128, "stop": 0.1},
    ),
    "schedules": Protocol(
        "a constant rate against one that rises and falls",
        "Seong et al. (2018)",
        {"schedule": ["constant", "raise-then-decay"], "times": 0.1},
        CURVED,
        (
            Reported("schedule", SHARP, less=True),
            Reported("schedule", TESTED, less=True),
        ),
        {"width": 64, "epochs": 60},
        {"width": 128, "epochs": 60},
    ),
    "depth_and_norm": Protocol(
        "depth, with and without batch normalization",
        "Ghorbani et al. (2019)",
        {"depth": [1, 2, 3], "norm": ["none", "batch"], "times": 0.3},
        CURVED,
        (Reported("norm", SHARP, less=True),),
        {"width": 32, "stop": 0.05},
        {"width": 64, "stop": 0.05},
    ),
    "jiang": Protocol(
        "a grid in small",
        "Jiang et al. (2020)",
        {"width": [32, 96], "depth": [1, 2], "optimizer": ["sgd", "adam"], "times": [0.1, 0.3]},
        (
            *("path_norm", "log_spectral_product", "parameter_count", "frobenius_distance"),
            *("pac_bayes_orig", "pac_bayes_magnitude_flatness", "expected_sharpness", "margin"),
            *CURVED,
        ),
        (
            Reported("gap", "path_norm"),
            Reported("gap", "pac_bayes_magnitude_flatness"),
            Reported("gap", "log_spectral_product", less=True),
            Reported("gap", "parameter_count", less=True),
        ),
        {"batch": [32, 128], "stop": 0.02, "epochs": 1500},
        {"batch": [32, 128], "stop": 0.02, "epochs": 1500},
        representative=("pac_bayes_orig", "expected_sharpness"),
        outcome="gap",
    ),
}
