import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from dpft.config.keys import known_keys, plain
from dpft.config.load import by_name, dump, from_values, load, load_saved, to_yaml
from dpft.errors import InputError
from tests.config.recipe import POLYMORPHIC, Named, Root


def loaded(**changes: object) -> Root:
    values = {"method": {"name": "full"}, "privacy": {"eps": 3}} | changes
    return load(OmegaConf.create(values), Root, polymorphic=POLYMORPHIC)


def refusal(**changes: object) -> str:
    with pytest.raises(InputError) as error:
        loaded(**changes)
    return str(error.value)


def test_interpolations_are_resolved() -> None:
    assert (
        loaded(path="${privacy.accountant}", privacy={"eps": 1, "accountant": "rdp"}).path == "rdp"
    )
    assert "nowhere" in refusal(path="${nowhere}")


def test_a_value_taken_from_a_key_that_a_yaml_lacks_names_that_key_and_all_else_is_said() -> None:
    said = refusal(path="${privacy.nothing}", method={})
    assert said.startswith("2 faults:\n- privacy.nothing has no value, and path takes it from")
    assert "write it into the YAML that privacy=NAME chooses" in said
    assert "method is not chosen" in said and "Interpolation" not in said
    assert "faults" not in refusal(path="${privacy.nothing}")


def test_a_saved_configuration_reads_back_equal(tmp_path: Path) -> None:
    config = loaded(
        method={"name": "lora"},
        privacy={"eps": 3, "delta": 1e-7},
        path="Łódź",
    )
    config = dataclasses.replace(config, labels=("yes", "${x", "1e-5"))
    dump(config, tmp_path / "config.yaml")
    saved = load_saved(tmp_path / "config.yaml", Root, polymorphic=POLYMORPHIC)
    assert saved == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_saved_configuration_has_sorted_keys() -> None:
    keys = [line.split(":")[0] for line in to_yaml(loaded()).splitlines() if line[0].isalpha()]
    assert keys == sorted(keys)


def test_a_saved_configuration_that_is_missing_or_no_yaml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="config.yaml"):
        load_saved(tmp_path / "config.yaml", Root)
    (tmp_path / "config.yaml").write_text("a: [1")
    with pytest.raises(InputError, match="config.yaml"):
        load_saved(tmp_path / "config.yaml", Root)
    (tmp_path / "config.yaml").write_text("- 1")
    with pytest.raises(InputError, match="mapping"):
        load_saved(tmp_path / "config.yaml", Root)


def test_the_known_keys_are_those_of_nested_dataclasses_too() -> None:
    assert {"privacy", "privacy.eps", "method.name", "urls"} <= set(known_keys(Root))


def test_a_saved_configuration_of_an_earlier_version_is_read_without_its_retired_keys(
    tmp_path: Path,
) -> None:
    """A run that was trained with ``privacy.secure_noise`` can still be evaluated."""

    @dataclass(frozen=True, kw_only=True)
    class Privacy:
        eps: float

    @dataclass(frozen=True, kw_only=True)
    class Saved:
        privacy: Privacy

    path = tmp_path / "config.yaml"
    path.write_text("privacy: {eps: 3.0, secure_noise: false}\n")
    assert load_saved(path, Saved) == Saved(privacy=Privacy(eps=3.0))
    path.write_text("privacy: {eps: 3.0, secret_noise: false}\n")
    with pytest.raises(InputError, match="unknown configuration key"):
        load_saved(path, Saved)


def test_a_saved_configuration_from_before_rules_of_delta_keeps_the_delta_that_it_had(
    tmp_path: Path,
) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Task:
        default_delta: str = "own_data"

    @dataclass(frozen=True, kw_only=True)
    class Saved:
        task: Task

    path = tmp_path / "config.yaml"
    path.write_text("task: {}\n")
    assert load_saved(path, Saved).task.default_delta == "published", "1/(2n), as all had then"
    path.write_text("task: {default_delta: own_data}\n")
    assert load_saved(path, Saved).task.default_delta == "own_data"


def test_a_saved_text_is_never_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may have been received: what stands in it must not read its receiver's secrets."""
    monkeypatch.setenv("SECRET", "hidden")
    given = dataclasses.replace(loaded(), method=Named(name="full", text="${oc.env:SECRET}"))
    dump(given, tmp_path / "config.yaml")
    polymorphic = {"method": by_name(lambda _: Named)}
    saved = load_saved(tmp_path / "config.yaml", Root, polymorphic=polymorphic)
    assert saved == given
    assert from_values(plain(saved), Root, polymorphic=polymorphic) == given
