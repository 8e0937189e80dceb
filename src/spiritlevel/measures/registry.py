"""MEASURES: every number by its name, with its family, its promises, its source and its price."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Sequence
from typing import Any

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.measures import ball, curvature, invariant, least, noise, paths
from spiritlevel.measures.base import INVARIANCES, Bottom, Invariance, Measure, Work
from spiritlevel.measures.instruments import Instruments

DINH = "Dinh et al. (2017)"
UNIT: tuple[Invariance, ...] = ("unit",)
LAYER: tuple[Invariance, ...] = ("layer",)
WORDS = ("title", "family", "reference", "cost")
TRACE, TOP = "20 to 200 products", "10 to 50 products"
PROBES = Work(products=30, rough=1 / 3)
ONE_END, BOTH_ENDS = Work(products=12), Work(products=50)

TWO: tuple[str, ...] = ("here", "moved")  # points of an audit, for what takes many products

MEASURES: dict[str, Measure] = {
    "loss": Measure(
        curvature.loss, "loss", "loss", UNIT, cost="one forward pass", standard=True,
        work=Work(passes=1),
        reading="larger means a worse fit",
    ),
    "gradient_norm": Measure(
        curvature.gradient_norm, "gradient norm", "loss", cost="one gradient", standard=True,
        work=Work(gradients=1),
        reading="larger means farther from rest",
    ),
    "hessian_spectral": Measure(
        curvature.hessian_spectral, "spectral norm", "curvature", (), DINH, TOP, "extremes", True,
        ends=1, is_sharpness=True, bottom=Bottom("spectral"),
        work=ONE_END,
    ),
    "lambda_max": Measure(
        curvature.lambda_max, "largest eigenvalue", "curvature", (), DINH, TOP, "extremes", True,
        ends=2, is_sharpness=True, bottom=Bottom("spectral", signed=True),
        work=BOTH_ENDS,
    ),
    "lambda_min": Measure(
        curvature.lambda_min, "smallest eigenvalue", "curvature", (), "", TOP, "extremes", True,
        ends=2,
        work=BOTH_ENDS,
        reading="below zero means no minimum",
    ),
    "hessian_trace": Measure(
        curvature.hessian_trace, "trace", "curvature", (), DINH, TRACE, "probes", True,
        is_sharpness=True, bottom=Bottom("trace"),
        work=PROBES,
    ),
    "layer_traces": Measure(
        curvature.layer_traces, "in", "curvature", (), "", TRACE, "probes", True, parts=True,
        work=PROBES,
        reading="where the trace comes from",
    ),
    "hessian_frobenius": Measure(
        curvature.hessian_frobenius, "Frobenius norm", "curvature", (), DINH, TRACE, "probes", True,
        is_sharpness=True, bottom=Bottom("frobenius"),
        work=PROBES,
    ),
    "effective_rank": Measure(
        curvature.effective_rank, "effective rank", "curvature", (), "", TRACE, "probes", True,
        work=PROBES,
        reading="larger means more directions that curve",
    ),
    "eps_sharpness": Measure(
        ball.eps_sharpness, "eps-sharpness", "worst case", (), DINH, "about 40 gradients",
        is_sharpness=True,
        work=Work(gradients=40),
    ),
    "eps_sharpness_quadratic": Measure(
        ball.eps_sharpness_quadratic, "eps-sharpness, order 2", "worst case", (), DINH, TOP,
        "extremes", ends=2, is_sharpness=True,
        bottom=Bottom("spectral", factor=ball.quadratic_factor, signed=True),
        work=BOTH_ENDS,
    ),
    "keskar": Measure(
        ball.keskar, "Keskar sharpness", "worst case", (), "Keskar et al. (2017)", "12 gradients",
        is_sharpness=True,
        work=Work(passes=12, gradients=12),
    ),
    "keskar_subspace": Measure(
        ball.keskar_subspace, "Keskar, 100 directions", "worst case", (), "Keskar et al. (2017)",
        "12 gradients", is_sharpness=True,
        work=Work(passes=12, gradients=12),
    ),
    "adaptive_worst": Measure(
        ball.adaptive_worst, "adaptive worst case", "worst case", UNIT, "Kwon et al. (2021)",
        "about 50 gradients", is_sharpness=True,
        work=Work(gradients=50),
    ),
    "adaptive_spectral": Measure(
        invariant.adaptive_spectral, "adaptive curvature", "curvature", UNIT,
        "Kwon et al. (2021), second order", TOP, is_sharpness=True, points=TWO,
        work=ONE_END,
    ),
    "expected_sharpness": Measure(
        noise.expected_sharpness, "expected sharpness", "noise", (), "Neyshabur et al. (2017)",
        "32 to 256 forward passes", is_sharpness=True,
        bottom=Bottom("trace", factor=lambda _: noise.SIGMA**2 / 2, order=2),
        work=Work(passes=32),
    ),
    "adaptive_average": Measure(
        noise.adaptive_average, "adaptive average", "noise", UNIT,
        "Andriushchenko et al. (2023)", "32 to 256 forward passes", is_sharpness=True,
        work=Work(passes=64),
    ),
    "fisher_rao": Measure(
        invariant.fisher_rao, "Fisher-Rao norm", "norm", UNIT, "Liang et al. (2019)", "one product",
        work=Work(gauss_newton=2),
        reading="larger means more capacity",
    ),
    "path_norm": Measure(
        paths.path_norm, "l2 path norm", "norm", UNIT, "Neyshabur et al. (2015)",
        "one forward pass of one example", work=Work(),
        reading="larger means more capacity",
    ),
    "relative_flatness": Measure(
        invariant.relative_flatness, "relative flatness", "curvature", LAYER,
        "Petzka et al. (2021)", TRACE, is_sharpness=True,
        work=PROBES,
    ),
    "layer_minimum": Measure(
        least.layer_minimum, "layer-wise minimum", "orbit", LAYER, "Ibayashi et al. (2021)",
        "an exact diagonal", is_sharpness=True, bottom=Bottom("trace", "ggn"),
        work=Work(diagonals=1),
    ),
    "orbit_trace": Measure(
        least.orbit_trace, "least Gauss-Newton trace", "orbit", UNIT, cost="an exact diagonal",
        is_sharpness=True, bottom=Bottom("trace", "ggn"), points=TWO,
        work=Work(diagonals=1),
    ),
    "orbit_spectral": Measure(
        least.orbit_spectral, "least Gauss-Newton norm", "orbit", UNIT, cost="30 to 60 products",
        is_sharpness=True, bottom=Bottom("spectral", "ggn"), points=TWO,
        work=Work(gauss_newton=40, diagonals=1),
    ),
}  # fmt: skip


def standard() -> list[str]:
    """The measures that are made unasked."""
    return [name for name, entry in MEASURES.items() if entry.standard]


def checked(names: Sequence[str], *, single: bool = False) -> list[str]:
    """The names, all of them known, each once; what fits a pattern; one number each if `single`."""
    if isinstance(names, str):
        raise SpiritlevelError(f"measures is {names!r}; give a list of names: [{names!r}]")
    if isinstance(names, Sequence) and not names:
        raise SpiritlevelError(f"no measure is named; there are: {', '.join(MEASURES)}")
    found: dict[str, None] = {}
    for name in doors.names("measures", names):
        some = [name] if name in MEASURES else fnmatch.filter(MEASURES, name)
        if not some:
            raise SpiritlevelError(f"unknown measure {name!r}; there are: {', '.join(MEASURES)}")
        if single and name in MEASURES and MEASURES[name].parts:
            raise SpiritlevelError(f"{name} is several numbers; choose others")
        found |= dict.fromkeys(one for one in some if not (single and MEASURES[one].parts))
    return list(found)


def register(
    name: str,
    *,
    title: str = "",
    family: str = "own",
    invariances: Sequence[Invariance] = (),
    reference: str = "",
    cost: str = "",
    is_sharpness: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that makes a function of an Objective a measure: @register("my_measure").

    The function returns a number or an Estimate. Every audit holds the declared invariances to the
    network's symmetries. More of it is sharper if it `is_sharpness`.
    """
    for key, text in zip(WORDS, (title, family, reference, cost), strict=True):
        doors.a(key, text, str, "a text")
    doors.names("name", name if isinstance(name, str) else None)
    if name in MEASURES:
        raise SpiritlevelError(f"there is a measure {name!r} already; choose another name")
    doors.a("invariances", invariances, (tuple, list), f"some of {', '.join(INVARIANCES)}")
    for invariance in invariances:
        doors.one_of("invariances", invariance, INVARIANCES)

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def measured(instruments: Instruments, **parameters: Any) -> Estimate:
            found = function(instruments.objective, **parameters)
            if not isinstance(found, Estimate):
                tensor_doors.returned(name, found)
            return found if isinstance(found, Estimate) else Estimate(float(found))

        shown = title or name.replace("_", " ")
        MEASURES[name] = Measure(
            *(measured, shown, family, tuple(invariances), reference, cost),
            is_sharpness=is_sharpness,
        )
        return function

    return add
