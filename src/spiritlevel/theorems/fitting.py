"""Claims about fitting: flat nets that memorize, nets that fit anything, rates that choose."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.tensors import gaussian, generator
from spiritlevel.curvature import hessian
from spiritlevel.objective import Objective
from spiritlevel.spectral import eigenpairs
from spiritlevel.theorems import figures
from spiritlevel.theorems.base import Claim, Finding, Witness
from spiritlevel.theorems.setting import Setting

DIMENSION, POINTS = 10, 20
LABELS, WIDTH = 100, 10
WIDTHS = (1, 2, 4, 8, 16, 40)  # of nets that try to be flatter
CHALLENGE = 300  # steps
DRAWN = 2  # steps of SGD, over all batches
STEPS, LONG = 40, 150
EACH = 0.05  # relative, of the factor of one step: 0.9 and 1.1 are far apart
RATES = {"1.9 / λ": 1.9, "2.1 / λ": 2.1}
CURVATURES = (0.2, 0.6, 1.0, 3.0)
SIZES = range(-12, -3)  # steps 10^k of the size of the weights that are tried
GROWN, LINEAR = 50.0, 0.1  # how far descent goes; how much of a step may be no lambda v
SADDLE = 0.02  # of the largest eigenvalue: what rectified nets show at their minima


# Flat nets that memorize -------------------------------------------------------------------------


def two_layers(first: Tensor, bias: Tensor, second: Tensor) -> nn.Sequential:
    """W2 relu(W1 x + b1)."""
    net = nn.Sequential(
        nn.Linear(first.shape[1], len(first)), nn.ReLU(), nn.Linear(len(first), 1, bias=False)
    ).double()
    values = (first, bias, second.reshape(1, -1))
    for parameter, value in zip(net.parameters(), values, strict=True):
        parameter.data = value.double()
    return net


def memorizer(x: Tensor, y: Tensor) -> nn.Sequential:
    """One unit for each training point, silent elsewhere, of the least trace."""
    lengths = x.norm(dim=1)
    w, r = x / lengths[:, None], (lengths**2 + 1).sqrt()
    gap = 1 / x.shape[1] ** 0.5  # below 2 / sqrt(d), by which other points differ
    size = (r * y.abs()).sqrt()
    bias = size * (gap - (w * x).sum(1)) / gap
    return two_layers(size[:, None] * w / gap, bias, y.sign() * (y.abs() / r).sqrt())


def generalizer(dimension: int, size: float) -> nn.Sequential:
    """Four units that compute x1 x2; of the least trace if size = (d + 1)^(1/4).

    The paper prints (d^2 + 1)^(1/4), which gives a larger trace.
    """
    signs = torch.tensor(list(product((1.0, -1.0), repeat=2))).double()
    first = torch.zeros(4, dimension, dtype=torch.float64)
    first[:, :2] = size * signs
    return two_layers(first, torch.full((4,), -size, dtype=torch.float64), signs.prod(1) / size)


def least_trace(x: Tensor, y: Tensor) -> float:
    """(4/n) sum_i |x'_i| |y_i|, x' = (x, 1): no such net of any width fits with a lower trace.

    At zero loss tr H = (2/n) sum_i |grad f(x_i)|^2. A unit that is active at x, with the weights
    (w, b) and v, gives |grad f|^2 the squares of h = relu((w, b).x') and of v |x'|, together at
    least 2 |x'| |v h|; summed over the units at least 2 |x'| |f(x)|.
    """
    return 4 * float(((x.square().sum(1) + 1).sqrt() * y.abs().reshape(-1)).mean())


def challenger(x: Tensor, width: int, seed: int) -> nn.Sequential:
    """A net that was trained to have the lowest trace beside `least_trace` of its own outputs."""
    draws, like = generator(seed), torch.zeros((), dtype=torch.float64)
    shapes = [(width, x.shape[1]), (width,), (width,)]
    point = [gaussian(shape, draws, like).requires_grad_() for shape in shapes]
    optimizer, long = torch.optim.Adam(point, lr=0.03), (x.square().sum(1) + 1).sqrt()
    for _ in range(CHALLENGE):
        hidden = torch.relu(x @ point[0].T + point[1])
        squares = (hidden.square() + (hidden > 0) * (point[2] * long[:, None]).square()).sum(1)
        ratio = squares.sum() / (2 * long * (hidden @ point[2]).abs()).sum()
        optimizer.zero_grad()
        ratio.backward()
        optimizer.step()
    return two_layers(*(p.detach() for p in point))


def flat_twins(setting: Setting) -> Witness:
    everything = torch.tensor(list(product((1.0, -1.0), repeat=DIMENSION))).double()
    seen = torch.randperm(len(everything), generator=generator(0))[:POINTS]
    x, y = everything[seen], everything[seen, :2].prod(1)
    with torch.enable_grad():
        challengers = [challenger(x, width, seed) for seed, width in enumerate(WIDTHS)]
    return {
        "nets": {
            "memorizer": memorizer(x, y),
            "generalizer": generalizer(DIMENSION, (DIMENSION + 1) ** 0.25),
        },
        "challengers": challengers,
        "everything": everything,
        "seen": seen,
    }


@torch.no_grad()
def _margins(net: nn.Sequential, everything: Tensor) -> Tensor:
    """Output times label on every input."""
    return net(everything)[:, 0] * everything[:, :2].prod(1)


def check_twins(
    nets: dict[str, nn.Sequential],
    challengers: list[nn.Sequential],
    everything: Tensor,
    seen: Tensor,
) -> Finding:
    """Zero loss, the least trace 4 sqrt(d + 1) for both, and errors 1 - n / 2^d and 0.

    That it is the least is proved at `least_trace`; nets that were trained to go below their own
    bound are measured against it.
    """
    d, numbers = everything.shape[1], {}
    x, y = everything[seen], everything[seen, :2].prod(1, keepdim=True)
    for label, net in nets.items():
        objective = Objective(net, (x, y), F.mse_loss)
        numbers[f"loss of the {label}"] = objective.value()
        numbers[f"trace of the {label}"] = float(hessian(objective).dense().trace())
        numbers[f"error of the {label}"] = float(
            (_margins(net, everything) <= 1e-9).double().mean()
        )
    least = least_trace(x, y)
    ratios = [_over_the_least(net, x) for net in challengers]
    numbers |= {"4 √(d + 1)": 4 * (d + 1) ** 0.5, "challengers, over their bound": min(ratios)}
    traces = [numbers[f"trace of the {label}"] for label in nets]
    errors = [numbers[f"error of the {label}"] for label in nets]
    holds = max(abs(t / least - 1) for t in (*traces, numbers["4 √(d + 1)"])) < 1e-8
    holds = holds and min(ratios) >= 1 - 1e-9
    holds = holds and max(numbers[f"loss of the {label}"] for label in nets) < 1e-20
    holds = holds and abs(errors[0] - (1 - len(seen) / 2**d)) < 1e-12 and errors[1] == 0
    return Finding(
        f"traces {traces[0]:.4f}, {traces[1]:.4f}; errors {errors[0]:.3f}, {errors[1]:g}",
        numbers,
        holds,
    )


def _over_the_least(net: nn.Sequential, x: Tensor) -> float:
    """tr H where the net's own outputs are the labels, over the least trace for those labels."""
    with torch.no_grad():
        y = net(x)
    objective = Objective(net, (x, y), F.mse_loss)
    return float(hessian(objective, compile=False).dense().trace()) / least_trace(x, y)


def draw_twins(
    nets: dict[str, nn.Sequential], everything: Tensor, seen: Tensor, **others: Any
) -> str:
    train = torch.zeros(len(everything), dtype=torch.bool)
    train[seen] = True
    outputs = {label: _margins(net, everything).numpy() for label, net in nets.items()}
    found = check_twins(nets, others["challengers"], everything, seen).numbers
    titles = [
        f"trace {found[f'trace of the {n}']:.2f}, error {found[f'error of the {n}']:.2f}"
        for n in nets
    ]
    return figures.twins(outputs, train.numpy(), titles)


# Any labels --------------------------------------------------------------------------------------


class Memory(nn.Module):
    """sum_j w_j relu(a.x - b_j): 2n + d numbers."""

    def __init__(self, a: Tensor, b: Tensor, w: Tensor) -> None:
        super().__init__()
        self.a, self.b, self.w = nn.Parameter(a), nn.Parameter(b), nn.Parameter(w)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu((x @ self.a)[:, None] - self.b) @ self.w


def any_labels(setting: Setting) -> Witness:
    """b between the projections z of the points: the equations for w are triangular.

    Just above the point before, where the net then goes straight from point to point.
    """
    draws, like = generator(6), torch.zeros((), dtype=torch.float64)
    x, a = gaussian((LABELS, WIDTH), draws, like), gaussian(WIDTH, draws, like)
    y = torch.randint(0, 2, (LABELS,), generator=draws).double() * 2 - 1
    z, order = (x @ a).sort()
    b = torch.cat([z[:1] - 1, z[:-1] + 0.01 * z.diff()])
    hidden = torch.relu(z[:, None] - b)
    w = torch.linalg.solve_triangular(hidden, y[order][:, None], upper=False)[:, 0]
    return {"net": Memory(a, b, w), "x": x, "y": y}


@torch.no_grad()
def check_any_labels(net: Memory, x: Tensor, y: Tensor) -> Finding:
    """These labels are fitted; by the same a and b any are: their equations are triangular."""
    count = sum(p.numel() for p in net.parameters())
    gap = float((net(x) - y).abs().max())
    right = float((net(x).sign() == y).double().mean())
    z = (x @ net.a).sort().values
    hidden = torch.relu(z[:, None] - net.b.sort().values)
    above, pivot = float(hidden.triu(1).abs().max()), float(hidden.diagonal().min())
    n, d = x.shape
    numbers = {"parameters": count, "2n + d": 2 * n + d, "accuracy": right, "largest residual": gap}
    numbers |= {"above the diagonal": above, "least pivot": pivot}
    holds = count == 2 * n + d and gap < 1e-6 and above == 0 < pivot
    return Finding(f"fitted by {count} weights, within {gap:.0e}", numbers, holds)


@torch.no_grad()
def draw_any_labels(net: Memory, x: Tensor, y: Tensor) -> str:
    z = x @ net.a
    line = torch.linspace(float(z.min()) - 0.3, float(z.max()) + 0.05, 4000).double()
    ys = torch.relu(line[:, None] - net.b) @ net.w
    return figures.zigzag(line.tolist(), ys.tolist(), (z.tolist(), y.tolist()))


# The edge of stability ---------------------------------------------------------------------------


def stability_edge(setting: Setting) -> Witness:
    operator = hessian(setting.objective)
    pairs, lowest = eigenpairs(operator, tol=1e-5), eigenpairs(operator, which="smallest")[0]
    if lowest.value < -SADDLE * pairs[0].value or not pairs[0].value > 0:
        raise SpiritlevelError(
            f"this is no minimum: the Hessian has eigenvalues from {lowest} to {pairs[0]}"
        )
    root = torch.tensor(CURVATURES, dtype=torch.float64).div(2).sqrt()[:, None]
    model = nn.Linear(1, 1, bias=False).double()
    model.weight.data.fill_(1.0)
    return {
        "objective": setting.objective,
        "vector": pairs.vectors[:, 0],
        "eigenvalue": pairs[0].value,
        "lowest": lowest.value - lowest.error,
        "size": _linear_size(setting.objective, pairs.vectors[:, 0], pairs[0].value),
        "rates": {label: rate / pairs[0].value for label, rate in RATES.items()},
        "example": Objective(model, (root, torch.zeros_like(root)), F.mse_loss),  # a x^2 / 2
        "curvatures": CURVATURES,
        "batches": {1: 1.0, 2: 1.0},
    }


def _linear_size(objective: Objective, vector: Tensor, eigenvalue: float) -> float:
    """The length of a step v for which grad L(theta + v) - grad L(theta) is nearest to lambda v.

    Kinks and curves of the loss bound it from above, rounding from below.
    """
    start, slope, best = objective.vector, objective.gradient(), (LINEAR, 0.0)
    for exponent in SIZES:
        size = 10.0**exponent * (1 + float(start.norm()))
        misfits = []
        for reach in (size, GROWN * size):
            step = reach * vector / vector.norm()
            change = objective.at(start + step).gradient() - slope
            misfits.append(float((change - eigenvalue * step).norm()) / (eigenvalue * reach))
        best = min(best, (max(misfits), size))
    if not best[1]:
        raise SpiritlevelError(
            "no step is short enough for the loss to be quadratic and long enough for its gradient "
            "to be more than rounding"
        )
    return best[1]


def _descent(
    objective: Objective, vector: Tensor, rate: float, size: float, steps: int = STEPS
) -> list[float]:
    """|delta| of gradient descent on L(theta + delta) - delta.grad L(theta), in units of `size`.

    The tilt makes theta a critical point, which a trained net is only nearly.
    """
    start, slope = objective.vector, objective.gradient()
    delta = size * vector / vector.norm()
    found = [1.0]
    for _ in range(steps):
        delta = delta - rate * (objective.at(start + delta).gradient() - slope)
        found.append(float(delta.norm()) / size)
    return found


def _mean_square(example: Objective, rate: float, size: int) -> float:
    """E w^2 after DRAWN steps of SGD from w = 1, over every sequence of batches there is."""
    (x, y), points = example.batches[0], [example.vector]
    batches = [torch.tensor(rows) for rows in product(range(len(x)), repeat=size)]
    parts = [example.on([(x[rows], y[rows])]) for rows in batches]
    for _ in range(DRAWN):
        points = [w - rate * part.at(w).gradient() for w in points for part in parts]
    return float(torch.stack(points).square().mean())


def check_edge(
    objective: Objective,
    vector: Tensor,
    eigenvalue: float,
    lowest: float,
    size: float,
    rates: dict[str, float],
    example: Objective,
    curvatures: tuple[float, ...],
    batches: dict[int, float],
) -> Finding:
    """Gradient descent leaves iff rate > 2 / lambda; SGD multiplies E x^2 by the known factor.

    Both are run: descent from the top eigenvector, at the rate of |1 - rate lambda|, and from a
    random direction, where nothing may carry it away but a slightly negative eigenvalue, as
    rectified nets show at their minima; SGD on losses a x^2 / 2.
    """
    slow, fast = (_descent(objective, vector, rate, size)[-1] for rate in rates.values())
    theory = [abs(1 - rate * eigenvalue) ** STEPS for rate in rates.values()]
    ray = gaussian(objective.size, generator(8), objective.vector)
    stays, leaves = (_descent(objective, ray, rate, size, LONG)[-1] for rate in rates.values())
    numbers = {
        "distance at rate 1.9 / λ": slow,
        "by the law (1.9)": theory[0],
        "distance at rate 2.1 / λ": fast,
        "by the law (2.1)": theory[1],
        "from anywhere, 1.9 / λ": stays,
        "from anywhere, 2.1 / λ": leaves,
    }
    sgd, error = _sgd(example, curvatures, batches)
    pairs = zip((slow, fast), theory, strict=True)
    carried = max(1.0, abs(1 - min(rates.values()) * lowest) ** LONG)
    right = all(abs((found / law) ** (1 / STEPS) - 1) < EACH for found, law in pairs)
    holds = slow < 0.5 and fast > 2 and right and error < 1e-12
    holds = holds and stays <= carried and leaves > stays
    holds = holds and sgd["SGD factor, batch 1"] > 1 > sgd["SGD factor, batch 2"]
    numbers |= {**sgd, "error of the factor": error}
    return Finding(f"distance x {slow:.2g} below 2 / λ, x {fast:.3g} above", numbers, holds)


def _sgd(
    example: Objective, curvatures: tuple[float, ...], batches: dict[int, float]
) -> tuple[dict[str, float], float]:
    """The factor of E x^2 in a step of SGD, for each size of batches, and the error of the law."""
    a, numbers, error = torch.tensor(curvatures, dtype=torch.float64), {}, 0.0
    for count, rate in batches.items():
        ran = _mean_square(example, rate, count) ** (1 / DRAWN)
        law = float((1 - rate * a.mean()) ** 2 + rate**2 * a.var(unbiased=False) / count)
        numbers[f"SGD factor, batch {count}"] = ran
        error = max(error, abs(ran - law))
    return numbers, error


def draw_edge(
    objective: Objective, vector: Tensor, size: float, rates: dict[str, float], **_: object
) -> str:
    ways = {label: _descent(objective, vector, rate, size) for label, rate in rates.items()}
    return figures.distances(ways)


FITTING = {
    "flat_memorizer": Claim(
        "With a bias, a flattest net can be wrong almost everywhere and another one right "
        "everywhere: both have the least trace of the Hessian that fits the data, 4 √(d + 1).",
        "Wen et al. 2023, thm. 4.1",
        "two nets on XOR, d = 10, n = 20",
        flat_twins,
        check_twins,
        draw_twins,
        "example",
        "Two nets of the same, least trace on every input there is: one is right where it was "
        "trained and silent elsewhere, the other is right everywhere.",
    ),
    "any_labels": Claim(
        "A net of two layers with 2n + d weights fits any labels of n points in d dimensions.",
        "Zhang et al. 2017",
        "100 random labels in 10 dimensions",
        any_labels,
        check_any_labels,
        draw_any_labels,
        "example",
        "The net along the one direction that it looks at passes through every random label.",
    ),
    "stability_edge": Claim(
        "Gradient descent stays at a minimum if and only if its rate is below 2 / λ, λ the largest "
        "eigenvalue; batches of B of losses aᵢx²/2, of mean curvature h, multiply E x² by "
        "(1 - rate h)² + rate² Var(a) / B, which has to be below 1 too.",
        "Wu and Su 2023",
        "descent from the top eigenvector",
        stability_edge,
        check_edge,
        draw_edge,
        caption="Gradient descent from a small step along the top eigenvector, with a rate just "
        "below and just above the edge.",
    ),
}
