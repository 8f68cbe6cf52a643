"""Schemas of type hints, so that a sender without the type can check a value.

The schema of a hint follows JSON Schema where that has the words. It is built from msgspec's description of the hint;
types that msgspec does not describe, or that only their own code can judge (hooks, enums with ``_missing_``), are left
open. Pydantic models are checked by their own validation where the class is imported (`models`).

Rule: a schema refuses no value that the codec of the hint would accept. Values without parts are therefore converted by
msgspec itself, and a schema that is not understood, from a later version or damaged, refuses nothing. There is one
exception, though the codec might guess: an object that fits several classes of a union must name its class.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import msgspec
from msgspec import Raw, inspect

from resurgam.core.canonical import TYPE_KEY
from resurgam.core.codec import TypeForm, tree_of
from resurgam.core.models import model_mismatch, model_schema
from resurgam.core.objects import is_pydantic
from resurgam.core.unions import Choice, Mirror, readable

Schema: TypeAlias = dict[str, Any]
Mismatch: TypeAlias = tuple[str, str]
"""The path to the part that does not fit, and the reason."""

_MAX_SIZE: Final = 16 * 1024
"""Largest schema in bytes; larger ones are omitted, because a schema is stored with its instance and read with it."""

_LEAVES: Final[dict[type[inspect.Type], Schema]] = {
    inspect.NoneType: {"type": "null"},
    inspect.BoolType: {"type": "boolean"},
    inspect.IntType: {"type": "integer"},
    inspect.FloatType: {"type": "number"},
    inspect.StrType: {"type": "string"},
    inspect.DateTimeType: {"type": "string", "format": "date-time"},
    inspect.DateType: {"type": "string", "format": "date"},
    inspect.TimeType: {"type": "string", "format": "time"},
    inspect.TimeDeltaType: {"type": "string", "format": "duration"},
    inspect.DecimalType: {"type": "string", "format": "decimal"},
    inspect.UUIDType: {"type": "string", "format": "uuid"},
    inspect.BytesType: {"type": "string", "format": "base64"},
    inspect.ByteArrayType: {"type": "string", "format": "base64"},
    inspect.MemoryViewType: {"type": "string", "format": "base64"},
}
"""Types without parts."""

_KINDS: Final[dict[str, Any]] = {
    "null": None,
    "boolean": bool,
    "integer": int,
    "number": float,
    "string": str,
    "date-time": datetime,
    "date": date,
    "time": time,
    "duration": timedelta,
    "decimal": Decimal,
    "uuid": Annotated[
        str, msgspec.Meta(pattern=r"^[0-9a-fA-F-]{32,36}$")
    ],  # core may not import uuid, which generates random ids
    "base64": bytes,
}
"""The types to which such values are converted, by format or, without one, by type."""

_LIMITS: Final = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "minLength": "min_length",
    "maxLength": "max_length",
    "pattern": "pattern",
}
"""Constraints on such values, and msgspec's names for them."""

_PYTHON_NAMES: Final = {"boolean": "bool", "integer": "int", "number": "float", "string": "str"}
"""Python's names for schema types, for messages."""


def schema_of(hint: TypeForm) -> Raw | None:
    """Return the schema of a type hint; None if it has no constraints or is too large."""
    try:
        return _cached(hint)
    except TypeError:  # an unhashable hint, such as Annotated with a list in it
        return _build(hint)


def _build(hint: TypeForm) -> Raw | None:
    try:
        schema = _Writer().document(inspect.type_info(readable(hint).hint))
        data = msgspec.json.encode(schema)
    except Exception:  # noqa: BLE001 -- without a schema any value is accepted; the codec reports a bad hint
        return None
    return Raw(data) if schema and len(data) <= _MAX_SIZE else None


_cached = functools.lru_cache(maxsize=1024)(_build)


class _Writer:
    """Builds the schema of one hint. Types with fields go to ``$defs``, because they may be recursive."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._infos: dict[TypeForm, inspect.Type] = {}
        self._unions: dict[type[Choice], str] = {}
        self._defs: dict[str, Schema] = {}

    def document(self, info: inspect.Type) -> Schema:
        """Return the schema with all its definitions."""
        schema = self._schema(info)
        return {**schema, "$defs": self._defs} if self._defs else schema

    def _schema(self, info: inspect.Type) -> Schema:
        write = self._WRITERS.get(type(info))
        return {**_LEAVES.get(type(info), {}), **_limits(info)} if write is None else write(self, info)

    def _metadata(self, info: inspect.Metadata) -> Schema:
        return self._schema(info.type)

    def _union(self, info: inspect.UnionType) -> Schema:
        tagged = [one for one in info.types if isinstance(one, inspect.StructType) and one.tag is not None]
        by = {"discriminator": tagged[0].tag_field} if len(tagged) > 1 and not tagged[0].array_like else {}
        return {"anyOf": [self._schema(one) for one in info.types], **by}

    def _array(self, info: inspect.ListType | inspect.VarTupleType | inspect.SetType | inspect.FrozenSetType) -> Schema:
        # No upper limit for a set: duplicates in the array count once.
        most = None if isinstance(info, inspect.SetType | inspect.FrozenSetType) else info.max_length
        return _without_none({"type": "array", "minItems": info.min_length, "maxItems": most}) | {
            "items": self._schema(info.item_type)
        }

    def _tuple(self, info: inspect.TupleType) -> Schema:
        return self._prefix_items(info.item_types, len(info.item_types), len(info.item_types))

    def _prefix_items(self, types: tuple[inspect.Type, ...], least: int, most: int | None) -> Schema:
        items = [self._schema(one) for one in types]
        return _without_none({"type": "array", "prefixItems": items, "minItems": least, "maxItems": most})

    def _dict(self, info: inspect.DictType) -> Schema:
        # No upper limit for other keys than text: two of them may decode to the same key.
        most = info.max_length if isinstance(info.key_type, inspect.StrType) else None
        keys = self._schema(info.key_type)
        plain = {"type": "object", "minProperties": info.min_length, "maxProperties": most}
        named = {} if _kind_of(keys) is Any else {"propertyNames": keys}
        return _without_none(plain) | named | {"additionalProperties": self._schema(info.value_type)}

    def _reference(self, info: Any) -> Schema:
        name = self._names.get(id(info))
        if name is None:
            name = self._names[id(info)] = f"{info.cls.__name__}-{len(self._names) + 1}"
            self._defs[name] = {}
            self._defs[name] = self._fields(info)
        return {"$ref": f"#/$defs/{name}"}

    def _fields(self, info: Any) -> Schema:
        fields, tag = info.fields, getattr(info, "tag", None)
        if isinstance(info, inspect.NamedTupleType) or getattr(info, "array_like", False):
            if tag is not None:
                return {"type": "array"}
            least = sum(field.required for field in fields)
            most = len(fields) if isinstance(info, inspect.NamedTupleType) else None
            return self._prefix_items(tuple(field.type for field in fields), least, most)
        properties = {field.encode_name: self._schema(field.type) for field in fields}
        # A missing tag is an error only in a union, which has its own rule.
        tags = {} if tag is None else {info.tag_field: {"enum": [tag]}}
        closed = {"additionalProperties": False} if getattr(info, "forbid_unknown_fields", False) else {}
        required = [field.encode_name for field in fields if field.required]
        return {"type": "object", "properties": properties | tags, "required": required, **closed}

    def _choice(self, info: inspect.EnumType | inspect.LiteralType) -> Schema:
        if isinstance(info, inspect.LiteralType):
            return {"enum": list(info.values)}
        if getattr(info.cls._missing_, "__func__", None) is not getattr(Enum._missing_, "__func__", None):
            return {}
        return {"enum": [member.value for member in info.cls]}

    def _custom(self, info: inspect.CustomType) -> Schema:
        if is_pydantic(info.cls):
            return model_schema(info.cls)
        if issubclass(info.cls, Mirror):
            return self._schema(self._info(info.cls.shape))
        return self._choice_of_classes(info.cls) if issubclass(info.cls, Choice) else {}

    def _info(self, hint: TypeForm) -> inspect.Type:
        # Cached, because recursive types are recognised by the identity of msgspec's description.
        if hint not in self._infos:
            self._infos[hint] = inspect.type_info(hint)
        return self._infos[hint]

    def _choice_of_classes(self, union: type[Choice]) -> Schema:
        if union not in self._unions:
            name = self._unions[union] = f"{union.__name__}-{len(self._unions) + 1}"
            self._defs[name] = {}
            members = {member: self._schema(self._info(hint)) for member, hint in union.members.items()}
            others = {} if union.rest is None else {"rest": self._schema(self._info(union.rest))}
            self._defs[name] = {"classes": members, **others}
        return {"$ref": f"#/$defs/{self._unions[union]}"}

    _WRITERS: ClassVar[dict[type[inspect.Type], Callable[["_Writer", Any], Schema]]] = {
        inspect.Metadata: _metadata,
        inspect.UnionType: _union,
        inspect.CustomType: _custom,
        inspect.EnumType: _choice,
        inspect.LiteralType: _choice,
        **dict.fromkeys((inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType), _array),
        inspect.TupleType: _tuple,
        inspect.DictType: _dict,
        **dict.fromkeys((inspect.StructType, inspect.DataclassType), _reference),
        **dict.fromkeys((inspect.TypedDictType, inspect.NamedTupleType), _reference),
    }
    """Builders for types with parts or choices."""


def _limits(info: inspect.Type) -> Schema:
    return _without_none({word: getattr(info, limit, None) for word, limit in _LIMITS.items()})


def _without_none(schema: Schema) -> Schema:
    return {word: given for word, given in schema.items() if given is not None}


def mismatch(schema: Raw, written: Raw) -> Mismatch | None:
    """Return why a value does not fit a schema, if the codec of its type would certainly refuse it."""
    try:
        tree, marked = tree_of(written)
        whole = msgspec.json.decode(schema)
        return _Reader(whole.get("$defs", {}), marked=marked).check(whole, tree, "")
    except Exception:  # noqa: BLE001 -- the schema is not understood, or the value is nested too deeply
        return None


class _Reader:
    """Checks one value against a schema. *marked*: its datetimes are restored, so text is never read as one."""

    def __init__(self, defs: Mapping[str, Schema], *, marked: bool) -> None:
        self._defs = defs
        self._builtin = (datetime,) if marked else ()

    def check(self, schema: Schema, value: object, path: str) -> Mismatch | None:
        """Return the first part that does not fit, with its path."""
        schema = self._resolved(schema)
        if "model" in schema:
            found = model_mismatch(schema, value)
            return None if found is None else (path + found[0], found[1])
        if "classes" in schema:
            return self._one_of_classes(schema, value, path)
        if "anyOf" in schema:
            return self._any_of(schema, value, path)
        if schema.get("type") == "object":
            return self._object(schema, value, path)
        if schema.get("type") == "array":
            return self._array(schema, value, path)
        return self._leaf(schema, value, path)

    def _one_of_classes(self, schema: Schema, value: object, path: str) -> Mismatch | None:
        """Check a value against a union of classes as `unions.Choice` decodes it: by name, or by the only fit."""
        members = schema["classes"]
        if not isinstance(value, dict):
            if "rest" in schema:
                return self.check(schema["rest"], value, path)
            return path, f"Expected an object of {' | '.join(members)}, got {_name_of(value)}"
        if TYPE_KEY in value:
            name, rest = value[TYPE_KEY], {key: item for key, item in value.items() if key != TYPE_KEY}
            if name in members:
                return self.check(members[name], rest, path)
            return f"{path}.{TYPE_KEY}", f"Expected {' | '.join(map(repr, members))}, got {_short_repr(name)}"
        found = [name for name, branch in members.items() if self.check(branch, value, path) is None]
        if len(found) == 1:
            return None
        fits = f"fits {' and '.join(found)}" if found else f"fits none of {' | '.join(members)}"
        return path, f'the object {fits}; name its class: {{"{TYPE_KEY}": "{next(iter(members))}", ...}}'

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._defs[schema["$ref"].removeprefix("#/$defs/")]
        return schema

    def _any_of(self, schema: Schema, value: object, path: str) -> Mismatch | None:
        if isinstance(value, dict) and "discriminator" in schema:
            return self._tagged(schema, value, path)
        found = [self.check(branch, value, path) for branch in schema["anyOf"]]
        if None in found:
            return None
        # Report the branch that matched furthest, or whose reason is more than a type mismatch.
        inside = [one for one in found if one and (one[0] != path or not one[1].startswith("Expected "))]
        if inside:
            return max(inside, key=lambda one: len(one[0]))
        return path, f"Expected {' | '.join(map(self._name, schema['anyOf']))}, got {_name_of(value)}"

    def _tagged(self, schema: Schema, value: dict[str, object], path: str) -> Mismatch | None:
        field = schema["discriminator"]
        if field not in value:
            return path, f"Object missing required field {field}"
        tags = []
        for branch in map(self._resolved, schema["anyOf"]):
            if branch.get("type") == "object" and field in branch["properties"]:
                if self._leaf(branch["properties"][field], value[field], path) is None:
                    return self._object(branch, value, path)
                tags += branch["properties"][field]["enum"]
        return f"{path}.{field}", f"Expected {' | '.join(map(repr, tags))}, got {value[field]!r}"

    def _object(self, schema: Schema, value: object, path: str) -> Mismatch | None:
        if not isinstance(value, dict):
            return path, f"Expected object, got {_name_of(value)}"
        wrong = _outside(len(value), schema, "Properties", "object")
        if wrong is not None:
            return path, wrong
        for name in schema.get("required", ()):
            if name not in value:
                return path, f"Object missing required field {name}"
        return next(self._members(schema, value, path), None)

    def _members(self, schema: Schema, value: dict[str, object], path: str) -> Iterator[Mismatch]:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for key, item in value.items():
            if key in properties:
                found = self.check(properties[key], item, f"{path}.{key}")
            elif others is False:
                found = path, f"Object contains unknown field {key}"
            else:
                found = self._key(schema.get("propertyNames", {}), key, path)
                found = found or self.check(others, item, f"{path}[{key!r}]")
            if found is not None:
                yield found

    def _key(self, schema: Schema, key: str, path: str) -> Mismatch | None:
        kind = _kind_of(schema)
        if kind is not Any:
            try:
                keyed: Any = dict[kind, None]  # type: ignore[valid-type]  # a type built at run time
                msgspec.convert({key: None}, keyed, str_keys=True, builtin_types=self._builtin)
            except msgspec.ValidationError as error:
                return f"{path}[{key!r}]", _reason(error)
        return None

    def _array(self, schema: Schema, value: object, path: str) -> Mismatch | None:
        if not isinstance(value, list):
            return path, f"Expected array, got {_name_of(value)}"
        wrong = _outside(len(value), schema, "Items", "array")
        if wrong is not None:
            return path, wrong
        first, others = schema.get("prefixItems", []), schema.get("items", {})
        for index, item in enumerate(value):
            found = self.check(first[index] if index < len(first) else others, item, f"{path}[{index}]")
            if found is not None:
                return found
        return None

    def _leaf(self, schema: Schema, value: object, path: str) -> Mismatch | None:
        kind = _kind_of(schema)
        if kind is Any:
            return None
        try:
            msgspec.convert(value, kind, builtin_types=self._builtin)
        except msgspec.ValidationError as error:
            if "enum" in schema:
                return path, f"Expected {self._name(schema)}, got {_short_repr(value)}"
            return path, _reason(error)
        return None

    def _name(self, schema: Schema) -> str:
        schema = self._resolved(schema)
        if "enum" in schema:
            return " | ".join(map(repr, schema["enum"]))
        if "anyOf" in schema:
            return " | ".join(map(self._name, schema["anyOf"]))
        if "classes" in schema:
            return " | ".join(schema["classes"])
        if "model" in schema:
            return str(schema["model"]).rpartition(".")[2]
        word = str(schema.get("format") or schema["type"])
        return _PYTHON_NAMES.get(word, word)


def _kind_of(schema: Schema) -> Any:
    """Return the type to which a value without parts is converted; Any if there is none."""
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    word = schema.get("format") or schema.get("type")
    if word not in _KINDS:
        return Any
    limits = {limit: schema[said] for said, limit in _LIMITS.items() if said in schema}
    return Annotated[_KINDS[word], msgspec.Meta(**limits)] if limits else _KINDS[word]


def _outside(size: int, schema: Schema, what: str, name: str) -> str | None:
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}", size)
    if least <= size <= most:
        return None
    wanted = f"{least}" if least == most else f"at least {least}" if size < least else f"at most {most}"
    return f"Expected {name} of length {wanted}, got {size}"


def _reason(error: msgspec.ValidationError) -> str:
    """Return msgspec's reason without its path, which is relative to the part."""
    return str(error).partition(" - at `")[0].replace("`", "")


def _short_repr(value: object) -> str:
    return repr(value) if isinstance(value, str | int | float) and len(repr(value)) <= 60 else _name_of(value)


def _name_of(value: object) -> str:
    names = {dict: "object", list: "array", type(None): "null"}
    return names.get(type(value), type(value).__name__)
