"""ACL: there is one user, `default`, who may do everything once the password is given."""

from __future__ import annotations

from hashlib import sha256

from ephemera.resp.replies import Refused, Reply, Unordered
from ephemera.server.commands.command import categories
from ephemera.server.commands.connection import USER
from ephemera.server.session import Call
from ephemera.server.table import Group

command = Group("server")

command.container("ACL", since="6.0.0", summary="Who may do what.")


@command("ACL WHOAMI", arity=2, flags="noscript loading stale", since="6.0.0",
         summary="The user of this connection.")  # fmt: skip
def acl_whoami(call: Call) -> Reply:
    return USER


@command("ACL USERS", arity=2, flags="admin noscript loading stale", since="6.0.0",
         summary="The names of all users.")  # fmt: skip
def acl_users(call: Call) -> Reply:
    return [USER]


@command("ACL LIST", arity=2, flags="admin noscript loading stale", since="6.0.0",
         summary="All users, with what they may do.")  # fmt: skip
def acl_list(call: Call) -> Reply:
    passwords = b" ".join(b"#" + each for each in _passwords(call)) or b"nopass"
    return [b"user %b on %b ~* &* +@all" % (USER, passwords)]


@command("ACL GETUSER", arity=3, flags="admin noscript loading stale", since="6.0.0",
         summary="What a user may do.")  # fmt: skip
def acl_getuser(call: Call) -> Reply:
    if call.args[2] != USER:
        return None
    passwords = _passwords(call)
    return {
        b"flags": Unordered([b"on"] if passwords else [b"on", b"nopass"]),
        b"passwords": passwords,
        b"commands": b"+@all",
        b"keys": b"~*",
        b"channels": b"&*",
        b"selectors": [],
    }


def _passwords(call: Call) -> list[bytes]:
    """Hashed, as Redis shows them."""
    password = call.server.settings.requirepass
    return [sha256(password).hexdigest().encode()] if password else []


@command("ACL CAT", arity=-2, flags="noscript loading stale", since="6.0.0",
         summary="The categories of commands, or the commands of one.")  # fmt: skip
def acl_cat(call: Call) -> Reply:
    if len(call.args) > 3:
        raise Refused(
            b"ERR unknown subcommand or wrong number of arguments for '%b'. Try ACL HELP."
            % call.args[1]
        )
    commands = {each.name.encode(): categories(each) for each in call.server.commands.all.values()}
    known = dict.fromkeys(category for each in commands.values() for category in each)
    if len(call.args) == 2:
        return [category.encode() for category in known]
    wanted = call.args[2].decode(errors="replace").lower()
    if wanted not in known:
        raise Refused(b"ERR Unknown category '%b'" % call.args[2])
    return [name for name, each in commands.items() if wanted in each]
