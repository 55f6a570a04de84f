"""The recipes of conf/experiment hold the numbers of the papers they name."""

import re
import shlex
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf, open_dict
from transformers import T5Config, T5ForConditionalGeneration

from dpft.commands.overrides import without_recipes_promise
from dpft.config.hydra_compose import compose
from dpft.config.load import config_directory, load
from dpft.config.references import Reference
from dpft.config.schema import TrainCommand
from dpft.methods.two_phase import TwoPhase
from dpft.privacy.privacy_config import NoPrivacy
from tests.rejections import rejects
from tests.slowness import slow, slow_but

RECIPES = [
    path.stem
    for path in sorted(config_directory().glob("experiment/*.yaml"))
    if "--multirun" not in path.read_text().splitlines()[1]
]


@cache
def composed(name: str) -> DictConfig:
    """A recipe as its own command composes it, once; not to be changed."""
    path = config_directory() / f"experiment/{name}.yaml"
    head = path.read_text().splitlines()[1]
    words = shlex.split(head.rpartition("dpft train ")[2])
    return compose("train", words, TrainCommand).values


@cache
def recipe(name: str) -> DictConfig:
    """A recipe at epsilon 3; not to be changed."""
    config = deepcopy(composed(name))
    config.privacy.eps = 3
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["demo", "li2022_e2e"], RECIPES))
def test_the_command_of_a_recipe_composes_and_loads(name: str) -> None:
    assert isinstance(load(composed(name), TrainCommand), TrainCommand)


def ordinary(*words: str) -> TrainCommand:
    """What ``dpft train WORDS privacy=none`` runs."""
    words = (*words, "privacy=none")
    values = compose("train", words, TrainCommand).values
    return load(without_recipes_promise(values, words), TrainCommand)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    slow_but(
        {"demo"},
        sorted(path.stem for path in config_directory().glob("experiment/*.yaml")),
    ),
)
def test_every_recipe_also_trains_without_privacy(name: str) -> None:
    words = ["model.tokenizer=RUN"] if name.startswith("ponomareva2022_t5") else []
    found = ordinary(f"experiment={name}", *words).privacy
    assert found.replace(num_examples=None) == NoPrivacy(name="none")


@pytest.mark.slow
def test_a_clipping_norm_of_a_recipes_phase_gives_way_too(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /method: two_phase\n"
        "privacy: {eps: 3}\nmethod: {bitfit_max_grad_norm: 0.5}\n"
    )
    words = ("experiment=mine", f"hydra.searchpath=[file://{tmp_path}]")
    assert ordinary(*words).method == TwoPhase(name="two_phase")
    given = ordinary(*words, "method.bitfit_max_grad_norm=0.05")
    assert given.method == TwoPhase(name="two_phase", bitfit_max_grad_norm=0.05)


@pytest.mark.slow
def test_a_guarantee_that_is_not_the_recipes_is_refused_with_privacy_none() -> None:
    with rejects("privacy.eps"):
        ordinary("experiment=demo", "privacy.eps=3")


@pytest.mark.slow
@pytest.mark.parametrize(("method", "rate"), [("bu2022", 5e-3), *slow(("bu2022_full", 5e-4))])
@pytest.mark.parametrize(
    ("task", "batch", "epochs"),
    [("sst2", 1000, 3), ("qnli", 2000, 6), ("qqp", 6000, 18), ("mnli", 6000, 18)],
)
def test_classification_of_bu_et_al(
    method: str, rate: float, task: str, batch: int, epochs: int
) -> None:
    """Bu et al. 2022 (arXiv 2210.00036), Table 9."""
    config = recipe(f"{method}_{task}")
    assert config.method.name == {"bu2022": "bitfit", "bu2022_full": "full"}[method]
    assert (config.task.name, config.model.name) == (task, "roberta-base")
    train = config.train
    assert (train.expected_batch_size, train.epochs, train.learning_rate) == (batch, epochs, rate)
    assert (config.privacy.clipping, config.privacy.max_grad_norm) == ("flat", 0.1)
    assert config.task.max_length == 256


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "method", "rate"), [("bu2022_e2e", "bitfit", 1e-2), ("bu2022_full_e2e", "full", 2e-3)]
)
def test_generation_of_bu_et_al(name: str, method: str, rate: float) -> None:
    """Bu et al. 2022 (arXiv 2210.00036), Table 10."""
    config = recipe(name)
    assert (config.task.name, config.model.name, config.method.name) == ("e2e", "gpt2", method)
    train = config.train
    assert (train.expected_batch_size, train.epochs, train.learning_rate) == (1024, 10, rate)
    assert (config.privacy.clipping, config.scheduler.name) == ("automatic", "constant")
    assert config.task.max_length == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "model", "batch", "epochs", "delta", "rate"),
    [
        ("cifar10", "vit-base", 1000, 5, 1e-5, 5e-4),
        *slow(("cifar100", "vit-base", 1000, 5, 1e-5, 5e-4)),
        ("celeba", "resnet18", 500, 10, 5e-6, 1e-3),
    ],
)
@pytest.mark.parametrize("method", ["bitfit", "full", "two_phase"])
def test_images_of_bu_et_al(
    task: str, model: str, batch: int, epochs: int, delta: float, rate: float, method: str
) -> None:
    """Bu et al. 2022 (arXiv 2210.00036), Table 11 and section D.2; ViT's rate is Table 15's."""
    config = recipe(f"bu2022_{task}_{method}")
    assert (config.task.name, config.model.name, config.method.name) == (task, model, method)
    train = config.train
    assert (train.expected_batch_size, train.epochs) == (batch, epochs)
    assert train.learning_rate == (5e-3 if method == "bitfit" else rate)
    assert (config.privacy.clipping, config.privacy.max_grad_norm) == ("flat", 0.1)
    assert (config.privacy.delta, config.scheduler.name) == (delta, "constant")
    assert config.method.train_new_modules == (method == "full")
    if method == "two_phase":
        phases = config.method
        assert (phases.full_epochs, phases.bitfit_learning_rate) == (1, 5e-3)
        assert phases.reset_optimizer
    assert (list(config.task.mean), config.task.augmentations) == (
        [0.0] if task == "celeba" else [0.5],
        0,
    )


@pytest.mark.slow
def test_a_row_of_images_is_there_for_each_model_method_and_epsilon() -> None:
    for task, table in (("cifar10", "Table 15"), ("cifar100", "Table 16")):
        for method, times in (("bitfit", 1), ("full", 1), ("two_phase", 2)):
            rows = [r for r in recipe(f"bu2022_{task}_{method}").reference if table in r.source]
            assert len(rows) == times * 6 * 4
            assert {row.eps for row in rows} == {1, 2, 4, 8}
    for method, times in (("bitfit", 1), ("full", 1), ("two_phase", 2)):
        rows = recipe(f"bu2022_celeba_{method}").reference
        of_table = [row for row in rows if row.source.endswith("17")]
        assert len(of_table) == 2 * times
        for row in of_table:
            of_attributes = [v for name, v in row.metrics.items() if name != "mean_accuracy"]
            assert len(of_attributes) == 40
            mean = sum(of_attributes) / 40
            assert row.metrics.mean_accuracy == pytest.approx(mean, abs=1.1e-4), row.what


@pytest.mark.slow
def test_classification_of_li_et_al_begins_with_sst2() -> None:
    """Li et al. 2022 (arXiv 2110.05679), Appendix H and I."""
    config = recipe("li2022_sst2")
    assert (config.task.name, config.model.name) == ("sst2", "roberta-base")
    assert (config.method.name, config.task.objective) == ("full", "infilling")
    assert (config.train.expected_batch_size, config.train.epochs) == (1024, 3)
    assert (config.train.weight_decay, config.privacy.max_grad_norm) == (0.0, 0.1)


@pytest.mark.slow
def test_qnli_of_li_et_al_has_the_batch_of_its_published_epsilons() -> None:
    """Twice SST-2's 1000 and 3: private-transformers, examples/classification/run_wrapper.py."""
    config, sst2 = recipe("li2022_qnli"), recipe("li2022_sst2")
    assert config.task.name == "qnli" and config.train.transfer_sample_rate_from is None
    assert (config.train.expected_batch_size, config.train.epochs) == (2000, 6)
    assert config.train.learning_rate == sst2.train.learning_rate


@pytest.mark.slow
@pytest.mark.parametrize(("task", "epochs"), [("qqp", 18), ("mnli", 18)])
def test_the_other_tasks_of_li_et_al_keep_the_sample_rate_of_sst2(task: str, epochs: int) -> None:
    """Li et al. 2022 (arXiv 2110.05679), Appendix L."""
    config, sst2 = recipe(f"li2022_{task}"), recipe("li2022_sst2")
    assert config.task.name == task
    assert config.train.transfer_sample_rate_from == "sst2"
    assert config.train.expected_batch_size == sst2.train.expected_batch_size
    assert (config.train.epochs, config.train.learning_rate) == (epochs, sst2.train.learning_rate)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "batch", "epochs"), [("dart", 1024, 10), ("personachat", 2048, 20)]
)
def test_generation_of_li_et_al_reuses_e2es_recipe(task: str, batch: int, epochs: int) -> None:
    """Li et al. 2022 (arXiv 2110.05679), Appendix B.

    With these batches and epochs, noise for an RDP epsilon of 8 gives, by Gaussian DP and the
    central limit theorem, 5.30 where Table 8 has 5.35, and 6.01 where Table 3 has 6.00.
    """
    config = recipe(f"li2022_{task}")
    assert (config.task.name, config.model.name, config.method.name) == (task, "gpt2", "full")
    assert (config.train.expected_batch_size, config.train.epochs) == (batch, epochs)
    assert config.train.learning_rate == 2e-3
    assert config.train.weight_decay == 0 and config.privacy.max_grad_norm == 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "batch", "epochs"),
    [
        ("lora", 512, 50),
        *slow(("prefix", 1024, 10), ("rgp", 512, 10), ("top2", 512, 50), ("retrain", 1024, 10)),
    ],
)
def test_a_method_on_e2e_stays_in_the_ranges_of_li_et_al(
    method: str, batch: int, epochs: int
) -> None:
    """Li et al. 2022 (arXiv 2110.05679), Tables 5 and 6.

    With these batches and epochs, noise for an RDP epsilon of 3 gives the epsilons of Table 7 by
    Gaussian DP and the central limit theorem: 2.68, 2.33, 2.18, 2.68 and 2.33.
    """
    config = recipe(f"li2022_e2e_{method}")
    assert (config.task.name, config.model.name, config.method.name) == ("e2e", "gpt2", method)
    assert (config.train.expected_batch_size, config.train.epochs) == (batch, epochs)
    assert config.train.weight_decay == 0 and config.privacy.max_grad_norm == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("method", ["lora", *slow(("prefix",), ("rgp",), ("top2",), ("retrain",))])
def test_a_method_on_dart_reuses_its_e2e_recipe(method: str) -> None:
    """Li et al. 2022 (arXiv 2110.05679), Appendix B."""
    dart, e2e = recipe(f"li2022_dart_{method}"), recipe(f"li2022_e2e_{method}")
    assert (dart.task.name, dart.task.max_length, dart.model) == ("dart", 256, e2e.model)
    for section in ("method", "privacy", "train", "optimizer", "scheduler"):
        assert dart[section] == e2e[section]


@pytest.mark.slow
def test_retraining_starts_from_random_weights() -> None:
    config = recipe("li2022_dart_retrain")
    assert (config.method.name, config.model.init) == ("retrain", "random")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sst2", "mnli"])
def test_full_without_infilling_differs_in_the_objective_alone(task: str) -> None:
    """Li et al. 2022 (arXiv 2110.05679), Table 1: full, and full + infilling."""
    head, infilling = recipe(f"li2022_cls_{task}"), deepcopy(recipe(f"li2022_{task}"))
    assert (head.task.objective, infilling.task.objective) == ("cls", "infilling")
    with open_dict(infilling):
        infilling.task.objective, infilling.reference = "cls", head.reference
    assert head == infilling


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "rate", "decay", "warmup"),
    [
        ("li2022_rgp_mnli", 3e-4, 0.0, 0),
        *slow(
            ("bu2022_adapter_sst2", 1e-3, 0.01, 100),
            ("bu2022_lora_qnli", 1e-3, 0.01, 157),
            ("bu2022_compacter_mnli", 1e-3, 0.01, 589),
        ),
    ],
)
def test_rows_of_yu_et_al_are_trained_as_their_code_does(
    name: str, rate: float, decay: float, warmup: int
) -> None:
    """A warm-up over 6 % of the steps, which are 50 * N / 2000.

    dayu11/Differentially-Private-Deep-Learning, language/bert/bert_code/run_exp.py; and
    huseyinatahaninan/Differentially-Private-Fine-tuning-of-Language-Models, bert_*/run_exp.py.
    """
    config = recipe(name)
    _, method, task = name.split("_")
    assert (config.method.name, config.task.name) == (method, task)
    assert config.task.objective == "cls"
    train = config.train
    assert (train.expected_batch_size, train.epochs) == (2000, 50)
    assert (train.learning_rate, train.weight_decay) == (rate, decay)
    assert (config.scheduler.name, config.scheduler.warmup_steps) == ("linear", warmup)
    assert (config.privacy.max_grad_norm, config.privacy.delta) == (10.0, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("li2022_e2e", (3, {"bleu": 61.519, "rouge_l": 0.6567, "cider": 1.761})),
        ("li2022_e2e_rgp", (3, {"bleu": 58.482, "meteor": 0.363})),
        ("li2022_e2e_dp_sgd", (8, {"bleu": 63.175})),
        ("li2022_dart_top2", (8, {"meteor": 0.054, "bleurt": -1.660})),
        ("li2022_mnli", (3, {"accuracy": 0.8245})),
        *slow(
            ("li2022_e2e_lora", (8, {"bleu": 63.389, "rouge_l": 0.67525})),
            ("li2022_e2e_prefix", (3, {"bleu": 47.772, "nist": 5.775})),
            ("li2022_e2e_top2", (None, {"bleu": 65.752})),
            ("li2022_e2e_retrain", (8, {"bleu": 24.247, "cider": 0.281})),
            ("li2022_dart", (3, {"bleu": 31.025, "rouge_1": 0.62815})),
            ("li2022_dart_lora", (3, {"bleu": 32.329, "rouge_2": 0.40753})),
            ("li2022_personachat", (8, {"f1": 0.1608, "perplexity": 23.57})),
            ("li2022_sst2", (3, {"accuracy": 0.9186})),
            ("li2022_cls_sst2", (3, {"accuracy": 0.8612})),
            ("li2022_rgp_qqp", (8, {"accuracy": 0.855})),
            ("bu2022_lora_qnli", (8, {"accuracy": 0.873})),
            ("bu2022_e2e", (8, {"bleu": 60.13, "perplexity": 2.89})),
            ("bu2022_full_e2e", (8, {"bleu": 63.60})),
            ("bu2022_sst2", (8, {"accuracy": 0.924})),
            ("bu2022_full_qnli", (8, {"accuracy": 0.879})),
            ("bu2022_cifar10_bitfit", (8, {"accuracy": 0.887})),
            ("bu2022_cifar10_two_phase", (2, {"accuracy": 0.977})),
            ("bu2022_cifar100_full", (1, {"accuracy": 0.839})),
            ("bu2022_celeba_full", (8, {"accuracy_Smiling": 0.8911, "mean_accuracy": 0.8838})),
        ),
    ],
)
def test_a_recipe_carries_its_published_row(
    name: str, row: tuple[float | None, dict[str, float]]
) -> None:
    config = recipe(name)
    published = [
        one for one in config.reference if (one.model, one.eps) == (config.model.name, row[0])
    ]
    assert dict(row[1]).items() <= dict(published[0].metrics).items()


@pytest.mark.slow
def test_every_recipe_of_a_paper_calibrates_by_rdp() -> None:
    """Li et al. 2022, Appendix A; Bu et al. 2022, section 4."""
    for name in RECIPES:
        if "2022_" in name and composed(name).privacy.name != "none":
            assert recipe(name).privacy.accountant == "rdp", name


@pytest.mark.slow
def test_dp_sgd_has_the_rate_and_momentum_of_the_authors_code() -> None:
    """private-transformers, examples/table2text/plots/dp_sgd.py and launchers/shared.py."""
    config, adam = recipe("li2022_e2e_dp_sgd"), recipe("li2022_e2e")
    assert (config.optimizer.name, config.optimizer.momentum) == ("sgd", 0.9)
    assert (config.train.learning_rate, config.privacy.delta) == (3.0, 1e-5)
    for key in ("expected_batch_size", "epochs", "weight_decay"):
        assert config.train[key] == adam.train[key]
    assert config.scheduler.name == "constant"


PAPERS = {
    "li2022": "Li et al. 2022, ",
    "bu2022": "Bu et al. 2022, ",
    "ponomareva2022": "Ponomareva et al. 2022, ",
}


@pytest.mark.slow
def test_every_recipe_of_a_paper_names_its_figure_and_carries_its_rows() -> None:
    for path in config_directory().glob("experiment/*2022_*.yaml"):
        paper = PAPERS[path.stem.partition("_")[0]]
        purpose = path.read_text().splitlines()[1]
        assert re.search(rf"\({paper}(Tables?|Figures?|Appendix) [\dNSV]", purpose), purpose
        rows = [Reference(**row) for row in published_rows(path)]
        if not paper.startswith("Ponomareva"):  # whose noise is given, and Table 4 without any
            published = {1, 2, 4, 8} if "_cifar" in path.stem else {3, 8, None}
            assert {row.eps for row in rows} <= published, path.stem
            assert published & {3, 8} & {row.eps for row in rows}, path.stem
        assert all(
            re.match(rf"{paper}(Table \d|Figure \d|Appendix S)", row.source) for row in rows
        ), path.stem
        told = [(row.source, row.what, row.model, row.eps) for row in rows]
        assert len(set(told)) == len(told), path.stem


SPLITS_OF_GLUE = 9


@pytest.mark.slow
@pytest.mark.parametrize(("size", "rows"), [("small", 9 + 7 + 1), ("base", 1), ("large", 1)])
def test_glue_after_pre_training_is_that_of_the_paper_and_its_code(size: str, rows: int) -> None:
    """Ponomareva et al. 2022, section 4 and Tables 1, 2, 4; t5_custom_sentencepiece_small_glue.gin.

    Each row's Avg is the mean of its nine columns: 92.07 is printed as 92.0.
    """
    config = composed(f"ponomareva2022_glue_{size}")
    train = config.train
    assert (train.expected_batch_size, train.steps, train.learning_rate) == (128, 150_000, 1e-3)
    assert (config.task.name, config.task.max_length) == ("glue_mixture", 512)
    assert (config.privacy.name, config.decode.max_new_tokens) == ("none", 84)
    assert config.model.architecture.dropout_rate == 0.1
    pretrained = composed(f"ponomareva2022_t5_{size}").model
    theirs = {**pretrained.architecture, "dropout_rate": 0.1}
    assert (config.model.name, dict(config.model.architecture)) == (pretrained.name, theirs)
    assert len(config.reference) == rows
    for row in config.reference:
        columns = {key: v for key, v in row.metrics.items() if key != "validation.accuracy"}
        assert len(columns) == SPLITS_OF_GLUE
        mean = sum(columns.values()) / SPLITS_OF_GLUE
        assert row.metrics["validation.accuracy"] == pytest.approx(mean, abs=7.5e-4), row.what


@pytest.mark.slow
def test_table_3_has_its_two_columns_in_two_recipes() -> None:
    """Ponomareva et al. 2022, Table 3: thirteen models by each objective."""
    spans, prefix = composed("ponomareva2022_t5_small"), composed("ponomareva2022_t5_small_prefix")
    assert (prefix.task.objective, prefix.task.max_length) == ("prefix_lm", 512)
    for section in ("model", "privacy", "train", "optimizer", "scheduler"):
        assert prefix[section] == spans[section]
    assert [row.metrics.token_accuracy for row in prefix.reference] == [
        *(0.396, 0.23, 0.235, 0.242, 0.314),
        *(0.557, 0.531, 0.499, 0.498),
        *(0.428, 0.432, 0.437, 0.492),
    ]
    for name in ("t5_small", "t5_small_prefix"):
        text = (config_directory() / f"experiment/ponomareva2022_{name}.yaml").read_text()
        table = [line for line in text.splitlines() if line.startswith("#   ")]
        assert len(table) == 1 + 13


@pytest.mark.slow
def test_a_private_t5_row_says_of_how_many_pairs_its_epsilon_is() -> None:
    """6.06 beside 9.31 for the same noise: Ponomareva et al. 2022, Appendix C, counts pairs."""
    for name in ("ponomareva2022_t5_small", "ponomareva2022_t5_small_prefix"):
        rows = [row for row in composed(name).reference if row.eps is not None]
        assert len(rows) == 8
        for row in rows:
            assert "for 5,240,387,307 pairs; C4 has 364,868,892 texts" in row.what


@pytest.mark.slow
def test_canaries_are_those_of_appendix_m() -> None:
    """Li et al. 2022, Appendix M and Table 9; all else is li2022_e2e's."""
    config, e2e = recipe("li2022_table9"), recipe("li2022_e2e")
    audit = config.audit
    assert (list(audit.repetitions), audit.vocabulary, audit.suffix_words) == ([1, 10, 100], 10, 5)
    for section in ("task", "model", "method", "privacy", "train"):
        assert config[section] == e2e[section]


def published_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a recipe, or its map as one; or, where it has none, of what it builds on."""
    values = OmegaConf.to_container(OmegaConf.load(path))
    names = ("source", "what", "model", "eps")
    maps = [{name: one[name] for name in names} for one in values.get("reference_maps", ())]
    rows = values.get("reference") or [{**one, "metrics": {}} for one in maps]
    return rows or published_rows(path.with_stem(values["defaults"][0]))


@pytest.mark.slow
@pytest.mark.parametrize(("size", "millions"), [("small", 60), ("base", 220), ("large", 770)])
def test_private_t5_has_the_published_sizes_and_costs(size: str, millions: int) -> None:
    """Ponomareva et al. 2022, Table 4, sections 4 and C; with T5's own 32,000 pieces."""
    config = composed(f"ponomareva2022_t5_{size}")
    architecture = {**OmegaConf.to_container(config.model.architecture), "vocab_size": 32_103}
    with torch.device("meta"):
        model = T5ForConditionalGeneration(T5Config(**architecture))
    counted = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert counted == pytest.approx(millions, rel=0.05)
    assert (config.train.expected_batch_size, config.train.steps) == (8192, 100_000)
    assert (config.privacy.num_examples, config.privacy.max_grad_norm) == (None, 0.001)
    assert config.privacy.delta == pytest.approx(1 / 5_240_387_307, rel=1e-6)
    assert config.privacy.noise_multiplier == 0.40
    # 0.5 / sqrt(max(step, 1000)), as the authors' code has it
    assert config.train.learning_rate == pytest.approx(0.5 / 1000**0.5, rel=1e-6)
    assert (config.scheduler.name, config.scheduler.warmup_steps) == ("rsqrt", 1000)
    assert (config.task.objective, config.task.max_length) == ("span_corruption", 512)
