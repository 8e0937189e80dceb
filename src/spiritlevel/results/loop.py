"""One loop for everything long: a bar, refusals that are kept, and Ctrl-C that loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spiritlevel.base.errors import SpiritlevelError, in_one_line
from spiritlevel.base.interrupts import heard_interrupts
from spiritlevel.base.progress import bar

T = TypeVar("T")


@dataclass
class Done(Generic[T]):
    """What was made, what was refused and why, and how far it came if it was interrupted."""

    found: dict[str, T] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    interrupted: str = ""

    def require(self) -> Done[T]:
        """Itself, or every refusal where all that was asked for was refused: one may be mended."""
        if self.found or not self.refused:
            return self
        names: dict[str, list[str]] = {}
        for name, why in self.refused.items():
            names.setdefault(why, []).append(name)
        several = len(names) > 1
        each = (f"{', '.join(who)}: {why}" if several else why for why, who in names.items())
        raise SpiritlevelError("; ".join(each))


def one_by_one(
    names: Sequence[str],
    make: Callable[[str], T],
    *,
    label: str,
    noun: str = "measures",
    refuses: tuple[type[Exception], ...] = (),
    keeps_parts: bool = False,
) -> Done[T]:
    """make(name) for every name. Errors of the kinds `refuses` are kept; others are raised.

    After Ctrl-C what is done is returned. What came while it was made is not done, unless
    `keeps_parts`: then it says so itself. Nothing done raises KeyboardInterrupt.
    """
    done: Done[T] = Done()
    with bar(len(names), label) as progress, heard_interrupts() as heard:
        try:
            for name in names:
                progress.set_postfix_str(name)
                try:
                    made = make(name)
                except refuses as error:
                    if heard:
                        raise
                    done.refused[name] = in_one_line(error)
                    continue
                if not heard or keeps_parts:
                    done.found[name] = made
                if heard:
                    raise KeyboardInterrupt
                progress.update()
        except BaseException as error:
            # inside torch, Ctrl-C may come out as a RuntimeError
            if not heard and not isinstance(error, KeyboardInterrupt):
                raise
            if not done.found:
                raise KeyboardInterrupt from error
            done.interrupted = f"{len(done.found)} of {len(names)} {noun} were done"
    return done
