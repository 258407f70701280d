"""The table of commands: what COMMAND tells of it, and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from ephemera.server.docs import page
from ephemera.server.table import Declaration, KeyCount, KeyRange, declarations
from tests.server.clients import Client

FLAGS = {
    "admin", "allow_busy", "asking", "blocking", "denyoom", "fast", "loading", "may_replicate",
    "movablekeys", "no_async_loading", "no_auth", "no_mandatory_keys", "no_multi", "noscript",
    "pubsub", "readonly", "skip_monitor", "skip_slowlog", "stale", "write",
}  # fmt: skip
NAMES_KEYS_ALONE = {"eval", "evalsha", "spublish", "ssubscribe", "sunsubscribe", "watch"}
"""As in Redis: what they do to the keys that they name is not theirs to declare."""
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


@pytest.mark.parametrize("declared", declarations().values(), ids=lambda each: each.name)
def test_a_declaration_is_sound(declared: Declaration) -> None:
    assert declared.arity
    assert FLAGS.issuperset(declared.flags)
    assert not {"write", "readonly"}.issubset(declared.flags)
    assert declared.summary.endswith(".")
    is_access = {"write", "readonly", "movablekeys"} & {*declared.flags}
    assert not declared.keys or is_access or declared.name in NAMES_KEYS_ALONE


def test_the_page_of_commands_is_current() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "python -m ephemera.server.docs > docs/commands.md"
    )


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        (KeyRange(1), [b"a"]),
        (KeyRange(1, -1), [b"a", b"2", b"c", b"d"]),
        (KeyRange(1, -1, 2), [b"a", b"c"]),
        (KeyRange(2, 3), [b"2", b"c"]),
        (KeyCount(2), [b"c", b"d"]),
    ],
)
def test_keys_are_found_in_the_arguments(keys: KeyRange | KeyCount, found: list[bytes]) -> None:
    assert keys.find([b"name", b"a", b"2", b"c", b"d"]) == found


def test_command_info_has_the_shape_that_clients_expect(client: Client) -> None:
    assert client("COMMAND", "INFO", "get", "nope") == [
        [
            b"get", 2, [b"readonly", b"fast"], 1, 1, 1, [b"@read", b"@string", b"@fast"], [],
            [[
                b"flags", [b"RO", b"access"],
                b"begin_search", [b"type", b"index", b"spec", [b"index", 1]],
                b"find_keys",
                [b"type", b"range", b"spec", [b"lastkey", 0, b"keystep", 1, b"limit", 0]],
            ]],
            [],
        ],
        None,
    ]  # fmt: skip


def test_command_counts_and_lists_what_there_is(client: Client) -> None:
    assert client("COMMAND", "COUNT") == len(client("COMMAND")) == len(client("COMMAND", "INFO"))
    assert set(client("COMMAND", "LIST")) == {name.encode() for name in declarations()}
    assert client("COMMAND", "LIST", "FILTERBY", "PATTERN", "pt?l") == [b"pttl"]
    assert b"get" in client("COMMAND", "LIST", "FILTERBY", "ACLCAT", "string")
    assert client("COMMAND", "LIST", "FILTERBY", "MODULE", "x") == []
    assert client.error("COMMAND", "LIST", "nope") == "ERR syntax error"


def test_command_docs_say_what_is_declared(client: Client) -> None:
    client("HELLO", 3)
    docs = client("COMMAND", "DOCS", "ttl", "client", "nope")
    assert list(docs) == [b"ttl", b"client"]
    assert docs[b"ttl"][b"group"] == b"generic"
    assert docs[b"client"][b"subcommands"][b"client|id"][b"since"] == b"5.0.0"


def test_command_getkeys(client: Client) -> None:
    assert client("COMMAND", "GETKEYS", "DEL", "a", "b") == [b"a", b"b"]
    assert client.error("COMMAND", "GETKEYS", "nope", "a") == "ERR Invalid command specified"
    assert client.error("COMMAND", "GETKEYS", "PING") == "ERR The command has no key arguments"
    assert client.error("COMMAND", "GETKEYS", "GET") == (
        "ERR Invalid number of arguments specified for command"
    )
