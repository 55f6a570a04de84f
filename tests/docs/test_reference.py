"""The generated reference lists everything, agrees with the code, and is the same each time."""

import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml

import dpft
from docs.tools.pages import DOCS
from docs.tools.reference import pages
from docs.tools.reference.file_words import PUBLIC
from docs.tools.reference.files import check_all_described
from docs.tools.reference.forms import names, schema, schema_text
from docs.tools.reference.keys import (
    DocumentedKey,
    changes,
    key_table,
    keys_of_command,
    keys_of_group,
    options_of,
)
from docs.tools.reference.markup import code, prose
from docs.tools.reference.words import GROUPS
from dpft.cli.commands import subcommand
from dpft.cli.main import SUBCOMMANDS
from dpft.config.load import config_directory
from dpft.evaluation.metrics.base import METRICS
from dpft.strict_model import model_in
from tests.config.test_conf import NEEDED, ROOTS, loaded
from tests.config.test_field_docs import models
from tests.slowness import slow_but

CONF = config_directory()
NOT_GROUPS = {"hydra", "experiment"}
CHOSEN = {"name"}
"""Fields that GROUP=OPTION sets."""
PAGES = ["commands", "configuration", "recipes", "files"]


@pytest.fixture(scope="module")
def whole() -> dict[str, str]:
    return pages()


@pytest.fixture(scope="module")
def made(whole: dict[str, str]) -> dict[str, str]:
    """The pages without the schemas, by name."""
    return {Path(path).stem: text for path, text in whole.items() if path.endswith(".md")}


def anchors(page: str) -> list[str]:
    return re.findall(r'<span id="([^"]+)"></span>', page)


def section(page: str, heading: str) -> str:
    """The text from a heading to the next one."""
    found = re.search(rf"(?ms)^(#+ {re.escape(heading)}\n.*?)(?=^#|\Z)", page)
    assert found is not None, heading
    return found[1]


@pytest.mark.slow
def test_every_page_states_its_sources(made: dict[str, str]) -> None:
    assert list(made) == PAGES
    for name, text in made.items():
        assert text.startswith("# "), name
        assert re.search(r"^\*Generated from .+\.\*$", text, re.M), name


@pytest.mark.slow
def test_every_key_of_every_command_is_documented(made: dict[str, str]) -> None:
    """In the section of the command, of dpft train if that has the same keys, or of a group."""
    of_groups = {*anchors(made["configuration"])}
    for name in SUBCOMMANDS:
        own = section(made["commands"], f"dpft {name}")
        like = ["train"] if "every key of [dpft train](#dpft-train)" in own else []
        ids = {*anchors(made["commands"])}
        for key in keys_of_command(name):
            places = {f"dpft-{command}-{key.name}" for command in [name, *like]}
            linked = f"(configuration.md#{key.section})" in own or f"#{key.name})" in own or like
            assert places & ids or (key.name in of_groups and linked), (name, key.name)


@pytest.mark.slow
def test_no_key_of_a_group_is_described_twice(made: dict[str, str]) -> None:
    text = made["commands"] + made["configuration"]
    rows = re.findall(r"(?m)^\| (?:<span[^|]*</span>)?(`\w+\.\w+.*)$", text)
    assert len(rows) > 200
    assert [row for row, times in Counter(rows).items() if times > 1] == []


@pytest.mark.parametrize("cls", list(models()), ids=lambda cls: cls.__name__)
@pytest.mark.slow
def test_every_field_of_every_configuration_is_on_a_page(cls: type, made: dict[str, str]) -> None:
    """By its name: a class states its keys, but not the section that they are in."""
    shown = {anchor.rpartition(".")[2] for text in made.values() for anchor in anchors(text)}
    shown |= {anchor.rpartition("-")[2] for anchor in anchors(made["commands"])}
    keys = {
        field.alias or name
        for name, field in cls.model_fields.items()
        if model_in(field.annotation) is None
    }
    assert keys - shown - CHOSEN == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("account", "report"), tuple(SUBCOMMANDS)))
def test_every_key_has_a_description_and_a_default(name: str) -> None:
    assert [key.name for key in keys_of_command(name) if not key.text.endswith(".")] == []
    assert [key.name for key in keys_of_command(name) if not key.default] == []


@pytest.mark.slow
def test_every_option_of_every_group_is_on_the_page(made: dict[str, str]) -> None:
    folders = {path.name for path in CONF.iterdir() if path.is_dir()}
    assert set(GROUPS) == folders - NOT_GROUPS
    for group in GROUPS:
        assert f"\n## {group}\n" in made["configuration"]
        options = {f"{group}={option}" for option in options_of(group)}
        assert options and options <= {*anchors(made["configuration"])}


@pytest.mark.slow
def test_an_option_has_the_values_that_differ_from_the_table_of_keys() -> None:
    assert (named("task.source").default, named("task.hub_name").default) == ("hub", "by option")
    assert {"hub_name=nyu-mll/glue", "hub_config=cola"} <= {*changes("task", "cola")}
    assert "source=hub" not in changes("task", "cola")
    assert "source=url" in changes("task", "e2e")


@pytest.mark.slow
def test_every_recipe_and_its_published_rows_are_on_the_page(made: dict[str, str]) -> None:
    compared = 0
    for file in sorted((CONF / "experiment").glob("*.yaml")):
        text = section(made["recipes"], file.stem)
        assert f"experiment={file.stem}" in text
        for row in yaml.safe_load(file.read_text()).get("reference", ()):
            for metric, value in row["metrics"].items():
                assert f"| {value} " in text and f"`{metric}`" in text, (row, text)
                compared += 1
            assert prose(row["what"]) in text and str(row.get("model") or "") in text
    assert compared > 900
    assert "Published: Li et al. 2022, Figure 2, " in section(made["recipes"], "li2022_figure2")


@pytest.mark.slow
def test_every_metric_is_on_the_page_with_its_requirements(made: dict[str, str]) -> None:
    requirements = {}
    for name in METRICS.entries():
        text = section(made["recipes"], name)
        requirements[name] = text.partition("- Requires: ")[2].partition("\n")[0]
    nothing = "no additional packages"
    assert requirements["bleu"] == requirements["rouge_l"] == nothing
    assert "pip install 'dpft[metrics]'" in requirements["meteor"]
    assert "Java" in requirements["meteor"]
    assert "`metrics.bleurt_model=DIR`" in requirements["bleurt"]
    assert "rouge-score" in requirements["rouge_score_l"]


@pytest.mark.slow
def test_every_key_of_every_schema_is_on_the_page(made: dict[str, str]) -> None:
    check_all_described()
    page = made["files"]
    for name in names():
        assert f" {{: #{name} }}\n" in page
        for part in [schema(name), *schema(name).get("$defs", {}).values()]:
            for key, inner in part.get("properties", {}).items():
                kind = re.escape(prose(inner.get("description", "")))
                assert re.search(rf"\| `{key}` \| [^|]+ \| {kind} \|", page) or (
                    key == "schema_version"
                ), (name, key)
    assert "| `steps` | integer \\[] | Numbers of steps, at most 40. |" in page


@pytest.mark.slow
def test_every_field_of_a_model_has_its_description_in_every_schema() -> None:
    for name in names():
        for title, part in schema(name).get("$defs", {}).items():
            fields = part.get("properties", {})
            silent = [key for key, inner in fields.items() if not inner.get("description")]
            assert silent == [] or title == "SampledGaussian", (name, title)


def test_a_file_without_a_description_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    less = {name: texts for name, texts in PUBLIC.items() if name != "METRICS"}
    monkeypatch.setattr("docs.tools.reference.files.PUBLIC", less)
    with pytest.raises(ValueError, match=r"must describe \['METRICS'\]"):
        check_all_described()


@pytest.mark.slow
def test_pages_are_the_same_each_time(whole: dict[str, str]) -> None:
    assert pages() == whole


@pytest.mark.slow
def test_the_page_links_to_each_schema(whole: dict[str, str], made: dict[str, str]) -> None:
    found = {path for path in whole if path.endswith(".schema.json")}
    assert found == {f"reference/schemas/{name}.schema.json" for name in names()}
    for path in found:
        assert f"]({path.removeprefix('reference/')})" in made["files"]
        assert whole[path] == schema_text(path.split("/")[-1].split(".")[0])


@pytest.mark.slow
def test_no_page_has_a_path_of_this_machine(made: dict[str, str]) -> None:
    here = (str(Path(dpft.__file__).parents[1]), str(Path.home()))
    assert [name for name, text in made.items() if any(place in text for place in here)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("privacy.delta", "`float > 0 and < 1 \\| null`"),
        ("privacy.clipping", "`flat \\| automatic \\| automatic_v \\| per_layer`"),
        ("method.rank", "`int ≥ 1`"),
        ("train.micro_batch_size", "`int ≥ 1 \\| auto`"),
        ("task.column_aliases", "`group of keys`"),
        ("task.metrics", "`list[str]`"),
    ],
)
def test_the_type_of_a_key_has_its_range_or_choices(key: str, text: str) -> None:
    assert f" | {text} | " in key_table([named(key)])


def named(name: str) -> DocumentedKey:
    keys = keys_of_group(name.partition(".")[0])
    return next(key for key in keys if key.name == name)


@pytest.mark.slow
def test_a_key_of_some_options_states_which() -> None:
    assert named("method.rank").options == ("lora",)
    assert [key.options for key in keys_of_group("method") if key.name == "method.rank"] == [
        ("lora",),
        ("rgp",),
    ]
    assert named("method.train_biases").options == ()
    assert "*Only with `tracking=wandb`.*" in key_table([named("tracking.project")])
    assert "*Not with `task=corpus`.*" in key_table([named("task.data_dir")])


@pytest.mark.slow
def test_links_lead_to_existing_pages_and_headings(
    made: dict[str, str], whole: dict[str, str]
) -> None:
    kept = {path.stem: path.read_text() for path in (DOCS / "reference").glob("*.md")}
    targets = {name: {*headings(text), *anchors(text)} for name, text in (made | kept).items()}
    for name, text in made.items():
        ids = [*headings(text), *anchors(text)]
        assert [anchor for anchor, times in Counter(ids).items() if times > 1] == [], name
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S)):
            page, _, anchor = link.partition("#")
            if page.startswith("schemas/"):
                assert f"reference/{page}" in whole, link
            else:
                place = targets[page.removesuffix(".md") or name]
                assert not anchor or anchor in place, (name, link)


def headings(page: str) -> list[str]:
    """The anchors of a page's headings."""
    found = re.findall(r"(?m)^##+ (.+?)(?: \{: #(\w+) \})?$", page)
    slugs = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading, _ in found]
    return [
        anchor or re.sub(r"[-\s]+", "-", slug)
        for (_, anchor), slug in zip(found, slugs, strict=True)
    ]


def examples(made: dict[str, str]) -> list[str]:
    fence = r"```(?:bash|\{ \.bash \.no-copy \})\n(.*?)```"
    blocks = re.findall(fence, made["commands"], re.S)
    return [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]


@pytest.mark.slow
def test_the_examples_of_commands_compose(made: dict[str, str]) -> None:
    found = examples(made)
    assert {line.split()[1] for line in found} == set(SUBCOMMANDS)
    for line in found:
        name, *words = shlex.split(line)[1:]
        if any(word.startswith("resume=") and word != "resume=auto" for word in words):
            words += NEEDED[name]  # the run itself has these
        if "schema=draft" in words:
            words.append("privacy.eps=3")  # a draft needs no epsilon
        words = subcommand("list").expand(words) if name == "list" else words
        assert isinstance(loaded(name, words), ROOTS[name]), line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("None takes ``a|b`` of train.steps.", r"null takes `a\|b` of `train.steps`."),
        ("<S1> and [MASK], e.g. a * b", r"&lt;S1&gt; and \[MASK], e.g. a \* b"),
        (
            "as audit=one_run has it (privacy.eps=3).",
            "as `audit=one_run` has it (`privacy.eps=3`).",
        ),
        ("Li et al. 2022, max_length", "Li et al. 2022, max_length"),
    ],
)
def test_docstrings_become_markdown(text: str, said: str) -> None:
    assert prose(text) == said


def test_code_keeps_its_cell() -> None:
    assert code("a|b\nc") == r"`a\|b\nc`"
    assert code("") == ""
