"""What goes over the wire under an idempotency key: the key header, stored responses, problems.

The same as that of the Rust layers and the gateway: docs/errors has a page for every problem.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ..errors import SemelError

Lines = Sequence[Tuple[str, str]]

KEY_HEADERS = ("idempotency-key", "x-idempotency-key")
REPLAYED = "Idempotent-Replayed"
PROBLEMS = "urn:semel:problem:"
MAX_KEY = 255
_MAX_FIELD = 4 * MAX_KEY

# A structured-field string (RFC 9651), and the parameters that may follow it.
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_TOKEN = r"[A-Za-z*][!#$%&\'*+.^_`|~0-9A-Za-z:/-]*"
_NUMBER = r"@?-?[0-9]+(?:\.[0-9]{1,3})?"
_BARE_ITEM = rf'(?:"(?:[ !#-\[\]-~]|\\["\\])*"|[?][01]|{_NUMBER}|:[A-Za-z0-9+/=]*:|{_TOKEN})'
_PARAMETERS = re.compile(rf"(?:; *[a-z*][a-z0-9_.*-]*(?:={_BARE_ITEM})?)*\Z")


class InvalidKeyHeader(SemelError, ValueError):
    """A key header cannot be read as one key."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def parse_key(field: str) -> str:
    """Returns the key in the value of a header: a structured-field string, or the same without quotes."""
    field = field.strip(" \t\r\n\f")
    if len(field) > _MAX_FIELD:
        raise _too_long()
    key = _quoted(field) if field.startswith('"') else _bare(field)
    if not key.strip():
        raise InvalidKeyHeader(
            "empty", "the key is empty; send a value that is unique to this request, such as a UUID"
        )
    if len(key) > MAX_KEY:
        raise _too_long()
    return key


def _too_long() -> InvalidKeyHeader:
    return InvalidKeyHeader(
        "too_long", f"the key is longer than {MAX_KEY} bytes; send a shorter one, or a digest of it"
    )


def _quoted(field: str) -> str:
    text = _STRING.match(field)
    if text is None or not _PARAMETERS.match(field, text.end()):
        raise InvalidKeyHeader(
            "not_a_string",
            "the key begins with a quote but is not a structured-field string (RFC 9651)",
        )
    return re.sub(r"\\(.)", r"\1", text.group(1))


def _bare(field: str) -> str:
    for at, character in enumerate(field):
        if not "!" <= character <= "~" or character in ',";':
            raise InvalidKeyHeader(
                "character",
                f"the key has byte {ord(character) & 0xFF:#04x} at {at}; send one key of visible ASCII "
                "without commas, semicolons and quotes, or quote it",
            )
    return field


def key_in(headers: Lines, names: Iterable[str] = KEY_HEADERS) -> Optional[str]:
    """Returns the key of a request's headers; None if it has none."""
    found: Optional[str] = None
    for name in names:
        lines = [value for header, value in headers if header.lower() == name]
        if not lines:
            continue
        if len(lines) > 1:
            raise InvalidKeyHeader("repeated", f"the key was sent {len(lines)} times; send it once")
        key = parse_key(lines[0])
        if found not in (None, key):
            raise InvalidKeyHeader("differ", "two key headers have different keys; send one")
        found = key
    return found


class Damaged(SemelError, ValueError):
    """Stored bytes are not a response of this version."""


@dataclass(frozen=True)
class Response:
    """A response as it is stored: status, chosen headers, body."""

    CONTENT_TYPE = "application/vnd.semel.http.v1"

    status: int
    headers: Lines
    body: bytes

    def encode(self) -> bytes:
        """Returns the stored form."""
        parts = [struct.pack(">BHI", 1, self.status, len(self.headers))]
        for name, value in self.headers:
            raw_name, raw_value = name.lower().encode("latin-1"), value.encode("latin-1")
            parts.append(struct.pack(">H", len(raw_name)) + raw_name)
            parts.append(struct.pack(">I", len(raw_value)) + raw_value)
        parts.append(struct.pack(">I", 0))
        return b"".join(parts) + self.body

    @classmethod
    def decode(cls, stored: bytes) -> "Response":
        """Returns the response; raises Damaged if the bytes are none."""
        try:
            version, status = struct.unpack_from(">BH", stored)
            if version != 1:
                raise Damaged(
                    f"the stored response has layout version {version}, this release reads 1"
                )
            headers, at = _block(stored, 3)
            _, at = _block(stored, at)
        except (struct.error, UnicodeDecodeError):
            raise Damaged("the stored response ends in the middle") from None
        return cls(status, headers, stored[at:])


def _block(stored: bytes, at: int) -> Tuple[List[Tuple[str, str]], int]:
    (count,) = struct.unpack_from(">I", stored, at)
    at += 4
    lines = []
    for _ in range(count):
        pair = []
        for length_format in (">H", ">I"):
            (length,) = struct.unpack_from(length_format, stored, at)
            at += struct.calcsize(length_format)
            (raw,) = struct.unpack_from(f"{length}s", stored, at)
            at += length
            pair.append(raw.decode("latin-1"))
        lines.append((pair[0], pair[1]))
    return lines, at


# slug: status, retryable, safe_new_key, title
_PROBLEMS: Dict[str, Tuple[int, bool, bool, str]] = {
    "key-missing": (400, False, True, "This route needs an Idempotency-Key"),
    "key-invalid": (400, False, True, "The Idempotency-Key cannot be read"),
    "key-reused": (422, False, False, "The key was used for a different request"),
    "in-progress": (409, True, False, "A request with this key is still running"),
    "backing-off": (409, True, False, "The last attempt failed, and the next one is not due yet"),
    "failed": (409, False, False, "The operation failed"),
    "dead": (409, False, False, "The operation was given up"),
    "uncertain": (409, False, False, "It is not known whether the operation happened"),
    "claim-lost": (409, True, False, "Another attempt took over while this one ran"),
    "result-unavailable": (
        409,
        False,
        False,
        "The operation is done, but its answer was not stored",
    ),
    "result-too-large": (
        500,
        False,
        False,
        "The answer is too large to store, and nothing was committed",
    ),
    "body-too-large": (413, False, True, "The request body is too large"),
    "tenant-unknown": (401, False, False, "The tenant is unknown"),
    "principal-unknown": (401, False, False, "The caller is unknown"),
    "work-failed": (500, True, False, "The service failed while it ran the request"),
    "store-unavailable": (503, True, False, "The ledger cannot be reached"),
    "misconfigured": (500, False, False, "The route's settings cannot work"),
}


def problem(
    slug: str,
    detail: str,
    instance: str,
    *,
    retry_after: Optional[float] = None,
    operation_id: Optional[str] = None,
    status: Optional[int] = None,
) -> Response:
    """Returns the response of a problem (RFC 9457)."""
    usual, retryable, safe_new_key, title = _PROBLEMS[slug]
    members: Dict[str, Any] = {
        "type": PROBLEMS + slug,
        "title": title,
        "status": status or usual,
        "detail": detail,
        "instance": instance,
        "code": slug.upper().replace("-", "_"),
        "retryable": retryable,
        "safe_new_key": safe_new_key,
    }
    if operation_id is not None:
        members["operation_id"] = operation_id
    headers = [("content-type", "application/problem+json"), ("cache-control", "no-store")]
    if retry_after is not None:
        headers.append(("retry-after", str(math.ceil(retry_after))))
    if members["status"] == 401:
        headers.append(("www-authenticate", "Bearer"))
    body = json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()
    return Response(members["status"], headers, body)
