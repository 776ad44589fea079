"""
Run Shardwright's passes inside another program's xDSL pipeline.

They are ordinary xDSL passes, which xDSL finds by entry point: any program that builds its pipeline from the
multiverse, as `xdsl-opt` does, can combine them with its own passes.

    python examples/embed_passes.py
"""

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.parser import Parser
from xdsl.passes import ModulePass, PassPipeline
from xdsl.universe import Universe

STEP = """
func.func @step(%x: tensor<64x784xf32> {train.batch = "0"}, %w: tensor<784x512xf32>) -> tensor<64x512xf32> {
  %h = aten.mm %x, %w : (tensor<64x784xf32>, tensor<784x512xf32>) -> tensor<64x512xf32>
  func.return %h : tensor<64x512xf32>
}
"""


def verify_between(before: ModulePass | None, module: ModuleOp, after: ModulePass | None) -> None:
    """Verify the module between passes."""
    module.verify()


def main() -> None:
    universe = Universe.get_multiverse()
    ctx = Context()
    for name, load in universe.all_dialects.items():
        ctx.register_dialect(name, load)
    module = Parser(ctx, STEP).parse_module()
    passes = 'canonicalize,add-cluster{file="local-4"},search-strategy,insert-resharding,select-collectives'
    PassPipeline.parse_spec(universe.all_passes, passes, verify_between).apply(ctx, module)
    print(module)


if __name__ == "__main__":
    main()
