"""Semel: commands, events and ids take effect once, in the transaction of your own data.

The ledger is in your database, as functions that `semel migrate apply` installs. Make a ledger with the
module of your library: `semel.psycopg`, `semel.asyncpg`, `semel.sqlalchemy` or `semel.django`.
"""

from . import fingerprints, webhooks
from .aio import AsyncLedger, AsyncUnit
from .codecs import JSON, Bytes, Codec, Json, Model
from .engine import Execution, Handled
from .errors import (
    BackingOff,
    ClaimLost,
    Dead,
    EventConflict,
    Failed,
    InProgress,
    InvalidEvent,
    InvalidFingerprint,
    InvalidKey,
    InvalidPublicId,
    InvalidResult,
    InvalidSignature,
    KeyReused,
    Misused,
    NotMigrated,
    Refused,
    ResultUnavailable,
    SemelError,
    Unavailable,
    Uncertain,
)
from .events import Event
from .keys import Key, Kind
from .public_ids import Codec as IdCodec
from .public_ids import Resource, new_id
from .sync import Ledger, Unit

__version__ = "0.1.0"

__all__ = [
    "JSON",
    "AsyncLedger",
    "AsyncUnit",
    "BackingOff",
    "Bytes",
    "ClaimLost",
    "Codec",
    "Dead",
    "Event",
    "EventConflict",
    "Execution",
    "Failed",
    "Handled",
    "IdCodec",
    "InProgress",
    "InvalidEvent",
    "InvalidFingerprint",
    "InvalidKey",
    "InvalidPublicId",
    "InvalidResult",
    "InvalidSignature",
    "Json",
    "Key",
    "KeyReused",
    "Kind",
    "Ledger",
    "Misused",
    "Model",
    "NotMigrated",
    "Refused",
    "Resource",
    "ResultUnavailable",
    "SemelError",
    "Unavailable",
    "Uncertain",
    "Unit",
    "fingerprints",
    "new_id",
    "webhooks",
]
