"""Base classes of configuration sections.

``method=lora`` composes a section with ``name: lora``. ``ChosenBy`` then makes the field of that
section an instance of the class that is registered under this name.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from dpft.errors import Faults
from dpft.strict_model import StrictModel, model_in

ClassChoice = Callable[[Mapping[str, Any]], type["Section"]]
"""Function from the values of a section, including ``name``, to the class of the section."""
CrossCheck = tuple[tuple[str, ...], Callable[..., object]]
"""Names of fields, and a function that takes their values in this order and may reject them."""


class Section(StrictModel):
    """Section of a configuration, or the root of a configuration."""

    command_examples: ClassVar[tuple[str, ...]] = ()
    """Example commands at the start of the help, for a command with many keys."""
    main_keys: ClassVar[tuple[str, ...]] = ()
    """Groups and keys that the help of the command explains; ``--help all`` explains all."""


class Root(Section):
    """Root of a configuration, with checks that involve several of its sections."""

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = ()

    def _check_fields(self) -> None:
        """Run all cross-checks.

        Raises:
            InputError: The messages of all checks that failed.
        """
        faults = Faults()
        for names, check in self.cross_checks:
            with faults.gathering():
                check(*(getattr(self, name) for name in names))
        faults.refuse()


def by_name(choose: Callable[[str], type[Section]]) -> ClassChoice:
    """Return the function that chooses a class by the key ``name`` of the values."""
    return lambda values: choose(values["name"])


class ChosenBy:
    """Annotation of a field whose class depends on its values: ``Annotated[Task, ChosenBy(f)]``."""

    def __init__(self, choose: ClassChoice) -> None:
        self.choose = choose

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        """Return the schema with which pydantic validates and serializes the field."""
        return core_schema.no_info_wrap_validator_function(
            self._validated,
            handler(source),
            serialization=core_schema.wrap_serializer_function_ser_schema(
                lambda section, _, info: section.model_dump(mode=info.mode, by_alias=info.by_alias),
                info_arg=True,
            ),
        )

    def _validated(self, value: Any, handler: Callable[[Any], Any]) -> Any:
        if not isinstance(value, Mapping):
            return handler(value)
        if not isinstance(value.get("name"), str):
            raise PydanticCustomError("not_chosen", "not chosen")
        return self.choose(value).model_validate_json(json.dumps(value))


def section_class(field: FieldInfo, values: Any) -> type[BaseModel] | None:
    """Return the class of a section, which may depend on its values, or None for a single value."""
    chosen = [annotation for annotation in field.metadata if isinstance(annotation, ChosenBy)]
    if chosen and isinstance(values, Mapping) and isinstance(values.get("name"), str):
        return chosen[0].choose(values)
    return model_in(field.annotation)
