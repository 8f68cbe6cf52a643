"""Identify the code that a worker has registered."""

import inspect
from collections.abc import Callable, Iterator
from hashlib import blake2b
from types import CodeType
from typing import Any

from resurgam.runtime.registry import Registry


def build_of(registry: Registry) -> str:
    """Return a digest of the registered functions: the same in every process that runs the same code."""
    digest = blake2b(digest_size=6)
    functions = [(item.name, item.function) for item in (*registry.workflows, *registry.activities)]
    for name, function in sorted(functions, key=lambda item: item[0]):
        digest.update(name.encode())
        for part in _parts(_code_of(function)):
            digest.update(part)
    return digest.hexdigest()


def _code_of(function: Callable[..., Any]) -> CodeType | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _parts(code: CodeType | None) -> Iterator[bytes]:
    """Yield the parameters, instructions, names and constants of a function and of those defined in it, without lines."""
    if code is None:
        return
    yield repr((code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_varnames)).encode()
    yield code.co_code
    yield " ".join(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts(constant)
        elif not isinstance(constant, frozenset):  # whose order differs between processes
            yield repr(constant).encode()
