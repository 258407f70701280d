"""Formats of other stores, read and written: bytes in, values out, without I/O of their own."""
