import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genomoe.data import blocks
from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.loader import LoaderOptions, RowSource, rank_samples
from genomoe.data.synthetic import markov_proteins, write_fasta
from genomoe.data.tokenizer import BOS_ID, EOS_ID, PAD_ID

Build = Callable[..., DataSet]


@pytest.fixture
def cut_proteins(build: Build, proteome: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    """Proteins cut into segments of at most 50 residues, as only giants are in earnest."""
    monkeypatch.setattr(blocks.plan_blocks, "__defaults__", (50,))
    return build(proteome, "--alphabet", "protein", out="cut_proteins")


def source(dataset: DataSet, split: str = "train", **options: float) -> RowSource:
    return RowSource(dataset, split, LoaderOptions(**{"seq_length": 64, "seed": 1, **options}))


def epoch_of(rows: RowSource, epoch: int) -> dict[str, np.ndarray]:
    return rows.batch(np.arange(rows.num_rows) + epoch * rows.num_rows)


def targets_of(rows: RowSource, epoch: int) -> dict[tuple[int, int, int], int]:
    """Return how often each (block, document, target) is covered in an epoch."""
    counts: dict[tuple[int, int, int], int] = {}
    for row in range(rows.num_rows):
        block, spans = rows.spans(epoch, row)
        for span in spans:
            for place in range(span.begin, span.end):
                key = (block, span.document, place)
                counts[key] = counts.get(key, 0) + 1
    return counts


@pytest.mark.parametrize("which", ["dna", "proteins", "cut_proteins"])
@pytest.mark.parametrize("pack", [True, False])
@pytest.mark.parametrize("seq_length", [2, 37, 64, 5000])
def test_every_letter_is_a_target_once_per_epoch(
    which: str, pack: bool, seq_length: int, request: pytest.FixtureRequest
) -> None:
    dataset: DataSet = request.getfixturevalue(which)
    for split in ("train", "test"):
        rows = source(dataset, split, seq_length=seq_length, pack=pack)
        letters = dataset.manifest.splits[split].tokens
        ends = len(dataset.pieces(split)) if dataset.tokenizer.trains_eos else 0
        for epoch in (0, 1):
            counts = targets_of(rows, epoch)
            assert set(counts.values()) == {1}
            assert len(counts) == letters + ends


@pytest.mark.parametrize("which", ["dna", "proteins", "cut_proteins"])
def test_an_epoch_holds_the_letters_of_the_split(
    which: str, request: pytest.FixtureRequest
) -> None:
    dataset: DataSet = request.getfixturevalue(which)
    pieces = dataset.pieces("valid")
    rows = source(dataset, "valid", reverse_complement=0.0)
    letters = np.concatenate([piece.tokens for piece in pieces])
    expected = np.bincount(letters, minlength=32)
    if dataset.tokenizer.trains_eos:
        expected[EOS_ID] = len(pieces)
    scored = dataset.manifest.splits["valid"].scored_tokens + expected[EOS_ID]
    for epoch in (0, 3):
        batch = epoch_of(rows, epoch)
        found = np.bincount(batch["labels"].ravel(), minlength=32)
        assert np.array_equal(found[1:], expected[1:])
        assert batch["weights"].sum() == scored
        assert (batch["labels"] == PAD_ID).sum() == found[PAD_ID]


def test_rows_are_shifted_documents(proteins: DataSet) -> None:
    batch = epoch_of(source(proteins), 0)
    assert batch["tokens"].dtype == batch["labels"].dtype == np.int64
    assert (batch["weights"].dtype, batch["document"].dtype) == (np.float32, np.int32)
    several = 0
    for tokens, labels, weights, document in zip(
        *(batch[name] for name in ("tokens", "labels", "weights", "document")), strict=True
    ):
        used = int((labels != PAD_ID).sum())
        assert (labels[:used] != PAD_ID).all()
        assert (tokens[:used] != PAD_ID).all()
        starts = np.flatnonzero(np.append(True, np.diff(document) > 0))
        assert np.array_equal(document[starts], np.arange(len(starts)))
        assert set(np.diff(document)) <= {0, 1}
        real = starts[starts < used]
        assert (tokens[real] == BOS_ID).all()
        assert (tokens == BOS_ID).sum() == len(real)
        inner = np.setdiff1d(np.arange(used), real)
        assert np.array_equal(tokens[inner], labels[inner - 1])
        assert (labels[real[1:] - 1] == EOS_ID).all()
        if used < len(labels):
            assert used in starts
            assert (tokens[used:] == PAD_ID).all()
            assert not weights[used:].any()
        assert weights[labels == EOS_ID].all()
        several += len(real) > 1
    assert several > 5


def test_packing_off_gives_a_row_each(proteins: DataSet) -> None:
    batch = epoch_of(source(proteins, pack=False), 0)
    assert ((batch["tokens"] == BOS_ID).sum(axis=1) == 1).all()


def test_guards_and_ambiguity_codes_are_never_scored(dna: DataSet) -> None:
    for split in ("valid", "test"):
        rows = source(dna, split)
        batch = epoch_of(rows, 0)
        assert dna.tokenizer.is_scored[batch["labels"][batch["weights"] > 0]].all()
        for number in range(rows.num_rows):
            epoch, row = rows.locate(number)
            block, (span,) = rows.spans(epoch, row)
            first = dna.blocks(split)[block][5]
            document = dna.documents(split)[first + span.document]
            place = np.arange(span.begin, span.end)
            inside = (place >= document[blocks.SCORED_BEGIN]) & (
                place < document[blocks.SCORED_END]
            )
            weights = batch["weights"][number]
            labels = batch["labels"][number][: len(place)]
            expected = inside & dna.tokenizer.is_scored[labels]
            assert np.array_equal(weights[: len(place)] > 0, expected)


def test_soft_masked_letters_weigh_less(dna: DataSet) -> None:
    full = epoch_of(source(dna), 0)
    light = epoch_of(source(dna, mask_weight=0.25), 0)
    none = epoch_of(source(dna, mask_weight=0.0), 0)
    for name in ("tokens", "labels", "document"):
        assert np.array_equal(full[name], light[name])
    masked = dna.manifest.splits["train"].soft_masked_tokens
    assert (light["weights"] == 0.25).sum() == masked > 0
    assert full["weights"].sum() - none["weights"].sum() == masked
    assert np.array_equal(light["weights"] == 1, none["weights"] == 1)


def test_the_other_strand_turns_letters_masks_and_scores_together(dna: DataSet) -> None:
    options = {"mask_weight": 0.5, "seq_length": 500}
    forward = epoch_of(source(dna, "train", **options), 0)
    reverse = epoch_of(source(dna, "train", reverse_complement=1.0, **options), 0)
    complement = dna.tokenizer.complement
    assert complement is not None
    for number in range(len(forward["labels"])):
        used = int((forward["labels"][number] != PAD_ID).sum())
        ahead = forward["labels"][number][:used]
        assert np.array_equal(reverse["labels"][number][:used], complement[ahead[::-1]])
        assert np.array_equal(
            reverse["weights"][number][:used], forward["weights"][number][:used][::-1]
        )
        assert np.array_equal(
            reverse["tokens"][number][1:used], reverse["labels"][number][: used - 1]
        )


def test_strands_are_drawn_per_row_and_epoch(dna: DataSet) -> None:
    forward, mixed = source(dna), source(dna, reverse_complement=0.5)
    flips = []
    for epoch in (0, 1):
        one, other = epoch_of(forward, epoch), epoch_of(mixed, epoch)
        flips.append((one["labels"] != other["labels"]).any(axis=1))
    share = np.concatenate(flips).mean()
    assert 0.45 < share < 0.55
    assert (flips[0] != flips[1]).mean() > 0.3


def test_windows_move_between_epochs(dna: DataSet) -> None:
    rows = source(dna)
    starts = [
        {span.begin for row in range(rows.num_rows) for span in rows.spans(epoch, row)[1]}
        for epoch in (0, 1)
    ]
    assert starts[0] != starts[1]


def test_rows_depend_on_nothing_but_their_number(dna: DataSet) -> None:
    rows = source(dna, reverse_complement=0.5)
    samples = [5, 0, 3 * rows.num_rows + 1, rows.num_rows - 1, 5]
    batch = rows.batch(samples)
    assert batch["sample"].tolist() == samples
    fresh = pickle.loads(pickle.dumps(rows))
    for number, sample in enumerate(samples):
        row = fresh.row(sample)
        assert row.sample == sample
        for name in ("tokens", "labels", "weights", "document"):
            assert np.array_equal(getattr(row, name), batch[name][number])


def test_epochs_are_permutations(dna: DataSet) -> None:
    rows = source(dna)
    for epoch in (0, 5):
        places = [rows.locate(epoch * rows.num_rows + place) for place in range(rows.num_rows)]
        assert {found for found, _ in places} == {epoch}
        assert sorted(row for _, row in places) == list(range(rows.num_rows))
    assert rows.locate(0) != (0, rows.locate(rows.num_rows)[1])
    with pytest.raises(ValueError, match="count from 0"):
        rows.locate(-1)


def test_a_protein_cut_in_two_has_one_end(cut_proteins: DataSet) -> None:
    batch = epoch_of(source(cut_proteins), 0)
    records = cut_proteins.documents("train")[:, blocks.RECORD]
    assert len(np.unique(records)) < len(records)
    assert (batch["labels"] == EOS_ID).sum() == len(np.unique(records))


def test_many_small_blocks_read_the_same_without_the_cache(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks.plan_blocks, "__defaults__", (100,))
    records = [(f"p{i}", s) for i, s in enumerate(markov_proteins(150, 40, 8))]
    dataset = build(write_fasta(tmp_path / "p.fa", records), "--alphabet", "protein")
    rows = source(dataset)
    whole = epoch_of(rows, 0)
    monkeypatch.setattr("genomoe.data.loader._MAX_LAYOUTS", 1)
    monkeypatch.setattr("genomoe.data.loader._COUNT_DOCUMENTS", 1)
    other = source(dataset)
    assert other.num_rows == rows.num_rows
    again = epoch_of(other, 0)
    assert len(other._layouts) == 1
    for name, array in whole.items():
        assert np.array_equal(array, again[name])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seq_length": 1}, "seq_length: 1"),
        ({"reverse_complement": 0.5}, "reverse_complement: 0.5 is set.*protein"),
        ({"reverse_complement": 1.5}, "reverse_complement: 1.5"),
        ({"mask_weight": float("nan")}, "mask_weight: nan"),
        ({"mask_weight": -1.0}, "mask_weight: -1.0"),
    ],
)
def test_options_are_checked(proteins: DataSet, options: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        source(proteins, **options)


@given(
    st.integers(0, 10**12),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_ranks_share_the_global_batch(consumed: int, micro: int, number: int, size: int) -> None:
    parts = [rank_samples(consumed, micro, number, rank, size) for rank in range(size)]
    assert {part.shape for part in parts} == {(number, micro)}
    together = np.sort(np.concatenate([part.ravel() for part in parts]))
    assert np.array_equal(together, consumed + np.arange(micro * number * size))


def test_ranks_outside_the_world_are_refused() -> None:
    with pytest.raises(ValueError, match="dp_rank"):
        rank_samples(0, 1, 1, 2, 2)
