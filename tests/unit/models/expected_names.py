"""Every parameter that a config calls for, written down without building anything."""

from genomoe.models.config import ModelConfig

Shapes = dict[str, tuple[int, ...]]


def expected_shapes(config: ModelConfig, vocab_size: int) -> Shapes:
    """Canonical name to shape, from the list at the top of `models.names`."""
    hidden, vocab = config.hidden_size, config.padded_vocab_size(vocab_size)
    shapes: Shapes = {"embedding.letters.weight": (vocab, hidden), "final_norm.weight": (hidden,)}
    for order in config.stem_kmer_orders:
        rows = min(4**order, config.stem_kmer_buckets)
        shapes[f"embedding.kmers.{order}.weight"] = (rows, hidden)
    if not config.share_embeddings_and_output_weights:
        shapes["output.weight"] = (vocab, hidden)
    for block in range(config.num_blocks):
        shapes |= {f"blocks.{block}.{name}": s for name, s in _block(config).items()}
    return shapes


def _block(config: ModelConfig) -> Shapes:
    hidden = config.hidden_size
    keys = hidden // config.num_attention_heads * config.num_query_groups
    shapes: Shapes = {
        "attention.norm.weight": (hidden,),
        "attention.linear_qkv.weight": (hidden + 2 * keys, hidden),
        "attention.linear_proj.weight": (hidden, hidden),
        "mlp.norm.weight": (hidden,),
    }
    if config.num_moe_experts == 0:
        return shapes | _swiglu("mlp", hidden, config.ffn_hidden_size)
    shapes["mlp.router.weight"] = (config.num_moe_experts, hidden)
    for expert in range(config.num_moe_experts):
        shapes |= _swiglu(f"mlp.experts.{expert}", hidden, config.moe_ffn_hidden_size)
    return shapes


def _swiglu(prefix: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{prefix}.linear_fc1.weight": (2 * inner, hidden),
        f"{prefix}.linear_fc2.weight": (hidden, inner),
    }
