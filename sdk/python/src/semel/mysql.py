"""What PyMySQL and aiomysql share: the errors of MySQL and MariaDB as SQLSTATEs.

PyMySQL before 1.2 drops the SQLSTATE that the server sends, and keeps its error number and text.
"""

from __future__ import annotations

from typing import Any, Optional

# Error numbers: no such procedure, table or database; no right to execute or read.
_STATES = {
    1305: "42883",
    1146: "42P01",
    1049: "3F000",
    1370: "42501",
    1142: "42501",
    1044: "42501",
    # A deadlock, a lock that was not free in time, a snapshot that is too old.
    1213: "40001",
    1205: "40001",
    1020: "40001",
    # The connection.
    1053: "57P01",
    1927: "57P01",
    2002: "08000",
    2003: "08000",
    2006: "08000",
    2013: "08000",
    2014: "08000",
    0: "08000",
}
_SIGNAL = 1644
# By the beginning of the text of a signal.
_TEXTS = {
    "semel: the claim is lost": "40001",
    "semel: a claim was made outside a transaction": "25000",
}


def sqlstate(error: BaseException) -> Optional[str]:
    """Returns the SQLSTATE of an error of PyMySQL or aiomysql."""
    number, text = _parts(error)
    if number == _SIGNAL:
        sent: Optional[str] = getattr(error, "sqlstate", None)
        if sent is not None:
            return sent
        for start, state in _TEXTS.items():
            if text.startswith(start):
                return state
        return "45000"
    if number is None:
        return None
    return _STATES.get(number, "HY000")


def _parts(error: BaseException) -> "tuple[Optional[int], str]":
    arguments: Any = error.args
    if len(arguments) >= 2 and isinstance(arguments[0], int):
        return arguments[0], str(arguments[1])
    return None, ""
