import importlib
import sys

import pytest

import dpft


@pytest.mark.parametrize(
    ("before", "now", "name"),
    [
        ("dpft.methods.parts", "dpft.methods.base", "train_only"),
        ("dpft.tasks.records", "dpft.tasks.base", "Example"),
    ],
)
def test_a_module_of_the_last_versions_pages_is_found_with_a_warning(
    before: str, now: str, name: str
) -> None:
    sys.modules.pop(before, None)
    module = importlib.import_module(now)
    with pytest.warns(FutureWarning, match=f"{before} is now {now}: import from there."):
        old = importlib.import_module(before)
    assert getattr(old, name) is getattr(module, name)
    assert module.__spec__ is not None and module.__spec__.name == module.__name__ == now


def test_every_module_that_moved_has_a_place_now() -> None:
    assert dpft._MOVED and all(importlib.util.find_spec(now) for now in dpft._MOVED.values())
