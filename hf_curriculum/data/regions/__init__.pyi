# Made by docs/update_tables.py from names.py.
from hf_curriculum.data.regions.base import RegionSource as RegionSource
from hf_curriculum.data.regions.base import Regions as Regions
from hf_curriculum.data.regions.open import open_regions as open_regions
from hf_curriculum.data.regions.tsv import write_line_index as write_line_index
