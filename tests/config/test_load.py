"""A configuration is read strictly, and saved so that it reads back equal."""

import dataclasses
import json
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

import dpft
from dpft.config.keys import known_keys, plain
from dpft.config.load import (
    CrossCheck,
    CrossChecked,
    by_name,
    config_directory,
    describe,
    dump,
    from_values,
    load,
    load_saved,
    published_num_train_examples,
    to_yaml,
    union_members,
)
from dpft.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Method:
    name: str


@dataclass(frozen=True, kw_only=True)
class Full(Method):
    pass


@dataclass(frozen=True, kw_only=True)
class Named(Method):
    text: str


@dataclass(frozen=True, kw_only=True)
class LoRA(Method):
    rank: int = 4

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"method.rank must be at least 1, got {self.rank}.")


@dataclass(frozen=True, kw_only=True)
class Privacy:
    eps: float
    delta: float | None = None
    accountant: Literal["prv", "rdp"] = "prv"
    self_check: bool = True


@dataclass(frozen=True, kw_only=True)
class Root:
    method: Method
    privacy: Privacy
    steps: int | None = None
    path: str | None = None
    labels: tuple[str, ...] = ()
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    urls: dict[str, str] = field(default_factory=dict)


def method_class(name: str) -> type:
    if name not in ("full", "lora"):
        raise InputError(f"method.name must be one of full, lora, got {name!r}.")
    return {"full": Full, "lora": LoRA}[name]


POLYMORPHIC = {"method": by_name(method_class)}


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


def test_a_saved_text_is_never_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder may have been received: what stands in it must not read its receiver's secrets."""
    monkeypatch.setenv("SECRET", "hidden")
    given = dataclasses.replace(loaded(), method=Named(name="full", text="${oc.env:SECRET}"))
    dump(given, tmp_path / "config.yaml")
    polymorphic = {"method": by_name(lambda _: Named)}
    saved = load_saved(tmp_path / "config.yaml", Root, polymorphic=polymorphic)
    assert saved == given
    assert from_values(plain(saved), Root, polymorphic=polymorphic) == given


def test_what_is_not_given_takes_the_dataclass_default() -> None:
    assert loaded() == Root(method=Full(name="full"), privacy=Privacy(eps=3.0))
    assert isinstance(loaded().privacy.eps, float)


def test_a_class_chosen_by_name_is_built_with_its_own_keys() -> None:
    assert loaded(method={"name": "lora", "rank": 8}).method == LoRA(name="lora", rank=8)


def test_a_class_that_does_not_exist_is_refused_by_its_registry() -> None:
    assert (
        refusal(method={"name": "lorra"}) == "method.name must be one of full, lora, got 'lorra'."
    )
    assert refusal(method={"rank": 8}).startswith("method is not chosen; set method=NAME, and")


def test_containers_become_the_annotated_types() -> None:
    config = loaded(labels=["yes", "no"], betas=[0, 0.5], urls={"train": "a.csv"})
    assert config.labels == ("yes", "no")
    assert config.betas == [0.0, 0.5]
    assert config.urls == {"train": "a.csv"}


def test_a_number_is_taken_for_a_name_where_a_text_belongs() -> None:
    assert loaded(path=2024).path == "2024"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"privacy": {"eps": "abc"}}, "privacy.eps must be a number, got 'abc'."),
        ({"privacy": {"eps": True}}, "privacy.eps must be a number, got True."),
        (
            {"privacy": {"eps": 1, "delta": "small"}},
            "privacy.delta must be a number or null, got 'small'.",
        ),
        ({"steps": 1.5}, "steps must be a whole number or null, got 1.5."),
        ({"betas": [0.9, "x"]}, "betas[1] must be a number, got 'x'."),
        ({"labels": [[]]}, "labels[0] must be text, got []."),
        ({"urls": {"train": []}}, "urls.train must be text, got []."),
        (
            {"privacy": {"eps": 1, "self_check": "no"}},
            "privacy.self_check must be true or false, got 'no'.",
        ),
        (
            {"privacy": {"eps": 1, "accountant": "gdp"}},
            "privacy.accountant must be one of prv, rdp, got 'gdp'.",
        ),
        ({"privacy": 3}, "privacy must be a group of keys, got 3."),
    ],
)
def test_a_value_of_another_type_is_refused_with_key_value_and_type(
    changes: dict[str, object], sentence: str
) -> None:
    assert refusal(**changes) == sentence


@pytest.mark.parametrize("values", ["[true,false]", "[null,good]", "[good,TRUE,3]"])
def test_words_of_yaml_among_texts_are_suggested_in_quotes(values: str) -> None:
    parser = OverridesParser.create()
    given = parser.parse_override(f"labels={values}").value()
    sentence = refusal(labels=given)
    (suggested,) = shlex.split(sentence.partition(" as in ")[2].partition(", and")[0])
    texts = [each if isinstance(each, str) else json.dumps(each) for each in given]
    assert parser.parse_override(suggested).value() == texts


def test_a_word_of_yaml_in_place_of_a_text_is_suggested_in_quotes() -> None:
    assert "'path=\"true\"'" in refusal(path=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    assert refusal(privacy={"eps": value}) == f"privacy.eps must be a finite number, got {value}."
    assert "betas[0] must be a finite number" in refusal(betas=[value])


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert refusal(privacy={"eps": 3, "epz": 3}) == (
        "unknown configuration key privacy.epz; did you mean privacy.eps?"
    )
    assert refusal(eps=3) == "unknown configuration key eps; did you mean privacy.eps?"
    assert "the known keys here are betas, labels, method" in refusal(foo=1)


def test_a_key_of_another_choice_is_refused() -> None:
    assert "method.rank" in refusal(method={"name": "full", "rank": 8})


def test_a_missing_value_is_refused_by_name() -> None:
    expected = "privacy.eps has no value; set privacy.eps=VALUE (a number)."
    assert refusal(privacy={"eps": "???"}) == expected
    assert refusal(privacy={}) == expected


def test_what_a_dataclass_refuses_passes_unchanged() -> None:
    refused = refusal(method={"name": "lora", "rank": 0})
    assert refused == "method.rank must be at least 1, got 0."


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["+", "-"])
def test_a_whole_number_beyond_every_float_is_refused(value: int) -> None:
    assert "privacy.eps must be a number below 1.8e308" in refusal(privacy={"eps": value})


def test_no_name_is_taken_for_a_mapping_and_no_mapping_for_a_list() -> None:
    assert refusal(urls=["a.csv"]) == "urls must be a group of keys, got ['a.csv']."
    assert refusal(labels={"a": "b"}) == "labels must be a list, each entry text, got {'a': 'b'}."
    assert refusal(labels="yes") == "labels must be a list, each entry text, got 'yes'."


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (None | int, "a whole number or null"),
        (str | tuple[str, ...] | None, "a list, each entry text or text or null"),
        (list[float], "a list, each entry a number"),
        (dict[str, str], "a group of keys"),
        (Privacy, "a group of keys"),
        (int | Literal["auto"], "a whole number or auto"),
        (Literal["a", "b"], "one of a, b"),
    ],
)
def test_a_type_is_told_in_words_with_null_last(hint: object, words: str) -> None:
    assert describe(hint) == words


def test_a_whole_number_stays_one_where_a_number_or_text_would_do() -> None:
    assert union_members(str | float | int) == (int, float, str)


def refuse(sentence: str) -> Callable[..., None]:
    def check(*values: int) -> None:
        if sum(values) > 9:
            raise InputError(sentence)

    return check


@dataclass(frozen=True, kw_only=True)
class Part:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise InputError("size must be at least 0.")


@dataclass(frozen=True, kw_only=True)
class Checked(CrossChecked):
    part: Part
    left: int
    right: int

    cross_checks: ClassVar[tuple[CrossCheck, ...]] = (
        (("left",), refuse("left")),
        (("left", "right"), refuse("both")),
        (("part", "right"), lambda part, right: refuse("part")(part.size, right)),
    )


def test_every_check_that_fails_is_in_one_error() -> None:
    with pytest.raises(InputError) as error:
        Checked(part=Part(size=1), left=10, right=9)
    assert error.value.faults == ("left", "both", "part")
    assert Checked(part=Part(size=0), left=4, right=5).left == 4


def test_a_refused_section_leaves_the_checks_of_the_others() -> None:
    with pytest.raises(InputError) as error:
        from_values({"part": {"size": -1}, "left": 10, "right": 1}, Checked)
    assert error.value.faults == ("size must be at least 0.", "left", "both")


def test_the_size_is_the_published_one() -> None:
    assert published_num_train_examples("sst2") == 67349
    assert published_num_train_examples("e2e") == 42061


def test_an_unknown_task_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InputError, match="got 'sst', which is none; did you mean sst2?"):
        published_num_train_examples("sst")


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
