"""How many networks an hour: one at a time, in stacks, and in several processes.

    SPIRITLEVEL_DATA=... python benchmarks/throughput.py --device cuda

The networks of benchmarks/fashion.py that share an architecture, an optimizer and a batch size,
trained on 2,000 images of Fashion-MNIST for --epochs epochs: by `fit` one after the other, by
`fit_many` in one stack, and the same stack shared by --workers processes.
"""

from __future__ import annotations

import argparse
import os
import time
from multiprocessing import get_context
from typing import Any

import torch

from spiritlevel.studies import recipes


def tasks(options: argparse.Namespace, count: int, first: int = 0) -> list[recipes.Task]:
    config: dict[str, Any] = {
        "data": options.data,
        "examples": options.examples,
        "network": options.network,
        "width": options.width,
        "batch": options.batch,
        "optimizer": options.optimizer,
        "times": 0.1,
        "epochs": options.epochs,
    }
    return [(config, seed) for seed in range(first, first + count)]


def _seconds(work: Any) -> float:
    begin = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _stack(options: argparse.Namespace, count: int, first: int, ready: Any) -> float:
    """In a process of its own: one network to warm up, then all wait for each other."""
    torch.set_num_threads(1)
    recipes.train_many(tasks(options, 1, 10_000))
    ready.wait()
    return _seconds(lambda: recipes.train_many(tasks(options, count, first)))


def _one_by_one(options: argparse.Namespace, count: int, first: int, ready: Any) -> float:
    torch.set_num_threads(1)
    recipes.train(*tasks(options, 1, 10_000)[0])
    ready.wait()
    return _seconds(lambda: [recipes.train(*task) for task in tasks(options, count, first)])


def in_processes(work: Any, options: argparse.Namespace, each: int, workers: int) -> float:
    """Seconds of the slowest of so many processes with `each` networks."""
    context = get_context("spawn")
    with context.Manager() as manager, context.Pool(workers) as pool:
        ready = manager.Barrier(workers)
        given = [(options, each, each * i, ready) for i in range(workers)]
        return max(pool.starmap(work, given))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", default="fashion")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--network", default="mlp")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--stack", type=int, default=48)
    parser.add_argument("--alone", type=int, default=4)
    parser.add_argument("--workers", type=int, nargs="*", default=[8])
    options = parser.parse_args()
    os.environ[recipes.DEVICE] = options.device
    rows: list[tuple[str, int, float]] = []
    rows.append(
        ("one at a time", options.alone, in_processes(_one_by_one, options, options.alone, 1))
    )
    for workers in options.workers:
        found = in_processes(_one_by_one, options, options.alone, workers)
        rows.append((f"one at a time in {workers} processes", workers * options.alone, found))
    rows.append(
        (
            f"a stack of {options.stack}",
            options.stack,
            in_processes(_stack, options, options.stack, 1),
        )
    )
    for workers in options.workers if options.device == "cuda" else []:
        found = in_processes(_stack, options, options.stack, workers)
        rows.append(
            (f"stacks of {options.stack} in {workers} processes", workers * options.stack, found)
        )
    each = rows[0][2] / rows[0][1]
    print(f"{options.network} {options.width}, batches of {options.batch}, {options.epochs} epochs")
    print(f"{'how':40s} {'networks':>8s} {'seconds':>8s} {'s/network':>9s} {'times':>6s}")
    for name, count, seconds in rows:
        per = seconds / count
        print(f"{name:40s} {count:8d} {seconds:8.2f} {per:9.3f} {each / per:6.1f}")


if __name__ == "__main__":
    main()
