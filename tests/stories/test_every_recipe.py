"""Every recipe of conf/experiment, trained, scored and reported on a stand-in of its model.

``make recipes`` runs them all; ``make test`` runs none.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sklearn.datasets  # noqa: F401  it writes to the environment, which commands are checked to leave alone
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizerFast,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ResNetConfig,
    ResNetForImageClassification,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
)

import dpft.commands.train  # noqa: F401  as sklearn
from dpft.config.hydra_compose import register_resolver
from dpft.config.load import config_directory
from dpft.models.source import EMBEDDED_MODEL
from tests.data import made_images as made
from tests.models import small
from tests.slowness import slow_but
from tests.stories.tiny import Workspace, own_entries

ROWS, SCORED = 64, 6
FILES = {path.stem: path for path in sorted(config_directory().glob("experiment/*.yaml"))}
SMALL = (
    "train.steps=2", "train.expected_batch_size=8", "train.micro_batch_size=4",
    f"eval.limit={SCORED}", "decode.max_new_tokens=4", "decode.num_beams=2", "task.workers=0",
)  # fmt: skip
"""What is cut down in every recipe; ``task.workers`` is of tasks of images alone."""
AUDIT = "# Then: dpft audit run=outputs/DATE/TIME "
"""How the line of a recipe's head begins that says how its run is audited."""
SLOW_METRICS = {"meteor", "meteor_plain", "bertscore", "bleurt"}
"""They start Java, or need weights."""
T5 = "d_model=16 d_kv=8 d_ff=24 num_layers=1 num_decoder_layers=1 num_heads=2"


def own_words(name: str) -> tuple[list[str], bool]:
    """The words of the command in a recipe's head, and whether it is a sweep."""
    words = shlex.split(FILES[name].read_text().splitlines()[1].rpartition("dpft train ")[2])
    kept = [w for w in words if not w.endswith(("=DIR", "=outputs/DATE/TIME", "TIME/model"))]
    return [word for word in kept if word != "--multirun"], "--multirun" in words


def audits_of(name: str) -> list[list[str]]:
    """The words of each audit that a recipe's head says to run after it."""
    return [
        shlex.split(line.partition(AUDIT)[2])
        for line in FILES[name].read_text().splitlines()
        if line.startswith(AUDIT)
    ]


@cache
def composed(name: str) -> DictConfig:
    """A recipe as its own command composes it, the sweep's axes beside it."""
    register_resolver()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        return compose("train", overrides=own_words(name)[0], return_hydra_config=True)


def first_of_each_axis(name: str) -> list[str]:
    """The sweep's axes, each cut to its first value."""
    axes = OmegaConf.to_container(composed(name).hydra.sweeper.params, resolve=True) or {}
    return [f"{key}={first_value(str(values))}" for key, values in axes.items()]


def first_value(values: str) -> str:
    """The first of the values of an axis; those in braces have commas of their own."""
    found = re.match(r"\s*(\{[^}]*\}|\[[^\]]*\]|[^,]*)", values)
    assert found is not None
    return found[1].strip()


def saved(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_gpt2(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=512, n_embd=16, n_layer=3, n_head=2,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    saved(folder, GPT2LMHeadModel(config), tokenizer)


def make_llama(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        bos_token_id=tokenizer.eos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    saved(folder, LlamaForCausalLM(config), tokenizer)


def make_roberta(folder: Path) -> None:
    """RoBERTa with a vocabulary of letters and of the words that stand for labels."""
    words = label_words()
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    letters = sorted({*bytes_as_letters(), *"".join(words)})
    merges: list[str] = []
    for word in sorted(words):
        whole = "\u0120"
        for letter in word:
            merges += [f"{whole} {letter}"]
            whole += letter
    merges = list(dict.fromkeys(merges))
    vocabulary = [*pieces, *letters, *(merge.replace(" ", "") for merge in merges)]
    folder.mkdir()
    (folder / "vocab.json").write_text(
        json.dumps({piece: at for at, piece in enumerate(dict.fromkeys(vocabulary))})
    )
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    tokenizer = RobertaTokenizerFast.from_pretrained(folder)
    config = RobertaConfig(
        vocab_size=len(tokenizer), hidden_size=48, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=514, type_vocab_size=1,
    )  # fmt: skip
    saved(folder, RobertaForMaskedLM(config), tokenizer)


def bytes_as_letters() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel.alphabet()


def label_words() -> set[str]:
    """The words of labels of all tasks, those of the sweep over them among them."""
    files = config_directory().glob("task/*.yaml")
    tasks = [yaml.safe_load(file.read_text()) for file in files]
    words = {str(word) for task in tasks for word in (task.get("label_words") or {}).values()}
    return words | set(
        re.findall(r"(?:positive|negative):(\w+)", FILES["li2022_figure7"].read_text())
    )


def make_bert(folder: Path) -> None:
    tokenizer = small.wordpiece(folder)
    model = BertModel(BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=512,
    ))  # fmt: skip
    assert isinstance(tokenizer, BertTokenizerFast)
    saved(folder, model, tokenizer)


def make_vit(folder: Path) -> None:
    config = ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        image_size=32, patch_size=16, num_labels=2,
    )  # fmt: skip
    ViTForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)


def make_resnet(folder: Path) -> None:
    config = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic", num_labels=2
    )
    ResNetForImageClassification(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)


STAND_INS: dict[str, Callable[[Path], None]] = {
    "gpt2": make_gpt2,
    "llama": make_llama,
    "smollm2": make_llama,
    "roberta": make_roberta,
    "minilm": make_bert,
    "vit": make_vit,
    "resnet18": make_resnet,
}
"""How the names of models begin, and what stands for them; of t5 the recipe draws the weights."""


def write_lines(file: Path, rows: list[dict[str, Any]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def e2e_row(number: int) -> dict[str, Any]:
    return {
        "meaning_representation": f"name[Inn {number}], eatType[pub]",
        "human_reference": f"Inn {number} is a pub.",
    }


def dart_row(number: int) -> dict[str, Any]:
    triple = [f"Inn {number}", "EAT_TYPE", "pub"]
    return {"tripleset": [triple], "annotations": [{"text": f"Inn {number} is a pub."}]}


def chat_row(number: int) -> dict[str, Any]:
    return {
        "personality": ["i like pubs."],
        "history": ["hello", "hi", f"where do you go, {number}?"],
        "candidates": ["home", "to the pub"],
    }


def messages_row(number: int) -> dict[str, Any]:
    asked = {"role": "user", "content": f"what is inn {number}?"}
    return {"messages": [asked, {"role": "assistant", "content": "it is a pub."}]}


def pair_row(number: int) -> dict[str, Any]:
    return {
        "prompt": f"what is inn {number}?",
        "chosen": "it is a pub.",
        "rejected": f"i do not know inn {number}.",
    }


def write_data(config: DictConfig, folder: Path) -> None:
    """The rows of a task, 64 to train on, in the format of its own files."""
    task = str(config.task.name)
    sizes = {"train": ROWS, "validation": SCORED, "test": SCORED}
    if task.startswith("cifar"):
        made.cifar_binary(folder, hundred=task == "cifar100", count=ROWS + ROWS % 5)
    elif task == "celeba":
        names = tuple(map(str, config.task.labels))
        made.celeba(folder, count=ROWS * 10 // 7, names=names)
    elif task == "corpus":
        for split, count in sizes.items():
            write_lines(folder / f"{split}.jsonl", [{"text": TEXT.format(n)} for n in range(count)])
    elif task in HELD_OUT_ROW_OF:  # whose recipe holds rows out
        rows = [HELD_OUT_ROW_OF[task](number) for number in range(ROWS)]
        write_lines(folder / "train.jsonl", rows)
    elif task in ROW_OF:
        for split, count in sizes.items():
            write_lines(folder / f"{split}.jsonl", [ROW_OF[task](n) for n in range(count)])
    elif task == "glue_mixture":
        for name, each in config.task.tasks.items():
            rows = {"train": ["train"], "validation": each.parts}
            write_labelled(each, folder / name, {"train": 8, "validation": 2}, rows)
    else:
        write_labelled(config.task, folder, sizes, config.task.split_parts)


def write_labelled(
    task: DictConfig, folder: Path, sizes: dict[str, int], parts: Mapping[str, Sequence[str]]
) -> None:
    """The rows of a task of GLUE."""
    for split, count in sizes.items():
        rows = [
            {
                **{str(c): f"a film of {n}" for c in task.text_columns},
                "label": n % len(task.labels),
            }
            for n in range(count)
        ]
        for part in parts.get(split, [split]):
            write_lines(folder / f"{part}.jsonl", rows)


TEXT = "the inn of number {} stands by the river and serves good food to people of the town"
HELD_OUT_ROW_OF = {"custom": messages_row, "preference": pair_row}
ROW_OF = {"e2e": e2e_row, "dart": dart_row, "personachat": chat_row}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return Workspace(tmp_path_factory.mktemp("recipes"))


@pytest.fixture(autouse=True)
def _fixed_weights() -> Iterator[None]:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def stand_in(workspace: Workspace, config: DictConfig) -> list[str]:
    """The words that put a small model of its own architecture in the place of a recipe's."""
    name = str(config.model.name)
    if name == "tiny":
        return []
    if name.startswith("t5") and config.model.init == "pretrained":
        return [f"model.path={pretrained_t5(workspace)}"]
    if name.startswith("t5"):
        vocabulary = workspace.root / "vocabulary"
        if not vocabulary.exists():
            done = workspace.run(
                "tokenizer", "task=corpus", "task.data_dir=corpus", "privacy.eps=300",
                "privacy.delta=1e-3", "tokenizer.words_per_record=4", "tokenizer.vocab_size=12",
                "hydra.run.dir=vocabulary",
            )  # fmt: skip
            assert done.code == 0, done.err
        sizes = [f"model.architecture.{size}" for size in T5.split()]
        return ["model.tokenizer=vocabulary", "task.max_length=64", *sizes]
    kind = next(each for each in STAND_INS if name.startswith(each))
    folder = workspace.root / kind
    if not folder.exists():
        STAND_INS[kind](folder)
    return [f"model.path={kind}"]


def pretrained_t5(workspace: Workspace) -> str:
    """The model of a run of ponomareva2022_t5_small, privately pre-trained for two steps."""
    run = workspace.root / "pretrained"
    if not run.exists():
        words = [*words_of(workspace, "ponomareva2022_t5_small"), "eval.enabled=false"]
        done = workspace.run("train", *words, f"hydra.run.dir={run.name}")
        assert done.code == 0, done.err
    return f"{run.name}/model"


def words_of(workspace: Workspace, name: str) -> list[str]:
    """The words of a recipe's own command, on its stand-in and its task's 64 rows."""
    config = composed(name)
    words, _ = own_words(name)
    task = str(config.task.name)
    if config.task.source != "embedded":
        if not (workspace.root / task).exists():
            write_data(config, workspace.root / task)
        words.append(f"task.data_dir={task}")
    is_image = "image_size" in config.task
    images = ["task.image_size=32"] if config.task.get("image_size") else []
    small_words = [w for w in SMALL if is_image or not w.startswith("task.workers")]
    words += [*stand_in(workspace, config), *small_words, *images]
    metrics = [m for m in config.task.metrics if m not in SLOW_METRICS]
    words.append(f"task.metrics=[{','.join(metrics)}]")
    if config.method.name == "two_phase":
        words.append("method.full_epochs=0.1")
    if config.privacy.name == "dp" and config.privacy.accountant != "rdp":
        # The noise of two steps of eight rows is so small that any other one takes seconds.
        words.append("privacy.accountant=rdp")
    if config.audit.exposure_canaries:  # 64 rows have no room for 111 copies
        words.append("audit.repetitions=[1,10]")
    return words


@pytest.mark.parametrize("name", slow_but([], FILES))
def test_a_recipe_trains_scores_and_reports(workspace: Workspace, name: str) -> None:
    config, words = composed(name), words_of(workspace, name)
    _, is_sweep = own_words(name)
    folder = workspace.root / "runs" / name
    if is_sweep:
        axes = first_of_each_axis(name)
        given = {word.partition("=")[0] for word in axes}
        words = [word for word in words if word.partition("=")[0] not in given]
        small_words = [w for w in SMALL if w.partition("=")[0] in given]
        axes = [w for w in axes if w.partition("=")[0] not in {s.partition("=")[0] for s in SMALL}]
        words = ["--multirun", *words, *axes, *small_words, f"hydra.sweep.dir=runs/{name}"]
        folder = folder / "0"
    else:
        words.append(f"hydra.run.dir=runs/{name}")
    outcome = workspace.run("train", *words)
    assert outcome.code == 0, outcome.err
    privacy = json.loads((folder / "privacy.json").read_text())
    assert privacy["private"] == (config.privacy.name != "none")
    if privacy["private"]:
        assert privacy["steps_taken"] == 2
        assert privacy["delta"] == (config.privacy.delta or privacy["delta"])
    after = [each for each in own_entries(folder) if each["stage"] == "after"]
    assert after and all(each["metrics"] for each in after)
    assert audits_of(name) or not (config.audit.canaries or config.audit.exposure_canaries)
    for audit in audits_of(name):
        audited = workspace.run("audit", f"run={folder}", *audit, "output=json")
        assert audited.code == 0, audited.err
        if "audit=memorization" in audit:
            found = json.loads(audited.out)
            assert found["hidden"] == "continuation"
            assert sum(scores["records"] for scores in found["scores"].values()) > 0
            assert all("exact_match" in scores for scores in found["scores"].values())
    reported = workspace.run("report", f"runs=[{folder.relative_to(workspace.root)}]")
    assert reported.code == 0, reported.err


@pytest.mark.parametrize("name", slow_but([], FILES))
def test_a_recipe_is_planned_by_its_public_numbers_without_weights(
    workspace: Workspace, name: str
) -> None:
    """Nothing is cut down but the model: what ``train`` refuses of the real sizes, this refuses."""
    config, (words, is_sweep) = composed(name), own_words(name)
    axes = first_of_each_axis(name) if is_sweep else []
    axes = [word for word in axes if not word.startswith(("model=", "model.name="))]
    task = str(config.task.name)
    if not (workspace.root / task).exists():
        write_data(config, workspace.root / task)
    model = [w for w in stand_in(workspace, config) if not w.startswith("task.max_length")]
    own = [f"task.data_dir={task}"] if task in HELD_OUT_ROW_OF else []
    outcome = workspace.run("plan", *words, *axes, *model, *own, "output=json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    if config.privacy.name == "none":
        assert record["private"] is False and record["plan"]["steps"] > 0
        return
    published = config.task.num_train_examples
    embedded = config.task.source == "embedded"
    published = config.task.embedded_num_train_examples if embedded else published
    published = 364868892 if task == "corpus" else published
    published = ROWS if own else published
    copies = config.audit.exposure_canaries * sum(config.audit.repetitions)
    plan = record["plan"]
    assert plan["num_examples"] == published + config.audit.canaries + copies
    batch = plan["sample_rate"] * plan["num_examples"]
    assert batch == pytest.approx(plan["expected_batch_size"])
    is_large = plan["delta"] > 1 / plan["num_examples"]
    assert is_large == bool(config.privacy.allow_large_delta)
    said = any("releasing one whole record" in warning for warning in record["warnings"])
    assert said or not is_large


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "plan"])
def test_a_batch_beyond_the_records_of_a_recipe_is_refused_by_its_key(
    workspace: Workspace, command: str
) -> None:
    words = ("privacy.eps=3", "task.source=embedded", "train.expected_batch_size=9000")
    said = workspace.refusal(command, "experiment=e2e_tiny", *words)
    assert said.startswith("train.expected_batch_size ") and "9000" in said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "plan"])
def test_public_numbers_that_are_far_apart_are_refused_before_a_record_is_read(
    workspace: Workspace, command: str
) -> None:
    words = ("task=sst2", "model=roberta-base", "privacy.eps=3")
    said = workspace.refusal(command, *words, "privacy.num_examples=150000")
    assert "privacy.num_examples" in said and "67349" in said and "150000" in said
