"""A store served over the Redis protocol.

    bytes ─► listener ─► session ─► table ─► handler ─► database ─► the store's public API
                            ◄── reply ◄────────┘            └─► server.listeners (what changed)

| part | what it is |
|---|---|
| `table` | every command's declaration; COMMAND, arity errors and `docs/commands.md` come from it |
| `commands/` | the handlers, one module for each group; a module that lies there is loaded |
| `session` | one client without I/O: bytes in, bytes out; `Call` is what a handler gets |
| `database` | one of the databases 0–15: reads, and writes that tell who listens |
| `_direct` | the compiled bases of the four above and of `server`: what every plain request goes through |
| `_in_place` | the commonest commands once more, compiled, for plain arguments: what they do not take goes to the handler |
| `_sockets` | plain sockets: one epoll for all clients, read and answered in one go |
| `server` | what all sessions share: store, databases, settings, clients, counters |
| `settings` | every setting, declared once: the attributes that the rest reads, and what CONFIG knows |
| `watches`, `notifications`, `tracking` | the listeners of `server.listeners`: WATCH, keyspace notifications, client-side caching |
| `expirations` | expired keys, from the store's thread to their listeners |
| `pubsub` | who subscribed to what, and the way of a message to them |
| `scripts`, `lua` | the scripts that are known and how one runs; the interpreter and its sandbox |
| `listener` | asyncio on uvloop: sockets, limits, durability of replies, the graceful stop |

**A command** is a function under a declaration, in the module of its group:

    @command("STRLEN", arity=2, flags="readonly fast", keys=KeyRange(1), since="2.2.0",
             summary="How many bytes the value has.")
    def strlen(call: Call) -> Reply:
        return len(call.keys.get(call.args[1]) or b"")

It returns one of the kinds of `resp.replies`, never bytes of the protocol, and raises `Refused` with the
error that the client is to see. What the store refuses (`EphemeraError`) becomes an error by itself.
A subcommand is declared as "CLIENT SETNAME", after `container("CLIENT", …)`.

**Keys** are read and written through `call.keys`, the current `Database`; `call.server.database(n)` is
another. A write there counts (`server.changes`) and tells `server.listeners` the database, the key
and the `Event`: WATCH, keyspace notifications and client-side caching hang on that and on nothing else, but for
expired keys, which go to the listeners of `server.expirations`: who wants these alone leaves the writes where they
are answered in place. A handler never reaches for the store itself. Everything runs in one thread and the store is opened exclusively, so
nothing happens between a handler's read and its write but time: a key may die there, and the methods
of `Database` take that into account.

**EXEC and scripts** run the same handlers inside `with server.transaction():`, one transaction of the
store. There `server.database(n)` gives databases that write into it, so whoever runs handlers inside calls
`session.select(session.db)` first, and again after the block; `session.run(command, args)` gives the
reply of a command, errors included. Listeners are told after the commit.

**State that changes what a session may do** (a password to give, MULTI, subscriptions) ends with
`session.review()`: while nothing is special, commands go straight from the table to their handler;
otherwise each goes through `Session.admit`, where all such rules stand.
"""
