"""ULIDs: 16 bytes as 26 characters of upper-case Crockford base32, in one spelling."""

from __future__ import annotations

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def write(id: bytes) -> str:
    """Returns the text of 16 bytes."""
    number = int.from_bytes(id, "big")
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -1, -5))


def parse(text: str) -> bytes:
    """Returns the 16 bytes of a text; raises ValueError for any other spelling."""
    if len(text) != 26 or text[0] > "7" or any(digit not in _ALPHABET for digit in text):
        raise ValueError("not a ULID: 26 characters of upper-case Crockford base32")
    number = 0
    for digit in text:
        number = number << 5 | _ALPHABET.index(digit)
    return number.to_bytes(16, "big")
