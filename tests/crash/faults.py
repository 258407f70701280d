"""A disk that stops at any moment: what of a store's files is surely on it then, and what may be.

`Disk` watches the files of a store while the engine works and keeps, for every moment at which any
of them changed, three things: the bytes as they are (what a death of the process leaves), the bytes as
of the last sync of each file, and all that a page held in between. A name is sure once its
directory was synced. `deaths` and `power_losses` turn a moment into the directories that may be found
afterwards; pages are lost, kept, kept in an older form, or torn between sectors, one by one and together.

Syncs of mapped files are met at the engine's seam, `Files`, and what else Python asks of the system in `os`. LMDB makes its own and syncs every commit by itself: from the
first sync on, what a base file holds between two lines of Python is what the disk holds.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple
from unittest import mock

from ephemera.engines.local.files import Files, Mapped
from tests.crash.death_points import ENGINE

_open = os.open
PAGE = 4096
SECTOR = 512
WORD = 8

Image = Mapping[str, bytes]
"""A directory: the contents of its files by their names."""
Place = tuple[int, int]
"""A file and a page of it."""


@dataclass(frozen=True)
class Content:
    """One file: as it is, as it was at its last sync (None without one), and in between."""

    now: bytes
    synced: bytes | None
    between: tuple[bytes, ...]

    def with_synced(self, start: int, end: int | None) -> Content:
        """After a sync of these bytes, which takes the pages that they lie in."""
        first = start // PAGE * PAGE
        last = len(self.now) if end is None else -(-end // PAGE) * PAGE
        if first == 0 and last >= len(self.now):
            return Content(self.now, self.now, ())

        def with_pages(old: bytes) -> bytes:
            return old[:first] + self.now[first:last] + old[last:]

        assert self.synced is not None, "a part was synced of what had never been as a whole"
        return Content(self.now, with_pages(self.synced), tuple(map(with_pages, self.between)))


class Progress(NamedTuple):
    """How many steps of a workload were begun, how many returned, and how many of those promised to
    outlive a loss of power."""

    attempted: int
    acknowledged: int
    promised: int


@dataclass(frozen=True)
class Moment:
    """All files at an instant. Directories are names without a content."""

    names: Mapping[str, int]
    synced_names: Mapping[str, int]
    contents: Mapping[int, Content]
    progress: Progress
    syncs: int
    """How many syncs had begun."""


class Disk:
    """The files of the store at `root`, followed from line to line of the engine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.progress = Progress(0, 0, 0)
        self.syncs = 0
        self.moments: list[Moment] = []
        self._fds: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._synced_names: dict[str, int] = {}
        self._contents: dict[int, Content] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at every line of the engine that this thread runs, and before and after every sync."""
        former = sys.gettrace()
        with met_calls(self.root, self._before, self._after):
            sys.settrace(self._trace)
            try:
                yield
            finally:
                sys.settrace(former)
                for fd in self._fds.values():
                    os.close(fd)

    def settle(self) -> None:
        """Take all that is there for synced: it was found after a crash."""
        self.look()
        self._synced_names = self._names
        for file, content in self._contents.items():
            self._contents[file] = Content(content.now, content.now, ())

    def look(self) -> None:
        """Take in what changed; a moment is kept if anything did."""
        names, contents = self._list(), dict(self._contents)
        for name, file in names.items():
            if file in self._fds:
                contents[file] = self._read(name, file)
        if names != self._names or contents != self._contents:
            self._names, self._contents = names, contents
            self.keep()

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:  # Any: a trace function
        if not frame.f_code.co_filename.startswith(ENGINE):
            return None
        if event in ("line", "return"):
            self.look()
        return self._trace

    def _list(self) -> dict[str, int]:
        names: dict[str, int] = {}
        directories = [self.root]
        while directories:
            for entry in os.scandir(directories.pop()):
                if entry.name.endswith("-lock"):
                    continue
                name = os.path.relpath(entry.path, self.root)
                names[name] = entry.inode()
                if not entry.is_dir():
                    # Held open, so that no other file gets its number.
                    if entry.inode() not in self._fds:
                        self._fds[entry.inode()] = _open(entry.path, os.O_RDONLY | os.O_CLOEXEC)
                elif entry.name != "locks":
                    directories.append(Path(entry.path))
        return names

    def _read(self, name: str, file: int) -> Content:
        fd = self._fds[file]
        now = os.pread(fd, os.fstat(fd).st_size, 0)
        known = self._contents.get(file)
        if known is None:
            return Content(now, None, ())
        if now == known.now:
            return known
        if name.endswith(".mdb") and known.synced is not None:
            return Content(now, now, ())
        if name == "control":
            # Every form of it is found by some death; all of them at every moment would be no news.
            return Content(now, known.synced, ())
        return Content(now, known.synced, (*known.between, known.now))

    def _before(self, call: Call) -> None:
        if call.is_sync:
            self.syncs += 1
            self.look()
            self.keep()

    def _after(self, call: Call) -> None:
        self.look()
        if not call.is_sync:
            return
        name = os.path.relpath(call.path, self.root)
        if os.path.isdir(call.path):
            elsewhere = _names_in(self._synced_names, name, is_there=False)
            self._synced_names = elsewhere | _names_in(self._names, name, is_there=True)
        elif name in self._names:
            file = self._names[name]
            self._contents[file] = self._contents[file].with_synced(call.start, call.end)
        self.keep()

    def keep(self) -> None:
        """Remember this moment, changed or not."""
        self.moments.append(
            Moment(
                dict(self._names),
                dict(self._synced_names),
                dict(self._contents),
                self.progress,
                self.syncs,
            )
        )


def _names_in(names: Mapping[str, int], directory: str, *, is_there: bool) -> dict[str, int]:
    return {
        name: file
        for name, file in names.items()
        if ((os.path.dirname(name) or ".") == directory) == is_there
    }


# --- system calls ---------------------------------------------------------------------------------

BY_FD = ("fsync", "posix_fallocate", "ftruncate", "pwrite")
BY_PATH = ("open", "rename", "unlink", "mkdir")
SYNC = "sync"
"""Of a mapped file, or of a part of it."""


class Call(NamedTuple):
    """Something that is asked of the system; of a sync also which bytes it is for."""

    name: str
    path: str
    start: int = 0
    end: int | None = None

    @property
    def is_sync(self) -> bool:
        return self.name in (SYNC, "fsync")


Hook = Callable[[Call], None]


@contextmanager
def met_calls(root: Path, before: Hook, after: Hook) -> Iterator[None]:
    """Tell the hooks of every call of these that Python makes on a file of the store."""

    def tell(call: Call, act: Callable[[], Any]) -> Any:  # Any: what the call returns
        if not (call.path == str(root) or call.path.startswith(f"{root}/")):
            return act()
        before(call)
        result = act()
        after(call)
        return result

    def met(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def meet(target: Any, *args: Any, **options: Any) -> Any:  # Any: as the call has them
            path = _path_of(target) if name in BY_FD else os.fspath(target)
            return tell(Call(name, path), lambda: real(target, *args, **options))

        return meet

    sync = Files.sync

    def meet_sync(files: Files, mapped: Mapped, start: int = 0, end: int | None = None) -> None:
        # The system goes on to call a file nameless that got its name later.
        path = _path_of(mapped.fd) if mapped.path.is_dir() else str(mapped.path)
        call = Call(SYNC, path, start, end)
        tell(call, lambda: sync(files, mapped, start, end))

    with ExitStack() as patches:
        for call in (*BY_FD, *BY_PATH):
            patches.enter_context(mock.patch.object(os, call, met(call, getattr(os, call))))
        patches.enter_context(mock.patch.object(Files, "sync", meet_sync))
        yield


def _path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


class Failing:
    """Counts the calls and lets one of them, the `fatal`-th, fail as the system would."""

    def __init__(self, fatal: int) -> None:
        self.count = 0
        self.failed: str | None = None
        self._fatal = fatal

    def before(self, call: Call) -> None:
        self.count += 1
        if self.count == self._fatal:
            self.failed = call.name
            error = errno.ENOSPC if call.name in TAKES_ROOM else errno.EIO
            raise OSError(error, os.strerror(error), call.path)

    def after(self, call: Call) -> None:
        """A call that did not fail."""


TAKES_ROOM = ("posix_fallocate", "open", "mkdir", "pwrite")


# --- what is found afterwards ---------------------------------------------------------------------


def death(moment: Moment) -> Image:
    """The process died: every byte and every name is there."""
    return _image(moment, moment.names, {})


def deaths_between(before: Moment, after: Moment, *, is_long: bool) -> Iterator[Image]:
    """The process died inside compiled code: of the words that it was changing only some are.

    The order in which it stores them is the compiler's choice: any front or back part may be there.
    """
    mapped = _segments(after.names) | {after.names.get("control")}
    for file, content in after.contents.items():
        known = before.contents.get(file)
        if file not in mapped or known is None or len(known.now) != len(content.now):
            continue
        old, new = known.now, content.now
        words = [
            at
            for page in _differing(old, new, PAGE)
            for at in _differing(old[page : page + PAGE], new[page : page + PAGE], WORD, page)
        ]
        for cut in _cuts(len(words), is_long=is_long):
            for first, second in ((old, new), (new, old)):
                mixed = bytearray(first)
                for at in words[:cut]:
                    mixed[at : at + WORD] = second[at : at + WORD]
                yield _image(after, after.names, {file: bytes(mixed)})


def _cuts(count: int, *, is_long: bool) -> Iterator[int]:
    """Where to cut a change of so many words: at its ends everywhere, inside a long value less often."""
    edge, stride = (SECTOR // WORD, WORD) if is_long else (4, PAGE // WORD)
    for cut in range(1, count):
        if cut <= edge or cut >= count - edge or cut % stride == 0:
            yield cut


def power_losses(moment: Moment, *, is_long: bool) -> Iterator[Image]:
    """The power failed: what was synced is there, and of all else any part."""
    for names in _choices_of_names(moment):
        yield _image(moment, names, _synced(moment))
        yield _image(moment, names, {})
    for names in (moment.names, moment.synced_names):
        for contents in _choices_of_pages(moment, _segments(names), is_long=is_long):
            yield _image(moment, names, contents)
    # Nobody else's pages depend on the control page, so it is tried by itself.
    control = {moment.names["control"]} if "control" in moment.names else set()
    for contents in _choices_of_pages(moment, control, is_long=is_long):
        yield _image(moment, moment.names, contents)


def _choices_of_names(moment: Moment) -> Iterator[Mapping[str, int]]:
    now, synced = moment.names, moment.synced_names
    yield now
    yield synced
    unsure = [name for name in {**now, **synced} if now.get(name) != synced.get(name)]
    if len(unsure) > 1:
        for name in unsure:
            yield _with(synced, name, now.get(name))
            yield _with(now, name, synced.get(name))


def _with(names: Mapping[str, int], name: str, file: int | None) -> Mapping[str, int]:
    others = {other: number for other, number in names.items() if other != name}
    return others if file is None else {**others, name: file}


def _choices_of_pages(
    moment: Moment, files: set[int], *, is_long: bool
) -> Iterator[dict[int, bytes]]:
    now: dict[Place, bytes] = {}
    older: list[tuple[Place, bytes]] = []
    for file in sorted(files):
        content = moment.contents[file]
        if content.synced is None or len(content.synced) != len(content.now):
            continue
        for version in (*content.between, content.now):
            for at in _differing(content.synced, version, PAGE):
                page = version[at : at + PAGE]
                if page == content.now[at : at + PAGE]:
                    now[file, at] = page
                else:
                    older.append(((file, at), page))
    for pages in _choices(now, older, moment, is_long=is_long):
        yield {**_synced(moment), **_filled(moment, pages)}


def _choices(
    now: dict[Place, bytes], older: list[tuple[Place, bytes]], moment: Moment, *, is_long: bool
) -> Iterator[dict[Place, bytes]]:
    """Which pages reached the disk: one, all but one, those before one, those from it on; torn; older."""
    places = list(now)
    for index, place in enumerate(places):
        rest = {other: now[other] for other in places if other != place}
        yield {place: now[place]}
        yield rest
        yield {other: now[other] for other in places[:index]}
        yield {other: now[other] for other in places[index:]}
        if not is_long and {(place[0], place[1] - PAGE), (place[0], place[1] + PAGE)} <= now.keys():
            # Between others that changed too: mostly the middle of a value, torn like any other.
            continue
        for torn in _tears(_page(moment, place), now[place]):
            yield {place: torn}
            yield {**rest, place: torn}
    for place, page in older:
        yield {place: page}
        yield {**now, place: page}


def _tears(old: bytes, new: bytes) -> Iterator[bytes]:
    for cut in range(SECTOR, PAGE, SECTOR):
        yield new[:cut] + old[cut:]
        yield old[:cut] + new[cut:]


def _page(moment: Moment, place: Place) -> bytes:
    file, at = place
    return (moment.contents[file].synced or b"")[at : at + PAGE]


def _filled(moment: Moment, pages: dict[Place, bytes]) -> dict[int, bytes]:
    filled: dict[int, bytearray] = {}
    for (file, at), page in pages.items():
        whole = filled.setdefault(file, bytearray(moment.contents[file].synced or b""))
        whole[at : at + PAGE] = page
    return {file: bytes(whole) for file, whole in filled.items()}


def _synced(moment: Moment) -> dict[int, bytes]:
    return {file: content.synced or b"" for file, content in moment.contents.items()}


def _segments(names: Mapping[str, int]) -> set[int]:
    return {file for name, file in names.items() if name.endswith(".seg")}


def _differing(old: bytes, new: bytes, size: int, start: int = 0) -> list[int]:
    """Where pieces of this size differ."""
    return [
        start + at for at in range(0, len(new), size) if old[at : at + size] != new[at : at + size]
    ]


def _image(moment: Moment, names: Mapping[str, int], contents: Mapping[int, bytes]) -> Image:
    """A directory with these names; the contents as they are now unless they are given."""
    image = {}
    for name, file in names.items():
        parent = os.path.dirname(name)
        if file in moment.contents and (not parent or parent in names):
            image[name] = contents.get(file, moment.contents[file].now)
    return image


def write_image(image: Image, path: Path) -> None:
    """Lay a directory out as it was found."""
    for name, content in image.items():
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
