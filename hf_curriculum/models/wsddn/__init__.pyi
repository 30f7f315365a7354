# Made by docs/update_tables.py from names.py.
from hf_curriculum.models.wsddn.config import ConvBackboneConfig as ConvBackboneConfig
from hf_curriculum.models.wsddn.config import WsddnConfig as WsddnConfig
from hf_curriculum.models.wsddn.model import WsddnForObjectDetection as WsddnForObjectDetection
from hf_curriculum.models.wsddn.image_processing import WsddnImageProcessor as WsddnImageProcessor
from hf_curriculum.models.wsddn.build import new_detector as new_detector
