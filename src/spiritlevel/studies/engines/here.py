"""Jobs in this process, one after another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from spiritlevel.base.interrupts import heard_interrupts
from spiritlevel.studies.messages import Died, Ended, Message, Task
from spiritlevel.studies.running import work
from spiritlevel.studies.study import Study


@dataclass
class Here:
    """One task at a time, done while its messages are asked for."""

    study: Study | None = None
    number: int = 0
    at: Iterator[Message] | None = None

    @contextlib.contextmanager
    def opened(self, study: Study) -> Iterator[None]:
        self.study, self.at = study, None
        try:
            yield
        finally:
            self.study = self.at = None

    def free(self) -> int:
        return int(self.at is None)

    def submit(self, number: int, task: Task) -> None:
        assert self.study is not None
        self.number, self.at = number, work(self.study, task)

    def receive(self, seconds: float) -> list[tuple[int, Message]]:
        if self.at is None:
            return []
        with heard_interrupts() as heard:
            message = next(self.at)
        if heard:  # a training or a measure that kept what it had is no whole one
            raise KeyboardInterrupt
        if isinstance(message, Ended | Died):
            self.at = None
        return [(self.number, message)]
