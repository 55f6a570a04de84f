"""``dpft tune`` refuses in one sentence what would void its bound, and takes ``resume=`` alone."""

import pytest

from tests.commands.test_tuning_search import SEARCH
from tests.stories.tiny import Workspace, make_workspace


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("tune"))


@pytest.mark.slow
def test_resume_takes_the_search_as_it_was(workspace: Workspace) -> None:
    refused = workspace.refusal("tune", "resume=bound", "tune.gamma=0.5")
    assert "tune.gamma" in refused
    assert workspace.refusal("tune", "resume=data").startswith("resume ")


@pytest.mark.slow
def test_a_private_split_and_a_setting_that_does_not_fit_are_refused(workspace: Workspace) -> None:
    private = [word for word in SEARCH if not word.startswith("eval.split_is_public")]
    sentence = workspace.refusal("tune", *private)
    assert "eval.split_is_public=true" in sentence
    sentence = workspace.refusal("tune", *SEARCH, "tuning.space.train.expected_batch_size=[8,99]")
    assert "99" in sentence
