"""Contexts that leave the surroundings as they were: random numbers, kernels, modes."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Iterator

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from spiritlevel.base.interrupts import parts

ONE_BY_ONE = "There is a performance drop.*mkldnn_rnn_layer"


@contextlib.contextmanager
def kept_rng(*generators: torch.Generator | None) -> Iterator[None]:
    """Give every global random state, and the given generators, back as they were."""
    cpu, python, numpy = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    own = [(g, g.get_state()) for g in generators if g is not None]
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if cuda is not None:
            torch.cuda.set_rng_state_all(cuda)
        for g, state in own:
            g.set_state(state)


@contextlib.contextmanager
def set_apart(*, whole: bool = True) -> Iterator[None]:
    """Outside the caller's inference mode, with the global random states given back.

    A `whole` is made of estimates, each of which lets Ctrl-C through.
    """
    with kept_rng(), torch.inference_mode(False), parts() if whole else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def fixed_rng(seed: int | None) -> Iterator[None]:
    """Draw random numbers from `seed` inside, and leave no trace; None does nothing."""
    if seed is None:
        yield
        return
    with kept_rng():
        seed_all(seed)
        yield


def seed_all(seed: int) -> None:
    """Every global random state from one number; wants `kept_rng` around it."""
    _seed_torch(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002


def _seed_torch(seed: int) -> None:
    """As torch.manual_seed, but for devices that are asleep.

    Those would wake up with this seed, which nothing takes back, and torch keeps a stack trace for
    each of them, which costs more than a small model.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


@contextlib.contextmanager
def differentiable(*, recurrent: bool = False) -> Iterator[None]:
    """Kernels with first derivatives, whatever mode the caller is in; draws leave no trace.

    cuDNN's recurrent kernels refuse a backward pass in eval mode, so they are put aside.
    """
    cudnn = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = cudnn and not recurrent
    try:
        with kept_rng(), torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.backends.cudnn.enabled = cudnn


@contextlib.contextmanager
def without_tf32() -> Iterator[None]:
    """float32 with all its bits, also on a GPU."""
    backends = torch.backends
    before = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32
    backends.cudnn.allow_tf32 = backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32 = before


@contextlib.contextmanager
def without_fastpath() -> Iterator[None]:
    """Encoder layers by their plain operations, which derivatives and graphs know."""
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)


@contextlib.contextmanager
def twice_differentiable(*, recurrent: bool = False) -> Iterator[None]:
    """Kernels with second derivatives: fused attention has none, its mathematical form has.

    Recurrent kernels of oneDNN are run once for each vector of several: torch says so every time.
    """
    quiet = _without_warning(ONE_BY_ONE) if recurrent else contextlib.nullcontext()
    with (
        without_fastpath(),
        differentiable(recurrent=recurrent),
        sdpa_kernel(SDPBackend.MATH),
        quiet,
    ):
        yield


@contextlib.contextmanager
def _without_warning(text: str) -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", text)
        yield
