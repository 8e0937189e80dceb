"""Bounds from norms and margins, with their constants, for networks of ReLUs without biases.

Each is proved for numbers fixed in advance. They are rounded up to entries of fixed grids, whose
entries share delta, so that they may be those of a trained network. `error` is the share of
examples whose margin, f_y - max of the others (or y f for one output), is at most `margin`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from spiritlevel.base.doors import number, shown
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.bounds.asking import chance, examples, positive, share
from spiritlevel.results.bound import Bound, Term

OF = "error of this network"
PREMISES = (
    "the examples are drawn independently from one distribution, and so are new ones",
    "a chain of layers of weights without biases, with ReLUs between them",
    "margins and norms are rounded up to grids fixed in advance, whose entries share delta",
)
TITLES = {
    "spectral_margin": ("margin over spectral norms", "Bartlett, Foster & Telgarsky 2017"),
    "path": (
        "margin over path norm",
        "Neyshabur, Tomioka & Srebro 2015; Mohri, Rostamizadeh & Talwalkar 2018",
    ),
    "spectral_frobenius": (
        "margin over spectral and Frobenius norms",
        "Neyshabur, Bhojanapalli & Srebro 2018",
    ),
}
FINE = 20  # entries of a grid for each factor e of the whole bound
LARGEST = 709.0  # whose exponential is a number
LEAST = 1e-12  # relative: what is smaller than that of a norm beside it is taken for that


def spectral_margin(
    *,
    error: float,
    margin: float,
    spectral: Iterable[float],
    distances: Iterable[float],
    inputs: float,
    width: int,
    m: int,
    delta: float = 0.05,
) -> Bound:
    """error + (24 C / m) (1 + [log(m / (3 C))]_+) + 3 sqrt(log(2 / share) / (2 m)).

    C = sqrt(8 log(2 width^2)) (|X|_F / margin) prod_i s_i (sum_i (b_i / s_i)^(2/3))^(3/2).
    s_i: `spectral` norms; b_i: `distances`, sums over units of |w - w0| of the weights into one,
    w0 fixed in advance; |X|_F: `inputs`, the root of the sum of squares of all m inputs; `width`:
    the most units of a layer, inputs too. Bartlett, Foster & Telgarsky 2017: their covering numbers
    (twice the logarithm, for the rounding up in Maurey's lemma) in Dudley's integral at its best
    lower end.
    """
    s, b = _norms("spectral", spectral), _norms("distances", distances, zero=True)
    _same_length("distances", b, s)
    error, margin, m, delta = _doors(error, margin, m, delta)
    inputs = positive("inputs", inputs)
    number("width", width, 1, whole=True)
    complexity, nats = _covering(s, b, margin)
    c = 2 * math.sqrt(2 * math.log(2 * int(width) ** 2)) * inputs * complexity
    gap = 24 * c / m * (1 + math.log(max(1.0, m / (3 * c))))
    confidence = _confidence(nats - math.log(delta), m)
    terms = {"complexity": c / m, "capacity": gap, "confidence": confidence}
    premise = ("the weights that distances are from do not depend on these examples",)
    return _bound("spectral_margin", error, margin, m, delta, terms, premise)


def path(
    *,
    error: float,
    margin: float,
    norm: float,
    inputs: float,
    features: int,
    layers: int,
    m: int,
    classes: int = 2,
    delta: float = 0.05,
) -> Bound:
    """error + k (2^(layers - 1) norm inputs / margin) sqrt(2 log(2 features) / m) + confidence.

    `norm`: the largest over outputs of the sum over paths of products of |weights|; `inputs`: the
    largest |input|. Each hidden layer adds a factor 2, since any network can be rescaled so that
    the weights into a hidden unit have the l1 norm 1. k = 4 classes (Mohri et al. 2018), and 2 for
    one output, classes=1. Confidence: 3 sqrt(log(2 / share) / (2 m)).
    Neyshabur, Tomioka & Srebro 2015.
    """
    error, margin, m, delta = _doors(error, margin, m, delta)
    norm, inputs = positive("norm", norm), positive("inputs", inputs)
    for name, value in (("features", features), ("layers", layers), ("classes", classes)):
        number(name, value, 1, whole=True)
    (high, paid), (gamma, more) = _up(norm, FINE), _down(margin, FINE)
    reach = (
        _exp((layers - 1) * math.log(2)) * high * inputs * math.sqrt(2 * math.log(2 * features) / m)
    )
    times = 2 if classes == 1 else 4 * classes
    terms = {"complexity": reach, "capacity": times * reach / gamma}
    terms["confidence"] = _confidence(paid + more - math.log(delta), m)
    return _bound("path", error, margin, m, delta, terms, ())


def spectral_frobenius(
    *,
    error: float,
    margin: float,
    spectral: Iterable[float],
    frobenius: Iterable[float],
    inputs: float,
    width: int,
    m: int,
    delta: float = 0.05,
) -> Bound:
    """error + 4 sqrt((KL + log(6 m / share)) / (m - 1)), KL = sum_i (F_i b / s_i)^2 / (2 sigma^2).

    b = (prod_i s_i)^(1/d), to which the layers are rescaled, and rounded up B; sigma = margin /
    (4 e sqrt(2) d inputs B^(d-1) sqrt(h log(4 d h))): noise so small that margins change by a
    quarter with probability at most 1/2. s_i: `spectral` norms, F_i: `frobenius` norms, d layers,
    h = `width` the most units, inputs too; `inputs`: no input, new or old, has a larger l2 norm.
    Neyshabur, Bhojanapalli & Srebro 2018, with 4 e sqrt(2) for their 42 as B is above b.
    """
    s, f = _norms("spectral", spectral), _norms("frobenius", frobenius)
    _same_length("frobenius", f, s)
    error, margin, m, delta = _doors(error, margin, m, delta)
    number("width", width, 1, whole=True)
    _possible(s, f)
    kl, sigma, nats = _noise(s, f, margin, positive("inputs", inputs), int(width))
    gap = 4 * math.sqrt((kl + math.log(6 * m) + nats - math.log(delta)) / (m - 1))
    terms = {"kl": kl, "sigma": sigma, "capacity": gap}
    premise = ("no input that can be drawn has a larger norm than `inputs`",)
    return _bound("spectral_frobenius", error, margin, m, delta, terms, premise)


def _covering(s: list[float], b: list[float], margin: float) -> tuple[float, float]:
    """prod_i s_i (sum_i (b_i / s_i)^(2/3))^(3/2) / margin, rounded; the nats of the grids."""
    fine = FINE * len(s)
    spectral = [_up(one, fine) for one in s]
    distances = [_up(max(one, LEAST * norm), fine) for one, norm in zip(b, s, strict=True)]
    gamma, paid = _down(margin, fine)
    nats = paid + math.fsum(cost for _, cost in (*spectral, *distances))
    ratios = [
        (far / norm) ** (2 / 3) for (norm, _), (far, _) in zip(spectral, distances, strict=True)
    ]
    return math.prod(norm for norm, _ in spectral) * math.fsum(ratios) ** 1.5 / gamma, nats


def _noise(
    s: list[float], f: list[float], margin: float, inputs: float, width: int
) -> tuple[float, float, float]:
    """The divergence of the rescaled weights, with the noise they bear; the nats of the grids."""
    depth = len(s)
    level = math.exp(math.fsum(math.log(one) for one in s) / depth)
    (high, paid), (gamma, more) = _up(level, FINE * depth), _down(margin, FINE * depth)
    reach = (depth - 1) * math.log(high)  # of the other layers, as a logarithm
    if math.log(gamma / (4 * math.e * inputs * level)) > reach:
        raise SpiritlevelError(
            f"margin={shown(margin)} is above all that networks of these norms have; give one that "
            "some examples have"
        )
    moved = 4 * math.e * math.sqrt(2 * width * math.log(4 * depth * width)) * depth * inputs
    sigma = gamma / moved * _exp(-reach)
    norm = math.fsum((one * level / two) ** 2 for one, two in zip(f, s, strict=True))
    return norm / 2 * (moved / gamma) ** 2 * _exp(2 * reach), sigma, paid + more


def _up(value: float, fine: float) -> tuple[float, float]:
    """The next exp(j / fine), and the nats that its choice costs."""
    return _entry(math.ceil(fine * math.log(value)), fine)


def _down(value: float, fine: float) -> tuple[float, float]:
    return _entry(math.floor(fine * math.log(value)), fine)


def _entry(j: int, fine: float) -> tuple[float, float]:
    index = 2 * j if j > 0 else 1 - 2 * j  # counts 0, 1, -1, 2, -2, ... from 1
    return math.exp(j / fine), 2 * math.log(math.pi * index) - math.log(6)


def _confidence(nats: float, m: int) -> float:
    return 3 * math.sqrt((math.log(2) + nats) / (2 * m))


def _bound(
    name: str,
    error: float,
    margin: float,
    m: int,
    delta: float,
    terms: Mapping[str, float],
    premises: tuple[str, ...],
) -> Bound:
    value = error + terms["capacity"] + terms.get("confidence", 0.0)
    given = {"error": error, "margin": margin, "examples": m}
    made = tuple(Term(label, one) for label, one in (given | dict(terms)).items())
    title, source = TITLES[name]
    return Bound(name, title, value, OF, made, delta, (*PREMISES, *premises), source)


def _doors(error: float, margin: float, m: int, delta: float) -> tuple[float, float, int, float]:
    """Plain numbers, or a refusal."""
    margin = positive("margin", margin)
    return share("error", error), margin, examples(m), chance("delta", delta)


def _exp(x: float) -> float:
    return math.exp(x) if x < LARGEST else math.inf


def _norms(name: str, values: Any, *, zero: bool = False) -> list[float]:
    """One norm for each layer; refuse what is none."""
    if not isinstance(values, Iterable) or isinstance(values, (str, Mapping)):
        raise SpiritlevelError(f"{name}={shown(values)}: give a list, one norm for each layer")
    found = list(values)
    if not found:
        raise SpiritlevelError(f"{name} is empty: give one norm for each layer")
    for one in found:
        number(name, one, 0.0, above=-1.0 if zero else 0.0)
    return [float(one) for one in found]


def _same_length(name: str, found: list[float], spectral: list[float]) -> None:
    if len(found) != len(spectral):
        raise SpiritlevelError(
            f"{name} has {len(found)} norms, spectral {len(spectral)}: give one for each layer"
        )


def _possible(spectral: list[float], frobenius: list[float]) -> None:
    """Refuse a Frobenius norm below a spectral one: they are not of one matrix."""
    for s, f in zip(spectral, frobenius, strict=True):
        if f < s * (1 - 1e-5):
            raise SpiritlevelError(
                f"frobenius holds {f:g} beside a spectral norm of {s:g}, which is never larger: "
                "give both of the same matrices, layer by layer"
            )
