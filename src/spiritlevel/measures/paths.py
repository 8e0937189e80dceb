"""The l2 path norm: all products of weights along paths from an input to an output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized
from torch.overrides import TorchFunctionMode

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.estimate import Estimate
from spiritlevel.base.scope import set_apart
from spiritlevel.base.tensors import gaussian, generator, leaves, map_tensors
from spiritlevel.curvature.diagonals import PIECEWISE_LINEAR
from spiritlevel.measures.instruments import Instruments
from spiritlevel.objective import Objective
from spiritlevel.objective.batches import Batch

LINEAR = 1e-5  # relative: how far from additive a network of squares may be


def path_norm(instruments: Instruments) -> Estimate:
    """sqrt(sum over paths of prod w^2): the network of squared weights on an input of ones.

    Neyshabur et al. (2015). Biases are weights of a constant input; a maximum counts all its paths,
    an average its squared coefficients (Gonon et al., 2024); fixed statistics of BatchNorm are
    folded in.
    """
    begin = time.perf_counter()
    return Estimate(path_norm_of(instruments.objective), seconds=time.perf_counter() - begin)


@set_apart()
@torch.no_grad()
def path_norm_of(objective: Objective) -> float:
    """The path norm in float64."""
    exact = objective.to(torch.float64)
    batch = exact.few(1)
    if not any(t.is_floating_point() for t in leaves(_inputs(batch))):
        raise SpiritlevelError("the path norm needs inputs that are numbers, not tokens")
    if any(is_parametrized(m) for m in exact.module.modules()):
        raise SpiritlevelError("the path norm needs plain weights, not parametrized modules")
    held = {**dict(exact.module.named_parameters()), **exact.params}
    squares = {name: p.detach().square() for name, p in held.items()}
    mode = _Squared({id(squares[name]): p for name, p in held.items()})

    def run(make: Callable[[Tensor], Tensor]) -> Tensor:
        filled = map_tensors(lambda t: make(t) if t.is_floating_point() else t, batch)
        with mode:
            return exact.outputs(squares, filled)

    _check_linear(run)
    total = float(run(torch.ones_like).sum())
    if not math.isfinite(total):
        raise SpiritlevelError("the path norm overflows: the weights are too large")
    return math.sqrt(total)


def _inputs(batch: Batch) -> Any:
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def _check_linear(run: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> None:
    """Of positive numbers, sums, products with weights and rectifiers make an affine map."""
    draws = generator(0)

    def positive(t: Tensor) -> Tensor:
        return gaussian(tuple(t.shape), draws, t).abs()

    kept: list[Tensor] = []

    def first(t: Tensor) -> Tensor:
        kept.append(positive(t))
        return kept[-1]

    one = run(first)
    others = [positive(t) for t in kept]
    places = iter(others)
    two = run(lambda _: next(places))
    sums = iter([a + b for a, b in zip(kept, others, strict=True)])
    both = run(lambda _: next(sums))
    gap = float((both + run(torch.zeros_like) - one - two).abs().max())
    if not gap <= LINEAR * float(both.abs().max()):
        raise SpiritlevelError(
            "the path norm is that of networks of weights, sums and rectifiers; this one has "
            "something else (attention, a norm that depends on the input, a smooth activation)"
        )


class _Squared(TorchFunctionMode):
    """Runs a network whose parameters are squares, with its other coefficients squared too."""

    def __init__(self, originals: dict[int, Tensor]) -> None:
        super().__init__()
        self.originals = originals

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm:
            return self._folded(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name not in _KNOWN and name not in _POOLS and name not in _SCALED:
            raise SpiritlevelError(
                f"the path norm knows networks of weights, sums and rectifiers; {name} is no such"
            )
        if name.startswith(("add", "__add")) and kwargs.get("alpha", 1) != 1:
            raise SpiritlevelError("the path norm knows no sum with alpha")
        if name in _POOLS:
            return _POOLS[name](*args, **kwargs)
        if name == "mean":
            found = func(*args, **kwargs)
            return found * (found.numel() / args[0].numel())
        if name in _SCALED:
            if all(isinstance(a, Tensor) for a in args[:2]):
                raise SpiritlevelError("the path norm knows products with numbers and with weights")
            args = tuple(a**2 if isinstance(a, (int, float)) else a for a in args)
        return func(*args, **kwargs)

    def _folded(
        self,
        x: Tensor,
        mean: Tensor | None,
        var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        if training or mean is None or var is None:
            raise SpiritlevelError('the path norm has no batch statistics: use mode="eval"')
        shape = [1, -1] + [1] * (x.ndim - 2)
        scale = (var + eps).rsqrt()
        if weight is not None:
            scale = scale * self.originals.get(id(weight), weight)
        shift = -mean * scale
        if bias is not None:
            shift = shift + self.originals.get(id(bias), bias)
        return x * scale.square().reshape(shape) + shift.square().reshape(shape)


def _summed(dims: int) -> Callable[..., Tensor]:
    """The sum over each window instead of the maximum."""
    average = getattr(F, f"avg_pool{dims}d")

    def pool(
        x: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Tensor:
        if dilation not in (1, (1,) * dims) or ceil_mode or return_indices:
            raise SpiritlevelError("the path norm knows no dilated or ceiled maximum")
        size = kernel_size if isinstance(kernel_size, int) else math.prod(kernel_size)
        area = size**dims if isinstance(kernel_size, int) else size
        return average(x, kernel_size, stride or kernel_size, padding) * area

    return pool


def _averaged(dims: int) -> Callable[..., Tensor]:
    """An average with squared coefficients."""
    average = getattr(F, f"avg_pool{dims}d")

    def pool(x: Tensor, kernel_size: Any, *rest: Any, **options: Any) -> Tensor:
        area = kernel_size**dims if isinstance(kernel_size, int) else math.prod(kernel_size)
        return average(x, kernel_size, *rest, **options) / area

    return pool


def _adaptive(dims: int) -> Callable[..., Tensor]:
    average = getattr(F, f"adaptive_avg_pool{dims}d")

    def pool(x: Tensor, output_size: Any) -> Tensor:
        found = average(x, output_size)
        windows = [a / b for a, b in zip(x.shape[-dims:], found.shape[-dims:], strict=True)]
        if any(w != int(w) for w in windows):
            raise SpiritlevelError("the path norm knows adaptive pooling into equal windows only")
        return found / math.prod(windows)

    return pool


_SCALED = {"mul", "mul_", "div", "div_", "__mul__", "__rmul__", "__truediv__", "true_divide"}
_KNOWN = PIECEWISE_LINEAR | {"conv_transpose1d", "conv_transpose2d", "conv_transpose3d"}
_POOLS: dict[str, Callable[..., Tensor]] = {
    **{f"{'_' * under}max_pool{d}d": _summed(d) for d in (1, 2, 3) for under in (0, 1)},
    **{f"avg_pool{d}d": _averaged(d) for d in (1, 2, 3)},
    **{f"adaptive_avg_pool{d}d": _adaptive(d) for d in (1, 2, 3)},
}
