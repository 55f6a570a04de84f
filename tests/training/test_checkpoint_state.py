"""``state.json`` must name a checkpoint's files and no others, whoever computed its checksum."""

import hashlib
import json

import pytest

from dpft.errors import StateError
from dpft.run_folder import STATE, WEIGHTS
from dpft.training.checkpoint import restore_checkpoint, save_checkpoint
from tests.training.test_checkpoint import state_after


def saved(tmp_path):
    state = state_after(1)
    return save_checkpoint(tmp_path / "checkpoints", 1, state), state


def rewrite(path, **changes):
    """Change ``state.json`` and compute its checksum anew."""
    state = {**json.loads((path / STATE).read_text()), **changes}
    del state["checksum"]
    digest = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
    (path / STATE).write_text(json.dumps({**state, "checksum": digest}))


def test_a_state_that_says_what_it_did_is_read(tmp_path):
    path, state = saved(tmp_path)
    rewrite(path)
    assert restore_checkpoint(path, state) == 1


@pytest.mark.parametrize(
    "names",
    [[], [WEIGHTS], [WEIGHTS, "../model.safetensors"], [WEIGHTS, "a"]],
    ids=["none", "one", "elsewhere", "another"],
)
def test_checksums_of_other_files_are_refused(tmp_path, names):
    path, state = saved(tmp_path)
    rewrite(path, checksums=dict.fromkeys(names, "0" * 64))
    with pytest.raises(StateError, match=r"state\.json"):
        restore_checkpoint(path, state)
