"""The reasons why an operation did not run or has no result here. Each text says what to do."""

from __future__ import annotations

from typing import Optional


class SemelError(Exception):
    """The base of all errors of this package."""


class InvalidKey(SemelError, ValueError):
    """A part of a key is blank, too long or has a control character. Nothing was sent."""

    def __init__(
        self, message: str, *, part: str = "", reason: str = "", at: Optional[int] = None
    ) -> None:
        super().__init__(message)
        self.part = part
        self.reason = reason
        self.at = at


class InvalidFingerprint(SemelError, ValueError):
    """The fields that make two requests the same cannot be compared. Nothing was sent."""


class InvalidPublicId(SemelError, ValueError):
    """The text is not a public id of the expected type. `reason` is `format` or `prefix`."""

    def __init__(self, message: str, *, reason: str = "format") -> None:
        super().__init__(message)
        self.reason = reason


class InvalidResult(SemelError, ValueError):
    """The result of the work cannot be stored. Everything was rolled back."""


class InvalidEvent(SemelError, ValueError):
    """A part of an event is missing, too long or cannot be written. Nothing was sent."""


class InvalidSignature(SemelError, ValueError):
    """A webhook was not signed with this secret, or too long ago. Answer 400 and do nothing."""


class Misused(SemelError, RuntimeError):
    """The call cannot work as it was made: the connection commits by itself, or has no transaction."""


class NotMigrated(SemelError, RuntimeError):
    """The database lacks Semel's tables or functions."""

    def __init__(self) -> None:
        super().__init__(
            "the database lacks Semel's functions, or this role may not call them; run `semel "
            "migrate apply` as the owner, and grant this role their use (docs/reference/sql-functions.md)"
        )


class Unavailable(SemelError, ConnectionError):
    """The ledger cannot be reached. The work did not run; its cause is the library's error."""

    def __init__(self) -> None:
        super().__init__("the ledger cannot be reached, and nothing ran; retry with the same key")


class Refused(SemelError):
    """The work did not run, because of what the ledger knows about its key."""

    #: The slug of the problem: its page is docs/errors/SLUG.md.
    slug = "failed"
    #: Whether the same call with the same key may succeed later, by itself.
    retryable = False
    _text = "the operation was refused"

    def __init__(
        self,
        *,
        operation_id: Optional[str] = None,
        retry_after: Optional[float] = None,
        reason: Optional[str] = None,
    ) -> None:
        super().__init__(self._text)
        #: The id by which operators find the record.
        self.operation_id = operation_id
        #: After how many seconds to try again, where that is known.
        self.retry_after = retry_after
        #: The error that the ledger has for operators. Not for callers: it may have their data.
        self.reason = reason


class KeyReused(Refused):
    """The key was used for another request."""

    slug = "key-reused"
    _text = "this key was used for a different request; use a new key for a new request"


class InProgress(Refused):
    """Another caller holds the key right now."""

    slug = "in-progress"
    retryable = True
    _text = "a call with this key is still running; retry with the same key for its result"


class BackingOff(Refused):
    """The last attempt failed, and the next one is not due yet."""

    slug = "backing-off"
    retryable = True
    _text = "the last attempt failed; retry with the same key when it is due (`retry_after`)"


class Failed(Refused):
    """The operation failed, and its failure is kept."""

    slug = "failed"
    _text = "the operation failed, and its failure is kept; look it up with `semel records show`"


class Dead(Refused):
    """The operation was given up, or discarded by an operator."""

    slug = "dead"
    _text = "all attempts failed; an operator must look at it with `semel records show`"


class Uncertain(Refused):
    """An attempt broke off, and whether it took effect is unknown."""

    slug = "uncertain"
    _text = (
        "an attempt broke off; an operator must find out whether it took effect (`semel resolve`)"
    )


class ClaimLost(Refused):
    """Another attempt took over while this one ran. This transaction was rolled back."""

    slug = "claim-lost"
    retryable = True
    _text = "another attempt took over; nothing of this one was committed, retry with the same key"


class ResultUnavailable(Refused):
    """The operation is done, but its result was not stored or cannot be read."""

    slug = "result-unavailable"
    _text = "the operation is done, but its result cannot be replayed; do not run it again"


class EventConflict(Refused):
    """This group has handled another event of the same id: another type or source."""

    slug = "key-reused"
    _text = "this event id was used before for an event of another type; give each event its own id"
