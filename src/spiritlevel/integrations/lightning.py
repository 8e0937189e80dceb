"""Lightning: the watch as a callback. SAM needs nothing: Lightning steps with closures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from spiritlevel.base.requiring import required
from spiritlevel.integrations.watching import Log, Looking, rate_of

# Two packages have the same classes, and a Trainer wants those of its own.
_OLD = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    Callback = required(
        "pytorch_lightning" if _OLD else "lightning.pytorch", "'lightning!=2.6.2,!=2.6.3'"
    ).Callback


class WatchCallback(Callback):
    """Looks before the first step, after each one where a look is due, and at the end.

    - `module`: a function of the LightningModule that returns the module to look at; its own part
      that fits the watch's objective is found without it.
    - `log`: log(numbers by name, step); the watch's own if None, else the trainer's loggers.

    Lightning's checkpoints hold what was seen.
    """

    def __init__(
        self,
        watch: Any,
        *,
        module: Callable[[nn.Module], nn.Module] | None = None,
        log: Log | None = None,
    ) -> None:
        self.looking = Looking(watch, module, log)

    @property
    def watch(self) -> Any:
        return self.looking.watch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        def log(numbers: dict[str, float], step: int) -> None:
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=step)

        self.looking.begin(log)
        self.looking.rate = rate_of(trainer.optimizers[0]) if trainer.optimizers else None
        self._look(trainer, pl_module)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        self.looking.rate = rate_of(optimizer)  # schedulers move it before the batch ends

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._look(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, pl_module, last=True)
        self.looking.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.looking.end()

    def state_dict(self) -> dict[str, Any]:
        return {"watch": self.watch.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.watch.load_state_dict(state_dict["watch"])

    def _look(self, trainer: Any, pl_module: Any, *, last: bool = False) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking:
            self.looking.look(pl_module, trainer.global_step, last=last)
