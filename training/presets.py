"""Named starting points: each a complete config; flags override single fields.

Sizes follow the amount of sequence (bases or residues): too large a model for the data only
learns it by heart. Where a recipe was measured, `benchmarks/` holds the record; the others are
starting points.
"""

from dataclasses import replace

from genomoe.models.config import CODON_PHASE, ModelConfig
from genomoe.training.config import (
    OptimizerConfig,
    PretrainConfig,
    RowConfig,
    TrainingConfig,
)


def _debug() -> PretrainConfig:
    return PretrainConfig(
        rows=RowConfig(seq_length=64),
        model=ModelConfig(
            num_blocks=2,
            hidden_size=32,
            num_attention_heads=2,
            num_query_groups=1,
            num_moe_experts=4,
            moe_ffn_hidden_size=32,
            dropout=0.0,
        ),
        optimizer=OptimizerConfig(lr=1e-2),
        training=TrainingConfig(
            global_batch_size=16,
            micro_batch_size=16,
            train_iters=20,
            eval_interval=10,
            eval_windows=16,
            save_interval=10,
            log_interval=5,
        ),
    )


def _bacterium() -> PretrainConfig:
    return PretrainConfig(
        rows=RowConfig(seq_length=256),
        model=ModelConfig(
            num_blocks=4,
            hidden_size=128,
            num_attention_heads=4,
            num_query_groups=4,
            num_moe_experts=4,
            moe_ffn_hidden_size=256,
            dropout=0.0,
            rotary_base=500,
            rotary_position_scale=CODON_PHASE,
            stem_kmer_orders=(2, 3, 4, 5, 6),
        ),
        optimizer=OptimizerConfig(lr=1.5e-3),
        training=TrainingConfig(
            global_batch_size=8,
            micro_batch_size=8,
            train_epochs=6.0,
            eval_interval=500,
            save_interval=500,
            log_interval=100,
        ),
    )


def _clade() -> PretrainConfig:
    return PretrainConfig(
        rows=RowConfig(seq_length=1024),
        model=ModelConfig(
            num_blocks=6,
            hidden_size=256,
            num_attention_heads=8,
            num_query_groups=4,
            num_moe_experts=8,
            moe_ffn_hidden_size=512,
            dropout=0.1,
            rotary_position_scale=CODON_PHASE,
            stem_kmer_orders=(2, 3, 4, 5, 6),
        ),
        optimizer=OptimizerConfig(lr=1e-3),
        training=TrainingConfig(global_batch_size=64, micro_batch_size=16, train_epochs=16.0),
    )


def _genus() -> PretrainConfig:
    return PretrainConfig(
        rows=RowConfig(seq_length=4096),
        model=ModelConfig(
            num_blocks=8,
            hidden_size=512,
            num_attention_heads=8,
            num_query_groups=4,
            num_moe_experts=8,
            moe_ffn_hidden_size=1024,
            dropout=0.05,
            rotary_position_scale=CODON_PHASE,
            stem_kmer_orders=(2, 3, 4, 5, 6),
        ),
        optimizer=OptimizerConfig(lr=6e-4),
        training=TrainingConfig(global_batch_size=64, micro_batch_size=8, train_epochs=10.0),
    )


def _protein() -> PretrainConfig:
    base = _clade()
    # No codons in a protein, and k-mers of 20 letters are too many for tables.
    model = replace(base.model, rotary_position_scale=1.0, stem_kmer_orders=())
    return replace(base, model=model, training=replace(base.training, train_epochs=10.0))


def _8x1b() -> PretrainConfig:
    return PretrainConfig(
        rows=RowConfig(seq_length=8192),
        model=ModelConfig(
            num_blocks=16,
            hidden_size=2048,
            num_attention_heads=16,
            num_query_groups=8,
            num_moe_experts=8,
            moe_ffn_hidden_size=4096,
            dropout=0.0,
            rotary_base=1_000_000,
            make_vocab_size_divisible_by=128,
        ),
        optimizer=OptimizerConfig(lr=3e-4),
        training=TrainingConfig(global_batch_size=128, micro_batch_size=2, train_epochs=1.0),
    )


def _fine_64e() -> PretrainConfig:
    return PretrainConfig(
        rows=RowConfig(seq_length=8192),
        model=ModelConfig(
            num_blocks=16,
            hidden_size=1024,
            num_attention_heads=16,
            num_query_groups=4,
            num_moe_experts=64,
            moe_router_topk=8,
            moe_ffn_hidden_size=512,
            dropout=0.0,
            rotary_base=1_000_000,
            make_vocab_size_divisible_by=128,
        ),
        optimizer=OptimizerConfig(lr=3e-4),
        training=TrainingConfig(global_batch_size=128, micro_batch_size=4, train_epochs=1.0),
    )


def _mixtral_8x7b() -> PretrainConfig:
    return PretrainConfig(
        rows=RowConfig(seq_length=4096),
        model=ModelConfig(
            num_blocks=32,
            hidden_size=4096,
            num_attention_heads=32,
            num_query_groups=8,
            num_moe_experts=8,
            moe_ffn_hidden_size=14336,
            dropout=0.0,
            rotary_base=1_000_000,
            make_vocab_size_divisible_by=128,
        ),
        optimizer=OptimizerConfig(lr=2e-4),
        training=TrainingConfig(global_batch_size=256, micro_batch_size=1, train_epochs=1.0),
    )


def dense_twin(config: PretrainConfig) -> PretrainConfig:
    """Give the dense model of equal active parameters, else the same.

    Its layers are as wide as the experts that a token visits together, so that the comparison
    tells what the choice of experts brings.
    """
    model = config.model
    width = model.moe_router_topk * model.moe_ffn_hidden_size
    return replace(config, model=replace(model, num_moe_experts=0, ffn_hidden_size=width))


PRESETS = {
    "debug": _debug(),
    "bacterium": _bacterium(),
    "bacterium-dense": dense_twin(_bacterium()),
    "clade": _clade(),
    "genus": _genus(),
    "protein": _protein(),
    "8x1b": _8x1b(),
    "fine-64e": _fine_64e(),
    "mixtral-8x7b": _mixtral_8x7b(),
}
