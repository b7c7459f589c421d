"""Initial weights as a pure function of (seed, canonical name): the same for every layout.

A generator shared by all parameters would give each layout other weights. Here every parameter
draws from its own, so a model starts equal on one rank and on eight, whatever holds its experts.
"""

import hashlib
import math

import torch

from genomoe.models import names
from genomoe.models.config import ModelConfig


@torch.no_grad()
def initialize(
    model: torch.nn.Module,
    config: ModelConfig,
    *,
    seed: int,
    scheme: names.NameScheme,
    experts: names.ExpertSlice,
) -> None:
    """Fill the parameters: norms 1, everything else normal.

    Outputs of residual branches are scaled by 1 / sqrt(2 * blocks) (Radford et al. 2019, GPT-2).

    Args:
        model: Built and not yet wrapped.
        config: Its shape.
        seed: Of the run.
        scheme: Names of the layers it is built of.
        experts: This rank's share.
    """
    for name, parameter in model.named_parameters():
        canonical = names.canonical_name(name, scheme, experts)
        if names.is_norm(canonical):
            parameter.fill_(1.0)
        else:
            generator = torch.Generator().manual_seed(_seed(seed, canonical))
            values = torch.empty(parameter.shape, dtype=torch.float32)
            values.normal_(0.0, _std(config, canonical), generator=generator)
            parameter.copy_(values)


def _std(config: ModelConfig, name: str) -> float:
    if name.endswith(("linear_proj.weight", "linear_fc2.weight")):
        return config.init_method_std / math.sqrt(2 * config.num_blocks)
    return config.init_method_std


def _seed(seed: int, name: str) -> int:
    digest = hashlib.blake2b(f"weights {seed} {name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
