"""One name for every parameter, whatever the engine, expert backend or wrapper calls it.

Checkpoints, weight initialisation, optimizer groups and tools use canonical names only:

    embedding.letters.weight                      [vocabulary, hidden]
    embedding.kmers.K.weight
    blocks.B.attention.norm.weight                [hidden]
    blocks.B.attention.linear_qkv.weight          [hidden + 2 * kv, hidden]
    blocks.B.attention.linear_proj.weight         [hidden, hidden]
    blocks.B.mlp.norm.weight
    blocks.B.mlp.linear_fc1.weight, ..linear_fc2..   dense layers: fc1 rows are [gate; up]
    blocks.B.mlp.router.weight                    [experts, hidden]
    blocks.B.mlp.experts.E.linear_fc1.weight      E counts over all ranks
    final_norm.weight, output.weight

An expert's index in a module is local to its rank, in a name it is global.
"""

import re
from dataclasses import dataclass
from typing import Literal

NameScheme = Literal["local", "te"]
"""`local`: megatron's plain layers. `te`: Transformer Engine's, experts grouped in one module."""


@dataclass(frozen=True, kw_only=True)
class ExpertSlice:
    """Which of the experts of a layer a rank holds."""

    ep_rank: int = 0
    num_local_experts: int = 0

    @property
    def offset(self) -> int:
        """Global index of the first local expert."""
        return self.ep_rank * self.num_local_experts


# (pattern of the name in the module tree, canonical name).
_EMBEDDING = (
    (r"embedding\.word_embeddings\.weight", "embedding.letters.weight"),
    (r"embedding\.word_embeddings\.letters\.weight", "embedding.letters.weight"),
    (r"embedding\.word_embeddings\.kmers\.(\d+)\.weight", r"embedding.kmers.\1.weight"),
    (r"decoder\.final_norm\.weight", "final_norm.weight"),
    (r"output_layer\.weight", "output.weight"),
)
_LAYER = (
    (r"input_layernorm\.weight", "attention.norm.weight"),
    (r"self_attention\.linear_qkv\.weight", "attention.linear_qkv.weight"),
    (r"self_attention\.linear_proj\.weight", "attention.linear_proj.weight"),
    (r"pre_mlp_layernorm\.weight", "mlp.norm.weight"),
    (r"mlp\.(linear_fc[12])\.weight", r"mlp.\1.weight"),
    (r"mlp\.router\.weight", "mlp.router.weight"),
)
_EXPERT = {
    "local": r"mlp\.experts\.local_experts\.(?P<expert>\d+)\.(?P<matrix>linear_fc[12])\.weight",
    "te": r"mlp\.experts\.(?P<matrix>linear_fc[12])\.weight(?P<expert>\d+)",
}


def canonical_name(name: str, scheme: NameScheme, experts: ExpertSlice) -> str:
    """Translate a parameter's name in the module tree.

    Args:
        name: As `named_parameters()` gives it; wrappers' `module.` prefixes are dropped.
        scheme: Which layers the model is built of.
        experts: The rank's share of the experts.

    Raises:
        KeyError: If the name is none that a model of this scheme has.
    """
    bare = re.sub(r"^(module\.)+", "", name)
    for pattern, template in _EMBEDDING:
        if match := re.fullmatch(pattern, bare):
            return match.expand(template)
    if match := re.fullmatch(r"decoder\.layers\.(\d+)\.(.+)", bare):
        block, rest = int(match[1]) // 2, match[2]
        for pattern, template in _LAYER:
            if inner := re.fullmatch(pattern, rest):
                return f"blocks.{block}.{inner.expand(template)}"
        if expert := re.fullmatch(_EXPERT[scheme], rest):
            index = experts.offset + int(expert["expert"])
            return f"blocks.{block}.mlp.experts.{index}.{expert['matrix']}.weight"
    raise KeyError(f"{name} is not a parameter of a {scheme} model")


def is_norm(name: str) -> bool:
    """Whether a canonical name is a norm's scale."""
    return name.endswith("norm.weight")


def is_expert(name: str) -> bool:
    """Whether a canonical name belongs to one expert."""
    return ".mlp.experts." in name


def decays(name: str) -> bool:
    """Whether weight decay applies: to matrices, not norms, embeddings or the router."""
    return not name.startswith("embedding.") and not name.endswith(
        ("norm.weight", "mlp.router.weight")
    )
