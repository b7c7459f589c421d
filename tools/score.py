"""The score of a model: what is in the JSON, and what it means in words."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from genomoe.data.errors import InputError
from genomoe.tools.bootstrap import (
    LEVEL,
    RESAMPLES,
    UNITS_NEEDED,
    Interval,
    Units,
    interval,
    resampled_means,
)

SUSPICIOUS_GAIN_BITS = 0.15
"""More than this below the best order-k, from one genome, has so far meant a leak."""

type Source = Literal["held-out", "train", "file"]
type Standing = Literal[
    "train", "broken", "unknown", "suspicious", "level", "beyond", "little", "short"
]

_REQUIRED = (
    *("bits", "perplexity", "scored", "skipped", "unit", "baselines", "interval", "standing"),
    *("verdict", "checkpoint", "chosen", "split", "fasta", "window", "stride"),
)


@dataclass(frozen=True, kw_only=True)
class UnitScores:
    """Summed nats by bootstrap unit.

    Attributes:
        units: What the rows are.
        letters: int64 [units], scored letters.
        model: float64 [units].
        baselines: Name to float64 [units].
    """

    units: Units
    letters: np.ndarray
    model: np.ndarray
    baselines: Mapping[str, np.ndarray]

    @property
    def nll_nats(self) -> float:
        """Mean over letters under the model."""
        return float(self.model.sum() / self.letters.sum())

    @property
    def baseline_bits(self) -> dict[str, float]:
        """Mean over letters under each baseline."""
        letters = float(self.letters.sum())
        return {n: float(s.sum()) / letters / math.log(2) for n, s in self.baselines.items()}


def intervals(scores: UnitScores) -> tuple[Interval | None, dict[str, Interval]]:
    """Bootstrap the model's bits and its difference to each baseline, in bits a letter.

    Returns:
        Nothing where there are too few units.
    """
    if scores.units.count < UNITS_NEEDED:
        return None, {}
    names = list(scores.baselines)
    columns = np.stack([scores.model, *(scores.baselines[name] for name in names)], axis=1)
    drawn = resampled_means(columns, scores.letters) / math.log(2)
    bits = scores.nll_nats / math.log(2)
    differences = {
        name: interval(bits - scores.baseline_bits[name], drawn[:, 0] - drawn[:, column])
        for column, name in enumerate(names, start=1)
    }
    return interval(bits, drawn[:, 0]), differences


def assemble(
    scores: UnitScores,
    *,
    unit: str,
    skipped: Mapping[str, int],
    best_order: int | None,
    source: Source,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Build the JSON object.

    Args:
        scores: By unit.
        unit: "base" or "residue".
        skipped: Letters read and not scored, by reason.
        best_order: The order that validation chose; None without a data set.
        source: Where the letters come from.
        facts: What was scored with what; taken over as it is.
    """
    nats = scores.nll_nats
    baselines = scores.baseline_bits
    if best_order is not None:
        baselines["best"] = baselines[f"order-{best_order}"]
    own, differences = intervals(scores)
    if best_order is not None and differences:
        differences["best"] = differences[f"order-{best_order}"]
    standing, words = judge(
        nats / math.log(2), baselines, differences.get("best"), unit=unit, source=source
    )
    return {
        "unit": unit,
        "scored": int(scores.letters.sum()),
        "skipped": dict(skipped),
        "nll_nats": nats,
        "bits": nats / math.log(2),
        "perplexity": math.exp(nats),
        "baselines": baselines,
        "best_order": best_order,
        "interval": _describe(scores.units, own, differences),
        "standing": standing,
        "verdict": words,
        **facts,
    }


def _describe(
    units: Units, own: Interval | None, differences: Mapping[str, Interval]
) -> dict[str, Any]:
    note = None
    if own is None:
        note = f"{units.count} of {UNITS_NEEDED} units needed ({units.name}): no interval"
    return {
        "level": LEVEL,
        "unit": units.name,
        "units": units.count,
        "resamples": RESAMPLES if own else 0,
        "bits": None if own is None else [own.low, own.high],
        "differences": {n: [d.value, d.low, d.high] for n, d in differences.items()},
        "note": note,
    }


def judge(
    bits: float,
    baselines: Mapping[str, float],
    to_best: Interval | None,
    *,
    unit: str,
    source: Source,
) -> tuple[Standing, str]:
    """Say where a model stands, in one word for programs and a sentence for people.

    Args:
        bits: Of the model.
        baselines: Name to bits.
        to_best: Model minus best order-k with its interval, where there is one.
        unit: "base" or "residue".
        source: Where the letters come from.
    """
    if source == "train":
        return "train", "TRAIN DATA: the model has seen these letters; this is no held-out score"
    if bits >= baselines["uniform"]:
        return "broken", _no_better_than_guessing(unit, source)
    if "best" not in baselines:
        return "unknown", (
            "below uniform; the data set of the run is not at hand, so no other baseline says "
            f"what {bits:.4f} bits are worth (give --data DIR)"
        )
    gain = baselines["best"] - bits
    if gain > SUSPICIOUS_GAIN_BITS:
        return "suspicious", (
            f"{gain:.3f} bits below the best order-k, more than one genome usually allows: look "
            "for a leak first (copies or close relatives of these letters in the train split)"
        )
    if to_best is not None and not to_best.excludes_zero:
        return "level", (
            f"level with the best order-k ({-gain:+.4f} bits; the interval includes 0): train "
            "longer"
        )
    if gain > 0:
        sure = "" if to_best is not None else "; no interval says how sure that is"
        return "beyond", (
            f"{gain:.4f} bits below the best order-k: it has learnt more than short words{sure}"
        )
    shallow = next(name for name in ("order-5", "order-0") if name in baselines)
    if bits > baselines[shallow]:
        return "little", (
            f"above {shallow} ({baselines[shallow]:.4f}): it has learnt little yet; train longer"
        )
    return "short", (
        f"between {shallow} and the best order-k, {-gain:.4f} bits above the latter: it has "
        "learnt short words; train longer"
    )


def _no_better_than_guessing(unit: str, source: Source) -> str:
    start = f"no better than guessing, every {unit} alike: "
    if source == "file":
        return start + "these letters are unlike the training data, or the model has learnt little"
    return start + "train longer, or look for a fault"


def read_score(path: Path) -> dict[str, Any]:
    """Read what the evaluation printed.

    Raises:
        InputError: If it is missing or is something else.
    """
    try:
        score = json.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); write it with eval_perplexity") from None
    missing = [key for key in _REQUIRED if not isinstance(score, dict) or key not in score]
    if missing:
        raise InputError(f"{path}: no {missing[0]!r} in it; write it with eval_perplexity")
    return score
