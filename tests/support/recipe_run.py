"""The example `recipe` without dropout, for torchrun: `recipe_run.py [OPTIONS OF THE EXAMPLE]`."""

from __future__ import annotations

from example_runs import load_example

if __name__ == "__main__":
    recipe = load_example("recipe")
    recipe.CONFIG.update({"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0})
    recipe.main()
