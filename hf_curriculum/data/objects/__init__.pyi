# Made by docs/update_tables.py from names.py.
from hf_curriculum.data.objects.grouping import group_captions as group_captions
from hf_curriculum.data.objects.grouping import one_row_per_image as one_row_per_image
