"""Symmetric matrices known by their products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spiritlevel.base import doors, tensor_doors
from spiritlevel.base.errors import SpiritlevelError

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

SKEW = 0.05  # relative to the norm: more than any rounding
ENTRIES = 30.0  # roundings of a product that one of its entries may differ by


@dataclass(frozen=True)
class Operator:
    """A symmetric matrix A of `size` x `size`, known by `matvec`: v -> A v.

    `matvec` takes a vector (size,) or a block of columns (size, k). `spans` says where the named
    parameters lie. `cost` is the price of one product in passes over all the data. `how` tells how
    products are made, `check` how far one was from a finite difference and `rounding` what the
    working precision costs, both relative; `remark` tells what happened to the products since.
    `psd` says that v'Av >= 0 is known for all v. `ahead` is told how many products will be asked
    for, by whoever knows.
    """

    size: int
    dtype: torch.dtype
    device: torch.device
    matvec: Callable[[Tensor], Tensor]
    spans: Mapping[str, slice] = field(default_factory=dict)
    name: str = "matrix"
    how: str = ""
    check: float | None = None
    rounding: float | None = None
    remark: Callable[[], str] | None = None
    cost: float = 1.0
    psd: bool = False
    ahead: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        doors.number("size", self.size, 1, whole=True)
        doors.a("dtype", self.dtype, torch.dtype, "torch.float32 or torch.float64")
        doors.a("device", self.device, torch.device, 'a torch.device("cpu")')
        doors.function("matvec", self.matvec, "a tensor")
        doors.a("spans", self.spans, Mapping, "slices by name")
        for span in self.spans.values():
            doors.a("spans", span, slice, "slices by name")
        doors.a("name", self.name, str, "a text")
        doors.a("how", self.how, str, "a text")
        doors.number("cost", self.cost, 0)
        if self.ahead is not None:
            doors.function("ahead", self.ahead, "a number of products")

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.size

    def expect(self, products: int) -> None:
        """So many products are ahead, at least: what pays off by then is done at once."""
        doors.number("products", products, 1, whole=True)
        if self.ahead is not None:
            self.ahead(products)

    def to_scipy(self) -> LinearOperator:
        """The same matrix for scipy.sparse.linalg, on the CPU in its own precision."""
        import numpy as np
        from scipy.sparse.linalg import LinearOperator

        def product(v: np.ndarray) -> np.ndarray:
            return (self @ torch.from_numpy(np.ascontiguousarray(v))).cpu().numpy()

        def column(v: np.ndarray) -> np.ndarray:
            return product(v.reshape(-1))

        kind = np.float64 if self.dtype == torch.float64 else np.float32
        ways: dict[str, Any] = {"matvec": column, "rmatvec": column, "matmat": product}
        return LinearOperator(self.shape, **ways, dtype=kind)  # type: ignore[call-arg]

    def __matmul__(self, vectors: Tensor) -> Tensor:
        if not isinstance(vectors, Tensor):
            raise SpiritlevelError(
                f"an operator multiplies tensors, not a {type(vectors).__name__}: use "
                "torch.from_numpy, or to_scipy()"
            )
        if vectors.ndim not in (1, 2) or vectors.shape[0] != self.size:
            raise SpiritlevelError(
                f"an operator of size {self.size} multiplies a vector ({self.size},) or a block "
                f"({self.size}, k); got shape {tuple(vectors.shape)}"
            )
        return self._finite(self.matvec(vectors.to(dtype=self.dtype, device=self.device)))

    def dense(self) -> Tensor:
        """The matrix itself; for tests and small problems."""
        return self @ torch.eye(self.size, dtype=self.dtype, device=self.device)

    def _finite(self, product: Tensor) -> Tensor:
        """A product with NaN or inf would end as a number somewhere."""
        if not bool(product.isfinite().all()):
            raise SpiritlevelError(
                f"a product with this {self.name} is not finite: a value overflows "
                f"{str(self.dtype).removeprefix('torch.')}, or a derivative does not exist at this "
                "point (sqrt or norm at 0, 0/0); use dtype=torch.float64 or mend the model or loss"
            )
        return product


def only_operators(*given: object) -> None:
    """Refuse what is no Operator, an Objective for instance."""
    for value in given:
        if not isinstance(value, Operator):
            raise SpiritlevelError(
                f"give an Operator, not a {type(value).__name__}: hessian(objective), "
                "ggn(objective), or from_matrix(a)"
            )


def from_matrix(matrix: Tensor) -> Operator:
    """A dense symmetric matrix as an Operator."""
    if not isinstance(matrix, Tensor):
        raise SpiritlevelError(f"from_matrix needs a tensor, not a {type(matrix).__name__}")
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1]
    if not (square and matrix.is_floating_point() and _symmetric(matrix)):
        raise SpiritlevelError(
            f"from_matrix needs a symmetric square matrix of finite floats; got shape "
            f"{tuple(matrix.shape)}, {matrix.dtype}. Symmetrize it first: (A + A.T) / 2"
        )
    return Operator(matrix.shape[0], matrix.dtype, matrix.device, lambda v: matrix @ v)


def _symmetric(matrix: Tensor) -> bool:
    """To rounding, relative to the largest entry: whatever the unit of the matrix is."""
    largest = matrix.abs().max()
    rounding = 1000 * torch.finfo(matrix.dtype).eps
    return bool(largest.isfinite()) and bool((matrix - matrix.T).abs().max() <= rounding * largest)


def entry(operator: Operator, place: int) -> tuple[float, float]:
    """A_ii by one product, and what the rounding of products may do to it."""
    unit = torch.zeros(operator.size, dtype=operator.dtype, device=operator.device)
    unit[place] = 1.0
    image = (operator @ unit).double()
    rounding = ENTRIES * max(operator.rounding or 0.0, torch.finfo(operator.dtype).eps)
    return float(image[place]), rounding * float(image.norm())


def not_symmetric(operator: Operator, skewness: float) -> SpiritlevelError:
    """For whoever sees from products that u'Av is not v'Au."""
    seen = f"u'Av and v'Au differ by {skewness:.0e} of its norm"
    if operator.how and operator.dtype != torch.float64:
        return SpiritlevelError(
            f"this {operator.name} is little more than rounding: {seen}; use dtype=torch.float64"
        )
    return SpiritlevelError(
        f"this {operator.name} is not symmetric: {seen}; give the products of a symmetric matrix, "
        "(A + A') / 2"
    )


def scaled(operator: Operator, diagonal: Tensor) -> Operator:
    """diag(d) A diag(d): the matrix in rescaled coordinates."""
    only_operators(operator)
    tensor_doors.tensor("diagonal", diagonal, operator.size)
    d = diagonal.to(dtype=operator.dtype, device=operator.device)

    def matvec(v: Tensor) -> Tensor:
        factors = d if v.ndim == 1 else d[:, None]
        return factors * operator.matvec(factors * v)

    return replace(operator, matvec=matvec, name=f"scaled {operator.name}")


def restricted(operator: Operator, names: str | Sequence[str]) -> Operator:
    """The diagonal block of A that belongs to the parameters whose names match the patterns."""
    only_operators(operator)
    patterns = doors.names("names", names)
    chosen = {
        name: span
        for name, span in operator.spans.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not chosen:
        raise SpiritlevelError(
            f"no parameter matches {patterns}; there are: {', '.join(operator.spans) or 'none'}"
        )
    places = torch.cat([torch.arange(span.start, span.stop) for span in chosen.values()])
    places = places.to(operator.device)
    new_spans, start = {}, 0
    for name, span in chosen.items():
        new_spans[name] = slice(start, start + span.stop - span.start)
        start = new_spans[name].stop

    def matvec(v: Tensor) -> Tensor:
        full = v.new_zeros((operator.size, *v.shape[1:]))
        full[places] = v
        return operator.matvec(full)[places]

    return replace(
        operator,
        size=len(places),
        matvec=matvec,
        spans=new_spans,
        name=f"{operator.name} of {', '.join(patterns)}",
    )
