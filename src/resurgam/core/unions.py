"""Unions of classes, which msgspec cannot decode: values are written with their class, ``{"$type": "Card", ...}``.

`readable` replaces such a union in a hint, and each class with a field that has one, by a stand-in. msgspec treats the
stand-in as a custom type and calls a hook for it. A value without ``$type``, as in a signal from a sender that does not
know the hint, is decoded as the only class that it fits.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from resurgam.core.canonical import TYPE_KEY
from resurgam.core.errors import SerializationError
from resurgam.core.objects import is_pydantic

Hook = Callable[[type, object], object]


class _AnyInstance(type):
    """Metaclass of stand-ins. msgspec checks that a hook's result is an instance of the type it was called for."""

    def __instancecheck__(cls, instance: object) -> bool:
        return True


class StandIn(metaclass=_AnyInstance):
    """Replaces a part of a hint that msgspec cannot decode itself."""

    inner: ClassVar[tuple[Any, ...]]

    @classmethod
    def read(cls, value: object, convert: Callable[[object, Any], object]) -> object:
        """Convert a tree of builtins to the value; *convert* converts a part by its hint."""
        raise NotImplementedError


class Choice(StandIn):
    """A union of classes. *members* are their hints by name, *rest* the hint of other values."""

    members: ClassVar[Mapping[str, Any]]
    rest: ClassVar[Any]

    @classmethod
    def read(cls, value: object, convert: Callable[[object, Any], object]) -> object:
        """Convert a value to the class that it names; without a name, to the only one that it fits."""
        if not isinstance(value, dict):
            if cls.rest is None:
                raise ValueError(f"expected an object of {cls.__name__}, got {type(value).__name__}")
            return convert(value, cls.rest)
        if TYPE_KEY not in value:
            return cls._unnamed(value, convert)
        name = value[TYPE_KEY]
        if name not in cls.members:
            raise ValueError(f"{TYPE_KEY} must be one of {', '.join(map(repr, cls.members))}, got {name!r}")
        return convert({key: item for key, item in value.items() if key != TYPE_KEY}, cls.members[name])

    @classmethod
    def _unnamed(cls, value: object, convert: Callable[[object, Any], object]) -> object:
        found: dict[str, object] = {}
        for name, hint in cls.members.items():
            try:
                found[name] = convert(value, hint)
            except (ValueError, TypeError):
                continue
        if len(found) != 1:
            fits = f"fits {' and '.join(found)}" if found else f"fits none of {', '.join(cls.members)}"
            raise ValueError(f'the object {fits}; name its class: {{"{TYPE_KEY}": "{next(iter(cls.members))}", ...}}')
        return next(iter(found.values()))


class Mirror(StandIn):
    """A class with a field that msgspec cannot decode. *shape* is a struct with the same fields, made readable."""

    kind: ClassVar[Any]
    shape: ClassVar[Any]
    renamed: ClassVar[Mapping[str, str]]

    @classmethod
    def read(cls, value: object, convert: Callable[[object, Any], object]) -> object:
        """Convert the fields, and build the object from them."""
        read: Any = convert(value, cls.shape)
        given = {
            name: getattr(read, safe) for safe, name in cls.renamed.items() if getattr(read, safe) is not msgspec.UNSET
        }
        make: Any = cls.kind
        if not is_dataclass(cls.kind):
            return make(**given)
        declared = {field.name: field.init for field in fields(cls.kind) if field.name in given}
        made: object = make(**{name: given[name] for name, init in declared.items() if init})
        for name, init in declared.items():
            if not init:
                object.__setattr__(made, name, given[name])
        return made


class Readable(NamedTuple):
    """A hint that msgspec can decode, and the classes whose values are written with their names."""

    hint: Any
    named: frozenset[type]


def readable(hint: Any) -> Readable:
    """Return *hint* in a form that msgspec can decode; unchanged if it holds no union of classes."""
    try:
        if not _has_choice(hint, set()):
            return Readable(hint, frozenset())
    except (TypeError, NameError):  # msgspec reports the error in the hint
        return Readable(hint, frozenset())
    rewriter = _Rewriter()
    return Readable(rewriter.rewrite(hint), frozenset(rewriter.named))


def reader(*, marked: bool, otherwise: Hook) -> Hook:
    """Return the decoding hook for stand-ins; it passes all other types to *otherwise*."""
    builtin = (datetime,) if marked else ()

    def hook(kind: type, value: object) -> object:
        return kind.read(value, convert) if issubclass(kind, StandIn) else otherwise(kind, value)

    def convert(value: object, hint: Any) -> object:
        return msgspec.convert(value, hint, builtin_types=builtin, str_keys=True, dec_hook=hook)

    return hook


def _is_union(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType)


def _class_of(hint: Any) -> Any:
    return get_origin(hint) or hint


def _is_object(hint: Any) -> bool:
    kind = _class_of(hint)
    if not isinstance(kind, type):
        return False
    if issubclass(kind, msgspec.Struct):
        return not kind.__struct_config__.array_like
    return is_dataclass(kind) or hasattr(kind, "__attrs_attrs__") or is_pydantic(kind)


def _is_mapping(hint: Any) -> bool:
    kind = _class_of(hint)
    return isinstance(kind, type) and issubclass(kind, Mapping)


def _is_choice(members: tuple[Any, ...]) -> bool:
    """Whether the members of a union can be distinguished by name only, not by msgspec."""
    objects = [one for one in members if _is_object(one)]
    tagged = [one for one in objects if getattr(getattr(_class_of(one), "__struct_config__", None), "tag", None)]
    others = [one for one in members if one is not type(None)]
    return (len(objects) > 1 and len(tagged) < len(objects)) or (
        len(others) > 1 and any(is_pydantic(_class_of(one)) for one in objects)
    )


def _has_choice(hint: Any, seen: set[Any]) -> bool:
    if hint in seen:
        return False
    seen.add(hint)
    if _is_union(hint) and _is_choice(get_args(hint)):
        return True
    return any(_has_choice(part, seen) for part in _inner_hints(hint))


def _inner_hints(hint: Any) -> Iterator[Any]:
    """Yield the hints inside a hint: its arguments, and the hints of its class's fields."""
    origin = get_origin(hint)
    if origin is Literal:
        return
    if origin is Annotated:
        yield get_args(hint)[0]
        return
    for part in ("__supertype__", "__value__"):
        if not isinstance(hint, type) and hasattr(hint, part):
            yield getattr(hint, part)
    yield from (part for part in get_args(hint) if part is not Ellipsis and not isinstance(part, list))
    if _has_fields(_class_of(hint)):
        yield from _field_hints(hint).values()


def _has_fields(kind: Any) -> bool:
    return isinstance(kind, type) and _is_object(kind) and not is_pydantic(kind)


def _field_hints(hint: Any) -> dict[str, Any]:
    """Return the hints of a class's fields, with its type arguments substituted."""
    kind = _class_of(hint)
    given = dict(zip(getattr(kind, "__parameters__", ()), get_args(hint), strict=False))
    names = _attributes(kind)
    return {
        name: _substitute(part, given)
        for name, part in get_type_hints(kind, include_extras=True).items()
        if name in names
    }


def _attributes(kind: Any) -> dict[str, tuple[str, bool]]:
    """Return the fields of a class with their JSON keys, and whether each is required."""
    if issubclass(kind, msgspec.Struct):
        found = msgspec.structs.fields(kind)
        return {field.name: (field.encode_name, field.required) for field in found}
    if is_dataclass(kind):
        return {f.name: (f.name, f.default is MISSING and f.default_factory is MISSING) for f in fields(kind)}
    attributes: Any = getattr(kind, "__attrs_attrs__", ())
    return {one.name: (one.name, repr(one.default) == "NOTHING") for one in attributes}


def _substitute(hint: Any, given: Mapping[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return given.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(one, one) for one in parameters)] if given and parameters else hint


class _Rewriter:
    """Rewrites one hint into a form that msgspec can decode."""

    def __init__(self) -> None:
        self.named: set[type] = set()
        self._made: dict[Any, Any] = {}

    def rewrite(self, hint: Any) -> Any:
        if not _has_choice(hint, set()):
            return hint
        if hint not in self._made:
            self._made[hint] = self._rewrite(hint)
        return self._made[hint]

    def _rewrite(self, hint: Any) -> Any:
        origin, args = get_origin(hint), get_args(hint)
        if _is_union(hint):
            return self._union(hint, args)
        if _has_fields(_class_of(hint)):
            return self._mirror(hint)
        if origin is Annotated:
            return Annotated[(self.rewrite(args[0]), *args[1:])]
        for part in ("__supertype__", "__value__"):
            if hasattr(hint, part):
                return self.rewrite(getattr(hint, part))
        return origin[tuple(one if one is Ellipsis else self.rewrite(one) for one in args)]

    def _union(self, hint: Any, args: tuple[Any, ...]) -> Any:
        objects = [one for one in args if _is_object(one)]
        others = [one for one in args if not _is_object(one)]
        if not _is_choice(args) and len(objects) < 2 and all(one is type(None) for one in others):
            return Union[(*map(self.rewrite, objects), *others)]
        mapping = next((one for one in others if _is_mapping(one)), None)
        if mapping is not None:
            raise SerializationError(
                str(hint), f"a JSON object may be one of its classes or {mapping}; wrap the mapping in a class"
            )
        made = self._made[hint] = _AnyInstance(" | ".join(map(_name, objects)), (Choice,), {})
        names = [_class_of(one).__name__ for one in objects]
        if len(set(names)) < len(names):
            raise SerializationError(
                str(hint), f"classes of a union must have different names, got {names}: values are written by name"
            )
        made.rest = Union[tuple(map(self.rewrite, others))] if others else None  # type: ignore[attr-defined]  # noqa: UP007
        made.members = dict(zip(names, map(self.rewrite, objects), strict=True))  # type: ignore[attr-defined]
        made.inner = (*made.members.values(), made.rest)  # type: ignore[attr-defined]
        self.named.update(map(_class_of, objects))
        return made

    def _mirror(self, hint: Any) -> Any:
        kind = _class_of(hint)
        made = self._made[hint] = _AnyInstance(_name(hint), (Mirror,), {"kind": kind})
        hints, attributes = _field_hints(hint), _attributes(kind)
        shape, rename = [], {}
        for number, (name, (key, required)) in enumerate(attributes.items()):
            inner = self.rewrite(hints[name])
            rename[f"f{number}"] = key
            shape.append((f"f{number}", inner) if required else (f"f{number}", inner, msgspec.UNSET))
        forbid = issubclass(kind, msgspec.Struct) and kind.__struct_config__.forbid_unknown_fields
        made.shape = msgspec.defstruct(  # type: ignore[attr-defined]
            kind.__name__, shape, rename=rename, kw_only=True, forbid_unknown_fields=forbid, module=kind.__module__
        )
        made.renamed = dict(zip(rename, attributes, strict=True))  # type: ignore[attr-defined]
        made.inner = (made.shape,)  # type: ignore[attr-defined]
        return made


def _name(hint: Any) -> str:
    return str(getattr(_class_of(hint), "__name__", hint))
