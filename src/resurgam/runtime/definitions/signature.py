"""Encode and decode the arguments and the result of a workflow, activity or operation, by its annotations."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Never, NoReturn, get_type_hints

import msgspec
from msgspec import Raw

from resurgam.core.codec import Codec, TypeForm, codec_for
from resurgam.core.errors import DefinitionError, SerializationError

# The path of an argument in our errors and in msgspec's: `[1]`, `.args[1]`, `['args'][1]`, `.kwargs.x`, `['kwargs']['x']`.
_ARGUMENT = re.compile(
    r"(?:(?:\.args|\['args'\])?\[(?P<index>\d+)\]|(?:\.kwargs|\['kwargs'\])(?:\.|\[')(?P<name>\w+)(?:'\])?)(?P<rest>.*)",
    re.DOTALL,
)

_CODECS: Final = 64
"""Codecs cached per function; one with ``*args`` or ``**kwargs`` may be called in any number of ways."""

Arguments = tuple[Sequence[object], Mapping[str, object]]


class Signature:
    """Encodes and decodes the arguments and the result of one function.

    Arguments are recorded as a JSON array; with keyword-only arguments, as ``{"args": [...], "kwargs": {...}}``.
    """

    # Slots for what every call reads, and the dict for what is computed on first use.
    __slots__ = (
        *("__dict__", "_arguments", "_function", "_parameters", "_plain", "_positional", "_shape", "_skip", "label"),
    )

    def __init__(self, function: Callable[..., object], label: str, *, skip: int = 0) -> None:
        self.label = label
        self._function = function
        self._skip = skip
        self._shape = inspect.signature(function)
        self._parameters = list(self._shape.parameters.values())[skip:]
        kinds = {parameter.kind for parameter in self._parameters}
        only_plain = kinds <= {inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD}
        self._plain = len(self._parameters) if only_plain else None
        # The codec of a call with one positional argument for each parameter, once there was one.
        self._positional: Codec[object] | None = None
        self._arguments: dict[tuple[int, tuple[str, ...]], Codec[object]] = {}

    @functools.cached_property
    def hints(self) -> Mapping[str, TypeForm]:
        """The annotations, resolved."""
        try:
            return get_type_hints(self._function, include_extras=True)
        except NameError as error:
            raise DefinitionError(
                f"{self.label}: annotation {error.name!r} cannot be resolved; "
                "define the type at module level, before the function is first used"
            ) from error

    @functools.cached_property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters."""
        return frozenset(parameter.name for parameter in self._parameters)

    @property
    def first(self) -> TypeForm:
        """The annotation of the first positional parameter; Any if there is none."""
        only_named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        return next((self._hint(p.name) for p in self._parameters if p.kind not in only_named), Any)

    def check(self) -> None:
        """Build every codec, so that a bad annotation is an error where the function is defined."""
        for parameter in self._parameters:
            self._codec(self._hint(parameter.name), f"parameter {parameter.name!r}")
        _ = self.result

    @functools.cached_property
    def result(self) -> Codec[object]:
        """The codec of the function's result."""
        return self._codec(_returned(self._hint("return")), "the result")

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object] | None = None) -> Raw:
        """Encode the arguments of a call as JSON, checked against the signature."""
        value: object = args
        if not kwargs and len(args) == self._plain:
            codec = self._positional or self._codec_of_plain_call()
        else:
            positional, named = self._bind(args, kwargs)
            codec = self._codec_of_call(len(positional), tuple(named))
            value = {"args": positional, "kwargs": named} if named else positional
        try:
            return codec.check(value, "")
        except SerializationError as error:
            raise SerializationError(self._name(error.path), error.reason) from error.__cause__

    def _bind(self, args: Sequence[object], kwargs: Mapping[str, object] | None) -> Arguments:
        try:
            bound = self._shape.bind(*(None,) * self._skip, *args, **(kwargs or {}))
        except TypeError as error:
            raise DefinitionError(f"{self.label}: {error}; its signature is {self._show()}") from error
        return bound.args[self._skip :], bound.kwargs

    def in_order(self, args: Sequence[object], named: Mapping[str, object]) -> Sequence[object]:
        """Return arguments given by name as positional ones, with defaults for those left out."""
        bound = self._shape.bind(*(None,) * self._skip, *args, **named)
        bound.apply_defaults()
        return bound.args[self._skip :]

    def check_positional(self, count: int) -> None:
        """Raise `DefinitionError` unless the function can be called with *count* positional arguments."""
        try:
            self._shape.bind(*(None,) * (self._skip + count))
        except TypeError as error:
            raise DefinitionError(
                f"{self.label} must accept one value: {error}; its signature is {self._show()}"
            ) from error

    def decode(self, data: Raw) -> Arguments:
        """Decode arguments written by `encode`, perhaps by another version of this function."""
        if self._plain is not None:
            try:
                # Most calls pass one positional argument for each parameter.
                return (self._positional or self._codec_of_plain_call()).decode(data, ""), {}  # type: ignore[return-value]  # a tuple
            except SerializationError:
                pass  # the general path below decodes other forms, or reports the error
        given = msgspec.json.decode(data)
        count = len(given) if isinstance(given, list) else len(given["args"])
        named = tuple(given["kwargs"]) if isinstance(given, dict) else ()
        try:
            self._shape.bind(*(None,) * (self._skip + count), **dict.fromkeys(named))
        except TypeError as error:
            raise DefinitionError(
                f"{self.label} was recorded with arguments that it does not accept: {error}"
            ) from error
        try:
            value: Any = self._codec_of_call(count, named).decode(data, "")
        except SerializationError as error:
            raise SerializationError(self._name(error.path), error.reason) from error.__cause__
        return (value.args, msgspec.structs.asdict(value.kwargs)) if named else (value, {})

    def _hint(self, name: str) -> TypeForm:
        return self.hints.get(name, Any)

    def _codec(self, hint: TypeForm, what: str) -> Codec[object]:
        try:
            return codec_for(hint)
        except SerializationError as error:
            raise SerializationError(f"{self.label}, {what} ({error.path})", error.reason) from error.__cause__

    def _codec_of_plain_call(self) -> Codec[object]:
        assert self._plain is not None
        self._positional = self._codec_of_call(self._plain, ())
        return self._positional

    def _codec_of_call(self, count: int, named: tuple[str, ...]) -> Codec[object]:
        found = self._arguments.get((count, named))
        if found is None:
            hint: Any = tuple[tuple(self._hint(self._at(i).name) for i in range(count))]  # type: ignore[misc]
            if named:
                kwargs = msgspec.defstruct("kwargs", [(name, self._keyword(name)) for name in named])
                hint = msgspec.defstruct("Call", [("args", hint), ("kwargs", kwargs)])
            # Not `codec_for`, which would cache types built anew for each set of names.
            found = self._arguments[count, named] = Codec(hint)
            if len(self._arguments) > _CODECS:
                del self._arguments[next(iter(self._arguments))]
        return found

    def _at(self, index: int) -> inspect.Parameter:
        """Return the parameter for the argument at *index*; the last one may take several."""
        positional = [p for p in self._parameters if p.kind not in (p.KEYWORD_ONLY, p.VAR_KEYWORD)]
        return positional[min(index, len(positional) - 1)]

    def _keyword(self, name: str) -> TypeForm:
        known = {parameter.name for parameter in self._parameters}
        catch_all = [p.name for p in self._parameters if p.kind is p.VAR_KEYWORD]
        return self._hint(name if name in known else catch_all[0])

    def _name(self, path: str) -> str:
        """Turn ``[1].lines[2]`` into ``charge, argument 'order'.lines[2]``; so too ``.kwargs.order.lines[2]``."""
        found = _ARGUMENT.fullmatch(path)
        if found is None:
            return f"{self.label}, arguments{path}"
        index, name, rest = found.group("index", "name", "rest")
        return f"{self.label}, argument {(name or self._at(int(index)).name)!r}{rest}"

    def _show(self) -> str:
        return f"({', '.join(map(str, self._parameters))})"


def _returned(hint: TypeForm) -> TypeForm:
    """Return the type of a result; None for a function annotated never to return."""
    return None if hint in (NoReturn, Never) else hint


def defined_at(function: Any) -> str:
    """Return the file, line and name of a function, for error messages."""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno} ({function.__qualname__})"


def result_codec(function: Callable[..., object]) -> Codec[object]:
    """Return the codec of a callable's annotated result; without an annotation, of plain JSON types."""
    try:
        return codec_for(_returned(get_type_hints(function, include_extras=True).get("return", Any)))
    except (TypeError, NameError):
        return codec_for(Any)
