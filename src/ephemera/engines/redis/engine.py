"""The engine that keeps whole rows: families by id, transactions on one server, the dead hidden by our clock."""

from __future__ import annotations

import heapq
import logging
import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from ephemera.core.clock import Clock, never_before
from ephemera.core.errors import (
    CorruptStore,
    EphemeraError,
    ResourcesExhausted,
    StoreClosed,
)
from ephemera.core.expiry import is_dead
from ephemera.core.keyvalue import Capability, CheckReport, unsupported
from ephemera.core.options import Options
from ephemera.core.threads import start_thread
from ephemera.engines.redis.families import (
    RedisFamilies,
    RedisFamily,
    with_default_ttl,
    with_family,
    with_new_id,
    without_family,
)
from ephemera.engines.redis.layout import WholeRows, decode_head, head_of
from ephemera.engines.redis.operations import Operations
from ephemera.engines.redis.routing import Patience, Router, swap_request
from ephemera.engines.redis.settings import read_url
from ephemera.engines.redis.swap import DELETE, NOTHING, Act, Swap, beginning_with, exactly
from ephemera.engines.redis.transaction import RedisTransaction
from ephemera.engines.redis.walking import Upkeep, by_kind

SWEEP_PAUSE_S = 2.0
"""Between two sweeps: longer than another process may go on writing to a family that is gone."""

log = logging.getLogger("ephemera")


class RedisEngine(Operations[WholeRows]):
    """A store on Redis: see `settings` for the URL, `layout` for what is written."""

    def __init__(self, url: str, options: Options) -> None:
        settings = read_url(url)
        # Redis's clock can be meant by a deadline if ours is the time of day too, and by no other clock.
        is_time_of_day = options.clock is None
        layout = WholeRows(settings.prefix, has_native_deadlines=is_time_of_day)
        super().__init__(settings, options, layout)
        if not settings.is_cluster:
            self.capabilities = frozenset({Capability.TRANSACTIONS})
        self._is_background = options.maintenance == "background"
        self._sweeper: threading.Thread | None = None
        self._sweeper_lock = threading.Lock()
        self._upkeep = Upkeep(self.router, layout)
        self._is_time_of_day = is_time_of_day
        self._mark = layout.own(b"clock")
        try:
            self.clock: Clock = self._continued(options.clock)
            self._families = RedisFamilies(self.router, layout.own(b"families"))
        except BaseException:
            self.router.close()
            raise
        if self._families.table.given_up:
            self._start_sweeping()

    def native(self, family: RedisFamily, key: bytes) -> bytes:
        return self.layout.native(self._families.id_of(family), key)

    def named(self, family: RedisFamily) -> Iterator[tuple[bytes, bytes]]:
        names, digests = by_kind(self.walk.names(self._families.id_of(family)), self.layout)
        found = [(self.layout.key_of(name, b""), name) for name in names]
        for name in digests:
            data = self.read_data(name)
            if data is not None:
                found.append((self.layout.key_of(name, data), name))
        return iter(sorted(found))

    def count(self, family: RedisFamily, now_ms: int) -> int:
        self.check_open()
        names = self.walk.names(self._families.id_of(family))
        return sum(
            not is_dead(decode_head(name, head).deadline_ms, now_ms)
            for name, head in self.walk.heads(names)
        )

    # --- writing ------------------------------------------------------------------------------

    def delete_many(
        self, family: RedisFamily, keys: Sequence[bytes], *, durable: bool | None
    ) -> int:
        self.check_writable()
        patience = Patience(self.router)
        deleted = 0
        left = list(keys)
        while left:
            now_ms = self.clock.now_ms()
            natives = {self.native(family, key): key for key in left}
            heads = ((name, decode_head(name, head)) for name, head in self.walk.heads(natives))
            swaps = [
                Swap(name, beginning_with(head_of(row)), DELETE)
                for name, row in heads
                if not is_dead(row.deadline_ms, now_ms)
            ]
            done = self._swap_groups(swaps)
            deleted += len(done)
            left = [natives[swap.key] for swap in swaps if swap.key not in done]
            if left:
                patience.after_conflict(f"the key {left[0]!r}")
        return deleted

    def _swap_groups(self, swaps: Sequence[Swap]) -> set[bytes]:
        """All of them or none on one server, on a cluster each by itself; the keys that went."""
        groups = [[swap] for swap in swaps] if self.settings.is_cluster else [list(swaps)]
        groups = [group for group in groups if group]
        replies = self.router.run([swap_request(group) for group in groups])
        return {
            swap.key
            for group, (is_done,) in zip(groups, replies, strict=True)
            for swap in group
            if is_done
        }

    def begin(self) -> RedisTransaction:
        self.check_not_read_only()
        if Capability.TRANSACTIONS not in self.capabilities:
            raise unsupported(
                self.name,
                Capability.TRANSACTIONS,
                "they lie on several servers; compare_and_set one key, or open a single redis://",
            )
        return RedisTransaction(self, self.clock.now_ms(), self.writer_gate.acquire())

    # --- families -----------------------------------------------------------------------------

    def family(self, name: str, *, create: bool) -> RedisFamily | None:
        self.check_open()
        found = self._families.handle(name)
        if found is None:
            self._families.look_again()  # another process may have made it
            found = self._families.handle(name)
        if found is None and create:
            self.check_writable()
            self._families.change(lambda table: with_family(table, name))
            found = self._families.handle(name)
        return found

    def set_default_ttl(self, family: RedisFamily, ttl_ms: int | None) -> None:
        self.check_writable()
        self._families.change(
            lambda table: with_default_ttl(table, family.name, family.born, ttl_ms)
        )

    def families(self) -> list[str]:
        self.check_open()
        self._families.look_again()
        return sorted(self._families.table.families)

    def drop_family(self, name: str) -> bool:
        self.check_writable()
        replaced = self._families.change(lambda table: without_family(table, name))
        self._start_sweeping()
        return name in replaced.families

    def clear(self, family: RedisFamily) -> None:
        self.check_writable()
        self._families.change(lambda table: with_new_id(table, family.name, family.born))
        self._start_sweeping()

    # --- expiry -------------------------------------------------------------------------------

    def purge_expired(self, *, limit: int | None, batch: int) -> int:
        """Remove the dead, the longest dead first, and what families left behind that are gone.

        It looks at every key of the store. By the time of day Redis removes the dead by itself.
        """
        self.check_writable()
        now_ms = self.clock.now_ms()
        self._families.look_again()
        table = self._families.table
        found = self._upkeep.by_family()
        self._sweep(found, table.given_up)
        ids = {entry.id for entry in table.families.values()}
        names = [name for id_, some in found.items() if id_ in ids for name in some]
        dead = self._upkeep.dead(names, now_ms)
        chosen = sorted(dead) if limit is None else heapq.nsmallest(limit, dead)
        return self._upkeep.remove(chosen, batch)

    def sweep(self) -> bool:
        """Remove the rows of families that are gone; whether there may be more of them."""
        self._families.look_again()
        given_up = self._families.table.given_up
        if given_up:
            found = {id_: list(self.walk.names(id_)) for id_ in given_up}
            self._sweep(found, given_up)
        return bool(self._families.table.given_up)

    def _sweep(self, found: dict[int, list[bytes]], given_up: frozenset[int]) -> None:
        for id_ in given_up:
            self._upkeep.unlink(found.get(id_, []))
        # Only when nothing was found: a process that did not know yet may still have written there.
        empty = frozenset(id_ for id_ in given_up if not found.get(id_))
        if empty:
            self._families.forget(empty)

    def _start_sweeping(self) -> None:
        if not self._is_background or self.is_read_only:
            return
        with self._sweeper_lock:
            if self._sweeper is None or not self._sweeper.is_alive():
                sweeper = threading.Thread(
                    target=_sweep_until_done,
                    args=(weakref.ref(self), self.router),
                    name="ephemera-redis-sweeper",
                    daemon=True,
                )
                try:
                    start_thread(sweeper)
                except ResourcesExhausted as error:
                    # The change that asked for it has happened; whoever opens the store next sweeps.
                    log.warning("keys of dropped families stay in Redis: %s", error)
                    return
                self._sweeper = sweeper

    # --- housekeeping -------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:  # Any: numbers and names
        self.check_open()
        self._families.look_again()
        table = self._families.table
        return {
            "engine": self.name,
            "families": len(table.families),
            "families_to_sweep": len(table.given_up),
            "servers": len(self.router.nodes()),
            "retries": self.router.retries,
        }

    def check(self) -> CheckReport:
        self.check_open()
        found = self._upkeep.by_family()
        strays = self._strays(found)
        problems = [
            f"{len(found[id_])} rows of the family id {id_}, which is nobody's" for id_ in strays
        ]
        kept = [name for id_, names in found.items() if id_ not in strays for name in names]
        problems += self._upkeep.damage(kept)
        return CheckReport(len(kept), 0, 0, tuple(problems))

    def repair(self) -> int:
        """Remove rows of families that the table does not know; how many there were."""
        self.check_writable()
        found = self._upkeep.by_family()
        names = [name for id_ in self._strays(found) for name in found[id_]]
        self._upkeep.unlink(names)
        return len(names)

    def _strays(self, found: dict[int, list[bytes]]) -> list[int]:
        """Ids of rows that no family has or had; asked after the rows were found, not before."""
        self._families.look_again()
        table = self._families.table
        known = {entry.id for entry in table.families.values()} | table.given_up
        return sorted(found.keys() - known)

    def close(self) -> None:
        try:
            if not self._is_time_of_day and not self.is_read_only:
                self._keep_time()
        except StoreClosed:
            return
        except EphemeraError as error:
            log.warning("the store's clock could not be noted at closing: %s", error)
        finally:
            super().close()

    # --- time ---------------------------------------------------------------------------------

    def _continued(self, given: Clock | None) -> Clock:
        """The clock, never before what the store has seen.

        The time of day is the servers' too. Of another clock, the highest instant is kept in the store.
        """
        return self.time_of_day() if given is None else never_before(given, self._kept_ms() or 0)

    def _kept_ms(self) -> int | None:
        data = self.read_data(self._mark)
        if data is None:
            return None
        if not data.isdigit():
            raise CorruptStore(repr(self._mark), None, "no instant in milliseconds")
        return int(data)

    def _keep_time(self) -> None:
        now_ms = self.clock.now_ms()
        kept_ms = self._kept_ms()
        while kept_ms is None or kept_ms < now_ms:
            known = NOTHING if kept_ms is None else exactly(b"%d" % kept_ms)
            if self.swap([Swap(self._mark, known, Act(b"set", b"%d" % now_ms))]):
                return
            kept_ms = self._kept_ms()


def _sweep_until_done(engine_ref: weakref.ref[RedisEngine], router: Router) -> None:
    """Until nothing is left of families that are gone, or the store is closed or forgotten."""
    while (engine := engine_ref()) is not None:
        try:
            if not engine.sweep():
                return
        except StoreClosed:
            return
        except EphemeraError as error:
            log.warning("families that are gone could not be swept, and will be: %s", error)
        del engine
        try:
            router.pause(SWEEP_PAUSE_S)
        except StoreClosed:
            return
