"""Public ids: the ids that clients see, with one spelling each (docs/spec, "Public ids")."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field
from typing import Sequence, Tuple

from ._aes import Aes128
from .errors import InvalidPublicId

_BASE32 = "0123456789abcdefghjkmnpqrstvwxyz"
_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_CHECKSUM = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PREFIX = re.compile(r"[a-z][a-z0-9]{1,9}\Z", re.ASCII)
_NAME = re.compile(r"[A-Z][A-Z0-9_]{0,31}\Z", re.ASCII)


def new_id() -> bytes:
    """Returns a new internal id: a ULID of the time and 80 random bits, as 16 bytes."""
    return (time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10)


@dataclass(frozen=True)
class Codec:
    """How ids are written: `base32` (26 characters) or `base62` (22), with or without a checksum.

    With `keys` (16 bytes each) ids are encrypted and written in base62, which hides their time. The
    first key encodes, all decode.
    """

    payload: str = "base32"
    checksum: bool = False
    keys: Sequence[bytes] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.payload not in ("base32", "base62"):
            raise ValueError(f"a payload is base32 or base62, got {self.payload!r}")
        if any(len(key) != 16 for key in self.keys):
            raise ValueError("a key that hides the time of ids has 16 bytes")
        object.__setattr__(self, "_ciphers", tuple(Aes128(key) for key in self.keys))
        if self.keys:
            object.__setattr__(self, "payload", "base62")

    def encode(self, prefix: str, internal_id: bytes) -> str:
        """Returns the public id of 16 bytes."""
        if not _PREFIX.match(prefix):
            raise InvalidPublicId("a prefix is a lower-case letter and 1 to 9 letters or digits")
        if len(internal_id) != 16:
            raise InvalidPublicId(f"an internal id has 16 bytes, got {len(internal_id)}")
        ciphers: Tuple[Aes128, ...] = self._ciphers  # type: ignore[attr-defined]
        shown = ciphers[0].encrypt(internal_id) if ciphers else internal_id
        alphabet, length = self._alphabet()
        text = f"{prefix}_{_write(int.from_bytes(shown, 'big'), alphabet, length)}"
        return f"{text}_{_crc(text)}" if self.checksum else text

    def decode(self, prefix: str, text: str) -> bytes:
        """Returns the internal id in a public id with this prefix; with several keys, by the first.

        Raises InvalidPublicId for every text that this codec does not write.
        """
        return self.candidates(prefix, text)[0]

    def candidates(self, prefix: str, text: str) -> Tuple[bytes, ...]:
        """Returns every internal id that a text may stand for: one, or one for each key."""
        found, payload = self._parts(text)
        alphabet, _ = self._alphabet()
        bits = 0
        for character in payload:
            value = alphabet.find(character)
            if value < 0:
                raise _not_an_id()
            bits = bits * len(alphabet) + value
        if bits >> 128 or not _PREFIX.match(found):
            raise _not_an_id()
        if found != prefix:
            raise InvalidPublicId(
                f"this is the id of another kind of thing: it begins with `{found}_`, not `{prefix}_`",
                reason="prefix",
            )
        block = bits.to_bytes(16, "big")
        ciphers: Tuple[Aes128, ...] = self._ciphers  # type: ignore[attr-defined]
        return tuple(cipher.decrypt(block) for cipher in ciphers) or (block,)

    def _alphabet(self) -> Tuple[str, int]:
        return (_BASE32, 26) if self.payload == "base32" else (_BASE62, 22)

    def _parts(self, text: str) -> Tuple[str, str]:
        if not text.isascii():
            raise _not_an_id()
        if self.checksum:
            text, separator, checksum = text[:-3], text[-3:-2], text[-2:]
            if separator != "_" or _crc(text) != checksum:
                raise _not_an_id()
        length = self._alphabet()[1]
        prefix, separator, payload = (
            text[: -length - 1],
            text[-length - 1 : -length],
            text[-length:],
        )
        if separator != "_":
            raise _not_an_id()
        return prefix, payload


@dataclass(frozen=True)
class Resource:
    """A type of resource: its name in the id map (`ORDER`), its prefix (`ord`) and its codec."""

    name: str
    prefix: str
    codec: Codec = Codec()

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(
                "a resource type is a capital and at most 31 capitals, digits and underscores"
            )
        if not _PREFIX.match(self.prefix):
            raise ValueError(
                "a prefix is a lower-case letter and 1 to 9 lower-case letters or digits"
            )

    def encode(self, internal_id: bytes) -> str:
        """Returns the public id of 16 bytes."""
        return self.codec.encode(self.prefix, internal_id)

    def decode(self, text: str) -> bytes:
        """Returns the internal id; raises InvalidPublicId for the id of anything else."""
        return self.codec.decode(self.prefix, text)


TENANT = Resource("TENANT", "tnt")
STORE = Resource("STORE", "sto")
ORDER = Resource("ORDER", "ord")
USER = Resource("USER", "usr")
PRODUCT = Resource("PRODUCT", "prd")
SKU = Resource("SKU", "sku")
PAYMENT = Resource("PAYMENT", "pay")


def _not_an_id() -> InvalidPublicId:
    return InvalidPublicId(
        "not a public id; copy it again as it was given, with nothing added or changed"
    )


def _write(number: int, alphabet: str, length: int) -> str:
    digits = []
    for _ in range(length):
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return "".join(reversed(digits))


def _crc(text: str) -> str:
    crc = 0
    for byte in text.encode():
        crc ^= byte
        for _ in range(8):
            crc = (crc << 1) ^ 0x107 if crc & 0x80 else crc << 1
    return _CHECKSUM[crc >> 5] + _CHECKSUM[crc & 31]
