"""Commands about connections: greeting, password, database, and CLIENT."""

from __future__ import annotations

from collections.abc import Callable
from hmac import compare_digest

from ephemera.resp.replies import NO_REPLY, OK, Refused, Reply, Simple, Verbatim
from ephemera.server.arguments import INTEGER_MAX, SYNTAX_ERROR, integer, integer32
from ephemera.server.session import Call, Session, Silence
from ephemera.server.settings import DATABASES, REDIS_VERSION
from ephemera.server.table import Group

command = Group("connection")

PONG = Simple(b"PONG")
USER = b"default"
"""The only user there is."""
FLAG_LETTERS = "OPxtRBdeT"
"""What CLIENT LIST says of a client, in Redis's order: monitor, subscriber, transaction, tracking, whose redirection
is broken, by broadcast, a watched key has changed, not evicted, not touching."""
BAD_ID = "ERR client-id should be greater than 0"


@command("PING", arity=-1, flags="fast", since="1.0.0",
         tips="request_policy:all_shards response_policy:all_succeeded",
         summary="Answers PONG, or what it was given.")  # fmt: skip
def ping(call: Call) -> Reply:
    if len(call.args) > 2:
        raise Refused("ERR wrong number of arguments for 'ping' command")
    session = call.session
    if session.subscriptions and session.protocol == 2:
        return [b"pong", call.args[1] if len(call.args) == 2 else b""]
    return call.args[1] if len(call.args) == 2 else PONG


@command("ECHO", arity=2, flags="loading stale fast", since="1.0.0",
         summary="Answers what it was given.")  # fmt: skip
def echo(call: Call) -> Reply:
    return call.args[1]


@command("SELECT", arity=2, flags="loading stale fast", since="1.0.0",
         summary="Makes another database the current one: 0 to 15.")  # fmt: skip
def select(call: Call) -> Reply:
    number = integer32(call.args[1])
    if not 0 <= number < DATABASES:
        raise Refused("ERR DB index is out of range")
    call.session.select(number)
    return OK


@command("QUIT", arity=-1, flags="noscript loading stale fast no_auth allow_busy", since="1.0.0",
         summary="Closes the connection.")  # fmt: skip
def quit_(call: Call) -> Reply:
    call.session.is_closing = True
    return OK


@command("RESET", arity=1, flags="noscript loading stale fast no_auth allow_busy", since="6.2.0",
         summary="Makes the connection as if it were new.")  # fmt: skip
def reset(call: Call) -> Reply:
    call.session.reset()
    return Simple(b"RESET")


# --- AUTH and HELLO -------------------------------------------------------------------------------


@command("AUTH", arity=-2, flags="noscript loading stale fast no_auth allow_busy", since="1.0.0",
         summary="Gives the password.")  # fmt: skip
def auth(call: Call) -> Reply:
    if len(call.args) > 3:
        raise Refused("ERR syntax error")
    if len(call.args) == 2 and not call.server.settings.requirepass:
        raise Refused(
            "ERR AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?"
        )
    _authenticate(call.session, call.args[1] if len(call.args) == 3 else USER, call.args[-1])
    return OK


def _authenticate(session: Session, user: bytes, password: bytes) -> None:
    wanted = session.server.settings.requirepass
    if user != USER or (wanted and not compare_digest(password, wanted)):
        raise Refused("WRONGPASS invalid username-password pair or user is disabled.")
    session.is_authenticated = True
    session.review()


@command("HELLO", arity=-1, flags="noscript loading stale fast no_auth allow_busy", since="6.0.0",
         summary="Agrees on the protocol, and with AUTH and SETNAME on who is there.")  # fmt: skip
def hello(call: Call) -> Reply:
    session = call.session
    protocol = session.protocol
    if len(call.args) > 1:
        protocol = integer(call.args[1], "ERR Protocol version is not an integer or out of range")
        if protocol not in (2, 3):
            raise Refused("NOPROTO unsupported protocol version")
    name = _hello_options(session, call.args[2:])
    if not session.is_authenticated:
        raise Refused(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the "
            "HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and "
            "select the RESP protocol version at the same time"
        )
    if name is not None:
        session.name = name
    session.protocol = protocol
    session.review()
    return {
        b"server": b"redis",
        b"version": REDIS_VERSION.encode(),
        b"proto": protocol,
        b"id": session.id,
        b"mode": b"standalone",
        b"role": b"master",
        b"modules": [],
    }


def _hello_options(session: Session, options: list[bytes]) -> bytes | None:
    """Obey AUTH, and return what SETNAME says once all of it was found good."""
    name = None
    while options:
        if options[0].lower() == b"auth" and len(options) > 2:
            _authenticate(session, options[1], options[2])
            options = options[3:]
        elif options[0].lower() == b"setname" and len(options) > 1:
            name = _checked(options[1], "Client names")
            options = options[2:]
        else:
            raise Refused(b"ERR Syntax error in HELLO option '%b'" % options[0])
    return name


# --- CLIENT ---------------------------------------------------------------------------------------

command.container("CLIENT", since="2.4.0", summary="Asks and tells about connections.")


@command("CLIENT ID", arity=2, flags="noscript loading stale", since="5.0.0",
         summary="The number of this connection.")  # fmt: skip
def client_id(call: Call) -> Reply:
    return call.session.id


@command("CLIENT SETNAME", arity=3, flags="noscript loading stale", since="2.6.9",
         summary="Gives this connection a name, or with an empty one takes it away.")  # fmt: skip
def client_setname(call: Call) -> Reply:
    call.session.name = _checked(call.args[2], "Client names")
    return OK


@command("CLIENT GETNAME", arity=2, flags="noscript loading stale", since="2.6.9",
         summary="The name of this connection.")  # fmt: skip
def client_getname(call: Call) -> Reply:
    return call.session.name or None


@command("CLIENT SETINFO", arity=4, flags="noscript loading stale", since="7.2.0",
         summary="Says which library, in which version, the client is.")  # fmt: skip
def client_setinfo(call: Call) -> Reply:
    attribute = call.args[2].lower()
    if attribute not in call.session.library:
        raise Refused(b"ERR Unrecognized option '%b'" % call.args[2])
    call.session.library[attribute] = _checked(call.args[3], attribute.decode())
    return OK


@command("CLIENT INFO", arity=2, flags="noscript loading stale", since="6.2.0",
         tips="nondeterministic_output",
         summary="What the server knows about this connection.")  # fmt: skip
def client_info(call: Call) -> Reply:
    return Verbatim(describe(call.session) + b"\n")


@command("CLIENT LIST", arity=-2, flags="admin noscript loading stale", since="2.4.0",
         tips="nondeterministic_output",
         summary="What the server knows about all connections, or those of a TYPE, or these IDs.")  # fmt: skip
def client_list(call: Call) -> Reply:
    sessions = list(call.server.clients.values())
    options = call.args[2:]
    if len(options) == 2 and options[0].lower() == b"type":
        wanted = _client_type(options[1])
        sessions = [each for each in sessions if _type_of(each) == wanted]
    elif len(options) > 1 and options[0].lower() == b"id":
        ids = {integer(number, "ERR Invalid client ID") for number in options[1:]}
        sessions = [each for each in sessions if each.id in ids]
    elif options:
        raise Refused(SYNTAX_ERROR)
    return Verbatim(b"".join(describe(each) + b"\n" for each in sessions))


def _client_type(name: bytes) -> bytes:
    kind = b"replica" if name.lower() == b"slave" else name.lower()
    if kind not in (b"normal", b"replica", b"master", b"pubsub"):
        raise Refused(b"ERR Unknown client type '%b'" % name)
    return kind


def _type_of(session: Session) -> bytes:
    return b"pubsub" if session.subscriptions else b"normal"


def describe(session: Session) -> bytes:
    """A connection as CLIENT INFO and CLIENT LIST show it."""
    now_ms = session.server.now_ms()
    pubsub = session.server.pubsub
    reply_bytes, reply_room, reply_peak = session.reply_buffer
    unsent = session.count_unsent()
    fields = {
        "id": session.id,
        "addr": session.address,
        "laddr": session.local_address,
        "fd": session.fd,
        "name": session.name.decode(),
        "age": session.age_seconds,
        "idle": (now_ms - session.active_ms) // 1000,
        "flags": _flags(session),
        "db": session.db,
        "sub": pubsub.channels.count(session),
        "psub": pubsub.patterns.count(session),
        "ssub": pubsub.shards.count(session),
        "multi": _queued(session),
        "qbuf": session.unread,
        "qbuf-free": 0,  # requests are held in as many bytes as they have
        "argv-mem": session.request_bytes,
        "multi-mem": session.queued_bytes,
        "rbs": reply_room,
        "rbp": reply_peak,
        "obl": reply_bytes,
        "oll": int(unsent > 0),
        "omem": unsent,
        "tot-mem": session.memory_bytes,
        "events": "rw" if unsent else "r",
        "cmd": session.call.command.name if session.executing is None else "exec",
        "user": USER.decode(),
        "redir": session.server.tracking.redirect(session),
        "resp": session.protocol,
        **{name.decode(): value.decode() for name, value in session.library.items()},
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()).encode()


def _queued(session: Session) -> int:
    """How many commands the transaction holds, also while it runs; -1 without one."""
    if session.queue is not None:
        return len(session.queue)
    return -1 if session.executing is None else session.executing


def _flags(session: Session) -> str:
    letters = session.marks | session.server.tracking.letters(session)
    if session.subscriptions:
        letters.add("P")
    if _queued(session) >= 0:
        letters.add("x")
    if session.server.watches.is_spoilt(session):
        letters.add("d")
    return "".join(letter for letter in FLAG_LETTERS if letter in letters) or "N"


def _checked(name: bytes, what: str) -> bytes:
    if not all(0x21 <= byte <= 0x7E for byte in name):
        raise Refused(f"ERR {what} cannot contain spaces, newlines or special characters.")
    return name


# --- CLIENT KILL ----------------------------------------------------------------------------------


@command("CLIENT KILL", arity=-3, flags="admin noscript loading stale", since="2.4.0",
         summary="Closes the connection from an address, or all that the filters fit.")  # fmt: skip
def client_kill(call: Call) -> Reply:
    if len(call.args) == 3:
        return _kill_address(call, call.args[2].decode(errors="replace"))
    fits, spares_me = _filters(call.args[2:])
    found = [
        each
        for each in call.server.clients.values()
        if all(fit(each) for fit in fits) and not (spares_me and each is call.session)
    ]
    for session in found:
        session.kill()
    return len(found)


def _kill_address(call: Call, address: str) -> Reply:
    for session in call.server.clients.values():
        if session.address == address:
            session.kill()
            return OK
    raise Refused("ERR No such client")


def _filters(options: list[bytes]) -> tuple[list[Callable[[Session], bool]], bool]:
    """What a connection must fit, and whether the one that asks is spared."""
    if len(options) % 2:
        raise Refused(SYNTAX_ERROR)
    fits: list[Callable[[Session], bool]] = []
    spares_me = True
    for option, operand in zip(options[::2], options[1::2], strict=True):
        if option.lower() == b"skipme":
            if operand.lower() not in (b"yes", b"no"):
                raise Refused(SYNTAX_ERROR)
            spares_me = operand.lower() == b"yes"
        else:
            fits.append(_filter(option.lower(), operand))
    return fits, spares_me


def _filter(option: bytes, operand: bytes) -> Callable[[Session], bool]:
    match option:
        case b"id":
            number = integer(operand, BAD_ID)
            if number < 1:
                raise Refused(BAD_ID)
            return lambda session: session.id == number
        case b"type":
            wanted = _client_type(operand)
            return lambda session: _type_of(session) == wanted
        case b"addr":
            return lambda session: session.address.encode() == operand
        case b"laddr":
            return lambda session: session.local_address.encode() == operand
        case b"maxage":
            seconds = integer(operand, "ERR maxage is not an integer or out of range")
            if seconds < 1:
                raise Refused("ERR maxage should be greater than 0")
            return lambda session: session.age_seconds >= seconds
        case b"user":
            if operand != USER:
                raise Refused(b"ERR No such user '%b'" % operand)
            return lambda session: True
        case _:
            raise Refused(SYNTAX_ERROR)


# --- CLIENT REPLY, PAUSE and marks ----------------------------------------------------------------


@command("CLIENT REPLY", arity=3, flags="noscript loading stale", since="3.2.0",
         summary="Keeps replies back: all with OFF, the next with SKIP, none with ON.")  # fmt: skip
def client_reply(call: Call) -> Reply:
    session = call.session
    match call.args[2].lower():
        case b"on":
            session.silence = Silence.NONE
            session.review()
            return OK
        case b"off":
            session.silence = Silence.ALWAYS
        case b"skip":
            if session.silence is not Silence.ALWAYS:
                session.silence = Silence.AFTER_THIS
        case _:
            raise Refused(SYNTAX_ERROR)
    session.review()
    return NO_REPLY


@command("CLIENT UNBLOCK", arity=-3, flags="admin noscript loading stale", since="5.0.0",
         summary="Always 0: no command here blocks its client.")  # fmt: skip
def client_unblock(call: Call) -> Reply:
    if len(call.args) > 4:
        raise Refused(
            "ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP."
        )
    if len(call.args) == 4 and call.args[3].lower() not in (b"timeout", b"error"):
        raise Refused("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
    integer(call.args[2])
    return 0


@command("CLIENT PAUSE", arity=-3, flags="admin noscript loading stale", since="3.0.0",
         summary="Lets commands wait for so many milliseconds: ALL, or those that WRITE.")  # fmt: skip
def client_pause(call: Call) -> Reply:
    mode = call.args[3].lower() if len(call.args) == 4 else b"all"
    if len(call.args) > 4 or mode not in (b"write", b"all"):
        raise Refused("ERR CLIENT PAUSE mode must be WRITE or ALL")
    millis = integer(call.args[2], "ERR timeout is not an integer or out of range")
    if millis < 0:
        raise Refused("ERR timeout is negative")
    until_ms = call.server.now_ms() + millis
    if until_ms > INTEGER_MAX:
        raise Refused("ERR timeout is out of range")
    call.server.pause.begin(until_ms, holds_all=mode == b"all")
    call.server.review()
    return OK


@command("CLIENT UNPAUSE", arity=2, flags="admin noscript loading stale", since="6.2.0",
         summary="Ends a pause.")  # fmt: skip
def client_unpause(call: Call) -> Reply:
    call.server.unpause()
    return OK


@command("CLIENT NO-EVICT", arity=3, flags="admin noscript loading stale", since="7.0.0",
         summary="Taken and shown: no client is ever evicted.")  # fmt: skip
def client_no_evict(call: Call) -> Reply:
    return _mark(call, "e")


@command("CLIENT NO-TOUCH", arity=3, flags="noscript loading stale", since="7.2.0",
         summary="Taken and shown: reading never changes anything.")  # fmt: skip
def client_no_touch(call: Call) -> Reply:
    return _mark(call, "T")


def _mark(call: Call, letter: str) -> Reply:
    match call.args[2].lower():
        case b"on":
            call.session.marks.add(letter)
        case b"off":
            call.session.marks.discard(letter)
        case _:
            raise Refused(SYNTAX_ERROR)
    return OK
