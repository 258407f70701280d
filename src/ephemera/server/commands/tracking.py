"""Client-side caching: CLIENT TRACKING and the subcommands around it."""

from __future__ import annotations

from ephemera.resp.replies import OK, Refused, Reply, Unordered
from ephemera.server.arguments import SYNTAX_ERROR, integer
from ephemera.server.session import Call
from ephemera.server.table import Group
from ephemera.server.tracking import Mode

command = Group("connection")

SWITCHES = {
    b"bcast": "is_broadcast",
    b"optin": "is_optin",
    b"optout": "is_optout",
    b"noloop": "is_noloop",
}
CANNOT_SWITCH = (
    "ERR You can't switch %s before disabling tracking for this client, and then re-enabling it with "
    "a different mode."
)
WRONG_MODE = "ERR CLIENT CACHING %s is only valid when tracking is enabled in %s mode."


@command("CLIENT TRACKING", arity=-3, flags="noscript loading stale", since="6.0.0",
         summary="Sends messages when keys change that this client has read, or that have a prefix.")  # fmt: skip
def client_tracking(call: Call) -> Reply:
    mode, prefixes = _options(call)
    switch = call.args[2].lower()
    if switch == b"on":
        _check(call, mode, prefixes)
        mode.prefixes = set(prefixes) or ({b""} if mode.is_broadcast else set())
        call.server.tracking.enable(call.session, mode)
    elif switch == b"off":
        call.server.tracking.disable(call.session)
    else:
        raise Refused(SYNTAX_ERROR)
    return OK


def _options(call: Call) -> tuple[Mode, list[bytes]]:
    """The mode as it is written, and the prefixes; `_check` finds out whether they agree."""
    mode = Mode()
    prefixes: list[bytes] = []
    rest = iter(call.args[3:])
    for given in rest:
        option = given.lower()
        if option in SWITCHES:
            setattr(mode, SWITCHES[option], True)
        elif option == b"redirect" and (operand := next(rest, None)) is not None:
            mode.redirect = _redirect(call, operand, former=mode.redirect)
        elif option == b"prefix" and (operand := next(rest, None)) is not None:
            prefixes.append(operand)
        else:
            raise Refused(SYNTAX_ERROR)
    return mode, prefixes


def _redirect(call: Call, operand: bytes, *, former: int) -> int:
    if former:
        raise Refused("ERR A client can only redirect to a single other client")
    number = integer(operand)
    if number not in call.server.clients:
        raise Refused("ERR The client ID you want redirect to does not exist")
    return number


def _check(call: Call, mode: Mode, prefixes: list[bytes]) -> None:
    """Raise Refused, in Redis's order, where options contradict each other or the client's mode."""
    if call.server.store.engine.is_read_only:
        raise Refused(
            "ERR tracking is not possible on a read-only server, which does not hear of the writes of "
            "others; connect to the server that writes"
        )
    if prefixes and not mode.is_broadcast:
        raise Refused("ERR PREFIX option requires BCAST mode to be enabled")
    former = call.server.tracking.modes.get(call.session)
    if former is not None and former.is_broadcast != mode.is_broadcast:
        raise Refused(CANNOT_SWITCH % "BCAST mode on/off")
    if mode.is_broadcast and (mode.is_optin or mode.is_optout):
        raise Refused("ERR OPTIN and OPTOUT are not compatible with BCAST")
    if mode.is_optin and mode.is_optout:
        raise Refused("ERR You can't specify both OPTIN mode and OPTOUT mode")
    if former is not None and (
        (mode.is_optin and former.is_optout) or (mode.is_optout and former.is_optin)
    ):
        raise Refused(CANNOT_SWITCH % "OPTIN/OPTOUT mode")
    _check_overlaps(prefixes, sorted(former.prefixes) if former is not None else [])


def _check_overlaps(prefixes: list[bytes], existing: list[bytes]) -> None:
    for place, prefix in enumerate(prefixes):
        for which, others in (
            (b"an existing", existing),
            (b"another provided", prefixes[place + 1 :]),
        ):
            for other in others:
                if prefix.startswith(other) or other.startswith(prefix):
                    raise Refused(
                        b"ERR Prefix '%b' overlaps with %b prefix '%b'. Prefixes for a single client "
                        b"must not overlap." % (prefix, which, other)
                    )


# --- around it ------------------------------------------------------------------------------------


@command("CLIENT CACHING", arity=3, flags="noscript loading stale", since="6.0.0",
         summary="Tracks the keys of the next command (YES, with OPTIN), or does not (NO, with OPTOUT).")  # fmt: skip
def client_caching(call: Call) -> Reply:
    mode = call.server.tracking.modes.get(call.session)
    if mode is None:
        raise Refused(
            "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or "
            "OPTOUT mode enabled"
        )
    match call.args[2].lower():
        case b"yes" if not mode.is_optin:
            raise Refused(WRONG_MODE % ("YES", "OPTIN"))
        case b"no" if not mode.is_optout:
            raise Refused(WRONG_MODE % ("NO", "OPTOUT"))
        case b"yes" | b"no":
            mode.is_caching = True
            return OK
        case _:
            raise Refused(SYNTAX_ERROR)


@command("CLIENT GETREDIR", arity=2, flags="noscript loading stale", since="6.0.0",
         summary="The client that gets this one's invalidation messages: 0 for itself, -1 without tracking.")  # fmt: skip
def client_getredir(call: Call) -> Reply:
    return call.server.tracking.redirect(call.session)


@command("CLIENT TRACKINGINFO", arity=2, flags="noscript loading stale", since="6.2.0",
         summary="How tracking is set for this connection: flags, redirection, prefixes.")  # fmt: skip
def client_trackinginfo(call: Call) -> Reply:
    mode = call.server.tracking.modes.get(call.session)
    return {
        b"flags": Unordered([b"off"] if mode is None else _flags(mode)),
        b"redirect": call.server.tracking.redirect(call.session),
        b"prefixes": [] if mode is None else sorted(mode.prefixes),
    }


def _flags(mode: Mode) -> list[bytes]:
    flags = {
        b"on": True,
        b"bcast": mode.is_broadcast,
        b"optin": mode.is_optin,
        b"caching-yes": mode.is_optin and mode.is_caching,
        b"optout": mode.is_optout,
        b"caching-no": mode.is_optout and mode.is_caching,
        b"noloop": mode.is_noloop,
        b"broken_redirect": mode.is_redirect_broken,
    }
    return [name for name, is_set in flags.items() if is_set]
