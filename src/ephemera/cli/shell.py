"""`ephemera shell`: Redis-style commands on a store without a server, or on a server."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from ephemera import InvalidArgument, UnsupportedOperation
from ephemera.cli import output
from ephemera.cli.link import Link, ServerLink, StoreLink
from ephemera.cli.main import INSTALL
from ephemera.cli.passwords import PasswordFile, one_password
from ephemera.cli.process import ERROR, given
from ephemera.cli.rendering import for_pipe, for_script
from ephemera.cli.stores import FamilyName, Json
from ephemera.core.arguments import DEFAULT_FAMILY
from ephemera.resp.parser import split_inline
from ephemera.resp.replies import Refused, Reply

LEAVES = {b"exit", b"quit"}
LISTENS = {b"subscribe", b"psubscribe", b"ssubscribe", b"monitor"}


def shell(
    url: Annotated[
        str | None, typer.Argument(metavar="[STORE]", help="A path or URL; made if not there.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Talk to the server at this port instead.")
    ] = None,
    host: Annotated[str, typer.Option(help="Where that server is.")] = "127.0.0.1",
    password: Annotated[
        str, typer.Option(envvar="EPHEMERA_PASSWORD", help="The server's password.")
    ] = "",
    password_file: PasswordFile = None,
    family: FamilyName = DEFAULT_FAMILY,
    as_json: Json = False,
) -> None:
    """Type Redis-style commands on a store, without a server, or with --port on a server.

    Off a terminal, commands are read from standard input, one from each line; exit with 2 when one of
    them was refused.
    """
    secret = "" if port is None else one_password(password, password_file)
    with closing(_link(url, host, port, secret, family)) as link:
        if given().isatty() and output.is_terminal() and not as_json:
            _prompt(link)
        elif _run_lines(link, as_json=as_json):
            raise typer.Exit(ERROR)


def _link(url: str | None, host: str, port: int | None, password: str, family: str) -> Link:
    if url is not None and port is not None:
        raise InvalidArgument(
            f"both a store ({url}) and --port {port} are given: leave one of them out"
        )
    if url is None and port is None:
        raise InvalidArgument("give a store, or --port for a server")
    if url is not None:
        return StoreLink(url, family)
    assert port is not None  # one of the two was given
    return ServerLink(host, port, password, family)


def _prompt(link: Link) -> None:
    try:
        from ephemera.cli.prompt import Prompt
    except ImportError as error:
        raise UnsupportedOperation(f"the shell needs {error.name}: {INSTALL}") from None
    Prompt(link).run()


def _run_lines(link: Link, *, as_json: bool) -> bool:
    """Run the commands of standard input; whether one of them was refused."""
    has_failed = False
    for line in given():
        args = split_inline(line)
        if args == []:
            continue
        if args and args[0].lower() in LEAVES:
            break
        for reply in _replies(link, args):
            has_failed |= isinstance(reply, Refused)
            output.line(for_script(reply) if as_json else for_pipe(reply))
            output.flush()
        if link.is_over:
            break
    return has_failed


def _replies(link: Link, args: list[bytes] | None) -> list[Reply]:
    if args is None:
        return [Refused("ERR unbalanced quotes")]
    if args[0].lower() in LISTENS:
        return [Refused("ERR subscriptions need a terminal: ephemera watch prints expiry events")]
    return link.ask(args)
