"""The shell on a terminal: a line editor with completion, history, hints and values of many lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from ephemera.cli import output
from ephemera.cli.link import Link
from ephemera.cli.rendering import for_person
from ephemera.cli.shell import LEAVES, LISTENS
from ephemera.cli.syntax import arguments_of
from ephemera.cli.text import quote, show
from ephemera.resp.parser import split_inline
from ephemera.resp.replies import Refused
from ephemera.server.table import Declaration, KeyRange, declarations

KEYS_OFFERED_MAX = 50
SECRET_WORDS = {"auth", "requirepass", "hello"}
WELCOME = "TAB completes, HELP explains a command, Ctrl-D leaves."


class Prompt:
    """Reads commands, sends them over a link, prints what comes back."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._is_queueing = False
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=Words(link),
            complete_while_typing=False,
            multiline=True,
            prompt_continuation="... ",
            key_bindings=_bindings(),
            bottom_toolbar=self._hint,
        )

    def run(self) -> None:
        """Until the user leaves or the other end does."""
        output.line(WELCOME)
        while not self._link.is_over:
            mark = "(TX)" if self._is_queueing else ""
            try:
                text = self._session.prompt(f"{self._link.name}{mark}> ")
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            args = split_inline(text.encode(errors="surrogateescape"))
            if args is None:
                output.line("(error) ERR unbalanced quotes")
            elif args and args[0].lower() in LEAVES:
                return
            elif args:
                self._run(args)

    def _run(self, args: list[bytes]) -> None:
        name = args[0].lower()
        if name == b"help":
            output.line(_help(args[1:]))
            return
        try:
            if name in LISTENS and not self._is_queueing:
                self._listen(args)
                return
            replies = self._link.ask(args)
        except KeyboardInterrupt:
            return
        for reply in replies:
            output.line(for_person(args, reply))
        has_failed = any(isinstance(reply, Refused) for reply in replies)
        if name == b"multi":
            self._is_queueing = self._is_queueing or not has_failed
        elif name in (b"exec", b"discard", b"reset"):
            self._is_queueing = False

    def _listen(self, args: list[bytes]) -> None:
        output.line("(Ctrl-C ends it)")
        try:
            for reply in self._link.listen(args):
                output.line(for_person(args, reply))
                output.flush()
                if isinstance(reply, Refused):
                    return
        except KeyboardInterrupt:
            output.line()

    def _hint(self) -> str:
        declared = _declared(self._session.default_buffer.text)
        return "" if declared is None else _usage(declared)


class Words(Completer):
    """Names of commands, and keys where a command has keys."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        typed = before.rpartition(" ")[2]
        words = before.split()
        at = len(words) - bool(typed)
        if at == 0:
            yield from _offer(_names(""), typed)
            return
        if at == 1 and (inner := _names(words[0])):
            yield from _offer(inner, typed)
            return
        declared = _declared(before)
        if declared is not None and _is_key(declared, at):
            yield from self._keys(typed)

    def _keys(self, typed: str) -> Iterator[Completion]:
        prefix = (
            split_inline(f'{typed}"'.encode()) if typed[:1] == '"' else [typed.encode()]
        ) or []
        for key in self._link.keys(b"".join(prefix), KEYS_OFFERED_MAX):
            yield Completion(_word(key), start_position=-len(typed))


def _names(container: str) -> list[str]:
    """The commands, or the subcommands of one of them."""
    inside = f"{container.lower()}|" if container else ""
    return [
        name.removeprefix(inside).upper()
        for name in sorted(declarations())
        if name.startswith(inside) and "|" not in name.removeprefix(inside)
    ]


def _offer(names: list[str], typed: str) -> Iterator[Completion]:
    is_lower = bool(typed) and typed == typed.lower()
    for name in names:
        if name.startswith(typed.upper()):
            yield Completion(name.lower() if is_lower else name, start_position=-len(typed))


def _declared(text: str) -> Declaration | None:
    """The command that a line begins with, its subcommand if that is there too."""
    words = text.lower().split()[:2]
    known = declarations()
    return known.get("|".join(words)) or (known.get(words[0]) if words else None)


def _is_key(declared: Declaration, at: int) -> bool:
    return any(_is_in(keys, at) for keys in declared.keys if isinstance(keys, KeyRange))


def _is_in(keys: KeyRange, at: int) -> bool:
    if keys.access == "not_key" or at < keys.first:
        return False
    last = keys.last or keys.first
    return (last < 0 or at <= last) and (at - keys.first) % keys.step == 0


def _word(key: bytes) -> str:
    """A key as it is typed: in quotes where it needs them."""
    text = show(key)
    return text if split_inline(text.encode()) == [key] else quote(key)


def _usage(declared: Declaration) -> str:
    name = declared.name.upper().replace("|", " ")
    return f"{name} {arguments_of(declared)}".rstrip() + f"  –  {declared.summary}"


def _help(words: list[bytes]) -> str:
    asked = b" ".join(words).decode(errors="replace")
    declared = _declared(asked)
    if not words:
        return "HELP GET explains GET; TAB shows every command."
    return _usage(declared) if declared is not None else f"there is no command {asked!r}"


def _is_open(text: str) -> bool:
    """Whether a quote waits for its end, so that the line goes on."""
    data = text.encode(errors="surrogateescape")
    ends = (split_inline(data + end) for end in (b'"', b"'"))
    return split_inline(data) is None and any(words is not None for words in ends)


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _enter(event: KeyPressEvent) -> None:
        _end_line(event.current_buffer)

    return bindings


def _end_line(buffer: Buffer) -> None:
    """Go on inside quotes, otherwise take the command."""
    if _is_open(buffer.text):
        buffer.insert_text("\n")
    else:
        buffer.validate_and_handle()


class DiscreetHistory(FileHistory):
    """What was typed, without passwords."""

    def store_string(self, string: str) -> None:
        if not SECRET_WORDS & set(string.lower().split()):
            super().store_string(string)


def _history() -> History:
    """In the user's state directory; where that cannot be, for this shell alone."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    directory = Path(state) / "ephemera"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (directory / "history").touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return DiscreetHistory(directory / "history")
