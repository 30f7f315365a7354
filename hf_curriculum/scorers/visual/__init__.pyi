# Made by docs/update_tables.py from names.py.
from hf_curriculum.scorers.visual.onnx import GridHead as GridHead
from hf_curriculum.scorers.visual.boxes import GroundTruthBoxes as GroundTruthBoxes
from hf_curriculum.scorers.visual.detectors import ModelDetector as ModelDetector
from hf_curriculum.scorers.visual.onnx import OnnxDetector as OnnxDetector
from hf_curriculum.scorers.visual.proposals import RegionProposals as RegionProposals
from hf_curriculum.scorers.visual.onnx import RowHead as RowHead
from hf_curriculum.scorers.visual.entropy import VisualEntropy as VisualEntropy
