"""Whether gradient descent would stay at this minimum: its steps, its noise, its edge."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate, Status
from spiritlevel.base.operator import Operator
from spiritlevel.base.scope import kept_rng
from spiritlevel.curvature import output_gradients
from spiritlevel.curvature.products import unit_weights
from spiritlevel.measures.base import (
    BOTH_ENDS,
    PERMUTATION,
    TOP,
    TRACE,
    Bottom,
    Measure,
    Work,
)
from spiritlevel.measures.examples import curvatures, noise
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective.batches import Batch
from spiritlevel.spectral import Probes

RATE, BATCH = 0.1, 1
SMALLEST = 1e-300  # of a square that can be divided by
ROUNDING = 1e3  # in units of the last place of the gradients: less of a mean is none


def gradient_variance(instruments: Instruments) -> Estimate:
    """tr Sigma = mean_i ||g_i - g||^2 over the gradients g_i of single examples, g their mean.

    Jiang et al. (2020) take it at the end of the training. All the data are its population.
    """
    begin = time.perf_counter()
    return Estimate(noise(instruments).variance, seconds=time.perf_counter() - begin)


def gradient_noise_scale(instruments: Instruments) -> Estimate:
    """tr Sigma / ||g||^2: the batch whose noise is as large as its mean (McCandlish et al., 2018).

    At a minimum it is infinite, near one it says how near.
    """
    begin = time.perf_counter()
    variance = noise(instruments).variance
    slope = float(instruments.gradient.double().square().sum())
    rounding = ROUNDING * torch.finfo(instruments.objective.dtype).eps
    if slope <= rounding**2 * variance:
        raise SpiritlevelError(
            "the noise scale is infinite here: the gradient is zero to rounding; "
            "use gradient_variance"
        )
    return Estimate(variance / slope, seconds=time.perf_counter() - begin)


def edge(instruments: Instruments, rate: float = RATE) -> Estimate:
    """eta lambda_max / 2: above 1, gradient descent of this rate leaves (Cohen et al., 2021)."""
    top = max(instruments.extremes.values, key=lambda end: end.value)
    return _times(rate / 2, top)


def sgd_growth(instruments: Instruments, rate: float = RATE, batch: int = BATCH) -> Estimate:
    """(1 - eta v'Hv)^2 + (eta^2 / B) Var_i(v'H_i v), v the top eigenvector: above 1, SGD leaves.

    For any unit v a lower bound of the factor by which the mean square of linearized SGD,
    x -> (I - eta H_B) x with B independent examples, grows in the long run: X -> E (I - eta H_B) X
    (I - eta H_B) is a symmetric map of the symmetric matrices, and this its Rayleigh quotient at
    X = vv'. Below 1 it speaks for this direction alone. Exact for one parameter and for examples
    whose Hessians act on orthogonal directions (Wu et al., 2018).
    """
    begin = time.perf_counter()
    top = instruments.extremes
    v = top.vectors[:, max(range(len(top.values)), key=lambda i: top.values[i].value)]
    found = curvatures(instruments, v / v.norm())
    spread = float((found - found.mean()).square().mean())
    return Estimate(
        (1 - rate * float(found.mean())) ** 2 + rate**2 / batch * spread,
        matvecs=top.values[0].matvecs + 1,
        seconds=time.perf_counter() - begin,
        status=Status.LOWER_BOUND,
    )


def alignment(instruments: Instruments) -> Estimate:
    """mu = tr(Sigma G) / (s^2 ||G||_F^2), G of the output gradients, s^2 = mean ||dl / df||^2.

    1 where examples have one output whose error does not depend on its gradient, for then Sigma =
    s^2 G; with several outputs or tokens per example it is less. Of examples with weights Sigma is
    the noise of SGD that draws them evenly, with their weights in their gradients; G and s^2 are
    weighted means, so that unequal weights alone raise it. Where squared errors are nearly
    fitted, H is a multiple of G and this is the mu of Wu, Wang and Su (2022), tr(Sigma H) /
    (2 L ||H||_F^2); it has a meaning for other losses too.
    """
    size, score = _output_probes(instruments).frobenius(), _score(instruments)
    if not SMALLEST < size.value * size.value < math.inf:
        raise SpiritlevelError(
            f"the gradients of the outputs are {size.value:.3g} here, so that noise has nothing to "
            "align with; choose other params= or data, or use edge"
        )
    return _product(1 / score, (_noise_trace(instruments), 1), (size, -2))


def sgd_stability(instruments: Instruments, rate: float = RATE, batch: int = BATCH) -> Estimate:
    """max(eta lambda_max / 2, eta ||H||_F sqrt(mu / B)), mu the alignment: above 1, SGD leaves.

    Where squared errors are nearly fitted, the mean loss grows in a step of linearized SGD by the
    square of the second at least, with mu as it is here (Wu, Wang and Su, 2022). For other losses
    the second is a likeness. Both are necessary for stability: at most 1 is no promise.
    """
    size = instruments.probes.frobenius()
    mu = alignment(instruments)
    noisy = _product(rate / math.sqrt(batch), (size, 1), (replace(mu, value=abs(mu.value)), 0.5))
    return max(edge(instruments, rate), noisy, key=lambda one: one.value)


def output_gradient_trace(instruments: Instruments) -> Estimate:
    """tr G = mean_i ||grad f(x_i)||_F^2 over the outputs f; unlike Fisher's it stays at a fit.

    For (f - y)^2 of one output tr H is twice that at a fit (AEFM; Wu, Wang and Su, 2022).
    """
    return _output_probes(instruments).trace()


# What they share ---------------------------------------------------------------------------------


def _output_probes(instruments: Instruments) -> Probes:
    return instruments.once(
        "output_probes", lambda: instruments.probed(_outputs(instruments), "trace", "frobenius")
    )


def _outputs(instruments: Instruments) -> Operator:
    return instruments.once("outputs", lambda: output_gradients(instruments.objective))


def _noise_trace(instruments: Instruments) -> Estimate:
    """tr(Sigma G), as that of R G R' / n: a matrix with one row per example."""

    def make() -> Estimate:
        matrix, rows = _outputs(instruments), noise(instruments)
        operator = replace(
            matrix,
            size=instruments.objective.examples,
            matvec=lambda signs: rows.through(matrix.matvec, signs),
            spans={},
            name="matrix of the examples",
        )
        return instruments.probed(operator, "trace").trace()

    return instruments.once("noise_trace", make)


def _score(instruments: Instruments) -> float:
    """s^2 = mean_i ||dl_i / df_i||^2 of losses without weights, which are those of the mean."""
    objective = instruments.objective
    on_outputs = objective.loss.on_outputs
    if on_outputs is None:
        raise SpiritlevelError(
            "the alignment must see outputs and loss apart; give batches (x, y) with "
            "loss(outputs, y)"
        )

    weights = unit_weights(objective)

    def squares(batch: Batch) -> float:
        here = objective.here(batch)
        with torch.no_grad(), kept_rng():
            out = objective.outputs(objective.params, here)
        slope = torch.func.grad(lambda z: on_outputs(z, here)[0])(out.detach())
        weight = torch.as_tensor(weights(out, here)).double()
        # the slope holds the weight already, so that its square holds it once too often
        return float(torch.where(weight > 0, slope.double().square() / weight, 0.0).sum())

    found = objective.mean(squares)
    if not math.isfinite(found):
        raise SpiritlevelError(
            "the slope of the loss in the outputs is too large for float64; rescale the data"
        )
    if found < SMALLEST:
        raise SpiritlevelError(
            "the loss has no slope in the outputs here, so that SGD has no noise to align; use "
            "edge or sgd_growth"
        )
    return found


def _times(factor: float, found: Estimate) -> Estimate:
    """The estimate in another unit."""
    errors = {name: getattr(found, name) for name in ("stderr", "residual", "bound")}
    scaled = {k: None if error is None else factor * error for k, error in errors.items()}
    return replace(found, value=factor * found.value, **scaled)


def _product(factor: float, *terms: tuple[Estimate, float]) -> Estimate:
    """factor times powers of estimates, by the delta method, as if they were independent."""
    value = factor * math.prod(found.value**power for found, power in terms)
    relative = [p * f.error / abs(f.value) for f, p in terms if f.value]
    worst = next((f for f, _ in terms if not f.converged), None)
    exact = all(found.status is Status.EXACT for found, _ in terms)
    return Estimate(
        value,
        stderr=None if exact else abs(value) * math.hypot(*relative),
        matvecs=sum(found.matvecs for found, _ in terms),
        seconds=sum(found.seconds for found, _ in terms),
        status=worst.status if worst else Status.EXACT if exact else Status.CONVERGED,
        remedy=worst.remedy if worst else "",
    )


ENTRIES: dict[str, Measure] = {
    "gradient_variance": Measure(
        gradient_variance,
        title="gradient variance",
        family="stability",
        invariances=PERMUTATION,
        reference="Jiang et al. (2020)",
        cost="a gradient for each example",
        shares="example_noise",
        work=Work(gradients=3),
        reading="larger means that examples pull apart",
    ),
    "gradient_noise_scale": Measure(
        gradient_noise_scale,
        title="gradient noise scale",
        family="stability",
        invariances=PERMUTATION,
        reference="McCandlish et al. (2018)",
        cost="a gradient for each example",
        shares="example_noise",
        work=Work(gradients=3),
        reading="larger means that only large batches tell the slope",
    ),
    "edge": Measure(
        edge,
        title="edge of stability",
        family="stability",
        invariances=PERMUTATION,
        reference="Cohen et al. (2021)",
        cost=TOP,
        shares="extremes",
        ends=2,
        is_sharpness=True,
        bottom=Bottom("spectral", factor=lambda _: RATE / 2, signed=True),
        work=BOTH_ENDS,
    ),
    "sgd_growth": Measure(
        sgd_growth,
        title="growth under SGD",
        family="stability",
        invariances=PERMUTATION,
        reference="Wu et al. (2018)",
        ends=2,
        cost="10 to 50 products, and one for each example",
        work=Work(products=55),
        reading="above 1 means that SGD leaves",
    ),
    "sgd_stability": Measure(
        sgd_stability,
        title="stability under SGD",
        family="stability",
        invariances=PERMUTATION,
        reference="Wu et al. (2022)",
        cost=TRACE,
        ends=2,
        is_sharpness=True,
        work=Work(gradients=3, products=100),
    ),
    "alignment": Measure(
        alignment,
        title="noise alignment",
        family="stability",
        invariances=PERMUTATION,
        reference="Wu et al. (2022)",
        cost=TRACE,
        work=Work(gradients=3, gauss_newton=100),
        reading="larger means that the noise of SGD lies where outputs are sensitive",
    ),
    "output_gradient_trace": Measure(
        output_gradient_trace,
        title="output gradients",
        family="stability",
        invariances=PERMUTATION,
        reference="Wu et al. (2022)",
        cost=TRACE,
        shares="output_probes",
        is_sharpness=True,
        work=Work(gauss_newton=50),
    ),
}
