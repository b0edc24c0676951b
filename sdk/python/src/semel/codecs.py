"""Codecs: how the result of an operation is stored, so that a replay gives the same value."""

from __future__ import annotations

import json
from dataclasses import is_dataclass
from typing import Any, Generic, Protocol, Tuple, Type, TypeVar

from .errors import InvalidFingerprint, InvalidResult, ResultUnavailable
from .fingerprints import to_json

T = TypeVar("T")


class Codec(Protocol[T]):
    """Encodes results as a content type and bytes, and decodes them."""

    def encode(self, value: T) -> Tuple[str, bytes]:
        """Encodes a result. Whatever this raises rolls the transaction back."""
        ...

    def decode(self, content_type: str, body: bytes) -> T:
        """Decodes a stored result. Raises ResultUnavailable if another codec stored it."""
        ...


class Json:
    """Results that JSON has: None, booleans, numbers, text, lists and dicts with text as keys."""

    content_type = "application/json"

    def encode(self, value: Any) -> Tuple[str, bytes]:
        """Encodes a result as JSON. Raises InvalidResult if it is not JSON."""
        try:
            return self.content_type, to_json(value)
        except InvalidFingerprint as error:
            raise InvalidResult(
                f"the result cannot be stored: {error.__cause__}; return what JSON has, or give a codec"
            ) from error

    def decode(self, content_type: str, body: bytes) -> Any:
        """Parses a stored result."""
        if content_type != self.content_type:
            raise ResultUnavailable(reason=f"stored as {content_type}, read as {self.content_type}")
        try:
            return json.loads(body)
        except ValueError as error:
            raise ResultUnavailable(reason=str(error)) from error


class Model(Generic[T]):
    """Results of one class: a dataclass of JSON fields, or a pydantic model."""

    def __init__(self, returns: Type[T]) -> None:
        if not (is_dataclass(returns) or hasattr(returns, "model_validate")):
            raise TypeError(f"{returns.__name__} is neither a dataclass nor a pydantic model")
        self._returns: Any = returns

    def encode(self, value: T) -> Tuple[str, bytes]:
        """Encodes a result as JSON."""
        return JSON.encode(value)

    def decode(self, content_type: str, body: bytes) -> T:
        """Creates the result from stored JSON."""
        members = JSON.decode(content_type, body)
        try:
            if hasattr(self._returns, "model_validate"):
                validated: T = self._returns.model_validate(members)
                return validated
            created: T = self._returns(**members)
            return created
        except (TypeError, ValueError) as error:
            raise ResultUnavailable(reason=str(error)) from error


class Bytes:
    """Results that are bytes, with their content type."""

    def __init__(self, content_type: str = "application/octet-stream") -> None:
        self.content_type = content_type

    def encode(self, value: bytes) -> Tuple[str, bytes]:
        """Returns the bytes."""
        return self.content_type, value

    def decode(self, content_type: str, body: bytes) -> bytes:
        """Returns the bytes."""
        if content_type != self.content_type:
            raise ResultUnavailable(reason=f"stored as {content_type}, read as {self.content_type}")
        return body


JSON = Json()
