# Made by docs/update_tables.py from names.py.
from hf_curriculum.hub.errors import HubError as HubError
from hf_curriculum.hub.push import push_scored as push_scored
