"""Base class of all structured data: strict, frozen pydantic models, read from and written as JSON.

A class that derives from ``StrictModel`` declares each fact once. The same fields are used for
computation, files and documentation. JSON Schemas come from ``model_json_schema``.
"""

import ast
import json
import sys
import types
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from dpft.errors import StateError
from dpft.run_folder import read_json, write_text


class StrictModel(BaseModel):
    """A frozen pydantic model that converts no types and rejects unknown keys.

    The text below a field describes the field (``description``). Numbers are finite. A field with
    an alias uses the alias as its key in files; Python code may use both names.
    """

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        populate_by_name=True,
        defer_build=True,
        protected_namespaces=(),
    )

    def model_post_init(self, context: object) -> None:
        """Check fields that depend on each other.

        Raises:
            ValueError: The values are inconsistent; pydantic converts this to a ValidationError.
        """
        self._check_fields()

    def _check_fields(self) -> None:
        """Reject inconsistent values; overridden in classes whose fields depend on each other."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed, validated like a new instance."""
        return type(self)(**{**values_of(self, type(self)), **changes})


def values_of(model: BaseModel, kind: type[BaseModel]) -> dict[str, Any]:
    """Return the values of the fields that a model shares with a base class."""
    return {name: getattr(model, name) for name in kind.model_fields}


Count = Annotated[int, Field(ge=0)]
AtLeastOne = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Delta = Annotated[float, Field(gt=0, lt=1)]
RunId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Day = Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}$")]


def description(kind: type[BaseModel], name: str) -> str:
    """Return the text below a field, or below the field of a base class that it overrides.

    pydantic's ``use_attribute_docstrings`` is not used, because it reads the source of each class
    when the class is defined. For all sections together, this takes a third of a second.
    """
    texts = (_texts(base.__module__).get((base.__qualname__, name)) for base in kind.__mro__)
    return " ".join(next(filter(None, texts), "").split())


@cache
def _texts(module: str) -> dict[tuple[str, str], str]:
    """Return the texts below the fields of a module's classes, by class and field."""
    source = getattr(sys.modules.get(module), "__file__", None)
    if source is None:
        return {}
    texts = {}
    for node in ast.parse(Path(source).read_text(encoding="utf-8")).body:
        lines = node.body if isinstance(node, ast.ClassDef) else []
        for field, text in pairwise(lines):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(value))):
                    texts[getattr(node, "name", ""), name] = value
    return texts


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the types that a union allows, or the type itself."""
    if get_origin(annotation) is Annotated:
        return members(get_args(annotation)[0])
    if get_origin(annotation) not in (Union, types.UnionType):
        return (annotation,)
    return tuple(inner for argument in get_args(annotation) for inner in members(argument))


def model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the first model class among the types of a field, or None if there is none."""
    return next((member for member in members(annotation) if _is_model(member)), None)


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


NAMES: dict[Any, str] = {type(None): "null", Any: "any value"}
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "of at least"}


def type_text(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Return the text for a type in help and in errors.

    >>> type_text(str | tuple[str, ...] | None)
    'str | list[str] | null'
    >>> type_text(Annotated[int, Field(ge=1)] | Literal["auto"])
    'int ≥ 1 | auto'

    Args:
        annotation: The type of a field.
        metadata: Constraints that pydantic stores separately from the type: ``FieldInfo.metadata``.
    """
    if get_origin(annotation) is Annotated:
        annotation, *constraints = get_args(annotation)
        inner = [c.metadata if isinstance(c, FieldInfo) else [c] for c in constraints]
        return type_text(annotation, [*metadata, *chain.from_iterable(inner)])
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(type_text, arguments)))
    if origin is Literal:
        return " | ".join(map(str, arguments))
    bounds = [
        f"{sign} {getattr(constraint, name):g}"
        for name, sign in BOUNDS.items()
        for constraint in metadata
        if getattr(constraint, name, None) is not None
    ]
    name = NAMES.get(annotation) or str(getattr(annotation, "__name__", annotation))
    if origin in (list, tuple):
        name = f"list[{type_text(arguments[0])}]"
    elif annotation is dict or isinstance(origin, type) or _is_model(annotation):
        name = "group of keys"
    return " ".join([name, " and ".join(bounds)]) if bounds else name


class Versioned(StrictModel):
    """Base class of files and command outputs that contain the version of their schema."""

    schema_version: Literal[2] = 2
    """Version of the schema. A reader rejects other versions."""


Model = TypeVar("Model")


def as_json(value: Any) -> Any:
    """Return a model, or a collection of models, as JSON values.

    A key with the value null is omitted if null is its default.
    """
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {
            fields[name].alias or name if name in fields else name: as_json(item)
            for name, item in value
            if item is not None or name not in fields or fields[name].default is not None
        }
    if isinstance(value, Mapping):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return to_jsonable_python(value, by_alias=True)


def json_text(value: Any) -> str:
    """Return a model as JSON text for a file or for stdout, without a final newline."""
    return json.dumps(as_json(value), indent=2, sort_keys=True)


def write_model(path: Path, value: Any, *, mode: int = 0o644) -> None:
    """Write a model to a file, completely or not at all."""
    write_text(path, json_text(value) + "\n", mode=mode)


def parse(value: Any, kind: type[Model]) -> Model:
    """Return the model, or the member of a union of models, for a JSON value.

    Raises:
        ValidationError: A key is missing or unknown, or has an invalid value.
    """
    return parse_text(json.dumps(value), kind)


def parse_text(text: str, kind: type[Model]) -> Model:
    """Return the model for the text of a JSON value; see ``parse``."""
    adapter: TypeAdapter[Model] = _adapter(kind)  # type: ignore[arg-type]
    return adapter.validate_json(text)


def read_model(path: Path, kind: type[Model]) -> Model:
    """Return the model that a file contains.

    Raises:
        InputError: The file has another schema version.
        StateError: The file is damaged.
    """
    try:
        return parse(read_json(path), kind)
    except ValidationError as error:
        raise StateError(
            f"{path} is damaged: {in_short(error)}. Restore it from a backup."
        ) from None


def in_short(error: ValidationError) -> str:
    """Return the first rejected key of a file, with the reason."""
    entry = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def merge_models(kind: type[Model], *parts: BaseModel, **values: Any) -> Model:
    """Return a model with the fields of other models; later values override earlier ones.

    Args:
        kind: The class of the model.
        parts: Models whose fields are all fields of ``kind``.
        values: Further fields.
    """
    fields: dict[str, Any] = {}
    for part in parts:
        fields |= values_of(part, type(part))
    return kind(**(fields | values))
