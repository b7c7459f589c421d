"""Our tensors as rows of Mixtral's and Llama's: which rows of which tensor go where.

Pure bookkeeping, without torch. Both sides hold the same numbers, cut differently:

    linear_qkv    by query group [its query heads; key; value]    ->  q_proj, k_proj, v_proj
    linear_fc1    [gate; up]                                      ->  w1, w3 (dense: gate_, up_proj)
    letters, output   padded vocabulary                           ->  the real rows alone

A converter copies the rows of each `Part`; nothing is computed.
"""

from dataclasses import dataclass
from math import prod

from genomoe.models.config import ModelConfig
from genomoe.models.flops import kmer_rows

Rows = tuple[tuple[int, int], ...]
"""Ranges (first row, number of rows) of one of our tensors, in the order of the other side's."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A tensor of the Hugging Face model: rows of one of ours, one range after the other."""

    name: str
    rows: Rows

    @property
    def num_rows(self) -> int:
        """Rows of the tensor."""
        return sum(count for _, count in self.rows)


@dataclass(frozen=True, kw_only=True)
class TensorMap:
    """One of our tensors (canonical name, shape) and the parts it becomes."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Part, ...]

    def part_shape(self, part: Part) -> tuple[int, ...]:
        """Shape of one of the parts."""
        return (part.num_rows, *self.shape[1:])


def tensor_maps(config: ModelConfig, vocab_size: int) -> list[TensorMap]:
    """List every tensor of a model, in the order of the layers.

    Args:
        config: Shape.
        vocab_size: Real rows of the vocabulary; the padding after them stays behind.
    """
    hidden = config.hidden_size
    vocabulary = (config.padded_vocab_size(vocab_size), hidden)
    real: Rows = ((0, vocab_size),)
    maps = [_cut("embedding.letters.weight", vocabulary, {"model.embed_tokens.weight": real})]
    for order in config.stem_kmer_orders:
        shape = (kmer_rows(order, config.stem_kmer_buckets), hidden)
        maps.append(_whole(f"embedding.kmers.{order}.weight", shape, f"model.kmers.{order}.weight"))
    for block in range(config.num_blocks):
        ours, theirs = f"blocks.{block}", f"model.layers.{block}"
        maps += _attention(config, f"{ours}.attention", theirs)
        norm = f"{theirs}.post_attention_layernorm.weight"
        maps.append(_whole(f"{ours}.mlp.norm.weight", (hidden,), norm))
        maps += _experts(config, ours, theirs) if config.is_moe else _dense(config, ours, theirs)
    maps.append(_whole("final_norm.weight", (hidden,), "model.norm.weight"))
    if not config.share_embeddings_and_output_weights:
        maps.append(_cut("output.weight", vocabulary, {"lm_head.weight": real}))
    return maps


def count_part_values(maps: list[TensorMap]) -> int:
    """Numbers in the Hugging Face model: its parameters."""
    return sum(prod(tensor.part_shape(part)) for tensor in maps for part in tensor.parts)


def _attention(config: ModelConfig, ours: str, theirs: str) -> list[TensorMap]:
    hidden, head, groups = config.hidden_size, config.kv_channels, config.num_query_groups
    queries = config.num_attention_heads // groups * head
    group = queries + 2 * head
    starts = range(0, groups * group, group)
    return [
        _whole(f"{ours}.norm.weight", (hidden,), f"{theirs}.input_layernorm.weight"),
        _cut(
            f"{ours}.linear_qkv.weight",
            (groups * group, hidden),
            {
                f"{theirs}.self_attn.q_proj.weight": tuple((s, queries) for s in starts),
                f"{theirs}.self_attn.k_proj.weight": tuple((s + queries, head) for s in starts),
                f"{theirs}.self_attn.v_proj.weight": tuple(
                    (s + queries + head, head) for s in starts
                ),
            },
        ),
        _whole(f"{ours}.linear_proj.weight", (hidden, hidden), f"{theirs}.self_attn.o_proj.weight"),
    ]


def _experts(config: ModelConfig, ours: str, theirs: str) -> list[TensorMap]:
    moe = f"{theirs}.block_sparse_moe"
    shape = (config.num_moe_experts, config.hidden_size)
    maps = [_whole(f"{ours}.mlp.router.weight", shape, f"{moe}.gate.weight")]
    for expert in range(config.num_moe_experts):
        there = f"{moe}.experts.{expert}"
        names = (f"{there}.w1.weight", f"{there}.w3.weight", f"{there}.w2.weight")
        maps += _feed_forward(
            f"{ours}.mlp.experts.{expert}", config.hidden_size, config.moe_ffn_hidden_size, names
        )
    return maps


def _dense(config: ModelConfig, ours: str, theirs: str) -> list[TensorMap]:
    gate, up, down = (f"{theirs}.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
    return _feed_forward(
        f"{ours}.mlp", config.hidden_size, config.ffn_hidden_size, (gate, up, down)
    )


def _feed_forward(
    ours: str, hidden: int, width: int, gate_up_down: tuple[str, str, str]
) -> list[TensorMap]:
    gate, up, down = gate_up_down
    return [
        _cut(
            f"{ours}.linear_fc1.weight",
            (2 * width, hidden),
            {gate: ((0, width),), up: ((width, width),)},
        ),
        _whole(f"{ours}.linear_fc2.weight", (hidden, width), down),
    ]


def _whole(ours: str, shape: tuple[int, ...], theirs: str) -> TensorMap:
    return _cut(ours, shape, {theirs: ((0, shape[0]),)})


def _cut(ours: str, shape: tuple[int, ...], parts: dict[str, Rows]) -> TensorMap:
    return TensorMap(
        name=ours,
        shape=shape,
        parts=tuple(Part(name=name, rows=rows) for name, rows in parts.items()),
    )
