# Made by docs/update_tables.py from names.py.
from hf_curriculum.data.objects.proposals import SelectiveSearch as SelectiveSearch
from hf_curriculum.data.objects.proposals import StoredProposals as StoredProposals
from hf_curriculum.data.objects.add_proposals import add_proposals as add_proposals
from hf_curriculum.data.objects.grouping import group_captions as group_captions
from hf_curriculum.data.objects.load import load_objects as load_objects
from hf_curriculum.data.objects.grouping import one_row_per_image as one_row_per_image
from hf_curriculum.data.objects.files import write_proposals as write_proposals
