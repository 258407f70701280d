r"""Bytes as a person reads and types them: one rule for both directions.

Printable text stands for its UTF-8 bytes. A backslash begins an escape: `\\`, `\n`, `\r`, `\t`, and `\xNN`
for every byte that is none of that. What is shown can be typed again.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator

from ephemera import InvalidArgument
from ephemera.cli._show import escaped_pieces

STANDARD_INPUT = "-"
ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)
NAMED = {b"\\": b"\\", b"n": b"\n", b"r": b"\r", b"t": b"\t"}

BASE64 = "base64"


def show(data: bytes) -> str:
    r"""The bytes as text for one line.

    >>> print(show("Zoë".encode()), show(b"\x00\xff"), show(b"two\nlines"), show(b"C:\\"))
    Zoë \x00\xff two\nlines C:\\
    """
    return show_encoded(data).decode()


def show_encoded(data: bytes) -> bytes:
    """The same in UTF-8, for what is printed without being looked at."""
    return b"".join(show_pieces(data))


def show_pieces(data: bytes) -> Iterator[bytes]:
    """The same, a piece at a time: what is shown of a value may be four times as long."""
    if data == b"-":
        return iter((b"\\x2d",))  # alone it would mean standard input
    return escaped_pieces(data)


def show_short(data: bytes, width: int) -> str:
    """The same, cut off where it would be wider than `width`."""
    text = show(data[: width * 4])
    return text if len(text) <= width else text[: width - 1] + "…"


def quote(data: bytes) -> str:
    r"""The bytes as a word of the Redis protocol's inline commands, in double quotes.

    >>> print(quote(b'say "hi"\n'))
    "say \"hi\"\n"
    """
    text = "-" if data == b"-" else show(data)
    return '"' + text.replace('"', '\\"') + '"'


def parse(text: str | bytes) -> bytes:
    r"""The bytes that were typed. Raises InvalidArgument for a backslash that begins no escape.

    >>> parse(r"a\x00\n") == b"a\x00\n"
    True
    """
    # Bytes of the command line that are not UTF-8 arrive as surrogates.
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return ESCAPE.sub(_unescape, data)


def json_field(name: str, data: bytes) -> dict[str, str]:
    """The bytes as a field of a JSON object: where they are no UTF-8, its name says so.

    >>> json_field("key", b"ada"), json_field("key", b"\\xff")
    ({'key': 'ada'}, {'key_base64': '/w=='})
    """
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_{BASE64}": base64.b64encode(data).decode()}


def json_value(data: bytes) -> str | dict[str, str]:
    """The bytes as a JSON value that has no name: a string, or an object with its base64."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {BASE64: base64.b64encode(data).decode()}


def _unescape(found: re.Match[bytes]) -> bytes:
    name = found[1]
    if len(name) == 3:
        return bytes.fromhex(name[1:].decode())
    if name not in NAMED:
        raise InvalidArgument(
            f"{found.string.decode(errors='replace')} has a backslash that begins no escape: "
            r"write \\ for a backslash, \xNN for a byte, or use --raw"
        )
    return NAMED[name]
