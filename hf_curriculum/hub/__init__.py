"""What leaves a run: its report."""

from __future__ import annotations

from hf_curriculum.hub.gallery import Gallery
from hf_curriculum.hub.report import Report

__all__ = ["Gallery", "Report"]
