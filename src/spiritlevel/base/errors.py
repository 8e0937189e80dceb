"""The one error that users meet."""

import traceback


class SpiritlevelError(ValueError):
    """Bad input; the message names the argument, what it got and what to do."""


class ChangedError(SpiritlevelError):
    """A point that should compute the same function does not: nothing may be built on it."""


def first_line(error: BaseException, most: int | None = None) -> str:
    """What an error says, as much of it as fits into one line; its kind if it says nothing."""
    return (_said(error) or type(error).__name__).splitlines()[0][:most]


def clause(error: BaseException) -> str:
    """The first sentence of an error from below, as why something does not run."""
    return f"it does not run here ({first_line(error, 160).split('. ')[0].rstrip('.')})"


def in_one_line(error: BaseException, most: int | None = None) -> str:
    """The kind of an error that is not ours, and what it says."""
    if isinstance(error, SpiritlevelError):
        return first_line(error, most)
    said = first_line(error, most) if _said(error) else "no message"
    return f"{type(error).__name__}: {said}"


def without_locals(error: Exception) -> Exception:
    """The error as it is, but for the variables of its frames: they may hold all of the memory."""
    ahead: list[BaseException] = [error]
    seen = set[int]()
    while ahead:
        one = ahead.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        ahead += [more for more in (one.__cause__, one.__context__) if more is not None]
    return error


def writable(text: str) -> str:
    """The text in characters that any file takes: names of files may hold others."""
    return text.encode("utf-8", "backslashreplace").decode()


def _said(error: BaseException) -> str:
    try:
        return writable(str(error)).strip()
    except Exception:  # a text that cannot be made says nothing
        return ""
