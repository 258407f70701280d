"""`ephemera serve`: a store over the Redis protocol."""

from __future__ import annotations

import contextlib
import errno
import logging
import ssl
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ephemera import InvalidArgument, __version__
from ephemera.cli.failures import naming
from ephemera.cli.passwords import PasswordFile, one_password
from ephemera.cli.process import say
from ephemera.core.options import Durability
from ephemera.core.passwords import without_password
from ephemera.engines.local.engine import LocalEngine
from ephemera.server.listener import Endpoint, Listener, run
from ephemera.server.server import Server, open_store
from ephemera.server.settings import BadSetting, Settings

PORT = 6379
PORTS_TRIED = 100
LOOPBACK = ("127.0.0.1", "localhost", "::1")
OPEN = (
    "warning: everybody who reaches {} can read and write, since there is no password:"
    " --requirepass-file sets one"
)


def serve(
    store: Annotated[
        str, typer.Argument(metavar="STORE", help="A path, made if it is not there, or a URL.")
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="The port; not given, 6379 or the next that is free."),
    ] = None,
    unixsocket: Annotated[str | None, typer.Option(help="A Unix socket as well.")] = None,
    requirepass: Annotated[
        str, typer.Option(envvar="EPHEMERA_PASSWORD", help="The password clients must give.")
    ] = "",
    requirepass_file: PasswordFile = None,
    durability: Annotated[
        Durability, typer.Option(help="When a write counts as kept: commit, interval or none.")
    ] = "interval",
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Serve reads alone, of what another writes.")
    ] = False,
    tls_cert: Annotated[Path | None, typer.Option(help="A certificate: serve TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The key of the certificate.")] = None,
    maxclients: Annotated[int, typer.Option(min=1, help="How many clients at once.")] = 10_000,
    timeout: Annotated[
        int, typer.Option(min=0, help="Close clients idle for so many seconds.")
    ] = 0,
    config: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting of CONFIG, as often as wanted: --set hz=10."),
    ] = None,
    rename_command: Annotated[
        list[str] | None,
        typer.Option(help="A command under another name, or with none not at all: FLUSHALL=."),
    ] = None,
) -> None:
    """Serve a store to every Redis client, until SIGTERM or Ctrl-C."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    settings = Settings(
        durability=durability,
        requirepass=one_password(requirepass, requirepass_file).encode(errors="surrogateescape"),
        maxclients=maxclients,
        timeout=timeout,
        renamed=dict(_pairs("--rename-command", rename_command)),
    )
    _change(settings, _pairs("--set", config))
    run(
        _serve(
            store,
            settings,
            Endpoint(host=host, port=PORT if port is None else port, tls=_tls(tls_cert, tls_key)),
            unixsocket,
            is_any_port=port is None,
            is_read_only=read_only,
        )
    )


async def _serve(
    url: str,
    settings: Settings,
    endpoint: Endpoint,
    unix_path: str | None,
    *,
    is_any_port: bool,
    is_read_only: bool,
) -> None:
    _make_parent(url)
    with open_store(url, durability=settings.durability, read_only=is_read_only) as store:
        listener = Listener(Server(store, settings))
        with contextlib.ExitStack() as stack:
            stack.callback(listener.stop_listening)
            tries = PORTS_TRIED if is_any_port else 1
            places = [await _listen(listener, endpoint, tries=tries)]
            if unix_path is not None:
                with naming(unix_path):
                    places.append(await listener.listen(Endpoint(unix_path=unix_path)))
            if isinstance(store.engine, LocalEngine) and not is_read_only:
                store.engine.announce(places[0].local_url)
            if endpoint.host not in LOOPBACK and not settings.requirepass:
                say(OPEN.format(endpoint.host))
            _say(url, places, is_read_only=is_read_only)
            await listener.serve()


async def _listen(listener: Listener, endpoint: Endpoint, *, tries: int) -> Endpoint:
    """The first port that is free, from the one asked for up."""
    for port in range(endpoint.port, endpoint.port + tries):
        try:
            with naming(f"{endpoint.host}:{port}"):
                return await listener.listen(
                    Endpoint(host=endpoint.host, port=port, tls=endpoint.tls)
                )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if tries == 1:
                raise InvalidArgument(
                    f"{endpoint.host}:{port} is in use: give another --port, or leave it out to take"
                    " the next that is free"
                ) from None
            if port == endpoint.port + tries - 1:
                raise InvalidArgument(
                    f"the ports {endpoint.port} to {port} of {endpoint.host} are all in use: give"
                    " another --port"
                ) from None
    raise AssertionError("the last try returns or raises")


def _pairs(option: str, arguments: list[str] | None) -> list[tuple[str, str]]:
    """Names and values, as an option gives them."""
    pairs = []
    for argument in arguments or ():
        name, separator, value = argument.partition("=")
        if not name or not separator:
            raise InvalidArgument(f"{option} takes NAME=VALUE, not {argument!r}")
        pairs.append((name, value))
    return pairs


def _change(settings: Settings, changes: list[tuple[str, str]]) -> None:
    try:
        settings.change(changes, is_start=True)
    except BadSetting as error:
        values = [value for name, value in changes if name == error.name]
        raise InvalidArgument(f"{error}; --set gives it {', '.join(map(repr, values))}") from None


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        if key is not None:
            raise typer.BadParameter("--tls-key without --tls-cert would serve without TLS")
        return None
    for path in (certificate, key or certificate):
        path.open("rb").close()  # its error names the file, and that of TLS does not
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError:
        files = f"{certificate}" if key is None else f"{certificate} and {key}"
        raise InvalidArgument(f"{files}: no certificate with its key, in PEM") from None
    return context


def _make_parent(url: str) -> None:
    if "://" not in url:
        Path(url).parent.mkdir(parents=True, exist_ok=True)


def _say(url: str, places: list[Endpoint], *, is_read_only: bool) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"ephemera {__version__} serves {without_password(url)} at {', '.join(map(str, places))}",
        markup=False,
    )
    first = places[0]
    tls = " --tls --insecure" if first.tls else ""
    command = "scan 0" if is_read_only else "set code 492817 ex 60"
    console.print(f"try: redis-cli -h {first.host} -p {first.port}{tls} {command}", markup=False)
