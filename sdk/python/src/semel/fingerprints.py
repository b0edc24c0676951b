"""Fingerprints: what makes two requests the same, as one byte for the scheme and a SHA-256 (docs/spec,
"Fingerprints")."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, is_dataclass
from typing import Any, Iterable, List, Sequence

from . import canonical
from .errors import InvalidFingerprint

_JSON, _RAW, _OPAQUE, _GIVEN, _PARTS = 1, 2, 3, 4, 5
_INDEX = re.compile(r"(?:0|[1-9][0-9]*)\Z")
_ABSENT = object()


def _hash(scheme: int, data: bytes) -> bytes:
    return bytes([scheme]) + hashlib.sha256(data).digest()


def of_body(body: bytes) -> bytes:
    """Returns the fingerprint of a body: of its canonical form if it has one, else of its bytes."""
    form = canonical.canonical(body)
    return _hash(_RAW, body) if form is None else _hash(_JSON, form)


def of(fields: Any) -> bytes:
    """Returns the fingerprint of chosen fields: any JSON, a dataclass or a pydantic model.

    Decimals, dates and others that JSON does not have are refused: convert them, and the conversion
    is part of what makes two requests the same.
    """
    body = to_json(fields)
    form = canonical.canonical(body)
    if form is not None:
        return _hash(_JSON, form)
    # Without a canonical form the order of members would make a difference.
    return _hash(_RAW, to_json(fields, sort_keys=True))


def to_json(value: Any, *, sort_keys: bool = False) -> bytes:
    """Encodes JSON, a dataclass or a pydantic model. Raises InvalidFingerprint for anything else."""
    try:
        text = json.dumps(
            value,
            default=_plain,
            ensure_ascii=False,
            allow_nan=False,
            separators=(",", ":"),
            sort_keys=sort_keys,
        )
        return text.encode()
    except (TypeError, ValueError) as error:
        raise InvalidFingerprint(f"the fields cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is not JSON; convert it to text or a number")


def of_selected(body: bytes, include: Iterable[str] = (), exclude: Iterable[str] = ()) -> bytes:
    """Returns the fingerprint of a part of a JSON body, by JSON pointers (RFC 6901).

    `include` selects values (none: the whole body), `exclude` leaves values out. A body without a
    canonical form is compared whole, by its bytes.
    """
    included, excluded = sorted(set(include)), list(exclude)
    paths = {pointer: _steps(pointer) for pointer in [*included, *excluded]}
    if not paths:
        return of_body(body)
    parsed = canonical.read(body)
    if parsed is None:
        return _hash(_RAW, body)
    whole = parsed[0]
    for pointer in excluded:
        whole = _without(whole, paths[pointer])
    if included:
        found = {pointer: _find(whole, paths[pointer]) for pointer in included}
        whole = {pointer: value for pointer, value in found.items() if value is not _ABSENT}
    return _hash(_JSON, canonical.write(whole))


def of_parts(parts: Sequence[bytes]) -> bytes:
    """Returns the fingerprint of several parts. The same bytes split differently have another one."""
    joined = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return _hash(_PARTS, joined)


def of_bytes(data: bytes) -> bytes:
    """Returns the fingerprint of raw bytes."""
    return _hash(_RAW, data)


def opaque(text: str) -> bytes:
    """Returns the fingerprint of a short text that stands for the request, such as a version."""
    return _hash(_OPAQUE, text.encode())


def from_hex(text: str) -> bytes:
    """Returns the fingerprint of a SHA-256 that the caller computed: 64 hex digits of either case."""
    if not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise InvalidFingerprint("a request hash must be 64 hex digits (SHA-256)")
    return bytes([_GIVEN]) + bytes.fromhex(text)


def _steps(pointer: str) -> List[str]:
    if pointer and not pointer.startswith("/") or re.search("~(?![01])", pointer):
        raise InvalidFingerprint(
            f"`{pointer}` is not a JSON pointer: it starts with `/`, and `~` is written `~0`, `/` `~1`"
        )
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _child(value: Any, step: str) -> Any:
    if isinstance(value, dict):
        return value.get(step, _ABSENT)
    if isinstance(value, list) and _INDEX.match(step) and int(step) < len(value):
        return value[int(step)]
    return _ABSENT


def _find(value: Any, steps: List[str]) -> Any:
    for step in steps:
        value = _child(value, step)
    return value


def _without(whole: Any, steps: List[str]) -> Any:
    if not steps:
        return None
    parent = _find(whole, steps[:-1])
    if _child(parent, steps[-1]) is _ABSENT:
        return whole
    if isinstance(parent, dict):
        del parent[steps[-1]]
    else:
        # Removing an item would renumber the others.
        parent[int(steps[-1])] = None
    return whole
