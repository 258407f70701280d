"""An instance metadata service on loopback, as EC2 has one for the role of a machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROLE = "app"
ROLES_PATH = "/latest/meta-data/iam/security-credentials/"
TOKEN_PATH = "/latest/api/token"


class MetadataService(ThreadingHTTPServer):
    """Serves the credentials of one role, or says that the machine has none."""

    daemon_threads = True

    def __init__(self, *, has_role: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[str] = []
        credentials = {
            "AccessKeyId": "tests",
            "SecretAccessKey": "tests",
            "Token": "tests",
            "Expiration": "2999-01-01T00:00:00Z",
        }
        self.replies = {TOKEN_PATH: "token"}
        if has_role:
            self.replies |= {ROLES_PATH: ROLE, ROLES_PATH + ROLE: json.dumps(credentials)}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: MetadataService

    def do_PUT(self) -> None:
        self._reply(TOKEN_PATH if self.path == TOKEN_PATH else "")

    def do_GET(self) -> None:
        # As IMDSv2: nothing without the token.
        self._reply(self.path if self.headers["X-aws-ec2-metadata-token"] == "token" else "")

    def _reply(self, path: str) -> None:
        self.server.asked.append(self.path)
        body = self.server.replies.get(path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def serving(*, has_role: bool = True) -> Iterator[MetadataService]:
    """A metadata service for the length of a block."""
    with MetadataService(has_role=has_role) as service:
        thread = threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield service
        finally:
            service.shutdown()
            thread.join()
