"""Runs the vectors of docs/spec, which the Rust workspace computes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Dict

import pytest

import semel
from semel import canonical, events, fingerprints, keys, public_ids, webhooks
from semel.engine import handling_id
from semel.errors import InvalidFingerprint, InvalidKey, InvalidPublicId, InvalidSignature
from semel.http import contract

VECTORS = json.loads(
    (Path(__file__).resolve().parents[3] / "docs/spec/vectors.json").read_text("utf-8")
)


def case(*path: str) -> Any:
    found: Any = VECTORS
    for name in path:
        found = found[name]
    assert found, path
    return pytest.mark.parametrize("vector", found, ids=lambda vector: str(vector)[:60])


def raw(vector: Dict[str, Any], name: str) -> bytes:
    return bytes.fromhex(vector[name])


@case("principals")
def test_a_principal_is_a_digest_of_the_identity(vector: Any) -> None:
    assert keys.principal(raw(vector, "identity_hex")) == raw(vector, "principal_hex")


@case("keys")
def test_a_key_has_the_digest_of_all_its_parts(vector: Any) -> None:
    key = keys.Key(
        tenant=vector["tenant"],
        scope=vector["scope"],
        id=vector["id"],
        principal=raw(vector, "principal_hex"),
        kind=keys.Kind(vector["kind"]),
    )
    assert key.digest() == raw(vector, "digest_hex")


@case("refused_keys")
def test_a_part_that_is_not_valid_is_refused_with_its_reason(vector: Any) -> None:
    with pytest.raises(InvalidKey) as refused:
        keys.Key(vector["tenant"], vector["scope"], vector["id"])
    error = refused.value
    expected = (vector["part"], vector["reason"], vector.get("at"))
    assert (error.part, error.reason, error.at) == expected


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidKey) as refused:
        keys.Key("t", "s", "a\ud800")
    assert refused.value.reason == "surrogate"


@case("event_ids")
def test_an_event_id_is_derived_from_its_operation(vector: Any) -> None:
    assert events.derived_id(vector["operation_id"], vector["name"]) == vector["event_id"]


@case("foreign_event_ids")
def test_an_event_of_another_system_has_an_id_of_its_source_and_id(vector: Any) -> None:
    attributes = {"specversion": "1.0", "type": "t", "tenantid": "acme"}
    attributes.update(source=vector["source"], id=vector["id"])
    assert events.from_cloud(attributes, b"").id == vector["event_id"]


@case("fingerprints", "bodies")
def test_a_body_has_the_fingerprint_of_its_canonical_form(vector: Any) -> None:
    body = raw(vector, "body_hex")
    form = canonical.canonical(body)
    assert (form is None) == (vector["scheme"] == "raw")
    if form is not None and "canonical" in vector:
        assert form.decode() == vector["canonical"]
    assert fingerprints.of_body(body) == raw(vector, "fingerprint_hex")


@case("fingerprints", "selected")
def test_pointers_select_a_part_of_a_body(vector: Any) -> None:
    print_ = fingerprints.of_selected(vector["body"].encode(), vector["include"], vector["exclude"])
    assert print_ == raw(vector, "fingerprint_hex")


@case("fingerprints", "refused_pointers")
def test_a_text_that_is_no_pointer_is_refused(vector: str) -> None:
    with pytest.raises(InvalidFingerprint):
        fingerprints.of_selected(b"{}", [vector])


@case("fingerprints", "texts")
def test_a_text_stands_for_a_request(vector: Any) -> None:
    assert fingerprints.opaque(vector["text"]) == raw(vector, "fingerprint_hex")


@case("fingerprints", "parts")
def test_parts_are_hashed_with_their_lengths(vector: Any) -> None:
    parts = [bytes.fromhex(part) for part in vector["parts_hex"]]
    assert fingerprints.of_parts(parts) == raw(vector, "fingerprint_hex")


@case("fingerprints", "given")
def test_a_given_hash_is_taken_in_either_case(vector: Any) -> None:
    assert fingerprints.from_hex(vector["text"]) == raw(vector, "fingerprint_hex")


@case("fingerprints", "refused_given")
def test_a_text_that_is_no_hash_is_refused(vector: str) -> None:
    with pytest.raises(InvalidFingerprint):
        fingerprints.from_hex(vector)


def codec_of(vector: Any) -> public_ids.Codec:
    settings = vector["codec"]
    payload = "base62" if settings["payload"] == "hidden" else settings["payload"]
    hiding = [bytes.fromhex(key) for key in settings["keys_hex"]]
    return public_ids.Codec(payload=payload, checksum=settings["checksum"], keys=hiding)


@case("public_ids", "written")
def test_a_codec_writes_and_reads_an_id(vector: Any) -> None:
    codec, internal_id = codec_of(vector), raw(vector, "id_hex")
    assert codec.encode(vector["prefix"], internal_id) == vector["text"]
    assert codec.decode(vector["prefix"], vector["text"]) == internal_id
    # After a rotation of the keys it is still one of the candidates.
    if codec.keys:
        rotated = public_ids.Codec(checksum=codec.checksum, keys=[bytes(16), *codec.keys])
        assert internal_id in rotated.candidates(vector["prefix"], vector["text"])


@case("public_ids", "refused")
def test_a_codec_refuses_what_it_does_not_write(vector: Any) -> None:
    with pytest.raises(InvalidPublicId) as refused:
        codec_of(vector).decode(vector["prefix"], vector["text"])
    assert refused.value.reason == vector["reason"]


@case("public_ids", "prefixes", "accepted")
def test_a_prefix_is_accepted(vector: str) -> None:
    assert public_ids.Resource("ORDER", vector).encode(bytes(16)).startswith(f"{vector}_000")


@case("public_ids", "prefixes", "refused")
def test_a_prefix_is_refused(vector: str) -> None:
    with pytest.raises(ValueError):
        public_ids.Resource("ORDER", vector)
    with pytest.raises(InvalidPublicId):
        public_ids.Codec().encode(vector, bytes(16))


@case("webhooks", "signed")
def test_a_webhook_is_signed_and_verified(vector: Any) -> None:
    body, timestamp = raw(vector, "body_hex"), vector["timestamp"]
    signature = webhooks.sign(vector["secret"], vector["id"], timestamp, body)
    assert signature == vector["signature"]
    headers = {
        "Webhook-Id": vector["id"],
        "Webhook-Timestamp": str(timestamp),
        "Webhook-Signature": f"v1,AAAA {signature}",
    }

    def verify(body: bytes, now: float) -> str:
        return webhooks.verify(vector["secret"], headers, body, now=now)

    assert verify(body, timestamp + 300) == vector["id"]
    wrong = [(body + b" ", timestamp), (body, timestamp + 301), (body, timestamp - 301)]
    for changed, now in wrong:
        with pytest.raises(InvalidSignature):
            verify(changed, now)


@case("webhooks", "refused_secrets")
def test_a_text_that_is_no_secret_is_refused(vector: str) -> None:
    with pytest.raises(ValueError):
        webhooks.sign(vector, "msg_1", 0, b"")


@case("key_headers")
def test_a_key_header_has_one_key(vector: Any) -> None:
    # Servers give headers to Python as Latin-1.
    field = raw(vector, "field_hex").decode("latin-1")
    if "key" in vector:
        assert contract.parse_key(field) == vector["key"]
    else:
        with pytest.raises(contract.InvalidKeyHeader) as refused:
            contract.parse_key(field)
        assert refused.value.reason == vector["refused"]


@case("stored_responses")
def test_a_stored_response_has_one_form(vector: Any) -> None:
    lines = [(name, value) for name, value in vector["headers"]]
    response = contract.Response(vector["status"], lines, raw(vector, "body_hex"))
    stored = raw(vector, "stored_hex")
    assert response.encode() == stored
    assert contract.Response.decode(stored) == response
    for cut in range(len(stored) - len(response.body)):
        with pytest.raises(contract.Damaged):
            contract.Response.decode(stored[:cut])


def test_what_a_handler_derives_from_is_written_down() -> None:
    event = semel.Event("acme", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "paid", "/orders", b"")
    parts = (b"acme", b"SHIPPING", b"01ARZ3NDEKTSV4RRFFQ69G5FAV")
    hashed = b"semel/handling/1\0" + b"".join(len(p).to_bytes(8, "big") + p for p in parts)
    expected = semel.ulids.parse(event.id)[:6] + hashlib.sha256(hashed).digest()[:10]
    assert handling_id("SHIPPING", event) == semel.ulids.write(expected)
