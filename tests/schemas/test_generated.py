"""The schemas that ship are those that the records make."""

import pytest

from dpft.schemas import names, path_of
from dpft.schemas.generate import FORMS, made_schemas, schema_text


def test_every_schema_is_made_of_a_record() -> None:
    assert set(FORMS) == set(names())


@pytest.mark.parametrize("name", sorted(FORMS))
def test_a_schema_did_not_change_unmeant(name: str) -> None:
    """Who reads our files reads this difference before it is merged."""
    assert path_of(name).read_text(encoding="utf-8") == schema_text(made_schemas()[name]), (
        "if the change is meant: python -m dpft.schemas.generate"
    )
