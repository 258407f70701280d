"""Real clients: what they do with Redis they do with us. Each test runs on both, so that it is right itself."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import cashews
import limits
import limits.storage
import limits.strategies
import pytest
import redis
import redis.asyncio
import valkey
import valkey.asyncio
from redis.cache import CacheConfig

from tests.wire.resp import Wire
from tests.wire.servers import Process

PATIENCE_SECONDS = 20

# What the two packages call by the same names. Any: neither says precisely what its commands return.
Client = Any
Message = dict[str, Any]


@pytest.fixture(params=["ephemera", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Process]:
    """Each server, empty, with all keyspace events on."""
    process: Process = request.getfixturevalue(f"{request.param}_server")
    with Wire(process) as wire:
        wire("FLUSHALL")
        wire("CONFIG", "SET", "notify-keyspace-events", "KEA")
        yield process
        wire("CONFIG", "SET", "notify-keyspace-events", "")


@pytest.fixture(
    params=[
        pytest.param((redis, 2), id="redis-py-2"),
        pytest.param((redis, 3), id="redis-py-3"),
        pytest.param((valkey, 2), id="valkey-2"),
        pytest.param((valkey, 3), id="valkey-3"),
    ]
)
def client(request: pytest.FixtureRequest, server: Process) -> Iterator[Client]:
    package, protocol = request.param
    maker = package.Redis if package is redis else package.Valkey
    with maker(port=server.port, protocol=protocol, socket_timeout=PATIENCE_SECONDS) as made:
        yield made


def message_of(pubsub: Client, kind: str) -> Message:
    """The next message of a kind; those of subscribing are passed over."""
    while True:
        message: Message | None = pubsub.get_message(timeout=PATIENCE_SECONDS)
        assert message is not None, "no message came"
        if message["type"] == kind:
            return message


# --- redis-py and valkey-py -----------------------------------------------------------------------


def test_values_and_lifetimes(client: Client) -> None:
    assert client.set("session", "ada", ex=1000)
    assert client.get("session") == b"ada"
    assert 990 <= client.ttl("session") <= 1000
    assert client.set("session", "bob", keepttl=True)
    assert 990_000 <= client.pttl("session") <= 1_000_000
    assert client.set("session", "eve", nx=True) is None
    assert client.set("session", "eve", get=True, px=50_000) == b"bob"
    assert client.getex("session", persist=True) == b"eve"
    assert client.ttl("session") == -1
    assert client.expire("session", 1000, gt=True) in (0, False)
    assert client.expire("session", 1000) in (1, True)
    assert client.getdel("session") == b"eve"
    assert client.ttl("session") == -2


def test_many_keys(client: Client) -> None:
    assert client.mset({f"key:{number}": number for number in range(100)})
    assert client.mget("key:1", "nothing", "key:99") == [b"1", None, b"99"]
    assert set(client.scan_iter(match="key:*", count=7)) == {b"key:%d" % n for n in range(100)}
    assert client.dbsize() == 100
    assert client.delete("key:1", "key:2", "nothing") == 2
    assert client.incr("key:3", 10) == 13
    assert client.incrbyfloat("key:3", 0.5) == 13.5
    assert client.exists("key:1", "key:3") == 1
    assert client.setbit("bits", 7, 1) == 0
    assert client.bitcount("bits") == 1


def test_errors_have_their_classes(client: Client) -> None:
    client.set("text", "word")
    errors = redis if isinstance(client, redis.Redis) else valkey
    with pytest.raises(errors.ResponseError, match="not an integer"):
        client.incr("text")
    with pytest.raises(errors.ResponseError, match="unknown command"):
        client.execute_command("BOGUS")


def test_a_pipeline_with_and_without_a_transaction(client: Client) -> None:
    for is_transaction in (True, False):
        with client.pipeline(transaction=is_transaction) as pipe:
            pipe.set("n", 1).incr("n").expire("n", 100).get("n").get("nothing")
            answers = pipe.execute()
        assert [answers[1], int(answers[2]), *answers[3:]] == [2, 1, b"2", None]


def test_an_error_in_a_transaction_is_raised_and_the_rest_is_done(client: Client) -> None:
    with client.pipeline() as pipe:
        pipe.set("k", "v").incr("k").set("other", "w")
        answers = pipe.execute(raise_on_error=False)
    assert isinstance(answers[1], Exception)
    assert client.get("other") == b"w"


def test_watch_gives_up_when_the_key_changes(client: Client, server: Process) -> None:
    errors = redis if isinstance(client, redis.Redis) else valkey
    client.set("n", 1)
    with client.pipeline() as pipe, Wire(server) as other:
        pipe.watch("n")
        other("SET", "n", 5)
        pipe.multi()
        pipe.set("n", 2)
        with pytest.raises(errors.WatchError):
            pipe.execute()
    assert client.get("n") == b"5"


def test_transaction_tries_again(client: Client, server: Process) -> None:
    client.set("n", 1)
    disturbances = [6, 5]

    def double(pipe: Client) -> None:
        seen = int(pipe.get("n"))
        if disturbances:
            with Wire(server) as other:
                other("SET", "n", disturbances.pop())
        pipe.multi()
        pipe.set("n", seen * 2, ex=100)

    client.transaction(double, "n")
    assert client.get("n") == b"12"
    assert client.ttl("n") > 0


def test_publish_and_subscribe(client: Client) -> None:
    with client.pubsub() as pubsub:
        pubsub.subscribe("news")
        pubsub.psubscribe("w*")
        assert message_of(pubsub, "subscribe")["data"] == 1
        assert message_of(pubsub, "psubscribe")["data"] == 2
        assert client.publish("news", "first") == 1
        assert client.publish("weather", "sun") == 1
        assert message_of(pubsub, "message")["data"] == b"first"
        assert message_of(pubsub, "pmessage")["channel"] == b"weather"
        assert client.pubsub_numsub("news") == [(b"news", 1)]
        pubsub.unsubscribe("news")
        assert message_of(pubsub, "unsubscribe")["data"] == 1


def test_events_of_a_key_that_lives_and_dies(client: Client) -> None:
    with client.pubsub() as pubsub:
        pubsub.psubscribe("__keyevent@0__:*")
        message_of(pubsub, "psubscribe")
        client.set("code", "492817", px=20)
        seen = [message_of(pubsub, "pmessage") for _ in range(3)]
    assert [message["channel"].partition(b":")[2] for message in seen] == [
        b"set",
        b"expire",
        b"expired",
    ]
    assert {message["data"] for message in seen} == {b"code"}
    assert client.get("code") is None


def test_a_lock_is_held_by_one_and_comes_free(client: Client) -> None:
    first = client.lock("job", timeout=100)
    second = client.lock("job", timeout=100, blocking=False)
    assert first.acquire()
    assert not second.acquire()
    assert first.locked()
    assert first.extend(50)
    assert 100 < client.ttl("job") <= 150
    assert first.reacquire()
    assert 0 < client.ttl("job") <= 100
    first.release()
    with second as held:
        assert held.owned()
    assert client.exists("job") == 0


def test_a_lock_that_was_lost_cannot_be_released(client: Client) -> None:
    errors = redis if isinstance(client, redis.Redis) else valkey
    lock = client.lock("job", timeout=100)
    lock.acquire()
    client.set("job", "stolen")
    with pytest.raises(errors.exceptions.LockNotOwnedError):
        lock.release()
    assert client.get("job") == b"stolen"


def test_a_registered_script(client: Client) -> None:
    script = client.register_script(
        "redis.call('SET', KEYS[1], ARGV[1], 'EX', 100) return redis.call('STRLEN', KEYS[1])"
    )
    client.script_flush()
    assert script(keys=["k"], args=["four"]) == 4
    assert script(keys=["k"], args=["three"]) == 5
    with client.pipeline() as pipe:
        script(keys=["k"], args=["two"], client=pipe)
        assert pipe.execute() == [3]
    assert client.ttl("k") > 0


def test_what_monitoring_reads(client: Client) -> None:
    info = client.info()
    assert info["redis_version"].startswith("7.")
    assert info["connected_clients"] >= 1
    assert client.config_get("maxmemory*")
    assert client.ping()
    assert client.client_id() > 0
    assert client.client_list()
    assert client.time()[0] > 1_600_000_000
    assert client.command_count() > 100
    assert client.dbsize() == 0
    assert client.memory_usage("nothing") is None
    assert isinstance(client.slowlog_get(), list)


# --- asyncio --------------------------------------------------------------------------------------


@pytest.mark.parametrize("package", [redis.asyncio, valkey.asyncio], ids=["redis-py", "valkey"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_asyncio_clients(server: Process, package: Any, protocol: int) -> None:  # Any: a module
    maker = package.Redis if package is redis.asyncio else package.Valkey

    async def use() -> None:
        async with maker(port=server.port, protocol=protocol) as client:
            await values_and_transactions(client)
            await messages_and_events(client)
            await a_lock(client)

    asyncio.run(asyncio.wait_for(use(), PATIENCE_SECONDS))


async def values_and_transactions(client: Client) -> None:
    await client.set("k", "v", ex=1000)
    assert await client.get("k") == b"v"
    assert 990 <= await client.ttl("k") <= 1000
    async with client.pipeline(transaction=True) as pipe:
        await pipe.set("n", 1).incr("n").execute()
    answers = await asyncio.gather(*(client.incr("n") for _ in range(50)))
    assert sorted(answers) == list(range(3, 53))


async def messages_and_events(client: Client) -> None:
    async with client.pubsub() as pubsub:
        await pubsub.subscribe("news", "__keyevent@0__:expired")
        heard = pubsub.listen()
        # Until it is confirmed, what another connection sends may overtake it.
        assert [(await anext(heard))["type"] for _ in range(2)] == ["subscribe", "subscribe"]
        await client.publish("news", "hello")
        await client.set("code", "1", px=20)
        seen = [await anext(heard) for _ in range(2)]
    assert [(message["channel"], message["data"]) for message in seen] == [
        (b"news", b"hello"),
        (b"__keyevent@0__:expired", b"code"),
    ]


async def a_lock(client: Client) -> None:
    async with client.lock("job", timeout=100) as lock:
        assert await lock.owned()
        assert not await client.lock("job", blocking=False).acquire()
    assert await client.exists("job") == 0


# --- client-side caching --------------------------------------------------------------------------


def calls_of_get(server: Process) -> int:
    """How many GETs the server has answered."""
    with Wire(server) as wire:
        found = re.search(rb"cmdstat_get:calls=(\d+)", wire("INFO", "commandstats").data)
    return int(found[1]) if found else 0


def caching_redis(server: Process) -> Client:
    with Wire(server) as wire:
        if b"redis_version:7.0" in wire("INFO", "server").data:
            pytest.skip("redis-py caches nothing of a Redis before 7.4")
    return redis.Redis(port=server.port, protocol=3, cache_config=CacheConfig())


def caching_valkey(server: Process) -> Client:
    return valkey.Valkey(port=server.port, protocol=3, cache_enabled=True)


@pytest.mark.parametrize("make", [caching_redis, caching_valkey])
def test_a_caching_client_reads_once_and_hears_of_every_change(
    server: Process, make: Callable[[Process], Client]
) -> None:
    with make(server) as client, Wire(server) as other:
        other("SET", "k", "first")
        assert client.get("k") == b"first"
        before = calls_of_get(server)
        assert [client.get("k") for _ in range(5)] == [b"first"] * 5
        assert calls_of_get(server) == before
        for command, value in [
            (("SET", "k", "second"), b"second"),
            (("APPEND", "k", "!"), b"second!"),
            (("DEL", "k"), None),
            (("EVAL", "redis.call('SET', 'k', 'third')", 0), b"third"),
            (("FLUSHALL",), None),
        ]:
            other(*command)
            # Redis may answer the writer before it sends the invalidation.
            deadline = time.monotonic() + PATIENCE_SECONDS
            while client.get("k") != value:
                assert time.monotonic() < deadline, command


@pytest.mark.parametrize("make", [caching_redis, caching_valkey])
def test_a_cached_value_does_not_outlive_its_key(
    server: Process, make: Callable[[Process], Client]
) -> None:
    with make(server) as client, Wire(server) as other:
        with Wire(server) as listener:
            listener("SUBSCRIBE", "__keyevent@0__:expired")
            other("SET", "k", "mortal", "PX", 200)
            assert client.get("k") == b"mortal"
            listener.read()
        # The server sends the event and the invalidation together, on two connections.
        deadline = time.monotonic() + PATIENCE_SECONDS
        while client.get("k") is not None:
            assert time.monotonic() < deadline, "the cache was never told"


@pytest.mark.filterwarnings("ignore:Call to deprecated close:DeprecationWarning")  # cashews' own
def test_cashews_keeps_copies_in_step(server: Process) -> None:
    """By broadcast, redirected to the connection that subscribes: the way of RESP2."""

    async def use() -> None:
        one, two = cashews.Cache(), cashews.Cache()
        for cache in (one, two):
            url = f"redis://127.0.0.1:{server.port}/?protocol=2"
            cache.setup(url, client_side=True, suppress=False)
            await cache.init()
        await one.set("k", "first")
        assert await two.get("k") == "first"
        with Wire(server) as wire:
            await asyncio.to_thread(wire, "DEL", "cashews:k")
        while await two.get("k") is not None:
            await asyncio.sleep(0)
        for cache in (one, two):
            await cache.close()

    asyncio.run(asyncio.wait_for(use(), PATIENCE_SECONDS))


NODE_PROGRAM = """
import { createClient, BasicClientSideCache } from '@redis/client';
const url = `redis://127.0.0.1:${process.argv[2]}`;
const cache = new BasicClientSideCache();
const reader = createClient({ url, RESP: 3, clientSideCache: cache });
const writer = createClient({ url });
await reader.connect();
await writer.connect();
const tick = () => new Promise(resolve => setImmediate(resolve));
const reads = async wanted => { while (await reader.get('k') !== wanted) await tick(); };
await writer.set('k', 'first');
await reads('first');
const misses = cache.stats().missCount;
for (let i = 0; i < 10; i++) await reader.get('k');
if (cache.stats().missCount !== misses) throw new Error('nothing is cached');
await writer.set('k', 'second');
await reads('second');
await writer.set('k', 'mortal', { PX: 200 });
await reads('mortal');
await reads(null);
await writer.set('k', 'third');
await reads('third');
await writer.flushAll();
await reads(null);
await reader.close();
await writer.close();
"""


@pytest.fixture(scope="session")
def node_program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs NODE_PROGRAM, with node-redis from npm beside it."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("node and npm are not installed")
    path = tmp_path_factory.mktemp("node") / "caching.mjs"
    path.write_text(NODE_PROGRAM, encoding="utf-8")
    asked = [npm, "install", "--silent", "--prefix", str(path.parent), "@redis/client@6"]
    if subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("node-redis cannot be installed: npm reaches no registry")
    return [node, str(path)]


@pytest.mark.soak  # it downloads 12 MB
def test_node_redis_caches(server: Process, node_program: list[str]) -> None:
    asked = [*node_program, str(server.port)]
    done = subprocess.run(
        asked, capture_output=True, text=True, timeout=PATIENCE_SECONDS * 3, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
@pytest.mark.parametrize(
    "strategy",
    [limits.strategies.FixedWindowRateLimiter, limits.strategies.SlidingWindowCounterRateLimiter],
)
def test_a_rate_limiter_counts(
    server: Process, strategy: type[limits.strategies.RateLimiter], scheme: str
) -> None:
    storage = limits.storage.storage_from_string(f"{scheme}://127.0.0.1:{server.port}")
    assert storage.check()
    limiter = strategy(storage)
    three_a_day = limits.RateLimitItemPerDay(3)
    assert [limiter.hit(three_a_day, "ada") for _ in range(5)] == [True] * 3 + [False] * 2
    assert limiter.hit(three_a_day, "bob")
    assert limiter.get_window_stats(three_a_day, "ada").remaining == 0
    limiter.clear(three_a_day, "ada")
    assert limiter.test(three_a_day, "ada")
    storage.reset()
    storage.storage.close()  # type: ignore[union-attr]  # it leaves that to the garbage collector


# --- redis-cli and redis-benchmark ----------------------------------------------------------------


def run(program: str, server: Process, *args: str, say: str | None = None) -> str:
    found = shutil.which(program)
    assert found is not None, f"{program} is missing: .ci/system installs it"
    done = subprocess.run(
        [found, "-p", str(server.port), *args],
        input=say,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS * 3,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("protocol", ["-2", "-3"])
def test_redis_cli_by_its_standard_input(server: Process, protocol: str) -> None:
    commands = """\
SET code 492817 EX 1000
GET code
MULTI
INCR n
INCR n
EXEC
GET nothing
DEL code n
BOGUS
EVAL "return {1, 'two'}" 0
"""
    lines = run("redis-cli", server, protocol, say=commands).splitlines()
    assert lines[:6] == ["OK", "492817", "OK", "QUEUED", "QUEUED", "1"]
    assert [line for line in lines[6:] if line][:3] == [
        "2",
        "2",
        "ERR unknown command 'BOGUS', with args beginning with: ",
    ]
    assert lines[-2:] == ["1", "two"]


def test_redis_cli_shows_replies_to_people(server: Process) -> None:
    assert run("redis-cli", server, "--no-raw", "SET", "k", "v", "EX", "100").strip() == "OK"
    assert re.match(r"\(integer\) (99|100)", run("redis-cli", server, "--no-raw", "TTL", "k"))
    assert run("redis-cli", server, "--no-raw", "GET", "k").strip() == '"v"'
    assert run("redis-cli", server, "--scan", "--pattern", "k*").split() == ["k"]
    assert "redis_version:7." in run("redis-cli", server, "INFO", "server")
    assert run("redis-cli", server, "-n", "3", "DBSIZE").strip() == "0"


@pytest.mark.parametrize("pipelined", ["1", "16"])
def test_redis_benchmark_runs_through(server: Process, pipelined: str) -> None:
    asked = ("-t", "ping,set,get,incr,mset", "-n", "2000", "-c", "20", "-r", "1000", "--csv")
    lines = run("redis-benchmark", server, *asked, "-P", pipelined).splitlines()
    rates = [float(line.split(",")[1].strip('"')) for line in lines[1:]]
    assert len(rates) == 6
    assert all(rate > 0 for rate in rates)
