"""Detection learnt from captions (WSOD): proposals, labels, WSDDN, metrics."""

from __future__ import annotations

from hf_curriculum.names import exports

NAMES = {
    "hf_curriculum.data.proposals": ("SelectiveSearch", "StoredProposals", "proposal_recall"),
    "detect": ("add_detections",),
    "boxes": ("draw_boxes",),
    "build": ("new_detector",),
    "collator": ("DetectionCollator", "constant_loss"),
    "compare": ("compare_detections",),
    "config": ("ConvBackboneConfig", "WsddnConfig"),
    "image_processing": ("WsddnImageProcessor",),
    "labels": (
        "BoxLabels",
        "CaptionLabels",
        "GivenLabels",
        "add_labels",
        "label_counts",
        "label_names",
        "label_quality",
    ),
    "load": ("load_objects",),
    "metrics": ("detection_compute_metrics", "detection_metrics", "random_detections"),
    "model": ("WsddnForObjectDetection",),
    "proposals": ("add_proposals", "write_proposals"),
}
"""Module of the task → names that it offers."""

__all__, __getattr__, __dir__ = exports(__name__, NAMES)
