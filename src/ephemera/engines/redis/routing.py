"""Which server a key is on, and trying again: over redirections, failovers and restarts, for a bounded time.

A request that was surely not carried out is always sent again. One whose answer was lost is sent again
only if doing it twice is the same as doing it once; of the others, the caller is told that nobody knows.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)

from ephemera.core.clock import elapsed_ns
from ephemera.core.errors import (
    CorruptStore,
    EngineUnavailable,
    EphemeraError,
    InvalidArgument,
    StoreClosed,
    StoreFull,
    TransactionConflict,
    UnsupportedOperation,
)
from ephemera.engines.redis.nodes import (
    Command,
    Exchange,
    Lost,
    Node,
    Reply,
    Unlike,
    Unreached,
)
from ephemera.engines.redis.settings import Address, RedisSettings
from ephemera.engines.redis.swap import Swap, in_full, swap_command

SLOTS = 16_384
BATCH_BYTES = 64 * 1024
"""What is sent before replies are read: more could fill both directions, with both sides waiting."""
BATCH_COMMANDS = 2_000
SWAP_KEYS_MAX = 150_000
"""A command of Redis has at most 2**20 parts, and each key takes six of them."""
FIRST_ANSWER_S = 1.0
"""How long a server that was never reached is tried."""
PAUSE_S_FIRST = 0.005
PAUSE_S_MAX = 0.2

NOT_DONE = (
    AskError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    ReadOnlyError,
    TryAgainError,
    Unreached,
)
UNREACHED = (Unreached, Unlike)
"""What tells, before the first answer, that no server may be there."""
UNLIKE = "does not answer as a Redis server does"
# Codes that redis-py has no class for, alone or as an older Redis quotes them from inside a script.
NOT_DONE_CODES = re.compile(
    r"(?:^|: -)(?:NOREPLICAS|MISCONF|BUSY|READONLY|CLUSTERDOWN|LOADING|MASTERDOWN)\b"
)


class Request(NamedTuple):
    """Commands for the server of one key, sent in one piece.

    In a cluster there is one command, which a redirection can send elsewhere by itself.
    """

    key: bytes
    commands: tuple[Command, ...]
    is_write: bool = False
    is_repeatable: bool = True


def read(key: bytes, *command: bytes) -> Request:
    """A request that changes nothing."""
    return Request(key, (command,))


def swap_request(swaps: Sequence[Swap]) -> Request:
    """A request to change keys of one server or slot if they are as they were: answered 1 or 0.

    Sent twice it would find its own first time, so a lost answer stays lost. Raises InvalidArgument for
    more keys than one command can name.
    """
    if len(swaps) > SWAP_KEYS_MAX:
        raise InvalidArgument(
            f"Redis changes at most {SWAP_KEYS_MAX} keys in one step, not {len(swaps)}"
        )
    return Request(swaps[0].key, (swap_command(swaps),), is_write=True, is_repeatable=False)


class Unreplicated(Exception):
    """Done, but not by as many replicas as the store waits for."""


class Topology(Protocol):
    """Where keys are."""

    def node_of(self, key: bytes) -> Node: ...
    def nodes(self) -> list[Node]:
        """All that hold keys of their own."""
        ...

    def redirected(self, error: ResponseError) -> Node | None:
        """Learn from a redirection; the server to ask just this once, if it says so."""
        ...

    def look_again(self, until_ns: int) -> None:
        """Something failed: find out how things are now, if anybody answers before an instant."""
        ...

    def close(self) -> None: ...


class OneServer:
    """Every key is on the one server."""

    def __init__(self, settings: RedisSettings) -> None:
        self._node = Node(settings, settings.addresses[0] if settings.addresses else None)

    def node_of(self, key: bytes) -> Node:
        return self._node

    def nodes(self) -> list[Node]:
        return [self._node]

    def redirected(self, error: ResponseError) -> Node | None:
        raise UnsupportedOperation(
            f"{self._node.place} belongs to a cluster: open the store as redis+cluster://"
        )

    def look_again(self, until_ns: int) -> None:
        """It comes back, or its name leads to the one that took over."""
        self._node.reconnect()

    def close(self) -> None:
        self._node.close()


class Cluster:
    """Keys are spread over slots, and slots over masters, as one of the servers tells."""

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._nodes: dict[Address, Node] = {}
        self._owners: list[Address | None] = [None] * SLOTS
        self._answered: tuple[Address, ...] = ()
        self._trouble = "no server was asked"

    def node_of(self, key: bytes) -> Node:
        owner = self._owners[key_slot(key)]
        if owner is not None:
            return self._node(owner)
        if self._answered:
            raise Unreached(f"no server has the slot {key_slot(key)}")
        raise Unreached(self._trouble)

    def nodes(self) -> list[Node]:
        owners = set(self._owners)
        if None in owners:
            raise Unreached(f"the servers of {self._settings.place} do not have all the slots")
        return [self._node(address) for address in owners if address is not None]

    def redirected(self, error: ResponseError) -> Node | None:
        assert isinstance(error, AskError)  # a MovedError is one too
        if not error.host:
            return None  # a server that does not know its own name: the table of slots does
        owner = Address(error.host, int(error.port))
        if not isinstance(error, MovedError):
            return self._node(owner)
        with self._lock:
            self._owners = [*self._owners]
            self._owners[int(error.slot_id)] = owner
        return None

    def look_again(self, until_ns: int) -> None:
        # Whoever answered last comes first: a server that hangs costs the time of a whole answer.
        known = dict.fromkeys([*self._answered, *self._owners, *self._settings.addresses])
        for address in known:
            if address is None:
                continue
            if elapsed_ns() >= until_ns:
                return
            try:
                reply = self._node(address).ask((b"CLUSTER", b"SLOTS"))
            except (Unreached, Lost) as error:
                self._trouble = f"{UNLIKE}: {error}" if isinstance(error, Unlike) else str(error)
                continue
            if isinstance(reply, ResponseError):
                if "cluster support disabled" in str(reply) or "unknown command" in str(reply):
                    raise UnsupportedOperation(
                        f"{address} is no cluster: open the store as redis://{address}"
                    )
                continue
            if reply:
                self._adopt(_owners(reply, asked=address), answered=address)
                return

    def _adopt(self, owners: list[Address | None], *, answered: Address) -> None:
        with self._lock:
            self._owners, self._answered = owners, (answered,)
            # Those that left the cluster are forgotten, and not closed: somebody may be in a call.
            kept = {answered, *owners}
            self._nodes = {place: node for place, node in self._nodes.items() if place in kept}

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()

    def _node(self, address: Address) -> Node:
        with self._lock:
            node = self._nodes.get(address)
            if node is None:
                node = Node(self._settings, address)
                self._nodes = self._nodes | {address: node}
            return node


def _owners(reply: Reply, *, asked: Address) -> list[Address | None]:
    """The master of each slot, from what CLUSTER SLOTS says."""
    owners: list[Address | None] = [None] * SLOTS
    for first, last, master, *_ in reply:
        # A server that does not know its own name is where it was asked.
        owner = Address((master[0] or b"").decode() or asked.host, int(master[1]))
        owners[first : last + 1] = [owner] * (last + 1 - first)
    return owners


class Router:
    """Sends requests where they belong, and returns when all of them are answered."""

    def __init__(self, settings: RedisSettings) -> None:
        self.topology: Topology = Cluster(settings) if settings.is_cluster else OneServer(settings)
        self.retries = 0
        self._settings = settings
        self._closed = threading.Event()
        self._has_answered = False
        self.topology.look_again(elapsed_ns() + int(settings.retry_for_s * 1e9))

    def ask(self, request: Request) -> Reply:
        """The reply to a request of one command."""
        return self.run([request])[0][0]

    def run(self, requests: Sequence[Request]) -> list[list[Reply]]:
        """The replies to each request. Raises EngineUnavailable when they do not come in time."""
        answers: list[list[Reply]] = [[] for _ in requests]
        waiting = dict(enumerate(requests))
        elsewhere: dict[int, Node] = {}
        patience = Patience(self)
        while waiting:
            outcomes = dict(self._attempt(waiting, elsewhere))
            elsewhere = {}
            failures: list[Exception] = []
            for at, outcome in outcomes.items():
                failure = _failure(outcome)
                if failure is None:
                    self._has_answered = True
                    answers[at] = outcome
                    del waiting[at]
                    continue
                request = self._mended(waiting[at], failure)
                waiting[at] = request
                if isinstance(failure, AskError):
                    node = self.topology.redirected(failure)
                    if node is not None:
                        elsewhere[at] = node
                failures.append(failure)
            if waiting:
                patience.after(failures)
        return answers

    def nodes(self) -> list[Node]:
        """All that hold keys of their own, as far as is known."""
        patience = Patience(self)
        while True:
            try:
                return self.topology.nodes()
            except Unreached as error:
                patience.after([error])

    def pause(self, seconds: float) -> None:
        self._closed.wait(seconds)
        self.check_open()

    def check_open(self) -> None:
        if self._closed.is_set():
            raise StoreClosed("the store was closed")

    def close(self) -> None:
        self._closed.set()
        self.topology.close()

    def patience_s(self, failures: Sequence[Exception]) -> float:
        """How long to go on after these: not long where no server was ever reached, as at a wrong address."""
        if self._has_answered or not all(isinstance(each, UNREACHED) for each in failures):
            return self.retry_for_s
        return min(FIRST_ANSWER_S, self.retry_for_s)

    def unavailable(self, failure: Exception, patience_s: float) -> str:
        """What the caller is told after trying for so long."""
        if isinstance(failure, Unlike) and not self._has_answered:
            return (
                f"{self.place} {UNLIKE} ({failure})."
                " Is it the right port, and does the server want TLS (rediss://)?"
            )
        return (
            f"{self.place} did not answer within {patience_s:g} s ({failure})."
            " Is a server running there?"
        )

    @property
    def retry_for_s(self) -> float:
        return self._settings.retry_for_s

    @property
    def place(self) -> str:
        return self._settings.place

    def _mended(self, request: Request, failure: Exception) -> Request:
        """The request to send again. Raises what the caller is told when there is none."""
        if isinstance(failure, NoScriptError):
            return request._replace(commands=tuple(map(in_full, request.commands)))
        if isinstance(failure, NOT_DONE):
            return request
        if isinstance(failure, (Lost, Unreplicated)):
            if request.is_repeatable:
                return request
            raise EngineUnavailable(
                f"{self.place}: the answer to a write was lost, so it may have happened: {failure}"
            )
        if NOT_DONE_CODES.search(str(failure)):
            return request
        raise _final(failure, request)

    def _attempt(
        self, requests: dict[int, Request], elsewhere: dict[int, Node]
    ) -> Iterator[tuple[int, list[Reply]]]:
        """Every request once: to all servers first, then the replies of all."""
        by_node: dict[Node, list[int]] = defaultdict(list)
        for at, request in requests.items():
            try:
                by_node[elsewhere.get(at) or self.topology.node_of(request.key)].append(at)
            except Unreached as error:
                yield at, [error]
        batches = {
            node: _batches(places, requests, asking=elsewhere.keys())
            for node, places in by_node.items()
        }
        sent: list[tuple[Node, RequestBatch, Exchange | Unreached]] = []
        silent: set[Node] = set()
        try:
            while batches:
                for node, rest in list(batches.items()):
                    batch = next(rest, None)
                    if batch is None:
                        del batches[node]
                    else:
                        sent.append((node, batch, self._send(node, batch, requests, silent)))
                while sent:
                    node, batch, exchange = sent.pop()
                    yield from self._receive(batch, exchange, requests)
                    if isinstance(exchange, Unreached) or exchange.is_lost:
                        silent.add(node)
        finally:
            for _, _, exchange in sent:
                if not isinstance(exchange, Unreached):
                    exchange.abandon()

    def _send(
        self, node: Node, batch: RequestBatch, requests: dict[int, Request], silent: set[Node]
    ) -> Exchange | Unreached:
        if node in silent:  # once in an attempt is enough to wait for it
            return Unreached(f"{node.place} did not answer")
        commands = list(batch.commands)
        if self._settings.wait_replicas and any(requests[at].is_write for at, _ in batch.places):
            # Half of what one answer may take: the reply must come before the connection gives up.
            wait_ms = max(1, int(self._settings.timeout_s * 500))
            commands.append((b"WAIT", b"%d" % self._settings.wait_replicas, b"%d" % wait_ms))
        try:
            return node.send(commands)
        except Unreached as error:
            return error

    def _receive(
        self, batch: RequestBatch, exchange: Exchange | Unreached, requests: dict[int, Request]
    ) -> Iterator[tuple[int, list[Reply]]]:
        if isinstance(exchange, Unreached):
            for at, _ in batch.places:
                yield at, [exchange]
            return
        replies = exchange.replies()
        shortage = self._shortage(replies[len(batch.commands) :])
        start = 0
        for at, count in batch.places:
            own = replies[start : start + count]
            start += count
            if shortage is not None and requests[at].is_write and _failure(own) is None:
                own = [shortage]
            yield at, own[-len(requests[at].commands) :]

    def _shortage(self, replies: list[Reply]) -> Exception | None:
        """What is wrong with the answer to WAIT, if it was asked."""
        for reply in replies:
            if isinstance(reply, Exception):
                return reply if isinstance(reply, Lost) else Unreplicated(str(reply))
            if reply < self._settings.wait_replicas:
                return Unreplicated(
                    f"{reply} of {self._settings.wait_replicas} replicas have the write"
                )
        return None


class RequestBatch(NamedTuple):
    """What is sent over one connection in one piece: where each request stands in it."""

    places: list[tuple[int, int]]
    commands: list[Command]


def _batches(
    places: Iterable[int], requests: dict[int, Request], *, asking: Iterable[int]
) -> Iterator[RequestBatch]:
    batch, size = RequestBatch([], []), 0
    redirected = set(asking)
    for at in places:
        commands = list(requests[at].commands)
        if at in redirected:
            commands.insert(0, (b"ASKING",))
        length = sum(sum(map(len, command)) for command in commands)
        if batch.places and (size + length > BATCH_BYTES or len(batch.commands) >= BATCH_COMMANDS):
            yield batch
            batch, size = RequestBatch([], []), 0
        batch.places.append((at, len(commands)))
        batch.commands.extend(commands)
        size += length
    if batch.places:
        yield batch


class Patience:
    """How long an operation goes on trying, and how it paces itself."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._began_ns = elapsed_ns()
        self._until_ns = self._began_ns + int(router.retry_for_s * 1e9)
        self._pause_s = PAUSE_S_FIRST

    def after(self, failures: Sequence[Exception]) -> None:
        """Wait before the next attempt. Raises EngineUnavailable when there is to be none."""
        router = self._router
        router.check_open()
        router.retries += 1
        patience_s = router.patience_s(failures)
        if elapsed_ns() >= self._began_ns + int(patience_s * 1e9):
            raise EngineUnavailable(router.unavailable(failures[0], patience_s))
        if all(_is_settled(failure) for failure in failures):
            return
        router.topology.look_again(self._until_ns)
        if any(not isinstance(failure, MovedError) for failure in failures):
            router.pause(self._pause_s)
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def after_conflict(self, what: str) -> None:
        """Another writer was first. Raises TransactionConflict when that was so all the time."""
        self._router.check_open()
        if self._is_over:
            raise TransactionConflict(
                f"other writers changed {what} first for {self._router.retry_for_s:g} s"
            )

    @property
    def _is_over(self) -> bool:
        return elapsed_ns() >= self._until_ns


def _is_settled(failure: Exception) -> bool:
    """Whether the failure itself said what to do next."""
    return isinstance(failure, NoScriptError) or (
        isinstance(failure, AskError) and not isinstance(failure, MovedError)
    )


def _failure(replies: list[Reply]) -> Exception | None:
    """The first thing that went wrong with a request."""
    for reply in replies:  # a transaction that was refused says so last; why, it said before
        if isinstance(reply, Exception):
            return reply
        if isinstance(reply, list) and (inside := _failure(reply)):  # of EXEC
            return inside
    return None


def _final(error: Exception, request: Request) -> EphemeraError:
    """What the caller is told about an answer that trying again does not change."""
    text = str(error)
    if isinstance(error, OutOfMemoryError) or re.search(r"(?:^|: -)OOM\b", text):
        return StoreFull(f"the server has no room (maxmemory): {text}")
    if "WRONGTYPE" in text:
        return CorruptStore(repr(request.key), None, "another program stored no string there")
    name = request.commands[0][0].decode()
    return UnsupportedOperation(f"the server refused {name}, which a store on Redis needs: {text}")
