"""What this package adds to xDSL: its dialects and passes, by name, each imported when asked for."""

from xdsl.universe import Universe

UNIVERSE = Universe(all_dialects={}, all_passes={})
