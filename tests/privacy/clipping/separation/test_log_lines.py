"""What is logged while private batches are computed tells nothing of them."""

import logging

import torch
from torch import Tensor, nn

from dpft.privacy.clipping import PerExampleClipper


class Choosy(nn.Module):
    """Runs on batches of four alone, and its error tells how long their texts are."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 1)

    def forward(self, ids: Tensor) -> Tensor:
        if len(ids) != 4:
            raise ValueError(f"texts of {ids.shape[1]} tokens")
        return self.embedding(ids).sum((1, 2))


def test_trust_rule_7_no_log_line_quotes_an_error_that_tells_a_texts_length(caplog) -> None:
    model, ids = Choosy(), torch.randint(0, 5, (4, 137))
    with caplog.at_level(logging.INFO), PerExampleClipper(model, 1.0) as clipper:
        clipper.accumulate(lambda: model(ids))
    assert "would not run on fewer rows" in caplog.text
    assert "137" not in caplog.text


class Masked(nn.Module):
    """Positions looked up for all, and a value read that torch would quote: what cannot be mapped.

    Its first position alone is used, so that rows of positions for each example do not do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 3)
        self.positions = nn.Embedding(137, 3)

    def forward(self, ids: Tensor, scale: Tensor | None = None) -> Tensor:
        rows = self.tokens(ids) + self.positions(torch.arange(ids.shape[1])[None])[0]
        if bool((ids >= 0).all()):
            rows = rows.square()
        return (rows if scale is None else rows * scale).sum((1, 2))


def warnings_of(caplog, model: nn.Module, *calls: tuple[Tensor, ...]) -> list[str]:
    """Returns what is said as warnings while batches are computed, by two clippers in turn."""
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            with PerExampleClipper(model, 1.0) as clipper:
                for call in calls:
                    clipper.accumulate(lambda call=call: model(*call))
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_slow_path_is_told_with_cause_and_remedy_once_per_model_and_kind_of_call(caplog) -> None:
    ids = torch.randint(0, 5, (4, 137))
    kinds = [(ids,), (ids, torch.ones(4, 1, 1))]
    for _ in range(2):
        found = warnings_of(caplog, Masked(), kinds[0], kinds[1], kinds[0])
        assert len(found) == 2 and found[0] == found[1]
        assert found[0] == (
            "clipping: Masked runs one example after another, which is slow, since "
            "positions.weight meets a tensor that does not carry the batch in front, and it reads "
            "a value from a tensor; pass position_ids, or what else Embedding looks up, for each "
            "example"
        )


def test_of_many_modules_of_one_class_the_first_speaks(caplog) -> None:
    class Read(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            outputs = super().forward(inputs)
            return outputs if float(outputs.detach().sum()) > 0 else 2 * outputs

    model = nn.Sequential(Read(3, 3), Read(3, 1), nn.Flatten(0))
    (found,) = warnings_of(caplog, model, (torch.ones(4, 3),))
    assert found.startswith("clipping: Read runs one example after another, which is slow, since ")
    assert found.endswith("; freeze 0.weight, or use it in a layer with a rule, such as nn.Linear")
