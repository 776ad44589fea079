"""Write the generated parts of the manual: passes.md, dialects.md, not-supported.md and options.md in docs."""

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from xdsl.ir import Attribute, Dialect, Operation, TypeAttribute
from xdsl.irdl import IRDLOperation, OpDef, OptionalDef, VariadicDef

from ..ir.not_supported import NOT_SUPPORTED, Refusal
from ..ir.ops.spec import OpSpec
from ..ir.ops.table import op_table
from ..ir.plan_options import OPTIONS, WAYS, ways_of
from ..passes.pipeline import Pipeline
from ..passes.pipeline_spec import PassOption
from ..passes.pipelines import PIPELINES
from .pass_doc import PassDoc, option_docs, pass_doc
from .universe import UNIVERSE

NOTICE = "<!-- Written by `make docs` from the code; change it there. -->"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages into the folder named by the one argument, by default `docs`."""
    (folder,) = (sys.argv[1:] if arguments is None else arguments) or ("docs",)
    for name, text in pages().items():
        (Path(folder) / name).write_text(text)
    return 0


def pages() -> dict[str, str]:
    """Return the text of each generated page by its name; ValueError if the docstring of a pass lacks a part."""
    return {
        "passes.md": passes_page(pass_doc(load()) for load in UNIVERSE.all_passes.values()),
        "dialects.md": dialects_page(load() for load in UNIVERSE.all_dialects.values()),
        "not-supported.md": not_supported_page(NOT_SUPPORTED),
        "options.md": options_page(),
    }


def options_page() -> str:
    """Return the Markdown page of the options of plans: their values, the ways that obey them, and conflicts."""
    intro = (
        "The options of `PlanOptions`, of `parallelize` and, by their flags, of the command line. A plan is made in one"
        " of four ways. Two options exclude each other if no way obeys both; an error names the pair."
    )
    samples = {"algorithm": ("auto", "eliminate"), "ratios": ("even", "0.7,0.3")}
    ways = {(name, value): ways_of(name, value) for name in OPTIONS for value in samples.get(name, ("",))}
    said = {key: _code("=".join(filter(None, key))) for key in ways}
    rows: list[tuple[str, ...]] = []
    for key, obeyed in ways.items():
        excluded = (said[other] for other in ways if not obeyed & ways[other])
        by = ("yes" if way in obeyed else "" for way in WAYS)
        rows.append((said[key], OPTIONS[key[0]].values.text, *by, ", ".join(excluded)))
    return _page("Options of a plan", [intro, _table(("option", "values", *WAYS.values(), "excludes"), rows)])


def passes_page(docs: Iterable[PassDoc]) -> str:
    """Return the Markdown page of all passes, by name, and of the named pipelines."""
    by_name = sorted(docs, key=lambda doc: doc.name)
    intro = "Every pass runs alone under `opt-tool --pass-pipeline=...` and in any xDSL `PassPipeline`."
    rows = ((f"[`{doc.name}`](#{doc.name})", doc.summary) for doc in by_name)
    contents = _table(("pass", "what it does"), rows)
    return _page("Passes", [intro, contents, *_pipelines_section(), *map(_pass_section, by_name)])


def _pipelines_section() -> Iterator[str]:
    yield "## Named pipelines"
    yield (
        "`opt-tool` and `Pipeline.parse` replace each of these names by its passes, which then run one by one. The"
        " usual pipeline is `prepare,search-strategy,program,finish`. The passes are shown here for the default"
        " options; `program{parts=4}` runs four parts of the batch one after the other, and"
        " `program{mode=pipeline parts=4}` runs them through stages."
    )
    for pipeline in PIPELINES.values():
        yield f"### {pipeline.name}\n\n{inspect.getdoc(pipeline)}\n\n`{Pipeline.parse(pipeline.name)}`"
        if options := option_docs(pipeline):
            yield _options_table(options)


def _options_table(options: Iterable[tuple[PassOption, str]]) -> str:
    rows = (
        (f"`{option.name}`", f"`{option.type}`", _code(option.default or "required"), meaning)
        for option, meaning in options
    )
    return _table(("option", "type", "default", "meaning"), rows)


def _pass_section(doc: PassDoc) -> str:
    return _joined(
        f"## {doc.name}",
        doc.summary,
        doc.explanation,
        f"**Requires**: {doc.requires}",
        f"**Ensures**: {doc.ensures}",
        _options_table(doc.options) if doc.options else "",
        f"Before `{doc.pipeline}`:",
        f"```mlir\n{doc.before}```",
        "After:",
        f"```mlir\n{doc.after}```",
        f"**Source**: {doc.source}",
    )


def dialects_page(dialects: Iterable[Dialect]) -> str:
    """Return the Markdown page of all dialects, by name."""
    by_name = sorted(dialects, key=lambda dialect: dialect.name)
    return _page("Dialects", [_dialect_section(dialect) for dialect in by_name])


def _dialect_section(dialect: Dialect) -> str:
    ops = sorted((op for op in dialect.operations if issubclass(op, IRDLOperation)), key=lambda op: op.name)
    attributes = sorted(dialect.attributes, key=lambda attribute: attribute.name)
    rows = [_row(op) for op in ops]
    table = _op_table(row for row in rows if row)
    sections = [_op_section(op) for op, row in zip(ops, rows, strict=True) if row is None]
    # The dialect's own module may lack a docstring; then the module that defines its first op has it.
    homes = [f"{__package__.rpartition('.')[0]}.dialects.{dialect.name}" if __package__ else ""]
    homes += [definition.__module__ for definition in (*dialect.operations, *dialect.attributes)]
    documented = (inspect.getdoc(sys.modules[home]) for home in homes if home in sys.modules)
    return _joined(
        f"## {dialect.name}",
        next(filter(None, documented), ""),
        table if any(rows) else "",
        *sections,
        *map(_attribute_section, attributes),
    )


def _row(op: type[IRDLOperation]) -> OpSpec | None:
    """Return the op's row in the op table, or None for an op that is written by hand."""
    dialect, _, overload = op.name.partition(".")
    return op_table().get(overload) if dialect == "aten" else None


def _op_table(specs: Iterable[OpSpec]) -> str:
    header = ("op", "tensors", "sharding rule", "linear in", "FLOPs")
    rows = ((spec.name, " ".join(spec.operands), *_rule_cells(spec)) for spec in specs)
    return _table(header, ([_code(cell) if cell else "" for cell in row] for row in rows))


def _rule_cells(spec: OpSpec) -> tuple[str, str, str]:
    """Return the rule (its notation, or the name of its family), the linear sets and the FLOPs as text."""
    rule = spec.rule if isinstance(spec.rule, str) else spec.rule.__qualname__.partition(".")[0].strip("_")
    return rule, ", ".join(spec.linear), "" if spec.view else spec.flops


def _op_section(op: type[IRDLOperation]) -> str:
    definition = op.get_irdl_definition()
    attributes = ", ".join(_named([*definition.properties.items(), *definition.attributes.items()]))
    syntax = definition.assembly_format
    return _joined(
        f"### `{op.name}`",
        _own_doc(op),
        f"Signature: {_code(_signature(definition))}",
        f"Syntax: {_code(f'{op.name} {_one_line(syntax)}')}" if syntax else "",
        f"Attributes: {_code(attributes)}" if attributes else "",
    )


def _attribute_section(attribute: type[Attribute]) -> str:
    sign = "!" if issubclass(attribute, TypeAttribute) else "#"
    return _joined(f"### `{sign}{attribute.name}`", _own_doc(attribute))


def _own_doc(definition: type[Operation] | type[Attribute]) -> str:
    """Return the class's own docstring as Markdown; an inherited one would describe another class."""
    return inspect.cleandoc(definition.__dict__.get("__doc__") or "")


def _signature(definition: OpDef) -> str:
    operands = ", ".join(_named(definition.operands))
    results = ", ".join(_named(definition.results))
    regions = "".join(f" {{{name}}}" for name in _named(definition.regions))
    return f"({operands}){regions} -> ({results})"


def _named(parts: Iterable[tuple[str, object]]) -> Iterator[str]:
    """Yield the name of each operand, result, region or attribute: `x?` if optional, `x...` if variadic."""
    for name, part in parts:
        yield name + ("?" if isinstance(part, OptionalDef) else "..." if isinstance(part, VariadicDef) else "")


def not_supported_page(rows: Mapping[str, Sequence[Refusal]]) -> str:
    """Return the Markdown page of unsupported uses, by section, each with an alternative."""
    intro = (
        "Uses that a step of `parallelize` refuses, and their alternatives. Each use raises an error that names it and"
        " its alternative. A script in `tests/support/feature_*.py` triggers each error; other scripts there show"
        " supported uses."
    )
    unseen = (
        "## Differences without an error",
        "Python side effects of forward (prints, lists that it appends to, hooks that keep activations) happen while"
        " planning and never again. Tensors that were taken from the module before `parallelize`, by"
        " `list(model.parameters())` or by a separate optimizer for example, keep their old values.",
    )
    sections = (part for section in rows.items() for part in _refusals(*section))
    return _page("What is not supported", [intro, *sections, *unseen])


def _refusals(section: str, rows: Sequence[Refusal]) -> tuple[str, str]:
    return f"## {section}", _table(("not supported", "the way out"), ((row.what, _way(row.instead)) for row in rows))


def _way(text: str) -> str:
    """Escape plain words, as in errors, so that Markdown shows them verbatim."""
    return text if "`" in text else text.replace("_", r"\_").replace("*", r"\*")


def _joined(*parts: str) -> str:
    """Join the parts of a page that are not empty."""
    return "\n\n".join(filter(None, parts))


def _page(title: str, sections: Iterable[str]) -> str:
    return "\n\n".join([NOTICE, f"# {title}", *sections]) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar inside a cell is escaped, a line break becomes a blank."""
    lines = [header, ["---"] * len(header), *rows]
    cells = ([_one_line(cell).replace("|", r"\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
