"""Every shipped YAML composes, loads, and says what it is for and how it is run."""

import re
import shlex
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from docs.tools.pages import all_pages, named_commands
from dpft.audit.base import AuditConfig
from dpft.cli.commands import subcommand
from dpft.cli.main import SUBCOMMANDS
from dpft.commands.doctor import DoctorConfig
from dpft.commands.listing import ListConfig
from dpft.commands.overrides import without_recipes_promise
from dpft.commands.report import ReportConfig
from dpft.config import schema
from dpft.config.account import AccountConfig
from dpft.config.hydra_compose import compose
from dpft.config.load import config_directory, load, load_saved, to_yaml
from dpft.config.schema import TokenizerCommand
from dpft.config.tune import TuneCommand
from dpft.synthesis.config import SynthesizeConfig
from tests.rejections import rejects
from tests.slowness import slow_but

CONF = config_directory()
FILES = sorted(CONF.rglob("*.yaml"))
ROOTS = {
    "train": schema.TrainCommand,
    "tune": TuneCommand,
    "tokenizer": TokenizerCommand,
    "plan": schema.PlanConfig,
    "eval": schema.EvaluateConfig,
    "generate": schema.GenerateConfig,
    "synthesize": SynthesizeConfig,
    "export": schema.ExportConfig,
    "audit": AuditConfig,
    "account": AccountConfig,
    "report": ReportConfig,
    "doctor": DoctorConfig,
    "list": ListConfig,
}
# Hydra's own group is composed with every subcommand; experiments are in test_recipes and
# test_recipe_sweeps.
GROUPS = sorted(
    path.relative_to(CONF)
    for path in FILES
    if path.parent.parent == CONF and path.parent.name not in ("hydra", "experiment")
)
COMMAND = re.compile(rf" {{4}}(\.venv/bin/)?dpft ({'|'.join(SUBCOMMANDS)})(?: |$)")
# What a subcommand cannot be run without.
NEEDED = {
    "train": ["privacy.noise_multiplier=1"],
    "tune": ["privacy.eps=3"],
    "tokenizer": ["privacy.eps=1", "tokenizer.vocab_size=9"],
    "plan": ["privacy.noise_multiplier=1"],
    "eval": [],
    "generate": ["run=RUN", "prompts=FILE"],
    "synthesize": ["data=FILE", "privacy.eps=3"],
    "export": ["run=RUN"],
    "audit": ["run=RUN"],
    "account": ["num_examples=9", "expected_batch_size=1", "epochs=1", "eps=3"],
    "report": ["runs=FOLDER"],
    "doctor": [],
    "list": ["what=tasks"],
}

RECIPES_TOO = ("train", "plan", "tune")


def values_of(name: str, overrides: list[str]) -> DictConfig:
    values = compose(name, overrides, ROOTS[name]).values
    return without_recipes_promise(values, overrides) if name in RECIPES_TOO else values


def loaded(name: str, overrides: list[str]) -> object:
    return load(values_of(name, overrides), ROOTS[name])


def purpose(path: Path) -> str:
    lines = path.read_text().splitlines()
    return next(line for line in lines if not line.startswith("# @package"))


def test_every_subcommand_has_a_configuration() -> None:
    assert {path.stem for path in CONF.glob("*.yaml")} == set(SUBCOMMANDS)


def test_a_file_opens_with_its_purpose_and_the_command_that_runs_it() -> None:
    command = rf"# \S.*\bdpft ({'|'.join(SUBCOMMANDS)})(?: |$)"
    assert [path for path in FILES if not re.match(command, purpose(path))] == []


def test_no_file_chooses_between_a_run_and_a_sweep() -> None:
    """The flag --multirun does; tests.stories.tiny rests on it."""
    named = [path for path in FILES if re.search(r"\bmode\b", path.read_text())]
    assert len(named) < len(FILES)
    for path in named:
        values = OmegaConf.load(path)
        assert OmegaConf.select(values, "hydra.mode") is None, path
        assert path.parent.name != "hydra" or "mode" not in values, path


def test_an_experiment_names_the_command_that_runs_it() -> None:
    paths = list(CONF.glob("experiment/*.yaml"))
    assert paths
    assert [p for p in paths if f"experiment={p.stem}" not in purpose(p).split()] == []


def commands() -> list[str]:
    """The commands of all files that one composition can check: not sweeps, not help."""
    others = [path for path in FILES if path.parent.name != "experiment"]
    found = {purpose(path).rpartition("dpft ")[2] for path in others}
    return sorted(c for c in found if not {"...", "--help", "--multirun"} & set(c.split()))


def readme_commands() -> list[str]:
    """The README's ``dpft`` commands, as ``page_commands``."""
    return composed_commands([(CONF.parent / "README.md").read_text()])


def page_commands() -> list[str]:
    """Commands of the documentation's pages that one composition can check."""
    return composed_commands([page.read_text() for page in all_pages()])


def composed_commands(texts: list[str]) -> list[str]:
    found = [each for text in texts for each in named_commands(text)]
    return sorted(
        {
            " ".join(words[1:])
            for words in map(str.split, found)
            if words[1:] and words[1] in SUBCOMMANDS and not _is_no_composition(words)
        }
    )


def _is_no_composition(words: list[str]) -> bool:
    """Whether one composition cannot check it: a sweep, help, the end of a pipe."""
    return any(word.startswith("--") or word in ("|", ">", "&") for word in words)


def test_the_readme_shows_every_subcommand() -> None:
    table = (CONF.parent / "README.md").read_text()
    assert {*re.findall(r"`dpft (\w+)`", table)} == set(SUBCOMMANDS)


COMMANDS = sorted({*commands(), *readme_commands(), *page_commands()})
LONGEST = {each.split()[0]: each for each in sorted(page_commands(), key=len)}
"""Of the README's commands, the longest of each subcommand: it has the most keys."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    slow_but([LONGEST[name] for name in ("train", "generate", "report", "synthesize")], COMMANDS),
)
def test_the_command_composes_and_loads(command: str) -> None:
    name, *words = shlex.split(command)
    if name in ("train", "tokenizer") and words[0].startswith("resume="):
        words += NEEDED[name][:1]  # which the run itself has
    if name == "synthesize" and any(word.startswith("resume=") for word in words):
        words += NEEDED[name]
    if "schema=draft" in words:
        words.append("privacy.eps=3")  # which a draft does without
    words = [word.replace("head=HASH", f"head={'0' * 64}") for word in words]
    words = subcommand("list").expand(words) if name == "list" else words
    assert isinstance(loaded(name, words), ROOTS[name])


def test_every_choice_of_every_group_is_in_the_command_that_is_composed() -> None:
    """So that it loads; the choices called default are those of every composition."""
    others = [path for path in GROUPS if path.stem != "default"]
    assert others
    for path in others:
        assert f"{path.parts[0]}={path.stem}" in purpose(CONF / path).split(), path


@pytest.mark.parametrize("name", slow_but(["train", "account"], ROOTS))
def test_the_yaml_holds_every_key_of_its_dataclasses(name: str) -> None:
    """Hydra refuses an override of a key that the YAML lacks."""
    values = values_of(name, NEEDED[name])
    composed = OmegaConf.to_yaml(values)
    config = load(values, ROOTS[name])
    assert isinstance(config, ROOTS[name])
    assert keys(OmegaConf.create(to_yaml(config))) == keys(OmegaConf.create(composed))


def keys(node: object, parent: str = "") -> set[str]:
    if not OmegaConf.is_dict(node):
        return {parent}
    return {key for name in node for key in keys(node[name], f"{parent}.{name}")}


@pytest.mark.slow
def test_the_defaults_are_the_published_recipe_for_e2e() -> None:
    """Li et al. 2022 (arXiv 2110.05679), Appendix H and I."""
    config = loaded("train", ["privacy.eps=3"])
    train, privacy = config.train, config.privacy
    batch_size = train.batch_size(config.task.num_train_examples)
    assert (batch_size, train.epochs, train.learning_rate) == (1024, 10, 2e-3)
    assert (train.weight_decay, config.scheduler.name) == (0.0, "constant")
    assert (config.optimizer.beta1, config.optimizer.beta2) == (0.9, 0.999)
    assert (privacy.max_grad_norm, privacy.clipping, privacy.delta) == (0.1, "flat", None)
    assert (config.task.max_length, config.task.source) == (100, "url")
    assert config.train.planned_steps(config.task.num_train_examples) == 410


@pytest.mark.slow
def test_a_setting_of_another_optimizer_is_refused() -> None:
    with rejects("optimizer.beta1"):
        loaded("train", ["privacy.eps=3", "optimizer=sgd", "+optimizer.beta1=0.5"])


@pytest.mark.slow
def test_a_run_saved_before_there_were_metrics_and_references_still_loads(
    tmp_path: Path,
) -> None:
    config = loaded("train", ["privacy.eps=3"]).settings()
    saved = OmegaConf.create(to_yaml(config))
    del saved["metrics"], saved["reference"], saved["reference_maps"]
    path = tmp_path / "config.yaml"
    path.write_text(OmegaConf.to_yaml(saved))
    assert load_saved(path, schema.TrainConfig) == config


@pytest.mark.slow
def test_published_rows_survive_saving_and_percentages_are_refused(tmp_path: Path) -> None:
    config = loaded("train", ["experiment=li2022_e2e", "privacy.eps=3"]).settings()
    assert config.reference[0].metrics["bleu"] == 61.519
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert load_saved(path, schema.TrainConfig) == config
    row = "[{source: a, what: b, model: null, eps: 3, metrics: {rouge_l: 65.67}}]"
    with rejects("reference", 65.67):
        loaded("train", ["privacy.eps=3", f"reference={row}"])
