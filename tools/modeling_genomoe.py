"""genomoe models with a k-mer stem, for Hugging Face transformers.

This file travels with an exported model (`trust_remote_code=True`) and needs torch and
transformers alone. The model is a Mixtral, or a Llama where it is dense, whose input is the sum
of each letter's embedding and those of the k-mers that end at it. No k-mer reaches across BOS.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
    MixtralConfig,
    MixtralForCausalLM,
    MixtralModel,
)

try:  # transformers 5 keeps the experts of a layer in one tensor and converts while it loads
    from transformers.conversion_mapping import (
        get_checkpoint_conversion_mapping,
        register_checkpoint_conversion_mapping,
    )
except ImportError:
    pass
else:
    register_checkpoint_conversion_mapping(
        "genomoe", get_checkpoint_conversion_mapping("mixtral"), overwrite=True
    )

FIRST_LETTER_ID = 3
# Odd constant of Knuth's multiplicative hash (2^64 / golden ratio), as a signed 64-bit number.
_HASH = -7046029254386353131


class GenomoeConfig(MixtralConfig):
    """Mixtral's config; `kmer_orders` and `kmer_buckets` describe the stem."""

    model_type = "genomoe"


class GenomoeDenseConfig(LlamaConfig):
    """Llama's config; `kmer_orders` and `kmer_buckets` describe the stem."""

    model_type = "genomoe_dense"


class _Stem:
    """Mixed into a transformers model: its embedding knows k-mers."""

    config: Any
    embed_tokens: Any
    kmers: torch.nn.ModuleDict

    def _add_tables(self) -> None:
        width = self.config.hidden_size
        self.kmers = torch.nn.ModuleDict(
            {
                str(order): torch.nn.Embedding(self._table_rows(order), width)
                for order in self.config.kmer_orders
            }
        )

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *,
        inputs_embeds: Tensor | None = None,
        history_ids: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Run the model.

        Args:
            input_ids: New letters [batch, new].
            attention_mask: As transformers has it.
            inputs_embeds: In place of `input_ids`: what `embed` gives.
            history_ids: Old and new letters [batch, all], where a cache holds the old ones.
            options: Of the transformers model.

        Raises:
            ValueError: If there is a cache and its letters are not in `history_ids`.
        """
        if inputs_embeds is None:
            # Its name in transformers 4 and in later 5.
            cache = options.get("past_key_values", options.get("cache"))
            past = 0 if cache is None else int(cache.get_seq_length())
            ids = input_ids if history_ids is None else history_ids
            if input_ids is None or ids is None or ids.shape[1] != past + input_ids.shape[1]:
                raise ValueError(
                    "a k-mer stem reads the letters before the new ones: with a cache, give them "
                    "all as history_ids [batch, cached + new] (generate() does)"
                )
            inputs_embeds = self.embed(ids, last=input_ids.shape[1])
        return super().forward(  # type: ignore[misc]
            attention_mask=attention_mask, inputs_embeds=inputs_embeds, **options
        )

    def embed(self, ids: Tensor, last: int | None = None) -> Tensor:
        """Embed the `last` letters (default: all) of ids [batch, letters], the others context."""
        new = ids.shape[1] if last is None else last
        ids = ids[:, max(0, ids.shape[1] - new - max(self.config.kmer_orders)) :]
        x = self.embed_tokens(ids)
        index = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        starts = torch.where(ids == self.config.bos_token_id, index, 0)
        since_bos = index - starts.cummax(dim=1).values
        for order, table in self.kmers.items():
            rows, whole = self._number(ids, since_bos, int(order))
            x = x + table(rows) * whole[..., None].to(x.dtype)
        return x[:, ids.shape[1] - new :]

    def _number(self, ids: Tensor, since_bos: Tensor, order: int) -> tuple[Tensor, Tensor]:
        """Row of the k-mer that ends at each position, and whether it is whole and plain ACGT."""
        digits = ids - FIRST_LETTER_ID
        plain = (digits >= 0) & (digits < 4)
        digits = digits.clamp(0, 3)
        number = torch.zeros_like(ids)
        whole = since_bos >= order
        for back in range(order):
            number = number + _shift_right(digits, back) * 4**back
            whole = whole & _shift_right(plain, back)
        rows = self._table_rows(order)
        if 4**order > rows:
            number = (number * _HASH).bitwise_right_shift(20).remainder(rows)
        return number * whole, whole

    def _table_rows(self, order: int) -> int:
        return int(min(4**order, self.config.kmer_buckets))


def _shift_right(x: Tensor, by: int) -> Tensor:
    return x if by == 0 else F.pad(x[:, : max(0, x.shape[1] - by)], (min(by, x.shape[1]), 0))


class _Generation:
    """Mixed into a causal model: generation tells the stem the letters that the cache holds."""

    # generate() looks for a parameter of the name `kwargs`.
    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Add the whole sequence to the inputs of the next forward pass."""
        if kwargs.get("inputs_embeds") is not None:
            raise ValueError("a k-mer stem generates from input_ids, not from inputs_embeds")
        inputs = super().prepare_inputs_for_generation(  # type: ignore[misc]
            input_ids, *args, **kwargs
        )
        return {**inputs, "history_ids": input_ids}


class GenomoeModel(_Stem, MixtralModel):
    """Mixtral with a k-mer stem, without its output matrix."""

    config_class = GenomoeConfig

    def __init__(self, config: GenomoeConfig) -> None:
        super().__init__(config)
        self._add_tables()
        self.post_init()


class GenomoeForCausalLM(_Generation, MixtralForCausalLM):
    """Mixtral with a k-mer stem."""

    config_class = GenomoeConfig

    def __init__(self, config: GenomoeConfig) -> None:
        super().__init__(config)
        self.model = GenomoeModel(config)
        self.post_init()


class GenomoeDenseModel(_Stem, LlamaModel):
    """Llama with a k-mer stem, without its output matrix."""

    config_class = GenomoeDenseConfig

    def __init__(self, config: GenomoeDenseConfig) -> None:
        super().__init__(config)
        self._add_tables()
        self.post_init()


class GenomoeDenseForCausalLM(_Generation, LlamaForCausalLM):
    """Llama with a k-mer stem."""

    config_class = GenomoeDenseConfig

    def __init__(self, config: GenomoeDenseConfig) -> None:
        super().__init__(config)
        self.model = GenomoeDenseModel(config)
        self.post_init()
