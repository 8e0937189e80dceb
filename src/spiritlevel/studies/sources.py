"""Where a study comes from: a file by its path, and the way to other processes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import linecache
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from spiritlevel.base import doors
from spiritlevel.base.errors import SpiritlevelError, in_one_line
from spiritlevel.studies.definition import read_source
from spiritlevel.studies.study import Study

MAIN = "__study_main__"  # what a script is called where it is not the one that was started
_loading: list[str] = []  # files that a worker executes right now


@dataclass(frozen=True)
class Source:
    """A study for another process: itself by reference, and the text of the files it is made in.

    The text is read once, so that all workers have the same, whatever is edited meanwhile.
    """

    study: bytes
    modules: dict[str, tuple[str, str, str]]  # name -> file, package, text
    imports: tuple[str, ...]  # what registers its measures
    path: tuple[str, ...]
    dtype: torch.dtype  # the default one, which a script may set where only it itself is run


def load_study(path: str | os.PathLike[str], name: str | None = None) -> Study:
    """The study of a Python file; its `name` chooses one of several."""
    doors.a("path", path, (str, os.PathLike), "the name of a Python file with a Study in it")
    doors.a("name", name, (str, type(None)), "the name of a study in that file")
    file = Path(path).absolute()
    _refuse_taken(file)
    try:
        text = read_source(file)
    except (OSError, ValueError, SyntaxError) as error:
        raise SpiritlevelError(f"path={str(path)!r} cannot be read: {error}") from None
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))  # for what lies beside it
    called = file.stem if file.stem.isidentifier() else "study"
    known = sys.modules.get(called)
    if known is not None and getattr(known, "__file__", None) != str(file):
        called = f"study_{abs(hash(str(file)))}"
    return _of_name(str(path), _executed(called, str(file), "", text), name)


def _of_name(path: str, module: ModuleType, name: str | None) -> Study:
    """The only study of a module, or that of this name."""
    found: dict[str, Study] = {}
    for one in vars(module).values():
        if isinstance(one, Study) and found.setdefault(one.name, one) is not one:
            raise SpiritlevelError(
                f"path={path!r} has two studies of the name {one.name!r}: give each one of its own"
            )
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise SpiritlevelError(
            f"path={path!r} has no study: define one at its top level, study = Study(...)"
        )
    if name not in found:
        raise SpiritlevelError(
            f"path={path!r}: name one study of it (name=, in a shell --name); there are: "
            f"{', '.join(map(repr, found))}"
        )
    return found[name]


def _refuse_taken(file: Path) -> None:
    """The folder of a study comes first where modules are looked for, here and in workers."""
    other = sys.modules.get(file.stem)
    package = getattr(other, "__file__", None) if hasattr(other, "__path__") else None
    installed = package is not None and Path(package).parent.parent != file.parent
    if file.stem in sys.stdlib_module_names or installed:
        raise SpiritlevelError(
            f"path={str(file)!r}: what imports {file.stem} would find this file in place of the "
            "module of that name: rename it"
        )


def packed(study: Study) -> Source:
    """What another process needs to have the same study."""
    try:
        held = pickle.dumps(study)
        reader = _Unpickler(held, {})
        reader.load()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise SpiritlevelError(
            f"the study {study.name!r} cannot be sent to other processes ({in_one_line(error)}): "
            'define train at the top level of a file, or use engine="here"'
        ) from None
    measures = {one.asked.entry.function.__module__ for one in study.wanted.values()}
    modules = {n: _module(n) for n in sorted(reader.used | measures) if _is_script(n)}
    imports = tuple(sorted(name for name in measures if name not in modules))
    path = tuple(p or str(Path.cwd()) for p in sys.path)
    return Source(held, modules, imports, path, torch.get_default_dtype())


def unpacked(source: Source) -> Study:
    """The study, here."""
    sys.path += [place for place in source.path if place not in sys.path]
    torch.set_default_dtype(source.dtype)
    names = {name: MAIN if name == "__main__" else name for name in source.modules}
    for name, (file, package, text) in source.modules.items():
        if getattr(sys.modules.get(names[name]), "__text__", None) != text:
            with _imported(file):
                _executed(names[name], file, package, text)
    with _imported("a module of the study"):
        for name in source.imports:
            importlib.import_module(name)
        study: Study = _Unpickler(source.study, names).load()
        study.refuse_edited()  # a package is imported from its files as they are now
    return study


@contextlib.contextmanager
def _imported(what: str) -> Iterator[None]:
    _loading.append(what)
    try:
        yield
    except SpiritlevelError:
        raise
    except (Exception, SystemExit) as error:  # the same for every worker
        raise SpiritlevelError(
            f"{what} cannot be imported by a worker: {in_one_line(error)}"
        ) from error
    finally:
        _loading.remove(what)


def refuse_recursion() -> None:
    """A script that runs its study while a worker imports it would start workers without end."""
    if _loading:
        raise SpiritlevelError(
            f"{_loading[-1]} runs its study while it is imported: put that under if __name__ == "
            '"__main__":'
        )


class _Unpickler(pickle.Unpickler):
    def __init__(self, held: bytes, names: dict[str, str]) -> None:
        super().__init__(io.BytesIO(held))
        self.names = names
        self.used: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        self.used.add(module)
        return super().find_class(self.names.get(module, module), name)


def _is_script(name: str) -> bool:
    """A file of the user's: what is installed, and packages, are imported where they are used."""
    package = "." in name or hasattr(sys.modules.get(name), "__path__")
    return name == "__main__" or not (package or name in sys.stdlib_module_names)


def _module(name: str) -> tuple[str, str, str]:
    module = sys.modules.get(name)
    file, kept = getattr(module, "__file__", None), getattr(module, "__text__", None)
    try:
        text = kept if kept is not None else read_source(file or "")
    except (OSError, ValueError, SyntaxError):
        raise SpiritlevelError(
            "the study is made in an interactive session, of which other processes know nothing: "
            'write it to a file, or use engine="here"'
        ) from None
    return str(file), getattr(module, "__package__", None) or "", text


def _executed(name: str, file: str, package: str, text: str) -> ModuleType:
    """The text as a module of this name."""
    spec = importlib.util.spec_from_loader(name, None, origin=file)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update(__file__=file, __package__=package, __text__=text)
    linecache.cache.setdefault(file, (len(text), None, text.splitlines(True), file))
    sys.modules[name] = module
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
    except SpiritlevelError:
        raise
    except (Exception, SystemExit) as error:
        raise SpiritlevelError(f"{file} cannot be imported: {in_one_line(error)}") from error
    return module
