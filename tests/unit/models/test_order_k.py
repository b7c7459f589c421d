import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genomoe.models import order_k
from genomoe.models.order_k import Counts, Document, OrderK, choose, count


def whole(text: str, alphabet: str = "ACGT") -> Document:
    symbols = np.array([alphabet.find(letter) for letter in text], dtype=np.int8)
    return Document(symbols=symbols, begin=0, end=len(symbols))


def score(model: OrderK, documents: list[Document], contexts: np.ndarray | None = None):
    return np.concatenate(list(model.nats(documents, contexts)), axis=1)


def with_strengths(counts: Counts, strengths: list[float]) -> OrderK:
    return OrderK(counts=counts, strengths=tuple(strengths), valid_nats=(0.0,) * len(strengths))


def slow_words(documents: list[Document], length: int) -> dict[tuple[int, ...], int]:
    """Count words whose last letter is a target."""
    found: dict[tuple[int, ...], int] = {}
    for document in documents:
        for end in range(document.begin, document.end):
            word = tuple(document.symbols[max(0, end - length + 1) : end + 1].tolist())
            if len(word) == length and min(word) >= 0:
                found[word] = found.get(word, 0) + 1
    return found


def slow_nats(train, document, position, available, order, strengths, size):
    """The module's formula, letter by letter."""
    symbols = document.symbols.tolist()
    usable = 0
    while usable < min(order, available, position) and symbols[position - usable - 1] >= 0:
        usable += 1
    probability = 1 / size
    for k in range(usable + 1):
        words = slow_words(train, k + 1)
        context = tuple(symbols[position - k : position])
        total = sum(words.get((*context, x), 0) for x in range(size))
        seen = words.get((*context, symbols[position]), 0)
        probability = (seen + strengths[k] * probability) / (total + strengths[k])
    return -math.log(probability)


documents = st.lists(
    st.lists(st.sampled_from([-1, 0, 0, 1, 1, 2]), min_size=1, max_size=12), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(train=documents, test=documents, data=st.data())
def test_agrees_with_the_formula_letter_by_letter(train, test, data):
    train, test = (
        [Document(symbols=np.array(s, dtype=np.int8), begin=len(s) // 3, end=len(s)) for s in group]
        for group in (train, test)
    )
    letters = [(d, i) for d in test for i in range(d.begin, d.end)]
    contexts = np.array(
        data.draw(st.lists(st.integers(0, 4), min_size=len(letters), max_size=len(letters))),
        dtype=np.int64,
    )
    strengths = [0.5, 2.0, 1.5, 4.0]
    counts = count(train, alphabet_size=3, max_order=3)
    fast = score(with_strengths(counts, strengths), test, contexts)
    for column, (document, position) in enumerate(letters):
        for order in range(4):
            if document.symbols[position] < 0:
                assert np.isnan(fast[order, column])
            else:
                slow = slow_nats(train, document, position, contexts[column], order, strengths, 3)
                assert fast[order, column] == pytest.approx(slow, abs=1e-12)


def test_worked_number_of_the_docstring():
    model = with_strengths(count([whole("AAAB", "AB")], alphabet_size=2, max_order=0), [2.0])
    assert math.exp(-score(model, [whole("A", "AB")])[0, 0]) == pytest.approx(2 / 3)


def test_probabilities_of_all_letters_sum_to_one():
    counts = count([whole("ACGTTGCAACGGT")], alphabet_size=4, max_order=3)
    model = with_strengths(counts, [0.5, 1.0, 2.0, 4.0])
    after = [score(model, [whole("GCA" + letter)])[:, -1] for letter in "ACGT"]
    np.testing.assert_allclose(np.exp(-np.stack(after)).sum(axis=0), 1.0)


def test_both_strands_count_as_the_sequence_and_its_reverse_complement():
    forward = "ACGGTANCGTTAGGA"
    backward = forward[::-1].translate(str.maketrans("ACGT", "TGCA"))
    doubled = count([whole(forward)], alphabet_size=4, max_order=4, complement=[3, 2, 1, 0])
    written = count([whole(forward), whole(backward)], alphabet_size=4, max_order=4)
    for ours, theirs in zip(doubled.tables, written.tables, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_letter_that_is_not_scored_breaks_contexts():
    model = with_strengths(
        count([whole("ACACACAC")], alphabet_size=4, max_order=2), [1.0, 1.0, 1.0]
    )
    broken = score(model, [whole("ANC")])[:, 2]
    fresh = score(model, [whole("C")])[:, 0]
    np.testing.assert_array_equal(broken, fresh)


def test_contexts_reset_as_told():
    model = with_strengths(
        count([whole("ACGACGACG")], alphabet_size=4, max_order=2), [1.0, 1.0, 1.0]
    )
    reset = score(model, [whole("ACG")], np.array([0, 0, 1]))
    np.testing.assert_array_equal(reset[:, 1], score(model, [whole("C")])[:, 0])
    np.testing.assert_array_equal(reset[:, 2], score(model, [whole("CG")])[:, 1])


def test_batches_do_not_show(monkeypatch):
    random = np.random.default_rng(3)
    symbols = random.integers(-1, 4, size=400).astype(np.int8)
    pieces = [
        Document(symbols=symbols[:250], begin=20, end=240),
        Document(symbols=symbols[250:], begin=0, end=150),
    ]
    contexts = random.integers(0, 9, size=370)
    at_once = count(pieces, alphabet_size=4, max_order=4, complement=[3, 2, 1, 0])
    model = choose(at_once, pieces)
    nats = score(model, pieces, contexts)
    monkeypatch.setattr(order_k, "_BATCH_LETTERS", 7)
    in_parts = count(pieces, alphabet_size=4, max_order=4, complement=[3, 2, 1, 0])
    for ours, theirs in zip(in_parts.tables, at_once.tables, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again = choose(in_parts, pieces)
    assert again.strengths == model.strengths
    assert again.valid_nats == pytest.approx(model.valid_nats)
    np.testing.assert_array_equal(score(again, pieces, contexts), nats)


def test_order_and_strengths_come_from_validation():
    random = np.random.default_rng(1)
    letters = random.integers(0, 4, size=4000)
    letters[1::2] = 3 - letters[::2]  # every second letter follows from the one before
    train, valid = (
        Document(symbols=part.astype(np.int8), begin=0, end=2000)
        for part in (letters[:2000], letters[2000:])
    )
    model = choose(count([train], alphabet_size=4, max_order=6), [valid])
    means = score(model, [valid]).mean(axis=1)
    assert model.valid_nats == pytest.approx(means)
    assert model.best_order == int(np.argmin(means)) >= 1
    # No single strength could have been better for its order, those below being fixed.
    for order, chosen in enumerate(model.strengths):
        for other in order_k.STRENGTHS:
            strengths = [*model.strengths[:order], other]
            counts = Counts(alphabet_size=4, tables=model.counts.tables[: order + 1])
            mean = score(with_strengths(counts, strengths), [valid])[order].mean()
            assert mean >= means[order] - 1e-12, (order, chosen, other)


def test_nothing_to_choose_on():
    counts = count([whole("ACGT")], alphabet_size=4, max_order=1)
    with pytest.raises(ValueError, match="no validation letter"):
        choose(counts, [whole("NN")])
