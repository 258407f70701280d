"""A walk through Ephemera in a few seconds: `make demo`."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import tempfile
from datetime import timedelta
from pathlib import Path

import ephemera


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "app.eph"
        print(f"Ephemera {ephemera.__version__}: durable storage for data with a deadline.")
        on_the_real_clock(path)
        survive_a_kill(path)
        across_a_month(Path(folder) / "month.eph")
    print("\nThat is all. docs/ has the rest.")


def on_the_real_clock(path: Path) -> None:
    with ephemera.open(path) as store:
        title("A key may carry a deadline")
        events: queue.Queue[ephemera.Expired] = queue.Queue()
        store.on_expire(events.put)
        store.put("motto", "carpe diem")
        store.put("code:ada", "492817", ttl=0.3)
        show('store.get("motto")', store.get("motto"))
        show('store.get("code:ada")', store.get("code:ada"))
        show('store.ttl("code:ada")', f"{store.ttl('code:ada'):.3f} s left")

        title("When it passes, the key is gone, and you are told")
        expired = events.get(timeout=5)
        show("on_expire told us of", f"{expired.key.decode()}, which held {expired.value.decode()}")
        show('store.get("code:ada")', store.get("code:ada"))

        title("A transaction is all or nothing")
        try:
            with store.transaction() as txn:
                txn.put("account:ada", "70")
                txn.put("account:bob", "130")
                raise RuntimeError("the power went out half way")
        except RuntimeError as error:
            show("raised inside the block", error)
        show('store.get("account:ada")', store.get("account:ada"))


def survive_a_kill(path: Path) -> None:
    title("What was acknowledged is kept, whoever dies")
    with ephemera.open(path) as store:
        child = multiprocessing.get_context("spawn").Process(target=write_and_die, args=(path,))
        child.start()
        child.join()
        show("the other process ended with", signal.Signals(-(child.exitcode or 0)).name)
        show('store.get("last words")', store.get("last words"))
    with ephemera.open(path) as store:
        show("after reopening, still there", store.get("last words"))
        show("store.check()", "clean" if store.check().is_clean else "damaged")


def write_and_die(path: Path) -> None:
    """Runs in a second process, which shares the store while the first has it open."""
    store = ephemera.open(path)
    store.put("last words", "I was acknowledged", ttl=3600)
    os.kill(os.getpid(), signal.SIGKILL)


def across_a_month(path: Path) -> None:
    title("Families have a TTL of their own (and here, a clock that we move)")
    clock = ephemera.ManualClock()
    with ephemera.open(path, clock=clock, maintenance="manual") as store:
        sessions = store.family("sessions", default_ttl=timedelta(days=30))
        for number in range(10_000):
            sessions.put(f"session:{number:05}", "{}")
        sessions.put("session:root", "{}", ttl=ephemera.Ttl.NEVER)
        show("sessions.count()", f"{sessions.count():,}")
        clock.advance(timedelta(days=29))
        sessions.touch("session:00042", ttl=timedelta(days=30))
        clock.advance(timedelta(days=1))
        show("thirty days later", f"{sessions.count():,} (one was touched, one never dies)")

        title("Cleaning costs what is dead, not what is alive")
        show("store.purge_expired()", f"{store.purge_expired():,} rows removed")
        show("store.purge_expired()", f"{store.purge_expired():,} when nothing is due")


def title(text: str) -> None:
    print(f"\n{text}\n{'─' * len(text)}")


def show(what: str, result: object) -> None:
    print(f"  {what:<30} {result.decode() if isinstance(result, bytes) else result}")


if __name__ == "__main__":
    main()
