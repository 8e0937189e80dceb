"""What an engine is: it takes tasks, and messages come out of it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from spiritlevel.studies.messages import Message, Task
from spiritlevel.studies.study import Study


class Engine(Protocol):
    """Tasks go in by a number, and messages come out with it; Ended or Died is the last of one."""

    def opened(self, study: Study) -> AbstractContextManager[Any]:
        """At work on this study while inside; nothing of it is left behind."""
        ...

    def free(self) -> int:
        """How many more tasks it has room for."""
        ...

    def submit(self, number: int, task: Task) -> None: ...

    def receive(self, seconds: float) -> list[tuple[int, Message]]:
        """What has come since, after waiting for something so long."""
        ...
