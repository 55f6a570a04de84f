import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir

from dpft.config.composing import register_resolver
from dpft.config.load import config_directory, load
from dpft.config.schema import POLYMORPHIC, TrainCommand
from dpft.methods.linear_probe import DEFAULT_FOR_LABELS
from dpft.runs.run_plan import announce, what_is_trained
from tests.slowness import slow


def command(*words: str) -> TrainCommand:
    register_resolver()
    with initialize_config_dir(str(config_directory()), version_base="1.3"):
        return load(compose("train", list(words)), TrainCommand, polymorphic=POLYMORPHIC)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["privacy.eps=3"],
            "training model=gpt2 on task=e2e by method=full, under eps=3 for each example",
        ),
        (
            ["privacy.eps=8", "privacy.delta=1e-5", "privacy.unit=customer_id", "method=retrain"],
            "training model=gpt2 from random weights on task=e2e by method=retrain,"
            " under eps=8, delta=1e-05 for each value of customer_id",
        ),
        *slow(
            (
                ["privacy=none", "model=tiny", "resume=outputs/a"],
                "going on with outputs/a: model=tiny on task=e2e by method=full, without privacy",
            ),
            (
                ["privacy=none", "model=tiny", "privacy.max_grad_norm=0.1"],
                "training model=tiny on task=e2e by method=full,"
                " without privacy: each example clipped at 0.1, no noise",
            ),
            (
                ["privacy.noise_multiplier=0.7"],
                "training model=gpt2 on task=e2e by method=full,"
                " with noise_multiplier=0.7 for each example",
            ),
        ),
    ],
)
def test_the_first_line_says_what_is_trained_and_what_is_promised(
    caplog: pytest.LogCaptureFixture, words: list[str], line: str
) -> None:
    with caplog.at_level("INFO"):
        announce(command(*words))
    assert caplog.messages == [line]


@pytest.mark.parametrize(("method", "is_said"), [("linear_probe", True), ("bitfit", False)])
def test_the_default_method_for_labels_is_said_with_the_key_that_changes_it(
    caplog: pytest.LogCaptureFixture, method: str, is_said: bool
) -> None:
    own = ("task=custom", "task.data_dir=rows.csv", "task.text='{text}'", "task.label=label")
    trained = command(*own, "task.labels=[a,b]", f"method={method}", "privacy.eps=8")
    with caplog.at_level("INFO"):
        announce(trained)
    assert caplog.messages[1:] == ([DEFAULT_FOR_LABELS] if is_said else [])
    assert "method=full" in DEFAULT_FOR_LABELS


@pytest.mark.slow
def test_a_training_logs_before_torch_is_imported(tmp_path: Path) -> None:
    program = """
import logging, sys
from dpft.cli.main import main

class Stop(logging.Filter):
    def filter(self, record):
        sys.exit(100 if "torch" in sys.modules else 50)

logging.getLogger("dpft.runs.run_plan").addFilter(Stop())
sys.exit(main(["train", "model=tiny", "task.source=embedded", "privacy.eps=3"]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True)
    assert done.returncode == 50, done.stderr


def test_a_model_in_a_folder_is_called_by_its_folder_and_type(tmp_path: Path) -> None:
    words = ["model=local", f"model.path={tmp_path}", "privacy.eps=3"]
    named = f"model.path=…/{tmp_path.name}"
    assert what_is_trained(command(*words)).startswith(f"{named} on task=e2e")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert what_is_trained(command(*words)).startswith(f"{named} (bert) on task=e2e")


def test_a_faulty_row_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("text,label\na,good\nb,\n")
    program = """
import sys
from dpft.cli.main import main

code = main([
    "train", "model=tiny", "task=custom", "task.data_dir=rows.csv", "task.text='{text}'",
    "task.label=label", "task.labels=[bad,good]", "privacy.eps=3",
])
sys.exit(100 if "torch" in sys.modules else code)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "rows.csv, line 3: the column label" in done.stderr and "is empty" in done.stderr
