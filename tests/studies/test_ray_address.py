"""Addresses at which there is no Ray: one error in seconds, where Ray looks for minutes."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import tiny

from spiritlevel import SpiritlevelError
from spiritlevel.studies import Store

engine = pytest.importorskip("spiritlevel.studies.engines.ray")


@contextlib.contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """Somebody who takes calls and gives this answer, or says nothing until he is asked to go."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        over = threading.Event()

        def take() -> None:
            with contextlib.suppress(OSError):
                pipe, _ = server.accept()
                with pipe:
                    pipe.recv(1)
                    over.wait(60) if answer is None else pipe.sendall(answer)

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        over.set()
        thread.join(60)


def test_nobody_listens(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    begin = time.monotonic()
    for address in (f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", f"nohost.invalid:{port}"):
        said = rf"ray_address='{address}' \(in a shell --ray-address\): no cluster of Ray answers"
        with pytest.raises(SpiritlevelError, match=said):
            tiny.made().run(tmp_path / "s.db", engine="ray", ray_address=address)
    assert time.monotonic() - begin < 60, "three refusals and the import of Ray"
    with Store(tmp_path / "s.db") as store:
        assert store.status().claims == ()


def test_somebody_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 0.5)
    begin = time.monotonic()
    with listening(None) as address, pytest.raises(SpiritlevelError, match=r"within 0\.5 s\)"):
        engine.refuse_unanswered(address)
    assert 0.4 < time.monotonic() - begin < 60


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\x00"])
def test_something_else_answers(answer: bytes) -> None:
    said = r"something else answers|reset"
    with listening(answer) as address, pytest.raises(SpiritlevelError, match=said):
        engine.refuse_unanswered(address)


@pytest.mark.parametrize("address", ["", "auto", "local", "nowhere", "host:", ":1", "host:99999"])
def test_what_ray_itself_refuses_or_finds_is_left_to_it(address: str) -> None:
    engine.refuse_unanswered(address)


def test_a_cluster_answers() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    started = ray.init(include_dashboard=False, num_cpus=1, log_to_driver=False)
    try:
        engine.refuse_unanswered(started.address_info["gcs_address"])
    finally:
        ray.shutdown()
