"""The server: commands, sessions, sockets."""
