"""PyTorch's losses told apart: modules, functions and partials, and their options."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.objective.loss.base import IGNORED, Likelihood

# Losses of outputs and targets element by element; PyTorch broadcasts them if shapes differ
ELEMENTWISE: dict[Callable[..., Any], type[nn.Module]] = {
    F.mse_loss: nn.MSELoss,
    F.l1_loss: nn.L1Loss,
    F.smooth_l1_loss: nn.SmoothL1Loss,
    F.huber_loss: nn.HuberLoss,
    F.kl_div: nn.KLDivLoss,
    F.poisson_nll_loss: nn.PoissonNLLLoss,
    F.soft_margin_loss: nn.SoftMarginLoss,
    F.hinge_embedding_loss: nn.HingeEmbeddingLoss,
    F.binary_cross_entropy: nn.BCELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
}


def option(loss: Any, name: str, default: Any = None) -> Any:
    """An option of a loss given as a module, a partial or a plain function."""
    if isinstance(loss, functools.partial):
        return loss.keywords.get(name, option(loss.func, name, default))
    return getattr(loss, name, default)


def _is(loss: Any, function: Callable[..., Any], module: type[nn.Module]) -> bool:
    plain = loss.func if isinstance(loss, functools.partial) else loss
    # a subclass may compute anything
    return plain is function or type(plain) is module


def is_cross_entropy(loss: Any) -> bool:
    return _is(loss, F.cross_entropy, nn.CrossEntropyLoss)


def is_nll(loss: Any) -> bool:
    return _is(loss, F.nll_loss, nn.NLLLoss)


def is_from_torch(loss: Any) -> bool:
    """Whether a loss takes one tensor of outputs, as PyTorch's own do."""
    plain = loss.func if isinstance(loss, functools.partial) else loss
    module = getattr(plain if not isinstance(plain, nn.Module) else type(plain), "__module__", "")
    return str(module).startswith("torch")


def cross_entropy_like(loss: Any) -> Any:
    """The cross-entropy with the options of an nll_loss."""
    held = {
        "weight": option(loss, "weight"),
        "ignore_index": option(loss, "ignore_index", IGNORED),
        "reduction": option(loss, "reduction", "mean"),
    }
    return functools.partial(F.cross_entropy, **held)


def likelihood(loss: Any) -> Likelihood | None:
    if is_cross_entropy(loss):
        return "softmax"
    if _is(loss, F.binary_cross_entropy_with_logits, nn.BCEWithLogitsLoss):
        return "bernoulli"
    if _is(loss, F.mse_loss, nn.MSELoss):
        return "gaussian" if option(loss, "weight") is None else None
    return None


def class_weighted(loss: Any) -> bool:
    return isinstance(option(loss, "weight"), Tensor)


def altered(loss: Any) -> str:
    """The option by which the loss is no logarithm of a likelihood any more."""
    if class_weighted(loss):
        return "class weights"
    if isinstance(option(loss, "pos_weight"), Tensor):
        return "pos_weight"
    return "label_smoothing" if option(loss, "label_smoothing", 0.0) else ""


def sums_outputs(loss: Any) -> bool:
    """Whether the outputs of an example are summed rather than averaged."""
    return option(loss, "reduction") in ("sum", "batchmean")


def scores_labels(loss: Any) -> bool:
    return is_cross_entropy(loss) or is_nll(loss)


def are_labels(y: Any) -> bool:
    return isinstance(y, Tensor) and not (y.is_floating_point() or y.is_complex())


def counted(loss: Any, y: Tensor) -> Tensor:
    """Which labels count, of a loss that scores labels."""
    if not (are_labels(y) and scores_labels(loss)):
        return torch.ones(y.shape if are_labels(y) else (), dtype=torch.bool, device=y.device)
    return y != option(loss, "ignore_index", IGNORED)


def label_weights(loss: Any, y: Tensor) -> Tensor:
    """What every label adds to the divisor of PyTorch's mean: its class weight, 0 if ignored."""
    counts, class_weights = counted(loss, y), option(loss, "weight")
    if not (scores_labels(loss) and isinstance(class_weights, Tensor)):
        return counts
    return class_weights[y.masked_fill(~counts, 0)] * counts


def refuse_labels(loss: Any, y: Any, one: torch.Size) -> None:
    """Labels beyond the classes of an output, where PyTorch would say it less clearly."""
    if not (scores_labels(loss) and are_labels(y)):
        return
    wrong, classes = counted(loss, y) & ((y < 0) | (y >= one[0])), int(one[0])
    if bool(wrong.any()):
        more = f", the first dimension of the outputs of an example, {tuple(one)}," * (len(one) > 1)
        raise SpiritlevelError(
            f"a label is {int(y[wrong].reshape(-1)[0])}; there are {classes} classes{more} counted "
            "from 0 (ignored labels are those of ignore_index)"
        )


def refuse_targets(loss: Any, given: Any, y: Any) -> None:
    """Targets of another kind or shape than the loss takes, each with the way to mend it."""
    if not (isinstance(given, Tensor) and isinstance(y, Tensor)):
        return
    if y.dtype == torch.bool and (scores_labels(loss) or likelihood(loss) == "bernoulli"):
        way = "class numbers, y.long()" if scores_labels(loss) else "numbers, y.float()"
        raise SpiritlevelError(f"the targets are truth values (torch.bool): give {way}")
    if not scores_labels(loss) or not given.ndim or y.shape[:1] != given.shape[: given.ndim > 1]:
        return
    wanted = (*given.shape[:1], *given.shape[2:]) if given.ndim > 1 else ()
    if y.is_floating_point() and y.shape == wanted:
        raise SpiritlevelError(f"the targets are of {y.dtype}: give class numbers, y.long()")
    if not are_labels(y) or y.shape == wanted:
        return
    way = f"class numbers of shape {wanted}"
    if y.shape == given.shape:
        way = "class numbers, y.argmax(1), or probabilities, y.float()"
    elif y.shape == (*given.shape[:1], 1, *given.shape[2:]):
        way = "y.squeeze(1)"
    raise SpiritlevelError(
        f"the targets are whole numbers of shape {tuple(y.shape)} where the outputs are of shape "
        f"{tuple(given.shape)}: give {way}"
    )


def refuse_broadcast(loss: Any, given: Any, y: Any) -> None:
    """Outputs (N, 1) against targets (N,) would be compared each with each."""
    if not (isinstance(given, Tensor) and isinstance(y, Tensor)) or given.shape == y.shape:
        return
    for function, module in ELEMENTWISE.items():
        if _is(loss, function, module):
            raise SpiritlevelError(
                f"{function.__name__} of outputs {tuple(given.shape)} and targets "
                f"{tuple(y.shape)} compares every output with every target: bring both to one "
                "shape (y.unsqueeze(1), or a model that squeezes)"
            )


def reduced(loss: Any, reduction: str) -> Callable[[Any, Any], Tensor] | None:
    """The same loss with another reduction, if it knows one."""
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        other = copy.copy(loss)
        other.reduction = reduction  # type: ignore[assignment]
        return other
    plain = loss.func if isinstance(loss, functools.partial) else loss
    try:
        known = "reduction" in inspect.signature(plain).parameters
    except ValueError:  # a builtin without a signature
        return None
    return functools.partial(loss, reduction=reduction) if known else None


def placed(loss: Any, dtype: torch.dtype, device: torch.device) -> Any:
    """The loss with its own tensors moved; a copy if it has any."""
    if isinstance(loss, nn.Module) and any(True for _ in loss.state_dict()):
        return copy.deepcopy(loss).to(dtype=dtype, device=device)
    if isinstance(loss, functools.partial):
        keywords = {
            name: value.to(dtype=dtype, device=device) if isinstance(value, Tensor) else value
            for name, value in loss.keywords.items()
        }
        return functools.partial(loss.func, *loss.args, **keywords)
    return loss
