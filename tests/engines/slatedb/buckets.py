"""Places for stores on SlateDB: directories, and an S3 endpoint for a whole session of tests.

The endpoint is moto in a process of its own: started when it is first asked for, on loopback, and ended with
the tests' process. It knows conditional writes, on which SlateDB's fencing rests.
"""

from __future__ import annotations

import atexit
import http.client
import os
import subprocess
import sys
from functools import cache
from itertools import count
from pathlib import Path

from tests.waiting import PATIENCE_S, wait_until
from tests.wire.servers import free_port

BUCKET = "contract"
QUICK = "flush_interval=0.005&poll_interval=0.02"
"""Settings with which nothing waits long, however durable it is."""
QUICK_S3 = "flush_interval=0.02&poll_interval=0.5"
"""The same, with fewer requests: each of them keeps moto busy for milliseconds."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests"}

_numbers = count()


def file_url(directory: Path, settings: str = QUICK) -> str:
    """A store in a directory."""
    return f"file://{directory}?engine=slatedb&{settings}"


def s3_url(name: str = "", settings: str = QUICK_S3) -> str:
    """A store in the bucket, at a path of its own unless it is named."""
    path = name or f"store-{os.getpid()}-{next(_numbers)}"
    return f"s3://{BUCKET}/{path}?endpoint={endpoint()}&region=us-east-1&{settings}"


def request(method: str, path: str, body: bytes = b"") -> bytes:
    """Ask the endpoint itself, about an object of the bucket or the bucket."""
    connection = http.client.HTTPConnection(endpoint().removeprefix("http://"), timeout=PATIENCE_S)
    try:
        # moto checks no signature, but lets nobody without one delete.
        signed = {
            "Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request"
        }
        connection.request(method, f"/{BUCKET}{path}", body, signed)
        response = connection.getresponse()
        assert response.status < 300, response.status
        return response.read()
    finally:
        connection.close()


@cache
def endpoint() -> str:
    """Where S3 answers, with the bucket made."""
    os.environ.update(CREDENTIALS)
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(_end, process)
    wait_until(lambda: _answers(port, process), what="moto serves S3")
    return f"http://127.0.0.1:{port}"


def _answers(port: int, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, f"moto ended with {process.returncode}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("PUT", f"/{BUCKET}")
        return connection.getresponse().status == 200
    except ConnectionError:
        return False
    finally:
        connection.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(PATIENCE_S)
