"""Training rows from a data set, as a pure function of the sample number.

``RowSource`` holds no position: row ``sample`` depends on the data set, the options and nothing
else, so resuming needs only the number of consumed samples, and any number of ranks and workers
reads the same rows. Epoch e is the samples [e * num_rows, (e + 1) * num_rows), every row once.
"""

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genomoe.data import index
from genomoe.data.blocks import LENGTH, OFFSET, RECORD, SCORED_BEGIN, SCORED_END, START
from genomoe.data.dataset import DataSet
from genomoe.data.errors import InputError
from genomoe.data.intervals import clip, to_mask
from genomoe.data.order import draw_below, draw_coin, permute
from genomoe.data.packing import (
    BlockLayout,
    Span,
    lay_out,
    offset_range,
    rows_per_block,
    window,
)
from genomoe.data.tokenizer import BOS_ID, EOS_ID, PAD_ID

_MAX_LAYOUTS = 256
_COUNT_DOCUMENTS = 1 << 20


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """How documents become rows."""

    seq_length: int
    """Targets per row, letters and ends."""
    seed: int
    reverse_complement: float = 0.0
    """Probability that a row is read from the other strand; DNA and RNA only."""
    mask_weight: float = 1.0
    """Weight of a soft-masked letter in the loss, 0 to 1."""
    pack: bool = True
    """Whether short documents share a row."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One training sample; every array has ``seq_length`` entries."""

    tokens: np.ndarray
    """int64: each document is BOS and its letters but the last; PAD at the end."""
    labels: np.ndarray
    """int64: the letter that follows each token."""
    weights: np.ndarray
    """float32: weight of each label in the loss; 0 where it is not scored."""
    document: np.ndarray
    """int32: number of the document in the row; padding counts as one more document."""
    sample: int
    """The sample number that was asked for."""


class RowSource:
    """The rows of one split."""

    def __init__(self, dataset: DataSet, split: str, options: LoaderOptions) -> None:
        """Count the rows of every block, in one pass over the document index.

        Raises:
            InputError: an option is out of range or does not fit the alphabet.
        """
        _check(options, dataset)
        self.dataset = dataset
        self.split = split
        self.options = options
        counts = self._count_rows()
        self._first_row = np.append(0, np.cumsum(counts))
        self._layouts: OrderedDict[int, tuple[np.ndarray, np.ndarray, BlockLayout]] = OrderedDict()

    @property
    def num_rows(self) -> int:
        """Rows per epoch, the same in every epoch."""
        return int(self._first_row[-1])

    def locate(self, sample: int) -> tuple[int, int]:
        """Return (epoch, row) of a sample."""
        epoch, row = self._locate_all(np.array([sample], dtype=np.int64))[0]
        return epoch, row

    def row(self, sample: int) -> Row:
        """Return one sample."""
        arrays = self.batch([sample])
        return Row(
            tokens=arrays["tokens"][0],
            labels=arrays["labels"][0],
            weights=arrays["weights"][0],
            document=arrays["document"][0],
            sample=sample,
        )

    def batch(self, samples: Sequence[int] | np.ndarray) -> dict[str, np.ndarray]:
        """Return samples stacked: the arrays of ``Row`` [n, seq_length] and ``sample`` [n]."""
        numbers = np.asarray(samples, dtype=np.int64)
        shape = (len(numbers), self.options.seq_length)
        arrays: dict[str, np.ndarray] = {
            "tokens": np.full(shape, PAD_ID, dtype=np.int64),
            "labels": np.full(shape, PAD_ID, dtype=np.int64),
            "weights": np.zeros(shape, dtype=np.float32),
            "document": np.zeros(shape, dtype=np.int32),
        }
        for number, (epoch, row) in enumerate(self._locate_all(numbers)):
            self._fill(epoch, row, {name: array[number] for name, array in arrays.items()})
        arrays["sample"] = numbers
        return arrays

    def spans(self, epoch: int, row: int) -> tuple[int, list[Span]]:
        """Return the block of a row, and which targets of which of its documents make it up."""
        block = int(np.searchsorted(self._first_row, row, side="right")) - 1
        local = row - int(self._first_row[block])
        _, targets, layout = self._layout(block)
        num_windows = int(layout.first_window[-1])
        if local >= num_windows:
            packed = local - num_windows
            first, last = layout.first_packed[packed : packed + 2].tolist()
            documents = layout.short_documents[first:last].tolist()
            return block, [Span(document=d, begin=0, end=int(targets[d])) for d in documents]
        place = int(np.searchsorted(layout.first_window, local, side="right")) - 1
        document = int(layout.long_documents[place])
        total, seq_length = int(targets[document]), self.options.seq_length
        low, high = offset_range(total, seq_length)
        offset = low + draw_below(
            high - low + 1, "window", self.options.seed, epoch, block, document
        )
        number = local - int(layout.first_window[place])
        begin, end = window(total, seq_length, offset, number)
        return block, [Span(document=document, begin=begin, end=end)]

    def _locate_all(self, samples: np.ndarray) -> list[tuple[int, int]]:
        if samples.size and samples.min() < 0:
            raise ValueError("samples count from 0")
        epochs, places = np.divmod(samples, self.num_rows)
        rows = np.zeros_like(places)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            rows[chosen] = permute(places[chosen], self.num_rows, (self.options.seed, epoch))
        return list(zip(epochs.tolist(), rows.tolist(), strict=True))

    def _fill(self, epoch: int, row: int, out: dict[str, np.ndarray]) -> None:
        """Write one row into zeroed arrays of ``seq_length`` entries."""
        block, spans = self.spans(epoch, row)
        flip = draw_coin(self.options.reverse_complement, "strand", self.options.seed, epoch, row)
        cursor = 0
        for number, span in enumerate(spans):
            labels, weights = self._targets(block, span, flip=flip)
            end = cursor + len(labels)
            out["labels"][cursor:end] = labels
            out["weights"][cursor:end] = weights
            out["tokens"][cursor] = BOS_ID
            out["tokens"][cursor + 1 : end] = labels[:-1]
            out["document"][cursor:end] = number
            cursor = end
        out["document"][cursor:] = len(spans)

    def _targets(self, block: int, span: Span, *, flip: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels (uint8) and weights (float32) of a span."""
        documents, _, _ = self._layout(block)
        document = documents[span.document]
        offset, length = int(document[OFFSET]), int(document[LENGTH])
        end = min(span.end, length)
        letters = self.dataset.block_tokens(self.split, block)[offset + span.begin : offset + end]
        weights = self.dataset.tokenizer.is_scored[letters].astype(np.float32)
        scored_begin, scored_end = int(document[SCORED_BEGIN]), int(document[SCORED_END])
        weights[: max(0, scored_begin - span.begin)] = 0
        weights[max(0, scored_end - span.begin) :] = 0
        if self.options.mask_weight != 1:
            intervals = self.dataset.block_lower_case(self.split, block)
            masked = clip(intervals, offset + span.begin, offset + end)
            weights[to_mask(masked, len(letters))] *= np.float32(self.options.mask_weight)
        if span.end > length:
            letters = np.append(letters, np.uint8(EOS_ID))
            weights = np.append(weights, np.float32(scored_end == length))
        complement = self.dataset.tokenizer.complement
        if flip and complement is not None:
            return complement[letters[::-1]], weights[::-1]
        return letters, weights

    def _layout(self, block: int) -> tuple[np.ndarray, np.ndarray, BlockLayout]:
        """Return documents, targets of each, and layout of a block, keeping the last ones used."""
        if block in self._layouts:
            self._layouts.move_to_end(block)
            return self._layouts[block]
        first, targets = self._block_targets(block, block + 1)
        documents = self.dataset.documents(self.split)[first[0] : first[-1]]
        layout = lay_out(targets, self.options.seq_length, pack=self.options.pack)
        self._layouts[block] = documents, targets, layout
        if len(self._layouts) > _MAX_LAYOUTS:
            self._layouts.popitem(last=False)
        return self._layouts[block]

    def _count_rows(self) -> np.ndarray:
        """Return the rows of every block, a bounded number of documents at a time."""
        table = self.dataset.blocks(self.split)
        firsts = table[:, index.FIRST_DOCUMENT]
        counts = [np.zeros(0, dtype=np.int64)]
        begin = 0
        while begin < len(table):
            limit = int(firsts[begin]) + _COUNT_DOCUMENTS
            end = max(begin + 1, int(np.searchsorted(firsts, limit)))
            first, targets = self._block_targets(begin, end)
            counts.append(
                rows_per_block(
                    targets, first - first[0], self.options.seq_length, pack=self.options.pack
                )
            )
            begin = end
        return np.concatenate(counts)

    def _block_targets(self, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Return where blocks [begin, end) begin in the index, and the targets per document."""
        table = self.dataset.blocks(self.split)[begin:end]
        documents = self.dataset.documents(self.split)
        last = int(table[-1, index.FIRST_DOCUMENT] + table[-1, index.NUM_DOCUMENTS])
        first = np.append(table[:, index.FIRST_DOCUMENT], last)
        rows = documents[first[0] : last]
        targets = rows[:, LENGTH].copy()
        if self.dataset.tokenizer.trains_eos:
            after = documents[first[0] + 1 : last + 1]
            ends = np.ones(len(rows), dtype=bool)
            same = rows[: len(after), RECORD] == after[:, RECORD]
            touching = rows[: len(after), START] + rows[: len(after), LENGTH] == after[:, START]
            # A segment that the next document continues has no end of its own.
            ends[: len(after)] = ~(same & touching)
            targets += ends
        return first, targets


def rank_samples(
    consumed: int, micro_batch_size: int, num_microbatches: int, dp_rank: int, dp_size: int
) -> np.ndarray:
    """Return the samples that one data-parallel rank takes in the next iteration.

    The global batch is the samples [consumed, consumed + micro_batch_size * num_microbatches *
    dp_size), whatever the layout; each is on exactly one rank.

    Returns:
        int64 [num_microbatches, micro_batch_size].
    """
    if not 0 <= dp_rank < dp_size:
        raise ValueError(f"dp_rank must lie in [0, {dp_size})")
    micro_batch = np.arange(num_microbatches, dtype=np.int64)[:, None] * dp_size + dp_rank
    return consumed + micro_batch * micro_batch_size + np.arange(micro_batch_size, dtype=np.int64)


def _check(options: LoaderOptions, dataset: DataSet) -> None:
    if options.seq_length < 2:
        raise InputError(f"seq_length: {options.seq_length} is less than 2; give 2 or more")
    if not 0 <= options.reverse_complement <= 1:
        raise InputError(
            f"reverse_complement: {options.reverse_complement} is not a probability; give 0 to 1"
        )
    if options.reverse_complement > 0 and dataset.tokenizer.complement is None:
        raise InputError(
            f"reverse_complement: {options.reverse_complement} is set, but {dataset.folder} "
            f"holds {dataset.tokenizer.name}, which has no other strand; set it to 0"
        )
    if not (math.isfinite(options.mask_weight) and 0 <= options.mask_weight <= 1):
        raise InputError(f"mask_weight: {options.mask_weight} is out of range; give 0 to 1")
