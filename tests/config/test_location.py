from pathlib import Path

import pytest

import dpft
from dpft.config.load import config_directory
from dpft.errors import InputError


def install(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    package.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(dpft, "__file__", str(package / "__init__.py"))


def test_a_checkout_has_its_configurations_beside_the_package() -> None:
    assert config_directory() == Path(dpft.__file__).resolve().parent.parent / "conf"


def test_a_wheel_has_its_configurations_inside_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "dpft" / "conf").mkdir(parents=True)
    (tmp_path / "conf").mkdir()
    install(monkeypatch, tmp_path / "dpft")
    assert config_directory() == tmp_path / "dpft" / "conf"


def test_configurations_in_neither_place_are_an_error_that_names_both(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    install(monkeypatch, tmp_path / "dpft")
    with pytest.raises(InputError) as error:
        config_directory()
    assert str(tmp_path / "dpft" / "conf") in str(error.value)
    assert str(tmp_path / "conf") in str(error.value)
