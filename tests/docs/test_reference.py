"""The generated reference leaves nothing out, says what the code says, and stays the same."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

import dpft
from docs.tools.pages import DOCS
from docs.tools.reference import pages
from docs.tools.reference.file_words import PUBLIC
from docs.tools.reference.files import check_all_described, shared_keys
from docs.tools.reference.forms import names, schema, schema_text
from docs.tools.reference.groups import NOT_GROUPS, groups
from docs.tools.reference.key_tables import takes
from docs.tools.reference.keys import DocumentedKey, commands, keys_of_command, options_of
from docs.tools.reference.markup import code, prose
from dpft.cli.commands import subcommand
from dpft.cli.main import SUBCOMMANDS
from dpft.config.load import config_directory
from dpft.evaluation.metrics.base import METRICS
from dpft.strict_model import model_in
from tests.config.test_conf import NEEDED, ROOTS, loaded
from tests.config.test_field_docs import models
from tests.slowness import slow_but

CONF = config_directory()
NUMBERS = ("num_examples=100", "epochs=1", "eps=3")
CHOSEN = {"name"}
"""Fields that GROUP=OPTION sets."""


@pytest.fixture(scope="module")
def whole() -> dict[str, str]:
    return pages()


@pytest.fixture(scope="module")
def made(whole: dict[str, str]) -> dict[str, str]:
    """The pages alone."""
    return {path: text for path, text in whole.items() if path.endswith(".md")}


def keys_on(page: str) -> set[str]:
    return set(re.findall(r'<span id="([\w.]+)"></span>', page))


@pytest.mark.slow
def test_every_page_says_what_it_is_generated_from(made: dict[str, str]) -> None:
    assert len(made) > 30
    for path, text in made.items():
        assert path.startswith("reference/") and path.endswith(".md")
        assert text.startswith("# "), path
        assert re.search(r"^\*Generated from .+\.\*$", text, re.M), path


@pytest.mark.slow
def test_every_command_has_a_page_with_every_key_it_takes(made: dict[str, str]) -> None:
    """On the page itself, or on that of a group or of the command that it links to for them."""
    for name in SUBCOMMANDS:
        pages_with_keys = [f"reference/commands/{name}.md"]
        if name in ("plan", "tune"):
            assert "](train.md#keys)" in made[pages_with_keys[0]]
            pages_with_keys.append("reference/commands/train.md")
        linked = {
            group
            for page in pages_with_keys
            for group in re.findall(r"\]\(\.\./groups/(\w+)\.md#keys\)", made[page])
        }
        pages_with_keys += [f"reference/groups/{group}.md" for group in linked]
        shown = {key for page in pages_with_keys for key in keys_on(made[page])}
        assert {key.name for key in keys_of_command(name)} <= shown, name


@pytest.mark.slow
def test_no_key_is_described_twice_in_the_same_words(made: dict[str, str]) -> None:
    """But for those of commands themselves, as output: each has its own."""
    in_groups = re.compile(r"^\| <span id=\"\w+\..*$", re.M)
    rows = [row for text in made.values() for row in in_groups.findall(text)]
    assert len(rows) > 200
    assert len({*rows}) == len(rows)


@pytest.mark.slow
def test_the_reference_is_short_enough_to_be_read(made: dict[str, str]) -> None:
    kept = [path.read_text() for path in (DOCS / "reference").glob("*.md")]
    texts = [re.sub(r"\]\([^)]*\)|<[^>]*>", "", text) for text in [*made.values(), *kept]]
    words = [word for text in texts for word in text.split() if re.search(r"\w", word)]
    assert 20_000 < len(words) <= 36_000


@pytest.mark.parametrize("cls", list(models()), ids=lambda cls: cls.__name__)
@pytest.mark.slow
def test_every_field_of_every_configuration_is_on_a_page(cls: type, made: dict[str, str]) -> None:
    """By its name: a class says which keys it has, not under which section they stand."""
    shown = {key.rpartition(".")[2] for text in made.values() for key in keys_on(text)}
    keys = {
        field.alias or name
        for name, field in cls.model_fields.items()
        if model_in(field.annotation) is None
    }
    assert keys - shown - CHOSEN == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(("account", "report"), commands()))
def test_no_key_lacks_words_or_a_default(name: str) -> None:
    silent = [key.name for key in keys_of_command(name) if not key.text.endswith(".")]
    assert silent == []
    assert [key.name for key in keys_of_command(name) if not key.default] == []


@pytest.mark.slow
def test_every_option_of_every_group_is_on_its_page(made: dict[str, str]) -> None:
    folders = {path.name for path in CONF.iterdir() if path.is_dir()} - set(NOT_GROUPS)
    assert set(groups()) == folders
    for group in groups():
        page = made[f"reference/groups/{group}.md"]
        assert options_of(group)
        for option in options_of(group):
            assert f"\n### {option}\n" in page, (group, option)


@pytest.mark.slow
def test_every_recipe_and_its_published_rows_are_on_the_page(made: dict[str, str]) -> None:
    files = sorted((CONF / "experiment").glob("*.yaml"))
    compared = 0
    for file in files:
        link = re.search(rf"\(recipes/(\w+)\.md#{file.stem}\)", made["reference/recipes.md"])
        assert link is not None, file.stem
        sections = made[f"reference/recipes/{link[1]}.md"].split("\n## ")
        (section,) = (each for each in sections if each.startswith(f"{file.stem}\n"))
        for row in yaml.safe_load(file.read_text()).get("reference", ()):
            for metric, value in row["metrics"].items():
                assert re.search(rf"[|,] {re.escape(str(value))}[ ,]", section), (row, section)
                assert f"`{metric}`" in section
                compared += 1
            assert prose(row["what"]) in section and str(row.get("model") or "") in section
    assert compared > 900
    li2022 = made["reference/recipes/li2022.md"]
    assert "\n\nTable 7; lora, E2E test" in li2022
    assert "Published heat map, Li et al. 2022, Figure 2" in li2022


@pytest.mark.slow
def test_every_metric_is_on_the_page_with_what_it_needs(made: dict[str, str]) -> None:
    sections = made["reference/metrics.md"].split("\n## ")[1:]
    assert [section.partition("\n")[0] for section in sections] == list(METRICS.entries())
    said = {part.partition("\n")[0]: part.partition("- Needs: ")[2] for part in sections}
    nothing = "nothing beyond dpft."
    assert said["bleu"].startswith(nothing) and said["rouge_l"].startswith(nothing)
    assert "pip install 'dpft[metrics]'" in said["meteor"] and "Java" in said["meteor"]
    assert "`metrics.bleurt_model=DIR`" in said["bleurt"]
    assert "rouge-score" in said["rouge_score_l"]


@pytest.mark.slow
def test_every_file_and_every_schema_is_on_the_page(made: dict[str, str]) -> None:
    check_all_described()
    page = made["reference/forms.md"] + made["reference/answers.md"]
    sections = {each.partition("\n")[0]: each for each in page.split("\n## ")}
    for name in names():
        for key in properties(schema(name)):
            assert re.search(rf"`(?:[\w.\[\]]+\.)?{key}`", sections[name]), (name, key)
    assert "| `steps` | integer \\[] | Numbers of steps, at most 40." in page


def properties(part: object) -> set[str]:
    """The names of all keys of a schema, however deep."""
    if isinstance(part, list):
        return {key for each in part for key in properties(each)}
    if not isinstance(part, dict):
        return set()
    own = {key for key, inner in part.get("properties", {}).items() if inner is not False}
    return own.union(*(properties(each) for each in part.values()))


def test_what_forms_say_alike_is_said_once_and_the_more_common_meaning_is_chosen() -> None:
    rows = {
        "a": [("x.day", "text", "A day."), ("n", "integer", "One.")],
        "b": [("day", "text", "A day."), ("n", "integer", "Two.")],
        "c": [("y.day", "text", "Another."), ("n", "integer", "Two.")],
        "d": [("day", "text", "Another."), ("z.day", "text", "A day.")],
    }
    assert shared_keys(rows) == {"day": ("text", "A day."), "n": ("integer", "Two.")}


def test_a_file_that_nobody_describes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    less = {name: said for name, said in PUBLIC.items() if name != "METRICS"}
    monkeypatch.setattr("docs.tools.reference.files.PUBLIC", less)
    with pytest.raises(ValueError, match=r"must describe \['METRICS'\]"):
        check_all_described()


@pytest.mark.slow
def test_pages_are_the_same_each_time(whole: dict[str, str]) -> None:
    assert pages() == whole


@pytest.mark.slow
def test_the_schemas_are_linked_to_as_they_ship(whole: dict[str, str]) -> None:
    found = {path for path in whole if path.endswith(".schema.json")}
    assert found == {f"reference/schemas/{name}.schema.json" for name in names()}
    for path in found:
        linking = whole["reference/forms.md"] + whole["reference/answers.md"]
        assert f"]({path.removeprefix('reference/')})" in linking
        assert whole[path] == schema_text(path.split("/")[-1].split(".")[0])


@pytest.mark.slow
def test_no_page_has_a_path_of_this_machine(made: dict[str, str]) -> None:
    here = (str(Path(dpft.__file__).parents[1]), str(Path.home()))
    assert [path for path, text in made.items() if any(place in text for place in here)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("privacy.delta", "`float > 0 and < 1 \\| null`"),
        ("privacy.clipping", "`flat \\| automatic \\| automatic_v \\| per_layer`"),
        ("method.rank", "`int ≥ 1`"),
        ("train.micro_batch_size", "`int ≥ 1 \\| auto`"),
        ("task.column_aliases", "`group of keys`"),
        ("task.metrics", "`list[str]`"),
    ],
)
def test_the_type_of_a_key_has_its_range_or_choices(key: str, said: str) -> None:
    assert takes(named(key)) == said


def named(name: str) -> DocumentedKey:
    return next(key for key in keys_of_command("train") if key.name == name)


@pytest.mark.slow
def test_a_key_of_some_options_says_of_which() -> None:
    assert named("method.rank").options == ("lora", "rgp")
    assert named("method.train_biases").options == ()
    assert named("tracking.project").options == ("wandb",)
    assert named("method.rank").varies and not named("privacy.delta").varies


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.S))


@pytest.mark.slow
def test_links_lead_to_pages_and_headings_that_are_there(
    made: dict[str, str], whole: dict[str, str]
) -> None:
    kept = {
        f"reference/{path.name}": path.read_text() for path in (DOCS / "reference").glob("*.md")
    }
    whole = whole | kept
    for path, text in made.items():
        for link in links(text):
            target, _, anchor = link.partition("#")
            place = str(Path("/", path).parent.joinpath(target).resolve())[1:] if target else path
            assert place in whole, (path, link)
            headings = re.findall(r"^#+ (.+)$", whole[place], re.M)
            slugs = {heading.lower().replace(" ", "-").replace(".", "") for heading in headings}
            assert not anchor or anchor in slugs | keys_on(whole[place]), (path, link)


def examples(made: dict[str, str]) -> list[str]:
    blocks = [
        block
        for path, text in made.items()
        if path.startswith("reference/commands/")
        for block in re.findall(r"```(?:bash|\{ \.bash \.no-copy \})\n(.*?)```", text, re.S)
    ]
    return [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines()]


@pytest.mark.slow
def test_the_examples_of_commands_compose(made: dict[str, str]) -> None:
    found = examples(made)
    assert {line.split()[1] for line in found} == set(SUBCOMMANDS)
    for line in found:
        name, *words = shlex.split(line)[1:]
        if any(word.startswith("resume=") and word != "resume=auto" for word in words):
            words += NEEDED[name]  # which the run itself has
        if "schema=draft" in words:
            words.append("privacy.eps=3")  # which a draft does without
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
