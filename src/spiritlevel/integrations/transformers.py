"""The Hugging Face Trainer: the watch as a callback, and SAM, for which it has no closure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from spiritlevel.base.doors import a
from spiritlevel.base.errors import SpiritlevelError
from spiritlevel.base.requiring import required
from spiritlevel.integrations.watching import Log, Looking, rate_of

INSTALL = "transformers accelerate"


def watch_callback(
    watch: Any,
    *,
    module: Callable[[nn.Module], nn.Module] | None = None,
    log: Log | None = None,
) -> Any:
    """A TrainerCallback that looks before the first step, after each one that is due, and last.

    - `module`: a function of the trained model that returns the module to look at.
    - `log`: log(numbers by name, step); the watch's own if None, else the Trainer's log history.
    """
    looking = Looking(watch, module, log)

    class WatchCallback(required("transformers", INSTALL).TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            def keep(numbers: dict[str, float], step: int) -> None:
                state.log_history.append({**numbers, "step": step})

            looking.begin(keep)
            looking.rate = rate_of(more.get("optimizer"))
            _look(looking, state, more)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            looking.rate = rate_of(more.get("optimizer"))  # the schedule moves it in the step

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            _look(looking, state, more)

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            _look(looking, state, more, last=True)
            looking.end()

    return WatchCallback()


def _look(looking: Looking, state: Any, given: dict[str, Any], *, last: bool = False) -> None:
    if state.is_world_process_zero:
        looking.look(given["model"], state.global_step, last=last)


def sam_trainer(trainer: type[Any] | None = None) -> type[Any]:
    """A Trainer class (that of transformers if None) whose steps are those of a SAM it is given.

    Trainer(..., optimizers=(SAM(model.parameters(), torch.optim.AdamW, lr=...), None)). After the
    last backward pass of a step the weights climb, and all batches that are accumulated in it are
    differentiated again there; the Trainer's own optimizer.step() goes back and descends. Clipping
    is of the gradients uphill.
    """
    base: Any = required("transformers", INSTALL).Trainer if trainer is None else trainer
    a("trainer", base, type, "a class, transformers.Trainer or one that is made from it")

    class SamTrainer(base):
        _met: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]

        def training_step(self, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
            sam = _climber(self)
            loss = super().training_step(model, inputs, *args, **options)
            self._met = [*getattr(self, "_met", []), (inputs, args, options)]
            if not self.accelerator.sync_gradients:
                return loss
            met, self._met = self._met, []
            if sam.due:
                sam.ascend()
                for again, more, options_then in met:
                    super().training_step(model, again, *more, **options_then)
            return loss

    SamTrainer.__name__ = SamTrainer.__qualname__ = f"Sam{base.__name__}"
    return SamTrainer


def _climber(trainer: Any) -> Any:
    """The SAM inside what accelerate puts around an optimizer."""
    found = trainer.optimizer
    while not hasattr(found, "ascend") and hasattr(found, "optimizer"):
        found = found.optimizer
    if not (hasattr(found, "ascend") and hasattr(found, "due")):
        raise SpiritlevelError(
            f"the Trainer steps by {type(found).__name__}: give it a SAM, "
            "optimizers=(SAM(model.parameters(), torch.optim.AdamW, lr=...), None)"
        )
    if trainer.accelerator.scaler is not None:
        raise SpiritlevelError(
            "fp16=True scales the loss and skips steps, after which the weights would stay uphill: "
            "use bf16=True"
        )
    return found
