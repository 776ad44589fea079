"""Keeps all that is loaded so far out of collections of garbage; import it last."""

import gc

gc.collect()
gc.freeze()
gc.set_threshold(50_000, 10, 10)
