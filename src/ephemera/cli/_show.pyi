from collections.abc import Iterator

PIECE_BYTES: int

def escaped_pieces(data: bytes) -> Iterator[bytes]: ...
