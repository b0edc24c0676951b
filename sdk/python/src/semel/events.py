"""Events: facts that other services handle, as CloudEvents."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional

from . import ulids
from .errors import InvalidEvent
from .fingerprints import to_json


@dataclass(frozen=True)
class Event:
    """An event that a broker delivered. `id` is the same in every delivery."""

    tenant: str
    id: str
    type: str
    source: str
    payload: bytes = field(repr=False)
    content_type: str = "application/json"
    aggregate_type: Optional[str] = None
    aggregate_id: Optional[str] = None
    attributes: Mapping[str, str] = field(default_factory=dict, repr=False)

    def json(self) -> Any:
        """Parses the payload as JSON."""
        return json.loads(self.payload)


def derived_id(operation_id: str, name: str) -> str:
    """Returns the id of the event `name` of an operation: the same in every attempt, so that consumers
    recognise a repeat."""
    operation = ulids.parse(operation_id)
    digest = hashlib.sha256(b"semel/event/1\0" + operation + name.encode()).digest()
    return ulids.write(operation[:6] + digest[:10])


def encode_payload(payload: Any, content_type: str) -> str:
    """Returns JSON as text; for another content type the text that the payload is."""
    try:
        if content_type == "application/json" and not isinstance(payload, (bytes, bytearray)):
            return to_json(payload).decode()
        return payload if isinstance(payload, str) else bytes(payload).decode()
    except (ValueError, TypeError) as error:
        raise InvalidEvent(f"the payload cannot be written as {content_type}: {error}") from error


def from_cloud(
    attributes: Mapping[str, str], payload: bytes, *, tenant: Optional[str] = None
) -> Event:
    """Returns the event of a message in binary mode: CloudEvents attributes without the transport's
    prefix (`ce-`, `cloudEvents:`), and the payload."""
    known = {name.lower(): value for name, value in attributes.items()}
    if known.get("specversion") != "1.0":
        raise InvalidEvent("the message is not a CloudEvent 1.0")
    owner = known.get("tenantid") or tenant
    missing = [name for name in ("id", "source", "type") if not known.get(name)]
    if missing or not owner:
        raise InvalidEvent(f"the message has no attribute {(missing or ['tenantid'])[0]}")
    return Event(
        tenant=owner,
        id=identity(known["source"], known["id"]),
        type=known["type"],
        source=known["source"],
        payload=payload,
        content_type=known.get("datacontenttype", "application/octet-stream"),
        aggregate_type=known.get("aggregatetype"),
        aggregate_id=known.get("partitionkey"),
        attributes=known,
    )


def from_structured(document: bytes, *, tenant: Optional[str] = None) -> Event:
    """Returns the event of a message in structured mode (`application/cloudevents+json`)."""
    try:
        members = json.loads(document)
        encoded = members.pop("data_base64", None)
        data = members.pop("data", None)
        payload = base64.b64decode(encoded, validate=True) if encoded is not None else to_json(data)
    except (ValueError, AttributeError, TypeError, binascii.Error) as error:
        raise InvalidEvent(f"the message is not a CloudEvent in JSON: {error}") from error
    members.setdefault("datacontenttype", "application/json")
    return from_cloud({name: str(value) for name, value in members.items()}, payload, tenant=tenant)


def identity(source: str, id: str) -> str:
    """Returns a ULID as it is, and any other id as a digest of it and its source."""
    try:
        return ulids.write(ulids.parse(id))
    except ValueError:
        pass
    hashed = b"semel/foreign-event/1\0" + len(source.encode()).to_bytes(8, "big")
    return ulids.write(hashlib.sha256(hashed + source.encode() + id.encode()).digest()[:16])
