"""Progress bars for long work; silent when nobody watches."""

from __future__ import annotations

from tqdm import tqdm


def bar(total: int | None, label: str, *, done: int = 0) -> tqdm:  # type: ignore[type-arg]
    """A bar on standard error that vanishes when done, and shows only in a terminal."""
    return tqdm(total=total, desc=label, leave=False, disable=None, delay=0.5, initial=done)
