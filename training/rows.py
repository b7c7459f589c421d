"""The training rows of a run. Torch-free, so that a dry run can count them."""

from genomoe.data.dataset import DataSet
from genomoe.data.loader import LoaderOptions, RowSource
from genomoe.data.tokenizer import Tokenizer
from genomoe.training.config import PretrainConfig, RowConfig


def row_source(config: PretrainConfig, dataset: DataSet) -> RowSource:
    """Open the training rows in the order that the config's seed gives."""
    options = LoaderOptions(
        seq_length=config.rows.seq_length,
        seed=config.training.seed,
        reverse_complement=reverse_complement(config.rows, dataset.tokenizer),
        mask_weight=config.rows.mask_weight,
    )
    return RowSource(dataset, "train", options)


def reverse_complement(rows: RowConfig, tokenizer: Tokenizer) -> float:
    """The chance of reading a row from the other strand, by alphabet where not said."""
    if rows.reverse_complement is not None:
        return rows.reverse_complement
    return 0.0 if tokenizer.complement is None else 0.5
