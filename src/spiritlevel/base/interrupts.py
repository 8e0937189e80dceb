"""Ctrl-C that is heard even where something inside kept what it had and went on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import FrameType

# Half an estimate, taken for a whole one, is a wrong number in whatever is made of it
_part: ContextVar[bool] = ContextVar("part", default=False)


@contextlib.contextmanager
def parts() -> Iterator[None]:
    """What is asked for inside is a part of something bigger, and lets Ctrl-C through."""
    before = _part.set(True)
    try:
        yield
    finally:
        _part.reset(before)


def keeps_what_is_done() -> bool:
    """Whether Ctrl-C is answered with what is done until then: by what was asked for itself."""
    return not _part.get()


@contextlib.contextmanager
def heard_interrupts() -> Iterator[list[bool]]:
    """Not empty once Ctrl-C came."""
    came: list[bool] = []
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield came  # ignored, or for the main thread to hear
        return

    def heard(number: int, frame: FrameType | None) -> None:
        came.append(True)
        before(number, frame)

    signal.signal(signal.SIGINT, heard)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


@dataclass
class Patience:
    """Whether Ctrl-C came, and whether it has to wait for the end of something."""

    came: bool = False
    holding: bool = False
    torn: bool = False  # it came twice, and what was to be done whole was not

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Ctrl-C is heard when this is done to its end; a second one at once."""
        self.holding = True
        try:
            yield
        finally:
            self.holding = False
        self.check()

    def check(self) -> None:
        """Ctrl-C again, where something inside kept what it had and went on."""
        if self.came:
            raise KeyboardInterrupt


@contextlib.contextmanager
def patient_interrupts() -> Iterator[Patience]:
    """Ctrl-C that leaves whole what is done inside `whole()`."""
    patience = Patience()
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield patience
        return

    def heard(number: int, frame: FrameType | None) -> None:
        waits = patience.holding and not patience.came
        patience.torn = patience.holding and patience.came
        patience.came = True
        # whoever is outside hears it now; it is raised here when what is to be whole is done
        with contextlib.suppress(*[BaseException] * waits):
            before(number, frame)

    signal.signal(signal.SIGINT, heard)
    try:
        yield patience
    finally:
        signal.signal(signal.SIGINT, before)
