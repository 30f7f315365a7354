# Made by docs/update_tables.py from names.py.
