"""The score as a table for a terminal."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line: the model or a baseline.

    Attributes:
        name: As shown.
        bits: Per letter.
        difference: Model minus this row with both ends of its interval, where known.
        is_model: Whether this is the model itself.
    """

    name: str
    bits: float
    difference: tuple[float, float, float] | None
    is_model: bool


def rows(score: Mapping[str, Any]) -> list[Row]:
    """Model and baselines, worst first."""
    differences = score["interval"]["differences"]
    best = score.get("best_order")
    found = [
        Row(
            name=f"{name} (best on valid)" if name == f"order-{best}" else name,
            bits=bits,
            difference=tuple(differences[name]) if name in differences else None,
            is_model=False,
        )
        for name, bits in score["baselines"].items()
        if name != "best"
    ]
    found.append(Row(name="model", bits=score["bits"], difference=None, is_model=True))
    return sorted(found, key=lambda row: -row.bits)


def table(score: Mapping[str, Any]) -> list[str]:
    """Lines of the table, heading first."""
    unit, spread = score["unit"], score["interval"]
    lines = [
        f"  {'':26} {f'bits/{unit}':>12}  {'perplexity':>10}   model minus baseline, bits",
    ]
    lines += [_line(row, score["bits"], spread["bits"]) for row in rows(score)]
    if spread["bits"] is not None:
        lines.append(
            f"  [{spread['level']:.0%} intervals: bootstrap over {spread['units']} units "
            f"({spread['unit']}), paired]"
        )
    else:
        lines.append(f"  [{spread['note']}]")
    return lines


def _line(row: Row, model_bits: float, own: Sequence[float] | None) -> str:
    mark = ">" if row.is_model else " "
    start = f"{mark} {row.name:26} {row.bits:12.4f}  {2**row.bits:10.4f}   "
    if row.is_model:
        return start + (f"[{own[0]:.4f}, {own[1]:.4f}]" if own else "")
    if row.difference is None:
        return start + f"{model_bits - row.bits:+.4f}"
    value, low, high = row.difference
    return start + f"{value:+.4f}  [{low:+.4f}, {high:+.4f}]"


def heading(score: Mapping[str, Any]) -> str:
    """One line: what was scored with which checkpoint."""
    what = score["fasta"] or f"{score['split']} split"
    label = "  *** TRAIN DATA ***" if score["split"] == "train" else ""
    skipped = sum(score["skipped"].values())
    return (
        f"{what}: {score['scored']:,} {score['unit']}s scored, {skipped:,} letters skipped; "
        f"{score['checkpoint']} ({score['chosen']}), window {score['window']}, "
        f"stride {score['stride']}{label}"
    )
