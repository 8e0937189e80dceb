"""Many networks of one architecture trained at once, each on its own batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from spiritlevel.base.interrupts import Patience, patient_interrupts
from spiritlevel.base.progress import bar
from spiritlevel.base.scope import kept_rng
from spiritlevel.results.history import Epoch, History
from spiritlevel.results.loop import Done
from spiritlevel.results.provenance import provenance
from spiritlevel.training import stacking
from spiritlevel.training.feeding import shuffled
from spiritlevel.training.rules import Params, State, rows
from spiritlevel.training.standing import how_far

WHOLE = 1024  # examples of every network that are evaluated together
WARM = 3  # steps before a graph of them is recorded


def fit_many(
    models: Sequence[nn.Module],
    data: tuple[Tensor, Any],
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: str = "sgd",
    *,
    lr: float | Sequence[float],
    epochs: int,
    stop: float | None = None,
    seeds: Sequence[int] | None = None,
    batch_size: int = 64,
    **options: float,
) -> list[History]:
    """Train networks of one architecture in place, all of them in every step.

    They are to differ in their parameters alone: those whose operations on 8 examples, or whose
    gradient's, are others are refused. What hangs on how many examples there are is not seen.
    Network i meets the batches of `fit` with the seed i, or `seeds[i]`, and ends where that would
    take it, to rounding. `data` is (x, y): one x, and one y for all or a list with one for each.
    `loss(outputs, y)` is a mean over examples. `optimizer` is "sgd", "sam" or "adam" with its
    options (momentum, weight_decay, rho, ...); `lr` one number, or one for each. Each stops for
    itself where the loss over all the data is at most `stop`; one that diverges ends alone, and its
    history says so. Ctrl-C keeps what is done.
    """
    given = {"lr": lr, "seeds": seeds, "epochs": epochs, "stop": stop, "batch_size": batch_size}
    with kept_rng(), torch.inference_mode(False), torch.enable_grad(), patient_interrupts() as ctrl:
        asked = stacking.asked(models, data, loss, optimizer, **given, options=options)
        return _Training(asked, optimizer, ctrl).to_the_end()


@dataclass
class _Course:
    """What became of one network."""

    epochs: list[Epoch] = field(default_factory=list)
    stopped: str = ""
    seconds: float = 0.0


@dataclass
class _Stack:
    """Networks that are still trained, by their numbers, with all that a step reads and moves."""

    numbers: list[int]
    params: Params
    state: State
    rates: Tensor
    targets: Tensor

    def moving(self) -> list[Tensor]:
        """All that a step changes."""
        kept = [tensor for part in self.state.values() for tensor in part.values()]
        return [*self.params.values(), *kept]

    def only(self, places: list[int]) -> _Stack:
        """These of them; what is one number for all stays."""
        chosen = torch.tensor(places, dtype=torch.long, device=self.rates.device)
        state = {
            name: {key: t[chosen] if t.ndim else t for key, t in part.items()}
            for name, part in self.state.items()
        }
        params = {name: t[chosen] for name, t in self.params.items()}
        numbers = [self.numbers[place] for place in places]
        return _Stack(numbers, params, state, self.rates[chosen], self.targets[chosen])


class _Training:
    """All networks from the first epoch to the last of any."""

    def __init__(self, asked: stacking.Asked, optimizer: str, patience: Patience) -> None:
        self.asked, self.optimizer, self.patience = asked, optimizer, patience
        self.module, like = asked.module, asked.weight
        named = [dict(model.named_parameters()) for model in asked.models]
        params = {name: torch.stack([p[name].detach() for p in named]) for name in asked.learned}
        wide = torch.promote_types(like.dtype, torch.float32)  # half of them rounds a rate by 1/500
        rates = torch.tensor(asked.rates, dtype=wide, device=like.device)
        numbers = list(range(len(named)))
        self.stack = _Stack(numbers, params, asked.rule.begin(params), rates, asked.targets)
        self.courses = [_Course() for _ in named]
        self.step, self.place, self.began = 0, 0, time.perf_counter()
        self.recorded: _Recorded | None = None
        self.slopes = vmap(grad_and_value(self._loss))
        self.losses = vmap(self._loss, in_dims=(0, None, 0))

    def _loss(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.asked.loss(functional_call(self.module, params, (x,)), y)

    def to_the_end(self) -> list[History]:
        asked, interrupted = self.asked, False
        try:
            with bar(asked.epochs, f"training {len(asked.models)} networks") as progress:
                for epoch in range(1, asked.epochs + 1):
                    self._epoch(epoch)
                    progress.set_postfix_str(f"{len(self.stack.numbers)} to go", refresh=False)
                    progress.update()
                    if not self.stack.numbers:
                        break
        except BaseException:
            # inside torch, Ctrl-C may come out as another error
            if not self.patience.came or self.patience.torn:
                raise
            if not self.step:
                raise KeyboardInterrupt from None
            interrupted = True
        finally:  # after Ctrl-C they are as far as they came
            self._hand_back(range(len(self.stack.numbers)))
        return [self._history(i, interrupted) for i in range(len(asked.models))]

    def _epoch(self, epoch: int) -> None:
        asked, stack = self.asked, self.stack
        begin, n = time.perf_counter(), len(asked.x)
        orders = [shuffled(n, asked.seeds[i], epoch) for i in stack.numbers]
        order = torch.stack(orders).to(stack.rates.device)
        met = torch.zeros(len(stack.numbers), dtype=torch.float64, device=order.device)
        self.module.train()
        for chosen in order.split(asked.batch_size, dim=1):
            with self.patience.whole():
                met += self._stepped(chosen).double() * chosen.shape[1]
                self.step, self.place = self.step + 1, self.place + 1
        full = None if asked.stop is None else self._full()
        with self.patience.whole():
            self._ended(epoch, (met / n).tolist(), full, time.perf_counter() - begin)
            self.place = 0

    def _stepped(self, chosen: Tensor) -> Tensor:
        """The losses on a batch each, before the step that they lead to."""
        if chosen.device.type != "cuda" or chosen.shape[1] != self.asked.batch_size:
            return self._plain(chosen)
        if self.recorded is None:  # launching takes longer than computing
            self.recorded = _Recorded(self._plain, chosen, self.stack.moving())
        return self.recorded(chosen)

    def _plain(self, chosen: Tensor) -> Tensor:
        stack = self.stack
        x = self.asked.x[chosen]
        own = torch.arange(len(chosen), device=chosen.device)[:, None]
        y = stack.targets[own, chosen]
        found = self.asked.rule.step(
            stack.params, lambda params: self.slopes(params, x, y), stack.state, stack.rates
        )
        return found.detach()

    @torch.no_grad()
    def _full(self) -> list[float]:
        """The loss over all the data, in eval mode."""
        x, stack = self.asked.x, self.stack
        self.module.eval()
        total = torch.zeros(len(stack.numbers), dtype=torch.float64, device=x.device)
        for a in range(0, len(x), WHOLE):
            part = x[a : a + WHOLE]
            means = self.losses(stack.params, part, stack.targets[:, a : a + WHOLE])
            total += means.double() * len(part)
        return (total / len(x)).tolist()

    def _ended(
        self, epoch: int, met: list[float], full: list[float] | None, seconds: float
    ) -> None:
        """Notes the epoch, and takes out the networks that are done."""
        stop, lost = self.asked.stop, self._lost()
        for place, i in enumerate(self.stack.numbers):
            course, now = self.courses[i], None if full is None else full[place]
            rate = self.asked.rates[i]
            course.epochs.append(Epoch(epoch, self.step, met[place], rate, seconds, now))
            course.seconds = time.perf_counter() - self.began
            last = met[place] if now is None else now
            if not math.isfinite(last):
                course.stopped = f"diverged: the loss is {last}"
            elif lost[place]:  # by the last step, whose outcome no further loss would show
                course.stopped = "diverged: weights are not finite"
            elif now is not None and stop is not None and now <= stop:
                course.stopped = f"at a training loss of {now:.4g}"
        ends = [bool(self.courses[i].stopped) for i in self.stack.numbers]
        if any(ends):
            self._hand_back([place for place, end in enumerate(ends) if end])
            self.stack = self.stack.only([place for place, end in enumerate(ends) if not end])
            self.recorded = None

    def _lost(self) -> list[bool]:
        """Whose weights are not all finite."""
        finite = [rows(p).isfinite().all(1) for p in self.stack.params.values()]
        return (~torch.stack(finite).all(0)).tolist()

    @torch.no_grad()
    def _hand_back(self, places: Sequence[int]) -> None:
        """The weights at these places into their modules."""
        for place in places:
            model = self.asked.models[self.stack.numbers[place]]
            named = dict(model.named_parameters())
            for name, weights in self.stack.params.items():
                named[name].copy_(weights[place])

    def _history(self, i: int, interrupted: bool) -> History:
        course, asked = self.courses[i], self.asked
        cut = interrupted and not course.stopped
        ended = "by Ctrl-C" if cut else f"after {len(course.epochs)} epochs"
        told = provenance(
            0.0,
            [f"trained in a stack of {len(asked.models)} networks"],
            Done(interrupted=how_far(len(course.epochs), self.place, asked.epochs) if cut else ""),
            parameters=sum(p.numel() for p in asked.models[i].parameters()),
            examples=len(asked.x),
            dtype=str(asked.weight.dtype),
            device=str(asked.weight.device),
            optimizer=self.optimizer,
            seed=asked.seeds[i],
            stopped=course.stopped or ended,
        )
        told |= {"seconds": course.seconds, "watched": 0.0}
        return History(tuple(course.epochs), (), told)


class _Recorded:
    """A step as a CUDA graph: the same kernels on other batches, without a launch each."""

    def __init__(
        self, step: Callable[[Tensor], Tensor], chosen: Tensor, moving: list[Tensor]
    ) -> None:
        self.chosen = chosen.clone()
        before = [tensor.clone() for tensor in moving]
        aside = torch.cuda.Stream(chosen.device)
        aside.wait_stream(torch.cuda.current_stream(chosen.device))
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                step(self.chosen)
        torch.cuda.current_stream(chosen.device).wait_stream(aside)
        for tensor, kept in zip(moving, before, strict=True):
            tensor.copy_(kept)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.losses = step(self.chosen)

    def __call__(self, chosen: Tensor) -> Tensor:
        self.chosen.copy_(chosen)
        self.graph.replay()
        return self.losses
