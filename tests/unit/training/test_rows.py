import dataclasses
import tracemalloc
from pathlib import Path

import pytest

from genomoe.data.dataset import DataSet
from genomoe.data.tokenizer import tokenizer_for
from genomoe.training.config import RowConfig
from genomoe.training.presets import PRESETS
from genomoe.training.rows import reverse_complement, row_source


@pytest.mark.parametrize(
    ("alphabet", "said", "chance"),
    [
        ("dna", None, 0.5),
        ("rna", None, 0.5),
        ("protein", None, 0.0),
        ("dna", 0.0, 0.0),
        ("dna", 1.0, 1.0),
        ("protein", 0.25, 0.25),  # the loader refuses it by name
    ],
)
def test_the_other_strand(alphabet: str, said: float | None, chance: float) -> None:
    assert reverse_complement(RowConfig(reverse_complement=said), tokenizer_for(alphabet)) == chance


def test_rows_follow_the_config(dna_set: Path) -> None:
    base = PRESETS["debug"]
    dataset = DataSet.open(dna_set)
    first = row_source(base, dataset).batch([0])
    assert first["tokens"].shape == (1, base.rows.seq_length)
    again = row_source(base, dataset).batch([0])
    assert (first["tokens"] == again["tokens"]).all()
    seeded = dataclasses.replace(base, training=dataclasses.replace(base.training, seed=2))
    assert (row_source(seeded, dataset).batch([0])["tokens"] != first["tokens"]).any()


def test_reading_on_takes_no_more_memory(dna_set: Path) -> None:
    rows = row_source(PRESETS["debug"], DataSet.open(dna_set))
    tracemalloc.start()
    try:
        for sample in range(0, 500, 10):
            rows.batch(range(sample, sample + 10))
        early = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for sample in range(500, 5_000, 10):  # several epochs
            rows.batch(range(sample, sample + 10))
        late, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert late - early < 20_000
    assert peak - early < 200_000  # a batch of ten rows and what makes it
