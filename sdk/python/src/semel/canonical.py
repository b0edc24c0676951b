"""The canonical form of JSON (RFC 8785), for bodies that it does not change (docs/spec).

A body that is not I-JSON, or whose numbers a double would change, has no canonical form: it is
compared by its bytes, since two different amounts must never look the same.
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Optional, Tuple

# Up to here every integer is exactly a double.
MAX_SAFE = 1 << 53
# The deepest nesting of lists and objects that is read.
MAX_DEPTH = 127
# The name by which one parser represents numbers internally; no document may have it.
_RESERVED = "$serde_json::private::Number"

_NESTING = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


class NotCanonical(ValueError):
    """The document has no canonical form."""


def canonical(body: bytes) -> Optional[bytes]:
    """Returns the canonical form of a body; None if it has none."""
    document = read(body)
    return None if document is None else document[1]


def read(body: bytes) -> Optional[Tuple[Any, bytes]]:
    """Returns a document and its canonical form; None if it has none."""
    try:
        text = body.decode()
        _check_depth(text)
        # What is not JSON (NaN, Infinity) is refused by `_constant`.
        document = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_double,
            parse_constant=_constant,
        )
        return document, write(document)
    except (ValueError, RecursionError):
        return None


def write(document: Any) -> bytes:
    """Writes a document in its canonical form. Raises NotCanonical if it has none."""
    written: List[str] = []
    _write(document, written)
    try:
        return "".join(written).encode()
    except UnicodeEncodeError:
        raise NotCanonical("a lone surrogate") from None


def _check_depth(text: str) -> None:
    depth = 0
    for token in _NESTING.finditer(text):
        bracket = token.group()
        if bracket in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise NotCanonical("nested too deep")
        elif bracket in "]}":
            depth -= 1


def _constant(name: str) -> Any:
    raise NotCanonical(f"{name} is not JSON")


def _object(members: List[Tuple[str, Any]]) -> Dict[str, Any]:
    read_members = dict(members)
    if len(read_members) != len(members):
        raise NotCanonical("two members of one name")
    if _RESERVED in read_members:
        raise NotCanonical("a reserved name")
    return read_members


def _integer(token: str) -> int:
    # The length first: reading an integer of many digits takes long.
    if len(token) > 17 or not token.isascii() or abs(int(token)) > MAX_SAFE:
        raise NotCanonical("an integer beyond 2^53")
    return int(token)


def _double(token: str) -> float:
    number = float(token)
    if not abs(number) <= MAX_SAFE:
        raise NotCanonical("a number beyond 2^53")
    if _decimal(token) != _decimal(_number(number)):
        raise NotCanonical("a number that a double changes")
    return number


def _decimal(token: str) -> Tuple[bool, str, int]:
    """Returns a decimal number as sign, significant digits and exponent."""
    mantissa, _, exponent = token.lower().partition("e")
    negative = mantissa.startswith("-")
    whole, _, fraction = mantissa.lstrip("-+").partition(".")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return False, "", 0
    if len(exponent) > 10:
        raise NotCanonical("an absurd exponent")
    power = int(exponent or "0") - len(fraction) + len(digits) - len(significant)
    return negative, significant, power


def _number(number: float) -> str:
    """Writes a double as ECMAScript does."""
    if number == 0:
        return "0"
    sign = "-" if number < 0 else ""
    _, digits, power = _decimal(repr(abs(number)))
    point = len(digits) + power
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return f"{sign}{digits[:point]}.{digits[point:]}"
    if -6 < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"


def _text(text: str) -> str:
    def escape(found: "re.Match[str]") -> str:
        character = found.group()
        return _SHORT.get(character) or f"\\u{ord(character):04x}"

    return f'"{_ESCAPED.sub(escape, text)}"'


def _utf_16(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")


def _write(value: Any, written: List[str]) -> None:
    if value is None:
        written.append("null")
    elif isinstance(value, bool):
        written.append("true" if value else "false")
    elif isinstance(value, int):
        if abs(value) > MAX_SAFE:
            raise NotCanonical("an integer beyond 2^53")
        written.append(str(int(value)))
    elif isinstance(value, float):
        if not abs(value) <= MAX_SAFE:
            raise NotCanonical("a number beyond 2^53")
        written.append(_number(value))
    elif isinstance(value, str):
        written.append(_text(value))
    elif isinstance(value, (list, tuple)):
        _write_list(value, written)
    elif isinstance(value, dict):
        _write_object(value, written)
    else:
        raise NotCanonical(f"{type(value).__name__} is not JSON")


def _write_list(items: Any, written: List[str]) -> None:
    written.append("[")
    for at, item in enumerate(items):
        if at:
            written.append(",")
        _write(item, written)
    written.append("]")


def _write_object(members: Dict[Any, Any], written: List[str]) -> None:
    if not all(isinstance(name, str) for name in members):
        raise NotCanonical("a name that is no text")
    written.append("{")
    for at, name in enumerate(sorted(members, key=_utf_16)):
        if at:
            written.append(",")
        written.append(_text(name))
        written.append(":")
        _write(members[name], written)
    written.append("}")
