"""How figures and pages look: colours for light and dark, a width for wide and narrow screens."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Theme:
    """Colours and width of a figure; the report takes the colours of its page from the same place.

    Args:
        name: `"light"` or `"dark"`.
        page: colour behind everything.
        surface: colour of cards and figures.
        text: colour of titles and values; at least 7 : 1 against `surface`.
        muted: colour of labels and notes; at least 4.5 : 1.
        line: colour of rules and grids.
        series: colours of runs and buckets, in order: the palette of Okabe and Ito, which colour-blind readers can
            tell apart, lightened for dark pages. The first is also the page's accent.
        width: width of a figure in inches; text is sized for a figure shown at about 100 pixels an inch.

    Example:
        >>> LIGHT.narrow().width < LIGHT.width
        True
    """

    name: str
    page: str
    surface: str
    text: str
    muted: str
    line: str
    series: tuple[str, ...]
    width: float = 8.0

    def narrow(self) -> Theme:
        """The same colours for a telephone's screen."""
        return replace(self, width=4.0)

    @property
    def is_narrow(self) -> bool:
        """Whether there is room for few ticks and short labels only."""
        return self.width < 6


LIGHT = Theme(
    name="light",
    page="#f5f6f8",
    surface="#ffffff",
    text="#16191f",
    muted="#5a6472",
    line="#e1e5ea",
    series=("#0068ad", "#c8500a", "#007f5c", "#a8467f", "#8a6d00", "#2a86b8"),
)
DARK = Theme(
    name="dark",
    page="#0f1216",
    surface="#181c22",
    text="#eef1f5",
    muted="#a0aab8",
    line="#2d343d",
    series=("#62b6f0", "#f59a5b", "#3fcea6", "#e597c4", "#e6c34a", "#9fd6f2"),
)
THEMES = (LIGHT, DARK)
