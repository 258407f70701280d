"""MONITOR: clients that are shown every command as it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ephemera.resp.encoder import encode
from ephemera.resp.replies import Simple
from ephemera.server.slowlog import redacted
from ephemera.server.table import Command

if TYPE_CHECKING:
    from ephemera.server.session import Session

ESCAPED = {ord(char): b"\\" + escape for char, escape in
           {"\\": b"\\", '"': b'"', "\n": b"n", "\r": b"r", "\t": b"t", "\a": b"a", "\b": b"b"}.items()}  # fmt: skip


def show(session: Session, command: Command, args: list[bytes], monitors: list[Session]) -> None:
    """Show a command to those who watch; administration stays unseen, as in Redis.

    What a script runs has no address: `lua` stands there.
    """
    if "admin" in command.flags:
        return
    seconds, micros = divmod(session.server.now.us(), 1_000_000)
    address = "lua" if session.server.scripts.is_running else session.address
    words = b" ".join(quoted(word) for word in redacted(args))
    line = b"%d.%06d [%d %b] %b" % (
        seconds,
        micros,
        session.db,
        address.encode(),
        words,
    )
    for monitor in tuple(monitors):
        monitor.deliver(encode(Simple(line), monitor.protocol))


def quoted(word: bytes) -> bytes:
    r"""A word in quotes, with everything that is no plain text escaped.

    >>> print(quoted(b'say "hi"\n\x00').decode())
    "say \"hi\"\n\x00"
    """
    return b'"%b"' % b"".join(
        ESCAPED.get(byte) or (bytes([byte]) if 0x20 <= byte < 0x7F else b"\\x%02x" % byte)
        for byte in word
    )
