"""ACL: the one user there is."""

from __future__ import annotations

from hashlib import sha256

from tests.server.clients import Client


def test_everybody_is_the_default_user(client: Client) -> None:
    assert client("ACL", "WHOAMI") == b"default"
    assert client("ACL", "USERS") == [b"default"]
    assert client("ACL", "LIST") == [b"user default on nopass ~* &* +@all"]
    assert client("ACL", "GETUSER", "ada") is None


def test_the_user_is_described(client: Client) -> None:
    client("HELLO", 3)
    user = client("ACL", "GETUSER", "default")
    assert user == {
        b"flags": [b"on", b"nopass"],
        b"passwords": [],
        b"commands": b"+@all",
        b"keys": b"~*",
        b"channels": b"&*",
        b"selectors": [],
    }


def test_a_password_is_shown_as_its_hash(client: Client) -> None:
    client("CONFIG", "SET", "requirepass", "secret")
    hashed = sha256(b"secret").hexdigest().encode()
    assert client("ACL", "LIST") == [b"user default on #%b ~* &* +@all" % hashed]
    assert client("ACL", "GETUSER", "default")[1:4] == [[b"on"], b"passwords", [hashed]]


def test_categories_name_their_commands(client: Client) -> None:
    assert {b"keyspace", b"read", b"write", b"string", b"admin", b"fast", b"dangerous"} <= set(
        client("ACL", "CAT")
    )
    assert {b"flushall", b"config|set", b"shutdown"} <= set(client("ACL", "CAT", "dangerous"))
    assert b"get" in client("ACL", "CAT", "STRING")


def test_acl_refuses_in_the_words_of_redis(client: Client) -> None:
    assert client.error("ACL", "CAT", "foo") == "ERR Unknown category 'foo'"
    assert (
        client.error("ACL", "SETUSER", "ada") == "ERR unknown subcommand 'SETUSER'. Try ACL HELP."
    )
    assert client.error("ACL", "CAT", "a", "b") == (
        "ERR unknown subcommand or wrong number of arguments for 'CAT'. Try ACL HELP."
    )
