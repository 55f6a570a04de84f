"""Every configuration key has a description, because ``--help`` and the reference print it."""

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from dpft.config.help_text import first_sentence
from dpft.methods.base import METHODS
from dpft.privacy.mechanisms.base import MECHANISMS
from dpft.privacy.privacy_config import PRIVACY_CHOICES
from dpft.strict_model import description, model_in
from dpft.tasks.base import TASKS
from dpft.tasks.custom import CustomFields
from dpft.training.optimizers import OPTIMIZERS
from dpft.training.trackers import TRACKING
from tests.config.test_conf import ROOTS


def test_a_sentence_ends_at_its_full_stop() -> None:
    assert first_sentence("Above 0.5, e.g. one. Or two.") == "Above 0.5, e.g. one."
    assert first_sentence("no stop") == "no stop"


def models() -> Iterator[type[BaseModel]]:
    """Yield every model whose fields are keys."""
    registries = (METHODS, TASKS, TRACKING, OPTIMIZERS, MECHANISMS)
    waiting: list[type[BaseModel]] = [*ROOTS.values(), *PRIVACY_CHOICES.values(), CustomFields]
    waiting += [model for registry in registries for model in registry.entries().values()]
    seen: set[type[BaseModel]] = set()
    while waiting:
        model = waiting.pop()
        if model not in seen:
            seen.add(model)
            yield model
            sections = (model_in(field.annotation) for field in model.model_fields.values())
            waiting += [section for section in sections if section is not None]


@pytest.mark.parametrize("model", list(models()), ids=lambda model: model.__name__)
def test_every_key_has_a_description(model: type[BaseModel]) -> None:
    silent = [
        name
        for name, field in model.model_fields.items()
        if model_in(field.annotation) is None
        and not first_sentence(description(model, name)).endswith(".")
    ]
    assert silent == []
