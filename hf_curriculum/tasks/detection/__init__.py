"""Detection learnt from captions (WSOD): proposals, labels, WSDDN, metrics."""

from __future__ import annotations

from hf_curriculum.names import exports

__all__, __getattr__, __dir__ = exports(__name__)
