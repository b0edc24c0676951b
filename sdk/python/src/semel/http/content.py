"""What makes two HTTP requests under one key the same: method, path, query, content type and body.

The order and the encoding of query parameters, form fields and JSON members make no difference, nor does a
gzip or deflate coding. A multipart body is compared by its bytes, boundary and all.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from .. import fingerprints
from .contract import Lines

_ESCAPE = re.compile(rb"%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(rb"[A-Za-z0-9._~-]")


@dataclass(frozen=True)
class HttpRequest:
    """A request, as far as the contract needs it."""

    method: str
    #: The name of the operation: the method and the template of the route.
    operation: str
    path: str
    query: bytes
    headers: Lines
    body: bytes
    #: Under which path the application is mounted. It is part of the operation, and not of its rules.
    root: str = ""

    def header(self, name: str) -> str:
        """Returns the value of a header; empty if it is not there or there several times."""
        lines = [value for header, value in self.headers if header.lower() == name]
        return lines[0] if len(lines) == 1 else ""


def fingerprint(request: HttpRequest, limit: int, matched: Sequence[str] = ()) -> bytes:
    """Returns the fingerprint of a request."""
    essence = request.header("content-type").partition(";")[0].strip().lower()
    coding = _coding(request)
    body = _decoded(coding, request.body, limit)
    if body is None:
        content = fingerprints.of_bytes(request.body)
    else:
        coding = ""
        content = _content(essence, body)
    parts = [
        request.method.encode(),
        request.path.encode("utf-8", "surrogateescape"),
        _pairs(request.query, True),
        essence.encode("latin-1"),
        coding.encode("latin-1"),
        content,
    ]
    for name in matched:
        parts.append(name.lower().encode())
        parts += [
            v.encode("latin-1") for header, v in request.headers if header.lower() == name.lower()
        ]
        parts.append(b"\0")
    return fingerprints.of_parts(parts)


def _content(essence: str, body: bytes) -> bytes:
    if essence == "application/json" or essence.endswith("+json"):
        return fingerprints.of_body(body)
    if essence == "application/x-www-form-urlencoded" and body.isascii():
        form = body.replace(b"+", b"%20")
        builds_lists = b"[]" in form or b"%5b%5d" in form.lower()
        return fingerprints.of_parts([b"form", _pairs(form, not builds_lists)])
    return fingerprints.of_bytes(body)


def _coding(request: HttpRequest) -> str:
    lines = [value for name, value in request.headers if name.lower() == "content-encoding"]
    words = [word.strip().lower() for line in lines for word in line.split(",")]
    return ",".join(word for word in words if word and word != "identity")


def _decoded(coding: str, body: bytes, limit: int) -> Optional[bytes]:
    if coding == "":
        return body
    if coding not in ("gzip", "x-gzip", "deflate"):
        return None
    decoded = b""
    try:
        while body:
            decoder = zlib.decompressobj(15 if coding == "deflate" else 31)
            decoded += decoder.decompress(body, limit + 1 - len(decoded))
            if len(decoded) > limit or not decoder.eof:
                return None
            body = decoder.unused_data
            if coding == "deflate" and body:
                return None
    except zlib.error:
        return None
    return decoded


def _pairs(text: bytes, ordered: bool) -> bytes:
    """Returns parameters in a normal form. The values of one name keep their order."""
    pairs: List[Tuple[bytes, Optional[bytes]]] = []
    for pair in filter(None, text.split(b"&")):
        name, equals, value = pair.partition(b"=")
        pairs.append((_spelled(name), _spelled(value) if equals else None))
    if ordered:
        pairs.sort(key=lambda pair: pair[0])
    written = []
    for name, given in pairs:
        value = given or b""
        written += [len(name).to_bytes(8, "big"), name, bytes([given is not None])]
        written += [len(value).to_bytes(8, "big"), value]
    return b"".join(written)


def _spelled(text: bytes) -> bytes:
    """Normalises percent-encoding (RFC 3986, 6.2.2)."""

    def spell(escape: "re.Match[bytes]") -> bytes:
        byte = bytes([int(escape.group(1), 16)])
        return byte if _UNRESERVED.match(byte) else escape.group().upper()

    return _ESCAPE.sub(spell, text)
