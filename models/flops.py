"""Parameters and floating-point operations of a model, as pure functions of its config.

The convention is Megatron's (`num_floating_point_operations` in megatron/training): model FLOPs,
forward and backward, a multiply-add counted as two, only the experts that a token visits, causal
attention counted as half of the square. Norms, softmax, the router and recomputation are not in.
"""

from dataclasses import dataclass

from genomoe.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Parameters by where they live, which decides how they are sharded.

    Attributes:
        embedding: Letter embedding, k-mer tables, output matrix.
        dense: Attention, norms, router, dense feed-forward layers.
        experts: All experts of all layers.
        active: What one token touches: everything but the experts it does not visit.
    """

    embedding: int
    dense: int
    experts: int
    active: int

    @property
    def total(self) -> int:
        """All parameters."""
        return self.embedding + self.dense + self.experts


def count_parameters(config: ModelConfig, vocab_size: int) -> ParameterCount:
    """Count parameters exactly (tested against the built model)."""
    hidden, blocks = config.hidden_size, config.num_blocks
    vocab = config.padded_vocab_size(vocab_size)
    embedding = vocab * hidden * (1 if config.share_embeddings_and_output_weights else 2)
    for order in config.stem_kmer_orders:
        embedding += kmer_rows(order, config.stem_kmer_buckets) * hidden
    key_value = config.num_query_groups * config.kv_channels
    attention = hidden * (hidden + 2 * key_value) + hidden * hidden
    dense = blocks * (attention + 2 * hidden) + hidden  # two norms a block, one at the end
    if not config.is_moe:
        dense += blocks * 3 * hidden * config.ffn_hidden_size
        return ParameterCount(embedding=embedding, dense=dense, experts=0, active=embedding + dense)
    dense += blocks * hidden * config.num_moe_experts
    expert = 3 * hidden * config.moe_ffn_hidden_size
    return ParameterCount(
        embedding=embedding,
        dense=dense,
        experts=blocks * config.num_moe_experts * expert,
        active=embedding + dense + blocks * config.moe_router_topk * expert,
    )


def kmer_rows(order: int, buckets: int) -> int:
    """Rows of a k-mer table: one a k-mer where they fit, else `buckets`."""
    return min(4**order, buckets)


def flops_per_token(config: ModelConfig, vocab_size: int, seq_length: int) -> float:
    """Training FLOPs (forward and backward) for one token of a full row of `seq_length`."""
    hidden = config.hidden_size
    key_value = config.num_query_groups * config.kv_channels
    attention = hidden * (hidden + 2 * key_value) + hidden * hidden
    if config.is_moe:
        feed_forward = 3 * hidden * config.moe_ffn_hidden_size * config.moe_router_topk
    else:
        feed_forward = 3 * hidden * config.ffn_hidden_size
    head = hidden * config.padded_vocab_size(vocab_size)
    scores = hidden * seq_length  # QK and PV, each hidden x seq_length / 2 for a causal row
    multiply_adds = config.num_blocks * (attention + feed_forward + scores) + head
    return 3.0 * 2.0 * multiply_adds
