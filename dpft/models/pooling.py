"""A classifier that reads the mean over a text's tokens, for encoders trained to be read so.

Sentence encoders (Reimers and Gurevych 2019, arXiv 1908.10084) carry a text's meaning in the mean
of their last layer, and have no trained pooler. The classes of transformers read the first token.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput


class PooledClassifier(PreTrainedModel):
    """An encoder, the mean of its last layer over the tokens, dropout, and one linear layer."""

    config_class = PretrainedConfig
    base_model_prefix = "backbone"
    main_input_name = "input_ids"
    _supports_sdpa = True
    supports_gradient_checkpointing = True

    def __init__(self, config: PretrainedConfig, encoder: PreTrainedModel | None = None) -> None:
        """Puts a fresh head on an encoder, or on a fresh one of the architecture.

        The encoder loses its pooler: the mean takes its place.
        """
        super().__init__(config)
        made: Any = AutoModel
        self.backbone: nn.Module = (
            made.from_config(config, dtype=torch.float32) if encoder is None else encoder
        )
        if "pooler" in self.backbone._modules:
            self.backbone.pooler = None
        self.dropout = nn.Dropout(float(getattr(config, "hidden_dropout_prob", 0.0)))
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 1))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Initializes the head, as the architectures of transformers do theirs."""
        if module is self.classifier:
            nn.init.normal_(self.classifier.weight, std=0.02)
            nn.init.zeros_(self.classifier.bias)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any
    ) -> SequenceClassifierOutput:
        """Returns logits of shape (b, k).

        Args:
            input_ids: Token ids, shape (b, t).
            attention_mask: 1 for tokens and 0 for padding, shape (b, t).
            inputs: Whatever else the encoder takes.
        """
        states = self.backbone(
            input_ids=input_ids, attention_mask=attention_mask, **inputs
        ).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        mean = (states * weights).sum(dim=1) / weights.sum(dim=1)
        logits: Tensor = self.classifier(self.dropout(mean))
        return SequenceClassifierOutput(logits=logits)
