"""Computations that several measures share, made once and only when asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from torch import Tensor

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.interrupts import parts
from spiritlevel.base.operator import ENTRIES, Operator, entry, scaled
from spiritlevel.curvature import ggn, hessian
from spiritlevel.curvature.diagonals import GaussNewtonDiagonal, few_passes, ggn_diagonal
from spiritlevel.curvature.engine import CompileChoice
from spiritlevel.measures.given import Given, before_training
from spiritlevel.objective import Objective
from spiritlevel.orbit import OrbitMinimum, minimum
from spiritlevel.orbit.program import Matrix
from spiritlevel.results.loop import FAILURES
from spiritlevel.spectral import Eigenpairs, Probes, Which, eigenpairs, probe
from spiritlevel.spectral.probes import MIN_PROBES, Quantity, within
from spiritlevel.symmetry import Group, symmetries
from spiritlevel.symmetry.tracing.degree import multilinear

T = TypeVar("T")
SKETCH = 30  # products that look for what is taken out before probes are drawn
COARSE_ROUNDING, DOUBTFUL_CHECK = 1e-3, 1e-2  # of products: beyond them a reader is told
FEWEST_PROBES = 8
TENSORS = 4  # that a diagonal is looked at in
APART = 8  # standard errors between a trace that is known and probes of it: a bug, not chance
GAP = 5e-3  # between an orbit minimum and its lower bound


class Instruments:
    """One objective and the settings of one report.

    `tol` is the relative residual of eigenvalues, `rtol` the relative standard error of traces
    and norms, `budget` the most products for either, `least_probes` the fewest random ones. Orbit
    minima come with the proof that their point is the same network, unless `certify` is False.
    `init` are the weights before training, `losses` those of its steps, where measures need them.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        seed: int = 0,
        tol: float = 1e-3,
        rtol: float = 0.05,
        budget: int = 200,
        least_probes: int = MIN_PROBES,
        both_ends: bool = True,
        compile: CompileChoice = "auto",
        group: Group | None = None,
        certify: bool = True,
        init: Given = None,
        losses: Sequence[float] | None = None,
    ) -> None:
        self.objective = objective
        self._init, self._losses = init, losses
        if group is not None:
            self.__dict__["group"] = group
        self.seed, self.tol, self.rtol, self.budget = seed, tol, rtol, budget
        self.least_probes, self.both_ends, self.certify = least_probes, both_ends, certify
        self.compile: CompileChoice = compile
        self._shared: dict[str, Callable[[], Any]] = {}
        self._made: dict[tuple[Any, ...], Any] = {}
        self.confirming = 0.0  # products that a diagonal was compared with

    def beside(self, objective: Objective) -> Instruments:
        """The same settings at another point, with nothing shared."""
        return Instruments(
            objective,
            seed=self.seed,
            tol=self.tol,
            rtol=self.rtol,
            budget=self.budget,
            least_probes=self.least_probes,
            both_ends=self.both_ends,
            compile=False,
            group=self.__dict__.get("group"),
            certify=self.certify,
            init=self._init,
            losses=self._losses,
        )

    def follow(self, here: Instruments, element: Tensor) -> None:
        """Take D^-1 H D^-1 from the products there, and that of G: this is its twin."""
        scales = 1 / here.group.flat_factors(element, here.objective.shapes)
        self.share(
            hessian=lambda: scaled(here.hessian, scales),
            gauss_newton=lambda: scaled(here.gauss_newton, scales),
            diagonal=lambda: here.diagonal.scaled(scales),
            curvatures=lambda: _scaled(here.curvatures, scales),
            multilinear=lambda: here.multilinear,
        )

    def share(self, **known: Callable[[], Any]) -> None:
        """Take some computations from elsewhere instead of making them."""
        self._shared |= known

    @functools.cached_property
    def hessian(self) -> Operator:
        if "hessian" in self._shared:
            return self._shared["hessian"]()
        return hessian(self.objective, compile=self.compile)

    @functools.cached_property
    def gauss_newton(self) -> Operator:
        if "gauss_newton" in self._shared:
            return self._shared["gauss_newton"]()
        return ggn(self.objective)

    @functools.cached_property
    def whole(self) -> Tensor:
        """The Hessian itself, in float64: of small networks."""
        return self.hessian.dense().double()

    @functools.cached_property
    def group(self) -> Group:
        """The rescalings that change no prediction."""
        return symmetries(self.objective)

    @functools.cached_property
    def diagonal(self) -> GaussNewtonDiagonal:
        """That of the Gauss-Newton matrix."""
        if "diagonal" in self._shared:
            return self._shared["diagonal"]()
        return ggn_diagonal(self.objective)

    @functools.cached_property
    def multilinear(self) -> bool:
        """Whether the network is known to be piecewise linear in each parameter."""
        if "multilinear" in self._shared:
            return self._shared["multilinear"]()
        return multilinear(self.objective)

    @functools.cached_property
    def sums(self) -> bool:
        """Whether traces of the Hessian are sums of the diagonal of G, which takes few passes."""
        try:
            return few_passes(self.objective) and self.multilinear
        except FAILURES:  # a model that takes no single example, for one: products may be there
            return False

    @functools.cached_property
    def curvatures(self) -> Tensor | None:
        """diag H in float64, where it is that of G and takes few passes: then traces are exact.

        Products with the Hessian have to say the same of some of its entries.
        """
        if "curvatures" in self._shared:
            return self._shared["curvatures"]()
        if not self.sums:
            return None
        try:
            found = self.diagonal
        except FAILURES:  # a loss that is not convex in the outputs, for one, or has no vmap
            return None
        same = found.exact and not found.cut and self._agree(found.values)
        return found.values if same else None

    def _agree(self, values: Tensor) -> bool:
        """Whether the entries that products give are those of a diagonal."""
        for place in _telling(values, self.objective.spans):
            found, unsure = entry(self.hessian, place)
            self.confirming += self.hessian.cost
            if not abs(found - float(values[place])) <= unsure + 1e-6 * abs(float(values[place])):
                return False
        return True

    @functools.cached_property
    def least_norm(self) -> OrbitMinimum:
        """Of the Gauss-Newton matrix, over the orbit."""
        return self.least("spectral", tol=max(GAP, 2 * self.tol), seed=self.seed)

    @functools.cached_property
    def least_trace(self) -> OrbitMinimum:
        return self.least("trace")

    def least(self, norm: str, group: Group | None = None, **settings: Any) -> OrbitMinimum:
        """Over the orbit of the group, or of a part of it."""
        return minimum(
            self.objective,
            self.group if group is None else group,
            norm=norm,
            operator=Matrix("ggn", lambda: self.gauss_newton, True, "ggn"),
            diagonal=self.diagonal,
            certify=self.certify,
            before=False,
            **settings,
        )

    @functools.cached_property
    def gradient(self) -> Tensor:
        return self.objective.gradient()

    @functools.cached_property
    def extremes(self) -> Eigenpairs:
        """Both ends of the spectrum from one Lanczos run, to `tol` times the norm.

        Without `both_ends` only the one of larger magnitude: the other takes most of the products.
        """
        ends: Which = "both" if self.hessian.size > 1 else "largest"
        return eigenpairs(
            self.hessian,
            which=ends if self.both_ends else "magnitude",
            tol=self.tol,
            relative_to="norm",
            budget=self.budget,
            seed=self.seed,
        )

    @property
    def sharpest(self) -> Eigenpairs | None:
        """The ends of the spectrum with the largest eigenvalue first, if that is among them."""
        return self.extremes if self.extremes[0].value > 0 else None

    @functools.cached_property
    def probes(self) -> Probes:
        """Random probes after the leading Ritz vectors are taken out.

        Where the trace is known exactly they are for the Frobenius norm alone, and fewer.
        """
        sketched = self.used("extremes")
        with parts():
            top = self.extremes
        known = self.curvatures is not None  # squares scatter less than a trace does
        wanted: tuple[Quantity, ...] = ("frobenius",) if known else ("trace", "frobenius")
        found = probe(
            self.hessian,
            stop=within(self.rtol, *wanted),
            budget=self.budget,
            least=max(self.least_probes // 2, FEWEST_PROBES) if known else self.least_probes,
            deflate=top.leading,
            images=top.leading_images,
            blocks=self.hessian.spans,
            seed=self.seed,
        )
        rounding = ENTRIES * (self.hessian.rounding or 0.0) * found.frobenius().value
        _confront(self.curvatures, found.trace(), rounding)
        # who looks first for what is taken out pays for it
        return found if sketched else replace(found, matvecs=found.matvecs + top[0].matvecs)

    @functools.cached_property
    def init(self) -> Tensor:
        """The parameters before training, as one flat vector."""
        if self._init is None:
            raise SpiritlevelError(
                "this compares with the weights before training; give init=, the module, its "
                "state_dict() or an Objective from before training"
            )
        return before_training(self.objective, self._init)

    @functools.cached_property
    def losses(self) -> list[float]:
        """The training losses, one for each step."""
        if self._losses is None:
            raise SpiritlevelError(
                "this is read from the course of the training; give losses=, the training loss "
                "of every step"
            )
        return [float(loss) for loss in self._losses]

    def probed(self, operator: Operator, *quantities: Quantity) -> Probes:
        """Random probes of another matrix, after the leading Ritz vectors are taken out."""
        budget = min(SKETCH, self.budget)
        top = eigenpairs(operator, which="magnitude", tol=0.1, budget=budget, seed=self.seed)
        found = probe(
            operator,
            stop=within(self.rtol, *quantities),
            budget=self.budget,
            least=self.least_probes,
            deflate=top.leading,
            images=top.leading_images,
            seed=self.seed,
        )
        return replace(found, matvecs=found.matvecs + top[0].matvecs)

    def once(self, name: str, make: Callable[[], T], *chosen: Any) -> T:
        """What several measures of a family share, for chosen parameters: made when asked for."""
        key = (name, *chosen)
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def remarks(self) -> list[str]:
        """What a reader must know about the products."""
        if not self.used("hessian"):
            return []
        operator = self.hessian
        said = [operator.remark()] if operator.remark else []
        if operator.check and operator.check > DOUBTFUL_CHECK:
            said.append(
                f"the product differs from finite differences by {operator.check:.0e}: examples "
                "fitted to the last digit, kinks, a loss without second derivatives, or derivatives"
                " that are not the loss's (a stop-gradient, a backward pass of the model's own)"
            )
        if operator.rounding and operator.rounding > COARSE_ROUNDING:
            said.append(
                f"products are rounded to {operator.rounding:.0e} (tf32?): for more digits set "
                "torch.backends.cudnn.allow_tf32 = False, or use dtype=torch.float64"
            )
        return [remark for remark in said if remark]

    def used(self, name: str) -> bool:
        """Whether a shared computation has been made already."""
        return name in self.__dict__ or any(key[0] == name for key in self._made)


def _confront(curvatures: Tensor | None, probed: Estimate, rounding: float) -> None:
    """What is said of the diagonal and what products with the Hessian say have to agree."""
    if curvatures is None:
        return
    trace, width = float(curvatures.sum()), APART * probed.error + rounding
    if abs(trace - probed.value) > width + COARSE_ROUNDING * abs(probed.value):
        raise SpiritlevelError(
            f"the trace is {trace:.6g} by the Gauss-Newton diagonal and {probed} by products with "
            "the Hessian: an error of spiritlevel's; please report it with the model"
        )


def _telling(values: Tensor, spans: Mapping[str, slice]) -> list[int]:
    """Where the diagonal is largest, in tensors at even distances."""
    each = [span for span in spans.values() if span.stop > span.start]
    chosen = [
        each[i * len(each) // min(TENSORS, len(each))] for i in range(min(TENSORS, len(each)))
    ]
    return [span.start + int(values[span].abs().argmax()) for span in chosen]


def _scaled(curvatures: Tensor | None, factors: Tensor) -> Tensor | None:
    """diag(D A D) from diag(A), where it is known."""
    return None if curvatures is None else curvatures * factors.to(curvatures) ** 2
