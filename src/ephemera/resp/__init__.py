"""The Redis protocol without I/O: requests from bytes (`parser`), replies to bytes (`encoder`)."""
