"""The shape of a model, without torch."""

import math
from dataclasses import dataclass
from typing import Literal

ExpertBackend = Literal["auto", "sequential", "te_grouped"]

CODON_PHASE = 2.0 * math.pi / 3.0


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A Mixtral-like decoder: `num_blocks` times (attention, experts), RMSNorm before each.

    Megatron's names where a field maps to one of its own.
    """

    num_blocks: int = 4
    """Blocks; each is one attention and one expert (or dense) layer: megatron's `*E` or `*-`."""
    hidden_size: int = 128
    """Width of the residual stream."""
    num_attention_heads: int = 4
    """Query heads; `hidden_size / num_attention_heads` is the width of one."""
    num_query_groups: int = 4
    """Key/value heads (grouped-query attention); divides the query heads."""
    num_moe_experts: int = 4
    """Experts of each layer, 2 or more; 0 makes the layer dense."""
    moe_router_topk: int = 2
    """Experts that each token visits, 2 or more."""
    moe_ffn_hidden_size: int = 256
    """Inner width of one expert (SwiGLU: three matrices)."""
    ffn_hidden_size: int = 512
    """Inner width of the layer when it is dense (`num_moe_experts` 0)."""
    moe_aux_loss_coeff: float = 1e-3
    """Weight of the load-balance loss over the global batch. 0 lets experts collapse."""
    moe_z_loss_coeff: float = 1e-3
    """Weight of the router's z-loss (mean squared log-sum-exp of its logits)."""
    dropout: float = 0.1
    """Dropout on the embedding and on both residual branches."""
    rotary_base: int = 10_000
    """Base of the rotary position embedding."""
    rotary_position_scale: float = 1.0
    """Positions are multiplied by this before rotation. `CODON_PHASE` (2 pi / 3) gives the
    fastest pair the period of a codon, which coding sequence rewards."""
    share_embeddings_and_output_weights: bool = False
    """Tie the output matrix to the embedding."""
    layernorm_epsilon: float = 1e-5
    """RMSNorm epsilon."""
    init_method_std: float = 0.02
    """Standard deviation of initial weights; residual outputs are scaled down by depth."""
    stem_kmer_orders: tuple[int, ...] = ()
    """Orders k of the k-mer embeddings added to the letter embedding; () for none."""
    stem_kmer_buckets: int = 4096
    """Rows of one k-mer table. k-mers are numbered exactly where 4^k fits, hashed above."""
    make_vocab_size_divisible_by: int = 32
    """The vocabulary is padded to a multiple of this; padding counts in the softmax."""
    expert_backend: ExpertBackend = "auto"
    """`sequential`: one expert after the other, the reference, anywhere. `te_grouped`: all in one
    call, GPUs with Transformer Engine. `auto`: te_grouped on GPUs, sequential on CPU ranks."""

    def __post_init__(self) -> None:
        """Refuse shapes that no model can have."""
        for name in (
            "num_blocks",
            "hidden_size",
            "num_attention_heads",
            "moe_ffn_hidden_size",
            "ffn_hidden_size",
            "rotary_base",
            "stem_kmer_buckets",
            "make_vocab_size_divisible_by",
        ):
            value = getattr(self, name)
            _require(value >= 1, name.replace("_", "-"), value, "1 or more")
        for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff", "init_method_std"):
            value = getattr(self, name)
            _require(0 <= value < math.inf, name.replace("_", "-"), value, "0 or more")
        epsilon = self.layernorm_epsilon
        _require(0 < epsilon < math.inf, "layernorm-epsilon", epsilon, "a number above 0")
        _require(
            self.hidden_size % self.num_attention_heads == 0
            and (self.hidden_size // self.num_attention_heads) % 2 == 0,
            "num-attention-heads",
            self.num_attention_heads,
            f"a divisor of hidden-size {self.hidden_size} that leaves an even head width",
        )
        _require(
            self.num_query_groups >= 1 and self.num_attention_heads % self.num_query_groups == 0,
            "num-query-groups",
            self.num_query_groups,
            f"a divisor of num-attention-heads {self.num_attention_heads}",
        )
        experts = self.num_moe_experts
        _require(experts == 0 or experts >= 2, "num-moe-experts", experts, "2 or more, 0 for dense")
        if self.is_moe:
            # A token's gates sum to 1: alone, a gate is 1 whatever the router says, and the router
            # would learn nothing.
            _require(
                2 <= self.moe_router_topk <= experts,
                "moe-router-topk",
                self.moe_router_topk,
                f"2 to {experts} (the experts)",
            )
        _require(0.0 <= self.dropout < 1.0, "dropout", self.dropout, "0 to below 1")
        scale = self.rotary_position_scale
        _require(0 < scale < math.inf, "rotary-position-scale", scale, "a number above 0")
        _require(
            all(1 <= k <= 16 for k in self.stem_kmer_orders),
            "stem-kmer-orders",
            self.stem_kmer_orders,
            "orders between 1 and 16",
        )

    @property
    def is_moe(self) -> bool:
        """Whether the feed-forward layers are experts."""
        return self.num_moe_experts > 0

    @property
    def kv_channels(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def layer_pattern(self) -> str:
        """Megatron's hybrid pattern: one symbol a layer."""
        return ("*E" if self.is_moe else "*-") * self.num_blocks

    def padded_vocab_size(self, vocab_size: int) -> int:
        """Round a vocabulary up to the padded one that the softmax runs over."""
        unit = self.make_vocab_size_divisible_by
        return -(-vocab_size // unit) * unit


def _require(condition: bool, field: str, value: object, wanted: str) -> None:
    if not condition:
        raise ValueError(f"model.{field} is {value}: use {wanted}")
