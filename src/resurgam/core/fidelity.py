"""Compare a value with its decoded JSON, and report what was lost.

Values are decoded by their hint. A value given in the hint's JSON form (a dict for an object, text for a date, a tuple
for a list) is accepted. Loss is refused: an object of another class than the hint names, keys with the same JSON form,
a field that is not written, a value of a type that the hint does not restore. A hint of Any decodes to the JSON form,
and nothing is compared.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeAlias, get_origin

from msgspec import inspect

from resurgam.core.canonical import TYPE_KEY
from resurgam.core.objects import field_names, is_pydantic
from resurgam.core.unions import Choice, Mirror, StandIn

Loss: TypeAlias = tuple[str, str]
"""The path to the part that was lost, and the reason."""
Compare: TypeAlias = Callable[[Any, Any], Loss | None]
Exact: TypeAlias = Callable[[object], bool]

_JSON: Final = frozenset({str, int, float, bool, type(None)})
_LEAVES: Final = (
    *(inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType),
    *(inspect.ByteArrayType, inspect.DateTimeType, inspect.TimeType, inspect.DateType, inspect.TimeDeltaType),
    *(inspect.UUIDType, inspect.DecimalType, inspect.EnumType, inspect.LiteralType),
)
_EXACT: Final[dict[type[inspect.Type], type]] = {
    inspect.NoneType: type(None),
    inspect.BoolType: bool,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.StrType: str,
}
_CONSTRAINTS: Final = (*("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern"),)
_COMBINATIONS: Final = 64
"""Combinations of types that are listed for a tuple, such as the arguments of a call."""
_ITEMS: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


class _OtherBranch(Exception):
    """The decoded value belongs to another branch of a union."""


class Fidelity:
    """Compares values of one hint with their decoded form. *plain*: equal values need no further comparison."""

    def __init__(self, info: inspect.Type) -> None:
        self._classes: dict[type, Compare] = {}
        self.plain = _is_plain(info)
        self.loss = self._compare(info)

    def _compare(self, info: inspect.Type) -> Compare:
        made = self._COMPARATORS.get(type(info))
        return _ignore if made is None else made(self, info)

    def _leaf(self, info: inspect.Type) -> Compare:
        return _leaf

    def _metadata(self, info: inspect.Metadata) -> Compare:
        return self._compare(info.type)

    def _items(self, info: Any) -> Compare:
        return _items(self._compare(info.item_type))

    def _tuple(self, info: inspect.TupleType) -> Compare:
        return _tuple_items([self._compare(one) for one in info.item_types])

    def _dict(self, info: inspect.DictType) -> Compare:
        keys = info.key_type.types if isinstance(info.key_type, inspect.UnionType) else (info.key_type,)
        texts = any(isinstance(one, inspect.StrType) for one in keys)
        known = not isinstance(info.key_type, inspect.AnyType)
        return _dict_items(self._compare(info.value_type), texts=texts, known=known)

    def _union(self, info: inspect.UnionType) -> Compare:
        return _any_branch([self._compare(one) for one in info.types])

    def _whole(self, info: Any) -> Compare:
        return self._fields(info, get_origin(info.cls) or info.cls)

    def _custom(self, info: inspect.CustomType) -> Compare:
        kind = info.cls
        if not issubclass(kind, StandIn):
            return _model if is_pydantic(kind) else _ignore if kind is object else _leaf
        if kind in self._classes:
            return self._later(kind)
        self._classes[kind] = _ignore
        if issubclass(kind, Mirror):
            found = self._fields(inspect.type_info(kind.shape), kind.kind, kind.renamed)
        else:
            assert issubclass(kind, Choice)
            found = _any_branch([self._compare(inspect.type_info(one)) for one in kind.inner if one is not None])
        self._classes[kind] = found
        return found

    def _later(self, kind: type) -> Compare:
        """Return a comparison that looks up the one of *kind* when called: a recursive type is not complete yet."""
        return lambda value, back: self._classes[kind](value, back)  # noqa: PLW0108 -- the entry changes later

    def _fields(self, info: Any, kind: type, renamed: Mapping[str, str] | None = None) -> Compare:
        if info.cls in self._classes:
            return self._later(info.cls)
        self._classes[info.cls] = _ignore
        found = [((renamed or {}).get(f.name, f.name), f.encode_name, f.type) for f in info.fields]
        parts = {name: self._compare(one) for name, _, one in found}
        keys = {key: name for name, key, _ in found}
        if isinstance(info, inspect.TypedDictType):
            compare: Compare = _typed_dict(parts)
        else:
            plain = [name for name, _, one in found if _is_plain(one)]
            compare = _Object(kind, parts, keys, plain, in_order=isinstance(info, inspect.NamedTupleType))
        self._classes[info.cls] = compare
        return compare

    _COMPARATORS: ClassVar[dict[type[inspect.Type], Callable[["Fidelity", Any], Compare]]] = {
        **dict.fromkeys(_LEAVES, _leaf),
        **dict.fromkeys(_ITEMS, _items),
        **dict.fromkeys((inspect.StructType, inspect.DataclassType), _whole),
        **dict.fromkeys((inspect.TypedDictType, inspect.NamedTupleType), _whole),
        inspect.Metadata: _metadata,
        inspect.TupleType: _tuple,
        inspect.DictType: _dict,
        inspect.UnionType: _union,
        inspect.CustomType: _custom,
    }


def _is_plain(info: inspect.Type) -> bool:
    if isinstance(info, inspect.Metadata):
        return _is_plain(info.type)
    if isinstance(info, _ITEMS):
        return _is_plain(info.item_type)
    if isinstance(info, inspect.TupleType):
        return all(map(_is_plain, info.item_types))
    if isinstance(info, inspect.DictType):
        return _is_plain(info.key_type) and _is_plain(info.value_type)
    if isinstance(info, inspect.UnionType):
        return all(map(_is_plain, info.types))
    return isinstance(info, _LEAVES)


def exact(info: inspect.Type) -> Exact | None:
    """Return whether a value comes back as it is, decided by its type alone; None if a hint does not allow that.

    It holds for values that are exactly of a plain hint without constraints: decoding would neither convert nor refuse
    them. A subclass (an enum, a named tuple) is not exact, nor is an int where the hint says float.
    """
    kinds = _exact_kinds(info)
    if kinds is not None:
        return _of_kinds(kinds)
    if isinstance(info, inspect.TupleType):
        return _exact_tuple(info)
    if isinstance(info, inspect.ListType) and not _is_constrained(info):
        return _exact_list(info)
    if isinstance(info, inspect.DictType) and not _is_constrained(info):
        return _exact_dict(info)
    return None


def _of_kinds(kinds: frozenset[type]) -> Exact:
    return lambda value: type(value) in kinds


def _exact_list(info: inspect.ListType) -> Exact | None:
    kinds = _exact_kinds(info.item_type)
    if kinds is not None:
        holds_all = kinds.issuperset
        return lambda value: type(value) is list and holds_all(map(type, value))
    item = exact(info.item_type)
    return None if item is None else lambda value: type(value) is list and all(map(item, value))


def _exact_tuple(info: inspect.TupleType) -> Exact | None:
    every = [_exact_kinds(one) for one in info.item_types]
    kinds = [one for one in every if one is not None]
    if len(kinds) == len(every) == 1:
        only = kinds[0]
        return lambda value: type(value) is tuple and len(value) == 1 and type(value[0]) in only
    if len(kinds) == len(every) and math.prod(map(len, kinds)) <= _COMBINATIONS:
        combinations = frozenset(itertools.product(*kinds))
        return lambda value: type(value) is tuple and tuple(map(type, value)) in combinations
    items = [exact(one) for one in info.item_types]
    checks = [one for one in items if one is not None]
    if len(checks) != len(items):
        return None

    def check(value: Any) -> bool:
        same = type(value) is tuple and len(value) == len(checks)
        return same and all(fits(one) for fits, one in zip(checks, value, strict=True))

    return check


def _exact_dict(info: inspect.DictType) -> Exact | None:
    item = exact(info.value_type)
    if item is None or _exact_kinds(info.key_type) != frozenset((str,)):
        return None
    return lambda value: type(value) is dict and {str}.issuperset(map(type, value)) and all(map(item, value.values()))


def _exact_kinds(info: inspect.Type) -> frozenset[type] | None:
    """Return the types of which every value is exact, if the hint names nothing else."""
    if isinstance(info, inspect.UnionType):
        every = [_exact_kinds(one) for one in info.types]
        return None if None in every else frozenset(kind for one in every if one is not None for kind in one)
    kind = _EXACT.get(type(info))
    return None if kind is None or _is_constrained(info) else frozenset((kind,))


def _is_constrained(info: Any) -> bool:
    """Whether decoding may refuse a value because of its size or form."""
    return any(getattr(info, name, None) is not None for name in _CONSTRAINTS)


def _ignore(value: object, back: object) -> None:
    """Accept any value: an untyped hint decodes to plain JSON."""


def _leaf(value: object, back: object) -> Loss | None:
    if value == back or (type(value) in _JSON and type(back) not in _JSON):
        return None  # the value was given in its JSON form
    if isinstance(value, Decimal) and isinstance(back, Decimal) and str(value) == str(back):
        return None  # NaN does not equal itself
    return "", f"{_short_repr(value)} comes back as {_short_repr(back)}; pass a value of the type that the hint says"


def _items(item: Compare) -> Compare:
    def compare(value: Any, back: Any) -> Loss | None:
        if not isinstance(back, list | tuple | set | frozenset):
            raise _OtherBranch
        if isinstance(value, set | frozenset) and isinstance(back, set | frozenset):
            return None if value == back else ("", "its members do not come back equal")
        if not isinstance(value, list | tuple | set | frozenset):
            return _leaf(value, back)
        if not isinstance(value, list | tuple) or isinstance(back, set | frozenset):
            return None  # a list, perhaps with duplicates, for a set; or a set for a list
        if isinstance(item, _Object) and item.all_equal(value, back):
            return None
        return _in_order((item(one, other) for one, other in zip(value, back, strict=False)))

    return compare


def _tuple_items(items: list[Compare]) -> Compare:
    def compare(value: Any, back: Any) -> Loss | None:
        if not isinstance(back, tuple):
            raise _OtherBranch
        if not isinstance(value, list | tuple):
            return _leaf(value, back)
        return _in_order(item(one, other) for item, one, other in zip(items, value, back, strict=False))

    return compare


def _in_order(found: Iterable[Loss | None]) -> Loss | None:
    return next(((f"[{index}]{loss[0]}", loss[1]) for index, loss in enumerate(found) if loss is not None), None)


def _dict_items(item: Compare, *, texts: bool, known: bool) -> Compare:
    """Compare dicts. *texts*: keys may be text; otherwise text is the JSON form of a key. *known*: keys are typed."""

    def compare(value: Any, back: Any) -> Loss | None:
        if not isinstance(back, dict):
            raise _OtherBranch
        if not isinstance(value, Mapping):
            return _leaf(value, back)
        if len(value) != len(back):
            return "", f"of its {len(value)} keys {len(back)} come back: some are written alike; use keys of one type"
        for (key, one), (key_back, other) in zip(value.items(), back.items(), strict=True):
            given = isinstance(key, str) and not texts
            if known and not given and key != key_back:
                return "", f"the key {_short_repr(key)} comes back as {_short_repr(key_back)}; use keys of one type"
            found = item(one, other)
            if found is not None:
                return f"[{key!r}]{found[0]}", found[1]
        return None

    return compare


def _any_branch(branches: list[Compare]) -> Compare:
    def compare(value: Any, back: Any) -> Loss | None:
        found = []
        for branch in branches:
            try:
                loss = branch(value, back)
            except _OtherBranch:
                continue
            if loss is None:
                return None
            found.append(loss)
        return max(found, key=lambda loss: len(loss[0])) if found else _leaf(value, back)

    return compare


def _typed_dict(parts: Mapping[str, Compare]) -> Compare:
    def compare(value: Any, back: Any) -> Loss | None:
        if not isinstance(back, dict):
            raise _OtherBranch
        if not isinstance(value, Mapping):
            return _leaf(value, back)
        unknown = [key for key in value if key not in parts]
        if unknown:
            return "", f"the key {unknown[0]!r} is not one of the type, and does not come back; leave it out"
        found = ((key, parts[key](one, back[key])) for key, one in value.items())
        return next(((f"[{key!r}]{loss[0]}", loss[1]) for key, loss in found if loss is not None), None)

    return compare


class _Object:
    """Compares objects of one class field by field; fields with *plain* values all at once."""

    def __init__(
        self, kind: type, parts: Mapping[str, Compare], keys: Mapping[str, str], plain: list[str], *, in_order: bool
    ) -> None:
        self._kind = kind
        self._parts = parts
        self._keys = keys
        self._in_order = in_order
        self._alike = attrgetter(*plain) if plain else None
        self._others = {name: part for name, part in parts.items() if name not in plain}

    def __call__(self, value: Any, back: Any) -> Loss | None:
        if type(back) is not self._kind:
            raise _OtherBranch
        if type(value) is not self._kind:
            return self._other_form(value, back)
        equal = self._alike is None or self._alike(value) == self._alike(back)
        for name, part in (self._others if equal else self._parts).items():
            found = part(getattr(value, name), getattr(back, name))
            if found is not None:
                return f".{name}{found[0]}", found[1]
        return None

    def all_equal(self, value: Iterable[Any], back: Iterable[Any]) -> bool:
        """Whether all objects are equal, if all their fields are plain; False if fields must be compared singly."""
        if self._alike is None or self._others or not {self._kind}.issuperset(map(type, value)):
            return False
        return list(map(self._alike, value)) == list(map(self._alike, back))

    def _other_form(self, value: Any, back: Any) -> Loss | None:
        if isinstance(value, Mapping):
            unknown = [key for key in value if key not in self._keys and key != TYPE_KEY]
            if unknown:
                name = self._kind.__name__
                return "", f"the key {unknown[0]!r} is no field of {name}, and does not come back; leave it out"
            given = ((key, self._keys[key], one) for key, one in value.items() if key != TYPE_KEY)
            found = ((key, self._parts[name](one, getattr(back, name))) for key, name, one in given)
            return next(((f".{key}{loss[0]}", loss[1]) for key, loss in found if loss is not None), None)
        if self._in_order and type(value) in (list, tuple):
            pairs = zip(self._parts.values(), value, back, strict=False)
            return _in_order(part(one, other) for part, one, other in pairs)
        return "", _another_class(value, back)


def _another_class(value: object, back: object) -> str:
    given, known = type(value).__name__, type(back).__name__
    return f"an object of {given} comes back as one of {known}; annotate {given}, or a union of the classes it may be"


def _model(value: Any, back: Any) -> Loss | None:
    """Compare pydantic models by their own equality."""
    if not is_pydantic(type(back)):
        raise _OtherBranch
    if type(value) is not type(back):
        # A value without fields is the JSON form of a model.
        return ("", _another_class(value, back)) if list(field_names(value)) else None
    return None if value == back else _unequal(value, back)


def _unequal(value: Any, back: Any) -> Loss:
    """Return the first field in which two models differ, and the reason."""
    for name, info in type(value).model_fields.items():
        one, other = getattr(value, name), getattr(back, name)
        if one == other:
            continue
        if info.exclude:
            return (
                f".{name}",
                "the field has exclude=True, so pydantic does not write it; take that off, or leave it unset",
            )
        loss = _model(one, other) if is_pydantic(type(one)) and is_pydantic(type(other)) else None
        path, reason = loss or ("", f"{_short_repr(one)} comes back as {_short_repr(other)} from what pydantic writes")
        return f".{name}{path}", reason
    return "", "its private attributes are not written by pydantic; make them fields, or leave them unset"


def _short_repr(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:70]}... ({type(value).__name__})"
