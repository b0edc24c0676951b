"""Keys, which identify an operation that runs once (docs/spec, "Keys").

The database computes the digest of a key itself. This module validates the parts before a statement
is sent, and computes the same digest for programs that look a record up.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum

from .errors import InvalidKey

MAX_TENANT = 64
MAX_SCOPE = 128
MAX_ID = 255

# The white space of Unicode. `str.strip` removes four control characters beside it.
_WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


class Kind(IntEnum):
    """The entry point by which a request came in. The same id under two kinds makes two keys."""

    COMMAND = 1
    HTTP = 2
    GRPC = 3
    MESSAGE = 4
    EVENT = 5


def principal(identity: str | bytes) -> bytes:
    """Returns the principal of a caller with this identity: a user id, a client id, a subject."""
    raw = identity.encode() if isinstance(identity, str) else identity
    return hashlib.sha256(b"semel/principal/1\0" + raw).digest()


@dataclass(frozen=True)
class Key:
    """The identity of an operation. `scope` is the operation or the consumer group."""

    tenant: str
    scope: str
    id: str
    principal: bytes = b""
    kind: Kind = Kind.COMMAND

    def __post_init__(self) -> None:
        check("tenant", self.tenant, MAX_TENANT)
        check("scope", self.scope, MAX_SCOPE)
        check("id", self.id, MAX_ID)
        if len(self.principal) not in (0, 32):
            raise InvalidKey(
                f"a principal has 0 or 32 bytes, got {len(self.principal)}; use semel.principal()"
            )

    def digest(self) -> bytes:
        """Returns the 32 bytes by which stores find the record of this key."""
        digest = hashlib.sha256(b"semel/key/1\0" + bytes([self.kind]))
        parts = (self.tenant.encode(), self.scope.encode(), self.principal, self.id.encode())
        for part in parts:
            # The length goes first, so that different parts never give the same bytes.
            digest.update(len(part).to_bytes(4, "big"))
            digest.update(part)
        return digest.digest()

    def __repr__(self) -> str:
        # Neither the tenant nor the id: a representation ends in a log.
        return f"Key({self.kind.name.lower()} {self.scope} {self.digest()[:4].hex()})"


def check(part: str, text: str, limit: int) -> None:
    """Raises InvalidKey unless `text` is a valid part: not blank, not too long, no control
    characters."""
    if not text.strip(_WHITE_SPACE):
        raise InvalidKey(
            f"the {part} of a key is blank; give it a value that is unique to the request",
            part=part,
            reason="blank",
        )
    try:
        length = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidKey(
            f"the {part} of a key has a lone surrogate at character {error.start}; it is no text",
            part=part,
            reason="surrogate",
        ) from None
    if length > limit:
        raise InvalidKey(
            f"the {part} of a key has {length} bytes, at most {limit} are allowed; send a digest of it",
            part=part,
            reason="too_long",
            at=length,
        )
    for at, character in enumerate(text):
        if character < " " or "\x7f" <= character <= "\x9f":
            byte = len(text[:at].encode())
            raise InvalidKey(
                f"the {part} of a key has a control character at byte {byte}; remove or encode it",
                part=part,
                reason="control",
                at=byte,
            )
