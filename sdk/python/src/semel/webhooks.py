"""The signatures of webhooks (Standard Webhooks 1.0; docs/spec, "Webhooks")."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from typing import Mapping, Optional

from .errors import InvalidSignature

# How far the sender's clock may be from ours.
TOLERANCE = 300


def _key(secret: str) -> bytes:
    try:
        key = base64.b64decode(secret.partition("whsec_")[2] or secret, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValueError("a secret is `whsec_` and standard base64 of at least one byte")
    return key


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Returns the value of the header `webhook-signature`."""
    signed = f"{id}.{timestamp}.".encode() + body
    tag = hmac.new(_key(secret), signed, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(tag).decode()}"


def verify(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    tolerance: int = TOLERANCE,
    now: Optional[float] = None,
) -> str:
    """Returns the id of a webhook (`webhook-id`), which is the same in every delivery.

    Raises InvalidSignature unless one of its signatures is ours and its timestamp is recent. Verify the
    bytes that arrived, before anything parses them.
    """
    given = {name.lower(): value for name, value in headers.items()}
    try:
        id, timestamp = given["webhook-id"], int(given["webhook-timestamp"])
        signatures = given["webhook-signature"].split(" ")
    except (KeyError, ValueError):
        raise InvalidSignature("the headers of a webhook are missing or cannot be read") from None
    # An integer that `int` reads but nobody sent, such as one with spaces.
    if str(timestamp) != given["webhook-timestamp"]:
        raise InvalidSignature("the timestamp of a webhook cannot be read")
    if abs((time.time() if now is None else now) - timestamp) > tolerance:
        raise InvalidSignature("the timestamp of a webhook is too far from now")
    expected = sign(secret, id, timestamp, body).encode()
    # All are compared, in constant time.
    matching = [hmac.compare_digest(expected, signature.encode()) for signature in signatures]
    if not any(matching):
        raise InvalidSignature("no signature of the webhook is right")
    return id
