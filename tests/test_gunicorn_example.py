"""The gunicorn example, run for real: what its workers count together is exact."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "gunicorn_sessions"
WORKERS = 4
LIMIT = 100
PATIENCE_SECONDS = 30

# A worker takes its signal handlers from gunicorn's master until it has set its own, and a SIGTERM that it
# gets before that is lost: the master then waits for this worker until `graceful_timeout`. A signal that
# is blocked meanwhile comes later instead.
GUNICORN_CONFIG = """
import os, signal

def mask(how):
    signal.pthread_sigmask(how, [signal.SIGTERM])

os.register_at_fork(
    before=lambda: mask(signal.SIG_BLOCK), after_in_parent=lambda: mask(signal.SIG_UNBLOCK)
)

def post_worker_init(worker):
    mask(signal.SIG_UNBLOCK)
"""


class Answer:
    """What came back from the app."""

    def __init__(self, port: int, page: str, **headers: str) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        try:
            connection.request(
                "GET", page, headers={k.replace("_", "-"): headers[k] for k in headers}
            )
            response = connection.getresponse()
            self.status = response.status
            self.text = response.read().decode().strip()
            self.cookie = (response.getheader("Set-Cookie") or "").partition(";")[0]
            self.worker = int(response.getheader("X-Worker") or "0")
        finally:
            connection.close()


@pytest.fixture(params=[[], ["--preload"]], ids=["each opens", "preload"])
def port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The app behind gunicorn, on a port that the system chose."""
    pytest.importorskip("gunicorn")
    config = tmp_path / "gunicorn_config.py"
    config.write_text(GUNICORN_CONFIG)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "--workers", str(WORKERS)),
                *("--bind", f"fd://{listener.fileno()}", "--chdir", str(EXAMPLE)),
                *("--worker-tmp-dir", str(tmp_path), "--config", str(config)),
                *(*request.param, "app:app"),
            ],
            pass_fds=[listener.fileno()],
            env={**os.environ, "SESSIONS_STORE": str(tmp_path / "sessions.eph")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield listener.getsockname()[1]
        finally:
            server.terminate()
            try:
                log, _ = server.communicate(timeout=PATIENCE_SECONDS)
            finally:
                server.kill()
    assert server.returncode == 0, log
    assert "Traceback" not in log, log


def test_sessions_and_limits_are_exact_across_workers(port: int) -> None:
    first = Answer(port, "/visit")
    assert (first.status, first.text) == (200, "visit 1")
    others = [Answer(port, "/visit").cookie for _ in range(2)]
    cookies = [first.cookie, *others] * 50
    with ThreadPoolExecutor(8) as pool:
        visits = list(pool.map(lambda cookie: Answer(port, "/visit", Cookie=cookie), cookies))
        requests = list(pool.map(lambda _: Answer(port, "/limited", X_Client="ada"), range(150)))
    for cookie in [first.cookie, *others]:
        seen = [v.text for v, c in zip(visits, cookies, strict=True) if c == cookie]
        assert sorted(seen) == sorted(f"visit {number}" for number in range(2, 52))
    assert all(not visit.cookie for visit in visits)
    assert Counter(request.status for request in requests) == {200: LIMIT, 429: 50}
    served = [request.text for request in requests if request.status == 200]
    assert sorted(served) == sorted(f"request {number} of {LIMIT}" for number in range(1, 101))
    assert Answer(port, "/limited", X_Client="bob").status == 200
    assert len({answer.worker for answer in visits + requests}) > 1


def test_killing_a_worker_forgets_nothing(port: int) -> None:
    answer = Answer(port, "/visit")
    cookie = answer.cookie
    for number in range(2, 6):
        os.kill(answer.worker, signal.SIGKILL)
        answer = Answer(port, "/visit", Cookie=cookie)
        assert answer.text == f"visit {number}"


def test_a_session_that_is_not_known_gets_a_new_one(port: int) -> None:
    answer = Answer(port, "/visit", Cookie="session=made-up")
    assert answer.text == "visit 1"
    assert answer.cookie.startswith("session=")
    assert answer.cookie != "session=made-up"
    assert Answer(port, "/elsewhere").status == 404
