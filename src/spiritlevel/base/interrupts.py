"""Ctrl-C that is heard even where something inside kept what it had and went on."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


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
