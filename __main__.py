"""`python -m shardwright`: the same as the command `shardwright`."""

import sys

from .tools.cli import main

sys.exit(main())
