"""Bars and curves as PNG files, in colours that colour-blind readers can tell apart (Okabe and Ito)."""

import numpy as np
from matplotlib.figure import Figure

from tf_robust.report.figures import save
from tf_robust.report.tables import cells

_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#666666")
_LINES = ("-", "--", ":", "-.")
_HATCHES = ("", "//", "..", "xx")
_BARS_A_LINE = 40
_SHOWN_ELSEWHERE = ("distance/", "checks/")  # as curves, in the table
_UPRIGHT_LABELS = 8
_LABEL_BOX = {"facecolor": "#222222", "edgecolor": "none", "boxstyle": "round,pad=0.2", "alpha": 0.75}


def class_histogram(path, counts, class_names):
    """Pictures per class, one panel a split; logarithmic where the classes differ more than tenfold.

    Args:
        counts: {split: int [classes]}. class_names: what stands below the bars.
    """
    figure = Figure(figsize=(max(3.2, 0.32 * len(class_names)) * len(counts), 3.2), layout="constrained")
    for axes, (split, values) in zip(figure.subplots(1, len(counts), squeeze=False)[0], counts.items()):
        if len(values) != len(class_names):
            raise ValueError(f"Expected {len(class_names)} counts, one a class, of {split!r}. Received: {len(values)}")
        unbalanced = max(values) > 10 * max(1, min(values))
        axes.bar(range(len(values)), values, color=_COLOURS[0])
        axes.set_yscale("log" if unbalanced else "linear")
        axes.set_xticks(range(len(values)), class_names, rotation=90 if max(map(len, map(str, class_names))) > 3 else 0)
        axes.set(title=f"{split}: {sum(map(int, values)):,} pictures", xlabel="class",
                 ylabel="pictures (logarithmic)" if unbalanced else "pictures", ylim=(1 if unbalanced else 0, None))
        _quiet(axes)
    return save(figure, path)


def comparison_bars(path, table):
    """Grouped bars of a table (as `aggregate` gives), a group a measure; the paper's means are black diamonds.

    Whiskers are sample deviations over seeds, for a row with one seed its binomial interval.
    """
    order = table["order"]
    measures = [name for name in table["measures"] if not name.startswith(_SHOWN_ELSEWHERE)] or table["measures"]
    share = max(1, _BARS_A_LINE // len(order))  # measures on one line of the figure
    shares, others = _fractions(measures)
    lines = [shares[start:start + share] for start in range(0, len(shares), share)] + [[measure] for measure in others]
    figure = Figure(figsize=(min(11.0, max(5.0, 1.5 + 0.42 * len(order) * len(lines[0]))), 0.6 + 3.6 * len(lines)),
                    layout="constrained")
    for axes, chosen in zip(figure.subplots(len(lines), 1, squeeze=False, sharey=not others)[:, 0], lines):
        _groups(axes, table, chosen)
        axes.set(ylabel=_whiskers(table), ylim=(0, None), xlim=(-0.6, len(lines[0]) - 0.4))
        _quiet(axes)
    _legend(figure)
    return save(figure, path)


def _fractions(measures):
    """Measures that are fractions, and those that each have a scale of their own."""
    own = [measure for measure in measures if measure.startswith(("boundary/", *_SHOWN_ELSEWHERE))]
    return [measure for measure in measures if measure not in own], own


def _groups(axes, table, measures):
    found, order = cells(table), table["order"]
    width = 0.8 / len(order)
    for number, row in enumerate(order):
        entries = {place: found[row, measure] for place, measure in enumerate(measures) if (row, measure) in found}
        places = np.array(list(entries), float) + (number - (len(order) - 1) / 2) * width
        colour, hatch = _pick(_COLOURS, number), _pick(_HATCHES, number // len(_COLOURS))
        axes.bar(places, [e["mean"] for e in entries.values()], 0.92 * width, label=row, color=colour, hatch=hatch)
        for place, entry in zip(places, entries.values()):
            axes.errorbar(place, entry["mean"], _whisker(entry), color="#333333", elinewidth=1.2, capsize=3)
            _mark(axes, place, entry, upright=len(order) * len(measures) > _UPRIGHT_LABELS)
    long = max(map(len, measures)) * len(measures) > 60
    axes.set_xticks(range(len(measures)), measures, rotation=30 if long else 0, ha="right" if long else "center")


def _mark(axes, place, entry, upright):
    """The paper's mean as a diamond, and our mean in figures at the foot of the bar."""
    if entry["paper"]:
        axes.plot(place, entry["paper"][0], "kD", markersize=5, markeredgecolor="white", label="paper", zorder=3)
    axes.annotate(f"{entry['mean']:.3f}", (place, 0), (0, 5), textcoords="offset points", rotation=90 if upright else 0,
                  ha="center", va="bottom", fontsize=8, color="white", bbox=_LABEL_BOX)


def _whisker(entry):
    """[[below], [above]], as `errorbar` takes it."""
    if entry["std"] is not None:
        return [[entry["std"]], [entry["std"]]]
    return None if entry["low"] is None else [[entry["mean"] - entry["low"]], [entry["high"] - entry["mean"]]]


def _whiskers(table):
    alone = [entry["std"] is None for entry in table["rows"]]
    if all(alone):
        return "value, 95% interval"
    return "mean ± deviation, or 95% interval" if any(alone) else "mean ± deviation over seeds"


def training_curves(path, histories):
    """One panel a quantity, one line a row; rows may lack quantities.

    Args:
        histories: {row: {quantity: [per epoch]}}, None at epochs that have no value; the others are then marked.
    """
    quantities = list(dict.fromkeys(name for history in histories.values() for name in history))
    if not quantities:
        raise ValueError(f"Expected histories with at least one quantity. Received rows: {list(histories)}")
    columns = min(3, len(quantities))
    lines = -(-len(quantities) // columns)
    figure = Figure(figsize=(max(5.0, 3.6 * columns), 2.8 * lines + 0.5), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes, quantity in zip(panels, quantities):
        _curves(axes, quantity, histories)
    for axes in panels[len(quantities):]:
        axes.axis("off")
    _legend(figure)
    return save(figure, path)


def _curves(axes, quantity, histories):
    for number, (row, history) in enumerate(histories.items()):
        if quantity in history:
            values = {epoch: value for epoch, value in enumerate(history[quantity], 1) if value is not None}
            sparse = len(values) == 1 or len(values) < len(history[quantity])
            axes.plot(list(values), list(values.values()), _pick(_LINES, number), color=_pick(_COLOURS, number),
                      label=row, marker="o" if sparse else None, markersize=4)
    longest = max(len(values) for history in histories.values() for values in history.values())
    axes.set(title=quantity, xlabel="epoch", xlim=(0, 1.05 * longest))
    axes.xaxis.get_major_locator().set_params(integer=True)
    _quiet(axes)


def _legend(figure):
    """One legend above all panels, every name once and as in its first panel, the paper last."""
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    labels = sorted(handles, key=lambda label: label == "paper")
    figure.legend([handles[label] for label in labels], labels, loc="outside upper center", ncols=min(6, len(labels)),
                  frameon=False)


def _pick(choices, number):
    return choices[number % len(choices)]


def _quiet(axes):
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.7)
    axes.set_axisbelow(True)
