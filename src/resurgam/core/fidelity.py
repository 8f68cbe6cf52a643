"""Whether a value comes back as it was: what its JSON, read by the hint, has lost.

A value is read as its hint says. What is given in the hint's JSON form (a dict for an object, a text for a date, a tuple for
a list) is taken as that. What is refused is loss: an object of another class than the hint names, keys that fall together,
a field that is not written, a value of a type that the hint does not bring back. Where the hint says Any, the JSON form is
what comes back, and nothing is compared.
"""

from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from operator import attrgetter
from typing import Any, ClassVar, Final, TypeAlias, get_origin

from msgspec import inspect

from resurgam.core.canonical import TYPE
from resurgam.core.objects import field_names, is_pydantic
from resurgam.core.unions import Choice, Mirror, StandIn

Lost: TypeAlias = tuple[str, str]
"""The path to what does not come back, and why."""
Compare: TypeAlias = Callable[[Any, Any], Lost | None]

_JSON: Final = frozenset({str, int, float, bool, type(None)})
_LEAVES: Final = (
    *(inspect.NoneType, inspect.BoolType, inspect.IntType, inspect.FloatType, inspect.StrType, inspect.BytesType),
    *(inspect.ByteArrayType, inspect.DateTimeType, inspect.TimeType, inspect.DateType, inspect.TimeDeltaType),
    *(inspect.UUIDType, inspect.DecimalType, inspect.EnumType, inspect.LiteralType),
)
_ITEMS: Final = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)


class _OtherBranch(Exception):
    """What came back is of another branch of a union."""


class Fidelity:
    """Compares values of one hint with what came back. *plain*: for whatever is equal there is no more to be asked."""

    def __init__(self, info: inspect.Type) -> None:
        self._classes: dict[type, Compare] = {}
        self.plain = _is_plain(info)
        self.lost = self._compare(info)

    def _compare(self, info: inspect.Type) -> Compare:
        made = self._MADE.get(type(info))
        return _nothing if made is None else made(self, info)

    def _leaf(self, info: inspect.Type) -> Compare:
        return _leaf

    def _metadata(self, info: inspect.Metadata) -> Compare:
        return self._compare(info.type)

    def _items(self, info: Any) -> Compare:
        return _items(self._compare(info.item_type))

    def _tuple(self, info: inspect.TupleType) -> Compare:
        return _places([self._compare(one) for one in info.item_types])

    def _dict(self, info: inspect.DictType) -> Compare:
        keys = info.key_type.types if isinstance(info.key_type, inspect.UnionType) else (info.key_type,)
        texts = any(isinstance(one, inspect.StrType) for one in keys)
        known = not isinstance(info.key_type, inspect.AnyType)
        return _entries(self._compare(info.value_type), texts=texts, known=known)

    def _union(self, info: inspect.UnionType) -> Compare:
        return _any_of([self._compare(one) for one in info.types])

    def _whole(self, info: Any) -> Compare:
        return self._fields(info, get_origin(info.cls) or info.cls)

    def _custom(self, info: inspect.CustomType) -> Compare:
        kind = info.cls
        if not issubclass(kind, StandIn):
            return _model if is_pydantic(kind) else _nothing if kind is object else _leaf
        if kind in self._classes:
            return self._later(kind)
        self._classes[kind] = _nothing
        if issubclass(kind, Mirror):
            found = self._fields(inspect.type_info(kind.shape), kind.kind, kind.renamed)
        else:
            assert issubclass(kind, Choice)
            found = _any_of([self._compare(inspect.type_info(one)) for one in kind.inner if one is not None])
        self._classes[kind] = found
        return found

    def _later(self, kind: type) -> Compare:
        """Compare by what is found once all of a type that holds itself has been looked at."""
        return lambda value, back: self._classes[kind](value, back)  # noqa: PLW0108 -- not the one that is there now

    def _fields(self, info: Any, kind: type, renamed: Mapping[str, str] | None = None) -> Compare:
        if info.cls in self._classes:
            return self._later(info.cls)
        self._classes[info.cls] = _nothing
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

    _MADE: ClassVar[dict[type[inspect.Type], Callable[["Fidelity", Any], Compare]]] = {
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


def _nothing(value: object, back: object) -> None:
    """Where the hint says nothing of the value, what comes back is its JSON."""


def _leaf(value: object, back: object) -> Lost | None:
    if value == back or (type(value) in _JSON and type(back) not in _JSON):
        return None  # the second: given as it is written
    if isinstance(value, Decimal) and isinstance(back, Decimal) and str(value) == str(back):
        return None  # not a number, which is not equal to itself
    return "", f"{_shown(value)} comes back as {_shown(back)}; pass a value of the type that the hint says"


def _items(item: Compare) -> Compare:
    def compare(value: Any, back: Any) -> Lost | None:
        if not isinstance(back, list | tuple | set | frozenset):
            raise _OtherBranch
        if isinstance(value, set | frozenset) and isinstance(back, set | frozenset):
            return None if value == back else ("", "its members do not come back equal")
        if not isinstance(value, list | tuple | set | frozenset):
            return _leaf(value, back)
        if not isinstance(value, list | tuple) or isinstance(back, set | frozenset):
            return None  # a list for a set, in which something may stand twice, or a set for a list
        if isinstance(item, _Object) and item.all_equal(value, back):
            return None
        return _in_order((item(one, other) for one, other in zip(value, back, strict=False)))

    return compare


def _places(items: list[Compare]) -> Compare:
    def compare(value: Any, back: Any) -> Lost | None:
        if not isinstance(back, tuple):
            raise _OtherBranch
        if not isinstance(value, list | tuple):
            return _leaf(value, back)
        return _in_order(item(one, other) for item, one, other in zip(items, value, back, strict=False))

    return compare


def _in_order(found: Iterable[Lost | None]) -> Lost | None:
    return next(((f"[{index}]{lost[0]}", lost[1]) for index, lost in enumerate(found) if lost is not None), None)


def _entries(item: Compare, *, texts: bool, known: bool) -> Compare:
    """Compare dicts. *texts*: a key may be a text; if not, one is the JSON form of a key. *known*: the hint says which."""

    def compare(value: Any, back: Any) -> Lost | None:
        if not isinstance(back, dict):
            raise _OtherBranch
        if not isinstance(value, Mapping):
            return _leaf(value, back)
        if len(value) != len(back):
            return "", f"of its {len(value)} keys {len(back)} come back: some are written alike; use keys of one type"
        for (key, one), (key_back, other) in zip(value.items(), back.items(), strict=True):
            given = isinstance(key, str) and not texts
            if known and not given and key != key_back:
                return "", f"the key {_shown(key)} comes back as {_shown(key_back)}; use keys of one type"
            found = item(one, other)
            if found is not None:
                return f"[{key!r}]{found[0]}", found[1]
        return None

    return compare


def _any_of(branches: list[Compare]) -> Compare:
    def compare(value: Any, back: Any) -> Lost | None:
        found = []
        for branch in branches:
            try:
                lost = branch(value, back)
            except _OtherBranch:
                continue
            if lost is None:
                return None
            found.append(lost)
        return max(found, key=lambda lost: len(lost[0])) if found else _leaf(value, back)

    return compare


def _typed_dict(parts: Mapping[str, Compare]) -> Compare:
    def compare(value: Any, back: Any) -> Lost | None:
        if not isinstance(back, dict):
            raise _OtherBranch
        if not isinstance(value, Mapping):
            return _leaf(value, back)
        unknown = [key for key in value if key not in parts]
        if unknown:
            return "", f"the key {unknown[0]!r} is not one of the type, and does not come back; leave it out"
        found = ((key, parts[key](one, back[key])) for key, one in value.items())
        return next(((f"[{key!r}]{lost[0]}", lost[1]) for key, lost in found if lost is not None), None)

    return compare


class _Object:
    """Compares objects of one class, field by field; those with *plain* values all at once."""

    def __init__(
        self, kind: type, parts: Mapping[str, Compare], keys: Mapping[str, str], plain: list[str], *, in_order: bool
    ) -> None:
        self._kind = kind
        self._parts = parts
        self._keys = keys
        self._in_order = in_order
        self._alike = attrgetter(*plain) if plain else None
        self._others = {name: part for name, part in parts.items() if name not in plain}

    def __call__(self, value: Any, back: Any) -> Lost | None:
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
        """Whether many objects with plain values only are equal; False if that takes a closer look."""
        if self._alike is None or self._others or not {self._kind}.issuperset(map(type, value)):
            return False
        return list(map(self._alike, value)) == list(map(self._alike, back))

    def _other_form(self, value: Any, back: Any) -> Lost | None:
        if isinstance(value, Mapping):
            unknown = [key for key in value if key not in self._keys and key != TYPE]
            if unknown:
                name = self._kind.__name__
                return "", f"the key {unknown[0]!r} is no field of {name}, and does not come back; leave it out"
            given = ((key, self._keys[key], one) for key, one in value.items() if key != TYPE)
            found = ((key, self._parts[name](one, getattr(back, name))) for key, name, one in given)
            return next(((f".{key}{lost[0]}", lost[1]) for key, lost in found if lost is not None), None)
        if self._in_order and type(value) in (list, tuple):
            pairs = zip(self._parts.values(), value, back, strict=False)
            return _in_order(part(one, other) for part, one, other in pairs)
        return "", _another_class(value, back)


def _another_class(value: object, back: object) -> str:
    given, known = type(value).__name__, type(back).__name__
    return f"an object of {given} comes back as one of {known}; annotate {given}, or a union of the classes it may be"


def _model(value: Any, back: Any) -> Lost | None:
    """Compare pydantic models by their own rule."""
    if not is_pydantic(type(back)):
        raise _OtherBranch
    if type(value) is not type(back):
        # One without fields is the JSON form of a model.
        return ("", _another_class(value, back)) if list(field_names(value)) else None
    return None if value == back else _unequal(value, back)


def _unequal(value: Any, back: Any) -> Lost:
    """Return the field in which two models differ."""
    for name, info in type(value).model_fields.items():
        one, other = getattr(value, name), getattr(back, name)
        if one == other:
            continue
        if info.exclude:
            return (
                f".{name}",
                "the field has exclude=True, so pydantic does not write it; take that off, or leave it unset",
            )
        lost = _model(one, other) if is_pydantic(type(one)) and is_pydantic(type(other)) else None
        path, reason = lost or ("", f"{_shown(one)} comes back as {_shown(other)} from what pydantic writes")
        return f".{name}{path}", reason
    return "", "its private attributes are not written by pydantic; make them fields, or leave them unset"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:70]}... ({type(value).__name__})"
