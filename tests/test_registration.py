import sys
from pathlib import Path

import pytest

from dpft.registry import Registry
from tests.rejections import rejects

OFFER = "from offers_by_name import offers\n\n@offers.register({names})\ndef offer(): ...\n"


@pytest.fixture
def offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry of a package of three modules that offer something and one that helps them."""
    package = tmp_path / "offers_by_name"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from dpft.registry import Registry\n\n"
        "offers = Registry('offers_by_name', key='offer.name')\n"
    )
    (package / "first.py").write_text(OFFER.format(names="'zwei', 'two'"))
    (package / "helper.py").write_text("")
    (package / "second.py").write_text(OFFER.format(names="'one'"))
    (package / "third.py").write_text(OFFER.format(names="'third'"))
    monkeypatch.syspath_prepend(tmp_path)
    import offers_by_name

    yield offers_by_name.offers
    for module in [name for name in sys.modules if name.startswith("offers_by_name")]:
        del sys.modules[module]


def test_every_module_that_registers_is_found_and_one_that_does_not_is_none(offers) -> None:
    entries = offers.entries()
    assert list(entries) == ["one", "third", "two", "zwei"]
    assert entries["two"] is entries["zwei"] is sys.modules["offers_by_name.first"].offer


def test_a_module_of_the_entrys_own_name_is_the_only_one_imported(offers) -> None:
    assert offers.named("third") is sys.modules["offers_by_name.third"].offer
    assert "offers_by_name.first" not in sys.modules


def test_a_name_is_given_once(offers) -> None:
    offers.register("three")(object())
    with pytest.raises(ValueError, match="three"):
        offers.register("three")(object())


def test_a_name_that_nothing_has_is_refused_with_those_there_are(offers) -> None:
    assert offers.named("two") is sys.modules["offers_by_name.first"].offer
    with rejects("offer.name", "fourth") as faults:
        offers.named("fourth")
    assert "one, third, two, zwei" in faults[0].message
