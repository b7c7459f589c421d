"""The report's figures, as SVG text: the same bytes for the same numbers."""

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from genomoe.tools.score_table import Row

MODEL, VALID, BASELINE, FAINT = "#0f766e", "#c2410c", "#64748b", "#cbd5e1"
EXPERTS = ("#0f766e", "#c2410c", "#4f46e5", "#ca8a04", "#be185d", "#0284c7", "#65a30d", "#78716c")
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "genomoe",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": "#334155",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": "#475569",
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#eef2f6",
    "xtick.color": "#64748b",
    "ytick.color": "#64748b",
    "legend.frameon": False,
}
_WIDTH = 8.4
_MOST_POINTS = 600
_MOST_STEPS = 100
_MOST_LAYERS = 8
_MOST_NUMBERS = 96
_MOST_NAMED_EXPERTS = 8


def score_figure(rows: Sequence[Row], own: Sequence[float] | None, unit: str) -> str:
    """Bits of the model and of each baseline, with paired intervals.

    A baseline's bar shows where it may lie relative to the model's line: it does not touch the
    line where the interval of the difference excludes zero.
    """
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(_WIDTH, 0.6 + 0.30 * len(rows))
        model = next(row.bits for row in rows if row.is_model)
        for height, row in enumerate(reversed(rows)):
            colour = MODEL if row.is_model else BASELINE
            right = row.bits
            if row.difference is not None:
                _, low, high = row.difference
                right = max(right, model - low)
                axes.plot([model - high, model - low], [height] * 2, color=colour, alpha=0.35, lw=5)
            axes.plot([row.bits], [height], "D" if row.is_model else "o", color=colour, ms=6)
            axes.annotate(
                f"{row.bits:.4f}",
                (right, height),
                (9, -3.5),
                textcoords="offset points",
                color=colour,
                fontweight="bold" if row.is_model else "normal",
            )
        axes.axvline(model, color=MODEL, lw=1, alpha=0.7)
        if own is not None:
            axes.axvspan(own[0], own[1], color=MODEL, alpha=0.07, lw=0)
        axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
        axes.set_ylim(-0.7, len(rows) - 0.3)
        low, high = axes.get_xlim()
        axes.set_xlim(low, high + 0.1 * (high - low))  # room for the last number
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(f"bits per {unit} (lower is better)")
        return _svg(figure)


def learning_figure(records: Sequence[Mapping[str, Any]], unit: str, uniform: float) -> str:
    """Train and validation bits over epochs, with the loss of each step behind them."""
    with matplotlib.rc_context(_STYLE):
        figure, axes = _canvas(_WIDTH, 3.3)
        losses = [r for r in records if r.get("loss_bits") is not None]
        x, y = thin([r["epoch"] for r in losses], [r["loss_bits"] for r in losses])
        axes.plot(x, y, color=FAINT, lw=1, label="loss of the steps")
        scored = [r for r in records if "valid_bits" in r]
        shown = list(y[len(y) // 10 :])
        if scored:
            epochs = [r["epoch"] for r in scored]
            for name, colour in (("train", MODEL), ("valid", VALID)):
                bits = [r[f"{name}_bits"] for r in scored]
                shown += bits
                axes.plot(epochs, bits, "o-", color=colour, ms=3.5, lw=1.6, label=name)
            best = min(scored, key=lambda r: r["valid_bits"])
            axes.axvline(best["epoch"], color=VALID, lw=0.8, ls=":", label="best validation")
        if shown:
            margin = 0.06 * max(0.02, max(shown) - min(shown))
            top = min(max(shown), max(uniform, min(shown))) + margin
            axes.set_ylim(min(shown) - margin, top)
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"bits per {unit}")
        axes.legend(ncols=4, loc="lower right", bbox_to_anchor=(1, 1), fontsize=9)
        return _svg(figure)


def steps_figure(records: Sequence[Mapping[str, Any]]) -> str:
    """Learning rate, gradient norm and speed over the iterations, small."""
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, 1.9), layout="constrained")
        panels = figure.subplots(1, 3)
        names = (("lr", "learning rate"), ("grad_norm", "gradient norm"))
        for axes, (key, title) in zip(
            panels, (*names, ("tokens_per_second", "tokens per second")), strict=True
        ):
            points = [r for r in records if r.get(key) is not None]
            x, y = thin([r["iteration"] for r in points], [r[key] for r in points])
            axes.plot(x, y, color=BASELINE, lw=1.2)
            axes.set_title(title)
            axes.set_ylim(bottom=0)
            axes.tick_params(labelsize=8)
        return _svg(figure)


def load_figure(load: Sequence[Sequence[float]]) -> str:
    """Heat map of the latest expert load: layers by experts, 1.0 being an even share."""
    with matplotlib.rc_context(_STYLE):
        share = np.asarray(load) * len(load[0])
        layers, experts = share.shape
        figure, axes = _canvas(min(_WIDTH, 1.8 + 0.62 * experts), 0.9 + 0.36 * layers)
        span = max(0.5, float(np.abs(share - 1).max()))
        image = axes.imshow(share, cmap="RdYlBu_r", vmin=1 - span, vmax=1 + span, aspect="auto")
        if share.size <= _MOST_NUMBERS:
            for (layer, expert), value in np.ndenumerate(share):
                dark = abs(value - 1) > 0.7 * span
                colour = "white" if dark else "#1e293b"
                axes.text(expert, layer, f"{value:.2f}", ha="center", va="center", color=colour)
        axes.set_xticks(*_ticks(experts), fontsize=9)
        axes.set_yticks(*_ticks(layers), fontsize=9)
        axes.set_xlabel("expert")
        axes.set_ylabel("layer")
        axes.grid(visible=False)
        figure.colorbar(image, ax=axes, label="share / even share", aspect=12)
        return _svg(figure)


def evolution_figure(records: Sequence[Mapping[str, Any]]) -> str:
    """Load of every expert over the iterations, one panel a layer (evenly chosen if many).

    Lines are means over a hundredth of the run, bands go from the least to the most in it.
    """
    with matplotlib.rc_context(_STYLE):
        points = [r for r in records if "expert_load" in r]
        loads = np.array([r["expert_load"] for r in points])
        iterations = [r["iteration"] for r in points]
        experts = loads.shape[2]
        layers = _spread(loads.shape[1], _MOST_LAYERS)
        columns = min(4, len(layers))
        lines = -(-len(layers) // columns)
        figure = Figure(figsize=(_WIDTH, 0.3 + 1.7 * lines), layout="constrained")
        panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, layer in zip(panels, layers, strict=False):
            for expert in range(experts):
                share = loads[:, layer, expert] * experts
                colour = EXPERTS[expert % len(EXPERTS)]
                axes.fill_between(*extent(iterations, share), color=colour, alpha=0.12, lw=0)
                x, y = thin(iterations, share, _MOST_STEPS)
                axes.plot(x, y, color=colour, lw=1.2, label=str(expert + 1))
            axes.axhline(1, color="#94a3b8", lw=0.8, ls="--")
            axes.set_title(f"layer {layer + 1}")
            axes.tick_params(labelsize=8)
        for axes in panels[len(layers) :]:
            axes.set_visible(False)
        panels[0].set_ylim(bottom=0)
        figure.supylabel("share / even share", fontsize=9, color="#475569")
        if experts <= _MOST_NAMED_EXPERTS:
            handles, labels = panels[0].get_legend_handles_labels()
            figure.legend(handles, labels, title="expert", loc="outside right center", fontsize=8)
        return _svg(figure)


def entropy_figure(records: Sequence[Mapping[str, Any]]) -> str:
    """How undecided the router of each layer is: 1 means every expert alike, 0 one always."""
    with matplotlib.rc_context(_STYLE):
        points = [r for r in records if "router_entropy_nats" in r]
        values = np.array([r["router_entropy_nats"] for r in points])
        values = values / math.log(max(2, len(points[0]["expert_load"][0])))
        figure, axes = _canvas(_WIDTH, 2.3)
        layers = _spread(values.shape[1], _MOST_LAYERS)
        for place, layer in enumerate(layers):
            x, y = thin([r["iteration"] for r in points], values[:, layer])
            axes.plot(x, y, color=EXPERTS[place], lw=1.2, label=f"layer {layer + 1}")
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("iteration")
        axes.set_ylabel("entropy / log(experts)")
        axes.legend(ncols=4, loc="lower left", fontsize=8)
        return _svg(figure)


def thin(
    x: Sequence[float], y: Sequence[float] | np.ndarray, limit: int = _MOST_POINTS
) -> tuple[np.ndarray, np.ndarray]:
    """Average a long series over even bins; a short one stays as it is."""
    starts = _bins(len(x), limit)
    sizes = np.diff([*starts, len(x)])
    means_x, means_y = (
        np.add.reduceat(np.asarray(values, dtype=float), starts) / sizes for values in (x, y)
    )
    return means_x, means_y


def extent(
    x: Sequence[float], y: np.ndarray, limit: int = _MOST_STEPS
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of x, least and most of y in each of the bins of `thin`."""
    starts = _bins(len(x), limit)
    return thin(x, y, limit)[0], np.minimum.reduceat(y, starts), np.maximum.reduceat(y, starts)


def _bins(count: int, limit: int) -> np.ndarray:
    """Where at most `limit` even bins over `count` points start."""
    bins = min(count, limit)
    return np.linspace(0, count, bins + 1).astype(int)[:-1]


def _spread(count: int, limit: int) -> list[int]:
    return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(int)).tolist()


def _ticks(count: int) -> tuple[list[int], list[str]]:
    places = _spread(count, 16)
    return places, [str(place + 1) for place in places]


def _canvas(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots()


def _svg(figure: Figure) -> str:
    """Render as an element to be put into a page."""
    text = io.StringIO()
    figure.patch.set_alpha(0)
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]
