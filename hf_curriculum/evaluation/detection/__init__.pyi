# Made by docs/update_tables.py from names.py.
from hf_curriculum.evaluation.detection.metrics import DETECTION_METRICS as DETECTION_METRICS
from hf_curriculum.evaluation.detection.compare import DetectionComparison as DetectionComparison
from hf_curriculum.evaluation.detection.metrics import DetectionScores as DetectionScores
from hf_curriculum.evaluation.detection.compare import compare_detections as compare_detections
from hf_curriculum.evaluation.detection.metrics import detection_compute_metrics as detection_compute_metrics
from hf_curriculum.evaluation.detection.metrics import detection_metrics as detection_metrics
from hf_curriculum.evaluation.detection.random_boxes import random_detections as random_detections
