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
