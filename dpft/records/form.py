"""Records: frozen dataclasses of JSON objects, how they are written, and strictly read.

    @dataclass(frozen=True, kw_only=True)
    class Check:
        '''A check.'''

        what: str
        '''What was looked for.'''
        cost: str | None
        '''What does not work; null where all is well.'''
        note: str | None = None
        '''What else there is to say.'''

A field is a key, and the text below it says what the key is. A key whose default is None may be
absent, and is then not null; every other key stands in each file, whatever its default, and so does
one with the default ``null()``. A whole number may stand for a number and stays one, so that what
was read is written with the same bytes. A union of records takes the first one whose own key is
there: a key that it must have and the later ones do not know. ``dpft.schemas`` makes JSON Schemas
of these classes.

Two libraries that do this were measured. msgspec 0.22 takes no union of records without a tag in
the file, and our files have twelve. pydantic 2.14 takes 0.2 s to be imported, as long as all of
``dpft --help``; it takes null for an absent key, and writes it, and 3 as 3.0, when it writes again.
"""

import ast
import dataclasses
import functools
import inspect
import json
import math
import operator
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from dpft.errors import StateError
from dpft.files import read_json, write_text

Record = TypeVar("Record")
OTHER_KEYS = "other keys"
"""Marks the field, a mapping, that takes the keys which no other field has."""
_LONGEST = 60
"""Characters of a wrong value that a message shows."""


class Misfit(ValueError):
    """A value is not what its record says; the message names the key."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds and choices of a value beyond its type, as a part of ``Annotated``."""

    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    pattern: str | None = None
    """A regular expression that the whole text matches."""
    min_items: int | None = None
    choices: tuple[str, ...] = ()
    """All texts that are allowed, where its writers know the value as a text."""
    words: str = ""
    """The expected value in the words of a message; made of the limits where it is empty."""

    def given(self) -> Iterator[tuple["_Limit", Any]]:
        """Yields each limit that is set, with what it is set to."""
        for name, limit in _LIMITS.items():
            bound = getattr(self, name)
            if bound is not None and bound != ():
                yield limit, bound

    def hold(self, value: Any) -> bool:
        """Returns whether a value of the right type is within the limits."""
        return all(limit.holds(value, bound) for limit, bound in self.given())

    def describe(self, kind: str) -> str:
        """Returns what must be there, of the type that ``kind`` names."""
        if self.words:
            return self.words
        if self.choices:
            return f"one of {', '.join(map(json.dumps, self.choices))}"
        limits = (f"{limit.words} {bound:g}" for limit, bound in self.given() if limit.words)
        return f"{kind} {' and '.join(limits)}"


class _Limit(NamedTuple):
    keyword: str
    """What JSON Schema calls it."""
    holds: Callable[[Any, Any], bool]
    """Whether a value, the first argument, keeps it."""
    words: str = ""
    """What a message says before its number."""


_LIMITS = {
    "minimum": _Limit("minimum", operator.ge, "of at least"),
    "maximum": _Limit("maximum", operator.le, "of at most"),
    "above": _Limit("exclusiveMinimum", operator.gt, "above"),
    "below": _Limit("exclusiveMaximum", operator.lt, "below"),
    "pattern": _Limit("pattern", lambda text, pattern: bool(re.fullmatch(pattern, text))),
    "min_items": _Limit("minItems", lambda items, n: len(items) >= n, "with a length of at least"),
    "choices": _Limit("enum", lambda text, choices: text in choices),
}
"""Each field of ``Limits`` that is a limit."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A condition on some keys of a record."""

    requires: tuple[str, ...] = ()
    """Keys that are there."""
    lacks: tuple[str, ...] = ()
    """Keys that are not."""
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Keys with the one value that they have."""

    def holds(self, record: Any) -> bool:
        """Returns whether a record meets the condition."""
        return (
            all(getattr(record, name) is not None for name in self.requires)
            and all(getattr(record, name) is None for name in self.lacks)
            and all(getattr(record, name) == value for name, value in self.values.items())
        )

    def keywords(self) -> dict[str, Any]:
        """Returns its keywords in JSON Schema."""
        named: dict[str, Any] = {name: False for name in self.lacks}
        named |= {name: {"const": value} for name, value in self.values.items()}
        required = {"required": list(self.requires)} if self.requires else {}
        return required | ({"properties": named} if named else {})

    def __str__(self) -> str:
        said = [*self.requires, *(f"no {name}" for name in self.lacks)]
        said += [f"{name} {json.dumps(value)}" for name, value in self.values.items()]
        return " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A condition on a record wherever another one holds; its JSON Schema has both.

    >>> rule = Rule(when=Part(requires=("seed",)), then=Part(values={"private": False}))
    >>> rule.keywords()
    {'if': {'required': ['seed']}, 'then': {'properties': {'private': {'const': False}}}}
    """

    when: Part
    """Where the rule binds."""
    then: Part
    """The condition there."""
    otherwise: Part | None = None
    """The condition elsewhere; None: there is none."""

    def broken(self, record: Any) -> str | None:
        """Returns how a record breaks the rule, in words; None where it keeps it."""
        applies = self.when.holds(record)
        part = self.then if applies else self.otherwise
        if part is None or part.holds(record):
            return None
        return f"with{'' if applies else 'out'} {self.when} it must have {part}"

    def keywords(self) -> dict[str, Any]:
        """Returns its keywords in JSON Schema."""
        elsewhere = {} if self.otherwise is None else {"else": self.otherwise.keywords()}
        return {"if": self.when.keywords(), "then": self.then.keywords(), **elsewhere}


@dataclass(frozen=True)
class Together:
    """Keys of which all are there, or none."""

    names: tuple[str, ...]

    def broken(self, record: Any) -> str | None:
        """Returns how a record breaks the rule, in words; None where it keeps it."""
        absent = [getattr(record, name) for name in self.names].count(None)
        if absent in (0, len(self.names)):
            return None
        return f"{', '.join(self.names[:-1])} and {self.names[-1]} must stand together"

    def keywords(self) -> dict[str, Any]:
        """Returns its keywords in JSON Schema."""
        first, *others = self.names
        return {"dependentRequired": {first: others, **{name: [first] for name in others}}}


@dataclass(frozen=True)
class OneOf:
    """Keys of which one is there, and no other."""

    names: tuple[str, ...]

    def broken(self, record: Any) -> str | None:
        """Returns how a record breaks the rule, in words; None where it keeps it."""
        there = sum(getattr(record, name) is not None for name in self.names)
        named = f"{', '.join(self.names[:-1])} and {self.names[-1]}"
        return None if there == 1 else f"exactly one of {named} must be there"

    def keywords(self) -> dict[str, Any]:
        """Returns its keywords in JSON Schema."""
        return {"oneOf": [{"required": [name]} for name in self.names]}


AnyRule = Rule | Together | OneOf
Rules = tuple[AnyRule, ...]


class Ruled:
    """Base of records whose keys are bound to each other by ``RULES``, its bases' among them."""

    RULES: ClassVar[Rules] = ()

    def __post_init__(self) -> None:
        """Refuses keys that do not go together."""
        for rule in rules_of(type(self)):
            said = rule.broken(self)
            if said is not None:
                raise ValueError(said)


def rules_of(kind: type) -> tuple[AnyRule, ...]:
    """Returns the rules of a record and of its bases."""
    return tuple(rule for base in kind.__mro__ for rule in vars(base).get("RULES", ()))


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a record."""

    field: str
    """Name of its field, which is the key but where the key is no name of Python."""
    name: str
    hint: Any
    """The type of its value; without null where null only stands for an absent key."""
    is_optional: bool
    may_lack: bool
    """Whether a file is read that lacks it, though every file that is written has it."""
    takes_others: bool
    """Whether it is no key but holds all keys that have no field."""


def null() -> Any:
    """Returns the default of a key that stands in each file, and is null where nothing is given."""
    return dataclasses.field(default=None, metadata={"null": True})


def named(name: str) -> Any:
    """Returns what stands for the default of a key that is no name of Python; it has none."""
    return dataclasses.field(metadata={"name": name})


@functools.cache
def keys_of(kind: Any) -> tuple[Key, ...]:
    """Returns the keys of a record, in the order of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    keys = []
    for field in dataclasses.fields(kind):
        hint = hints[field.name]
        is_optional = field.default is None and not field.metadata
        takes_others = OTHER_KEYS in getattr(hint, "__metadata__", ())
        if is_optional:
            others = (each for each in get_args(hint) if each is not types.NoneType)
            hint = functools.reduce(operator.or_, others)
        keys.append(
            Key(
                field=field.name,
                name=field.metadata.get("name", field.name),
                hint=hint,
                is_optional=is_optional,
                may_lack=is_optional,
                takes_others=takes_others,
            )
        )
    return tuple(keys)


def members(hint: Any) -> tuple[Any, ...]:
    """Returns the types that a union allows; a type that is no union alone."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def own_key(kind: Any, later: tuple[Any, ...]) -> str:
    """Returns the key that tells a record from the later ones of a union.

    Raises:
        TypeError: There is none.
    """
    known = {key.name for each in later for key in keys_of(each)}
    for key in keys_of(kind):
        if not key.is_optional and key.name not in known:
            return key.name
    raise TypeError(f"{kind.__name__} needs a key of its own beside {later}.")


def as_json(record: Any) -> Any:
    """Returns a record as ``json.dumps`` takes it: without the keys that are absent."""
    if dataclasses.is_dataclass(record):
        found: dict[str, Any] = {}
        kind: Any = type(record)
        for key in keys_of(kind):
            value = getattr(record, key.field)
            if key.takes_others:
                found |= as_json(value)
            elif value is not None or not key.is_optional:
                found[key.name] = as_json(value)
        return found
    if isinstance(record, Mapping):
        return {name: as_json(value) for name, value in record.items()}
    if isinstance(record, list | tuple):
        return [as_json(value) for value in record]
    return record


def json_text(record: Any) -> str:
    """Returns a record as the text of its file, or as a command prints it, without the newline."""
    return json.dumps(as_json(record), indent=2, sort_keys=True)


def write_record(path: Path, record: Any, *, mode: int = 0o644) -> None:
    """Writes a record into a file of its own, whole or not at all."""
    write_text(path, json_text(record) + "\n", mode=mode)


def joined(kind: type[Record], *parts: Any, **values: Any) -> Record:
    """Returns a record of the fields of others; of two values of a field the later one holds.

    Args:
        kind: The record's class.
        parts: Records, each with some of its fields and none that it has not.
        values: Further fields.
    """
    found: dict[str, Any] = {}
    for part in parts:
        found |= vars(part)
    return kind(**(found | values))


def read_record(path: Path, kind: type[Record]) -> Record:
    """Returns the record that a file holds.

    Raises:
        InputError: It is of another schema version.
        StateError: It is damaged.
    """
    try:
        return parse(read_json(path), kind)
    except Misfit as misfit:
        raise StateError(f"{path} is damaged: {misfit}; put it back as it was.") from None


def parse(value: Any, kind: type[Record]) -> Record:
    """Returns the record that a value of JSON stands for.

    Raises:
        Misfit: It lacks a key, has one that the record has not, or another kind of value.
    """
    hint: Any = kind
    return cast("Record", _parser(hint)(value, ""))


_Parser = Callable[[Any, str], Any]
"""From a value and its place in the file to what it stands for."""
_KINDS: dict[Any, tuple[str, tuple[type, ...]]] = {
    bool: ("true or false", (bool,)),
    int: ("a whole number", (int,)),
    float: ("a number", (int, float)),
    str: ("text", (str,)),
    types.NoneType: ("null", (types.NoneType,)),
}


@functools.cache
def _parser(hint: Any) -> _Parser:
    origin = get_origin(hint)
    if hint is Any:
        return lambda value, place: value
    if origin is Annotated:
        return _limited(hint)
    if origin in (Union, types.UnionType):
        return _union(hint)
    if origin is tuple:
        return _sequence(hint)
    if origin is Literal:
        return _choice(get_args(hint), describe(hint))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(hint)
    return _record(hint) if dataclasses.is_dataclass(hint) else _scalar(hint)


def describe(hint: Any) -> str:
    """Returns a type in the words of a message, such as ``a number above 0 or null``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = [each for each in hint.__metadata__ if isinstance(each, Limits)]
        return limits[0].describe(describe(arguments[0])) if limits else describe(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(describe, arguments)))
    if origin is Literal:
        shown = ", ".join(json.dumps(value) for value in arguments)
        return shown if len(arguments) == 1 else f"one of {shown}"
    if origin is tuple:
        return "a list" if arguments[-1] is ... else f"a list of {len(arguments)}"
    return _KINDS[hint][0] if hint in _KINDS else "an object"


def _refuse(value: Any, place: str, hint: Any) -> Misfit:
    shown = "an object" if isinstance(value, dict) else "a list"
    if not isinstance(value, dict | list):
        shown = json.dumps(value)
        shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"
    return Misfit(f"{place or 'it'} must be {describe(hint)}, got {shown}")


def _scalar(hint: Any, whole: Any = None) -> _Parser:
    """Returns the parser of a value without parts; a message describes it with its limits."""
    _, kinds = _KINDS[hint]

    def parsed(value: Any, place: str) -> Any:
        if type(value) not in kinds or (type(value) is float and not math.isfinite(value)):
            raise _refuse(value, place, whole or hint)
        return value

    return parsed


def _limited(hint: Any) -> _Parser:
    bare = get_args(hint)[0]
    inner = _scalar(bare, hint) if bare in _KINDS else _parser(bare)
    limits = [each for each in hint.__metadata__ if isinstance(each, Limits)]

    def parsed(value: Any, place: str) -> Any:
        found = inner(value, place)
        if not all(limit.hold(found) for limit in limits):
            raise _refuse(value, place, hint)
        return found

    return parsed


def _choice(choices: tuple[Any, ...], words: str) -> _Parser:
    def parsed(value: Any, place: str) -> Any:
        # 1, 1.0 and true are equal, and other values.
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            raise _refuse(value, place, Literal[choices])
        return value

    return parsed


def _sequence(hint: Any) -> _Parser:
    arguments = get_args(hint)
    is_free = arguments[-1] is ...
    inner = [_parser(each) for each in arguments if each is not ...]

    def parsed(value: Any, place: str) -> Any:
        if not isinstance(value, list) or not (is_free or len(value) == len(inner)):
            raise _refuse(value, place, hint)
        parsers = inner * len(value) if is_free else inner
        return tuple(
            parser(each, f"{place}[{number}]")
            for number, (each, parser) in enumerate(zip(value, parsers, strict=True))
        )

    return parsed


def _mapping(hint: Any) -> _Parser:
    of_name, of_value = map(_parser, get_args(hint))

    def parsed(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _refuse(value, place, hint)
        return {
            of_name(name, f"a name in {place or 'it'}"): of_value(each, _below(place, name))
            for name, each in value.items()
        }

    return parsed


def _union(hint: Any) -> _Parser:
    kinds = members(hint)
    records: tuple[Any, ...] = tuple(kind for kind in kinds if dataclasses.is_dataclass(kind))
    told = [
        (own_key(kind, records[number:]), _parser(kind))
        for number, kind in enumerate(records[:-1], start=1)
    ]
    others = [_parser(kind) for kind in kinds if kind not in records]
    last = _parser(records[-1]) if records else None

    def parsed(value: Any, place: str) -> Any:
        if last is not None and isinstance(value, dict):
            return next((parser for key, parser in told if key in value), last)(value, place)
        for parser in others:
            try:
                return parser(value, place)
            except Misfit:
                continue
        raise _refuse(value, place, hint)

    return parsed


def _record(kind: Any) -> _Parser:
    # The classes of a module may name each other, so that parsers of keys are made when needed.
    parsers = functools.cache(lambda: {key.name: _parser(key.hint) for key in keys_of(kind)})
    keys = {key.name: key for key in keys_of(kind) if not key.takes_others}
    others = next((key for key in keys_of(kind) if key.takes_others), None)

    def parsed(value: Any, place: str) -> Any:
        if not isinstance(value, dict):
            raise _refuse(value, place, kind)
        arguments = {
            keys[name].field: parsers()[name](each, _below(place, name))
            for name, each in value.items()
            if name in keys
        }
        unknown = {name: each for name, each in value.items() if name not in keys}
        if others is not None:
            arguments[others.field] = parsers()[others.name](unknown, place)
        elif unknown:
            raise Misfit(f"{_below(place, next(iter(unknown)))} is no key of it")
        for key in keys.values():
            if key.field not in arguments and not key.may_lack:
                raise Misfit(f"{_below(place, key.name)} is missing")
        try:
            return kind(**arguments)
        except ValueError as error:
            raise Misfit(f"{f'{place}: ' if place else ''}{error}") from None

    return parsed


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def records_within(hint: Any) -> Iterator[type]:
    """Yields each record that a type names, once for each time; not those within them."""
    if dataclasses.is_dataclass(hint):
        yield cast("type", hint)
    else:
        for each in get_args(hint):
            yield from records_within(each)


Count = Annotated[int, Limits(minimum=0)]
AtLeastOne = Annotated[int, Limits(minimum=1)]
NotNegative = Annotated[float, Limits(minimum=0)]
Positive = Annotated[float, Limits(above=0)]
Probability = Annotated[float, Limits(minimum=0, maximum=1)]
Rate = Annotated[float, Limits(above=0, maximum=1)]
Delta = Annotated[float, Limits(above=0, below=1)]
RunId = Annotated[str, Limits(pattern="[0-9a-f]{32}", words="32 hexadecimal digits")]
Digest = Annotated[str, Limits(pattern="[0-9a-f]{64}", words="64 hexadecimal digits")]
Day = Annotated[str, Limits(pattern=r"\d{4}-\d{2}-\d{2}", words="a day, such as 2026-01-31")]


@dataclass(frozen=True, kw_only=True)
class Versioned:
    """A file, or an answer, that says of which form it is."""

    schema_version: Literal[1] = 1
    """Version of the file's form. A reader refuses another one."""


def texts_of(cls: type) -> dict[str, str]:
    """Returns the text on each field of a dataclass, on one line; a base's where it has no own."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base is not object:
            texts |= _own_texts(base)
    return {name: " ".join(text.split()) for name, text in texts.items()}


def _own_texts(cls: type) -> dict[str, str]:
    """Returns the texts below the fields that a class itself declares."""
    found = _classes(inspect.getsourcefile(cls) or "").get(cls.__qualname__)
    if found is None:
        return {}
    return {
        field.target.id: text.value.value
        for field, text in zip(found.body, found.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


@functools.cache
def _classes(file: str) -> dict[str, ast.ClassDef]:
    """Returns the classes of a source file, by name."""
    source = Path(file).read_text(encoding="utf-8")
    return {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
