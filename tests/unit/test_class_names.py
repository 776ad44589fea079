"""No two classes of the product have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("ir", "dialects", "passes", "lowering", "runtime", "models", "api", "tools")


def test_every_class_name_has_one_owner():
    owners: dict[str, list[str]] = defaultdict(list)
    for path in (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                # A private class is also confused with a public class of the same name.
                owners[node.name.lstrip("_")].append(f"{path.relative_to(ROOT)}:{node.lineno}")
    shared = {name: places for name, places in owners.items() if len(places) > 1}
    assert not shared, f"classes of one name; call each by what tells it apart: {shared}"
