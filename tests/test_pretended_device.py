import io

from dpft.cli.main import main
from tests import pretended
from tests.pretended import on_pretended

TRAIN = (
    "train",
    "task=e2e",
    "task.source=embedded",
    "model=tiny",
    "privacy.noise_multiplier=1",
    "privacy.accountant=rdp",
    "train.expected_batch_size=8",
    "train.micro_batch_size=4",
    "task.max_length=40",
    "train.num_threads=1",
    "train.steps=3",
    "train.learning_rate=1e-3",
    "eval.enabled=false",
    "privacy.noise_seed=1",
    "train.device=accelerator",
)


def command(*words):
    out, err = io.StringIO(), io.StringIO()
    code = main(list(words))
    return code


def test_it(tmp_path):
    def work():
        code = command(*TRAIN, f"hydra.run.dir={tmp_path}/run")
        print(pretended.WAITS.most_common(60))
        return code

    assert on_pretended(work, limit=200) == 0
