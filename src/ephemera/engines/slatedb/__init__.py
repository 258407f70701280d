"""The engine on object storage, over SlateDB (package `slatedb`).

| part | what it is |
|---|---|
| `_calls` | the compiled calls into SlateDB's library; rows to its bytes and back |
| `library` | the library found, checked and bound; `wait`, where everything is waited for; what its errors mean |
| `location` | the URL: where the store is, and its settings |
| `credentials` | where they come from; what to set where there are none |
| `opening` | the writer or a reader of a location |
| `reading` | reads of a state: the store, a snapshot, a transaction |
| `writing` | batches, updates of one key, commits |
| `families` | the table of families, one record of the store |
| `views` | snapshots and transactions, as the store layer sees them |
| `upkeep`, `checking` | the dead, the dropped, compaction; the walk over everything |
| `engine` | all of it as the one protocol of an engine |
"""

from ephemera.engines.slatedb.engine import SlateEngine

__all__ = ["SlateEngine"]
