"""Finds the key and the fields of an operation among the arguments of a decorated function."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Optional, Sequence, Tuple, TypeVar, Union

from . import fingerprints
from .engine import Request
from .errors import InvalidFingerprint, InvalidKey, Misused

T = TypeVar("T")

#: The name of an argument, an attribute of one (`command.key`), or a function of all arguments.
Selector = Union[str, Callable[..., Any]]


class Selected:
    """How the arguments of one function become a request."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        skipped: int,
        operation: str,
        tenant: Optional[Selector],
        key: Selector,
        fields: Union[None, Sequence[str], Callable[..., Any]],
        principal: Optional[Selector],
        **settings: Any,
    ) -> None:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[skipped:]
        self._signature = signature.replace(parameters=parameters)
        self._names = set(self._signature.parameters)
        self._operation = operation
        self._key, self._fields = key, fields
        self._tenant, self._principal = tenant, principal
        self._settings = settings
        paths = [path for path in (key, tenant, principal) if isinstance(path, str)]
        if fields is not None and not callable(fields):
            paths += list(fields)
        for path in paths:
            if path.partition(".")[0] not in self._names:
                raise TypeError(
                    f"{function.__qualname__} has no argument `{path}`; name one of "
                    f"{sorted(self._names)}, or give a function of its arguments"
                )

    def request(self, default_tenant: Optional[str], args: Any, kwargs: Any) -> Request:
        """Returns the request of one call."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = bound.arguments
        tenant = default_tenant if self._tenant is None else self._take(self._tenant, named)
        if tenant is None:
            raise InvalidKey("the tenant is missing; give `tenant` to the ledger or the operation")
        principal = None if self._principal is None else self._take(self._principal, named)
        return Request(
            tenant=_text("tenant", tenant),
            operation=self._operation,
            key=_text("key", self._take(self._key, named)),
            fingerprint=self._fingerprint(named),
            principal=None if principal is None else _text("principal", principal),
            **self._settings,
        )

    def _fingerprint(self, named: Dict[str, Any]) -> bytes:
        if self._fields is None:
            return b""
        if callable(self._fields):
            return fingerprints.of(self._fields(**named))
        return fingerprints.of({path: _follow(path, named) for path in self._fields})

    def _take(self, selector: Selector, named: Dict[str, Any]) -> Any:
        if callable(selector):
            return selector(**named)
        return _follow(selector, named)


def _follow(path: str, named: Dict[str, Any]) -> Any:
    first, *rest = path.split(".")
    value = named[first]
    for name in rest:
        value = value[name] if isinstance(value, dict) else getattr(value, name)
    return value


def _text(part: str, given: Any) -> str:
    if inspect.iscoroutine(given):
        given.close()
    if not isinstance(given, str):
        words = f"a {part} is text, got {type(given).__name__}; convert it"
        raise InvalidKey(words, part=part, reason="type") if part == "key" else Misused(words)
    return given


def request_of(
    *,
    tenant: Optional[str],
    operation: str,
    key: str,
    fields: Any = None,
    request_hash: Union[None, str, bytes] = None,
    **settings: Any,
) -> Request:
    """Returns the request of a call of `execute`."""
    if tenant is None:
        raise InvalidKey("the tenant is missing; give `tenant` to the ledger or the call")
    if fields is not None and request_hash is not None:
        raise InvalidFingerprint("give `fields` or `request_hash`, not both")
    fingerprint = b"" if fields is None else fingerprints.of(fields)
    if isinstance(request_hash, str):
        fingerprint = fingerprints.from_hex(request_hash)
    elif request_hash is not None:
        fingerprint = request_hash
    known = {name: value for name, value in settings.items() if value is not None}
    return Request(_text("tenant", tenant), operation, _text("key", key), fingerprint, **known)


def method_of(target: Any) -> Tuple[Any, Optional[str]]:
    """Returns the function that a decorator wraps: of a class, its method `handle`."""
    if inspect.isclass(target):
        handle = getattr(target, "handle", None)
        if not callable(handle):
            raise TypeError(f"{target.__qualname__} has no method `handle` to run once")
        return handle, "handle"
    return target, None


def takes_self(function: Any) -> bool:
    """Whether a function is a method: one that is decorated in the body of its class."""
    return next(iter(inspect.signature(function).parameters), None) == "self"


def refuse_suspending(target: Any) -> None:
    """Raises Misused for a function that does not run when it is called."""
    called = target
    if not inspect.isroutine(target):
        target = getattr(target, "func", None) or type(target).__call__
    kinds = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    if any(kind(each) for kind in kinds for each in (called, target)):
        raise _suspends(getattr(called, "__qualname__", repr(called)))


def finished(result: T) -> T:
    """Returns the result of work; raises Misused if the work has not run yet."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise _suspends(f"the work returned a {type(result).__name__} that")
    return result


def _suspends(what: str) -> Misused:
    return Misused(
        f"{what} does not run when it is called; give a plain function, or use an asynchronous ledger"
    )
