"""A configuration is read strictly, and saved so that it reads back equal."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from pydantic import Field, ValidationError

import dpft
from dpft.config.keys import known_keys
from dpft.config.load import (
    config_directory,
    dump,
    from_values,
    load,
    load_saved,
    plain,
    published_num_train_examples,
    to_yaml,
)
from dpft.config.section import ChosenBy, CrossCheck, Root, Section, by_name
from dpft.errors import Fault, InputError
from dpft.strict_model import type_text
from tests.rejections import rejects


class Method(Section):
    name: str


class Full(Method):
    pass


class Named(Method):
    text: str


class LoRA(Method):
    rank: Annotated[int, Field(ge=1)] = 4


class Privacy(Section):
    eps: float = Field(examples=[3])
    delta: float | None = None
    accountant: Literal["prv", "rdp"] = "prv"
    flag: bool = True


METHODS: dict[str, type[Section]] = {"full": Full, "lora": LoRA, "named": Named}


def method_class(name: str) -> type[Section]:
    if name not in METHODS:
        raise InputError(Fault(f"no method {name}", key="method", value=name))
    return METHODS[name]


class Config(Section):
    method: Annotated[Method, ChosenBy(by_name(method_class))]
    privacy: Privacy
    steps: int | None = None
    path: str | None = None
    labels: tuple[str, ...] = ()
    betas: list[float] = Field(default_factory=lambda: [0.9, 0.999])
    urls: dict[str, str] = Field(default_factory=dict)


def loaded(**changes: object) -> Config:
    values = {"method": {"name": "full"}, "privacy": {"eps": 3}} | changes
    return load(OmegaConf.create(values), Config)


def faults(**changes: object) -> list[Fault]:
    with pytest.raises(InputError) as error:
        loaded(**changes)
    return list(error.value.faults)


def test_interpolations_are_resolved() -> None:
    resolved = loaded(path="${privacy.accountant}", privacy={"eps": 1, "accountant": "rdp"})
    assert resolved.path == "rdp"


def test_an_interpolation_of_a_missing_key_names_that_key() -> None:
    (fault,) = faults(path="${privacy.nothing}")
    assert (fault.key, fault.hint) == ("privacy.nothing", "privacy.nothing=VALUE")


def test_a_saved_configuration_reads_back_equal(tmp_path: Path) -> None:
    config = loaded(method={"name": "lora", "rank": 8}, privacy={"eps": 3, "delta": 1e-7})
    config = config.replace(labels=("yes", "${x", "1e-5"), path="Łódź")
    dump(config, tmp_path / "config.yaml")
    assert load_saved(tmp_path / "config.yaml", Config) == config
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_saved_configuration_has_sorted_keys() -> None:
    keys = [line.split(":")[0] for line in to_yaml(loaded()).splitlines() if line[0].isalpha()]
    assert keys == sorted(keys)


@pytest.mark.parametrize("content", [None, "a: [1", "- 1"])
def test_a_saved_configuration_that_is_missing_or_no_mapping_is_rejected(
    content: str | None, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    with rejects():
        load_saved(tmp_path / "config.yaml", Config)


def test_known_keys_include_those_of_sections() -> None:
    assert {"privacy", "privacy.eps", "method.name", "urls"} <= set(known_keys(Config))
    values = {"method": {"name": "lora"}}
    assert "method.rank" in known_keys(Config, values)


def test_removed_keys_of_a_saved_configuration_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    written = "method: {name: full}\nprivacy: {eps: 3.0, secure_noise: false}\n"
    path.write_text(written)
    assert load_saved(path, Config) == loaded()
    path.write_text(written.replace("secure", "secret"))
    with rejects("privacy.secret_noise", False):
        load_saved(path, Config)


def test_a_saved_text_is_never_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A received folder must not read the recipient's environment."""
    monkeypatch.setenv("SECRET", "hidden")
    given = loaded().replace(method=Named(name="named", text="${oc.env:SECRET}"))
    dump(given, tmp_path / "config.yaml")
    saved = load_saved(tmp_path / "config.yaml", Config)
    assert saved == given
    assert from_values(plain(saved), Config) == given


def test_defaults_fill_what_is_not_given() -> None:
    assert loaded() == Config(method=Full(name="full"), privacy=Privacy(eps=3.0))
    assert isinstance(loaded().privacy.eps, float)


def test_a_class_is_chosen_by_name_and_has_its_own_keys() -> None:
    assert loaded(method={"name": "lora", "rank": 8}).method == LoRA(name="lora", rank=8)
    assert [fault.key for fault in faults(method={"name": "full", "rank": 8})] == ["method.rank"]


def test_a_name_that_does_not_exist_is_rejected_by_the_registry() -> None:
    (fault,) = faults(method={"name": "lorra"})
    assert (fault.key, fault.value) == ("method", "lorra")
    (fault,) = faults(method={"rank": 8})
    assert (fault.key, fault.hint) == ("method", "method=NAME")


def test_containers_have_the_annotated_types() -> None:
    config = loaded(labels=["yes", "no"], betas=[0, 0.5], urls={"train": "a.csv"})
    assert config.labels == ("yes", "no")
    assert config.betas == [0.0, 0.5]
    assert config.urls == {"train": "a.csv"}


def test_a_number_is_a_name_in_a_text_field() -> None:
    assert loaded(path=2024).path == "2024"


HUGE = 10**400


@pytest.mark.parametrize(
    ("changes", "key", "value", "hint"),
    [
        ({"privacy": {"eps": "abc"}}, "privacy.eps", "abc", "privacy.eps=3"),
        ({"privacy": {"eps": True}}, "privacy.eps", True, "privacy.eps=3"),
        ({"privacy": {"eps": None}}, "privacy.eps", None, "privacy.eps=3"),
        ({"privacy": {"eps": [3]}}, "privacy.eps", [3], "privacy.eps=3"),
        ({"privacy": {"eps": 1, "delta": "small"}}, "privacy.delta", "small", "privacy.delta=null"),
        ({"steps": 1.5}, "steps", 1.5, "steps=null"),
        ({"betas": [0.9, "x"]}, "betas[1]", "x", None),
        ({"labels": [[]]}, "labels[0]", [], None),
        ({"urls": {"train": []}}, "urls.train", [], None),
        ({"urls": ["a.csv"]}, "urls", ["a.csv"], None),
        ({"labels": {"a": "b"}}, "labels", {"a": "b"}, "'labels=[]'"),
        ({"labels": "yes"}, "labels", "yes", "'labels=[]'"),
        (
            {"privacy": {"eps": 1, "flag": "no"}},
            "privacy.flag",
            "no",
            "privacy.flag=true",
        ),
        (
            {"privacy": {"eps": 1, "accountant": "pvr"}},
            "privacy.accountant",
            "pvr",
            "privacy.accountant=prv",
        ),
        ({"privacy": 3}, "privacy", 3, None),
        ({"method": {"name": "lora", "rank": 0}}, "method.rank", 0, "method.rank=4"),
    ],
)
def test_a_rejected_value_is_named_with_its_key_and_a_fix(
    changes: dict[str, object], key: str, value: object, hint: str | None
) -> None:
    (fault,) = faults(**changes)
    assert (fault.key, fault.value) == (key, value)
    if hint is not None:
        assert fault.hint == hint


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), HUGE, -HUGE])
def test_a_number_that_is_not_finite_is_rejected(value: float) -> None:
    assert [fault.key for fault in faults(privacy={"eps": value})] == ["privacy.eps"]
    assert [fault.key for fault in faults(betas=[value])] == ["betas[0]"]


@pytest.mark.parametrize("value", [True, None])
def test_a_yaml_constant_for_a_text_is_suggested_in_quotes(value: object) -> None:
    class Saved(Section):
        path: str

    with rejects("path", value) as faults:
        from_values({"path": value}, Saved)
    (word,) = shlex.split(faults[0].hint or "")
    assert OverridesParser.create().parse_override(word).value() == json.dumps(value)


def test_an_unknown_key_is_rejected_with_the_nearest_known_one() -> None:
    (fault,) = faults(privacy={"eps": 3, "epz": 3})
    assert (fault.key, fault.hint) == ("privacy.epz", "privacy.eps=3")
    (fault,) = faults(eps=3)
    assert fault.key == "eps" and fault.hint is not None and "privacy.eps" in fault.hint


def test_a_missing_value_is_named_with_an_example() -> None:
    for given in ({"eps": "???"}, {}):
        (fault,) = faults(privacy=given)
        assert (fault.key, fault.hint) == ("privacy.eps", "privacy.eps=3")


def test_all_rejected_keys_are_in_one_error() -> None:
    keys = [fault.key for fault in faults(steps="x", privacy={"epz": 3}, labels=3)]
    assert sorted(map(str, keys)) == ["labels", "privacy.eps", "privacy.epz", "steps"]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int | None, "int | null"),
        (str | tuple[str, ...] | None, "str | list[str] | null"),
        (list[float], "list[float]"),
        (dict[str, str], "group of keys"),
        (Privacy, "group of keys"),
        (Annotated[int, Field(ge=1)] | Literal["auto"], "int ≥ 1 | auto"),
        (Any, "any value"),
    ],
)
def test_a_type_is_printed_as_python_writes_it(annotation: object, text: str) -> None:
    assert type_text(annotation) == text


def rejecting(key: str) -> Callable[..., None]:
    def check(*values: int) -> None:
        if sum(values) > 9:
            raise InputError("The sum must be at most 9.", key=key)

    return check


class Checked(Root):
    left: int
    right: int

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = (
        (("left",), rejecting("left")),
        (("left", "right"), rejecting("both")),
    )


def test_every_cross_check_that_fails_is_in_one_error() -> None:
    with rejects("left") as faults:
        from_values({"left": 10, "right": 9}, Checked)
    assert [fault.key for fault in faults] == ["left", "both"]
    assert from_values({"left": 4, "right": 5}, Checked).left == 4


def test_a_model_is_frozen_and_validated_when_it_is_replaced() -> None:
    with pytest.raises(ValidationError):
        loaded().replace(steps="x")
    with pytest.raises(ValidationError):
        loaded().steps = 3  # type: ignore[misc]


def test_the_size_is_the_published_one() -> None:
    assert published_num_train_examples("sst2") == 67349
    assert published_num_train_examples("e2e") == 42061


def test_an_unknown_task_is_refused_with_the_nearest_one() -> None:
    with rejects("train.transfer_sample_rate_from", "sst") as faults:
        published_num_train_examples("sst")
    assert faults[0].hint == "train.transfer_sample_rate_from=sst2"


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
    with rejects(str(tmp_path / "dpft" / "conf")) as faults:
        config_directory()
    assert str(tmp_path / "conf") in faults[0].message
