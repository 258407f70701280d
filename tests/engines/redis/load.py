"""Mixed load on a store, with a book of what was acknowledged, to hold against what is there afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import ephemera
from ephemera import EngineUnavailable
from ephemera.core.clock import elapsed_ns
from tests.waiting import wait_until

KEYS_EACH = 40


@dataclass
class Book:
    """One thread's keys: the last number it tried to store under each, and the last acknowledged."""

    tried: dict[bytes, int] = field(default_factory=dict)
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    acknowledged_ns: dict[bytes, list[int]] = field(default_factory=dict)
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


class Load:
    """Threads that put, count, read and put in batches, each on keys of its own."""

    def __init__(self, store: ephemera.Store, *, threads: int) -> None:
        self._store = store
        self._stop = threading.Event()
        self.books = [Book() for _ in range(threads)]
        self._threads = [
            threading.Thread(target=self._work, args=(number, book))
            for number, book in enumerate(self.books)
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()

    def done(self) -> int:
        """How many writes were acknowledged so far."""
        return sum(1 for _ in self._times_ns(set(self.keys)))

    def wait_for(self, writes: int) -> None:
        """Wait until so many more writes were acknowledged."""
        goal = self.done() + writes
        wait_until(lambda: self.done() >= goal, what=f"{writes} writes")

    def last_ns(self, keys: set[bytes]) -> int:
        """When a write to one of these keys was last acknowledged."""
        return max(self._times_ns(keys), default=0)

    def first_ns_after(self, instant_ns: int, keys: set[bytes]) -> int:
        """When a write to one of these keys was first acknowledged after an instant."""
        return min(at_ns for at_ns in self._times_ns(keys) if at_ns > instant_ns)

    def _times_ns(self, keys: set[bytes]) -> Iterator[int]:
        for book in self.books:
            for key, times in list(book.acknowledged_ns.items()):
                if key in keys:
                    yield from list(times)

    @property
    def keys(self) -> list[bytes]:
        return [_key(number, at) for number in range(len(self.books)) for at in range(KEYS_EACH)]

    def _work(self, thread: int, book: Book) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            key = _key(thread, number % KEYS_EACH)
            try:
                self._step(book, key, number)
            except EngineUnavailable:
                book.refused += 1
            except Exception as error:
                book.wrong.append(repr(error))

    def _step(self, book: Book, key: bytes, number: int) -> None:
        kind = number % 4
        if kind == 3:
            found = self._store.get(key)
            least, most = book.acknowledged.get(key, 0), book.tried.get(key, 0)
            if not least <= int(found or b"0") <= most:
                book.wrong.append(f"{key!r} is {found!r}, not between {least} and {most}")
            return
        book.tried[key] = number
        if kind == 0:
            self._store.put(key, b"%d" % number, ttl=3_600)
        elif kind == 1:
            self._store.put_many({key: b"%d" % number, key + b":twin": b"%d" % number})
        else:
            held = int(self._store.get(key) or b"0")
            self._store.incr(key, number - held)
        book.acknowledged[key] = number
        book.acknowledged_ns.setdefault(key, []).append(elapsed_ns())


def _key(thread: int, at: int) -> bytes:
    return b"load:%d:%d" % (thread, at)
