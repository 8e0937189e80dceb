"""Transformers by their sizes, random weights: what fits on one GPU, and how it grows.

    python benchmarks/large.py small context xl

"small" is GPT-2 small, 8 x 512 tokens: the product, its peak memory, the largest eigenvalue.
"context" is the cost of a product from 32 to 1,024 tokens of context. "xl" is GPT-2 XL (1.5 billion
parameters): the largest eigenvalue to 1e-2 and the trace with its error.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import spiritlevel as sl

SIZES = {
    "small": {},
    "xl": {"n_embd": 1600, "n_layer": 48, "n_head": 25},
}


def objective(size: str, rows: int, tokens: int, microbatch: int | None = None) -> sl.Objective:
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GPT2LMHeadModel(GPT2Config(**SIZES[size])).eval()  # type: ignore[arg-type]
    ids = torch.randint(0, 50257, (rows, tokens), device="cuda")
    return sl.Objective(model, {"input_ids": ids, "labels": ids}, microbatch=microbatch)


def timed_product(operator: sl.Operator, v: Tensor) -> tuple[float, float]:
    """Seconds and peak GiB of a product that is played."""
    for _ in range(3):
        operator @ v
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    operator @ v
    torch.cuda.synchronize()
    return time.perf_counter() - begin, torch.cuda.max_memory_allocated() / 2**30


def small() -> None:
    for microbatch in (8, 2):
        found = objective("small", 8, 512, microbatch)
        operator = sl.hessian(found, compile=False)
        seconds, peak = timed_product(operator, torch.randn(found.size, device="cuda"))
        line = f"microbatches of {microbatch}: product {seconds * 1e3:.0f} ms, peak {peak:.1f} GiB"
        print(f"GPT-2 small, {line}", flush=True)
    begin = time.perf_counter()
    top = sl.eigenpairs(sl.hessian(objective("small", 8, 512)), memory=12)[0]
    took = f"{top.matvecs:.0f} products, {time.perf_counter() - begin:.1f} s with all set-up"
    print(f"largest eigenvalue {top.value:.4g}: {took}\n", flush=True)


def context() -> None:
    print("| tokens of context | product, ms | microseconds a token |\n|---|---|---|")
    for tokens in (32, 128, 512, 1024):
        found = objective("small", 4096 // tokens, tokens)
        seconds, _ = timed_product(
            sl.hessian(found, compile=False), torch.randn(found.size, device="cuda")
        )
        print(f"| {tokens} | {seconds * 1e3:.0f} | {seconds * 1e6 / 4096:.0f} |", flush=True)


def xl() -> None:
    found = objective("xl", 2, 256, 1)
    print(f"GPT-2 XL: {found.size:,} parameters", flush=True)
    begin = time.perf_counter()
    operator = sl.hessian(found, compile=False)
    print(f"product made in {time.perf_counter() - begin:.1f} s: {operator.how}", flush=True)
    top = sl.eigenvalues(operator, tol=1e-2, memory=6, budget=60)[0]
    took = f"{top.matvecs:.0f} products, {top.seconds:.1f} s"
    print(
        f"largest eigenvalue {top.value:.4g} ± {top.error:.1g}, {top.status.value}: {took}",
        flush=True,
    )
    trace = sl.trace(operator, rtol=0.1, budget=20)
    took = f"{trace.matvecs:.0f} products, {trace.seconds:.1f} s"
    peak = torch.cuda.max_memory_allocated() / 2**30
    print(f"trace {trace.value:.4g} ± {trace.error:.2g}: {took}; peak {peak:.1f} GiB", flush=True)


PARTS = {"small": small, "context": context, "xl": xl}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="+", choices=list(PARTS))
    for what in parser.parse_args().what:
        PARTS[what]()
