"""Requests from bytes, fed in pieces of any size.

Two ways lead to the same requests. An argument that is plain and whole is cut from the buffer where it
lies (`_requests.pyx`). Whatever is not (one that goes on in the next buffer, an inline command, an error) is
read byte-exactly as Redis reads it (`_read`), one at a time. Both look at each byte a fixed number of
times, however the bytes arrive.

A request is a list of arguments. After a protocol error nothing more is read: `error` says why, and
the requests before it still count.
"""

from __future__ import annotations

import re

from ephemera.resp._requests import Limits, PlainParser

__all__ = ["Limits", "Parser", "Request", "split_inline"]

Request = list[bytes]

LINE_BYTES_MAX = 64 * 1024
"""The longest inline command, and the longest line that announces a length."""
UNTRUSTED_ARGUMENTS_MAX = 10
UNTRUSTED_BULK_BYTES_MAX = 16 * 1024
ARGUMENTS_MAX = 2**31 - 1
NUMBER = re.compile(rb"0|-?[1-9][0-9]{0,18}")


class Parser(PlainParser):
    """One client's unread bytes and unfinished request.

    >>> parser = Parser(Limits())
    >>> parser.feed(b"*2\\r\\n$3\\r\\nGET\\r\\n$4\\r\\nna")
    []
    >>> parser.feed(b"me\\r\\nPING\\r\\n")
    [[b'GET', b'name'], [b'PING']]
    """

    __slots__ = ("_at", "_buffer", "_length", "_searched", "error")

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.error: bytes | None = None
        self._buffer = bytearray()
        self._at = 0  # the first byte of the buffer that was not read
        self._searched = 0  # no line ends between `_at` and here
        self._length = -1  # of the next argument, once announced

    @property
    def unread(self) -> int:
        """How many bytes wait for the rest of their request."""
        return len(self._buffer) + self.held

    @property
    def is_over(self) -> bool:
        """Whether that is more than the query buffer's limit, which Redis answers without a word."""
        return self.unread > self.limits.buffer_bytes_max

    def read_exactly(self, data: bytes) -> int:
        """Read up to the end of an argument, of what announces how many there are, or of an inline command;
        returns how many of these bytes were read.

        What follows is not kept: nothing of it was before these bytes.
        """
        if self.error is not None:
            return len(data)
        self._buffer += data
        while (is_read := self._read()) and self._length >= 0:
            pass
        left = len(self._buffer) - self._at if is_read else 0
        del self._buffer[: self._at + left]
        self._searched -= self._at
        self._at = 0
        self.missing = max(0, self._length + 2 - len(self._buffer)) if self._length >= 0 else 0
        # After an error too: nothing more is read.
        self.is_inside = not is_read
        return len(data) - left

    # --- byte by byte -------------------------------------------------------------------------

    def _read(self) -> bool:
        """Take one step; whether there were the bytes for it."""
        if self.awaited:
            return self._read_length() if self._length < 0 else self._read_argument()
        if self._buffer[self._at] == ord("*"):
            return self._read_count()
        return self._read_inline()

    def _read_count(self) -> bool:
        line = self._line(b"too big mbulk count string")
        if line is None:
            return False
        count = _number(line[1:])
        if count is None or count > ARGUMENTS_MAX:
            return self._fail(b"invalid multibulk length")
        if count > UNTRUSTED_ARGUMENTS_MAX and not self.limits.is_trusted:
            return self._fail(b"unauthenticated multibulk length")
        self.awaited = max(0, count)
        return True

    def _read_length(self) -> bool:
        line = self._line(b"too big bulk count string")
        if line is None:
            return False
        if line[:1] != b"$":
            # Where the line is empty, Redis shows the line end that it stands at.
            return self._fail(b"expected '$', got '%b'" % (line[:1] or b"\r"))
        length = _number(line[1:])
        if length is None or not 0 <= length <= self.limits.bulk_bytes_max:
            return self._fail(b"invalid bulk length")
        if length > UNTRUSTED_BULK_BYTES_MAX and not self.limits.is_trusted:
            return self._fail(b"unauthenticated bulk length")
        self._length = length
        return True

    def _read_argument(self) -> bool:
        end = self._at + self._length
        if len(self._buffer) < end + 2:
            return False
        self.request.append(bytes(memoryview(self._buffer)[self._at : end]))
        self.held += self._length
        self._at = self._searched = end + 2  # two bytes that Redis does not look at either
        self._length = -1
        self.awaited -= 1
        return True

    def _read_inline(self) -> bool:
        end = self._find(b"\n", b"too big inline request")
        if end < 0:
            return False
        line = bytes(self._buffer[self._at : end]).removesuffix(b"\r")
        self._at = self._searched = end + 1
        request = split_inline(line)
        if request is None:
            return self._fail(b"unbalanced quotes in request")
        self.request = request
        return True

    def _line(self, too_long: bytes) -> bytes | None:
        end = self._find(b"\r", too_long)
        if end < 0:
            return None
        if end + 1 == len(self._buffer):  # the byte after it is part of the line end
            return None
        line = bytes(self._buffer[self._at : end])
        self._at = self._searched = end + 2
        return line

    def _find(self, byte: bytes, too_long: bytes) -> int:
        """Where a line ends; -1 when it does not yet, or is too long, in however many pieces it came."""
        end = self._buffer.find(byte, self._searched)
        self._searched = len(self._buffer) if end < 0 else end
        if self._searched - self._at > LINE_BYTES_MAX:
            self._fail(too_long)
            return -1
        return end

    def _fail(self, reason: bytes) -> bool:
        self.error = b"Protocol error: " + reason
        return False


def _number(digits: bytes) -> int | None:
    number = int(digits) if NUMBER.fullmatch(digits) else None
    return number if number is not None and -(2**63) <= number < 2**63 else None


# --- inline commands ------------------------------------------------------------------------------

SPACES = b" \t\n\v\f\r"
ENDS = b" \t\n\r\0"
HEX = re.compile(rb"\\x([0-9a-fA-F]{2})")
ESCAPED = {ord("n"): 10, ord("r"): 13, ord("t"): 9, ord("b"): 8, ord("a"): 7}


def split_inline(line: bytes) -> Request | None:
    r"""The words of a line, quoted ones whole; None when a quote is not closed properly.

    >>> split_inline(b"SET name 'ada l.' \"\\x00\\n\"")
    [b'SET', b'name', b'ada l.', b'\x00\n']
    """
    words: Request = []
    at = 0
    while True:
        while at < len(line) and line[at] in SPACES:
            at += 1
        if at == len(line):
            return words
        word = bytearray()
        while at < len(line) and line[at] not in ENDS:
            if line[at] in b"\"'":
                end = _quoted(line, at, word)
                if end is None:
                    return None
                at = end
                break
            word.append(line[at])
            at += 1
        else:
            at += at < len(line)  # past the byte that ended the word, which may be no space
        words.append(bytes(word))


def _quoted(line: bytes, start: int, word: bytearray) -> int | None:
    """Append what the quotes hold; the place after them, None when they do not end a word."""
    quote = line[start]
    at = start + 1
    while at < len(line) and line[at] != quote:
        found = HEX.match(line, at) if quote == ord('"') else None
        if found is not None:
            word.append(int(found[1], 16))
            at = found.end()
            continue
        is_escape = line[at] == ord("\\") and at + 1 < len(line)
        if is_escape and quote == ord('"'):
            at += 1
            word.append(ESCAPED.get(line[at], line[at]))
        elif is_escape and line[at + 1] == quote:
            at += 1
            word.append(quote)
        else:
            word.append(line[at])
        at += 1
    if at == len(line) or (at + 1 < len(line) and line[at + 1] not in SPACES):
        return None
    return at + 1
