"""Algorithms of `search-strategy`, a file each, under one interface (`interface.py`) and in one table (`table.py`)."""
