"""A process of the pool: tasks come in by standard input, messages go out by standard output."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from typing import Any, BinaryIO


def main() -> None:
    """Until the driver closes the pipe or is gone."""
    # what a training prints must not get among the messages
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=[sys.stdin.buffer, tasks], daemon=True).start()

    import torch

    from spiritlevel.base.errors import SpiritlevelError
    from spiritlevel.studies.messages import Broken, Ready
    from spiritlevel.studies.running import work
    from spiritlevel.studies.sources import unpacked

    torch.set_num_threads(int(sys.argv[1]))
    try:
        study = unpacked(tasks.get())
    except SpiritlevelError as error:
        _send(out, Broken(str(error)))
        os._exit(0)  # an end of the interpreter would wait for the thread that listens
    _send(out, Ready())
    while True:
        for message in work(study, tasks.get()):
            _send(out, message)


def _listen(pipe: BinaryIO, tasks: queue.SimpleQueue[Any]) -> None:
    """The pipe ends with the driver, however that ends: then nobody wants what is done here."""
    try:
        while True:
            tasks.put(pickle.load(pipe))
    except (EOFError, pickle.UnpicklingError, OSError):
        os._exit(0)


def _send(out: BinaryIO, message: Any) -> None:
    try:
        pickle.dump(message, out)
        out.flush()
    except BrokenPipeError:
        os._exit(0)
