"""Meaning without I/O: time, deadlines, rows, errors, and the protocol that every engine satisfies."""
