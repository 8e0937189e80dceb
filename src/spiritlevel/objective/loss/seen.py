"""What a model was seen to return, and how its loss takes it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.scope import fixed_rng
from spiritlevel.objective.batches import Batch, examples
from spiritlevel.objective.loss.base import call
from spiritlevel.objective.loss.heads import Heads, Packing, chosen, named_tensors

LOG_SOFTMAX = (F.log_softmax, torch.log_softmax, Tensor.log_softmax)


class Reading(enum.Enum):
    """What the value of a function of one's own is, in the order in which it is tried."""

    LABELS = "a mean over the labels that count, without labels over examples"
    EXAMPLES = "a mean over examples, however many labels each has"
    SUM = "a sum"


@dataclass(frozen=True)
class Seen:
    """The structure of a model's outputs.

    `packing` lays them side by side, None where that cannot be; `log_softmax_axis` is the axis of a
    final log_softmax that makes all of them, None if there is none. `ignores` says whether labels
    of -100 are left out by the loss, `reading` what its value is.
    """

    heads: Heads | None = None
    packing: Packing | None = None
    log_softmax_axis: int | None = None
    ignores: bool = True
    reading: Reading = Reading.LABELS

    def chosen(self, returned: Any) -> Any:
        return chosen(returned, self.heads)

    def given(self, returned: Any, one_tensor: bool) -> Any:
        """What the loss gets: all that the model returned, or its one tensor."""
        if not one_tensor or isinstance(returned, Tensor):
            return returned
        found = list(named_tensors(returned))
        if len(found) == 1:
            return found[0][1]
        raise SpiritlevelError(
            f"the model returns {len(found)} tensors ({', '.join(n for n, _ in found)}) and the "
            "loss takes one: choose it with heads=, or give a function of all of them, "
            "loss(outputs, y)"
        )

    def packed(self, returned: Any) -> Tensor:
        if self.packing is None:
            raise SpiritlevelError(
                "the model's outputs are no table of real numbers with one row per example: choose "
                "one of them with heads="
            )
        return self.packing.pack(returned)

    def unpacked(self, outputs: Tensor) -> Any:
        assert self.packing is not None
        return self.packing.unpack(outputs)


class LogSoftmaxWatch(TorchFunctionMode):
    """Remembers what went into the last log_softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.made: tuple[Tensor, Tensor, int] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in LOG_SOFTMAX:
            dim = (kwargs or {}).get("dim", args[1] if len(args) > 1 else None)
            if isinstance(dim, int) and args[0].dtype == result.dtype:
                self.made = (args[0], result, dim % max(result.ndim, 1))
        return result

    def axis_of(self, output: Tensor) -> int | None:
        return self.made[2] if self.made is not None and self.made[1] is output else None

    def before(self, output: Tensor) -> Tensor:
        if self.made is None or self.made[1] is not output:
            raise SpiritlevelError(
                "the model ends in log_softmax for some batches and not for others: give logits"
            )
        return self.made[0]


@torch.no_grad()
def look(model: nn.Module, few: Batch, heads: Heads | None) -> Seen:
    """Run the model on a few examples and see what it returns."""
    with fixed_rng(0), LogSoftmaxWatch() as watch:
        returned = chosen(call(model, few[0]), heads)
    found = Packing.of(returned, examples(few))
    tensors = [tensor for _, tensor in named_tensors(returned)]
    axis = watch.axis_of(tensors[0]) if len(tensors) == 1 else None
    return Seen(heads, found, axis)
