"""Numbers as people read them."""

from __future__ import annotations

import math


def number(value: float, digits: int = 3) -> str:
    """A number with thousands separators and, below a thousand, `digits` significant ones; powers of ten far from 1.

    Example:
        >>> number(2891030), number(0.26314), number(0.3), number(-1250.5), number(2.5e28)
        ('2,891,030', '0.263', '0.3', '-1,250', '2.5e+28')
    """
    if not math.isfinite(value):
        return "–"
    if value and not 1e-6 <= abs(value) < 1e15:
        return f"{value:.{digits}g}"
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def percent(share: float) -> str:
    """A share as whole per cent, one decimal below 10.

    Example:
        >>> percent(0.291), percent(0.031), percent(0.0)
        ('29 %', '3.1 %', '0 %')
    """
    hundredths = 100 * share
    return f"{hundredths:.1f} %" if 0 < hundredths < 9.95 else f"{hundredths:.0f} %"
