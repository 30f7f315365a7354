"""What every figure is made of, line by line, as it was when someone last looked at it.

    PYTHONPATH=tests/helpers python tests/reporting/test_figures_golden.py

writes `figures.json` anew. Look at the figures that changed before you do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from figure_cases import FIGURES, MORE
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.spines import Spine
from matplotlib.text import Annotation, Text

from hf_curriculum.reporting.figures.canvas import DARK, LIGHT, new_figure

GOLDEN = Path(__file__).with_name("figures.json")
THEMES = {"light": LIGHT, "dark, narrow": DARK.narrow()}


def shown(values) -> str:
    """Numbers with four digits; of more than twelve their count, ends, mean and spread."""
    values = np.round(np.ravel(np.ma.filled(np.ma.asarray(values, float), np.nan)), 9) + 0.0  # no -0
    if values.size > 12:
        facts = [values[0], values[-1], np.nanmean(values), np.nanstd(values)]
        return f"{values.size} values " + " ".join(f"{value:.4g}" for value in facts)
    return " ".join(f"{value:.4g}" for value in values)


def colours(values) -> str:
    return " ".join(dict.fromkeys(to_hex(colour, keep_alpha=True) for colour in values))


def described(artist: Artist) -> str:
    """What can be seen of one part, in the units it was given in."""
    if isinstance(artist, Text):
        place = (*artist.xy, *artist.xyann) if isinstance(artist, Annotation) else artist.get_position()
        align = f"{artist.get_ha()} {artist.get_va()} {artist.get_rotation():g}"
        units = f" {artist.xycoords}" if isinstance(artist, Annotation) else ""
        font = f"{artist.get_fontsize():.3g} {artist.get_weight()} {to_hex(artist.get_color())}"
        return f"text {artist.get_text()!r} at {shown(place)}{units}, {align}, {font}"
    if isinstance(artist, Line2D):
        style = (
            f"{artist.get_linewidth():g} {artist.get_linestyle()} {artist.get_marker()} {artist.get_markersize():g}"
        )
        place = f"{shown(artist.get_xdata())} | {shown(artist.get_ydata())}"
        return f"line {place}, {style} {to_hex(artist.get_color())} {artist.get_alpha()}"
    if isinstance(artist, Patch):
        corners = artist.get_path().transformed(artist.get_patch_transform()).vertices
        edge = f"{artist.get_linewidth():g} {colours([artist.get_edgecolor()])}"
        return f"{type(artist).__name__} {shown(corners)}, {colours([artist.get_facecolor()])}, edge {edge}"
    if isinstance(artist, Collection):
        paths = [path.vertices for path in artist.get_paths()]
        place = f"{shown(artist.get_offsets())} | {shown(np.concatenate(paths) if paths else [])}"
        return f"{type(artist).__name__} {place}, {colours(artist.get_facecolor())}, {shown(artist.get_linewidths())}"
    if isinstance(artist, AxesImage):
        return f"image {shown(artist.get_array())}, {shown(artist.get_extent())}"
    return type(artist).__name__


def lines_of(artist: Artist) -> Iterator[str]:
    """A line for each visible part of a figure, with its axes' limits and ticks."""
    if not artist.get_visible() or isinstance(artist, FancyArrowPatch):
        return
    if isinstance(artist, (Axis, Spine)) and not artist.axes.axison:
        return
    if isinstance(artist, Spine):
        yield f"spine {artist.spine_type} {artist.get_linewidth():g} {colours([artist.get_edgecolor()])}"
        return
    if isinstance(artist, Axis):
        ticks = [place for place in artist.get_majorticklocs() if min(artist.get_view_interval()) <= place]
        ticks = [place for place in ticks if place <= max(artist.get_view_interval())]
        labels = artist.get_major_formatter().format_ticks(ticks)
        yield f"{artist.axis_name}: {artist.get_scale()} {shown(artist.get_view_interval())}, {labels}"
        for tick in artist.get_major_ticks()[:1]:
            line = f"{to_hex(tick.gridline.get_color())} {tick.gridline.get_linewidth():g}"
            yield f"{described(tick.label1)}, grid {line if tick.gridline.get_visible() else None}"
            mark = tick.tick1line
            yield f"ticks {mark.get_markersize():g} {mark.get_markeredgewidth():g}, labels {tick.get_pad():g} away"
        yield f"{described(artist.label)}, {artist.labelpad:g} away, layer {artist.get_zorder():g}"
        return
    seen = described(artist)
    if not seen.startswith("text ''"):
        yield f"{seen}, layer {artist.get_zorder():g}" if isinstance(artist.axes, Axes) else seen
    if isinstance(artist, Axes):
        above = artist.titleOffsetTrans.transform((0, 0))[1] * 72 / artist.get_figure().dpi
        yield f"titles {above:.4g} points above, axis below {artist.get_axisbelow()}"
    for child in artist.get_children():
        yield from lines_of(child)


def made_of(figure: Figure) -> list[str]:
    margins = figure.get_layout_engine().get()
    page = f"{shown(figure.get_size_inches())}, {figure.dpi:g} dots per inch"
    return [f"{page}, margins {margins['w_pad']:.3g} {margins['h_pad']:.3g}", *lines_of(figure)]


CASES = {f"{name}, {kind}": (name, theme) for name in (FIGURES | MORE) for kind, theme in THEMES.items()}


@pytest.mark.skipif(matplotlib.__version_info__ < (3, 11), reason="earlier ones place a label up to a point elsewhere")
@pytest.mark.parametrize("case", CASES)
def test_a_figure_is_made_of_what_it_was(case):
    name, theme = CASES[case]
    assert made_of((FIGURES | MORE)[name](theme)) == json.loads(GOLDEN.read_text(encoding="utf-8"))[case]


def test_a_style_of_the_reader_s_own_adds_no_grid():
    with rc_context({"axes.grid": True, "grid.linewidth": 3, "grid.color": "red"}):
        found = made_of((FIGURES | MORE)["ontology"](LIGHT))
        assert found == json.loads(GOLDEN.read_text(encoding="utf-8"))["ontology, light"]
        _, axes = new_figure(LIGHT, "", x_label="", y_label="")
        assert not axes.xaxis.get_major_ticks()[0].gridline.get_visible()


if __name__ == "__main__":
    found = {case: made_of((FIGURES | MORE)[name](theme)) for case, (name, theme) in CASES.items()}
    GOLDEN.write_text(json.dumps(found, indent=0, ensure_ascii=False) + "\n", encoding="utf-8")
