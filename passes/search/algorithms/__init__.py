"""The algorithms of `search-strategy`, one per file, under one interface (`interface.py`), listed in `table.py`."""
